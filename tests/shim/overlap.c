/* tests/shim/overlap.c - a kernel that begins before the one before it on the stream has ended.
 *
 * On a device since sm_90 the blocks of such a kernel run up to simt_wait_for_primary while the
 * kernel before, the primary, still writes. The shim runs kernels one after the other, so of some
 * pairs (shim_control.h) the device's memory is noted before the primary runs and compared
 * afterwards. What differs is the *veil*: each block of the second kernel runs up to its wait with
 * 0xFF there, NaN in every type, and goes on with what was there.
 *
 *      note ─▶ primary ─▶ compare: veil ─▶ block: cover ─▶ ... wait ─▶ lift ─▶ ... end, next block
 *
 * Before its wait a kernel must not write, either: what the primary still reads could lie there.
 * The first block is compared byte by byte, of others what lies under the veil.
 *
 * Under the devices' one lock. LIMIT: pinned memory is not veiled. */
#include <string.h>

#include "common/base/mem.h"
#include "tests/shim/gpu_shim_internal.h"
#include "tests/shim/internal.h"

enum { VEIL = 0xFF, STRIDE = 64 };

struct hidden {
    unsigned char *at;
    uint64_t n_bytes;
};
struct shim_veil {
    const struct memory *memory;
    unsigned char *noted; /* all allocations, one after the other */
    uint64_t noted_bytes;
    struct hidden *hidden;
    uint32_t n_hidden, n_places;
    unsigned char *saved; /* what lies under the veil */
    uint64_t n_saved, saved_bytes;
    bool is_first; /* block */
};
static struct shim_veil veil_;

static void note(struct shim_veil *v) {
    const struct memory_range *r = NULL;
    unsigned char *start, *to = v->noted;
    uint64_t n;

    while ((r = memory_next(v->memory, r, &start, &n))) {
        memcpy(to, start, n);
        to += n;
    }
}

void shim_veil_before(struct gpu *gpu) {
    struct shim_veil *v = &veil_;

    v->memory = &gpu->memory;
    if (v->noted_bytes < gpu->memory.used) {
        mem_free(v->noted);
        v->noted_bytes = gpu->memory.used;
        v->noted = mem_alloc(v->noted_bytes);
    }
    note(v);
}

static void hide(struct shim_veil *v, unsigned char *at) {
    struct hidden *last = v->n_hidden ? &v->hidden[v->n_hidden - 1] : NULL;

    v->n_saved++;
    if (last && last->at + last->n_bytes == at) {
        last->n_bytes++;
        return;
    }
    if (v->n_hidden == v->n_places) {
        struct hidden *more;

        v->n_places = v->n_places ? 2 * v->n_places : 256;
        more = mem_calloc(v->n_places, sizeof(*more));
        if (v->n_hidden) memcpy(more, v->hidden, v->n_hidden * sizeof(*more));
        mem_free(v->hidden);
        v->hidden = more;
    }
    v->hidden[v->n_hidden++] = (struct hidden){at, 1};
}

struct shim_veil *shim_veil_after(void) {
    struct shim_veil *v = &veil_;
    const struct memory_range *r = NULL;
    unsigned char *start, *noted = v->noted;
    uint64_t n;

    v->n_hidden = 0;
    v->n_saved = 0;
    v->is_first = true;
    while ((r = memory_next(v->memory, r, &start, &n))) {
        for (uint64_t i = 0; i < n; i += STRIDE) {
            if (!memcmp(noted + i, start + i, MIN(STRIDE, n - i))) continue;
            for (uint64_t j = i; j < MIN(i + STRIDE, n); j++)
                if (noted[j] != start[j]) hide(v, start + j);
        }
        noted += n;
    }
    if (v->saved_bytes < v->n_saved) {
        mem_free(v->saved);
        v->saved_bytes = v->n_saved;
        v->saved = mem_alloc(v->saved_bytes);
    }
    return v;
}

void shim_veil_cover(struct shim_veil *v) {
    unsigned char *to = v->saved;

    for (uint32_t i = 0; i < v->n_hidden; i++) {
        memcpy(to, v->hidden[i].at, v->hidden[i].n_bytes);
        memset(v->hidden[i].at, VEIL, v->hidden[i].n_bytes);
        to += v->hidden[i].n_bytes;
    }
    if (v->is_first) note(v);
}

/* Has all memory the bytes that were noted? */
static bool is_as_noted(const struct shim_veil *v) {
    const struct memory_range *r = NULL;
    unsigned char *start, *noted = v->noted;
    uint64_t n;

    while ((r = memory_next(v->memory, r, &start, &n))) {
        if (memcmp(noted, start, n)) return false;
        noted += n;
    }
    return true;
}
static bool is_covered(const struct hidden *h) {
    for (uint64_t i = 0; i < h->n_bytes; i++)
        if (h->at[i] != VEIL) return false;
    return true;
}

const char *shim_veil_lift(struct shim_veil *v) {
    const unsigned char *from = v->saved;

    if (v->is_first && !is_as_noted(v)) return "written to global memory";
    v->is_first = false;
    for (uint32_t i = 0; i < v->n_hidden; i++) {
        if (!is_covered(&v->hidden[i])) return "written what the kernel before it has written";
        memcpy(v->hidden[i].at, from, v->hidden[i].n_bytes);
        from += v->hidden[i].n_bytes;
    }
    return NULL;
}
