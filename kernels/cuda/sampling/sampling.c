/* kernels/cuda/sampling/sampling.c - see sampling.h: which passes run, and where their arrays
 * lie. */
#include "kernels/cuda/sampling/sampling.h"

#include <assert.h>

#include "kernels/cuda/sampling/sampling_internal.h"

#define MAX_ROW_SEGMENTS 8u /* the last block of a row adds them all: 24 KiB each */
#define ALIGNMENT        256u

/* Blocks that make the histogram of one row, for grids of n outputs. */
static uint32_t row_segments(uint32_t n_outputs, uint32_t n_tiles) {
    uint32_t n = MIN(SAMPLING_SEGMENTS / MAX(n_outputs, 1u), MAX_ROW_SEGMENTS);

    return MAX(MIN(n, n_tiles), 1u);
}

/* The most that row_segments needs, over all grids of up to n outputs. */
static uint64_t max_segments(uint32_t n_outputs) {
    return MAX(n_outputs, MIN((uint64_t)n_outputs * MAX_ROW_SEGMENTS, SAMPLING_SEGMENTS));
}

/* The next n_bytes of the scratch at *at; base may be NULL when only the size matters. */
static void *take(char *base, uint64_t *at, uint64_t n_bytes) {
    void *p = base ? base + *at : NULL;

    *at += ALIGN_UP(n_bytes, ALIGNMENT);
    return p;
}

uint64_t sampling_lay_out(struct sampling_pass *p, uint32_t max_outputs, uint32_t vocab,
                          void *scratch) {
    uint64_t at = 0, n = max_outputs, segments = max_segments(max_outputs);

    p->n_tiles = CEIL_DIV(vocab, SAMPLING_TILE);
    p->adjusted_stride = ALIGN_UP((uint64_t)vocab, 64u);
    p->n_finished = take(scratch, &at, sizeof(*p->n_finished));
    p->state = take(scratch, &at, n * sizeof(*p->state));
    p->tile = take(scratch, &at, n * p->n_tiles * sizeof(*p->tile));
    p->adjusted = take(scratch, &at, n * p->adjusted_stride * sizeof(float));
    p->bin_mass = take(scratch, &at, segments * SAMPLING_SELECTIONS * SAMPLING_BINS * 8);
    p->bin_count = take(scratch, &at, segments * SAMPLING_SELECTIONS * SAMPLING_BINS * 4);
    p->gathered = take(scratch, &at, n * SAMPLING_SELECTIONS * SAMPLING_GATHER * 8);
    return at;
}

uint64_t sampling_scratch_bytes(uint32_t max_outputs, uint32_t vocab) {
    struct sampling_pass p;

    return sampling_lay_out(&p, max_outputs, vocab, NULL);
}

static bool has_penalty(const struct backend_output *o) {
    return (o->repetition_penalty > 0 && o->repetition_penalty != 1) || o->frequency_penalty != 0 ||
           o->presence_penalty != 0;
}

uint32_t sampling_needs(const struct backend_output *output, uint32_t n_outputs, uint32_t n_bias) {
    uint32_t needs = n_bias ? SAMPLING_ADJUST | SAMPLING_RANK : 0;

    for (uint32_t i = 0; i < n_outputs; i++) {
        const struct backend_output *o = &output[i];

        if (o->n_logprobs) needs |= SAMPLING_TOP;
        if (o->want == WANT_SCORE) continue;
        if (has_penalty(o)) needs |= SAMPLING_COUNT | SAMPLING_ADJUST | SAMPLING_RANK;
        if (o->mask != BACKEND_NO_MASK) needs |= SAMPLING_ADJUST | SAMPLING_RANK;
        if (!(o->temperature > 0)) continue;
        needs |= SAMPLING_DRAW | SAMPLING_RANK;
        if (o->top_k || o->top_p < 1) needs |= SAMPLING_FILTER;
    }
    return needs;
}

void sampling_launch(struct gpu_stream *stream, const struct sampling_args *args, uint32_t needs) {
    struct sampling_pass p = {.a = *args, .needs = needs};

    assert(args->n_bucket <= args->max_outputs && args->vocab <= SAMPLING_MAX_VOCAB &&
           args->max_logprobs <= SAMPLING_MAX_TOP);
    if (args->n_bucket == 0) return;
    sampling_lay_out(&p, args->max_outputs, args->vocab, args->scratch);
    p.n_segments = row_segments(args->n_bucket, p.n_tiles);

    sampling_survey(stream, &p);
    if (needs & SAMPLING_COUNT) sampling_count(stream, &p);
    if (needs & SAMPLING_ADJUST) sampling_adjust(stream, &p);
    if (needs & (SAMPLING_FILTER | SAMPLING_TOP)) {
        sampling_histogram(stream, &p);
        sampling_gather(stream, &p);
        sampling_search(stream, &p);
    }
    if (needs & SAMPLING_DRAW) sampling_draw(stream, &p);
    if (needs & SAMPLING_RANK) sampling_rank(stream, &p);
}
