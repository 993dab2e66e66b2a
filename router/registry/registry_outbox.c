/* router/registry/registry_outbox.c - events of requests to workers that publish none, for other
 * routers.
 *
 * Written under the one lock, in the order of the changes; share.c takes them every ten
 * milliseconds. Off without share.c: then `origin` is 0, and attempts have no shared_id. */
#include "common/protocol/request_events.h"
#include "router/registry/registry_internal.h"

void registry_open_outbox(struct registry *r, uint64_t origin, uint64_t scheme, size_t max_bytes) {
    pthread_mutex_lock(&r->lock);
    r->origin = origin;
    r->scheme = scheme;
    r->outbox_max = max_bytes;
    pthread_mutex_unlock(&r->lock);
}

bool registry_take_outbox(struct registry *r, struct buf *out) {
    bool is_whole;

    pthread_mutex_lock(&r->lock);
    is_whole = !r->outbox_is_cut;
    r->outbox_is_cut = false;
    buf_append_str(out, buf_str(&r->outbox));
    buf_clear(&r->outbox);
    pthread_mutex_unlock(&r->lock);
    return is_whole;
}

uint32_t registry_third_party(struct registry *r, struct registry_third_party *out, uint32_t max,
                              uint32_t *n_unknown) {
    uint32_t n = 0;

    *n_unknown = 0;
    pthread_mutex_lock(&r->lock);
    for (uint32_t i = 0; i < r->n_ids && n < max; i++) {
        const struct worker *w = &r->workers[i];

        *n_unknown += w->is_used && !w->is_described;
        if (!w->is_used || !w->is_described || !w->is_third_party) continue;
        out[n++] = (struct registry_third_party){
            .identity = routing_load(w->model->routing)->workers[i].spec.identity,
            .id = i,
            .incarnation = w->incarnation};
    }
    pthread_mutex_unlock(&r->lock);
    return n;
}

static void put(struct registry *r, const struct registry_target *target,
                const struct request_event *e) {
    const struct load *load = routing_load(target->routing);

    if (buf_len(&r->outbox) < r->outbox_max)
        request_event_put(&r->outbox, load->workers[target->worker].spec.identity, e);
    else
        r->outbox_is_cut = true;
    r->outbox_is_cut = r->outbox_is_cut || buf_status(&r->outbox) != ST_OK;
}

void outbox_accepted(struct registry *r, const struct route_ticket *ticket,
                     struct registry_target *target) {
    struct request_event e = {
        .kind = REQUEST_ACCEPTED, .t_us = ticket->load.sent_us, .mark = target->mark};

    e.request = target->shared_id = ++r->n_shared_ids;
    e.chain = (struct request_chain){.origin = r->origin,
                                     .scheme = r->scheme,
                                     .prompt_bytes = ticket->prompt_bytes,
                                     .n_blocks = ticket->n_blocks,
                                     .blocks = ticket->chain};
    put(r, target, &e);
}

void outbox_first(struct registry *r, const struct registry_target *target,
                  const struct route_feedback *feedback, uint64_t now_us) {
    const struct request_event e = {
        .kind = REQUEST_FIRST,
        .t_us = now_us,
        .request = target->shared_id,
        .prompt_tokens = feedback ? feedback->prompt_tokens : -1,
        .cached_tokens = feedback ? feedback->cached_tokens : -1,
        .below_tokens = feedback && feedback->has_below ? feedback->below_tokens : -1};

    put(r, target, &e);
}

void outbox_ended(struct registry *r, const struct registry_target *target,
                  const struct route_end *end) {
    const struct request_event e = {.kind = REQUEST_ENDED,
                                    .t_us = end->now_us,
                                    .request = target->shared_id,
                                    .output_tokens = end->output_tokens,
                                    .is_aborted = end->is_aborted};

    put(r, target, &e);
}
