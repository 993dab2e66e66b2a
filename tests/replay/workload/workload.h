/* tests/replay/workload/workload.h - the requests of a replay: generated (generator.h), or read
 * from a trace.
 *
 * A prompt is a row of blocks of block_tokens tokens. Each block has a name that stands for the
 * whole prompt up to its end: equal names mean equal prompts up to there, so a row of names is a
 * hash chain.
 *
 * A trace is one JSON object per line: timestamp, input_length and output_length in tokens, and
 * hash_ids of consecutive blocks. tests/replay/README.md lists where such traces are published.
 * Equal stamps are spread up to the next one, evenly or at random.
 *
 *     read or generate ─▶ workload_clip ─▶ workload_overlay ─▶ crowds ─▶ workload_stretch ─▶ bursts
 *                         to the cache     more users          crowd.h   to a load
 *
 * Load is work by capacity, where work is what the requests cost one by one if all workers shared
 * one cache of the fleet's size. It is reached by more users at the same pace (workload_overlay)
 * and only then by stretching time, since a user who returns sooner finds more cached. */
#ifndef TESTS_REPLAY_WORKLOAD_WORKLOAD_H
#define TESTS_REPLAY_WORKLOAD_WORKLOAD_H

#include "common/base/base.h"
#include "common/base/status.h"

/* As the Mooncake traces are. */
#define TRACE_BLOCK       512  /* tokens that one of the hash_ids names */
#define TRACE_TICKS_PER_S 1000 /* timestamps are in ms */

struct workload_request {
    double arrival_s;
    uint64_t session;            /* one per conversation; 0: unknown */
    uint32_t tenant;             /* a copy of a trace is one; see crowd.h too */
    uint32_t line;               /* of a trace, from 0 */
    uint32_t n_prompt, n_output; /* tokens, at least one each */
    uint32_t n_blocks;           /* full blocks of the prompt that have a name */
    uint32_t n_names;            /* those, and perhaps the block that the prompt only begins */
    const uint64_t *chain;       /* (n_names) names; the low 16 bits are 0 */

    /* Of a closed loop (agents.c), else 0. `chain` has n_after names then. */
    uint32_t next;     /* the request that comes when this one has ended, plus one; 0: none */
    double gap_s;      /* and so much later; its own arrival_s is INFINITY */
    uint32_t n_after;  /* full blocks of prompt and answer: a later prompt opens with them */
    uint32_t n_known;  /* leading blocks that were sent or answered before */
    uint32_t n_system; /* leading blocks of a system prompt */
    uint64_t parent;   /* session that started this one; 0: none */
    bool is_final;     /* the last of its session */
};

struct workload {
    struct workload_request *requests; /* in order of arrival */
    uint64_t **chains;                 /* owned; several requests may use the beginning of one */
    uint32_t n, n_max, n_chains, n_chains_max;
    uint32_t block_tokens;
    double end_s; /* of a closed loop: nothing comes later; 0: open */
};

/* For generators: a zeroed workload takes requests in any order, owns chains, is sorted last. */
void workload_add(struct workload *w, struct workload_request q);
uint64_t *workload_new_chain(struct workload *w, uint32_t n_blocks);
void workload_sort(struct workload *w);
void workload_free(struct workload *w);

/* A block's name from any number. */
uint64_t workload_name(uint64_t x);

struct trace {
    const char *path;
    uint32_t block_tokens; /* that one of the hash_ids names */
    double ticks_per_s;    /* of timestamps */
    uint64_t draw;         /* of struct crowd */
};

/* ST_IO and ST_INVALID name the file and the line. */
MUST_USE enum status workload_read(struct workload *w, const struct trace *t, struct error *err);

/* Writes requests as a trace, with `tenant`, and for a closed loop `next` (a line's number from 0),
 * `gap_ms` and no timestamp where a request waits for another. ST_IO names the file. */
MUST_USE enum status workload_write(const struct workload *w, const char *path, struct error *err);

/* Keeps what comes between, at times from 0 on; a closed loop ends then. */
void workload_cut(struct workload *w, double since_s, double until_s);

/* Time from the first arrival to the last; of a closed loop to its end. */
double workload_span_s(const struct workload *w);

/* crowd.h says what they are; zeroed: requests come evenly, and nothing else. */
struct crowd {
    uint64_t draw;
    double burst, flash, flood;
};

/* `copies` populations that send the same at other times: each begins its round of the workload one
 * copy-th later, or with a draw (crowd.h) at any time, and has names of its own, except the first
 * block of a prompt, the chat template that all have in common. Crowds replace some of it all. */
void workload_overlay(struct workload *w, uint32_t copies, const struct crowd *crowd);

/* Shortens what one worker's cache could not hold: a request to 90 % of it, its output to a fourth
 * of that. */
void workload_clip(struct workload *w, uint32_t cache_tokens);

/* What one cache of cache_tokens would do for requests that come one by one. */
struct workload_bound {
    double work_s;           /* of a worker, for all (worker_model.h), in batches of 32 */
    uint32_t *cached_blocks; /* (n) found by each; workload_bound_free */
};
void workload_bound(const struct workload *w, uint64_t cache_tokens, struct workload_bound *bound);
void workload_bound_free(struct workload_bound *bound);

void workload_stretch(struct workload *w, double factor); /* arrival times */

/* The fleet that a workload is for. */
struct workload_target {
    uint32_t n_workers, cache_tokens;
    double speed;    /* of all workers together, in workers */
    double load;     /* 0: times stay as they are */
    bool has_copies; /* else time alone is stretched: a generator's rate is a parameter */
    struct crowd crowd;
};

/* Clips, overlays and stretches so that the fleet has `load` to do, crowds included. */
void workload_load(struct workload *w, const struct workload_target *target);

#endif
