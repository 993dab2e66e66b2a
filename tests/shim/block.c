/* tests/shim/block.c - runs the blocks of a launch: see shim.h for what it promises.
 *
 *      shim_run       for each block, in an order drawn from the seed
 *        step           until all warps have ended: choose a warp that may run
 *          run_warp       let each lane run to its next meeting; all are there: hold the meeting;
 *                         again, until the warp's turn is over or it waits for the block
 *
 * A lane that reaches a meeting leaves a note (lanes.h) and switches to the next lane of its warp,
 * the last one back to this file: one switch for each lane. */
#include "tests/shim/block.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "tests/shim/fiber.h"
#include "tests/shim/internal.h"
#include "tests/shim/lanes.h"
#include "tests/shim/shared.h"
#include "tests/shim/shim_control.h"

#define ALWAYS_INLINE __attribute__((always_inline))

__thread struct shim_size threadIdx, blockIdx, blockDim, gridDim;
const char *volatile shim_planted_name;

enum {
    MAX_THREADS = 1024,
    MAX_COPIES = 1024, /* of a thread, not yet waited for */
    MAX_KERNELS = 128,
    SHARED_DEFAULT = 232448
};

struct copy {
    void *to;
    const void *from;
};
/* Copies of one thread in the order of issue; group `g` ends at ends[g]. */
struct copies {
    uint32_t n, n_groups;
    struct copy list[MAX_COPIES];
    uint32_t ends[MAX_COPIES];
};

struct thread {
    struct fiber fiber;
    struct copies *copies; /* made when first needed */
};

struct kernel {
    char name[96];
    struct shim_stats stats;
};
struct allowed {
    void (*kernel)(void);
    uint64_t n_bytes;
};
/* A warp's lanes one after the other: lane (start + i * stride) % 32. */
struct turn {
    uint32_t first, i, start, stride; /* first: the warp's first thread */
};

/* Block (start + i) % n of a launch is next, or (start - i). */
struct order {
    uint64_t n, i, start;
    bool is_backwards;
};

/* All that the shim knows on one thread; of launches that run by turns, each has one. */
struct shim {
    struct fiber host;
    struct thread threads[MAX_THREADS];
    struct lane lanes[MAX_THREADS];
    uint32_t n_opened; /* threads that have a stack */
    uint32_t current;  /* the thread that runs */
    struct turn turn;
    bool is_running;
    const struct shim_launch *launch;
    struct order order;
    struct shim_size block_index;
    bool has_paused, has_given_up;
    struct shim *member[SHIM_MAX_RANKS]; /* made when first needed */
    struct shim_veil *veil;              /* of the launch, if it runs ahead */

    struct shared shared;

    uint64_t seed, n_chances; /* how many numbers of the seed were drawn */
    enum shim_copies copies;
    uint32_t max_shared_bytes;
    struct kernel kernels[MAX_KERNELS];
    uint32_t n_kernels;
    struct shim_stats *stats;
};

/* What kernels were allowed, in the whole process. */
static struct allowed allowed_[MAX_KERNELS];
static uint32_t n_allowed_;
static pthread_mutex_t allowed_lock_ = PTHREAD_MUTEX_INITIALIZER;

static _Thread_local struct shim *here_;
static pthread_key_t key_;
static pthread_once_t once_ = PTHREAD_ONCE_INIT;
static uint64_t default_seed_;
static int default_copies_;
static _Thread_local uint64_t clock_ns_;

static void shim_free(void *p) {
    struct shim *s = p;

    for (uint32_t i = 0; i < SHIM_MAX_RANKS; i++)
        if (s->member[i]) shim_free(s->member[i]);
    for (uint32_t i = 0; i < s->n_opened; i++) {
        fiber_close(&s->threads[i].fiber);
        mem_free(s->threads[i].copies);
    }
    shared_close(&s->shared);
    mem_free(s);
}
static void make_key(void) {
    pthread_key_create(&key_, shim_free);
}
static struct shim *shim_new(void) {
    struct shim *s = mem_zalloc(sizeof(*s));

    shared_open(&s->shared);
    s->seed = __atomic_load_n(&default_seed_, __ATOMIC_RELAXED);
    s->copies = (enum shim_copies)__atomic_load_n(&default_copies_, __ATOMIC_RELAXED);
    s->max_shared_bytes = SHARED_DEFAULT;
    return s;
}
static struct shim *here(void) {
    struct shim *s = here_;

