/* router/routing/load.c - sums that tickets put in and take out again. */
#include "router/routing/load.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "common/base/mem.h"

/* Defaults for a worker that reports none. A rate that is wrong by one factor for all workers
 * cancels out in comparisons; a KV capacity guessed too low does not, so it is high. */
#define DEFAULT_BLOCK_SIZE           16
#define DEFAULT_N_BLOCKS             65536 /* 1M tokens */
#define DEFAULT_PREFILL_TOKENS_PER_S 10000.0
#define DEFAULT_ATTN_CONTEXT         30000.0

/* Means before the first request has ended, and their weight per ended request. */
#define FIRST_MEAN_OUTPUT_TOKENS 200.0
#define FIRST_MEAN_DECODE_S      5.0
#define MEAN_WEIGHT              0.02
#define FIRST_MEAN_PREFILL_S     1.0
#define FIRST_MEAN_RUNNING       8.0

/* Cap on the assumed output of running requests, in mean outputs each. */
#define GROWN_MEANS_MAX 2.0

/* Prior for busy workers: this share of the quiet speed (measured with chunks of 2,048 tokens),
 * with the weight of so many observed seconds. */
#define BUSY_SHARE  0.1
#define BUSY_WEIGHT 0.01

/* Share at the beginning of a slow start. */
#define RAMP_FIRST_SHARE 0.1

/* Delay of reports: weight of a sample, what one may change, and the highest that is learned. Slow
 * prefill looks like a late report, so samples of long prompts must not add up without a limit. */
#define DELAY_WEIGHT 0.2
#define DELAY_STEP_S 0.05
#define DELAY_MAX_S  1.0

/* Share of KV memory that engines keep free for growing sequences. */
#define USABLE_CAPACITY 0.95

/* Least squares; BUSY_WEIGHT pulls busy towards BUSY_SHARE of quiet. */
static void solve_speed(struct load_speed *s) {
    double pull = BUSY_WEIGHT * (s->qq + s->bb);
    double qq = s->qq + BUSY_SHARE * BUSY_SHARE * pull, bb = s->bb + pull;
    double qb = s->qb - BUSY_SHARE * pull, det = qq * bb - qb * qb;

    if (!(det > 0)) return;
    s->quiet = MAX((s->nq * bb - s->nb * qb) / det, 0);
    s->busy = MIN(MAX((s->nb * qq - s->nq * qb) / det, 0), s->quiet);
}

static void learn_speed(struct load_speed *s, double n_tokens, double quiet_s, double busy_s) {
    double keep = 1 - MEAN_WEIGHT, total_s = quiet_s + busy_s;

    if (!(total_s > 0)) return;
    s->qq = s->qq * keep + quiet_s * quiet_s / total_s;
    s->qb = s->qb * keep + quiet_s * busy_s / total_s;
    s->bb = s->bb * keep + busy_s * busy_s / total_s;
    s->nq = s->nq * keep + n_tokens * quiet_s / total_s;
    s->nb = s->nb * keep + n_tokens * busy_s / total_s;
    solve_speed(s);
}

_Static_assert(sizeof(struct load_worker) % CACHE_LINE == 0,
               "a decision reads one line of each worker");

void load_init(struct load *l, uint32_t n_workers) {
    assert(n_workers && n_workers <= WORKERS_MAX);
    *l = (struct load){
        .workers = mem_calloc(n_workers, sizeof(*l->workers)),
        .in_flight = mem_calloc(ALIGN_UP(n_workers, 64), sizeof(*l->in_flight)),
        .tokens_per_s = mem_calloc(ALIGN_UP(n_workers, 64), sizeof(*l->tokens_per_s)),
        .sorted = mem_calloc(n_workers, sizeof(*l->sorted)),
        .legs = mem_calloc(n_workers, sizeof(*l->legs)),
        .hold_s = mem_calloc(n_workers, sizeof(*l->hold_s)),
        .n_workers = n_workers,
        .mean_output_tokens = FIRST_MEAN_OUTPUT_TOKENS,
        .mean_decode_s = FIRST_MEAN_DECODE_S,
        .mean_prefill_s = FIRST_MEAN_PREFILL_S,
        .mean_running = FIRST_MEAN_RUNNING,
        .speed = {.qq = FIRST_MEAN_DECODE_S, .nq = FIRST_MEAN_OUTPUT_TOKENS},
    };
    solve_speed(&l->speed);
    for (uint32_t w = 0; w < n_workers; w++) {
        list_init(&l->workers[w].pending);
        l->workers[w].reasons = WORKER_ABSENT;
        load_worker_up(l, w, &(struct worker_spec){0}); /* defaults */
        load_worker_down(l, w);
    }
    l->n_words = 0;
}

