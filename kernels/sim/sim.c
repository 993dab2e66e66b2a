/* kernels/sim/sim.c - the simulated backend: real steps, no arithmetic.
 *
 * Scheduler, KV manager and HTTP do all of their work; only the device is played, by a clock. A
 * step is finished when the modelled device would have finished it:
 *
 *      step = base + per_row * rows + per_context * tokens of context of the decoding rows
 *           + sum over prompt tokens of (1 + position / attn_context) / prefill_rate
 *
 * Steps run one after another: a step submitted while another is under way starts at its end.
 * Masks that are late delay nothing but the end of a step that would have ended before them. Time
 * is the real clock times sim_speed, and waiting is sleeping, so that hundreds of workers share two
 * cores.
 *
 * Instead of K and V a slot holds a digest of all tokens up to its own, eight bytes; a host block
 * begins with those of its slots and has zeros behind them. They move as KV would, through host
 * memory and what lies below it, and a row that meets another prefix than its own has outputs that
 * are not finite.
 *
 * The clock is read here, as an engine would ask a device. Thread: the engine's.
 *
 * LIMITS. Penalties, biases and filters do not change the text; a mask does (the next allowed token
 * is written). Logprobs are made up, and fixed by the same key as the text. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "kernels/host/host.h"
#include "kernels/sim/sim_text.h"

#define N_FENCES 64 /* remembered end times; older fences are done */

/* Llama-3-8B on an H200, fitted: 16 GB of weights, 128 KB of KV a token. */
struct sim_profile {
    const char *name;
    double base_us, row_us, context_us, prefill_us, attn_context;
    double copy_bytes_per_us, swap_bytes_per_us; /* within the device, over the host's link; 0: at
                                                  * once */
};
static const struct sim_profile profiles[] = {
    {"h200-8b", 6000, 20, 0.027, 50, 30000, 2e6, 50e3}, /* the default */
    {"instant", 0, 0, 0, 0, 30000, 0, 0},               /* for tests of everything but time */
};

struct backend_device {
    struct host_device host; /* first */
    const struct sim_profile *profile;
    double speed;
    uint64_t end_us[N_FENCES]; /* when fence f is done, at f % N_FENCES */
    backend_fence seen;        /* newest fence that the engine knows to be done */
    bool is_watched;           /* the timer was requested, and no wait has followed */
    int timer;                 /* readable when the oldest unfinished fence is done */
};

/* What a row has computed. */
struct sim_row {
    uint32_t n;           /* tokens; 0 after row_bind */
    uint64_t digest;      /* of these */
    uint64_t last_digest; /* of these before this step */
    bool is_new;          /* in this step it did not go on where it was */
    bool is_moved;        /* in this step it goes on in other blocks, whose tokens it has not got */
    bool is_wrong;        /* it has met another prefix */
};

struct backend_model {
    struct host_model host; /* first */
    uint64_t *key;          /* (max_rows) of the request in the row */
    uint64_t *digest;       /* (n_blocks, block_size) */
    struct sim_row *rows;   /* (max_rows) */
    double step_us[2];      /* of the step submitted last in each slot */
};

/* --- the device ------------------------------------------------------------------------------ */

static enum status find_profile(const struct sim_profile **out, const char *name,
                                struct error *err) {
    char have[128] = "";

    for (size_t i = 0; i < ARRAY_LEN(profiles); i++) {
        size_t used = strlen(have);

        if (!name || strcmp(name, profiles[i].name) == 0 || strcmp(name, "default") == 0) {
            *out = &profiles[i];
            return ST_OK;
        }
        snprintf(have + used, sizeof(have) - used, "%s%s", used ? ", " : "", profiles[i].name);
    }
    return error_set(err, ST_UNSUPPORTED, "no simulated device named %s: there are %s", name, have);
}

