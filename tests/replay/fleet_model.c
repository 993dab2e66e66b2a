/* tests/replay/fleet_model.c - steps of workers and arrivals, in order of time.
 *
 * A worker's blocks: `cache` finds a computed block by its hash, `cold` orders those that nobody
 * uses, `n_private` counts what open requests hold beyond them. At most n_slots in all. */
#include "tests/replay/fleet_model.h"

#include "common/base/list.h"
#include "common/base/map.h"
#include "common/base/mem.h"
#include "router/routing/routing.h"
#include "tests/support/routing_defaults.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#define BYTES_PER_TOKEN 4
#define INDEX_BYTES     (UINT64_C(16) << 20)
#define CHUNK           2048
#define MAX_SEQS        256
#define FIXED_S         6e-3
#define SEQ_S           20e-6
#define CONTEXT_S       27e-9
#define PREFILL_S       50e-6
#define ATTN_CONTEXT    30000.0
#define WARM_SHARE      0.25
#define OUTPUT          0 /* the hash of blocks of answers, which nobody asks for again */

struct block {
    struct list cold; /* linked while no request uses it */
    uint64_t hash;
    uint32_t n_users;
};

struct exchange {
    struct list queue; /* on its worker's, until admitted */
    const struct conversation_request *in;
    struct route_ticket ticket;
    uint32_t cached;    /* tokens */
    uint32_t done;      /* prompt tokens computed */
    uint32_t n_entered; /* blocks of the chain that it uses in the cache */
    uint32_t n_private; /* blocks besides */
    uint32_t left;      /* output tokens to come */
    double first_s, end_s;
};

struct worker {
    struct map cache;
    struct list cold;                                /* oldest first */
    uint32_t n_slots, n_pinned, n_private, n_output; /* blocks; the last: of answers */
    struct list queue;
    struct exchange *prefilling; /* or NULL */
    struct exchange *running[MAX_SEQS];
    uint32_t n_running, n_queued;
    double context_tokens; /* of the running ones */
    double step_end_s;     /* INFINITY: idle */
    double busy_s, prefill_tokens;
};

struct fleet {
    const struct fleet_options *options;
    const struct conversations *traffic;
    struct worker *workers;
    struct exchange *exchanges;
    struct routing *routing; /* NULL: the oracle */
    double now_s;
    uint32_t hashed_blocks; /* of a prompt, at most */
};

void fleet_options_default(struct fleet_options *options) {
    *options = (struct fleet_options){.n_workers = 8,
                                      .cache_tokens = 700000,
                                      .policy = &policy_prefix,
                                      .declared_capacity = 1,
                                      .declared_attn_context = ATTN_CONTEXT,
                                      .has_feedback = true};
    policy_options_default(&options->policy_options);
}

static double prefill_s(double first, double last) {
    return PREFILL_S * (last - first + (last * last - first * first) / (2 * ATTN_CONTEXT));
}

static uint64_t now_us(const struct fleet *f) {
    return (uint64_t)(f->now_s * 1e6);
}

/* --- a worker's blocks ----------------------------------------------------------------------- */

/* Leading blocks of the prompt that are computed; the last token never counts as such. */
static uint32_t n_cached(const struct worker *w, const struct conversation_request *q) {
    uint32_t n = 0;

    while (n < q->n_blocks && (n + 1) * CONVERSATION_BLOCK < q->n_prompt &&
           map_find(&w->cache, q->chain[n]))
        n++;
    return n;
}

static struct block *enter(struct worker *w, uint64_t hash) {
    struct block *b = mem_zalloc(sizeof(*b));

    b->hash = hash;
    if (hash != OUTPUT)
        map_insert(&w->cache, hash, b);
    else
        w->n_output++;
    return b;
}

/* When all is in use there is nothing to forget: it will fit when a request ends. */
static void make_room(struct worker *w) {
    while (w->cache.n + w->n_private + w->n_output > w->n_slots && !list_is_empty(&w->cold)) {
        struct block *b = LIST_ENTRY(list_pop_front(&w->cold), struct block, cold);

        if (b->hash != OUTPUT)
            map_erase(&w->cache, b->hash);
        else
            w->n_output--;
        mem_free(b);
    }
}

static void use(struct worker *w, struct block *b) {
    if (b->n_users++) return;
    if (list_is_linked(&b->cold)) list_remove(&b->cold);
    w->n_pinned++;
}