void load_fini(struct load *l) {
    mem_free(l->workers);
    mem_free(l->in_flight);
    mem_free(l->legs);
    mem_free(l->hold_s);
    mem_free(l->tokens_per_s);
    mem_free(l->sorted);
    l->workers = NULL;
}

/* --- who may be picked ----------------------------------------------------------------------- */

/* alone: no reason against it, and it answers clients by itself. spare: of role prefill, it answers
 * them while none is alone. */

static bool can_prefill(const struct load_worker *k) {
    return !k->reasons && k->spec.handover && k->spec.role != WORKER_DECODE &&
           !k->spec.lacks_engines;
}

/* `is_fed`: some worker prefills for those that need it. */
static bool is_alone(const struct load *l, uint32_t w, bool is_fed) {
    const struct load_worker *k = &l->workers[w];

    if (k->reasons) return false;
    if (k->spec.role == WORKER_PREFILL)
        return k->spec.handover == HANDOVER_PEER && !l->legs[w].is_reserved;
    return is_fed || k->spec.role == WORKER_BOTH || !handover_is_required(k->spec.handover);
}

static bool is_spare(const struct load_worker *k) {
    return !k->reasons && k->spec.role == WORKER_PREFILL && !handover_is_required(k->spec.handover);
}

/* Of words [0, n) of the workers. */
static void collect(struct load *l, uint32_t n, struct worker_mask *alone,
                    struct worker_mask *spare) {
    bool is_fed = false;

    l->prefills = (struct worker_mask){0};
    for (uint32_t w = 0; w < n; w++) {
        if (!can_prefill(&l->workers[w])) continue;
        worker_mask_add(l->prefills.words, w);
        is_fed = is_fed || handover_is_required(l->workers[w].spec.handover);
    }
    for (uint32_t w = 0; w < n; w++) {
        if (is_alone(l, w, is_fed)) worker_mask_add(alone->words, w);
        if (is_spare(&l->workers[w])) worker_mask_add(spare->words, w);
    }
}

/* Its role or its reasons have changed. Changes are rare: the masks are computed again. */
static void note_role(struct load *l, uint32_t w) {
    struct worker_mask alone = {0}, spare = {0}, *chosen = &alone;
    uint32_t n;

    if (!l->workers[w].reasons) l->n_words = MAX(l->n_words, w / 64 + 1);
    n = MIN(l->n_words * 64, l->n_workers);
    collect(l, n, &alone, &spare);
    if (worker_mask_is_empty(alone.words, l->n_words)) chosen = &spare;
    for (uint32_t i = 0; i < l->n_words; i++)
        l->eased.words[i] |= chosen->words[i] & ~l->eligible.words[i];
    l->eligible = *chosen;
    l->n_eligible = worker_mask_count(l->eligible.words, l->n_words);
}

void load_set_reason(struct load *l, uint32_t w, uint32_t reasons, bool is_set) {
    struct load_worker *k = &l->workers[w];
    bool was_usable = !k->reasons;

    assert(w < l->n_workers);
    k->reasons = is_set ? k->reasons | reasons : k->reasons & ~reasons;
    if (was_usable != !k->reasons) note_role(l, w);
}

static void decay_legs(struct load_legs *legs, uint64_t now_us) {
    if (legs->as_of_us && now_us > legs->as_of_us)
        legs->work_s *=
            exp2(-1e-6 * (double)(int64_t)(now_us - legs->as_of_us) / LOAD_LEG_HALF_LIFE_S);
    legs->as_of_us = MAX(legs->as_of_us, now_us);
}

static void settle_reserved(struct load *l, uint32_t w) {
    bool is_reserved = l->legs[w].work_s >= LOAD_LEG_LEAST_S;

    if (l->legs[w].is_reserved == is_reserved) return;
    l->legs[w].is_reserved = is_reserved;
    note_role(l, w);
}

