/* tests/support/kernel_fixture.h - one kernel under test: its memory, what should be in it
 * afterwards, and every schedule it has to be right under.
 *
 * A test asks for rooms of memory, fills the inputs, sets what it wants of each output, and calls
 * kernel_fixture_passes. That runs the kernel under KERNEL_FIXTURE_SEEDS seeds and both kinds of
 * asynchronous copies, and looks each time at all rooms: those wanted (unless they are changed in
 * place, poisoned with NaN before), those not wanted, which must be as they were, and the guard
 * zones around each. Between the runs all bits must be the same.
 *
 * It answers rather than asserts, because of planted bugs: of a kernel made wrong the test asserts
 * that kernel_fixture_passes returns false. */
#ifndef TESTS_SUPPORT_KERNEL_FIXTURE_H
#define TESTS_SUPPORT_KERNEL_FIXTURE_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"
#include "kernels/dtype.h"
#include "tests/shim/shim_control.h"
#include "tests/support/cm.h"

#define KERNEL_FIXTURE_SEEDS 3
#define KERNEL_FIXTURE_ROOMS 16
#define KERNEL_FIXTURE_GUARD 256 /* bytes on either side */

struct fixture_room {
    uint8_t *p, *before, *first; /* contents, then as they were, then as the first run left them */
    size_t n_bytes;
    float *want; /* by element; NaN: as it was. NULL: all as it was */
    enum dtype dtype;
};

struct kernel_fixture {
    struct rng rng;
    struct fixture_room room[KERNEL_FIXTURE_ROOMS];
    unsigned n_rooms;
    char complaint[160];
};

static inline void kernel_fixture_init(struct kernel_fixture *k, uint64_t seed) {
    memset(k, 0, sizeof(*k));
    rng_seed(&k->rng, seed);
}

static inline void kernel_fixture_fini(struct kernel_fixture *k) {
    for (unsigned i = 0; i < k->n_rooms; i++) {
        free(k->room[i].p - KERNEL_FIXTURE_GUARD);
        free(k->room[i].before);
        free(k->room[i].first);
        free(k->room[i].want);
    }
}

/* Memory for the kernel, all bytes 0xFF: a NaN as bf16 and as f32. */
static inline void *kernel_fixture_room(struct kernel_fixture *k, size_t n_bytes) {
    struct fixture_room *r = &k->room[k->n_rooms++];
    size_t whole = ALIGN_UP(n_bytes + 2 * KERNEL_FIXTURE_GUARD, (size_t)KERNEL_FIXTURE_GUARD);

    assert_true(k->n_rooms <= KERNEL_FIXTURE_ROOMS);
    *r = (struct fixture_room){.n_bytes = n_bytes};
    r->p = (uint8_t *)aligned_alloc(KERNEL_FIXTURE_GUARD, whole) + KERNEL_FIXTURE_GUARD;
    memset(r->p - KERNEL_FIXTURE_GUARD, 0xA5, whole);
    memset(r->p, 0xFF, n_bytes);
    r->before = malloc(n_bytes);
    r->first = malloc(n_bytes);
    return r->p;
}

static inline void *kernel_fixture_put(struct kernel_fixture *k, const void *from, size_t n_bytes) {
    return memcpy(kernel_fixture_room(k, n_bytes), from, n_bytes);
}

/* Nearly normal, of mean 0 and deviation `scale`. */
static inline float kernel_fixture_draw(struct kernel_fixture *k, float scale) {
    double sum = 0;

    for (int i = 0; i < 4; i++)
        sum += rng_f64(&k->rng) - 0.5;
    return (float)(sum * 1.7320508) * scale;
}

/* (n) random bf16 around `mean`, and in `f`, unless it is NULL, the same numbers. */
static inline uint16_t *kernel_fixture_draw_bf16(struct kernel_fixture *k, size_t n, float mean,
                                                 float scale, float *f) {
    uint16_t *p = kernel_fixture_room(k, n * 2);

    for (size_t i = 0; i < n; i++) {
        p[i] = bf16_of_f32(mean + kernel_fixture_draw(k, scale));
        if (f) f[i] = f32_of_bf16(p[i]);
    }
    return p;
}

static inline float *kernel_fixture_floats(size_t n) {
    return calloc(n ? n : 1, sizeof(float));
}

/* Room p is to hold n numbers near `want`, which this takes. */
static inline void kernel_fixture_want(struct kernel_fixture *k, const void *p, enum dtype dtype,
                                       float *want) {
    for (unsigned i = 0; i < k->n_rooms; i++) {
        if (k->room[i].p != p) continue;
        k->room[i].want = want;
        k->room[i].dtype = dtype;
        return;
    }
    fail_msg("no such room");
}

