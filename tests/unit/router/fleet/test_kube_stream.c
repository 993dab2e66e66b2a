/* tests/unit/router/fleet/test_kube_stream.c - watches and lists cut at every place, one result. */
#include <stdio.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "router/fleet/discovery/kube_stream.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"

/* --- lines ------------------------------------------------------------------------------------ */

/* Lines joined by '|', from pieces of the lengths that `next_len` draws. */
static void read_lines(struct str all, struct rng *rng, size_t most, struct buf *out) {
    struct kube_lines lines;
    struct str line;

    kube_lines_init(&lines);
    for (size_t at = 0; at < all.len;) {
        size_t n = 1 + (most > 1 ? (size_t)rng_below(rng, most) : 0);
        char *copy; /* of just these bytes, so that reading beyond them is seen */
        struct str piece;

        n = MIN(n, all.len - at);
        copy = mem_strndup(all.ptr + at, n);
        piece = (struct str){copy, n};
        while (kube_lines_next(&lines, &piece, &line) == ST_OK) {
            buf_append_str(out, line);
            buf_append_char(out, '|');
        }
        assert_int_equal(piece.len, 0);
        mem_free(copy);
        at += n;
    }
    kube_lines_fini(&lines);
}

static void lines_are_the_same_however_they_are_cut(void **state) {
    static const char all[] = "{\"a\":1}\n\r\n{\"b\":\"\xc3\xa9\"}\r\n  \n\n x \nhalf";
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    for (size_t most = 1; most < sizeof(all) + 2; most++) {
        struct buf out;

        buf_init(&out, 0);
        read_lines(str_of(all), &rng, most, &out);
        assert_true(str_eq(buf_str(&out), STR("{\"a\":1}|{\"b\":\"\xc3\xa9\"}|x|")));
        buf_fini(&out);
    }
}

static void an_event_of_a_megabyte_is_one_line_and_more_is_too_much(void **state) {
    struct kube_lines lines;
    struct buf big;
    struct str piece, line;

    (void)state;
    buf_init(&big, 0);
    for (int i = 0; i < 1 << 20; i++)
        buf_append_char(&big, 'x');
    kube_lines_init(&lines);
    for (size_t at = 0; at < buf_len(&big); at += 2048) {
        piece = (struct str){buf_ptr(&big) + at, 2048};
        assert_int_equal(kube_lines_next(&lines, &piece, &line), ST_AGAIN);
    }
    piece = STR("y\n");
    assert_int_equal(kube_lines_next(&lines, &piece, &line), ST_OK);
    assert_int_equal(line.len, (1 << 20) + 1);
    for (int i = 0; i < 2; i++) {
        piece = buf_str(&big);
        assert_int_equal(kube_lines_next(&lines, &piece, &line), ST_AGAIN);
    }
    piece = STR("y");
    assert_int_equal(kube_lines_next(&lines, &piece, &line), ST_TOO_LARGE);
    kube_lines_clear(&lines);
    piece = STR("a\n");
    assert_int_equal(kube_lines_next(&lines, &piece, &line), ST_OK);
    kube_lines_fini(&lines);
    buf_fini(&big);
}

/* --- events ----------------------------------------------------------------------------------- */

static void events_have_type_object_and_version(void **state) {
    struct kube_event e;

    (void)state;
    assert_int_equal(
        kube_event_read(&e,
                        STR("{\"type\":\"MODIFIED\",\"object\":{\"kind\":\"Pod\",\"metadata\":{"
                            "\"name\":\"a\",\"annotations\":{\"resourceVersion\":\"not this\"},"
                            "\"managedFields\":[{\"f:x\":{}}],\"resourceVersion\":\"71\"},"
                            "\"spec\":{\"metadata\":{\"resourceVersion\":\"nor this\"}}}}"),
                        NULL),
        ST_OK);
    assert_int_equal(e.type, KUBE_MODIFIED);
    assert_true(str_eq(e.version, STR("71")));
    assert_true(str_starts(e.object, STR("{\"kind\":\"Pod\"")));
    assert_true(str_ends(e.object, STR("\"nor this\"}}}")));

    assert_int_equal(kube_event_read(&e,
                                     STR(" { \"object\" : { \"metadata\" : { \"resourceVersion\" "
                                         ": \"opaque-9/x\" } } , \"type\" : \"BOOKMARK\" } "),
                                     NULL),
                     ST_INVALID); /* a line comes trimmed */
    assert_int_equal(kube_event_read(&e,
                                     STR("{ \"object\" : { \"metadata\" : { \"resourceVersion\" "
                                         ": \"opaque-9/x\" } } , \"type\" : \"BOOKMARK\" }"),
                                     NULL),
                     ST_OK);
    assert_int_equal(e.type, KUBE_BOOKMARK);
    assert_true(str_eq(e.version, STR("opaque-9/x")));
}

