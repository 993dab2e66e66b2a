/* tests/replay/replay.c - one replay of a workload on a modelled fleet: a line of JSON.
 *
 * tests/replay/replay.py, bars.py and shared.py run it many times and print tables. Usage:
 *
 *     replay [NAME VALUE]...
 *
 *     workload NAME      of generator.h (conversations), or   trace FILE   (workload.h)
 *     block TOKENS, ticks N    of a trace: of one of its hash_ids, timestamps a second (512, 1000)
 *     seed N             of the workload, where it is generated, and of everything else (1)
 *     duration S, rate R of the generator (its own)
 *     policy NAME        of the library; oracle, oracle_selfish, rollout (prefix)
 *     workers N, cache TOKENS   (16, 700000)
 *     order NAME, aging A, aware 1   of prompts in a worker: fcfs, srpt (fcfs, the worker's own);
 *                        routers know the order
 *     itl_ms MS, host TOKENS, restore RATE   a target of the worker's steps; its host memory, and
 *                        tokens a second from there; tiers 0: not reported (1)
 *     fetch RATE, fetch_ms MS, kv_bytes BYTES    workers bring KV from one another: tokens a second
 *                        (0: they do not), ms of each fetch (5), bytes of a token, by which routers
 *                        guess (131072); judged N: one in N choices is replayed both ways
 *     reuse 1            workers evict by expected reuse (worker/kv/block/block_reuse.h)
 *     slow FACTOR, told 1       odd workers are so much slower; they report it
 *     load SHARE         of the fleet's capacity (0.8); 0: times stay as they are
 *     draw N             random arrivals, another draw for each N (0: evenly)
 *     burst FACTOR, flash SHARE, flood SHARE   of workload/crowd.h
 *     capacity FACTOR    that workers declare, of the real one (1)
 *     later, decoding, queued, fleet_busy, home WEIGHT   of incipit-router's --cost-later-arrivals
 *                        to --cost-fleet-busy, --home-weight
 *     key BYTES          of chwbl's key; tree FACTOR: of the tree of cache_aware and hash_trie
 *     hold_ms MS, walk_ms MS    late binding (router/queue/hold.h), and how often (0, 5)
 *     tenants 1, weight W       routers know of tenants; weight of every second one
 *     sessions N, admit 1, final 1   routers join turns to sessions (router/sessions), by the names
 *                        of requests (1) or their prompts (2); whole sessions wait; the last
 *                        request of one is marked
 *     due S, due_prefills N, never 1, again 1   deadlines: S and N x its whole prefill; only
 *                        counted; refused requests come again once
 *     crash N, late_first_ms MS   workers crash at half time, for a tenth of it; routers learn
 *                        of first tokens so much later
 *     routers N, shared 1, delay_ms MS, late_ms MS    (1, 0, 5, 25)
 *     apart 1, marks 0   each odd tenant comes through one router; routers do not tell of tenants
 *                        and sessions
 *     window SHARE, restart 1    five minutes reported apart; the routers restart before them
 *     ahead N, try K     of policy rollout: requests that it sees, workers that it tries (256, 4)
 *     bound 1            a lower bound of the mean time to first token as well (fleet_bound.h)
 *     since S, until S   what comes earlier and later is left out; time begins at `since`
 *     write FILE         writes the requests instead, as a trace (workload.h) */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/text/json.h"
#include "tests/replay/fleet_bound.h"
#include "tests/replay/fleet_model.h"
#include "tests/replay/workload/generator.h"
#include "worker/sched/fair_order.h"

struct replay {
    const char *workload, *policy;
    const char *written; /* the file to write them to, or NULL */
    struct trace trace;  /* without a path: generated */
    double duration_s, rate, load, since_s, until_s;
    struct crowd crowd;
    bool is_bounded;
    struct fleet_options fleet;
};

static void fail(const char *what, const char *value) {
    fprintf(stderr, "replay: %s '%s' (tests/replay/replay.c lists what there is)\n", what, value);
    exit(2);
}

static double number(const char *value) {
    char *end;
    double x = strtod(value, &end);

    if (end == value || *end) fail("not a number:", value);
    return x;
}

static bool set_order(struct replay *r, const char *name, const char *value) {
    if (strcmp(name, "order") != 0) return false;
    if (strcmp(value, "fcfs") != 0 && strcmp(value, "srpt") != 0) fail("no order", value);
    r->fleet.worker.order = value[0] == 's' ? WORKER_SRPT : WORKER_FCFS;
    return true;
}

static bool set_aware(struct replay *r, const char *name, const char *value) {
    const char *const names[] = {"auto", "on", "off"}; /* enum order_aware */

    if (strcmp(name, "price") != 0) return false;
    for (int i = 0; i < (int)ARRAY_LEN(names); i++) {
        if (strcmp(value, names[i]) != 0) continue;
        r->fleet.policy_options.order_aware = (enum order_aware)i;
        return true;
    }
    fail("no price", value);
    return false;
}

