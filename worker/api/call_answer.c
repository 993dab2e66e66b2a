/* worker/api/call_answer.c - the output tokens of a choice on their way to its client.
 *
 *      token ──▶ detokenizer ──▶ stop strings ──▶ delta ──▶ text          completions, generate
 *        │                                          └─────▶ reader ──▶ answer     chat
 *        └── a marker of the reader's formats ────────────────▶
 *
 * A marker is no text: what detokenizer and stop strings hold back before it is let go, and no stop
 * string is found across it or in it. */
#include "worker/api/call_internal.h"

void call_note_status(struct call *c, const struct buf *b) {
    c->is_incomplete = c->is_incomplete || buf_status(b) != ST_OK;
}

static void choice_done(struct choice *ch, enum finish_reason reason) {
    ch->is_done = true;
    ch->finish = reason;
    ch->call->n_open--;
}

static void end_early(struct choice *ch) {
    choice_done(ch, FINISH_STOP);
    if (!ch->is_engine_done) engine_complete(ch->call->api->engine, ch->request);
}

/* What stop strings have let through goes to the reader, where there is one. */
static void push_delta(struct choice *ch) {
    call_note_status(ch->call, &ch->delta);
    if (!ch->reader) return;
    reader_push(ch->reader, buf_str(&ch->delta));
    buf_clear(&ch->delta);
}

/* Text of the detokenizer, which is in c->out. */
static void push_text(struct choice *ch, bool may_stop) {
    struct call *c = ch->call;

    call_note_status(c, &c->out);
    if (buf_len(&c->out) == 0) return;
    if (!may_stop) {
        stop_matcher_pass(&ch->stop, buf_str(&c->out), &ch->delta);
    } else if (stop_matcher_push(&ch->stop, buf_str(&c->out), &ch->delta)) {
        end_early(ch);
    }
    push_delta(ch);
}

/* One call was asked for, and it is whole: nothing that follows is wanted. */
static bool has_its_call(const struct choice *ch) {
    const struct answer *a = &ch->answer;

    return ch->call->output.is_single && a->n_calls > 0 && a->part[a->n - 1].kind == PART_CALL &&
           a->part[a->n - 1].is_whole;
}

static void push_marker(struct choice *ch, uint32_t token, bool may_stop) {
    detokenizer_finish(&ch->detokenizer, &ch->call->out);
    push_text(ch, may_stop);
    if (ch->is_done) return;
    stop_matcher_finish(&ch->stop, &ch->delta);
    push_delta(ch);
    reader_push_token(ch->reader, token);
}

/* One more output token: its text, and whether a stop string ends here. */
static void consume(struct choice *ch, uint32_t i, bool is_silent) {
    struct call *c = ch->call;
    uint32_t token = request_output(ch->request)[i];
    bool may_stop = i + 1 > c->params.request.min_tokens;
    bool was_reasoning = ch->reader && reader_is_reasoning(ch->reader);

    ch->n_used = i + 1;
    buf_clear(&c->out);
    if (ch->reader && reader_is_marker(ch->reader, token)) {
        push_marker(ch, token, may_stop);
    } else if (!is_silent) {
        detokenizer_push(&ch->detokenizer, token, &c->out);
        push_text(ch, may_stop);
    }
    if (was_reasoning && reader_is_reasoning(ch->reader)) ch->n_reasoning++;
    if (ch->reader && !ch->is_done && has_its_call(ch)) end_early(ch);
}

/* The engine has ended it: what is held back comes out. */
static void consume_end(struct choice *ch, enum finish_reason reason) {
    struct call *c = ch->call;

    buf_clear(&c->out);
    detokenizer_finish(&ch->detokenizer, &c->out);
    push_text(ch, true);
    if (ch->is_done) return;
    stop_matcher_finish(&ch->stop, &ch->delta);
    push_delta(ch);
    choice_done(ch, reason);
}

/* A call that a stop string or the limit has cut must not look whole. */
static void end_answer(struct choice *ch) {
    if (ch->is_done) reader_finish(ch->reader, ch->finish != FINISH_STOP || ch->stop.matched >= 0);
    ch->call->is_incomplete = ch->call->is_incomplete || ch->answer.is_incomplete;
}

void choice_take_progress(struct choice *ch, const struct request_progress *progress) {
    struct call *c = ch->call;
    const struct request *r = ch->request;
    uint32_t end = c->params.is_echo_only ? progress->first : progress->first + progress->n;

    for (uint32_t i = progress->first; i < end && !ch->is_done; i++) {
        bool ends_here =
            progress->is_finished && i + 1 == end && r->finish == FINISH_STOP && !r->is_complete;

        consume(ch, i, ends_here && !c->params.include_stop); /* EOS and stop ids have no text */
    }
    if (progress->is_finished && !ch->is_done) consume_end(ch, r->finish);
    if (ch->reader) {
        end_answer(ch);
    } else if (!c->params.stream || c->shape->is_cumulative) {
        buf_append_str(&ch->text, buf_str(&ch->delta));
        call_note_status(c, &ch->text);
        buf_clear(&ch->delta);
    }
}
