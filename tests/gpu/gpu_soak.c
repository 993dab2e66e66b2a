/* tests/gpu/gpu_soak.c - random schedules through the step interface, on the device and on the CPU.
 *
 *      gpu_soak [SECONDS [SEED]]
 *
 * The same steps go to both backends, with the same random weights: rows come and go, prompts enter
 * in chunks of any size beside rows that decode, rows fork and copy the block they share, blocks
 * are swapped out and come back elsewhere, one step is submitted before the one before it was read.
 * Most outputs score a token drawn beforehand, which is then fed back on the device, so that both
 * sides go on with the same text whatever their roundings. Logprobs, of alternatives and greedy
 * choices too, must agree within TOLERANCE, and within TYPICAL on the whole. At the end of each
 * episode the keys and values of every block in use are compared.
 *
 * An episode is 200 steps; every third is deterministic. Four kinds take turns: bf16, e4m3
 * matrices, int4 matrices with an e4m3 cache, an int8 cache. A line now and then, and a last one of
 * JSON. Exit code 1 on the first difference, which names the episode: its number is its seed. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "kernels/kv_layout.h"
#include "kernels/quant.h"
#include "tests/gpu/random_model.h"

#define BLOCK         16u
#define MAX_ROWS      6u
#define MAX_CONTEXT   160u
#define MAX_TOKENS    48u
#define N_BLOCKS      96u
#define N_HOST        24u
#define EPISODE_STEPS 200u
#define TOLERANCE     0.12 /* of a logprob: bf16 activations through two layers, at their worst */
#define MOVED         0.02 /* of a block's K and V, by their root mean square */
#define TYPICAL       0.02 /* root of their mean square over an episode: a mistake moves them all */
#define QUANTISED     2.0  /* times as much: bf16 that differ may become other codes */
#define TOP           4u

static const struct {
    enum dtype matrices, kv;
} kinds[] = {{DTYPE_BF16, DTYPE_BF16},
             {DTYPE_F8E4M3, DTYPE_BF16},
             {DTYPE_U4, DTYPE_F8E4M3},
             {DTYPE_BF16, DTYPE_I8}};

extern const struct backend_ops backend_cuda;

struct row {
    bool is_bound, is_out; /* out: its blocks are on the host */
    uint32_t n_done, n_prompt, n_wanted;
    uint32_t token[MAX_CONTEXT];
    uint32_t block[MAX_CONTEXT / BLOCK]; /* on the device, or on the host */
    bool is_sent[MAX_CONTEXT / BLOCK];   /* is in the device's table */
};

/* What one output must be like, on both sides. */
struct expected {
    uint32_t n;
    struct backend_output output[MAX_ROWS];
};

struct soak {
    struct random_model device, oracle;
    struct rng rng;
    struct row row[MAX_ROWS];
    uint8_t used[N_BLOCKS]; /* by so many rows; block 0 always */
    bool used_host[N_HOST];
    uint64_t seed, n_steps, n_outputs;
    double worst, sum_squares, bounds; /* bounds: times TOLERANCE, TYPICAL and MOVED */
    uint64_t n_compared;
};

static NORETURN void differ(const struct soak *s, const char *what, double got, double want) {
    printf("episode %llu, step %llu: %s: device %.6g, oracle %.6g\n", (unsigned long long)s->seed,
           (unsigned long long)s->n_steps, what, got, want);
    exit(1);
}

static uint32_t draw(struct soak *s, uint32_t n) {
    return (uint32_t)rng_below(&s->rng, n);
}

/* --- both sides ------------------------------------------------------------------------------- */

static void both(struct soak *s, const char *what, enum status device, enum status oracle) {
    if (device != ST_OK || oracle != ST_OK) differ(s, what, device, oracle);
}