static bool set_text(struct replay *r, const char *name, const char *value) {
    const struct {
        const char *name;
        const char **to;
    } texts[] = {{"trace", &r->trace.path},
                 {"workload", &r->workload},
                 {"policy", &r->policy},
                 {"write", &r->written}};

    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        if (strcmp(name, texts[i].name) != 0) continue;
        *texts[i].to = value;
        return true;
    }
    return false;
}

static bool set_real(struct replay *r, const char *name, double x) {
    const struct {
        const char *name;
        double *to, unit;
    } reals[] = {
        {"duration", &r->duration_s, 1},
        {"rate", &r->rate, 1},
        {"load", &r->load, 1},
        {"since", &r->since_s, 1},
        {"until", &r->until_s, 1},
        {"capacity", &r->fleet.declared_capacity, 1},
        {"later", &r->fleet.policy_options.cost_later_arrivals, 1},
        {"decoding", &r->fleet.policy_options.cost_decoding, 1},
        {"queued", &r->fleet.policy_options.cost_queued, 1},
        {"fleet_busy", &r->fleet.policy_options.cost_fleet_busy, 1},
        {"home", &r->fleet.policy_options.home_weight, 1},
        {"delay_ms", &r->fleet.delay_s, 1e-3},
        {"hold_ms", &r->fleet.hold_s, 1e-3},
        {"walk_ms", &r->fleet.walk_s, 1e-3},
        {"weight", &r->fleet.odd_weight, 1},
        {"due", &r->fleet.due_s, 1},
        {"due_prefills", &r->fleet.due_prefills, 1},
        {"late_first_ms", &r->fleet.late_first_s, 1e-3},
        {"late_ms", &r->fleet.late_delay_s, 1e-3},
        {"window", &r->fleet.window_share, 1},
        {"ticks", &r->trace.ticks_per_s, 1},
        {"aging", &r->fleet.worker.aging, 1},
        {"itl_ms", &r->fleet.worker.itl_s, 1e-3},
        {"restore", &r->fleet.worker.restore_tokens_per_s, 1},
        {"fetch", &r->fleet.fetch_tokens_per_s, 1},
        {"fetch_ms", &r->fleet.fetch_latency_s, 1e-3},
        {"kv_bytes", &r->fleet.kv_bytes_per_token, 1},
        {"slow", &r->fleet.slow_odd, 1},
        {"burst", &r->crowd.burst, 1},
        {"flash", &r->crowd.flash, 1},
        {"flood", &r->crowd.flood, 1},
    };

    for (size_t i = 0; i < ARRAY_LEN(reals); i++) {
        if (strcmp(name, reals[i].name) != 0) continue;
        *reals[i].to = x * reals[i].unit;
        return true;
    }
    return false;
}

static bool set_whole(struct replay *r, const char *name, double x) {
    if (strcmp(name, "reuse") == 0)
        r->fleet.worker.eviction = x != 0 ? FREE_ORDER_REUSE : FREE_ORDER_FRESH_FIRST;
    else if (strcmp(name, "workers") == 0)
        r->fleet.n_workers = (uint32_t)x;
    else if (strcmp(name, "cache") == 0)
        r->fleet.cache_tokens = (uint32_t)x;
    else if (strcmp(name, "host") == 0)
        r->fleet.worker.host_tokens = (uint32_t)x;
    else if (strcmp(name, "judged") == 0)
        r->fleet.judged_fetches = (uint32_t)x;
    else if (strcmp(name, "crash") == 0)
        r->fleet.n_crashes = (uint32_t)x;
    else if (strcmp(name, "tenants") == 0)
        r->fleet.has_tenants = x != 0;
    else if (strcmp(name, "never") == 0)
        r->fleet.is_never_refused = x != 0;
    else if (strcmp(name, "again") == 0)
        r->fleet.comes_again = x != 0;
    else if (strcmp(name, "aware") == 0)
        r->fleet.is_order_told = x != 0;
    else if (strcmp(name, "sessions") == 0)
        r->fleet.sessions = x == 1 ? SESSIONS_NAMED : x == 2 ? SESSIONS_UNNAMED : SESSIONS_OFF;
    else if (strcmp(name, "admit") == 0)
        r->fleet.is_admitting = x != 0;
    else if (strcmp(name, "final") == 0)
        r->fleet.is_final_told = x != 0;
    else if (strcmp(name, "learn") == 0)
        r->fleet.is_speed_fixed = x == 0;
    else if (strcmp(name, "tiers") == 0)
        r->fleet.is_restore_told = x != 0;
    else if (strcmp(name, "told") == 0)
        r->fleet.is_speed_told = x != 0;
    else if (strcmp(name, "ahead") == 0)
        r->fleet.n_ahead = (uint32_t)x;
    else if (strcmp(name, "try") == 0)
        r->fleet.n_tried = (uint32_t)x;
    else if (strcmp(name, "bound") == 0)
        r->is_bounded = x != 0;
    else if (strcmp(name, "draw") == 0)
        r->crowd.draw = (uint64_t)x;
    else if (strcmp(name, "apart") == 0)
        r->fleet.is_apart = x != 0;
    else if (strcmp(name, "marks") == 0)
        r->fleet.has_no_marks = x == 0;
    else if (strcmp(name, "routers") == 0)
        r->fleet.n_routers = (uint32_t)x;
    else if (strcmp(name, "block") == 0)
        r->trace.block_tokens = (uint32_t)x;
    else if (strcmp(name, "seed") == 0)
        r->fleet.seed = (uint64_t)x;
    else if (strcmp(name, "shared") == 0)
        r->fleet.is_shared = x != 0;
    else if (strcmp(name, "restart") == 0)
        r->fleet.is_restarted = x != 0;
    else if (strcmp(name, "key") == 0)
        r->fleet.policy_options.chwbl_prefix_bytes = (uint32_t)x;
    else if (strcmp(name, "tree") == 0)
        r->fleet.policy_options.max_tree_bytes *= (uint64_t)x;
    else
        return false;
    return true;
}

