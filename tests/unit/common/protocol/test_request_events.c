/* tests/unit/common/protocol/test_request_events.c - what is written is read, what is cut or wrong
 * is not, and a reader lets a newer writer pass. */
#include <stdio.h>
#include <stdlib.h>

#include "common/base/rng.h"
#include "common/protocol/request_events.h"
#include "common/text/msgpack.h"
#include "tests/support/cm.h"

static uint64_t blocks_out[CHAIN_BLOCKS_MAX];

static void assert_bytes(const struct buf *b, const char *hex) {
    char text[512] = "";

    assert_true(buf_len(b) < sizeof(text) / 2);
    for (size_t i = 0; i < buf_len(b); i++)
        snprintf(text + 2 * i, 3, "%02x", (uint8_t)buf_ptr(b)[i]);
    assert_string_equal(text, hex);
}

static void assert_same_chain(const struct request_chain *a, const struct request_chain *b) {
    assert_int_equal(a->origin, b->origin);
    assert_int_equal(a->scheme, b->scheme);
    assert_int_equal(a->prompt_bytes, b->prompt_bytes);
    assert_int_equal(a->n_blocks, b->n_blocks);
    if (a->n_blocks) assert_memory_equal(a->blocks, b->blocks, a->n_blocks * sizeof(*a->blocks));
}

static void assert_same_mark(const struct request_mark *a, const struct request_mark *b) {
    assert_int_equal(a->tenant, b->tenant);
    assert_int_equal(a->session, b->session);
    assert_int_equal(a->n_system, b->n_system);
    assert_int_equal(a->priority, b->priority);
    assert_int_equal(a->weight_percent, b->weight_percent);
    assert_int_equal(a->is_turn, b->is_turn);
    assert_int_equal(a->is_last, b->is_last);
    assert_int_equal(a->has_waited, b->has_waited);
    assert_int_equal(a->held_s, b->held_s);
    assert_int_equal(a->sessions_wait_s, b->sessions_wait_s);
}

static void assert_same(const struct request_event *a, const struct request_event *b) {
    assert_int_equal(a->kind, b->kind);
    assert_int_equal(a->t_us, b->t_us);
    assert_int_equal(a->request, b->request);
    assert_same_chain(&a->chain, &b->chain);
    assert_same_mark(&a->mark, &b->mark);
    assert_int_equal(a->prompt_tokens, b->prompt_tokens);
    assert_int_equal(a->cached_tokens, b->cached_tokens);
    assert_int_equal(a->below_tokens, b->below_tokens);
    assert_int_equal(a->output_tokens, b->output_tokens);
    assert_int_equal(a->is_aborted, b->is_aborted);
    assert_int_equal(a->load.running, b->load.running);
    assert_int_equal(a->load.waiting, b->load.waiting);
    assert_int_equal(a->load.queued_tokens, b->load.queued_tokens);
    assert_int_equal(a->load.kv_free, b->load.kv_free);
    assert_int_equal(a->load.kv_total, b->load.kv_total);
    assert_int_equal(a->load.draining, b->load.draining);
    assert_string_equal(a->generation, b->generation);
    assert_int_equal(a->next, b->next);
    assert_int_equal(a->oldest, b->oldest);
    assert_int_equal(a->is_gap, b->is_gap);
}

static enum status read_one(struct str bytes, struct request_event *e, uint64_t *sequence,
                            size_t *used) {
    return request_event_read(bytes, blocks_out, e, sequence, used, NULL);
}

/* --- random ones ------------------------------------------------------------------------------ */

/* All widths are as likely: most lengths of a number on the wire have a bug of their own. */
static uint64_t any_number(struct rng *rng) {
    return rng_u64(rng) >> rng_below(rng, 64);
}

static void fill_blocks(struct rng *rng, uint64_t *blocks, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        blocks[i] = rng_u64(rng) & ~UINT64_C(0xffff);
}

static struct request_chain any_chain(struct rng *rng, uint64_t blocks[CHAIN_BLOCKS_MAX]) {
    struct request_chain c = {any_number(rng), any_number(rng), any_number(rng), 0, blocks};

    c.n_blocks = (uint32_t)rng_below(rng, rng_below(rng, 8) ? 40 : CHAIN_BLOCKS_MAX + 1);
    fill_blocks(rng, blocks, c.n_blocks);
    return c;
}