static bool admit(struct worker *w, struct exchange *e) {
    uint32_t n_hit = n_cached(w, e->in), n_cold = 0;
    uint32_t need = CEIL_DIV(e->in->n_prompt + e->in->n_output, CONVERSATION_BLOCK) - n_hit;

    for (uint32_t i = 0; i < n_hit; i++)
        n_cold += !((struct block *)map_find(&w->cache, e->in->chain[i]))->n_users;
    if (w->n_pinned + w->n_private + need + n_cold > w->n_slots) return false;
    for (uint32_t i = 0; i < n_hit; i++)
        use(w, map_find(&w->cache, e->in->chain[i]));
    e->n_entered = n_hit;
    e->n_private = need;
    w->n_private += need;
    e->done = e->cached = n_hit * CONVERSATION_BLOCK;
    w->prefill_tokens += e->in->n_prompt - e->cached;
    make_room(w);
    return true;
}

/* What is computed can be found, unless another request entered the same block before. */
static void enter_blocks(struct worker *w, struct exchange *e) {
    const struct conversation_request *q = e->in;

    while (e->n_entered < q->n_blocks && (e->n_entered + 1) * CONVERSATION_BLOCK <= e->done) {
        uint64_t hash = q->chain[e->n_entered++];
        struct block *b = map_find(&w->cache, hash);

        use(w, b ? b : enter(w, hash));
        e->n_private--;
        w->n_private--;
    }
}

static void leave_blocks(struct worker *w, struct exchange *e) {
    const struct conversation_request *q = e->in;

    w->n_private -= e->n_private;
    for (uint32_t i = q->n_blocks; i < (q->n_prompt + q->n_output) / CONVERSATION_BLOCK; i++)
        list_push_back(&w->cold, &enter(w, OUTPUT)->cold);
    for (uint32_t i = e->n_entered; i-- > 0;) {
        struct block *b = map_find(&w->cache, q->chain[i]);

        if (--b->n_users) continue;
        w->n_pinned--;
        list_push_back(&w->cold, &b->cold);
    }
    make_room(w);
}

/* --- a worker's steps ------------------------------------------------------------------------ */

static double decode_step_s(const struct worker *w) {
    return FIXED_S + SEQ_S * w->n_running + CONTEXT_S * w->context_tokens;
}

static bool next_prompt(struct worker *w) {
    struct list *head = list_first(&w->queue);

    if (w->prefilling) return true;
    if (!head || w->n_running == MAX_SEQS) return false;
    if (!admit(w, LIST_ENTRY(head, struct exchange, queue))) return false;
    w->prefilling = LIST_ENTRY(list_pop_front(&w->queue), struct exchange, queue);
    w->n_queued--;
    return true;
}

/* One prompt at a time: what its last chunk leaves of a step stays empty. */
static void begin_step(struct fleet *f, struct worker *w) {
    double step_s = decode_step_s(w);

    w->step_end_s = INFINITY;
    if (next_prompt(w)) {
        struct exchange *e = w->prefilling;
        uint32_t n = MIN(CHUNK - w->n_running, e->in->n_prompt - e->done);

        step_s += prefill_s(e->done, e->done + n);
        e->done += n;
    } else if (!w->n_running) {
        return;
    }
    w->step_end_s = f->now_s + step_s;
    w->busy_s += step_s;
}

static void finish(struct fleet *f, struct worker *w, struct exchange *e) {
    e->end_s = f->now_s;
    leave_blocks(w, e);
    if (!f->routing) return;
    routing_ended(f->routing, &e->ticket,
                  &(struct route_end){
                      .output_tokens = e->in->n_output, .feedback = {-1, -1}, .now_us = now_us(f)});
}

static void first_token(struct fleet *f, struct worker *w, struct exchange *e) {
    int64_t cached = f->options->has_feedback ? (int64_t)e->cached : -1;

    e->first_s = f->now_s;
    e->left = e->in->n_output - 1;
    if (f->routing)
        routing_first_token(f->routing, &e->ticket,
                            &(struct route_feedback){e->in->n_prompt, cached}, now_us(f));
    if (!e->left) {
        finish(f, w, e);
        return;
    }
    w->running[w->n_running++] = e;
    w->context_tokens += e->in->n_prompt;
}