static void read_arguments(struct replay *r, int argc, char **argv) {
    *r = (struct replay){.workload = "conversations", .policy = "prefix", .load = 0.8};
    r->trace.block_tokens = TRACE_BLOCK;
    r->trace.ticks_per_s = TRACE_TICKS_PER_S;
    fleet_options_default(&r->fleet);
    r->fleet.n_workers = 16;
    r->fleet.worker.aging = FAIR_AGING;
    r->fleet.delay_s = 5e-3;
    r->fleet.late_delay_s = 25e-3;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (set_text(r, argv[i], argv[i + 1]) || set_order(r, argv[i], argv[i + 1])) continue;
        if (set_aware(r, argv[i], argv[i + 1])) continue;
        if (set_real(r, argv[i], number(argv[i + 1]))) continue;
        if (!set_whole(r, argv[i], number(argv[i + 1]))) fail("no argument", argv[i]);
    }
    r->trace.draw = r->crowd.draw;
    if (r->fleet.n_crashes && (r->fleet.is_shared || r->fleet.n_crashes >= r->fleet.n_workers))
        fail("too many crashes, or routers that share, with crash", "");
    if (r->fleet.hold_s > 0 && r->fleet.is_restarted) fail("no restart with hold_ms", "");
    if (r->fleet.sessions && r->fleet.is_restarted) fail("no restart with sessions", "");
    if (r->fleet.due_s > 0 && !(r->fleet.hold_s > 0)) fail("due without hold_ms", "");
    if (argc % 2 == 0) fail("no value for", argv[argc - 1]);
    if (!fleet_choose_by_name(&r->fleet, r->policy)) fail("no policy", r->policy);
}

static void open_generated(struct replay *r, struct workload *w) {
    const struct generator *g = generator_find(r->workload);

    if (!g) fail("no workload", r->workload);
    r->fleet.warm_share = g->warm_share;
    if (!(r->duration_s > 0)) r->duration_s = g->duration_s;
    if (!(r->rate > 0)) r->rate = g->rate * r->fleet.n_workers / 16;
    generate(w, g, r->fleet.seed, r->duration_s, r->rate);
}

static void open_workload(struct replay *r, struct workload *w) {
    struct error err = {0};

    if (!r->trace.path) {
        open_generated(r, w);
    } else if (workload_read(w, &r->trace, &err) != ST_OK) {
        fprintf(stderr, "replay: %s\n", err.message);
        exit(2);
    }
    if (!w->n) fail("no requests in workload", r->workload);
    if (w->end_s > 0) r->load = 0;
    workload_load(w, &(struct workload_target){.n_workers = r->fleet.n_workers,
                                               .cache_tokens = r->fleet.cache_tokens,
                                               .speed = fleet_speed(&r->fleet),
                                               .load = r->load,
                                               .has_copies = r->trace.path != NULL,
                                               .crowd = r->crowd});
    if (r->until_s > 0) workload_cut(w, r->since_s, r->until_s);
}

static int write_workload(const struct replay *r, const struct workload *w) {
    struct error err = {0};

    if (workload_write(w, r->written, &err) == ST_OK) return 0;
    fprintf(stderr, "replay: %s\n", err.message);
    return 1;
}