static void an_error_event_carries_a_status(void **state) {
    struct kube_event e;
    struct kube_status s;

    (void)state;
    assert_int_equal(
        kube_event_read(&e,
                        STR("{\"type\":\"ERROR\",\"object\":{\"kind\":\"Status\",\"apiVersion\":"
                            "\"v1\",\"metadata\":{},\"status\":\"Failure\",\"message\":\"too old "
                            "resource version: 1 (5)\",\"reason\":\"Expired\",\"code\":410}}"),
                        NULL),
        ST_OK);
    assert_int_equal(e.type, KUBE_ERROR);
    kube_status_read(&s, e.object);
    assert_int_equal(s.code, 410);
    assert_string_equal(s.reason, "Expired");
    assert_true(kube_status_is_expired(&s));
    kube_status_read(&s, STR("{\"reason\":\"Timeout\",\"details\":{\"causes\":[{\"reason\":"
                             "\"ResourceVersionTooLarge\",\"message\":\"x\"}],"
                             "\"retryAfterSeconds\":1},\"code\":504}"));
    assert_true(s.is_version_too_large);
    assert_int_equal(s.retry_after_s, 1);
    assert_false(kube_status_is_expired(&s));
    kube_status_read(&s, STR("<html>502</html>"));
    assert_int_equal(s.code, 0);
    kube_status_read(&s, STR("{\"details\":7,\"code\":\"x\",\"reason\":[]}"));
    assert_int_equal(s.code, 0);
}

static void an_invalid_event_is_refused_with_a_reason(void **state) {
    static const char *const lines[] = {
        "",
        "x",
        "{}",
        "[]",
        "{\"type\":\"ADDED\"}",
        "{\"type\":\"ADDED\",\"object\":7}",
        "{\"type\":\"ADDED\",\"object\":{}}",
        "{\"type\":\"ADDED\",\"object\":{\"metadata\":{}}}",
        "{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"resourceVersion\":1234}}}",
        "{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"resourceVersion\":\"\"}}}",
        "{\"type\":\"SYNCED\",\"object\":{\"metadata\":{\"resourceVersion\":\"7\"}}}",
        "{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"resourceVersion\":\"7\"}}",
        "{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"resourceVersion\":\"7\"}}} {}",
        "{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"resourceVersion\":\"7\"}]}",
        "{\"type\" \"ADDED\",\"object\":{\"metadata\":{\"resourceVersion\":\"7\"}}}",
        "{,\"type\":\"ADDED\"}",
        "{\"type\":\"ADDED\",}",
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
        struct error err = {0};
        struct kube_event e;

        assert_int_equal(kube_event_read(&e, str_of(lines[i]), &err), ST_INVALID);
        assert_true(err.message[0]);
    }
}

/* --- lists ------------------------------------------------------------------------------------ */

static void note_item(struct str item, void *arg) {
    buf_append_str(arg, item);
    buf_append_char(arg, '|');
}

/* Like read_lines. */
static enum status read_list(struct kube_list *l, struct str all, struct rng *rng, size_t most) {
    enum status st = ST_OK;

    for (size_t at = 0; st == ST_OK && at < all.len;) {
        size_t n = 1 + (most > 1 ? (size_t)rng_below(rng, most) : 0);
        char *copy;

        n = MIN(n, all.len - at);
        copy = mem_strndup(all.ptr + at, n);
        st = kube_list_feed(l, (struct str){copy, n}, NULL);
        mem_free(copy);
        at += n;
    }
    return st == ST_OK ? kube_list_end(l, NULL) : st;
}

static void a_list_is_the_same_however_it_is_cut(void **state) {
    static const char all[] =
        " {\"kind\":\"PodList\",\"n\":-1.5e3,\"x\":[[{\"items\":[1]}],null],\"metadata\" : "
        "{\"resourceVersion\":\"42\",\"continue\":\"a\\u002fb\",\"remainingItemCount\":9},"
        "\"items\":[{\"a\":\"]}\\\"\\\\\"} , {\"b\":[1,2,{}]},{}, {\"c\":true}\n ] }\n";
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    for (size_t most = 1; most < sizeof(all) + 2; most++) {
        struct kube_list l;
        struct buf out;

        buf_init(&out, 0);
        kube_list_init(&l, note_item, &out);
        assert_int_equal(read_list(&l, str_of(all), &rng, most), ST_OK);
        assert_true(
            str_eq(buf_str(&out), STR("{\"a\":\"]}\\\"\\\\\"}|{\"b\":[1,2,{}]}|{}|{\"c\":true}|")));
        assert_int_equal(l.n_items, 4);
        assert_string_equal(l.version, "42");
        assert_string_equal(l.next, "a/b");
        kube_list_fini(&l);
        buf_fini(&out);
    }
}