void load_note_leg(struct load *l, uint32_t w, double work_s, uint64_t now_us) {
    decay_legs(&l->legs[w], now_us);
    if (work_s >= LOAD_LEG_LEAST_S) l->legs[w].work_s += work_s;
    settle_reserved(l, w);
}

void load_end_legs(struct load *l, uint32_t w) {
    l->legs[w].work_s = 0;
    settle_reserved(l, w);
}

double load_held_up(const struct load *l, uint32_t w, double work_s) {
    const struct load_worker *k = &l->workers[w];
    bool is_reserved = l->legs[w].is_reserved || work_s >= LOAD_LEG_LEAST_S;

    return k->spec.role == WORKER_PREFILL && is_reserved ? 0 : k->in_flight - k->n_pending;
}

void load_look_at_legs(struct load *l, uint64_t now_us) {
    struct worker_mask prefills = l->prefills; /* which settling writes again */

    WORKER_MASK_FOR_EACH(w, prefills.words, l->n_words) {
        decay_legs(&l->legs[w], now_us);
        settle_reserved(l, w);
    }
}

/* --- what they have --------------------------------------------------------------------------- */

/* The least of 64 numbers: as wide as the machine is. */
static uint32_t least_of_word(const uint32_t *in_flight) {
    uint32_t least = UINT32_MAX;

    for (uint32_t i = 0; i < 64; i++)
        least = MIN(least, in_flight[i]);
    return least;
}

uint32_t load_least_in_flight(const struct load *l, const uint64_t *mask) {
    uint32_t least = UINT32_MAX;

    for (uint32_t i = 0; i < l->n_words && least > 0; i++) {
        const uint32_t *in_flight = l->in_flight + i * 64;

        if (mask[i] == UINT64_MAX) {
            least = MIN(least, least_of_word(in_flight));
            continue;
        }
        for (uint64_t rest = mask[i]; rest; rest &= rest - 1)
            least = MIN(least, in_flight[__builtin_ctzll(rest)]);
    }
    return least == UINT32_MAX ? 0 : least;
}

static bool has_reached(uint32_t in_flight, uint32_t bound) {
    return bound && in_flight >= bound;
}

static void note_admission(struct load *l, uint32_t w) {
    const struct load_worker *k = &l->workers[w];

    l->in_flight[w] = k->in_flight;
    worker_mask_set(l->busy.words, w, has_reached(k->in_flight, k->spec.enough_in_flight));
    worker_mask_set(l->full.words, w, has_reached(k->in_flight, k->spec.max_in_flight));
}

/* --- late binding ---------------------------------------------------------------------------- */

static void note_hold(struct load *l, uint32_t w) {
    const struct load_worker *k = &l->workers[w];
    double hold_s = k->spec.order == WORKER_SRPT ? l->hold_srpt_s : l->hold_fcfs_s;

    if (hold_s > 0) {
        hold_s = MAX(hold_s, 2 * k->report_delay_s);
        if (k->unseen_share > 0.5) hold_s = MAX(hold_s, LOAD_UNSEEN_HOLD_S);
    }
    l->hold_s[w] = hold_s > 0 ? hold_s : HUGE_VAL;
}

void load_set_hold(struct load *l, double fcfs_s, double srpt_s) {
    l->hold_fcfs_s = fcfs_s;
    l->hold_srpt_s = srpt_s;
    for (uint32_t w = 0; w < l->n_workers; w++)
        note_hold(l, w);
}

void load_learn_report(struct load *l, uint32_t w, bool is_seen, bool had_wait, double late_s) {
    struct load_worker *k = &l->workers[w];
    double step_s;

    k->unseen_share += DELAY_WEIGHT * (!is_seen - k->unseen_share);
    if (is_seen && !had_wait) {
        step_s = DELAY_WEIGHT * (late_s - k->report_delay_s);
        k->report_delay_s += MIN(MAX(step_s, -DELAY_STEP_S), DELAY_STEP_S);
        k->report_delay_s = MIN(MAX(k->report_delay_s, 0), DELAY_MAX_S);
    }
    note_hold(l, w);
}