    if (LIKELY(s != NULL)) return s;
    pthread_once(&once_, make_key);
    s = here_ = shim_new();
    pthread_setspecific(key_, s);
    return s;
}

/* --- what tests ask: shim_control.h */
void shim_set(uint64_t seed, enum shim_copies copies) {
    struct shim *s = here();

    s->seed = seed;
    s->n_chances = 0;
    s->copies = copies;
    __atomic_store_n(&default_seed_, seed, __ATOMIC_RELAXED);
    __atomic_store_n(&default_copies_, (int)copies, __ATOMIC_RELAXED);
}
void shim_plant(const char *name) {
    shim_planted_name = name;
}
void shim_set_max_shared(uint32_t n_bytes) {
    here()->max_shared_bytes = MIN(n_bytes, SHARED_MOST);
}
uint32_t shim_max_shared(void) {
    return here()->max_shared_bytes;
}
void shim_stats_clear(void) {
    here()->n_kernels = 0;
}
void shim_stats(const char *name, struct shim_stats *out) {
    struct shim *s = here();

    memset(out, 0, sizeof(*out));
    for (uint32_t i = 0; i < s->n_kernels; i++) {
        const struct shim_stats *k = &s->kernels[i].stats;

        if (!strstr(s->kernels[i].name, name)) continue;
        out->n_launches += k->n_launches;
        out->n_blocks += k->n_blocks;
        out->n_meetings += k->n_meetings;
        out->n_matrix_phases += k->n_matrix_phases;
        out->n_bank_conflicts += k->n_bank_conflicts;
        out->max_shared_bytes = MAX(out->max_shared_bytes, k->max_shared_bytes);
    }
}
static struct shim_stats *stats_of(struct shim *s, const char *name) {
    struct kernel *k;

    for (uint32_t i = 0; i < s->n_kernels; i++)
        if (!strncmp(s->kernels[i].name, name, sizeof(k->name) - 1)) return &s->kernels[i].stats;
    if (s->n_kernels == MAX_KERNELS) s->n_kernels--; /* the last place is shared by all others */
    k = &s->kernels[s->n_kernels++];
    memset(k, 0, sizeof(*k));
    snprintf(k->name, sizeof(k->name), "%s", name);
    return &k->stats;
}

/* --- chance */
uint64_t shim_chance(void) {
    struct shim *s = here();

    return rng_at(s->seed, s->n_chances++);
}
bool shim_is_shuffled(void) {
    return here()->seed != 0;
}

/* --- the end */
static NORETURN PRINTF_LIKE(4, 5) void fault(const struct shim *s, uint32_t thread, int line,
                                             const char *fmt, ...) {
    const struct shim_size *t = &s->lanes[thread].index;
    va_list ap;

    fprintf(stderr, "shim: kernel %s, block (%u, %u, %u), thread (%u, %u, %u)", s->launch->name,
            blockIdx.x, blockIdx.y, blockIdx.z, t->x, t->y, t->z);
    if (line) fprintf(stderr, ", line %d", line);
    fputs(": ", stderr);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    fflush(NULL);
    abort();
}

void shim_fault_here(int line, const char *what) {
    struct shim *s = here();

    if (s->is_running) fault(s, s->current, line, "%s", what);
    fprintf(stderr, "shim: line %d: %s\n", line, what);
    abort();
}

/* --- shared memory */
int shim_allow_shared(void (*kernel)(void), uint64_t n_bytes) {
    uint32_t i = 0;

    if (n_bytes > here()->max_shared_bytes) return 1; /* cudaErrorInvalidValue */
    pthread_mutex_lock(&allowed_lock_);
    while (i < n_allowed_ && allowed_[i].kernel != kernel)
        i++;
    if (i == MAX_KERNELS) abort();
    if (i == n_allowed_) n_allowed_++;
    allowed_[i] = (struct allowed){kernel, n_bytes};
    pthread_mutex_unlock(&allowed_lock_);
    return 0;
}
static uint64_t allowed_shared(void (*kernel)(void)) {
    uint64_t n_bytes = SHARED_UNASKED;

    pthread_mutex_lock(&allowed_lock_);
    for (uint32_t i = 0; i < n_allowed_; i++)
        if (allowed_[i].kernel == kernel) n_bytes = MAX(n_bytes, allowed_[i].n_bytes);
    pthread_mutex_unlock(&allowed_lock_);
    return n_bytes;
}

