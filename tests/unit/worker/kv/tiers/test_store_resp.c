/* tests/unit/worker/kv/tiers/test_store_resp.c - replies, whole and cut anywhere; what is not
 * taken. */
#include <stdio.h>

#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"
#include "worker/kv/tiers/store/resp.h"

#define BULK_MAX 1000

/* Writes what was read as text: "*2[:1 $2'ab']" has the same items as its reply. */
static void describe(struct buf *out, const struct resp_item *item) {
    static const char marks[] = {[RESP_STATUS] = '+', [RESP_ERROR] = '-', [RESP_INTEGER] = ':',
                                 [RESP_NIL] = '_',    [RESP_BULK] = '$',  [RESP_ARRAY] = '*'};

    buf_appendf(out, "%u.%u%c", item->depth, item->index, marks[item->kind]);
    if (item->kind == RESP_INTEGER || item->kind == RESP_ARRAY) {
        buf_appendf(out, "%lld", (long long)item->number);
    } else {
        buf_append_str(out, item->text);
    }
    buf_append_char(out, item->ends_reply ? '\n' : ' ');
}

/* Reads `all` as if it came in two pieces. */
static enum status read_cut(struct str all, size_t cut, struct buf *out) {
    struct resp r = {.max_bulk_bytes = BULK_MAX};
    size_t at = 0, end = MIN(cut, all.len);

    buf_clear(out);
    for (;;) {
        struct str in = {all.ptr + at, end - at};
        struct resp_item item;
        struct error err = {0};
        enum status st = resp_read(&r, in, &item, &err);

        if (st != ST_OK) {
            assert_true(err.message[0] != '\0');
            return st;
        }
        if (item.kind == RESP_NONE) {
            assert_true(item.wanted > in.len);
            if (end == all.len) return at == end ? ST_OK : ST_AGAIN;
            end = all.len;
            continue;
        }
        assert_true(item.n_taken > 0 && item.n_taken <= in.len);
        at += item.n_taken;
        describe(out, &item);
    }
}

static void replies_are_taken_apart_wherever_they_are_cut(void **state) {
    static const struct {
        const char *bytes, *items;
    } rows[] = {
        {"+OK\r\n", "0.0+OK\n"},
        {"-LOADING Redis is loading\r\n", "0.0-LOADING Redis is loading\n"},
        {":-42\r\n:7\r\n", "0.0:-42\n0.0:7\n"},
        {"$-1\r\n*-1\r\n", "0.0_\n0.0_\n"},
        {"$0\r\n\r\n$5\r\na\r\nbc\r\n", "0.0$\n0.0$a\r\nbc\n"},
        {"*0\r\n+\r\n", "0.0*0\n0.0+\n"},
        {"*3\r\n:1\r\n*2\r\n$1\r\nx\r\n*0\r\n$-1\r\n+PONG\r\n",
         "0.0*3 1.0:1 1.1*2 2.0$x 2.1*0 1.2_\n0.0+PONG\n"},
        {"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:9\r\n",
         "0.0*1 1.0*1 2.0*1 3.0*1 4.0*1 5.0*1 6.0*1 7.0*1 8.0:9\n"},
    };
    struct buf out;

    (void)state;
    buf_init(&out, 0);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct str all = str_of(rows[i].bytes);

        for (size_t cut = 0; cut <= all.len; cut++) {
            assert_int_equal(read_cut(all, cut, &out), ST_OK);
            buf_append(&out, "", 1);
            assert_string_equal(buf_ptr(&out), rows[i].items);
        }
    }
    buf_fini(&out);
}