bool load_get_ready(const struct load *l, struct worker_mask *ready, uint64_t now_us) {
    uint64_t any = 0;

    for (uint32_t i = 0; i < l->n_words; i++) {
        ready->words[i] = 0;
        for (uint64_t rest = l->eligible.words[i]; rest; rest &= rest - 1) {
            uint32_t w = i * 64 + (uint32_t)__builtin_ctzll(rest);

            if (worker_mask_has(l->srpt.words, w) ||
                load_wait_s(&l->workers[w], now_us) <= l->hold_s[w])
                ready->words[i] |= rest & -rest;
        }
        any |= ready->words[i];
    }
    return any != 0;
}

void load_take_eased(struct load *l, struct worker_mask *eased) {
    for (uint32_t i = 0; i < l->n_words; i++) {
        eased->words[i] = l->eased.words[i];
        l->eased.words[i] = 0;
    }
}

double load_backlog_share(const struct load *l, uint64_t now_us) {
    uint32_t n = 0;

    WORKER_MASK_FOR_EACH(w, l->eligible.words, l->n_words) {
        n += load_wait_s(&l->workers[w], now_us) > l->hold_s[w];
    }
    return (double)n / MAX(l->n_eligible, 1u);
}

void load_set_speed(struct load *l, uint32_t w, double tokens_per_s) {
    l->tokens_per_s[w] = tokens_per_s;
    l->workers[w].s_per_token = 1 / tokens_per_s;
}

void load_worker_up(struct load *l, uint32_t w, const struct worker_spec *spec) {
    struct load_worker *k = &l->workers[w];

    assert(w < l->n_workers);
    if (k->reasons & WORKER_ABSENT || k->spec.role != spec->role)
        l->legs[w] = (struct load_legs){.work_s = LOAD_LEG_FIRST_S, .is_reserved = true};
    k->spec = *spec;
    if (!k->spec.block_size) k->spec.block_size = DEFAULT_BLOCK_SIZE;
    if (!k->spec.n_blocks) k->spec.n_blocks = DEFAULT_N_BLOCKS;
    if (!(k->spec.prefill_tokens_per_s > 0))
        k->spec.prefill_tokens_per_s = DEFAULT_PREFILL_TOKENS_PER_S;
    if (!(k->spec.attn_context > 0)) k->spec.attn_context = DEFAULT_ATTN_CONTEXT;
    k->block_size = k->spec.block_size;
    k->capacity_tokens = (double)k->spec.block_size * (double)k->spec.n_blocks;
    load_set_speed(l, w, k->spec.prefill_tokens_per_s);
    worker_mask_set(l->srpt.words, w, k->spec.order == WORKER_SRPT);
    k->attn_per_token = 1 / (2 * k->spec.attn_context);
    note_admission(l, w);
    note_hold(l, w);
    k->reasons &= ~(uint32_t)WORKER_ABSENT;
    note_role(l, w);
}

static void set_ramping(struct load *l, uint32_t w, bool is_ramping) {
    l->n_ramping += (uint32_t)is_ramping - worker_mask_has(l->ramping.words, w);
    worker_mask_set(l->ramping.words, w, is_ramping);
}

void load_worker_down(struct load *l, uint32_t w) {
    set_ramping(l, w, false);
    load_set_speed(l, w, l->workers[w].spec.prefill_tokens_per_s);
    load_set_reason(l, w, WORKER_ABSENT, true);
}

/* --- prices ---------------------------------------------------------------------------------- */

double load_prefill_s(const struct load_worker *w, double cached_tokens, double total_tokens) {
    double linear = total_tokens - cached_tokens;
    double squares = total_tokens * total_tokens - cached_tokens * cached_tokens;

    return (linear + squares * w->attn_per_token) * w->s_per_token;
}

/* Through a signed number: x86 has no instruction that converts an unsigned one. */
static double to_seconds(uint64_t us) {
    return (double)(int64_t)us * 1e-6;
}

static double seconds_since(uint64_t then_us, uint64_t now_us) {
    return now_us > then_us ? to_seconds(now_us - then_us) : 0;
}

double load_wait_s(const struct load_worker *w, uint64_t now_us) {
    double served_s = seconds_since(w->service_began_us, now_us);

    return w->pending_work_s - MIN(served_s, w->head_work_s);
}

