/* tests/shim/gang.c - launches of several ranks that wait for each other: LAUNCH_TOGETHER.
 *
 * A kernel that waits for another rank's would never end if it ran by itself. So the launches of
 * all ranks run by turns on one thread: a rank has a block under way, and one of its warps runs at
 * a time; which rank is next, and for how many turns, is drawn from the seed, so that one falls far
 * behind another. Blocks come in the same order at all ranks: on a GPU all of them are there at the
 * same time, here those of one number.
 *
 * On streams the ranks' launches begin when each stands first on its stream, so none runs ahead by
 * more than one kernel; with a NULL stream all that were put between shim_ranks_begin and
 * shim_ranks_run go together, and a rank is held up by nothing but the kernels' own waiting.
 *
 * LIMITS. As on one GPU stores become visible at once and in order: fences are not tested. */
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "tests/shim/gpu_shim_internal.h"
#include "tests/shim/internal.h"
#include "tests/shim/shim_control.h"

enum { MAX_PLACES = 16, MAX_KEPT = 4096 };

/* A rank's launches, in order. */
struct queue {
    const struct shim_launch *launch;
    uint32_t n, next;
    uint32_t n_turns; /* left before another rank's */
};

/* --- turns */
static bool begin_next(uint32_t rank, struct queue *q) {
    uint64_t order = rng_at(77, q->next);

    if (q->next == q->n) return false;
    shim_member_begin(shim_member(rank), &q->launch[q->next++], order);
    return true;
}
/* Any that has not ended; with seed 0 the one after the last. */
static uint32_t choose_rank(const bool *is_live, uint32_t size, uint32_t last) {
    uint32_t rank = shim_is_shuffled() ? (uint32_t)(shim_chance() % size) : last + 1;

    while (!is_live[rank % size])
        rank++;
    return rank % size;
}
static uint32_t choose_turns(void) {
    uint64_t chance = shim_is_shuffled() ? shim_chance() : 0;

    return 1 + (uint32_t)((chance >> 8) % (1u << (chance % 9)));
}
/* Until all launches have ended. false: one has given up. */
static bool run_queues(struct queue *queues, uint32_t size) {
    bool is_live[SHIM_MAX_RANKS] = {false}, has_given_up = false;
    uint32_t n_live = 0, rank = size - 1;

    for (uint32_t r = 0; r < size; r++)
        n_live += is_live[r] = begin_next(r, &queues[r]);
    while (n_live) {
        struct shim *member;

        rank = choose_rank(is_live, size, rank);
        member = shim_member(rank);
        for (uint32_t n = choose_turns(); n && is_live[rank]; n--) {
            if (shim_member_step(member)) {
                if (shim_member_pauses(member)) break;
                continue;
            }
            has_given_up |= shim_member_has_given_up(member);
            is_live[rank] = begin_next(rank, &queues[rank]);
            n_live -= !is_live[rank];
        }
    }
    return !has_given_up;
}

/* --- memory of other ranks that is not as it seems: under the devices' lock, or on one thread */
enum { MAX_LATE = 1024, N_LINES = 1 << 15, LINE = 16 };

volatile int shim_peer_fault;
static struct {
    const uint32_t *p;
    uint32_t x;
    uint64_t due_ns;
} late_[MAX_LATE];
static uint32_t n_late_;
static struct line {
    const void *p;
    _Alignas(LINE) unsigned char bytes[LINE];
} * lines_; /* (N_LINES) by address */

void shim_set_peer_fault(enum shim_peer_fault fault) {
    shim_peer_fault = (int)fault;
    n_late_ = 0;
    mem_free(lines_);
    lines_ = NULL;
}
void shim_faulty_store(uint32_t *p, uint32_t x) {
    if (shim_peer_fault == SHIM_PEERS_STALE) *(volatile uint32_t *)p = x;
    if (shim_peer_fault != SHIM_PEERS_LATE) return;
    late_[n_late_].p = p;
    late_[n_late_].x = x;
    late_[n_late_].due_ns = shim_clock_ns() + 60000000000ull;
    n_late_ = (n_late_ + 1) % MAX_LATE;
}
uint32_t shim_faulty_load(const uint32_t *p) {
    uint32_t x = *(const volatile uint32_t *)p;

    for (uint32_t i = 0; i < n_late_; i++)
        if (late_[i].p == p && late_[i].due_ns <= shim_clock_ns()) x = late_[i].x;
    return x;
}
const void *shim_faulty_line(const void *p) {
    struct line *l;

    if (shim_peer_fault != SHIM_PEERS_STALE) return p;
    if (!lines_) lines_ = mem_calloc(N_LINES, sizeof(*lines_));
    l = &lines_[rng_mix((uintptr_t)p / LINE) % N_LINES];
    if (l->p != p) {
        l->p = p;
        memcpy(l->bytes, p, LINE);
    }
    return l->bytes;
}

/* --- without a stream */
static _Thread_local struct {
    bool is_open;
    uint32_t size, n[SHIM_MAX_RANKS];
    struct shim_launch *launch[SHIM_MAX_RANKS];
} kept_;