static void settle(struct soak *s, const char *what, backend_fence device, backend_fence oracle) {
    both(s, what, s->device.ops->wait(s->device.dev, device, UINT64_C(60000000)),
         s->oracle.ops->wait(s->oracle.dev, oracle, UINT64_C(60000000)));
}

typedef enum status move_fn(struct backend_model *m, const struct backend_copy *pairs, uint32_t n,
                            backend_fence *out);

static void move(struct soak *s, const char *what, move_fn *device, move_fn *oracle,
                 const struct backend_copy *pairs, uint32_t n) {
    backend_fence a = 0, b = 0;

    if (n == 0) return;
    both(s, what, device(s->device.model, pairs, n, &a), oracle(s->oracle.model, pairs, n, &b));
    if (draw(s, 2)) settle(s, what, a, b); /* else the next step has to */
}

/* --- rows and blocks -------------------------------------------------------------------------- */

static uint32_t take_block(struct soak *s) {
    uint32_t at = draw(s, N_BLOCKS);

    for (uint32_t i = 0; i < N_BLOCKS; i++) {
        uint32_t block = (at + i) % N_BLOCKS;

        if (block == 0 || s->used[block]) continue;
        s->used[block] = 1;
        return block;
    }
    return 0;
}

static uint32_t n_blocks_of(const struct row *r) {
    return CEIL_DIV(r->n_done, BLOCK);
}

static void end_row(struct soak *s, uint32_t at) {
    struct row *r = &s->row[at];

    for (uint32_t i = 0; i < n_blocks_of(r); i++) {
        if (r->is_out)
            s->used_host[r->block[i]] = false;
        else
            s->used[r->block[i]]--;
    }
    s->device.ops->row_free(s->device.model, at);
    s->oracle.ops->row_free(s->oracle.model, at);
    memset(r, 0, sizeof(*r));
}

static void begin_row(struct soak *s, uint32_t at) {
    struct row *r = &s->row[at];

    memset(r, 0, sizeof(*r));
    r->is_bound = true;
    r->n_prompt = 1 + draw(s, MAX_CONTEXT / 2);
    r->n_wanted = r->n_prompt + 1 + draw(s, 40);
    for (uint32_t i = 0; i < MAX_CONTEXT; i++)
        r->token[i] = draw(s, s->device.shape->vocab);
    both(s, "row_bind",
         s->device.ops->row_bind(s->device.model, at, r->token, r->n_prompt, NULL, 0),
         s->oracle.ops->row_bind(s->oracle.model, at, r->token, r->n_prompt, NULL, 0));
}

/* A second row with the same beginning: whole blocks are shared, the last one is copied. */
static void fork_row(struct soak *s, uint32_t from, uint32_t to) {
    struct row *a = &s->row[from], *b = &s->row[to];
    uint32_t n_whole = a->n_done / BLOCK;
    struct backend_copy pair;

    if (a->is_out || a->n_done < a->n_prompt) return;
    begin_row(s, to);
    memcpy(b->token, a->token, a->n_done * sizeof(*b->token));
    b->n_done = b->n_prompt = a->n_done;
    b->n_wanted = a->n_done + 1 + draw(s, 20);
    b->n_wanted = MIN(b->n_wanted, MAX_CONTEXT - 1);
    both(s, "row_bind",
         s->device.ops->row_bind(s->device.model, to, b->token, b->n_prompt, NULL, 0),
         s->oracle.ops->row_bind(s->oracle.model, to, b->token, b->n_prompt, NULL, 0));
    memcpy(b->block, a->block, sizeof(b->block));
    for (uint32_t i = 0; i < n_whole; i++)
        s->used[b->block[i]]++;
    if (a->n_done % BLOCK == 0) return;
    pair = (struct backend_copy){a->block[n_whole], take_block(s)};
    if (!pair.dst) {
        b->n_done = n_whole * BLOCK;
        end_row(s, to);
        return;
    }
    b->block[n_whole] = pair.dst;
    move(s, "kv_copy", s->device.ops->kv_copy, s->oracle.ops->kv_copy, &pair, 1);
}

