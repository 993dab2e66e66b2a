/* router/registry_outbox.c - what other routers are told of requests to workers that tell nothing.
 *
 * Written under the one lock, in the order in which the books change; share.c takes it away every ten
 * milliseconds. Off unless somebody does: then `origin` is 0, and no attempt has a number. */
#include "common/request_events.h"
#include "router/registry_internal.h"

#define OUTBOX_MAX (8u << 20) /* what a stuck control loop may cost */

void registry_open_outbox(struct registry *r, uint64_t origin, uint64_t scheme) {
    pthread_mutex_lock(&r->lock);
    r->origin = origin;
    r->scheme = scheme;
    pthread_mutex_unlock(&r->lock);
}

void registry_take_outbox(struct registry *r, struct buf *out) {
    pthread_mutex_lock(&r->lock);
    buf_append_str(out, buf_str(&r->outbox));
    buf_clear(&r->outbox);
    pthread_mutex_unlock(&r->lock);
}

bool registry_find_foreign(struct registry *r, uint64_t identity, uint32_t *id,
                           uint32_t *incarnation) {
    bool is_found = false;

    pthread_mutex_lock(&r->lock);
    for (uint32_t i = 0; i < r->n_ids && !is_found; i++) {
        const struct worker *w = &r->workers[i];

        if (!w->is_used || !w->is_described || !w->is_foreign) continue;
        if (routing_load(w->model->routing)->workers[i].spec.identity != identity) continue;
        *id = i;
        *incarnation = w->incarnation;
        is_found = true;
    }
    pthread_mutex_unlock(&r->lock);
    return is_found;
}

static void put(struct registry *r, const struct registry_target *target,
                const struct request_event *e) {
    const struct load *load = routing_load(target->routing);

    if (buf_len(&r->outbox) >= OUTBOX_MAX) return;
    request_event_put(&r->outbox, load->workers[target->worker].spec.identity, e);
}

void outbox_accepted(struct registry *r, const struct route_ticket *ticket,
                     struct registry_target *target) {
    struct request_event e = {.kind = REQUEST_ACCEPTED, .t_us = ticket->load.sent_us};

    e.request = target->told = ++r->n_told;
    e.chain = (struct request_chain){.origin = r->origin,
                                     .scheme = r->scheme,
                                     .prompt_bytes = ticket->prompt_bytes,
                                     .n_blocks = ticket->n_blocks,
                                     .blocks = ticket->chain};
    put(r, target, &e);
}

void outbox_first(struct registry *r, const struct registry_target *target,
                  const struct route_feedback *feedback, uint64_t now_us) {
    const struct request_event e = {.kind = REQUEST_FIRST,
                                    .t_us = now_us,
                                    .request = target->told,
                                    .prompt_tokens = feedback ? feedback->prompt_tokens : -1,
                                    .cached_tokens = feedback ? feedback->cached_tokens : -1};

    put(r, target, &e);
}

void outbox_ended(struct registry *r, const struct registry_target *target,
                  const struct route_end *end) {
    const struct request_event e = {.kind = REQUEST_ENDED,
                                    .t_us = end->now_us,
                                    .request = target->told,
                                    .output_tokens = end->output_tokens,
                                    .is_aborted = end->is_aborted};

    put(r, target, &e);
}