void shim_ranks_begin(void) {
    kept_.is_open = true;
    kept_.size = 1;
}
static void keep(const struct shim_launch *l, uint32_t rank, uint32_t size) {
    unsigned char *args = mem_alloc(l->args_bytes);

    if (!kept_.is_open) shim_fault("kernel %s of rank %u: shim_ranks_begin first", l->name, rank);
    if (!kept_.launch[rank]) kept_.launch[rank] = mem_calloc(MAX_KEPT, sizeof(*kept_.launch[rank]));
    if (kept_.n[rank] == MAX_KEPT) shim_fault("over %u launches of a rank", (unsigned)MAX_KEPT);
    kept_.size = MAX(kept_.size, size);
    memcpy(args, l->args, l->args_bytes);
    kept_.launch[rank][kept_.n[rank]] = *l;
    kept_.launch[rank][kept_.n[rank]++].args = args;
}
bool shim_ranks_run(void) {
    struct queue queues[SHIM_MAX_RANKS] = {{0}};
    bool is_done;

    for (uint32_t r = 0; r < kept_.size; r++)
        queues[r] = (struct queue){.launch = kept_.launch[r], .n = kept_.n[r]};
    is_done = run_queues(queues, kept_.size);
    for (uint32_t r = 0; r < kept_.size; r++) {
        for (uint32_t i = 0; i < kept_.n[r]; i++)
            mem_free((void *)(uintptr_t)kept_.launch[r][i].args);
        mem_free(kept_.launch[r]);
    }
    memset(&kept_, 0, sizeof(kept_));
    return is_done;
}

/* --- on streams, under the devices' lock */
struct call {
    _Alignas(16) struct shim_launch launch; /* the kernel's arguments follow */
    const void *key;
    uint32_t rank, size;
};
enum state { AWAY, WAITS, SERVED };
struct place {
    const void *key; /* NULL: free */
    struct {
        enum state state;
        struct gpu *gpu;
        struct call *call;
    } rank[SHIM_MAX_RANKS];
};
static struct place places_[MAX_PLACES];

static struct place *place_of(const void *key) {
    struct place *free = NULL;

    for (struct place *p = places_; p < places_ + MAX_PLACES; p++) {
        if (p->key == key) return p;
        if (!p->key) free = p;
    }
    if (!free) shim_fault("over %u groups of ranks", (unsigned)MAX_PLACES);
    free->key = key;
    return free;
}
/* A device that closes takes its places along. */
void shim_forget_places(const struct gpu *gpu) {
    for (struct place *p = places_; p < places_ + MAX_PLACES; p++)
        for (uint32_t r = 0; r < SHIM_MAX_RANKS; r++)
            if (p->rank[r].gpu == gpu) memset(p, 0, sizeof(*p));
}
static bool have_all_come(const struct place *p, uint32_t size) {
    for (uint32_t r = 0; r < size; r++)
        if (p->rank[r].state != WAITS) return false;
    return true;
}
static void serve(struct place *p, uint32_t size) {
    struct queue queues[SHIM_MAX_RANKS] = {{0}};
    bool is_done;

    for (uint32_t r = 0; r < size; r++) {
        struct call *c = p->rank[r].call;

        shim_memory_enter(p->rank[r].gpu);
        c->launch.args = c + 1;
        queues[r] = (struct queue){.launch = &c->launch, .n = 1};
    }
    is_done = run_queues(queues, size);
    for (uint32_t r = 0; r < size; r++) {
        p->rank[r].state = SERVED;
        if (!is_done) shim_fail(p->rank[r].gpu, "%s has given up waiting", queues[r].launch->name);
    }
}
bool shim_run_together(struct gpu *gpu, void *args) {
    struct call *c = args;
    struct place *p = place_of(c->key);
    uint32_t rank = c->rank;

    if (shim_has_any_failed()) {
        shim_fail(gpu, "rank %u: another rank's device has failed", rank);
        return true;
    }
    if (p->rank[rank].state == AWAY && shim_launch_fails(gpu, &c->launch)) return true;
    if (p->rank[rank].state == AWAY) {
        p->rank[rank].state = WAITS;
        p->rank[rank].gpu = gpu;
        p->rank[rank].call = c;
        if (have_all_come(p, c->size)) serve(p, c->size);
    }
    if (p->rank[rank].state != SERVED) return false;
    p->rank[rank].state = AWAY;
    return true;
}

void shim_launch_together(struct gpu_stream *s, const struct shim_launch *launch, const void *key,
                          uint32_t rank, uint32_t size) {
    union {
        struct call call;
        unsigned char bytes[sizeof(struct call) + SHIM_MAX_ARGS];
    } packed;

    if (size == 1) {
        shim_launch_on(s, launch);
        return;
    }
    shim_check_launch(s, launch);
    if (!s) {
        keep(launch, rank, size);
        return;
    }
    packed.call = (struct call){*launch, key, rank, size};
    memcpy(packed.bytes + sizeof(packed.call), launch->args, launch->args_bytes);
    shim_put(s, launch->name, shim_run_together, &packed,
             (uint32_t)(sizeof(packed.call) + launch->args_bytes));
}