void *shim_shared_dynamic(void) {
    return shared_dynamic(&here()->shared);
}
void *shim_shared(const void *key, uint64_t n_bytes) {
    struct shim *s = here();
    void *array = shared_array(&s->shared, key, n_bytes);

    if (!array) fault(s, s->current, 0, "more than 48 KiB, or 32 arrays, of SHARED memory");
    return array;
}
/* Both kinds share what a block may have: 48 KiB, or all that there is for a kernel that has
 * asked. */
static void check_shared(const struct shim *s) {
    bool has_asked = allowed_shared(s->launch->kernel) > SHARED_UNASKED;
    uint64_t n = shared_bytes(&s->shared), n_bytes;

    if (shared_is_overrun(&s->shared, &n_bytes))
        fault(s, 0, 0, "the block has written behind the end of its %u of shared memory",
              (unsigned)n_bytes);
    if (n > (has_asked ? s->max_shared_bytes : SHARED_UNASKED))
        fault(s, 0, 0, "%u bytes of shared memory, both kinds together, are more than it may have",
              (unsigned)n);
}
const char *shim_launch_fault(const struct shim_launch *l) {
    uint64_t n_threads = (uint64_t)l->block.x * l->block.y * l->block.z;

    if (!l->grid.x || !l->grid.y || !l->grid.z) return "the grid is empty";
    if (l->grid.y > 65535 || l->grid.z > 65535 || l->grid.x > 0x7FFFFFFFu)
        return "the grid is too large: y and z may be 65535";
    if (!n_threads || n_threads > MAX_THREADS) return "a block has 1 to 1024 threads";
    if (n_threads % WARP) return "the block is not a multiple of 32 threads";
    if (l->block.y * l->block.z != 1) return "the shim wants blocks of one dimension";
    if (l->args_bytes > SHIM_MAX_ARGS) return "more than 4096 bytes of arguments";
    if (l->shared_bytes > allowed_shared(l->kernel))
        return "more shared memory than the kernel was allowed: ALLOW_SHARED asks for above 48 KiB";
    return NULL;
}

/* --- asynchronous copies */
static void copies_apply(struct copies *c, uint32_t n_groups) {
    uint32_t n = n_groups ? c->ends[n_groups - 1] : 0;

    for (uint32_t i = 0; i < n; i++)
        memcpy(c->list[i].to, c->list[i].from, 16);
    memmove(c->list, c->list + n, (c->n - n) * sizeof(*c->list));
    for (uint32_t g = n_groups; g < c->n_groups; g++)
        c->ends[g - n_groups] = c->ends[g] - n;
    c->n -= n;
    c->n_groups -= n_groups;
}
static struct copies *copies_here(struct shim *s) {
    struct thread *t = &s->threads[s->current];

    if (!t->copies) t->copies = mem_zalloc(sizeof(*t->copies));
    return t->copies;
}
void shim_copy(void *shared, const void *global, int line) {
    struct shim *s = here();
    struct copies *c = copies_here(s);

    if (((uintptr_t)shared | (uintptr_t)global) % 16)
        fault(s, s->current, line, "copy_async16 between addresses that are not multiples of 16");
    if (!shared_holds16(&s->shared, shared))
        fault(s, s->current, line,
              "copy_async16 to 16 bytes that are not the block's shared memory");
    if (s->copies == SHIM_COPIES_EARLY) {
        memcpy(shared, global, 16);
        return;
    }
    if (c->n == MAX_COPIES) fault(s, s->current, line, "over 1024 copies not waited for");
    c->list[c->n++] = (struct copy){shared, global};
}
void shim_copy_commit(void) {
    struct shim *s = here();
    struct copies *c = copies_here(s);

    if (c->n_groups == MAX_COPIES) fault(s, s->current, 0, "over 1024 groups not waited for");
    c->ends[c->n_groups++] = c->n;
}
void shim_copy_wait(uint32_t n_left) {
    struct copies *c = copies_here(here());

    if (c->n_groups > n_left) copies_apply(c, c->n_groups - n_left);
}

/* --- lanes: what they do before they switch away */
/* The lane after this one goes on, or, after the last, the host. */
static struct fiber *next_fiber(struct shim *s) {
    struct turn *t = &s->turn;