/* A number is right when it is within one rounding to its type, and a sum's rounding errors, which
 * are measured by the other numbers of the room. */
static inline bool kernel_fixture_is_near(float got, float want, enum dtype dtype, double size) {
    double relative = dtype == DTYPE_BF16 ? 0x1p-8 : 1e-4;

    return dtype == DTYPE_I32 ? got == want
                              : fabs((double)got - want) <= relative * fabs(want) + 1e-5 * size;
}

static inline float kernel_fixture_get(const struct fixture_room *r, size_t i) {
    int32_t n;

    if (r->dtype == DTYPE_I8) return (int8_t)r->p[i];
    if (r->dtype != DTYPE_I32) return dtype_get(r->dtype, r->p, i);
    memcpy(&n, r->p + i * 4, 4);
    return (float)n;
}

static inline bool kernel_fixture_has_wanted(struct kernel_fixture *k, unsigned room) {
    const struct fixture_room *r = &k->room[room];
    size_t size = dtype_bytes(r->dtype), n = r->n_bytes / size, n_wanted = 0;
    double sum = 0, off = 0;

    for (size_t i = 0; i < n; i++) {
        if (isnan(r->want[i])) continue;
        sum += (double)r->want[i] * r->want[i];
        n_wanted++;
    }
    for (size_t i = 0; i < n; i++) {
        double got = kernel_fixture_get(r, i), want = r->want[i];
        double typical = sqrt(sum / (double)(n_wanted ? n_wanted : 1));
        bool is_right = isnan(want)
                            ? !memcmp(r->p + i * size, r->before + i * size, size)
                            : kernel_fixture_is_near((float)got, (float)want, r->dtype, typical);

        if (!is_right) {
            snprintf(k->complaint, sizeof(k->complaint), "room %u [%zu] = %g, not %g", room, i, got,
                     want);
            return false;
        }
        if (!isnan(want)) off += (got - want) * (got - want);
    }
    if (sqrt(off) > 3e-3 * sqrt(sum)) {
        snprintf(k->complaint, sizeof(k->complaint), "room %u is off by %g", room, sqrt(off / sum));
        return false;
    }
    return true;
}

static inline bool fixture_room_matches(struct kernel_fixture *k, unsigned room, bool is_first) {
    struct fixture_room *r = &k->room[room];

    for (int i = 0; i < KERNEL_FIXTURE_GUARD; i++) {
        if (r->p[-1 - i] == 0xA5 && r->p[r->n_bytes + (size_t)i] == 0xA5) continue;
        snprintf(k->complaint, sizeof(k->complaint), "a write outside of room %u", room);
        return false;
    }
    if (r->want) {
        if (!kernel_fixture_has_wanted(k, room)) return false;
    } else if (memcmp(r->p, r->before, r->n_bytes)) {
        snprintf(k->complaint, sizeof(k->complaint), "room %u has been written", room);
        return false;
    }
    if (is_first) memcpy(r->first, r->p, r->n_bytes);
    if (memcmp(r->p, r->first, r->n_bytes)) {
        snprintf(k->complaint, sizeof(k->complaint), "room %u has other bits this time", room);
        return false;
    }
    return true;
}

/* Is the kernel right under every schedule? If not, `complaint` has the first error. Leaves the
 * rooms as they were. */
static inline bool kernel_fixture_passes(struct kernel_fixture *k, void (*run)(const void *args),
                                         const void *args) {
    bool is_right = true;

    for (unsigned i = 0; i < k->n_rooms; i++)
        memcpy(k->room[i].before, k->room[i].p, k->room[i].n_bytes);
    for (unsigned turn = 0; turn < 2 * KERNEL_FIXTURE_SEEDS && is_right; turn++) {
        shim_set(turn / 2 + 1, turn % 2 ? SHIM_COPIES_EARLY : SHIM_COPIES_LATE);
        run(args);
        for (unsigned i = 0; i < k->n_rooms && is_right; i++)
            is_right = fixture_room_matches(k, i, turn == 0);
        for (unsigned i = 0; i < k->n_rooms; i++)
            memcpy(k->room[i].p, k->room[i].before, k->room[i].n_bytes);
    }
    return is_right;
}

#define kernel_fixture_check(k, run, args)                                                         \
    do {                                                                                           \
        if (!kernel_fixture_passes(k, run, args)) fail_msg("%s", (k)->complaint);                  \
    } while (0)

/* Is the kernel, made wrong in the place that it calls `plant`, found to be? */
static inline bool kernel_fixture_catches(struct kernel_fixture *k, const char *plant,
                                          void (*run)(const void *args), const void *args) {
    bool is_right;

    shim_plant(plant);
    is_right = kernel_fixture_passes(k, run, args);
    shim_plant(NULL);
    return !is_right;
}

#endif
