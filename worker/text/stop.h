/* worker/text/stop.h - where a stop string ends a generation.
 *
 * A stop string may begin in one token and end three tokens later, so text whose tail could still
 * become one is held back; the rest goes out at once. Text comes token by token: of the strings
 * that a token completes, the first in the request's list wins, regardless of its end within the
 * token (as in vLLM).
 *
 *      pushed text:  ... Hello wor|ld. Us        stop: "User:"
 *      given out:    ... Hello world.␣           held: "Us"
 *
 * The set of strings is the request's, shared by its n samples; each sample has its own matcher. A
 * byte costs O(1) per string. One thread at a time. */
#ifndef WORKER_TEXT_STOP_H
#define WORKER_TEXT_STOP_H

#include "common/base/base.h"
#include "common/base/buf.h"
#include "common/base/status.h"

#define STOP_MAX_STRINGS 64
#define STOP_MAX_BYTES   1024 /* of one string, and so the most that is held back */

struct stop_set; /* constant once created; must outlive its matchers */

/* Copies the strings. ST_INVALID (param "stop") for an empty one or over the limits. */
MUST_USE enum status stop_set_create(struct stop_set **out, const struct str *strings, size_t n,
                                     struct error *err);
void stop_set_destroy(struct stop_set *set);       /* NULL is fine */
size_t stop_set_count(const struct stop_set *set); /* NULL has none */
struct str stop_set_string(const struct stop_set *set, size_t i);

struct stop_matcher {
    const struct stop_set *set; /* borrowed; NULL matches nothing */
    bool include_stop;
    int32_t matched;    /* index of the string that ended it, -1 while none has */
    uint16_t *progress; /* (n strings) bytes of each that the text so far ends with */
    struct str held;    /* what is held back: the longest of those beginnings */
};

void stop_matcher_init(struct stop_matcher *m, const struct stop_set *set, bool include_stop);
void stop_matcher_fini(struct stop_matcher *m);

/* Appends to *out what can be given out now. True when a stop string was met: *out then ends before
 * it (after it with include_stop), `matched` is its index, and later pushes give nothing. */
bool stop_matcher_push(struct stop_matcher *m, struct str text, struct buf *out);

/* As stop_matcher_push, for text before min_tokens: a stop string that is complete in it is text;
 * one that begins in it may end later. */
void stop_matcher_pass(struct stop_matcher *m, struct str text, struct buf *out);

/* The text ended for another reason: what was held back was text after all. Text pushed later is
 * another one: no stop string is in both. */
void stop_matcher_finish(struct stop_matcher *m, struct buf *out);

#endif
