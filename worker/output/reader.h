/* worker/output/reader.h - reads what a model writes, token by token, into the parts of an answer.
 *
 *      token ids, text ──▶ reader ──▶ answer (answer.h): reasoning, text, calls with arguments
 *
 * One reader for reasoning, text and calls. It holds back only what may still become a marker, and
 * what a call needs before its name is known; what turns out to be no call is text, unchanged.
 * O(n) in the bytes of the answer, whatever they are; the answer does not depend on how the bytes
 * are divided over pushes.
 *
 * One per answer; one thread. */
#ifndef WORKER_OUTPUT_READER_H
#define WORKER_OUTPUT_READER_H

#include "common/base/buf.h"
#include "worker/output/answer.h"
#include "worker/output/output_format.h"

struct json;
struct reader;

struct reader_setup { /* what all answers of a call share; must outlive their readers */
    const struct call_format *calls;          /* NULL: calls are text */
    const struct reasoning_format *reasoning; /* NULL: reasoning is text */
    const struct output_model *model;
    const struct json *tools; /* the array of the request, as chat has it; NULL */
    bool begins_in_reasoning; /* reader_begins_in_reasoning of the prompt */
    bool is_single;           /* at most one call */
    uint32_t n_earlier_calls; /* in the conversation: kimi-k2 counts on */
    uint64_t id_seed;         /* ids of calls are drawn from it */
};

struct reader *reader_create(const struct reader_setup *setup, struct answer *out);
void reader_destroy(struct reader *r); /* NULL is fine */

/* Is that token a marker of the formats? Then the caller pushes it by reader_push_token, and no
 * text of it; before that all text that was held elsewhere (half characters, stop strings). */
bool reader_is_marker(const struct reader *r, uint32_t token);
void reader_push_token(struct reader *r, uint32_t token);
void reader_push(struct reader *r, struct str text); /* whole characters of ordinary tokens */

/* The answer is over. `is_cut`: by its limit or an abort; a call that is open is cut. */
void reader_finish(struct reader *r, bool is_cut);

/* Is the answer inside of reasoning now? */
bool reader_is_reasoning(const struct reader *r);

/* Does the answer to this prompt, as rendered, begin inside of reasoning? From its last markers. */
bool reader_begins_in_reasoning(const struct reasoning_format *f, struct str prompt);

#endif
