/* router/registry/registry_kv.c - see the header; under the one lock. */
#include "router/registry/registry_kv.h"

#include <string.h>

#include "router/registry/registry_internal.h"

static struct worker *find(struct registry *r, uint32_t id) {
    struct worker *w = &r->workers[id];
    bool is_described = id < r->n_ids && w->is_used && w->is_described;

    return is_described ? w : NULL;
}

bool registry_engine(struct registry *r, uint32_t id, struct registry_engine *out) {
    const struct worker *w;

    pthread_mutex_lock(&r->lock);
    if ((w = find(r, id))) {
        *out = (struct registry_engine){
            .id = id, .incarnation = w->incarnation, .kind = w->kind, .addr = w->addr};
        memcpy(out->url, w->url, sizeof(out->url));
        memcpy(out->labels, w->labels, sizeof(out->labels));
    }
    pthread_mutex_unlock(&r->lock);
    return w != NULL;
}

/* True: more blocks of others are to be entered. */
static bool note(struct registry *r, uint32_t id, uint32_t incarnation,
                 const struct registry_kv *kv) {
    struct worker *w = find(r, id);

    if (!w || w->incarnation != incarnation) return false;
    w->kv = *kv;
    if (!w->is_third_party) return false;
    routing_note_capacity(w->model->routing, id, kv->capacity_tokens);
    return routing_note_stored(w->model->routing, id, kv->stored_tokens, r->now_us);
}

void registry_kv_note(struct registry *r, uint32_t id, uint32_t incarnation,
                      const struct registry_kv *kv) {
    bool is_more = true;

    for (uint32_t n = 0; is_more && n < REGISTRY_KV_TURNS; n++) {
        pthread_mutex_lock(&r->lock);
        is_more = note(r, id, incarnation, kv);
        pthread_mutex_unlock(&r->lock);
    }
}

void registry_kv_cleared(struct registry *r, uint32_t id, uint32_t incarnation) {
    struct worker *w;

    pthread_mutex_lock(&r->lock);
    if ((w = find(r, id)) && w->incarnation == incarnation && !w->is_followed)
        routing_forget_cache(w->model->routing, id);
    pthread_mutex_unlock(&r->lock);
}
