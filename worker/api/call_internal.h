/* worker/api/call_internal.h - what the files of a call share: call.c has its life, call_launch.c
 * its way to the engine, call_answer.c its tokens on the way back. */
#ifndef WORKER_API_CALL_INTERNAL_H
#define WORKER_API_CALL_INTERNAL_H

#include "worker/api/call.h"

void call_free(struct call *c);             /* once no thread holds a part of it */
void call_leave_unready(struct api *api);   /* one call less that the engine has not got */
void call_leave_leader(struct call *c);     /* it waits for no other call any more */
void call_start_followers(struct call *c);  /* it is over */
void call_publish_accepted(struct call *c); /* its request event */

/* shapes/prefill.c: a request with x-incipit-prefill is computed and not answered; before it is
 * launched. */
void call_take_prefill(struct call *c);
void call_show_nothing(struct call *c); /* one token, and nothing else that answers have */
struct json_writer;
/* What a router learns from: it may have named another worker that had the prompt. */
void call_put_counts(struct json_writer *w, const struct call_usage *usage);
void call_put_computed(struct json_writer *w, const struct call *c); /* model and tokens */

/* A buf that could not grow has lost a part of the answer. */
void call_note_status(struct call *c, const struct buf *b);

/* The new output tokens of a choice, into its delta, text or answer; decides where it ends. */
void choice_take_progress(struct choice *ch, const struct request_progress *progress);

#endif