static enum status sim_probe(const struct backend_config *config, struct backend_info *info,
                             struct error *err) {
    const struct sim_profile *profile;
    double speed = config->sim_speed == 0 ? 1 : config->sim_speed;
    enum status st = find_profile(&profile, config->sim_profile, err);

    if (st != ST_OK) return st;
    if (!(speed > 0) || !isfinite(speed))
        return error_set(err, ST_INVALID, "sim speed %g: give a number above 0", speed);
    memset(info, 0, sizeof(*info));
    snprintf(info->device, sizeof(info->device), "simulated %s, speed %g", profile->name, speed);
    snprintf(info->path, sizeof(info->path), "sim");
    info->n_threads = 1;
    info->flags = BACKEND_INVARIANT | BACKEND_SYNTHETIC;
    info->memory_total = info->memory_free = (uint64_t)141 << 30;
    info->prefill_tokens_per_s = speed * 1e6 / (profile->prefill_us > 0 ? profile->prefill_us : 1);
    info->attn_context = profile->attn_context;
    return ST_OK;
}

static void sim_close(struct backend_device *dev) {
    if (!dev) return;
    if (dev->timer >= 0) close(dev->timer);
    mem_free(dev);
}

static enum status sim_open(struct backend_device **out, const struct backend_config *config,
                            struct error *err) {
    struct backend_info info;
    struct backend_device *dev;
    enum status st = sim_probe(config, &info, err);

    if (st != ST_OK) return st;
    dev = mem_zalloc(sizeof(*dev));
    dev->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (dev->timer < 0) {
        st = error_set(err, ST_IO, "cannot create a timer: %s", strerror(errno));
        goto fail;
    }
    st = find_profile(&dev->profile, config->sim_profile, err);
    if (st != ST_OK) goto fail;
    dev->speed = config->sim_speed == 0 ? 1 : config->sim_speed;
    dev->host.memory_limit = UINT64_MAX;
    *out = dev;
    return ST_OK;
fail:
    sim_close(dev);
    return st;
}

static void sim_info(struct backend_device *dev, struct backend_info *info) {
    struct backend_config config = {.sim_speed = dev->speed, .sim_profile = dev->profile->name};

    if (sim_probe(&config, info, NULL) != ST_OK) memset(info, 0, sizeof(*info));
}

/* --- fences ---------------------------------------------------------------------------------- */

/* Sets the timer to the oldest fence not yet known to be done; off when there is none. */
static void arm_timer(struct backend_device *dev) {
    struct itimerspec at = {0};

    if (!dev->is_watched) return; /* else a system call per step without a reader */
    if (dev->seen < dev->host.last) {
        uint64_t end_us = dev->end_us[(dev->seen + 1) % N_FENCES];

        at.it_value.tv_sec = (time_t)(end_us / 1000000);
        at.it_value.tv_nsec = (long)(end_us % 1000000 * 1000) + 1; /* 0 would switch it off */
    }
    (void)timerfd_settime(dev->timer, TFD_TIMER_ABSTIME, &at, NULL);
}

/* Of work that could begin at `from_us`. */
static backend_fence add_fence(struct backend_device *dev, uint64_t from_us, double work_us) {
    uint64_t busy_until = dev->end_us[dev->host.last % N_FENCES];
    bool was_idle = dev->seen == dev->host.last;

    dev->host.last++;
    dev->end_us[dev->host.last % N_FENCES] =
        MAX(from_us, busy_until) + (uint64_t)(work_us / dev->speed);
    if (dev->host.last - dev->seen >= N_FENCES) dev->seen = dev->host.last - N_FENCES + 1;
    if (was_idle) arm_timer(dev);
    return dev->host.last;
}

static uint64_t left_us(const struct backend_device *dev, backend_fence f) {
    uint64_t now_us, end_us;

    if (f <= dev->seen) return 0;
    now_us = clock_now_us();
    end_us = dev->end_us[f % N_FENCES];
    return end_us > now_us ? end_us - now_us : 0;
}

static enum status sim_poll(struct backend_device *dev, backend_fence f) {
    backend_fence done = dev->seen;

    if (f > dev->host.last) return ST_INVALID;
    while (done < f && left_us(dev, done + 1) == 0)
        done++;
    if (done > dev->seen) {
        dev->seen = done;
        arm_timer(dev);
    }
    return f <= done ? ST_OK : ST_AGAIN;
}

static enum status sim_wait(struct backend_device *dev, backend_fence f, uint64_t timeout_us) {
    uint64_t start_us = clock_now_us();
    uint64_t give_up_us = start_us + MIN(timeout_us, UINT64_MAX - start_us);