static void what_is_no_reply_or_too_large_is_refused(void **state) {
    static const struct {
        const char *bytes;
        enum status st;
    } rows[] = {
        {"HTTP/1.1 200 OK\r\n", ST_INVALID},
        {"+OK\n", ST_INVALID},
        {":\r\n", ST_INVALID},
        {":1x\r\n", ST_INVALID},
        {":99999999999999999999\r\n", ST_INVALID},
        {"$-2\r\n", ST_INVALID},
        {"$3\r\nabcd\r\n", ST_INVALID},
        {"$1001\r\n", ST_TOO_LARGE},
        {"$629145600\r\n", ST_TOO_LARGE},
        {"$9223372036854775807\r\n", ST_TOO_LARGE},
        {"*65537\r\n", ST_TOO_LARGE},
        {"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n", ST_TOO_LARGE},
        {"*2\r\n:1\r\n", ST_OK},
        {"$1000\r\n", ST_AGAIN},
    };
    char line[RESP_LINE_MAX + 1];
    struct buf out;

    (void)state;
    buf_init(&out, 0);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct str all = str_of(rows[i].bytes);

        for (size_t cut = 0; cut <= all.len; cut++)
            assert_int_equal(read_cut(all, cut, &out), rows[i].st);
    }
    memset(line, '+', sizeof(line));
    assert_int_equal(read_cut((struct str){line, RESP_LINE_MAX - 1}, 1, &out), ST_AGAIN);
    assert_int_equal(read_cut((struct str){line, RESP_LINE_MAX}, 1, &out), ST_TOO_LARGE);
    buf_fini(&out);
}

/* A random reply, its bytes and its items. */
static void make_reply(struct rng *rng, uint32_t depth, uint32_t index, bool is_last,
                       struct buf *bytes, struct buf *items) {
    enum resp_kind kind =
        (enum resp_kind)(RESP_STATUS + rng_below(rng, depth < RESP_DEPTH_MAX ? 6 : 5));
    struct resp_item item = {.kind = kind, .depth = depth, .index = index};
    char text[BULK_MAX];

    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = (char)('a' + rng_below(rng, 26));
    item.text = (struct str){text, rng_below(rng, kind == RESP_BULK ? sizeof(text) : 40)};
    item.number = kind == RESP_ARRAY ? (int64_t)rng_below(rng, 4)
                                     : (int64_t)(rng_u64(rng) >> rng_below(rng, 63)) / 2;
    item.ends_reply = is_last && (kind != RESP_ARRAY || item.number == 0);
    switch (kind) {
    case RESP_BULK: resp_put_argument(bytes, item.text); break;
    case RESP_NIL: buf_append_str(bytes, STR("$-1\r\n")); break;
    case RESP_INTEGER: buf_appendf(bytes, ":%lld\r\n", (long long)item.number); break;
    case RESP_ARRAY: resp_put_command(bytes, (uint32_t)item.number); break;
    default:
        buf_appendf(bytes, "%c" STR_FMT "\r\n", kind == RESP_STATUS ? '+' : '-',
                    STR_ARG(item.text));
    }
    if (kind == RESP_NIL) item.text.len = 0;
    describe(items, &item);
    for (int64_t i = 0; kind == RESP_ARRAY && i < item.number; i++)
        make_reply(rng, depth + 1, (uint32_t)i, is_last && i + 1 == item.number, bytes, items);
}

static void random_replies_come_back_as_they_were_made(void **state) {
    struct buf bytes, items, out;
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    buf_init(&bytes, 0);
    buf_init(&items, 0);
    buf_init(&out, 0);
    for (int round = 0; round < 3000; round++) {
        buf_clear(&bytes);
        buf_clear(&items);
        for (uint64_t n = 1 + rng_below(&rng, 3); n; n--)
            make_reply(&rng, 0, 0, true, &bytes, &items);
        assert_int_equal(read_cut(buf_str(&bytes), rng_below(&rng, buf_len(&bytes) + 1), &out),
                         ST_OK);
        assert_int_equal(buf_len(&out), buf_len(&items));
        assert_memory_equal(buf_ptr(&out), buf_ptr(&items), buf_len(&items));
    }
    buf_fini(&bytes);
    buf_fini(&items);
    buf_fini(&out);
}

static void an_error_has_a_kind(void **state) {
    (void)state;
    assert_true(str_eq(resp_error_kind(STR("MOVED 866 10.0.0.1:6379")), STR("MOVED")));
    assert_true(str_eq(resp_error_kind(STR("OOM")), STR("OOM")));
    assert_true(str_eq(resp_error_kind(STR("")), STR("")));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replies_are_taken_apart_wherever_they_are_cut),
        cmocka_unit_test(what_is_no_reply_or_too_large_is_refused),
        cmocka_unit_test(random_replies_come_back_as_they_were_made),
        cmocka_unit_test(an_error_has_a_kind),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