static struct request_mark any_mark(struct rng *rng) {
    if (rng_below(rng, 3) == 0) return (struct request_mark){0};
    return (struct request_mark){
        .tenant = any_number(rng) | 1,
        .session = any_number(rng),
        .n_system = (uint32_t)any_number(rng),
        .weight_percent = (uint32_t)rng_below(rng, REQUEST_WEIGHT_MOST + 1),
        .priority = (int32_t)rng_below(rng, 16) + REQUEST_PRIORITY_LEAST,
        .is_turn = rng_below(rng, 2),
        .is_last = rng_below(rng, 2),
        .has_waited = rng_below(rng, 2),
        .held_s = (uint32_t)rng_below(rng, REQUEST_WAIT_MOST + 1),
        .sessions_wait_s = (uint32_t)rng_below(rng, REQUEST_WAIT_MOST + 1),
    };
}

static int64_t any_tokens(struct rng *rng) {
    return rng_below(rng, 4) ? (int64_t)(any_number(rng) & INT32_MAX) : -1;
}

static struct request_event any_event(struct rng *rng, uint64_t blocks[CHAIN_BLOCKS_MAX],
                                      uint64_t *sequence) {
    struct request_event e = {.kind = (enum request_event_kind)(1 + rng_below(rng, 6)),
                              .prompt_tokens = -1,
                              .cached_tokens = -1,
                              .below_tokens = -1,
                              .output_tokens = -1};

    e.t_us = any_number(rng);
    *sequence = any_number(rng) >> 1;
    switch ((int)e.kind) {
    case REQUEST_ACCEPTED:
        e.chain = any_chain(rng, blocks);
        e.mark = any_mark(rng);
        break;
    case REQUEST_FIRST:
        e.prompt_tokens = any_tokens(rng);
        e.cached_tokens = any_tokens(rng);
        e.below_tokens = any_tokens(rng);
        break;
    case REQUEST_ENDED:
        e.output_tokens = any_tokens(rng);
        e.is_aborted = rng_below(rng, 2);
        break;
    case REQUEST_LOAD:
        e.load = (struct wire_load){.running = (uint32_t)any_number(rng),
                                    .waiting = (uint32_t)any_number(rng),
                                    .queued_tokens = any_number(rng),
                                    .kv_total = any_number(rng),
                                    .draining = rng_below(rng, 2)};
        e.load.kv_free = e.load.kv_total / (1 + rng_below(rng, 3));
        break;
    case REQUEST_CLEARED: break;
    default:
        e.kind = REQUEST_HELLO;
        *sequence = REQUEST_EVENT_CONTROL;
        snprintf(e.generation, sizeof(e.generation), "%.*s", (int)rng_below(rng, 40),
                 "0123456789abcdef0123456789abcdef01234567");
        e.next = any_number(rng) >> 1;
        e.oldest = e.next / (1 + rng_below(rng, 3));
        e.is_gap = rng_below(rng, 2);
    }
    if (e.kind <= REQUEST_ENDED) e.request = any_number(rng);
    return e;
}

/* --- tests ------------------------------------------------------------------------------------ */

static void frames_are_these_bytes(void **state) {
    const uint64_t blocks[] = {0x0102030405060000, 0xfffefdfcfbfa0000};
    const struct request_event accepted = {
        .kind = REQUEST_ACCEPTED,
        .t_us = 5,
        .request = 300,
        .chain = {.origin = 1, .scheme = 2, .prompt_bytes = 3, .n_blocks = 2, .blocks = blocks}};
    struct request_event marked = accepted;
    const struct request_event first = {.kind = REQUEST_FIRST,
                                        .t_us = 70000,
                                        .request = 1,
                                        .prompt_tokens = 9,
                                        .cached_tokens = -1,
                                        .below_tokens = -1};
    const struct request_event hello = {
        .kind = REQUEST_HELLO, .generation = "ab", .next = 7, .oldest = 6, .is_gap = true};
    struct buf b;

    (void)state;
    buf_init(&b, 0);
    request_event_put(&b, 258, &accepted);
    assert_bytes(&b, "00000018"
                     "0000000000000102"
                     "970105cd012c030102"
                     "c5000c010203040506fffefdfcfbfa");
    marked.mark = (struct request_mark){.tenant = 0x1122334455667788,
                                        .session = 9,
                                        .n_system = 300,
                                        .is_turn = true,
                                        .is_last = true};
    buf_clear(&b);
    request_event_put(&b, 258, &marked);
    assert_bytes(&b, "00000027"
                     "0000000000000102"
                     "9b0105cd012c030102"
                     "c5000c010203040506fffefdfcfbfa"
                     "cf112233445566778809cd012ccc83");
    buf_clear(&b);
    request_event_put(&b, 1, &first);
    assert_bytes(&b, "0000000a"
                     "0000000000000001"
                     "9502ce000111700109ff");
    buf_clear(&b);
    request_event_put(&b, REQUEST_EVENT_CONTROL, &hello);
    assert_bytes(&b, "00000009"
                     "ffffffffffffffff"
                     "966400a261620706c3");
    buf_fini(&b);
}