    dev->is_watched = false; /* until it is requested again */
    for (;;) {
        enum status st = sim_poll(dev, f);
        uint64_t now_us, us;
        struct timespec nap;

        if (st != ST_AGAIN) return st;
        now_us = clock_now_us();
        if (now_us >= give_up_us) return ST_TIMEOUT;
        us = MIN(left_us(dev, f), give_up_us - now_us);
        nap = (struct timespec){(time_t)(us / 1000000), (long)(us % 1000000) * 1000};
        (void)nanosleep(&nap, NULL);
    }
}

static int sim_event_fd(struct backend_device *dev) {
    dev->is_watched = true;
    arm_timer(dev);
    return dev->timer;
}

/* --- the model ------------------------------------------------------------------------------- */

static void sim_unload(struct backend_model *m) {
    if (!m) return;
    mem_free(m->key);
    mem_free(m->digest);
    mem_free(m->rows);
    host_fini(&m->host);
    mem_free(m);
}

static enum status check_model(const struct host_model *h, struct error *err) {
    if (h->g.vocab >= SIM_MIN_VOCAB) return ST_OK;
    return error_set(
        err, ST_INVALID,
        "a vocabulary of %u is too small for the sim backend, which writes bytes: use a model "
        "with at least %u tokens",
        h->g.vocab, SIM_MIN_VOCAB);
}

static enum status sim_check(const struct backend_config *config, const struct geometry *g,
                             const struct backend_limits *limits, struct error *err) {
    return host_check(config, g, limits, check_model, err);
}

static enum status sim_load_begin(struct backend_device *dev, struct backend_model **out,
                                  const struct geometry *g, const struct backend_limits *limits,
                                  struct error *err) {
    struct backend_model *m = mem_zalloc(sizeof(*m));
    enum status st = host_init(&m->host, &dev->host, g, limits, true, err);

    if (st == ST_OK) st = check_model(&m->host, err);
    if (st != ST_OK) {
        sim_unload(m);
        return st;
    }
    m->key = mem_calloc(limits->max_rows, sizeof(*m->key));
    m->rows = mem_calloc(limits->max_rows, sizeof(*m->rows));
    *out = m;
    return ST_OK;
}

static enum status sim_load_tensor(struct backend_model *m, const struct backend_tensor *t,
                                   struct error *err) {
    (void)m, (void)t, (void)err; /* welcome, and not wanted */
    return ST_OK;
}

static enum status sim_load_end(struct backend_model *m, struct error *err) {
    (void)m, (void)err;
    return ST_OK;
}

/* Of the slots of a block. */
static uint64_t digest_bytes(const struct host_model *h) {
    return h->limits.block_size * sizeof(uint64_t);
}

static enum status sim_kv_alloc(struct backend_model *m, uint32_t n_blocks, uint32_t n_host_blocks,
                                struct backend_kv_info *out, struct error *err) {
    struct host_model *h = &m->host;
    enum status st;

    if (h->n_blocks) return error_set(err, ST_EXISTS, "the KV pool is already allocated");
    if (n_blocks == 0) return error_set(err, ST_INVALID, "a KV pool of 0 blocks: give at least 1");
    if (digest_bytes(h) > h->block_bytes)
        return error_set(err, ST_UNSUPPORTED, "a block of %llu bytes has no room for digests",
                         (unsigned long long)h->block_bytes);
    st = host_zalloc(h, (void **)&m->digest, n_blocks * digest_bytes(h), "digests", err);
    if (st == ST_OK && h->lent)
        st = host_take_pool(h, n_host_blocks, err);
    else if (st == ST_OK && n_host_blocks)
        st = host_zalloc(h, (void **)&h->host_pool, n_host_blocks * h->block_bytes,
                         "the KV swap space", err);
    if (st != ST_OK) return st;
    h->n_blocks = n_blocks;
    h->n_host_blocks = n_host_blocks;
    *out = (struct backend_kv_info){h->block_bytes, n_blocks, n_host_blocks, h->host_pool};
    return ST_OK;
}

static uint8_t *device_block(const struct backend_model *m, uint32_t block) {
    return (uint8_t *)(m->digest + (uint64_t)block * m->host.limits.block_size);
}

