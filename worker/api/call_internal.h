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

/* A buf that could not grow has lost a part of the answer. */
void call_note_status(struct call *c, const struct buf *b);

/* The new output tokens of a choice, into its delta, text or answer; decides where it ends. */
void choice_take_progress(struct choice *ch, const struct request_progress *progress);

#endif