static void print(const struct replay *r, const struct fleet_result *f, double bound_s) {
    struct json_writer j;
    struct buf out;

    buf_init(&out, 0);
    json_writer_init(&j, &out);
    json_begin_object(&j);
    json_field_z(&j, "policy", r->policy);
    json_field_u64(&j, "requests", f->n);
    json_field_f64(&j, "ttft_mean_s", f->mean_ttft_s);
    json_field_f64(&j, "ttft_p50_s", f->p50_ttft_s);
    json_field_f64(&j, "ttft_p99_s", f->p99_ttft_s);
    json_field_f64(&j, "ttft_max_s", f->longest_ttft_s);
    json_field_f64(&j, "e2e_mean_s", f->mean_e2e_s);
    json_field_f64(&j, "itl_mean_s", f->mean_itl_s);
    json_field_f64(&j, "itl_p90_s", f->p90_itl_s);
    json_field_f64(&j, "good", f->good_share);
    json_field_f64(&j, "flood_ttft_s", f->flood_ttft_s);
    json_field_f64(&j, "worst_tenant_ttft_s", f->worst_tenant_ttft_s);
    json_field_f64(&j, "cached", f->hit_share);
    json_field_f64(&j, "fetched", f->fetched_share);
    json_field_u64(&j, "fetches_judged", f->fetches.n);
    json_field_f64(&j, "fetches_right", f->fetches.n_right / fmax(f->fetches.n, 1));
    json_field_f64(&j, "fetches_right_5pc", f->fetches.n_right_5pc / fmax(f->fetches.n, 1));
    json_field_f64(&j, "cached_pooled", f->pooled_hit_share);
    json_field_f64(&j, "busy", f->busy_share);
    json_field_f64(&j, "imbalance", f->imbalance);
    json_field_f64(&j, "imbalance_requests", f->request_imbalance);
    json_field_f64(&j, "held", f->held_share);
    json_field_f64(&j, "held_mean_s", f->mean_held_s);
    json_field_f64(&j, "held_max_s", f->longest_held_s);
    json_field_f64(&j, "odd_by_even", f->odd_by_even);
    json_field_u64(&j, "lost", f->n_lost);
    json_field_f64(&j, "refused", f->refused_share);
    json_field_f64(&j, "missed", f->missed_share);
    json_field_f64(&j, "in_time", f->due_share);
    json_field_f64(&j, "again", f->again_share);
    json_field_f64(&j, "turns_per_s", f->sessions.turns_per_s);
    json_field_f64(&j, "turn_tokens", f->sessions.mean_prompt_tokens);
    json_field_f64(&j, "cached_of_known", f->sessions.hit_of_known);
    json_field_f64(&j, "turn_ttft_s", f->sessions.ttft_s);
    json_field_f64(&j, "single_ttft_s", f->sessions.single_ttft_s);
    json_field_f64(&j, "short_ttft_s", f->sessions.short_ttft_s);
    json_field_f64(&j, "long_ttft_s", f->sessions.long_ttft_s);
    json_field_f64(&j, "turns_held", f->sessions.held_share);
    json_field_f64(&j, "turns_held_mean_s", f->sessions.mean_held_s);
    json_field_f64(&j, "turns_held_max_s", f->sessions.longest_held_s);
    json_field_u64(&j, "turns_continued", f->sessions.joined.n_turns);
    json_field_u64(&j, "turns_joined", f->sessions.joined.n_joined);
    json_field_u64(&j, "turns_joined_falsely", f->sessions.joined.n_false);
    json_field_u64(&j, "sessions_begun", f->sessions.joined.n_begun);
    json_field_u64(&j, "sessions_rested", f->sessions.joined.n_rested);
    json_field_f64(&j, "sessions_long_s", f->sessions.joined.long_s);
    json_field_f64(&j, "window_share", f->window_hit_of_pooled);
    json_field_f64(&j, "window_ttft_s", f->window_ttft_s);
    if (r->is_bounded) json_field_f64(&j, "bound_s", bound_s);
    json_end_object(&j);
    printf("%.*s\n", (int)buf_len(&out), buf_ptr(&out));
    buf_fini(&out);
}

int main(int argc, char **argv) {
    struct workload_bound bound;
    struct fleet_result result;
    struct workload w;
    struct replay r;

    read_arguments(&r, argc, argv);
    open_workload(&r, &w);
    if (r.written) {
        int code = write_workload(&r, &w);

        workload_free(&w);
        return code;
    }
    workload_bound(&w, (uint64_t)r.fleet.n_workers * r.fleet.cache_tokens, &bound);
    fleet_run(&w, w.end_s > 0 ? NULL : &bound, &r.fleet, &result);
    print(&r, &result, r.is_bounded ? fleet_bound_s(&w, &r.fleet) : 0);
    workload_bound_free(&bound);
    workload_free(&w);
    return 0;
}