static uint8_t *host_pool_block(const struct backend_model *m, uint32_t block) {
    return m->host.host_pool + block * m->host.block_bytes;
}

static struct backend_device *device_of(const struct backend_model *m) {
    return (struct backend_device *)m->host.dev;
}

typedef uint8_t *sim_place(const struct backend_model *m, uint32_t block);

static enum status move(struct backend_model *m, const struct backend_copy *pairs, uint32_t n,
                        sim_place *src, uint32_t n_src, sim_place *dst, uint32_t n_dst,
                        double bytes_per_us, backend_fence *out) {
    double bytes = (double)n * (double)m->host.block_bytes;

    for (uint32_t i = 0; i < n; i++) {
        if (pairs[i].src >= n_src || pairs[i].dst >= n_dst) return ST_INVALID;
    }
    for (uint32_t i = 0; i < n; i++)
        memmove(dst(m, pairs[i].dst), src(m, pairs[i].src), digest_bytes(&m->host));
    *out = add_fence(device_of(m), clock_now_us(), bytes_per_us > 0 ? bytes / bytes_per_us : 0);
    return ST_OK;
}

static enum status sim_kv_copy(struct backend_model *m, const struct backend_copy *pairs,
                               uint32_t n, backend_fence *out) {
    return move(m, pairs, n, device_block, m->host.n_blocks, device_block, m->host.n_blocks,
                device_of(m)->profile->copy_bytes_per_us, out);
}

static enum status sim_kv_swap_out(struct backend_model *m, const struct backend_copy *pairs,
                                   uint32_t n, backend_fence *out) {
    return move(m, pairs, n, device_block, m->host.n_blocks, host_pool_block, m->host.n_host_blocks,
                device_of(m)->profile->swap_bytes_per_us, out);
}

static enum status sim_kv_swap_in(struct backend_model *m, const struct backend_copy *pairs,
                                  uint32_t n, backend_fence *out) {
    return move(m, pairs, n, host_pool_block, m->host.n_host_blocks, device_block, m->host.n_blocks,
                device_of(m)->profile->swap_bytes_per_us, out);
}

static enum status sim_kv_read(struct backend_model *m, uint32_t block, void *dst,
                               uint64_t n_bytes) {
    (void)m, (void)block, (void)dst, (void)n_bytes;
    return ST_UNSUPPORTED;
}

static enum status sim_kv_write(struct backend_model *m, uint32_t block, const void *src,
                                uint64_t n_bytes) {
    (void)m, (void)block, (void)src, (void)n_bytes;
    return ST_UNSUPPORTED;
}

/* --- steps ----------------------------------------------------------------------------------- */

static enum status sim_row_bind(struct backend_model *m, uint32_t row, const uint32_t *prompt,
                                uint32_t n_prompt, const uint32_t *output, uint32_t n_output) {
    enum status st = host_row_bind(m, row, prompt, n_prompt, output, n_output);

    if (st != ST_OK) return st;
    m->key[row] = sim_text_key(prompt, n_prompt);
    m->rows[row] = (struct sim_row){0};
    return ST_OK;
}

/* --- the prefix ------------------------------------------------------------------------------ */

static uint64_t next_digest(uint64_t digest, uint32_t token) {
    return rng_mix(digest + token + 1);
}

static uint64_t *slot_at(const struct backend_model *m, uint32_t row, uint32_t position) {
    uint32_t bs = m->host.limits.block_size;

    return m->digest + (uint64_t)host_block(&m->host, row, position / bs) * bs + position % bs;
}

/* Of the row's first n tokens. Where `compares`, they must be what its table has; with windows the
 * last of them alone, for blocks behind a window are others'. */
static uint64_t prefix_digest(struct backend_model *m, uint32_t row, uint32_t n, bool compares) {
    const struct host_model *h = &m->host;
    const uint32_t *token = h->history + (uint64_t)row * (h->g.max_context + 1ull);
    uint64_t digest = 0;

    for (uint32_t i = 0; i < n; i++) {
        digest = next_digest(digest, token[i]);
        if (!compares || (h->g.layer_kind && i + 1 < n)) continue;
        if (*slot_at(m, row, i) != digest) m->rows[row].is_wrong = true;
    }
    return digest;
}

