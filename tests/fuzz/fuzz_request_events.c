/* tests/fuzz/fuzz_request_events.c - a stream of frames, cut anywhere, and the chain header.
 *
 * The first byte selects one. Of a stream: reading it whole and reading it in pieces give the same
 * events, nothing is read that has not come, and what was read reads the same once more after it is
 * written again. Of a header: the same of its one value. */
#include <stdlib.h>
#include <string.h>

#include "common/protocol/request_events.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t blocks[CHAIN_BLOCKS_MAX], other_blocks[CHAIN_BLOCKS_MAX];

static void check(bool is_true) {
    if (!is_true) abort();
}

static void check_same_chain(const struct request_chain *a, const struct request_chain *b) {
    check(a->origin == b->origin && a->scheme == b->scheme);
    check(a->prompt_bytes == b->prompt_bytes && a->n_blocks == b->n_blocks);
    check(a->n_blocks <= CHAIN_BLOCKS_MAX);
    for (uint32_t i = 0; i < a->n_blocks; i++) {
        check(a->blocks[i] == b->blocks[i] && (a->blocks[i] & 0xffff) == 0);
    }
}

static void check_same_mark(const struct request_mark *a, const struct request_mark *b) {
    check(a->tenant == b->tenant && a->session == b->session && a->n_system == b->n_system);
    check(a->is_turn == b->is_turn && a->is_last == b->is_last && a->held_s == b->held_s);
    check(a->has_waited == b->has_waited && a->priority == b->priority);
    check(a->sessions_wait_s == b->sessions_wait_s && a->sessions_wait_s <= REQUEST_WAIT_MOST);
    check(a->weight_percent == b->weight_percent && a->weight_percent <= REQUEST_WEIGHT_MOST);
    check(a->priority >= REQUEST_PRIORITY_LEAST && a->priority <= REQUEST_PRIORITY_MOST);
    check(a->tenant || !(a->session || a->n_system || a->is_turn || a->priority));
}

static void check_same(const struct request_event *a, const struct request_event *b) {
    check(a->kind == b->kind && a->t_us == b->t_us && a->request == b->request);
    check_same_chain(&a->chain, &b->chain);
    check_same_mark(&a->mark, &b->mark);
    check(a->prompt_tokens == b->prompt_tokens && a->cached_tokens == b->cached_tokens);
    check(a->output_tokens == b->output_tokens && a->is_aborted == b->is_aborted);
    check(a->load.running == b->load.running && a->load.waiting == b->load.waiting);
    check(a->load.queued_tokens == b->load.queued_tokens && a->load.kv_free == b->load.kv_free);
    check(a->load.kv_total == b->load.kv_total && a->load.draining == b->load.draining);
    check(!strcmp(a->generation, b->generation) && a->is_gap == b->is_gap);
    check(a->next == b->next && a->oldest == b->oldest);
}

static void check_rewritten(const struct request_event *e, uint64_t sequence) {
    struct request_event again;
    uint64_t number;
    size_t used;
    struct buf b;

    buf_init(&b, 0);
    request_event_put(&b, sequence, e);
    check(request_event_read(buf_str(&b), other_blocks, &again, &number, &used, NULL) == ST_OK);
    check(used == buf_len(&b) && number == sequence);
    check_same(e, &again);
    buf_fini(&b);
}

/* A copy as long as what has come, so that reading behind it is seen. */
static enum status read_prefix(const uint8_t *data, size_t n, size_t *used) {
    char *copy = malloc(n ? n : 1);
    struct request_event e;
    uint64_t sequence;
    enum status st;

    if (n) memcpy(copy, data, n);
    st = request_event_read((struct str){copy, n}, blocks, &e, &sequence, used, NULL);
    if (st == ST_OK && *used) {
        check(*used <= n);
        if (e.kind) check_rewritten(&e, sequence);
    } else {
        check(*used == 0);
    }
    free(copy);
    return st;
}

static void fuzz_stream(const uint8_t *data, size_t size, size_t step) {
    while (size > 0) {
        size_t n = MIN(step, size), used = 0, whole;
        enum status st = ST_OK, st_whole;

        while ((st = read_prefix(data, n, &used)) == ST_OK && used == 0 && n < size)
            n = MIN(n + step, size);
        st_whole = read_prefix(data, size, &whole);
        check(st == st_whole && used == whole);
        if (st != ST_OK || used == 0) return;
        data += used;
        size -= used;
    }
}

static void fuzz_header(struct str value) {
    struct request_chain chain, again;
    struct request_mark mark, mark_again;
    char *text;

    if (request_chain_parse(value, blocks, &chain, &mark) != ST_OK) return;
    text = malloc(request_chain_text_max(chain.n_blocks));
    value = (struct str){text, (size_t)(request_chain_put(text, &chain, &mark) - text)};
    check(value.len <= request_chain_text_max(chain.n_blocks));
    check(request_chain_parse(value, other_blocks, &again, &mark_again) == ST_OK);
    check_same_chain(&chain, &again);
    check_same_mark(&mark, &mark_again);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    if (data[0] & 1) {
        fuzz_header((struct str){(const char *)data + 1, size - 1});
    } else {
        fuzz_stream(data + 1, size - 1, 1 + data[0] / 2u);
    }
    return 0;
}