static void events_read_as_written_and_not_before_they_are_whole(void **state) {
    static uint64_t blocks[CHAIN_BLOCKS_MAX];
    struct rng rng;
    struct buf b;

    (void)state;
    rng_seed(&rng, 6);
    buf_init(&b, 0);
    for (int i = 0; i < 3000; i++) {
        struct request_event back = {.t_us = 77}, e;
        uint64_t sequence, sequence_back;
        size_t used, n;

        e = any_event(&rng, blocks, &sequence);
        buf_clear(&b);
        request_event_put(&b, sequence, &e);
        assert_int_equal(buf_status(&b), ST_OK);
        for (n = 0; n < buf_len(&b); n += 1 + (buf_len(&b) > 1000 ? rng_below(&rng, 500) : 0)) {
            assert_int_equal(read_one((struct str){buf_ptr(&b), n}, &back, &sequence_back, &used),
                             ST_OK);
            assert_int_equal(used, 0);
        }
        buf_append_str(&b, STR("what follows"));
        assert_int_equal(read_one(buf_str(&b), &back, &sequence_back, &used), ST_OK);
        assert_int_equal(used, buf_len(&b) - 12);
        assert_int_equal(sequence_back, sequence);
        assert_same(&back, &e);
    }
    buf_fini(&b);
}

/* The head announces less than the payload needs: malformed, wherever it ends. */
static void a_payload_cut_anywhere_is_refused(void **state) {
    static uint64_t blocks[CHAIN_BLOCKS_MAX];
    struct rng rng;
    struct buf b;

    (void)state;
    rng_seed(&rng, 7);
    buf_init(&b, 0);
    for (int i = 0; i < 300; i++) {
        uint64_t sequence;
        struct request_event e = any_event(&rng, blocks, &sequence), back;
        size_t used, payload;

        e.chain.n_blocks = MIN(e.chain.n_blocks, 50u);
        buf_clear(&b);
        request_event_put(&b, sequence, &e);
        payload = buf_len(&b) - REQUEST_EVENT_HEAD;
        for (size_t n = 0; n < payload; n++) {
            buf_ptr(&b)[2] = (char)(n >> 8);
            buf_ptr(&b)[3] = (char)n;
            assert_int_equal(read_one(buf_str(&b), &back, &sequence, &used), ST_INVALID);
            assert_int_equal(used, 0);
        }
    }
    buf_fini(&b);
}

/* A frame around what `put` wrote behind its head. */
static void begin_frame(struct buf *b) {
    buf_clear(b);
    buf_append(b, "\0\0\0\0\0\0\0\0\0\0\0\4", REQUEST_EVENT_HEAD);
}

static void end_frame(struct buf *b) {
    size_t n = buf_len(b) - REQUEST_EVENT_HEAD;

    buf_ptr(b)[1] = (char)(n >> 16);
    buf_ptr(b)[2] = (char)(n >> 8);
    buf_ptr(b)[3] = (char)n;
}