/* A row that was not bound and whose table is new from its first block: a beam takes up the tokens
 * of another. */
static void find_moved(struct backend_model *m, const struct backend_stage *s,
                       const struct backend_step *step) {
    for (uint32_t i = 0; i < step->n_rows; i++)
        m->rows[s->row[i].row].is_moved = false;
    for (uint32_t i = 0; i < step->n_updates; i++) {
        struct sim_row *r = &m->rows[s->update[i].row];

        if (s->update[i].index == 0) r->is_moved = r->n > 0;
    }
}

static void write_prefix(struct backend_model *m, const struct backend_stage *s,
                         const struct backend_row *row) {
    struct sim_row *r = &m->rows[row->row];
    uint32_t first = row->context_len - row->n_tokens;

    r->is_new = r->n != first; /* or computes tokens again */
    if (r->is_moved)
        r->digest = first > 0 ? *slot_at(m, row->row, first - 1) : 0;
    else if (r->is_new)
        r->digest = prefix_digest(m, row->row, first, false);
    r->last_digest = r->digest;
    for (uint32_t i = row->first_token; i < row->first_token + row->n_tokens; i++) {
        r->digest = next_digest(r->digest, m->host.ids[i]);
        if (s->kv_slot[i] >= 0) m->digest[s->kv_slot[i]] = r->digest;
    }
    r->n = row->context_len;
}

/* Once all rows have written theirs, which it may share. */
static void check_prefix(struct backend_model *m, const struct backend_row *row) {
    struct sim_row *r = &m->rows[row->row];
    uint32_t first = row->context_len - row->n_tokens;

    if (r->is_new && !r->is_moved)
        (void)prefix_digest(m, row->row, first, true);
    else if (first > 0 && *slot_at(m, row->row, first - 1) != r->last_digest)
        r->is_wrong = true;
}

/* Rows that are moved last: what they go on behind may be written in this step. */
static void run_rows(struct backend_model *m, uint32_t slot, const struct backend_step *step) {
    const struct backend_stage *s = &m->host.slot[slot];

    find_moved(m, s, step);
    for (int are_moved = 0; are_moved <= 1; are_moved++)
        for (uint32_t i = 0; i < step->n_rows; i++)
            if (m->rows[s->row[i].row].is_moved == are_moved) write_prefix(m, s, &s->row[i]);
    for (uint32_t i = 0; i < step->n_rows; i++)
        check_prefix(m, &s->row[i]);
}

/* --- outputs --------------------------------------------------------------------------------- */

static double step_us(const struct sim_profile *p, const struct backend_stage *s,
                      const struct backend_step *step) {
    double us = step->n_rows ? p->base_us + p->row_us * step->n_rows : 0;

    for (uint32_t i = 0; i < step->n_rows; i++) {
        double n = s->row[i].n_tokens, context = s->row[i].context_len;

        if (n == 1)
            us += p->context_us * context;
        else
            us += p->prefill_us * n * (1 + (context - n / 2) / p->attn_context);
    }
    return us;
}

/* The first allowed token from `from` on and before `end`; false if there is none. Most masks of
 * 131,072 tokens are nearly empty: eight words are passed over at once. */
static bool first_allowed(const uint32_t *mask, uint32_t from, uint32_t end, uint32_t *token) {
    uint32_t at = from / 32, n_words = CEIL_DIV(end, 32);

    while (at < n_words) {
        uint32_t word = mask[at], any = 0;

        if (at == from / 32) word &= UINT32_MAX << (from % 32);
        if (word != 0) {
            *token = at * 32 + (uint32_t)__builtin_ctz(word);
            return *token < end;
        }
        for (at++; at + 8 <= n_words && any == 0; at += any == 0 ? 8 : 0)
            for (uint32_t i = 0; i < 8; i++)
                any |= mask[at + i];
    }
    return false;
}

/* The first allowed token at or behind one, else before it; itself if none is. */
static uint32_t next_allowed(const uint32_t *mask, uint32_t vocab, uint32_t token) {
    uint32_t found = token;

    if (!first_allowed(mask, token, vocab, &found) && !first_allowed(mask, 0, token, &found))
        return token;
    return found;
}

