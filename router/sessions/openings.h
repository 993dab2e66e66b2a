/* router/sessions/openings.h - beginnings of prompts that sessions have in common.
 *
 * A tree: an opening lies within its parent's continuations, and has the tokens that its parent has
 * not. It lives while a session or another opening refers to it. They are found by the first block
 * of a prompt: at most OPENINGS_ALIKE openings have one first block, and a prompt whose own opening
 * has no place is taken to have the longest that has one. Arrays of a fixed size, by number; 0 is
 * none. No clock, no lock. */
#ifndef ROUTER_SESSIONS_OPENINGS_H
#define ROUTER_SESSIONS_OPENINGS_H

#include "common/base/base.h"

#define OPENINGS_ALIKE  16
#define OPENINGS_NESTED 8     /* the longest path */
#define SESSION_DEPTH   65000 /* blocks of a prompt that count */

struct session_prompt {
    const uint64_t *chain; /* the low 16 bits of each are zero */
    uint32_t n_blocks;     /* that are full: a last, shorter one is not counted */
    uint32_t n_known;      /* leading blocks that some worker holds */
    uint32_t n_system;     /* leading blocks that the system prompt touches; 0: unknown */
    uint64_t id;           /* hash of a session's name; 0: none */
    uint64_t parent_id;    /* hash of its parent's name; 0: none */
    uint64_t tenant;       /* hash */
    double tokens_per_block;
};

/* A name of the first `n_blocks` > 0 blocks, for the tenant; the depth is its low 16 bits. */
uint64_t session_prompt_key(const struct session_prompt *p, uint32_t n_blocks);
static inline uint32_t session_key_depth(uint64_t key) {
    return (uint32_t)(key & 0xFFFF);
}

struct opening {
    uint64_t key;
    uint32_t family; /* hash of the first block */
    uint32_t parent, next, tokens;
    uint32_t n_refs, n_active;
    uint32_t level; /* openings above it */
};

struct openings {
    struct opening *at; /* [0] is unused */
    uint32_t *buckets;
    uint32_t n_max, n_buckets;
    uint32_t n, n_ever, free;
};

MUST_USE bool openings_init(struct openings *o, uint32_t n_max);
void openings_fini(struct openings *o);
uint64_t openings_bytes(uint32_t n_max);

/* The openings of the prompt, the longest first, and how many. */
uint32_t openings_of(const struct openings *o, const struct session_prompt *p,
                     uint32_t found[OPENINGS_ALIKE]);
bool openings_has(const struct openings *o, uint32_t x, const struct session_prompt *p);

/* The opening of the first n_blocks, made if need be; where it has no place, the longest that is
 * shorter, or 0. With a reference for the caller. */
uint32_t openings_refer(struct openings *o, const struct session_prompt *p, uint32_t n_blocks);
void openings_release(struct openings *o, uint32_t x); /* 0 is fine */

/* An active session refers to x, or no longer does: the change of the tokens that are in use. */
uint64_t openings_activate(struct openings *o, uint32_t x);
uint64_t openings_deactivate(struct openings *o, uint32_t x);

uint64_t openings_tokens(const struct openings *o, uint32_t x); /* with those above it */
uint64_t openings_cost(const struct openings *o, uint32_t x);   /* what activation would add */

/* n_refs and n_active by number, from the sessions; asserts the rest. */
void openings_check(const struct openings *o, const uint32_t *n_refs, const uint32_t *n_active);

#endif