static void a_newer_writer_is_understood(void **state) {
    struct request_event e;
    uint64_t sequence;
    size_t used;
    struct buf b;

    (void)state;
    buf_init(&b, 0);
    begin_frame(&b); /* one element more, of any type */
    msgpack_begin_array(&b, 6);
    msgpack_put_u64(&b, REQUEST_ENDED);
    msgpack_put_u64(&b, 10);
    msgpack_put_u64(&b, 11);
    msgpack_put_i64(&b, -1);
    msgpack_put_bool(&b, true);
    buf_append(&b, "\xd4\x01\x02", 3);
    end_frame(&b);
    assert_int_equal(read_one(buf_str(&b), &e, &sequence, &used), ST_OK);
    assert_int_equal(e.kind, REQUEST_ENDED);
    assert_int_equal(e.request, 11);
    assert_int_equal(e.output_tokens, -1);
    assert_true(e.is_aborted);

    begin_frame(&b); /* an event, and a control frame, of an unknown kind */
    msgpack_begin_array(&b, 2);
    msgpack_put_u64(&b, 6);
    msgpack_put_u64(&b, 10);
    end_frame(&b);
    assert_int_equal(read_one(buf_str(&b), &e, &sequence, &used), ST_OK);
    assert_int_equal(used, buf_len(&b));
    assert_int_equal(e.kind, 0);
    assert_int_equal(sequence, 4);
    memset(buf_ptr(&b) + 4, 0xff, 8);
    assert_int_equal(read_one(buf_str(&b), &e, &sequence, &used), ST_OK);
    assert_int_equal(e.kind, 0);
    assert_int_equal(sequence, REQUEST_EVENT_CONTROL);

    begin_frame(&b); /* more blocks than are kept here */
    msgpack_begin_array(&b, 7);
    for (uint64_t v = 1; v < 7; v++)
        msgpack_put_u64(&b, v);
    {
        static char many[(CHAIN_BLOCKS_MAX + 5) * CHAIN_HASH_BYTES];

        memset(many, 0x11, sizeof(many));
        msgpack_put_bin(&b, many, sizeof(many));
    }
    end_frame(&b);
    assert_int_equal(read_one(buf_str(&b), &e, &sequence, &used), ST_OK);
    assert_int_equal(e.chain.n_blocks, CHAIN_BLOCKS_MAX);
    assert_int_equal(e.chain.blocks[CHAIN_BLOCKS_MAX - 1], 0x1111111111110000);
    buf_fini(&b);
}

static void a_stream_of_another_format_is_refused(void **state) {
    static const struct {
        const char *bytes;
        size_t n;
        enum status status;
    } cases[] = {
        {"\0\1\0\1xxxxxxxx", 12, ST_TOO_LARGE},                       /* before it has come */
        {"HTTP/1.1 200 OK", 15, ST_TOO_LARGE},                        /* not a stream at all */
        {"\0\0\0\0xxxxxxxx", 12, ST_INVALID},                         /* nothing in it */
        {"\0\0\0\1xxxxxxxx\x05", 13, ST_INVALID},                     /* no array */
        {"\0\0\0\2xxxxxxxx\x91\x05", 14, ST_INVALID},                 /* no time */
        {"\0\0\0\3xxxxxxxx\x91\x05\x01", 15, ST_INVALID},             /* one behind the array */
        {"\0\0\0\6xxxxxxxx\x95\x02\x01\x01\xc0\x01", 18, ST_INVALID}, /* tokens: nil */
        {"\0\0\0\3xxxxxxxx\x92\x05\xff", 15, ST_INVALID},             /* a negative one */
        {"\0\0\0\4xxxxxxxx\x92\x05\x01\x01", 16, ST_INVALID}, /* something behind the array */
        {"\0\0\0\3xxxxxxxx\x92\x04\x01", 15, ST_INVALID},     /* a load without figures */
        {"\0\0\0\3\xff\xff\xff\xff\xff\xff\xff\xff\x92\x05\x01", 15, ST_INVALID},
        {"\0\0\0\6xxxxxxxx\x95\x02\x01\x01\xfe\x01", 18, ST_INVALID}, /* -2 tokens */
        {"\0\0\0\x8xxxxxxxx\x98\x04\x01\1\1\1\2\1\xc2", 20,
         ST_INVALID}, /* more free than there is */
        {"\0\0\0\7\0\0\0\0\0\0\0\1\x96\x64\x00\xa0\1\1\xc2", 19, ST_INVALID}, /* a numbered hello */
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct request_event e = {.t_us = 77};
        uint64_t sequence;
        size_t used = 1;
        struct error err = {0};

        assert_int_equal(request_event_read((struct str){cases[i].bytes, cases[i].n}, blocks_out,
                                            &e, &sequence, &used, &err),
                         cases[i].status);
        assert_int_equal(used, 0);
        assert_int_equal(e.t_us, 77);
        assert_true(err.message[0] != '\0');
    }
}