/* Logprobs that look like some: the chosen token leads, others follow it in the alphabet. */
static void write_token(struct backend_model *m, uint32_t slot, uint32_t i) {
    const struct host_model *h = &m->host;
    const struct backend_stage *s = &h->slot[slot];
    const struct backend_output *o = &s->output[i];
    uint64_t key = m->key[o->row] ^ (o->temperature > 0 ? rng_mix(o->seed) : 0);
    uint32_t n_prompt = h->rows[o->row].n_prompt, token;
    uint32_t n_top = h->limits.max_logprobs;
    float lead = -0.05f - 0.4f * (float)(rng_at(key, ~(uint64_t)o->position) >> 40) * 0x1p-24f;

    token = sim_text_token(key, o->position > n_prompt ? o->position - n_prompt : 0);
    if (o->want == WANT_SCORE)
        token = o->score_token;
    else if (o->mask != BACKEND_NO_MASK)
        token =
            next_allowed(s->mask + (uint64_t)o->mask * CEIL_DIV(h->g.vocab, 32), h->g.vocab, token);
    s->out_token[i] = (int32_t)token;
    s->out_logprob[i] = lead;
    s->out_rank[i] = 1;
    s->out_flags[i] = m->rows[o->row].is_wrong ? OUT_NOT_FINITE : 0;
    for (uint32_t a = 0; a < o->n_logprobs; a++) {
        bool is_wanted = a < h->g.vocab;

        s->out_top_token[i * n_top + a] = is_wanted ? (int32_t)((token + a) % h->g.vocab) : -1;
        s->out_top_logprob[i * n_top + a] = is_wanted ? lead - 2.0f * (float)a : 0;
    }
}

static enum status sim_submit(struct backend_model *m, uint32_t slot,
                              const struct backend_step *step, backend_fence *out,
                              struct error *err) {
    struct backend_device *dev = (struct backend_device *)m->host.dev;
    uint64_t from_us = clock_now_us();
    enum status st = host_step_begin(&m->host, slot, step, err); /* waits for masks that are late */

    if (st != ST_OK) return st;
    run_rows(m, slot, step);
    for (uint32_t i = 0; i < step->n_outputs; i++)
        write_token(m, slot, i);
    host_step_end(&m->host, slot, step);
    m->step_us[slot] = step_us(dev->profile, &m->host.slot[slot], step) / dev->speed;
    *out = add_fence(dev, from_us, m->step_us[slot] * dev->speed);
    return ST_OK;
}

static double sim_step_us(struct backend_model *m, uint32_t slot) {
    return m->step_us[slot & 1];
}

static enum status sim_op(struct backend_device *dev, const char *name,
                          const struct backend_tensor *in, uint32_t n_in,
                          struct backend_tensor *out, uint32_t n_out, struct error *err) {
    (void)dev, (void)in, (void)n_in, (void)out, (void)n_out;
    return error_set(err, ST_UNSUPPORTED, "operator %s: sim computes nothing", name);
}

const struct backend_ops backend_sim = {
    .abi = BACKEND_ABI,
    .struct_size = sizeof(struct backend_ops),
    .name = "sim",
    .probe = sim_probe,
    .open = sim_open,
    .close = sim_close,
    .info = sim_info,
    .check = sim_check,
    .load_begin = sim_load_begin,
    .load_tensor = sim_load_tensor,
    .load_end = sim_load_end,
    .unload = sim_unload,
    .kv_block_bytes = host_kv_block_bytes,
    .kv_alloc = sim_kv_alloc,
    .kv_lend = host_kv_lend,
    .kv_copy = sim_kv_copy,
    .kv_swap_out = sim_kv_swap_out,
    .kv_swap_in = sim_kv_swap_in,
    .kv_read = sim_kv_read,
    .kv_write = sim_kv_write,
    .row_bind = sim_row_bind,
    .row_free = host_row_free,
    .stage = host_stage,
    .submit = sim_submit,
    .poll = sim_poll,
    .wait = sim_wait,
    .event_fd = sim_event_fd,
    .step_us = sim_step_us,
    .op = sim_op,
};
