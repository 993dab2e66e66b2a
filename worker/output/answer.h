/* worker/output/answer.h - what a model has written so far, as the parts that clients know.
 *
 *      <think>Look it up.</think>On it.<tool_call>{"name": "find", "arguments": {"x": 1}}</tool_call>
 *
 *      part 0  reasoning  "Look it up."
 *      part 1  text       "On it."
 *      part 2  call       find, {"x": 1}
 *
 * A list that only grows at its end: a part is whole before the next one begins. So a stream is the
 * same list, sent piece by piece: a sender keeps a *mark*, and sends what is behind it.
 * What is sent in pieces equals what is sent whole, on every wire, because both are read from here.
 *
 * Written by reader.h. One thread. LIMITS. ANSWER_MAX_PARTS; the owner limits bytes (`max_bytes`).
 * Over a limit the answer takes what fits, in whole characters, is incomplete and stays so. */
#ifndef WORKER_OUTPUT_ANSWER_H
#define WORKER_OUTPUT_ANSWER_H

#include "common/base/base.h"
#include "common/base/buf.h"

#define ANSWER_MAX_PARTS 4096u
#define ANSWER_ID_MAX    (64 + 24) /* of a call; kimi-k2's have the name inside */

enum part_kind { PART_REASONING, PART_TEXT, PART_CALL };

struct answer_part {
    enum part_kind kind;
    bool is_whole;          /* nothing is added any more */
    bool is_cut;            /* of a call: the answer ended inside its arguments */
    uint32_t call;          /* of a call: its number among the calls, from 0 */
    struct buf text;        /* UTF-8; of a call: its arguments, JSON */
    struct buf name;        /* of a call; whole from the beginning */
    char id[ANSWER_ID_MAX]; /* of a call, as the wire of chat has it */
};

struct answer {
    struct answer_part *part;
    uint32_t n, cap, n_calls;
    size_t n_bytes, max_bytes;
    bool is_incomplete; /* over a limit or out of memory: something is missing */
};

void answer_init(struct answer *a, size_t max_bytes);
void answer_fini(struct answer *a);

/* Text of a kind but PART_CALL: added to the last part if it is of that kind and open, else to a
 * new one. Nothing happens for an empty text. */
void answer_add(struct answer *a, enum part_kind kind, struct str text);

/* A new call; what was open is whole. */
void answer_begin_call(struct answer *a, struct str name, struct str id);
void answer_add_arguments(struct answer *a, struct str json); /* to the call that is open */
void answer_end_call(struct answer *a, bool is_cut);

/* The answer is over: what is open is whole; a call that is open is cut. */
void answer_end(struct answer *a);

/* All parts of a kind but PART_CALL, joined. Returns false if there is none. */
bool answer_join(const struct answer *a, enum part_kind kind, struct buf *out);

void answer_check(const struct answer *a); /* asserts the invariants */

/* How far a stream has come: parts before `part` are sent, and `offset` bytes of its text. */
struct answer_mark {
    uint32_t part;
    size_t offset;
    bool has_begun; /* of `part`: its beginning is sent */
};

#endif
