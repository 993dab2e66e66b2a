/* worker/text/text_thread.h - long texts are tokenized here, so that the loop never stalls.
 *
 * A job is embedded in the caller's object and comes back on the caller's loop. Short texts are not
 * worth a trip: they are done at once, and on_done is called before text_thread_submit returns. Every
 * job comes back exactly once.
 *
 *      loop: submit ──▶ [mailbox] ──▶ text thread: encode ──▶ [mailbox] ──▶ loop: on_done
 */
#ifndef WORKER_TEXT_TEXT_THREAD_H
#define WORKER_TEXT_TEXT_THREAD_H

#include "common/buf.h"
#include "common/mailbox.h"
#include "common/status.h"
#include "worker/text/tokenizer.h"

#define TEXT_THREAD_INLINE_BYTES 4096 /* about 100 us of work; longer texts travel */

struct loop;
struct text_thread;

struct text_job {
    struct mail mail;
    struct str text;          /* borrowed until on_done */
    uint32_t flags;           /* TOKENIZE_* */
    struct token_list tokens; /* the result; the caller frees it with token_list_fini */
    enum status status;
    struct error err;
    void (*on_done)(struct text_job *job); /* on the loop */
};

MUST_USE enum status text_thread_start(struct text_thread **out, struct loop *loop,
                                       const struct tokenizer *tokenizer, struct error *err);

/* Hands what is still under way back first, not done: on_done with ST_CLOSED. NULL is fine. */
void text_thread_stop(struct text_thread *t);
void text_thread_submit(struct text_thread *t, struct text_job *job);

#endif