/* The widest values that are taken, and the next ones, which are not. */
static void limits_hold_at_their_documented_values(void **state) {
    static char text[70000];
    struct request_event e = {.kind = REQUEST_FIRST, .prompt_tokens = INT32_MAX}, back;
    uint64_t sequence;
    size_t used;
    struct buf b;

    (void)state;
    buf_init(&b, 0);
    request_event_put(&b, 1, &e); /* two behind each other: the second one's head is its own */
    e.prompt_tokens++;
    request_event_put(&b, 2, &e);
    assert_int_equal(read_one(buf_str(&b), &back, &sequence, &used), ST_OK);
    assert_int_equal(back.prompt_tokens, INT32_MAX);
    buf_consume(&b, used);
    assert_int_equal(read_one(buf_str(&b), &back, &sequence, &used), ST_INVALID);
    for (size_t n = WIRE_GENERATION_MAX - 1; n <= WIRE_GENERATION_MAX + 1; n++) {
        for (int has_nul = 0; has_nul < 2; has_nul++) {
            begin_frame(&b);
            memset(buf_ptr(&b) + 4, 0xff, 8);
            memset(text, 'a', n);
            if (has_nul) text[n / 2] = '\0';
            msgpack_begin_array(&b, 6);
            msgpack_put_u64(&b, REQUEST_HELLO);
            msgpack_put_u64(&b, 1);
            msgpack_put_str(&b, (struct str){text, n});
            msgpack_put_u64(&b, 1);
            msgpack_put_u64(&b, 1);
            msgpack_put_bool(&b, false);
            end_frame(&b);
            assert_int_equal(read_one(buf_str(&b), &back, &sequence, &used),
                             n < WIRE_GENERATION_MAX && !has_nul ? ST_OK : ST_INVALID);
        }
    }
    for (uint32_t more = 0; more < 2; more++) { /* a frame of 64 KiB, of an unknown kind */
        begin_frame(&b);
        msgpack_begin_array(&b, 3);
        msgpack_put_u64(&b, 7);
        msgpack_put_u64(&b, 1);
        msgpack_put_bin(&b, text, 65536 - 3 - 3 + more); /* beside its own head of 3 and three */
        end_frame(&b);
        assert_int_equal(read_one(buf_str(&b), &back, &sequence, &used),
                         more ? ST_TOO_LARGE : ST_OK);
    }
    assert_int_equal(request_chain_text_max(CHAIN_BLOCKS_MAX + 1),
                     request_chain_text_max(CHAIN_BLOCKS_MAX));
    buf_fini(&b);
}

/* Nothing behind the frame is looked at; a sanitizer sees it. */
static void a_frame_ends_where_it_ends(void **state) {
    static uint64_t blocks[CHAIN_BLOCKS_MAX];
    struct rng rng;
    struct buf b;

    (void)state;
    rng_seed(&rng, 10);
    buf_init(&b, 0);
    for (int i = 0; i < 300; i++) {
        struct request_event back, e;
        uint64_t sequence;
        size_t used;
        char *copy;

        e = any_event(&rng, blocks, &sequence);
        buf_clear(&b);
        request_event_put(&b, sequence, &e);
        copy = malloc(buf_len(&b));
        memcpy(copy, buf_ptr(&b), buf_len(&b));
        assert_int_equal(read_one((struct str){copy, buf_len(&b)}, &back, &sequence, &used), ST_OK);
        assert_same(&back, &e);
        free(copy);
    }
    buf_fini(&b);
}

/* Blocks must come in sixes of bytes. */
static void half_a_block_is_refused(void **state) {
    struct request_event e;
    uint64_t sequence;
    size_t used;
    struct buf b;

    (void)state;
    buf_init(&b, 0);
    begin_frame(&b);
    msgpack_begin_array(&b, 7);
    for (uint64_t v = 1; v < 7; v++)
        msgpack_put_u64(&b, v);
    msgpack_put_bin(&b, "12345678", 8);
    end_frame(&b);
    assert_int_equal(read_one(buf_str(&b), &e, &sequence, &used), ST_INVALID);
    buf_fini(&b);
}