static bool is_alone(const struct soak *s, const struct row *r) {
    for (uint32_t i = 0; i < n_blocks_of(r); i++)
        if (s->used[r->block[i]] != 1) return false;
    return true;
}

static void swap_out(struct soak *s, struct row *r) {
    struct backend_copy pairs[MAX_CONTEXT / BLOCK];
    uint32_t n = n_blocks_of(r), n_found = 0;

    for (uint32_t i = 0; i < N_HOST && n_found < n; i++)
        if (!s->used_host[i]) pairs[n_found++].dst = i;
    if (n == 0 || n_found < n || !is_alone(s, r)) return;
    for (uint32_t i = 0; i < n; i++) {
        pairs[i].src = r->block[i];
        s->used[r->block[i]] = 0;
        s->used_host[pairs[i].dst] = true;
        r->block[i] = pairs[i].dst;
    }
    r->is_out = true;
    move(s, "kv_swap_out", s->device.ops->kv_swap_out, s->oracle.ops->kv_swap_out, pairs, n);
}

static void swap_in(struct soak *s, struct row *r) {
    struct backend_copy pairs[MAX_CONTEXT / BLOCK];
    uint32_t n = n_blocks_of(r), n_free = 0;

    for (uint32_t i = 1; i < N_BLOCKS; i++)
        n_free += s->used[i] == 0;
    if (n_free < n) return;
    for (uint32_t i = 0; i < n; i++) {
        pairs[i] = (struct backend_copy){r->block[i], take_block(s)};
        s->used_host[r->block[i]] = false;
        r->block[i] = pairs[i].dst;
    }
    r->is_out = false;
    memset(r->is_sent, 0, sizeof(r->is_sent));
    move(s, "kv_swap_in", s->device.ops->kv_swap_in, s->oracle.ops->kv_swap_in, pairs, n);
}

static void disturb(struct soak *s) {
    for (uint32_t i = 0; i < MAX_ROWS; i++) {
        struct row *r = &s->row[i];

        if (!r->is_bound) {
            if (draw(s, 3) == 0)
                begin_row(s, i);
            else if (draw(s, 4) == 0 && s->row[(i + 1) % MAX_ROWS].is_bound)
                fork_row(s, (i + 1) % MAX_ROWS, i);
        } else if (r->n_done >= r->n_wanted || draw(s, 60) == 0) {
            end_row(s, i);
        } else if (r->is_out) {
            if (draw(s, 3) == 0) swap_in(s, r);
        } else if (draw(s, 12) == 0) {
            swap_out(s, r);
        }
    }
}

/* --- a step ----------------------------------------------------------------------------------- */

/* Blocks for n more tokens; false: none are left. */
static bool grow(struct soak *s, struct row *r, uint32_t n) {
    for (uint32_t i = n_blocks_of(r); i < CEIL_DIV(r->n_done + n, BLOCK); i++) {
        uint32_t block = take_block(s);

        if (block) {
            r->block[i] = block;
            r->is_sent[i] = false;
            continue;
        }
        for (uint32_t j = n_blocks_of(r); j < i; j++)
            s->used[r->block[j]] = 0;
        return false;
    }
    return true;
}

/* The last block of a row that grows is its own: forks have copied it. */
static void put_row(struct soak *s, struct backend_stage *g, struct backend_step *step, uint32_t at,
                    uint32_t n, const int32_t *feedback) {
    struct row *r = &s->row[at];
    uint32_t end = r->n_done + n;

    for (uint32_t i = 0; i < CEIL_DIV(end, BLOCK); i++) {
        if (r->is_sent[i]) continue;
        r->is_sent[i] = true;
        g->update[step->n_updates++] = (struct backend_table_update){at, i, r->block[i]};
    }
    g->row[step->n_rows++] = (struct backend_row){at, step->n_tokens, n, end};
    for (uint32_t position = r->n_done; position < end; position++) {
        uint32_t t = step->n_tokens++;

        g->token[t] = (int32_t)r->token[position];
        if (n == 1 && feedback && feedback[at] >= 0) g->token[t] = -1 - feedback[at];
        g->position[t] = position;
        g->kv_slot[t] = (int64_t)r->block[position / BLOCK] * BLOCK + position % BLOCK;
    }
    r->n_done = end;
}