    if (++t->i == WARP) return &s->host;
    s->current = t->first + ((t->start + t->i * t->stride) & (WARP - 1));
    threadIdx = s->lanes[s->current].index;
    return &s->threads[s->current].fiber;
}
/* Inlined: a return on the other side of a switch is one that the processor has not foreseen. */
static inline ALWAYS_INLINE void leave(struct shim *s, struct lane *lane, enum place place,
                                       int line) {
    struct fiber *self = &s->threads[s->current].fiber;

    lane->place = place;
    lane->line = line;
    fiber_switch(self, next_fiber(s));
}
static struct lane *lane_here(struct shim *s) {
    return &s->lanes[s->current];
}
static inline ALWAYS_INLINE void meet(struct shim *s, struct lane *lane, enum meeting meeting,
                                      int line) {
    lane->meeting = meeting;
    leave(s, lane, AT_MEETING, line);
}
static void check_mask(struct shim *s, uint32_t mask, int line) {
    if (mask != ~0u) fault(s, s->current, line, "the mask %08x is not the whole warp", mask);
}
void shim_sync_block(int line) {
    struct shim *s = here();

    leave(s, lane_here(s), AT_BLOCK_BARRIER, line);
}
void shim_sync_warp(uint32_t mask, int line) {
    struct shim *s = here();

    check_mask(s, mask, line);
    meet(s, lane_here(s), SYNC_WARP, line);
}
uint32_t shim_shuffle(uint32_t mask, uint32_t bits, uint32_t from_lane, int line) {
    struct shim *s = here();
    struct lane *lane = lane_here(s);

    check_mask(s, mask, line);
    lane->bits = bits;
    lane->from = from_lane;
    meet(s, lane, SHUFFLE, line);
    return lane->result;
}
uint32_t shim_ballot(uint32_t mask, bool vote, int line) {
    struct shim *s = here();
    struct lane *lane = lane_here(s);

    check_mask(s, mask, line);
    lane->bits = vote;
    meet(s, lane, BALLOT, line);
    return lane->result;
}
void shim_load_matrix4(uint32_t r[4], const void *row, bool is_transposed, int line) {
    struct shim *s = here();
    struct lane *lane = lane_here(s);

    if ((uintptr_t)row % 16)
        fault(s, s->current, line, "load_matrix4 of a row that is not at a multiple of 16");
    if (!shared_holds16(&s->shared, row))
        fault(s, s->current, line,
              "load_matrix4 of a row that is not in the block's shared memory");
    lane->r = r;
    lane->row = row;
    meet(s, lane, is_transposed ? MATRIX_TRANSPOSED : MATRIX, line);
}
void shim_multiply_add(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1, int line) {
    struct shim *s = here();
    struct lane *lane = lane_here(s);

    lane->c = c;
    lane->a = a;
    lane->b0 = b0;
    lane->b1 = b1;
    meet(s, lane, PRODUCT, line);
}
void shim_multiply_add_s8(int32_t c[4], const uint32_t a[4], uint32_t b0, uint32_t b1, int line) {
    struct shim *s = here();
    struct lane *lane = lane_here(s);

    lane->c_s8 = c;
    lane->a = a;
    lane->b0 = b0;
    lane->b1 = b1;
    meet(s, lane, PRODUCT_S8, line);
}

void shim_pause(int line) {
    struct shim *s = here();

    if (s->current % WARP == 0) clock_ns_ += 1000000;
    leave(s, lane_here(s), AT_PAUSE, line);
}
uint64_t shim_clock_ns(void) {
    return clock_ns_;
}
void shim_give_up(void) {
    here()->has_given_up = true;
}

static void hold_meeting(struct shim *s, struct lane *warp) {
    s->stats->n_meetings++;
    if (warp->meeting == MATRIX || warp->meeting == MATRIX_TRANSPOSED) {
        s->stats->n_matrix_phases += 4;
        s->stats->n_bank_conflicts += lanes_conflicts(warp);
    }
    lanes_meet(warp);
}

/* --- launches that overlap */
void shim_wait_for_primary(int line) {
    struct shim *s = here();
    struct lane *lane = lane_here(s);

    if (s->veil && !lane->has_waited) leave(s, lane, AT_WAIT, line);
    lane->has_waited = true;
}
void shim_launch_dependents(int line) {
    struct shim *s = here();

    if (!lane_here(s)->has_waited)
        fault(
            s, s->current, line,
            "simt_launch_dependents before simt_wait_for_primary: what begins then would not wait "
            "for what this kernel waits for");
}
static void check_waited(struct shim *s) {
    if (s->launch->waits && !lane_here(s)->has_waited)
        fault(s, s->current, 0,
              "ends without simt_wait_for_primary, which every path of a kernel needs that LAUNCH "
              "puts on a stream");
}
static void lift_veil(struct shim *s) {
    const char *wrong = shim_veil_lift(s->veil);

    if (wrong)
        fault(s, 0, s->lanes[0].line, "before simt_wait_for_primary, the block has %s", wrong);
}

