/* router/sessions/session_table.h - the sessions of a model: which one does a prompt continue?
 *
 * A session is a conversation whose prompts each open with the one before, as an agent's turns do.
 * A turn is joined to its session by, in this order:
 *
 *     id       the name in a header, hashed with its tenant; then nothing else is looked at
 *     end      a whole prompt of the session lies in this one: its last block, one of the last
 *              SESSION_ENDS, is looked up SESSION_LOOK blocks back from the deepest block known
 *     anchor   the first block of the session's own, behind what others have in common with it
 *
 *     prompt   | opening, shared      | own ...                                             |
 *                                       ^anchor          ^end (turn n-1)        ^end (turn n)
 *
 * An end is lost when a client rewrites what it sent (drops reasoning, moves a reminder); the
 * anchor is not. Where the opening ends is taken to be the first block that no worker holds when
 * the session begins, or the end of the system prompt if that is later; and, when a later session
 * proves it longer, where that one leaves it. The first two may be too early, when caches have just
 * lost the opening or a part of it is new. So that a new session with that opening is not joined to
 * an old one, an anchor counts only behind the longest opening known of the prompt, and when no
 * more of the prompt is known than that opening or nearly all that was the session's first prompt;
 * except where one of the session's ends lies in the prompt, which proves it.
 *
 * A session in flight is not joined by a prompt: two prompts with one beginning are two sessions,
 * and the second has the first as its parent. An idle one that is continued in another way than
 * before (a fork) is joined. Of several the one with the deepest end in the prompt is taken, of
 * equals the one whose last prompt that is, then the one idle longest.
 *
 * Openings form a tree, and count once however many sessions have them:
 *
 *     opening of 40 blocks ◀── opening of 90 ◀── session: 300 of its own
 *                          ◀── session: 210 of its own
 *
 * `used` is the sum of the own tokens of active sessions and of the openings that one of them has.
 *
 * Keys have 48 bits of a prompt's chain (prompt_hash.h), mixed with its tenant, and 16 of depth.
 * Sessions, their keys and openings are in arrays that creation allocates and use makes resident:
 * session_table_bytes. No clock, no lock; a model's lock. */
#ifndef ROUTER_SESSIONS_SESSION_TABLE_H
#define ROUTER_SESSIONS_SESSION_TABLE_H

#include "common/base/base.h"
#include "router/routing/worker_mask.h"
#include "router/sessions/openings.h"

#define SESSION_NONE   0u
#define SESSION_ENDS   4
#define SESSION_LOOK   8
#define SESSION_MARKS  (SESSION_ENDS + 2)
#define SESSION_ANCHOR SESSION_ENDS
#define SESSION_ID     (SESSION_ENDS + 1)
#define SESSION_ALIKE  32 /* keys of a bucket at most: more that are equal are not entered */
#define SESSIONS_MAX   (1u << 24)

struct session_turn;

enum session_joined {
    SESSION_BEGUN, /* none was found: a new one */
    SESSION_BY_ID,
    SESSION_BY_END,
    SESSION_BY_ANCHOR,
    SESSION_N_JOINED
};

/* 0 is no session, no opening, no list. The fields behind the first five are the user's. */
struct session {
    uint64_t keys[SESSION_MARKS]; /* 0: none */
    uint32_t next[SESSION_MARKS]; /* in its bucket */
    uint32_t own_tokens, opening;
    uint16_t worker, epoch; /* which has its own tokens, and that worker's cache then */
    uint16_t first_end;     /* blocks of its first prompt */
    uint8_t last_end;       /* of the keys, the latest prompt's */
    bool is_active : 1;     /* its tokens are in use */
    bool is_aside : 1;      /* its last prompt was another than those before */
    bool is_sure : 1;       /* its opening ends no earlier than the system prompt, or others' */
    bool is_used : 1;
    uint32_t number, parent; /* counts up from 1; 0: unknown */
    uint32_t prev, after;    /* on one of the user's lists */
    struct session_turn *held;
    uint32_t first_ms, last_ms, since_ms;
    uint32_t n_turns;
    float gap_mean, gap_m2; /* of the logarithms of its gaps in seconds (Welford) */
    uint32_t n_open, n_gaps;
    uint8_t list;
    bool has_ended : 1; /* a turn, since one last arrived */
};

struct session_table {
    struct session *sessions; /* [0] is unused */
    uint32_t *buckets;
    uint32_t n_max, n_buckets;
    uint32_t n, n_ever, free; /* in use; that were; first of those given back */
    uint32_t n_begun;
    struct openings openings;
    uint64_t used_tokens;              /* of active sessions and their openings */
    uint64_t used_by[WORKERS_MAX + 1]; /* own tokens of active sessions, by worker */
    uint16_t epochs[WORKERS_MAX + 1];
};

/* What a prompt continues. */
struct session_match {
    uint32_t session; /* or SESSION_NONE */
    uint32_t like;    /* none found, but one in flight has the beginning in common, or 0 */
    uint32_t n_like;  /* so many blocks of it */
    enum session_joined how;
};

/* False: memory is refused. */
MUST_USE bool session_table_init(struct session_table *t, uint32_t n_max);
void session_table_fini(struct session_table *t);
uint64_t session_table_bytes(uint32_t n_max); /* when full */

struct session_match session_table_find(const struct session_table *t,
                                        const struct session_prompt *p);

/* A new session, not active, with no tokens: SESSION_NONE when the table is full, or when neither
 * the prompt nor an id could find it again. */
uint32_t session_table_begin(struct session_table *t, const struct session_prompt *p,
                             const struct session_match *match);

/* True when the prompt goes on from where the session's own part began; a session that has nothing
 * of its own yet, from its opening. One found by its id alone may not. */
bool session_table_goes_on(const struct session_table *t, uint32_t s,
                           const struct session_prompt *p);

/* A later turn of it: its ends, and the anchor when all behind the opening is new. False: the
 * prompt is another than those before, as one beside them by a client that names sessions, and
 * changes nothing this time. */
bool session_table_continue(struct session_table *t, uint32_t s, const struct session_prompt *p,
                            uint64_t n_tokens);

void session_table_erase(struct session_table *t, uint32_t s);

static inline struct session *session_at(const struct session_table *t, uint32_t s) {
    return &t->sessions[s];
}

/* All its tokens, openings included: as found, and as they are to be. */
uint64_t session_table_tokens(const struct session_table *t, uint32_t s);
void session_table_resize(struct session_table *t, uint32_t s, uint64_t n_tokens);

/* How much `used` grows when it becomes active. */
uint64_t session_table_cost(const struct session_table *t, uint32_t s);
void session_table_activate(struct session_table *t, uint32_t s, bool is_active);

/* Its own tokens lie on w, or on none of them: WORKER_NONE. */
void session_table_move(struct session_table *t, uint32_t s, uint32_t w);

/* What w held is gone; its sessions stay, with no tokens of their own. O(1). */
void session_table_worker_lost(struct session_table *t, uint32_t w);

void session_table_check(const struct session_table *t); /* asserts the invariants; O(n) */

#endif