double load_wait_shorter_s(const struct load *l, uint32_t w, double work_s, uint64_t now_us,
                           uint32_t *n_longer) {
    const struct load_worker *k = &l->workers[w];
    const struct sorted_work *q = &l->sorted[w];
    double served_s, left_s;
    uint32_t rank;

    *n_longer = 0;
    if (!k->n_pending) return 0;
    rank = sorted_work_rank(q, work_s);
    *n_longer = k->n_pending - rank;
    served_s = MIN(seconds_since(k->service_began_us, now_us), q->work_s[0]);
    if (rank) return sorted_work_sum(q, rank) - served_s;
    left_s = q->work_s[0] - served_s;
    if (left_s > work_s) return 0;
    --*n_longer;
    return left_s;
}

double load_wait_in_order_s(const struct load *l, uint32_t w, double work_s, uint64_t now_us) {
    uint32_t n_longer;

    if (!worker_mask_has(l->srpt.words, w)) return load_wait_s(&l->workers[w], now_us);
    return load_wait_shorter_s(l, w, work_s, now_us, &n_longer);
}

static double quiet_s_at(const struct load_worker *w, uint64_t now_us) {
    return w->quiet_s + (w->n_pending ? 0 : seconds_since(w->quiet_as_of_us, now_us));
}

static double busy_s_at(const struct load_worker *w, uint64_t now_us) {
    return w->busy_s + (w->n_pending ? seconds_since(w->quiet_as_of_us, now_us) : 0);
}

void load_get_done(const struct load *l, double *work_s, double *busy_s, uint64_t now_us) {
    *work_s = l->first_work_s;
    *busy_s = 0;
    for (uint32_t w = 0; w < MIN(l->n_words * 64, l->n_workers); w++)
        *busy_s += busy_s_at(&l->workers[w], now_us);
}

/* Before n_pending changes. */
static void count_quiet(struct load_worker *w, uint64_t now_us) {
    w->busy_s = busy_s_at(w, now_us);
    w->quiet_s = quiet_s_at(w, now_us);
    w->quiet_as_of_us = MAX(w->quiet_as_of_us, now_us);
}

double load_memory_wait_s(const struct load *l, const struct load_worker *w, double need_tokens) {
    double excess = w->resident_tokens + need_tokens - USABLE_CAPACITY * w->capacity_tokens;

    /* Resident tokens leave at a rate of all of them per mean residence time. */
    if (excess <= 0) return 0;
    return excess / MIN(w->resident_tokens + 1, w->capacity_tokens) * l->mean_decode_s;
}

double load_growing_tokens(const struct load *l, const struct load_worker *w, uint64_t now_us) {
    double n_running = w->in_flight - w->n_pending;
    double age_s = MAX(n_running * to_seconds(now_us) - w->sum_first_s, 0);
    double quiet_s = MAX(n_running * quiet_s_at(w, now_us) - w->sum_first_quiet_s, 0);
    double busy_s = MAX(age_s - quiet_s, 0);
    double output;

    busy_s += (n_running + w->n_pending / 2.0) * load_wait_s(w, now_us);
    output = l->speed.quiet * quiet_s + l->speed.busy * busy_s;
    output = MIN(output, w->in_flight * l->mean_output_tokens * GROWN_MEANS_MAX);
    return (double)w->in_flight * w->block_size / 2 + output;
}

void load_drop_full(const struct load *l, uint64_t *mask) {
    uint64_t kept[WORKER_MASK_WORDS], any = 0;

    for (uint32_t i = 0; i < l->n_words; i++)
        any |= kept[i] = mask[i] & ~l->full.words[i];
    if (any) memcpy(mask, kept, l->n_words * sizeof(*mask));
}

double load_mean_speed(const struct load *l, const uint64_t *mask) {
    double sum = 0;
    uint32_t n = 0;

    for (uint32_t i = 0; i < l->n_words; i++) {
        n += (uint32_t)__builtin_popcountll(mask[i]);
        for (uint64_t rest = mask[i]; rest; rest &= rest - 1)
            sum += l->tokens_per_s[i * 64 + (uint32_t)__builtin_ctzll(rest)];
    }
    return sum / MAX(n, 1u);
}

