/* worker/text/text_thread.h - long texts are tokenized here, so that the loop never stalls.
 *
 * A job is embedded in the caller's object and comes back on the caller's loop. Short texts are not
 * worth a trip: they are done at once, and on_done is called before text_thread_submit returns.
 * Every job comes back exactly once.
 *
 *      loop: submit ──▶ text_queue ──▶ threads: encode ──▶ [mailbox] ──▶ loop: on_done
 *                                         │     ▲
 *                          each slice: a text of less than half of what is left? it goes between
 *
 * Long texts do not block short ones. A text that cannot fit is refused by its length, unread. The
 * shortest goes first (text_queue.h); a text that arrives while a long one is being encoded is
 * encoded between two slices of it (TOKENIZE_SLICE), on the same stack. Each must be shorter than
 * half of the rest, so the nesting is at most the number of halvings of a text. The long text keeps
 * a quarter of its thread. Texts over TEXT_THREAD_HUGE run on the first thread only: the others
 * stay free, and the memory of the largest (28 bytes per byte of an unsplit piece) is needed once,
 * not once a thread.
 *
 * A job may go on with another text (`next`): one that is too long is written again, shorter, where
 * it was found to be so. Such a job never runs on the loop. */
#ifndef WORKER_TEXT_TEXT_THREAD_H
#define WORKER_TEXT_TEXT_THREAD_H

#include <stdatomic.h>

#include "common/base/buf.h"
#include "common/base/status.h"
#include "common/net/mailbox.h"
#include "worker/text/text_queue.h"
#include "worker/text/tokenizer/tokenizer.h"

#define TEXT_THREAD_INLINE_BYTES 4096 /* about 100 us of work; longer texts travel */
#define TEXT_THREAD_HUGE         ((size_t)1 << 20)
#define TEXT_THREAD_MAX          16

struct loop;
struct text_thread;

struct text_job {
    struct mail mail;
    struct text_entry entry;
    struct str text;          /* borrowed until on_done */
    uint32_t flags;           /* TOKENIZE_* */
    uint32_t max_tokens;      /* a text of more is not wanted; 0: there is no limit */
    atomic_bool is_cancelled; /* by the loop: it comes back soon, as ST_CLOSED if it was not done */
    struct token_list tokens; /* the result; the caller frees it with token_list_fini */
    enum status status;       /* ST_UNAVAILABLE: the queue is full */
    bool has_too_many;        /* tokens, more than max_tokens: status is ST_INVALID */
    uint64_t waited_us;       /* until it began */
    uint64_t submitted_us;
    struct error err;
    void (*on_done)(struct text_job *job); /* on the loop */
    /* After each text, with its status and tokens, on a text thread: true if `text` (and perhaps
     * max_tokens) is another one to encode. What it wants of `tokens` it takes out. NULL: one text
     * is all. */
    bool (*next)(struct text_job *job);
};

struct text_thread_config {
    uint32_t n_threads;       /* 1 to TEXT_THREAD_MAX */
    uint64_t max_queue_bytes; /* of all texts that wait; one alone may always */
};

MUST_USE enum status text_thread_start(struct text_thread **out, struct loop *loop,
                                       const struct tokenizer *tokenizer,
                                       const struct text_thread_config *config, struct error *err);

/* Hands what is still under way back first, not done: on_done with ST_CLOSED. NULL is fine. */
void text_thread_stop(struct text_thread *t);
void text_thread_submit(struct text_thread *t, struct text_job *job);

struct text_thread_stats {
    uint64_t n_waiting, waiting_bytes; /* now */
    uint64_t n_slices;                 /* of long texts, after which others had their chance */
    uint64_t n_between;                /* texts encoded in the middle of a longer one */
    uint64_t n_over_length, n_over_tokens,
        n_over_queue; /* refused: by length alone, while encoding, full */
};
void text_thread_stats(struct text_thread *t, struct text_thread_stats *out);

#endif
