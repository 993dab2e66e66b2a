/* tests/support/kv_fixture.c - see the header. */
#include "tests/support/kv_fixture.h"

#include <assert.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

struct kv_manager_config kv_fixture_config(uint32_t n_blocks, uint32_t block_size) {
    return (struct kv_manager_config){
        .n_blocks = n_blocks,
        .block_size = block_size,
        .max_model_len = KV_REQ_MAX_TOKENS,
        .order = FREE_ORDER_CLASSIC,
        .hash_seed = STR("fixture"),
    };
}

void kv_req_init(struct kv_req *r, struct kv_manager *mgr, const struct block_extras *extras,
                 bool skip_reading) {
    enum status st;

    *r = (struct kv_req){.mgr = mgr};
    st = kv_seq_init(&r->seq, mgr, KV_REQ_MAX_TOKENS, extras, skip_reading, NULL);
    assert(st == ST_OK);
    (void)st;
}

void kv_req_text(struct kv_req *r, struct kv_manager *mgr, const char *text) {
    kv_req_init(r, mgr, NULL, false);
    kv_req_append_text(r, text);
}

void kv_req_append(struct kv_req *r, uint32_t token) {
    assert(r->n_tokens < KV_REQ_MAX_TOKENS);
    r->tokens[r->n_tokens++] = token;
}

void kv_req_append_run(struct kv_req *r, uint32_t first_token, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        kv_req_append(r, first_token + i);
}

void kv_req_append_text(struct kv_req *r, const char *text) {
    for (; *text; text++)
        kv_req_append(r, (uint8_t)*text);
}

enum status kv_req_admit(struct kv_req *r) {
    struct kv_alloc a = {.hit = kv_manager_lookup(r->mgr, &r->seq, r->tokens, r->n_tokens)};
    enum status st;

    r->n_hit = a.hit.n_tokens;
    a.n_new = r->n_tokens - r->n_hit;
    st = kv_manager_allocate(r->mgr, &r->seq, r->tokens, r->n_tokens, &a);
    if (st != ST_OK) return st;
    kv_manager_record_admission(r->mgr, r->n_tokens, r->n_hit, false);
    r->n_computed = r->n_tokens;
    return ST_OK;
}

enum status kv_req_advance(struct kv_req *r, uint32_t n) {
    struct kv_alloc a = {.n_computed = r->n_computed, .n_new = n};
    enum status st = kv_manager_allocate(r->mgr, &r->seq, r->tokens, r->n_tokens, &a);

    if (st == ST_OK) r->n_computed += n;
    return st;
}

enum status kv_req_decode(struct kv_req *r, uint32_t token) {
    kv_req_append(r, token);
    return kv_req_advance(r, 1);
}

enum status kv_req_fork(struct kv_req *child, const struct kv_req *parent, uint32_t n_computed) {
    enum status st;

    kv_req_init(child, parent->mgr, parent->seq.extras, parent->seq.skip_reading);
    for (uint32_t i = 0; i < n_computed; i++)
        kv_req_append(child, parent->tokens[i]);
    st = kv_manager_fork(parent->mgr, &child->seq, &parent->seq, n_computed);
    if (st == ST_OK) child->n_computed = n_computed;
    return st;
}

void kv_req_free(struct kv_req *r) {
    kv_manager_free(r->mgr, &r->seq);
    r->n_computed = 0;
}

void kv_req_done(struct kv_req *r) {
    kv_req_free(r);
    kv_seq_fini(&r->seq);
}

/* --- text ------------------------------------------------------------------------------------ */

struct text {
    char s[4096];
    size_t len;
};

static struct text *text_begin(void) {
    static struct text ring[4];
    static unsigned next;
    struct text *t = &ring[next++ % ARRAY_LEN(ring)];

    t->s[0] = '\0';
    t->len = 0;
    return t;
}

static void text_add(struct text *t, uint32_t value) {
    int n = snprintf(t->s + t->len, sizeof(t->s) - t->len, "%s%u", t->len ? " " : "", value);

    assert(n > 0 && t->len + (size_t)n < sizeof(t->s));
    t->len += (size_t)n;
}

const char *kv_text_table(const struct kv_req *r, uint32_t first_id) {
    struct text *t = text_begin();

    for (uint32_t i = 0; i < r->seq.table[0].n_blocks; i++) {
        text_add(t, r->seq.table[0].ids[i] - first_id);
    }
    return t->s;
}

static const char *text_of(const block_id *ids, uint32_t n) {
    struct text *t = text_begin();

    for (uint32_t i = 0; i < n; i++)
        text_add(t, ids[i]);
    return t->s;
}

const char *kv_text_group(const struct kv_req *r, uint32_t group) {
    return text_of(r->seq.table[group].ids, r->seq.table[group].n_blocks);
}

const char *kv_text_hit(const struct kv_hit *hit, uint32_t group) {
    return text_of(hit->ids[group], hit->n_blocks);
}

const char *kv_text_moves(struct kv_manager *mgr, uint32_t first_id) {
    struct text *t = text_begin();
    uint32_t n_moves;
    const struct kv_move *moves = kv_manager_moves(mgr, &n_moves);

    for (uint32_t i = 0; i < n_moves; i++) {
        int n = snprintf(t->s + t->len, sizeof(t->s) - t->len, "%s%u%c%u", t->len ? " " : "",
                         moves[i].src - first_id, "><^"[moves[i].kind], moves[i].dst - first_id);

        assert(n > 0 && t->len + (size_t)n < sizeof(t->s));
        t->len += (size_t)n;
    }
    kv_manager_clear_moves(mgr);
    return t->s;
}

const char *kv_text_queue(const struct kv_manager *mgr, uint32_t first_id) {
    const struct block_pool *pool = kv_manager_pool(mgr);
    struct text *t = text_begin();

    for (block_id id = block_pool_next_free(pool, BLOCK_NONE); id != BLOCK_NONE;
         id = block_pool_next_free(pool, id)) {
        text_add(t, id - first_id);
    }
    return t->s;
}

const char *kv_text_cached(const struct kv_manager *mgr, uint32_t first_id) {
    const struct prefix_cache *cache = block_pool_cache(kv_manager_pool(mgr));
    struct text *t = text_begin();

    for (block_id id = 0; id < cache->n_blocks; id++) {
        if (prefix_cache_contains(cache, id)) text_add(t, id - first_id);
    }
    return t->s;
}

const char *kv_text_refs(const struct kv_req *r) {
    struct text *t = text_begin();

    for (uint32_t i = 0; i < r->seq.table[0].n_blocks; i++) {
        text_add(t, block_pool_ref_cnt(kv_manager_pool(r->mgr), r->seq.table[0].ids[i]));
    }
    return t->s;
}

bool kv_aborts(void (*fn)(void *arg), void *arg) {
    pid_t pid = fork();
    int status = 0;

    assert(pid >= 0);
    if (pid == 0) {
        signal(SIGABRT, SIG_DFL); /* the test framework catches it */
        if (!freopen("/dev/null", "w", stderr)) _exit(1);
        fn(arg);
        _exit(0);
    }
    if (waitpid(pid, &status, 0) != pid) return false;
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}