/* Scores what the row will be fed next, or, when it is not fed back, samples greedily. */
static void put_output(struct soak *s, struct backend_stage *g, struct backend_step *step,
                       uint32_t at) {
    struct row *r = &s->row[at];
    bool is_scored = draw(s, 4) != 0;

    g->output[step->n_outputs++] =
        (struct backend_output){.row = at,
                                .token_index = step->n_tokens - 1,
                                .want = is_scored ? WANT_SCORE : WANT_SAMPLE,
                                .score_token = is_scored ? r->token[r->n_done] : 0,
                                .position = r->n_done,
                                .seed = s->seed,
                                .top_p = 1,
                                .repetition_penalty = 1,
                                .n_logprobs = draw(s, TOP + 1),
                                .mask = BACKEND_NO_MASK};
}

/* Fills both stages of `slot` alike. feedback: the output that scored a row's next token in the
 * step before, or -1. Stores in `scored` which output does so now. */
static void build(struct soak *s, uint32_t slot, struct backend_step *step, const int32_t *feedback,
                  int32_t *scored) {
    struct backend_stage *g = &s->device.stage[slot], *o = &s->oracle.stage[slot];
    uint32_t n[MAX_ROWS] = {0}, total = 0;

    for (uint32_t i = 0; i < MAX_ROWS; i++) {
        struct row *r = &s->row[i];
        uint32_t left;

        scored[i] = -1;
        if (!r->is_bound || r->is_out || r->n_done >= r->n_wanted || draw(s, 8) == 0) continue;
        left = r->n_done < r->n_prompt ? r->n_prompt - r->n_done : 1;
        left = 1 + draw(s, left);
        n[i] = MIN(left, MAX_TOKENS - total);
        if (n[i] && !grow(s, r, n[i])) n[i] = 0;
        total += n[i];
    }
    for (uint32_t pass = 0; pass < 2; pass++) /* rows of one token come first */
        for (uint32_t i = 0; i < MAX_ROWS; i++) {
            if (n[i] == 0 || (n[i] == 1) != (pass == 0)) continue;
            put_row(s, g, step, i, n[i], feedback);
            if (s->row[i].n_done < s->row[i].n_prompt && draw(s, 3)) continue;
            put_output(s, g, step, i);
            if (g->output[step->n_outputs - 1].want == WANT_SCORE)
                scored[i] = (int32_t)step->n_outputs - 1;
        }
    memcpy(o->token, g->token, step->n_tokens * sizeof(*o->token));
    memcpy(o->position, g->position, step->n_tokens * sizeof(*o->position));
    memcpy(o->kv_slot, g->kv_slot, step->n_tokens * sizeof(*o->kv_slot));
    memcpy(o->row, g->row, step->n_rows * sizeof(*o->row));
    memcpy(o->update, g->update, step->n_updates * sizeof(*o->update));
    memcpy(o->output, g->output, step->n_outputs * sizeof(*o->output));
}

static void near(struct soak *s, const char *what, double got, double want) {
    double off = fabs(got - want);

    if (!(off <= TOLERANCE * s->bounds)) differ(s, what, got, want);
    s->worst = MAX(s->worst, off);
    s->sum_squares += off * off;
    s->n_compared++;
}

