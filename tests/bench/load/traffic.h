/* tests/bench/load/traffic.h - what is asked: bodies of requests, from a seed.
 *
 * The n-th request of a seed is the same bytes whatever the answers were and however long they
 * took: so two routers can be given the very same load. That is why a conversation carries made-up
 * answers in its history instead of those that came.
 *
 *   fixed          `bodies` bodies of `body_bytes` each, made before the run, in `families` families
 *                  whose members share their first half; one after the other
 *   shared_prefix  `groups` system prompts of `prefix_bytes`, each request one of them, and a
 *                  question of `question_bytes` that no request had before
 *   conversation   sessions of some turns; each turn sends the whole history. Sizes are log-normal,
 *                  the number of turns geometric, pauses exponential, system prompts Zipf */
#ifndef TESTS_BENCH_LOAD_TRAFFIC_H
#define TESTS_BENCH_LOAD_TRAFFIC_H

#include "common/base/buf.h"

enum traffic_shape { TRAFFIC_FIXED, TRAFFIC_SHARED_PREFIX, TRAFFIC_CONVERSATION };
extern const char *const traffic_shape_names[];

struct traffic_config {
    int shape; /* enum traffic_shape */
    uint64_t seed;
    const char *model;
    bool is_stream;
    uint32_t max_tokens; /* the mean, for conversations */

    uint32_t body_bytes, bodies, families;           /* fixed */
    uint32_t groups, prefix_bytes, question_bytes;   /* shared_prefix */
    uint32_t system_prompts, system_bytes;           /* conversation */
    uint32_t first_turn_bytes, turn_bytes, pause_ms; /* means */
    double turns;
};

struct traffic_item {
    struct str body;  /* valid until the next request is made, or for ever when fixed */
    uint32_t session; /* family, group or session */
    uint32_t turn;
    uint32_t max_tokens;
};

struct traffic;

struct traffic *traffic_create(const struct traffic_config *config);
void traffic_destroy(struct traffic *t); /* NULL is fine */

/* The next request, which is sent at `now_us`: pauses between turns end before it. */
void traffic_next(struct traffic *t, uint64_t now_us, struct traffic_item *out);

#endif