/* Tokens of one answer come at `quiet` a second, and mean_running of them at once. */
double load_decode_share(const struct load *l) {
    double decode_s = l->mean_output_tokens / (MAX(l->speed.quiet, 1e-3) * MAX(l->mean_running, 1));

    return decode_s / (decode_s + l->mean_prefill_s);
}

bool load_has_eligible(const struct load *l) {
    return l->n_eligible > 0;
}

/* --- slow start ------------------------------------------------------------------------------ */

void load_begin_slow_start(struct load *l, uint32_t w, uint64_t now_us) {
    assert(w < l->n_workers);
    if (!l->slow_start_us) return;
    l->workers[w].ramp_from_us = now_us;
    set_ramping(l, w, true);
}

static uint64_t ramp_age_us(const struct load *l, uint32_t w, uint64_t now_us) {
    uint64_t from_us = l->workers[w].ramp_from_us;

    return now_us > from_us ? now_us - from_us : 0;
}

static bool has_ramped(const struct load *l, uint32_t w, uint64_t now_us) {
    return ramp_age_us(l, w, now_us) >= l->slow_start_us;
}

/* Share of a full load that the worker may have until its slow start is over. */
static double ramp_share(const struct load *l, uint32_t w, uint64_t now_us) {
    double age = (double)ramp_age_us(l, w, now_us);

    return RAMP_FIRST_SHARE + (1 - RAMP_FIRST_SHARE) * age / (double)l->slow_start_us;
}

void load_drop_ramping(const struct load *l, uint64_t *mask, uint64_t now_us) {
    uint64_t any_ramping = 0, any_other = 0;
    double mean;

    if (!l->n_ramping) return;
    for (uint32_t i = 0; i < l->n_words; i++) {
        any_ramping |= mask[i] & l->ramping.words[i];
        any_other |= mask[i] & ~l->ramping.words[i];
    }
    if (!any_ramping) return;
    WORKER_MASK_FOR_EACH(w, l->ramping.words, l->n_words) {
        any_other |= worker_mask_has(mask, w) && has_ramped(l, w, now_us);
    }
    if (!any_other) return;
    mean = load_mean_in_flight(l);
    WORKER_MASK_FOR_EACH(w, l->ramping.words, l->n_words) {
        if (has_ramped(l, w, now_us)) continue;
        if (l->workers[w].in_flight >= MAX(ramp_share(l, w, now_us) * mean, 1))
            worker_mask_drop(mask, w);
    }
}

void load_get_room(const struct load *l, struct worker_mask *room, uint64_t now_us) {
    *room = l->eligible;
    load_drop_ramping(l, room->words, now_us);
    for (uint32_t i = 0; i < l->n_words; i++)
        room->words[i] &= ~l->busy.words[i];
}

bool load_has_room(const struct load *l, uint64_t now_us) {
    struct worker_mask room;
    uint64_t any = 0;

    if (UNLIKELY(l->n_ramping)) {
        load_get_room(l, &room, now_us);
        return !worker_mask_is_empty(room.words, l->n_words);
    }
    for (uint32_t i = 0; i < l->n_words; i++)
        any |= l->eligible.words[i] & ~l->busy.words[i];
    return any != 0;
}

double load_mean_in_flight(const struct load *l) {
    return (double)(l->n_open - l->n_light) / MAX(l->n_eligible, 1u);
}

/* --- tickets --------------------------------------------------------------------------------- */

static void join_pending(struct load *l, struct load_ticket *t, uint64_t now_us) {
    struct load_worker *k = &l->workers[t->worker];

    if (!k->n_pending) {
        count_quiet(k, now_us);
        k->service_began_us = now_us;
        k->head_work_s = t->work_s;
    }
    t->is_pending = true;
    list_push_back(&k->pending, &t->link);
    sorted_work_add(&l->sorted[t->worker], t->work_s);
    k->n_pending++;
    k->pending_work_s += t->work_s;
}

void load_open(struct load *l, struct load_ticket *t, uint32_t w, double work_s, double new_tokens,
               uint64_t now_us) {
    struct load_worker *k = &l->workers[w];

    assert(w < l->n_workers && !t->is_open);
    *t = (struct load_ticket){
        .worker = w,
        .is_open = true,
        .work_s = work_s,
        .resident_tokens = new_tokens + l->mean_output_tokens,
        .sent_us = now_us,
    };
    join_pending(l, t, now_us);
    k->resident_tokens += t->resident_tokens;
    k->in_flight++;
    k->n_sent++;
    if (worker_mask_has(l->ramping.words, w) && has_ramped(l, w, now_us)) set_ramping(l, w, false);
    l->n_open++;
    note_admission(l, w);
}