static void compare_output(struct soak *s, const struct backend_output *want, uint32_t slot,
                           uint32_t i) {
    const struct backend_stage *g = &s->device.stage[slot], *o = &s->oracle.stage[slot];

    if (g->out_flags[i] || o->out_flags[i]) differ(s, "flags", g->out_flags[i], o->out_flags[i]);
    near(s, "logprob", (double)g->out_logprob[i], (double)o->out_logprob[i]);
    if (want->want == WANT_SCORE && g->out_token[i] != o->out_token[i])
        differ(s, "scored token", g->out_token[i], o->out_token[i]);
    for (uint32_t j = 0; j < want->n_logprobs; j++)
        near(s, "alternative", (double)g->out_top_logprob[i * TOP + j],
             (double)o->out_top_logprob[i * TOP + j]);
    s->n_outputs++;
}

struct flight {
    backend_fence device, oracle;
    struct expected expected;
    bool is_up;
};

static void launch(struct soak *s, uint32_t slot, struct flight *f, const int32_t *feedback,
                   int32_t *scored) {
    struct backend_step step = {0};
    struct error err;
    enum status device, oracle;

    build(s, slot, &step, feedback, scored);
    f->is_up = step.n_tokens > 0;
    if (!f->is_up) return;
    f->expected.n = step.n_outputs;
    memcpy(f->expected.output, s->device.stage[slot].output,
           step.n_outputs * sizeof(*f->expected.output));
    device = s->device.ops->submit(s->device.model, slot, &step, &f->device, &err);
    if (device != ST_OK) random_fail("submit on the device", device, &err);
    oracle = s->oracle.ops->submit(s->oracle.model, slot, &step, &f->oracle, &err);
    if (oracle != ST_OK) random_fail("submit on the oracle", oracle, &err);
    s->n_steps++;
}

static void land(struct soak *s, uint32_t slot, struct flight *f) {
    if (!f->is_up) return;
    settle(s, "wait", f->device, f->oracle);
    for (uint32_t i = 0; i < f->expected.n; i++)
        compare_output(s, &f->expected.output[i], slot, i);
    f->is_up = false;
}

/* --- an episode ------------------------------------------------------------------------------- */

/* Element e of a block: its code, times its vector's scale. */
static double element(const struct geometry *g, const uint8_t *block, uint64_t e) {
    uint64_t vector = e / g->head_dim;
    uint64_t head = vector / BLOCK % g->n_kv_heads, which = vector / BLOCK / g->n_kv_heads % 2;
    uint64_t layer = vector / BLOCK / g->n_kv_heads / 2;

    if (!kv_scale_bytes(g->kv_dtype)) return (double)dtype_get(DTYPE_BF16, block, e);
    return ldexp((double)quant_code(g->kv_dtype, block, e),
                 block[kv_scales_at(g, BLOCK, (uint32_t)layer, (uint32_t)which, (uint32_t)head) +
                       vector % BLOCK] -
                     127);
}

static void compare_block(struct soak *s, const uint8_t *a, const uint8_t *b) {
    const struct random_shape *shape = s->device.shape;
    struct geometry g = {.n_layers = shape->n_layers,
                         .n_kv_heads = shape->n_kv_heads,
                         .head_dim = shape->head_dim,
                         .kv_dtype = s->device.kv_dtype};
    uint64_t n = kv_tiles_bytes(&g, BLOCK) / dtype_bytes(g.kv_dtype);
    double off = 0, size = 0;

    for (uint64_t e = 0; e < n; e++) {
        double x = element(&g, a, e), y = element(&g, b, e);

        off += (x - y) * (x - y);
        size += y * y;
    }
    if (!(sqrt(off) <= MOVED * s->bounds * sqrt(size))) differ(s, "a block's K and V", off, size);
}