static void an_empty_list_may_be_null(void **state) {
    static const char *const lists[] = {
        "{\"metadata\":{\"resourceVersion\":\"1\"},\"items\":null}",
        "{\"metadata\":{\"resourceVersion\":\"1\"},\"items\":[]}",
        "{\"metadata\":{\"resourceVersion\":\"1\",\"continue\":\"\"}}",
        "{\"items\":[ ],\"metadata\":{\"resourceVersion\":\"1\",\"continue\":null}}",
    };
    struct buf out;

    (void)state;
    buf_init(&out, 0);
    for (size_t i = 0; i < ARRAY_LEN(lists); i++) {
        struct kube_list l;

        kube_list_init(&l, note_item, &out);
        assert_int_equal(read_list(&l, str_of(lists[i]), NULL, 1), ST_OK);
        assert_int_equal(l.n_items, 0);
        assert_string_equal(l.version, "1");
        assert_string_equal(l.next, "");
        kube_list_fini(&l);
    }
    buf_fini(&out);
}

static void an_invalid_list_is_refused(void **state) {
    static const char *const lists[] = {
        "",
        "[]",
        "{}",
        "{\"metadata\":{}}",
        "{\"items\":[]}",
        "{\"metadata\":7,\"items\":[]}",
        "{\"metadata\":{\"resourceVersion\":7}}",
        "{\"metadata\":{\"resourceVersion\":\"1\"}",
        "{\"metadata\":{\"resourceVersion\":\"1\"},\"items\":[{}",
        "{\"metadata\":{\"resourceVersion\":\"1\"},\"items\":[{]]}",
        "{\"metadata\":{\"resourceVersion\":\"1\"}}x",
        "{7:1}",
        "{\"a\" 1}",
        "{\"a\":1 \"b\":2}",
        "{\"a\":}",
    };
    struct buf out;

    (void)state;
    buf_init(&out, 0);
    for (size_t i = 0; i < ARRAY_LEN(lists); i++) {
        struct kube_list l;

        kube_list_init(&l, note_item, &out);
        assert_int_not_equal(read_list(&l, str_of(lists[i]), NULL, 1), ST_OK);
        kube_list_clear(&l); /* and it can be used again */
        assert_int_equal(read_list(&l, STR("{\"metadata\":{\"resourceVersion\":\"1\"}}"), NULL, 1),
                         ST_OK);
        kube_list_fini(&l);
    }
    buf_fini(&out);
}

static void an_item_without_end_is_too_large(void **state) {
    char piece[4096];
    struct kube_list l;
    enum status st;
    struct buf out;
    int n = 0;

    (void)state;
    buf_init(&out, 0);
    memset(piece, 'x', sizeof(piece));
    kube_list_init(&l, note_item, &out);
    st = kube_list_feed(&l, STR("{\"items\":[{\"a\":\""), NULL);
    while (st == ST_OK && n++ < 2000)
        st = kube_list_feed(&l, (struct str){piece, sizeof(piece)}, NULL);
    assert_int_equal(st, ST_TOO_LARGE);

    kube_list_clear(&l); /* unwanted fields of any length are not kept */
    st = kube_list_feed(&l, STR("{\"metadata\":{\"resourceVersion\":\"1\"},\"kind\":\""), NULL);
    for (n = 0; n < 1000; n++)
        assert_int_equal(kube_list_feed(&l, (struct str){piece, sizeof(piece)}, NULL), ST_OK);
    assert_int_equal(kube_list_feed(&l, STR("\"}"), NULL), ST_OK);
    assert_int_equal(kube_list_end(&l, NULL), ST_OK);
    kube_list_fini(&l);
    buf_fini(&out);
}

static void nesting_has_a_limit(void **state) {
    struct buf text;
    size_t n;

    (void)state;
    buf_init(&text, 0);
    for (int depth = KUBE_JSON_DEPTH_MAX; depth <= KUBE_JSON_DEPTH_MAX + 1; depth++) {
        struct kube_scan scan = {0};

        buf_clear(&text);
        for (int i = 0; i < depth; i++)
            buf_append_char(&text, '[');
        for (int i = 0; i < depth; i++)
            buf_append_char(&text, ']');
        assert_int_equal(kube_scan_feed(&scan, buf_str(&text), &n),
                         depth == KUBE_JSON_DEPTH_MAX ? ST_OK : ST_INVALID);
    }
    buf_fini(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_are_the_same_however_they_are_cut),
        cmocka_unit_test(an_event_of_a_megabyte_is_one_line_and_more_is_too_much),
        cmocka_unit_test(events_have_type_object_and_version),
        cmocka_unit_test(an_error_event_carries_a_status),
        cmocka_unit_test(an_invalid_event_is_refused_with_a_reason),
        cmocka_unit_test(a_list_is_the_same_however_it_is_cut),
        cmocka_unit_test(an_empty_list_may_be_null),
        cmocka_unit_test(an_invalid_list_is_refused),
        cmocka_unit_test(an_item_without_end_is_too_large),
        cmocka_unit_test(nesting_has_a_limit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