void load_open_light(struct load *l, struct load_ticket *t, uint32_t w, uint64_t now_us) {
    assert(w < l->n_workers && !t->is_open);
    *t = (struct load_ticket){.worker = w, .is_open = true, .is_light = true, .sent_us = now_us};
    l->n_open++;
    l->n_light++;
}

static void close_light(struct load *l, struct load_ticket *t) {
    assert(t->is_open && l->n_light && l->n_open);
    t->is_open = false;
    l->n_open--;
    l->n_light--;
}

static void sort_again(const struct load_worker *k, struct sorted_work *sorted) {
    sorted->n = sorted->n_beyond = 0;
    LIST_FOR_EACH(it, &k->pending)
    sorted_work_add(sorted, LIST_ENTRY(it, struct load_ticket, link)->work_s);
}

/* Resets sums to exactly 0 with the last ticket, so that rounding does not accumulate. */
static void leave_pending(struct load *l, struct load_ticket *t) {
    struct load_worker *k = &l->workers[t->worker];
    struct sorted_work *sorted = &l->sorted[t->worker];
    struct list *head;

    list_remove(&t->link);
    t->is_pending = false;
    k->n_pending--;
    worker_mask_add(l->eased.words, t->worker);
    head = list_first(&k->pending);
    k->pending_work_s = head ? MAX(k->pending_work_s - t->work_s, 0) : 0;
    k->head_work_s = head ? LIST_ENTRY(head, struct load_ticket, link)->work_s : 0;
    sorted_work_remove(sorted, t->work_s);
    if (UNLIKELY(sorted_work_is_thin(sorted))) sort_again(k, sorted);
}

static void join_running(struct load_worker *k, struct load_ticket *t, uint64_t now_us) {
    t->first_us = now_us;
    t->first_quiet_s = k->quiet_s;
    k->sum_first_s += to_seconds(now_us);
    k->sum_first_quiet_s += t->first_quiet_s;
}

static void leave_running(struct load_worker *k, const struct load_ticket *t) {
    bool is_last = k->in_flight - k->n_pending == 1;

    k->sum_first_s = is_last ? 0 : k->sum_first_s - to_seconds(t->first_us);
    k->sum_first_quiet_s = is_last ? 0 : k->sum_first_quiet_s - t->first_quiet_s;
}

void load_park(struct load *l, struct load_ticket *t, uint64_t now_us) {
    struct load_worker *k = &l->workers[t->worker];

    assert(t->is_open && t->is_pending);
    count_quiet(k, now_us);
    if (list_first(&k->pending) == &t->link) k->service_began_us = now_us;
    leave_pending(l, t);
    join_running(k, t, now_us);
    t->is_parked = true;
}

void load_unpark(struct load *l, struct load_ticket *t, uint64_t now_us) {
    struct load_worker *k = &l->workers[t->worker];

    assert(t->is_open && t->is_parked);
    count_quiet(k, now_us);
    leave_running(k, t);
    t->is_parked = false;
    join_pending(l, t, now_us);
}

/* Its decode begins now; the prefill was another worker's. */
static void begin_parked(struct load_worker *k, struct load_ticket *t, uint64_t now_us) {
    count_quiet(k, now_us);
    leave_running(k, t);
    join_running(k, t, now_us);
    t->is_parked = false;
    k->n_first++;
}

void load_first_token(struct load *l, struct load_ticket *t, uint64_t now_us) {
    struct load_worker *k = &l->workers[t->worker];

    assert(t->is_open);
    if (t->is_parked) begin_parked(k, t, now_us);
    if (!t->is_pending) return;
    count_quiet(k, now_us);
    leave_pending(l, t);
    k->service_began_us = now_us; /* the next ticket's prefill begins */
    join_running(k, t, now_us);
    k->n_first++;
    l->first_work_s += t->work_s;
    l->mean_prefill_s += MEAN_WEIGHT * (t->work_s - l->mean_prefill_s);
    l->mean_running += MEAN_WEIGHT * (k->in_flight - k->n_pending - l->mean_running);
}