static void compare_pool(struct soak *s) {
    uint64_t n_bytes = s->device.kv.block_bytes;
    uint8_t *a = mem_alloc(n_bytes), *b = mem_alloc(n_bytes);

    for (uint32_t row = 0; row < MAX_ROWS; row++) {
        const struct row *r = &s->row[row];

        if (!r->is_bound || r->is_out) continue;
        for (uint32_t i = 0; i < r->n_done / BLOCK; i++) {
            both(s, "kv_read", s->device.ops->kv_read(s->device.model, r->block[i], a, n_bytes),
                 s->oracle.ops->kv_read(s->oracle.model, r->block[i], b, n_bytes));
            compare_block(s, a, b);
        }
    }
    mem_free(a);
    mem_free(b);
}

static void run_episode(uint64_t seed, const char *shape, uint64_t *n_steps, uint64_t *n_outputs,
                        double *worst) {
    struct random_limits limits = {.max_rows = MAX_ROWS,
                                   .max_step_tokens = MAX_TOKENS,
                                   .max_context = MAX_CONTEXT,
                                   .n_blocks = N_BLOCKS,
                                   .n_host_blocks = N_HOST,
                                   .is_deterministic = seed % 3 == 0,
                                   .matrices = kinds[seed % ARRAY_LEN(kinds)].matrices,
                                   .kv = kinds[seed % ARRAY_LEN(kinds)].kv};
    struct soak *s = mem_zalloc(sizeof(*s));
    int32_t feedback[2][MAX_ROWS];
    struct flight flight[2] = {{.is_up = false}};
    double typical;

    s->seed = seed;
    s->bounds = limits.kv == DTYPE_BF16 ? 1 : QUANTISED;
    s->used[0] = 1;
    rng_seed(&s->rng, seed);
    random_model_open(&s->device, &backend_cuda, random_shape_find(shape), &limits, seed);
    random_model_open(&s->oracle, &backend_cpu, random_shape_find(shape), &limits, seed);
    for (uint32_t i = 0; i < MAX_ROWS; i++)
        feedback[0][i] = feedback[1][i] = -1;
    for (uint32_t i = 0; i < EPISODE_STEPS; i++) {
        uint32_t slot = i % 2;
        bool is_quiet = flight[1 - slot].is_up && draw(s, 2);

        land(s, slot, &flight[slot]);
        if (!is_quiet) {
            land(s, 1 - slot, &flight[1 - slot]);
            disturb(s);
        }
        launch(s, slot, &flight[slot], is_quiet ? feedback[1 - slot] : NULL, feedback[slot]);
    }
    land(s, 0, &flight[0]);
    land(s, 1, &flight[1]);
    compare_pool(s);
    typical = sqrt(s->sum_squares / (double)MAX(s->n_compared, 1));
    if (typical > TYPICAL * s->bounds)
        differ(s, "the root mean square of all differences", typical, TYPICAL * s->bounds);
    *n_steps += s->n_steps;
    *n_outputs += s->n_outputs;
    *worst = MAX(*worst, s->worst);
    random_model_close(&s->device);
    random_model_close(&s->oracle);
    mem_free(s);
}

int main(int argc, char **argv) {
    double end_s = clock_s() + (argc > 1 ? strtod(argv[1], NULL) : 480), worst = 0;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1, n_episodes = 0, n_steps = 0,
             n_outputs = 0;

    setvbuf(stdout, NULL, _IOLBF, 0);
    do {
        run_episode(seed + n_episodes, "tiny", &n_steps, &n_outputs, &worst);
        n_episodes++;
        if (n_episodes % 20 == 1)
            printf("episode %llu: %llu steps, %llu outputs, worst logprob off by %.4f\n",
                   (unsigned long long)n_episodes, (unsigned long long)n_steps,
                   (unsigned long long)n_outputs, worst);
    } while (clock_s() < end_s);
    printf("{\"row\":\"soak\",\"episodes\":%llu,\"steps\":%llu,\"outputs\":%llu,\"worst\":%.5f}\n",
           (unsigned long long)n_episodes, (unsigned long long)n_steps,
           (unsigned long long)n_outputs, worst);
    return 0;
}