/* --- fibers */
static void thread_entry(void) {
    struct shim *s = here();

    fiber_began(&s->threads[s->current].fiber);
    for (;;) {
        s->launch->call(s->launch->kernel, s->launch->args);
        check_waited(here());
        leave(s, lane_here(s), AT_END, 0);
        s = here();
    }
}

/* --- the schedule */
static void describe(const struct lane *lane, char *out, size_t size) {
    static const char *const names[] = {
        "__syncwarp",   "a shuffle",      "a ballot", "load_matrix4", "load_matrix4_transposed",
        "multiply_add", "multiply_add_s8"};

    if (lane->place == AT_END)
        snprintf(out, size, "has ended");
    else
        snprintf(out, size, "waits at %s, line %d",
                 lane->place == AT_BLOCK_BARRIER ? "__syncthreads"
                 : lane->place == AT_PAUSE       ? "simt_pause"
                 : lane->place == AT_WAIT        ? "simt_wait_for_primary"
                                                 : names[lane->meeting],
                 lane->line);
}
static bool is_same_place(const struct lane *a, const struct lane *b) {
    return a->place == b->place && a->line == b->line &&
           (a->place != AT_MEETING || a->meeting == b->meeting);
}
static NORETURN void apart(struct shim *s, uint32_t i, uint32_t j, const char *who) {
    char one[96], other[96];

    describe(&s->lanes[i], one, sizeof(one));
    describe(&s->lanes[j], other, sizeof(other));
    fault(s, j, 0, "this thread %s, thread %u %s: the threads of a %s must come there together",
          other, s->lanes[i].index.x, one, who);
}
/* Every lane to its next meeting, in an order that is the identity or drawn by chance. */
static void run_lanes(struct shim *s, uint32_t first) {
    uint32_t chance = s->seed ? (uint32_t)shim_chance() : 0;

    s->turn = (struct turn){first, UINT32_MAX, chance & 31, (chance >> 5 & 31) | 1};
    fiber_switch(&s->host, next_fiber(s));
    for (uint32_t l = 1; l < WARP; l++)
        if (!is_same_place(&s->lanes[first], &s->lanes[first + l]))
            apart(s, first, first + l, "warp");
}
/* A turn ends after some meetings: few or many, so that a warp runs far ahead or falls far
 * behind. */