static void assert_header(const struct request_chain *c, const struct request_mark *mark,
                          const char *expected) {
    struct request_mark clamped = *mark, mark_back;
    struct request_chain back;
    char text[256];
    struct str s = {text, (size_t)(request_chain_put(text, c, mark) - text)};

    assert_true(s.len <= request_chain_text_max(c->n_blocks));
    text[s.len] = '\0';
    assert_string_equal(text, expected);
    assert_int_equal(request_chain_parse(s, blocks_out, &back, &mark_back), ST_OK);
    assert_same_chain(&back, c);
    clamped.priority = MAX(mark->priority, REQUEST_PRIORITY_LEAST);
    assert_same_mark(&mark_back, &clamped);
}

static void the_header_is_this_text(void **state) {
    const uint64_t blocks[] = {0x0102030405060000, 0xfffefdfcfbfa0000, 0};
    struct request_chain c = {0xabc, UINT64_MAX, 1234, 3, blocks};
    struct request_mark none = {0}, mark = {.tenant = 0xdef,
                                            .session = 0x77,
                                            .n_system = 40,
                                            .priority = -100,
                                            .is_turn = true,
                                            .has_waited = true};

    (void)state;
    assert_header(&c, &none, "1 0000000000000abc ffffffffffffffff 1234 AQIDBAUG__79_Pv6AAAAAAAA");
    assert_header(&c, &mark,
                  "1 0000000000000abc ffffffffffffffff 1234 AQIDBAUG__79_Pv6AAAAAAAA "
                  "0000000000000def 0000000000000077 40 5");
    c.n_blocks = 0;
    assert_header(&c, &none, "1 0000000000000abc ffffffffffffffff 1234");
    mark.priority = 1;
    mark.weight_percent = 200;
    assert_header(&c, &mark,
                  "1 0000000000000abc ffffffffffffffff 1234  0000000000000def 0000000000000077 40 "
                  "51349");
}

/* What another version writes behind the chain costs the mark alone. */
static void a_mark_that_is_not_whole_is_none(void **state) {
    static const char *const tails[] = {
        "x=1",
        "0000000000000def",
        "0000000000000def 77 40 5",
        "0000000000000def 0000000000000077 4294967296 5",
        "0000000000000def 0000000000000077 40 x",
        "0000000000000000 0000000000000077 40 5",
    };
    char text[256];

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(tails); i++) {
        struct request_mark mark = {.tenant = 1}, none = {0};
        struct request_chain c;

        snprintf(text, sizeof(text), "1 0000000000000abc ffffffffffffffff 1 AQIDBAUG %s", tails[i]);
        assert_int_equal(request_chain_parse(str_of(text), blocks_out, &c, &mark), ST_OK);
        assert_int_equal(c.n_blocks, 1);
        assert_same_mark(&mark, &none);
    }
}

static void headers_read_as_written_and_cut_ones_never_as_more(void **state) {
    static uint64_t blocks[CHAIN_BLOCKS_MAX];
    struct rng rng;
    char *text = malloc(request_chain_text_max(CHAIN_BLOCKS_MAX));

    (void)state;
    rng_seed(&rng, 8);
    for (int i = 0; i < 1000; i++) {
        struct request_chain c = any_chain(&rng, blocks), back;
        struct request_mark mark = any_mark(&rng), mark_back;
        struct str s = {text, (size_t)(request_chain_put(text, &c, &mark) - text)};

        assert_true(s.len <= request_chain_text_max(c.n_blocks));
        assert_int_equal(request_chain_parse(s, blocks_out, &back, &mark_back), ST_OK);
        assert_same_chain(&back, &c);
        assert_same_mark(&mark_back, &mark);
        if (s.len > 300) s.len = 300;
        for (; s.len > 0; s.len--) {
            struct str cut = {s.ptr, s.len - 1};

            if (request_chain_parse(cut, blocks_out, &back, &mark_back) != ST_OK) continue;
            assert_int_equal(back.origin, c.origin);
            assert_int_equal(back.scheme, c.scheme);
            assert_true(back.prompt_bytes <= c.prompt_bytes);
            assert_true(back.n_blocks <= c.n_blocks);
            if (back.n_blocks) {
                assert_memory_equal(back.blocks, c.blocks, back.n_blocks * sizeof(*c.blocks));
            }
        }
    }
    free(text);
}