static void end_step(struct fleet *f, struct worker *w) {
    struct exchange *e = w->prefilling;

    w->context_tokens += w->n_running;
    for (uint32_t i = w->n_running; i-- > 0;) {
        struct exchange *r = w->running[i];

        if (--r->left) continue;
        w->running[i] = w->running[--w->n_running];
        w->context_tokens -= r->in->n_prompt + r->in->n_output - 1;
        finish(f, w, r);
    }
    if (!e) return;
    enter_blocks(w, e);
    if (e->done < e->in->n_prompt) return;
    w->prefilling = NULL;
    first_token(f, w, e);
}

/* --- choosing -------------------------------------------------------------------------------- */

/* Blocks that will be computed there when its turn comes. */
static uint32_t n_found(const struct worker *w, const struct conversation_request *q) {
    uint32_t n = n_cached(w, q);

    LIST_FOR_EACH(it, &w->queue) {
        const struct conversation_request *other = LIST_ENTRY(it, struct exchange, queue)->in;

        if (other->chain == q->chain) n = MAX(n, MIN(q->n_blocks, other->n_blocks));
    }
    if (w->prefilling && w->prefilling->in->chain == q->chain)
        n = MAX(n, MIN(q->n_blocks, w->prefilling->in->n_blocks));
    return MIN(n, (q->n_prompt - 1) / CONVERSATION_BLOCK);
}

static double oracle_cost(const struct fleet *f, const struct worker *w,
                          const struct conversation_request *q) {
    const struct policy_options *o = &f->options->policy_options;
    double slow = 1 + decode_step_s(w) / (CHUNK * PREFILL_S);
    double n_live = w->n_running + w->n_queued + !!w->prefilling;
    double wait_s = isinf(w->step_end_s) ? 0 : w->step_end_s - f->now_s;

    if (w->prefilling) wait_s += slow * prefill_s(w->prefilling->done, w->prefilling->in->n_prompt);
    LIST_FOR_EACH(it, &w->queue) {
        const struct conversation_request *x = LIST_ENTRY(it, struct exchange, queue)->in;

        wait_s += slow * prefill_s(n_cached(w, x) * CONVERSATION_BLOCK, x->n_prompt);
    }
    return wait_s + o->cost_batch_slot_s * n_live +
           slow * prefill_s(n_found(w, q) * CONVERSATION_BLOCK, q->n_prompt) *
               (1 + o->cost_later_arrivals + o->cost_decoding * n_live);
}

static uint32_t ask_oracle(const struct fleet *f, const struct conversation_request *q) {
    double least = INFINITY;
    uint32_t best = 0;

    for (uint32_t w = 0; w < f->options->n_workers; w++) {
        double cost = oracle_cost(f, &f->workers[w], q);

        if (cost >= least) continue;
        least = cost;
        best = w;
    }
    return best;
}

static uint32_t ask_library(struct fleet *f, struct exchange *e) {
    struct route_request rq = {.chain = e->in->chain,
                               .n_blocks = MIN(e->in->n_blocks, f->hashed_blocks),
                               .prompt_bytes = (uint64_t)e->in->n_prompt * BYTES_PER_TOKEN,
                               .session_key = e->in->session,
                               .now_us = now_us(f)};

    if (routing_route(f->routing, &rq, &e->ticket, NULL) != ST_OK) abort();
    return e->ticket.load.worker;
}

static void arrive(struct fleet *f, struct exchange *e) {
    struct worker *w = &f->workers[f->routing ? ask_library(f, e) : ask_oracle(f, e->in)];

    list_push_back(&w->queue, &e->queue);
    w->n_queued++;
    if (isinf(w->step_end_s)) begin_step(f, w);
}

/* --- the fleet ------------------------------------------------------------------------------- */

static void open_routing(struct fleet *f) {
    const struct fleet_options *o = f->options;
    uint32_t n_blocks = o->cache_tokens / CONVERSATION_BLOCK;
    struct routing_options ro;

    if (!o->policy) return;
    if (o->hashed_tokens) f->hashed_blocks = o->hashed_tokens / CONVERSATION_BLOCK;
    routing_options_default(&ro);
    ro.policy = o->policy;
    ro.policy_options = o->policy_options;
    ro.max_workers = o->n_workers;
    ro.max_index_bytes = INDEX_BYTES;
    ro.prefix_block_bytes = CONVERSATION_BLOCK * BYTES_PER_TOKEN;
    ro.bytes_per_token = BYTES_PER_TOKEN;
    if (routing_create(&f->routing, &ro, NULL) != ST_OK) abort();
    for (uint32_t w = 0; w < o->n_workers; w++)
        routing_worker_up(f->routing, w,
                          &(struct worker_spec){
                              .identity = w + 1,
                              .generation = 1,
                              .block_size = CONVERSATION_BLOCK,
                              .n_blocks = (uint64_t)(n_blocks * o->declared_capacity),
                              .prefill_tokens_per_s = 1 / PREFILL_S,
                              .attn_context = o->declared_attn_context,
                          });
}