static void run_warp(struct shim *s, uint32_t first) {
    uint64_t chance = s->seed ? shim_chance() : 0;
    uint64_t n_left = s->seed ? 1 + (chance >> 8) % (1u << (chance % 9)) : UINT64_MAX;
    struct lane *warp = &s->lanes[first];

    for (;;) {
        run_lanes(s, first);
        if (warp->place != AT_MEETING) return;
        hold_meeting(s, warp);
        if (!--n_left) return;
    }
}
static void release_block(struct shim *s, uint32_t n_threads) {
    for (uint32_t i = WARP; i < n_threads; i += WARP)
        if (!is_same_place(&s->lanes[0], &s->lanes[i])) apart(s, 0, i, "block");
    for (uint32_t i = 0; i < n_threads; i++)
        s->lanes[i].place = AT_START;
}
static void start_block(struct shim *s, uint32_t n_threads) {
    shared_poison(&s->shared);
    for (uint32_t i = 0; i < n_threads; i++) {
        s->lanes[i].place = AT_START;
        s->lanes[i].has_waited = false;
        s->lanes[i].index = (struct shim_size){i, 0, 0};
        if (s->threads[i].copies) s->threads[i].copies->n = s->threads[i].copies->n_groups = 0;
    }
    if (s->veil) shim_veil_cover(s->veil);
}
static bool may_run(const struct lane *lane) {
    return lane->place == AT_START || lane->place == AT_MEETING || lane->place == AT_PAUSE;
}
/* By chance; with seed 0 the first that does not merely wait. */
static uint32_t choose_warp(struct shim *s, const uint32_t *ready, uint32_t n_ready) {
    if (s->seed) return ready[shim_chance() % n_ready];
    for (uint32_t i = 0; i < n_ready; i++)
        if (s->lanes[ready[i] * WARP].place != AT_PAUSE) return ready[i];
    return ready[0];
}
/* A turn of one warp, or the end of a barrier. false: the block has ended. */
static bool step_block(struct shim *s, uint32_t n_threads) {
    uint32_t ready[MAX_THREADS / WARP], n_ready = 0, n_warps = n_threads / WARP, w;

    for (w = 0; w < n_warps; w++)
        if (may_run(&s->lanes[w * WARP])) ready[n_ready++] = w;
    s->has_paused = false;
    if (n_ready) {
        w = choose_warp(s, ready, n_ready);
        run_warp(s, WARP * w);
        s->has_paused = s->lanes[w * WARP].place == AT_PAUSE;
        return true;
    }
    if (s->lanes[0].place != AT_END) {
        if (s->lanes[0].place == AT_WAIT) lift_veil(s);
        release_block(s, n_threads);
        return true;
    }
    for (w = 1; w < n_warps; w++)
        if (s->lanes[w * WARP].place != AT_END) apart(s, 0, w * WARP, "block");
    check_shared(s);
    return false;
}
static void open_threads(struct shim *s, uint32_t n) {
    for (; s->n_opened < n; s->n_opened++)
        fiber_open(&s->threads[s->n_opened].fiber, s->n_opened, thread_entry);
}
static void next_block(struct shim *s) {
    const struct shim_size *grid = &s->launch->grid;
    const struct order *o = &s->order;
    uint64_t b = (o->start + (o->is_backwards ? o->n - o->i : o->i)) % o->n;

    s->block_index = (struct shim_size){(unsigned)(b % grid->x), (unsigned)(b / grid->x % grid->y),
                                        (unsigned)(b / grid->x / grid->y)};
    start_block(s, s->launch->block.x);
}
static void enter(const struct shim *s) {
    blockIdx = s->block_index;
    gridDim = s->launch->grid;
    blockDim = s->launch->block;
}
/* false: the launch has ended. */
static bool step(struct shim *s) {
    if (step_block(s, s->launch->block.x)) return true;
    if (++s->order.i < s->order.n) {
        next_block(s);
        enter(s);
        return true;
    }
    s->stats->n_blocks += s->order.n;
    s->stats->n_launches++;
    s->stats->max_shared_bytes = MAX(s->stats->max_shared_bytes, shared_bytes(&s->shared));
    s->is_running = false;
    return false;
}
static void begin(struct shim *s, const struct shim_launch *l, uint64_t start, bool is_backwards) {
    const char *wrong = shim_launch_fault(l);
    uint64_t n = (uint64_t)l->grid.x * l->grid.y * l->grid.z;

    if (!wrong && s->is_running) wrong = "a launch from within a kernel";
    if (wrong) {
        fprintf(stderr, "shim: kernel %s cannot be launched: %s\n", l->name, wrong);
        abort();
    }
    s->is_running = true;
    s->has_given_up = false;
    s->launch = l;
    s->order = (struct order){n, 0, start % n, is_backwards};
    shared_clear(&s->shared, l->shared_bytes);
    s->stats = stats_of(s, l->name);
    open_threads(s, l->block.x);
    next_block(s);
    enter(s);
}
bool shim_run(const struct shim_launch *l) {
    struct shim *s = here();
    uint64_t start = s->seed ? shim_chance() : 0;

    begin(s, l, start, s->seed && shim_chance() % 2);
    while (step(s)) {
    }
    return !s->has_given_up;
}

bool shim_run_veiled(const struct shim_launch *l, struct shim_veil *veil) {
    struct shim *s = here();
    bool has_ended;

    s->veil = veil;
    has_ended = shim_run(l);
    s->veil = NULL;
    return has_ended;
}

/* --- launches by turns */
struct shim *shim_member(uint32_t i) {
    struct shim *s = here();

    if (!s->member[i]) s->member[i] = shim_new();
    return s->member[i];
}
void shim_member_begin(struct shim *m, const struct shim_launch *l, uint64_t order) {
    struct shim *s = here();

    if (m->seed != s->seed || m->copies != s->copies) m->n_chances = 0;
    m->seed = s->seed ? s->seed + l->block.x : 0;
    m->copies = s->copies;
    m->is_running = false;
    here_ = m;
    begin(m, l, s->seed ? order / 2 : 0, s->seed && order % 2);
    here_ = s;
}
bool shim_member_step(struct shim *m) {
    struct shim *s = here();
    bool goes_on;

    here_ = m;
    enter(m);
    goes_on = step(m);
    here_ = s;
    return goes_on;
}
bool shim_member_pauses(const struct shim *m) {
    return m->has_paused;
}
bool shim_member_has_given_up(const struct shim *m) {
    return m->has_given_up;
}