static void malformed_headers_are_refused(void **state) {
    static const char *const cases[] = {
        "",
        "1",
        "2 0000000000000abc ffffffffffffffff 1234 AQIDBAUG", /* an unknown version */
        "1 000000000000abc ffffffffffffffff 1234 AQIDBAUG",  /* 15 digits */
        "1 0000000000000abc fffffffffffffffg 1234 AQIDBAUG",
        "1 0000000000000abc ffffffffffffffff -1 AQIDBAUG",
        "1 0000000000000abc ffffffffffffffff 99999999999999999999 AQIDBAUG",
        "1 0000000000000abc ffffffffffffffff 1234 AQIDBAU",
        "1 0000000000000abc ffffffffffffffff 1234 AQIDBAU=",
        "1 0000000000000abc ffffffffffffffff 1234 AQID+AUG",
        "1 0000000000000abc ffffffffffffffff 1234 AQID\xff"
        "AUG",
        "1  0000000000000abc ffffffffffffffff 1234 AQIDBAUG",
        " 1 0000000000000abc ffffffffffffffff 1234 AQIDBAUG",
    };
    struct request_chain c = {.prompt_bytes = 77};
    struct request_mark mark = {.tenant = 77};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        assert_int_equal(request_chain_parse(str_of(cases[i]), blocks_out, &c, &mark), ST_INVALID);
        assert_int_equal(c.prompt_bytes, 77);
        assert_int_equal(mark.tenant, 77);
    }
}

static void chains_over_the_limit_are_cut(void **state) {
    static uint64_t blocks[CHAIN_BLOCKS_MAX + 10];
    struct request_chain c = {1, 2, 3, CHAIN_BLOCKS_MAX + 10, blocks}, back;
    struct request_event e = {.kind = REQUEST_ACCEPTED, .chain = c}, e_back;
    struct request_mark mark;
    size_t max = request_chain_text_max(c.n_blocks), used;
    char *text = malloc(max + 100 * 8);
    struct rng rng;
    struct buf b;
    uint64_t sequence;
    char *end;

    (void)state;
    rng_seed(&rng, 9);
    fill_blocks(&rng, blocks, c.n_blocks);
    end = request_chain_put(text, &c, &e.mark);
    assert_true((size_t)(end - text) <= max);
    memset(end, 'A', 80); /* a newer one's longer limit */
    assert_int_equal(request_chain_parse((struct str){text, (size_t)(end - text) + 80}, blocks_out,
                                         &back, &mark),
                     ST_OK);
    assert_int_equal(back.n_blocks, CHAIN_BLOCKS_MAX);
    assert_memory_equal(back.blocks, blocks, CHAIN_BLOCKS_MAX * sizeof(*blocks));
    buf_init(&b, 0);
    request_event_put(&b, 1, &e);
    assert_int_equal(read_one(buf_str(&b), &e_back, &sequence, &used), ST_OK);
    assert_int_equal(used, buf_len(&b));
    assert_int_equal(e_back.chain.n_blocks, CHAIN_BLOCKS_MAX);
    assert_memory_equal(e_back.chain.blocks, blocks, CHAIN_BLOCKS_MAX * sizeof(*blocks));
    buf_fini(&b);
    free(text);
}

/* A buf over its limit is failed, and nothing is written behind its end. */
static void a_full_buf_is_failed(void **state) {
    static uint64_t blocks[40];
    struct request_event e = {.kind = REQUEST_ACCEPTED,
                              .chain = {.n_blocks = 40, .blocks = blocks}};

    (void)state;
    for (size_t limit = 1; limit < 262; limit++) {
        struct buf b;

        buf_init(&b, limit);
        request_event_put(&b, 1, &e);
        assert_int_equal(buf_status(&b), ST_NOMEM);
        buf_fini(&b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frames_are_these_bytes),
        cmocka_unit_test(events_read_as_written_and_not_before_they_are_whole),
        cmocka_unit_test(a_payload_cut_anywhere_is_refused),
        cmocka_unit_test(a_newer_writer_is_understood),
        cmocka_unit_test(a_stream_of_another_format_is_refused),
        cmocka_unit_test(limits_hold_at_their_documented_values),
        cmocka_unit_test(a_frame_ends_where_it_ends),
        cmocka_unit_test(half_a_block_is_refused),
        cmocka_unit_test(the_header_is_this_text),
        cmocka_unit_test(a_mark_that_is_not_whole_is_none),
        cmocka_unit_test(headers_read_as_written_and_cut_ones_never_as_more),
        cmocka_unit_test(malformed_headers_are_refused),
        cmocka_unit_test(chains_over_the_limit_are_cut),
        cmocka_unit_test(a_full_buf_is_failed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