static void open_fleet(struct fleet *f) {
    f->exchanges = mem_calloc(f->traffic->n, sizeof(*f->exchanges));
    f->workers = mem_calloc(f->options->n_workers, sizeof(*f->workers));
    for (uint32_t i = 0; i < f->traffic->n; i++)
        f->exchanges[i].in = &f->traffic->requests[i];
    for (uint32_t i = 0; i < f->options->n_workers; i++) {
        struct worker *w = &f->workers[i];

        w->n_slots = f->options->cache_tokens / CONVERSATION_BLOCK;
        w->step_end_s = INFINITY;
        map_init(&w->cache, i);
        list_init(&w->cold);
        list_init(&w->queue);
    }
    open_routing(f);
}

static void close_fleet(struct fleet *f) {
    for (uint32_t i = 0; i < f->options->n_workers; i++) {
        struct worker *w = &f->workers[i];

        assert(!w->n_running && !w->n_queued && !w->prefilling && !w->n_pinned && !w->n_private);
        w->n_slots = 0;
        make_room(w);
        assert(!w->cache.n && !w->n_output);
        map_fini(&w->cache);
    }
    if (f->routing) routing_check(f->routing);
    routing_destroy(f->routing);
    mem_free(f->workers);
    mem_free(f->exchanges);
}

static void run(struct fleet *f) {
    for (uint32_t next = 0;;) {
        struct worker *first = NULL;

        f->now_s = next < f->traffic->n ? f->traffic->requests[next].arrival_s : INFINITY;
        for (uint32_t i = 0; i < f->options->n_workers; i++) {
            if (f->workers[i].step_end_s >= f->now_s) continue;
            first = &f->workers[i];
            f->now_s = first->step_end_s;
        }
        if (isinf(f->now_s)) return;
        if (!first) {
            arrive(f, &f->exchanges[next++]);
            continue;
        }
        end_step(f, first);
        begin_step(f, first);
    }
}

static int by_size(const void *a, const void *b) {
    const double *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

static void report(const struct fleet *f, struct fleet_result *r) {
    double end_s = f->traffic->requests[f->traffic->n - 1].arrival_s, prompt = 0, hit = 0;
    double most = 0, all = 0, *ttft_s = mem_calloc(f->traffic->n, sizeof(*ttft_s));
    uint32_t n = 0;

    *r = (struct fleet_result){0};
    for (uint32_t i = 0; i < f->traffic->n; i++) {
        const struct exchange *e = &f->exchanges[i];

        if (e->in->arrival_s < WARM_SHARE * end_s) continue;
        ttft_s[n] = e->first_s - e->in->arrival_s;
        r->mean_ttft_s += ttft_s[n++];
        r->mean_e2e_s += e->end_s - e->in->arrival_s;
        prompt += e->in->n_prompt;
        hit += e->cached;
    }
    for (uint32_t i = 0; i < f->options->n_workers; i++) {
        r->busy_share += f->workers[i].busy_s / end_s / f->options->n_workers;
        all += f->workers[i].prefill_tokens;
        most = fmax(most, f->workers[i].prefill_tokens);
    }
    qsort(ttft_s, n, sizeof(*ttft_s), by_size);
    r->p99_ttft_s = ttft_s[n * 99 / 100];
    r->mean_ttft_s /= n;
    r->mean_e2e_s /= n;
    r->hit_share = hit / prompt;
    r->imbalance = most * f->options->n_workers / all;
    mem_free(ttft_s);
}

void fleet_run(const struct conversations *c, const struct fleet_options *options,
               struct fleet_result *result) {
    struct fleet f = {.options = options, .traffic = c, .hashed_blocks = UINT32_MAX};

    open_fleet(&f);
    run(&f);
    report(&f, result);
    close_fleet(&f);
}
