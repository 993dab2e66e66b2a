/* worker/engine/engine_kv.c - the cache's events, and explanations of misses, on the engine thread.
 * */
#include <string.h>

#include "common/base/clock.h"
#include "worker/engine/engine_internal.h"

void engine_publish_kv_events(struct engine *e, bool may_wait) {
    struct kv_event_log *log = e->options.kv.events;

    if (!log || !kv_event_log_commit(log, clock_wall_us(), may_wait)) return;
    if (!atomic_exchange(&e->is_kv_mail_sent, true)) {
        engine_send(e->outbox, &e->kv_mail, MAIL_KV_EVENTS);
    }
}

void engine_on_explain(struct engine *e, struct request *r) {
    struct kv_hit hit;

    kv_manager_set_now(e->kv, clock_now_us());
    hit = kv_manager_lookup(e->kv, &r->kv, r->tokens, r->n_tokens);
    kv_manager_explain(e->kv, &r->kv, r->tokens, r->n_tokens, &hit, &r->explanation);
    engine_send(e->outbox, &r->submit_mail, MAIL_EXPLAIN);
}

void engine_on_snapshot(struct engine *e, struct engine_snapshot *s) {
    struct kv_event_digest digest;

    engine_publish_kv_events(e, true);
    kv_manager_report_all(e->kv, clock_wall_us());
    kv_event_log_digest(e->options.kv.events, &digest);
    s->next = digest.next;
    engine_send(e->outbox, &s->mail, MAIL_SNAPSHOT);
}

void engine_count_kv(struct engine *e) {
    const struct kv_stats *kv = kv_manager_stats(e->kv);
    const struct kv_host *host = kv_manager_host(e->kv);
    struct engine_stats *t = &e->totals;

    if (host) {
        t->host_total = kv_host_n_blocks(host);
        t->host_held = kv_host_n_held(host);
        t->host_cached = kv_host_n_cached(host);
    }
    t->retained = block_pool_retained(kv_manager_pool(e->kv));
    engine_count_holds(e);
    t->n_tiers = e->lower ? lower_n_tiers(e->lower) : 0;
    for (uint32_t i = 0; i < t->n_tiers; i++)
        lower_stats(e->lower, i, &t->tiers[i]);
    if (!kv) return;
    t->prefix_queries = kv->admitted.queries;
    t->prefix_hits = kv->admitted.hits;
    t->prefix_hit_rate = hit_window_rate(&kv->window);
    t->host_queries = kv->host.queries;
    t->host_hits = kv->host.hits;
    t->moved_out = kv->moved_out;
    t->moved_in = kv->moved_in;
    memcpy(t->misses, kv->misses, sizeof(t->misses));
}

void engine_explain(struct engine *e, struct request *r) {
    engine_send(e->inbox, &request_ref(r)->submit_mail, MAIL_EXPLAIN);
}

void engine_snapshot_kv(struct engine *e, struct engine_snapshot *s) {
    engine_send(e->inbox, &s->mail, MAIL_SNAPSHOT);
}