void load_close(struct load *l, struct load_ticket *t, double output_tokens, bool is_aborted,
                uint64_t now_us) {
    struct load_worker *k = &l->workers[t->worker];
    bool had_first = !t->is_pending && !t->is_parked;

    if (t->is_light) {
        close_light(l, t);
        return;
    }
    assert(t->is_open && k->in_flight && l->n_open);
    count_quiet(k, now_us);
    if (t->is_pending) { /* aborted; the head is unchanged if another */
        if (list_first(&k->pending) == &t->link) k->service_began_us = now_us;
        leave_pending(l, t);
    } else {
        leave_running(k, t);
    }
    if (had_first && !is_aborted) {
        double decode_s = seconds_since(t->first_us, now_us);
        double quiet_s = MIN(k->quiet_s - t->first_quiet_s, decode_s);

        l->mean_decode_s += MEAN_WEIGHT * (decode_s - l->mean_decode_s);
        output_tokens = MIN(output_tokens, k->capacity_tokens); /* more cannot be resident */
        l->mean_output_tokens += MEAN_WEIGHT * (output_tokens - l->mean_output_tokens);
        learn_speed(&l->speed, output_tokens, quiet_s, decode_s - quiet_s);
    }
    t->is_open = t->is_parked = false;
    k->in_flight--;
    k->resident_tokens = k->in_flight ? MAX(k->resident_tokens - t->resident_tokens, 0) : 0;
    k->n_closed++;
    l->n_open--;
    worker_mask_add(l->eased.words, t->worker);
    note_admission(l, t->worker);
}

static void check_roles(const struct load *l) {
    struct load copy = *l;

    if (!l->n_words) return;
    note_role(&copy, 0);
    for (uint32_t i = 0; i < l->n_words; i++) {
        assert(copy.eligible.words[i] == l->eligible.words[i]);
        assert(copy.prefills.words[i] == l->prefills.words[i]);
    }
    assert(copy.n_eligible == l->n_eligible);
}

void load_check(const struct load *l) {
    uint64_t n_open = 0;

    for (uint32_t w = 0; w < l->n_workers; w++) {
        const struct load_worker *k = &l->workers[w];
        uint32_t n_pending = 0;
        double work_s = 0, head_work_s = 0;

        LIST_FOR_EACH(it, &k->pending) {
            const struct load_ticket *t = LIST_ENTRY(it, struct load_ticket, link);

            assert(t->is_open && t->is_pending && t->worker == w);
            work_s += t->work_s;
            if (!n_pending++) head_work_s = t->work_s;
        }
        assert(n_pending == k->n_pending && k->n_pending <= k->in_flight);
        assert(head_work_s == k->head_work_s);
        assert(l->sorted[w].n + l->sorted[w].n_beyond == n_pending);
        assert(worker_mask_has(l->srpt.words, w) == (k->spec.order == WORKER_SRPT));
        assert(fabs(work_s - k->pending_work_s) <= 1e-6 * (1 + work_s));
        assert(k->n_sent - k->n_closed == k->in_flight && l->in_flight[w] == k->in_flight);
        assert(k->n_pending || k->pending_work_s == 0);
        assert(k->in_flight ? k->resident_tokens >= 0 : k->resident_tokens == 0);
        assert(k->in_flight > n_pending || (k->sum_first_s == 0 && k->sum_first_quiet_s == 0));
        assert(k->reasons || w / 64 < l->n_words);
        assert(worker_mask_has(l->busy.words, w) ==
               (k->spec.enough_in_flight && k->in_flight >= k->spec.enough_in_flight));
        assert(worker_mask_has(l->full.words, w) ==
               (k->spec.max_in_flight && k->in_flight >= k->spec.max_in_flight));
        n_open += k->in_flight;
    }
    check_roles(l);
    assert(n_open + l->n_light == l->n_open);
    assert(l->speed.busy >= 0 && l->speed.busy <= l->speed.quiet && isfinite(l->speed.quiet));
    assert(l->n_eligible == worker_mask_count(l->eligible.words, l->n_words));
    assert(l->n_ramping == worker_mask_count(l->ramping.words, WORKER_MASK_WORDS));
}
