/* tests/unit/router/kv/test_kv_frame.c - frames of a worker's own stream of KV events. */
#include <endian.h>
#include <string.h>

#include "router/kv/kv_frame.h"
#include "tests/support/cm.h"

static void put_frame(struct buf *b, uint64_t number, struct str payload) {
    uint32_t length = htobe32((uint32_t)payload.len);

    number = htobe64(number);
    buf_append(b, &length, sizeof(length));
    buf_append(b, &number, sizeof(number));
    buf_append_str(b, payload);
}

static void put_control(struct buf *b, const char *name, const char *json) {
    struct buf payload;

    buf_init(&payload, 0);
    msgpack_begin_map(&payload, 1);
    msgpack_put_str(&payload, str_of(name));
    msgpack_put_str(&payload, str_of(json));
    put_frame(b, UINT64_MAX, buf_str(&payload));
    buf_fini(&payload);
}

static enum status read_control(const char *name, const char *json, struct kv_frame *out,
                                struct error *err) {
    struct buf b;
    enum status st;
    size_t n;

    buf_init(&b, 0);
    put_control(&b, name, json);
    st = kv_frame_read(buf_str(&b), out, &n, err);
    if (st == ST_OK) assert_int_equal(n, buf_len(&b));
    buf_fini(&b);
    return st;
}

static void a_frame_is_read_when_it_is_whole(void **state) {
    struct kv_frame frame;
    struct buf b;
    size_t n;

    (void)state;
    buf_init(&b, 0);
    put_frame(&b, 7, STR("batch"));
    put_frame(&b, 8, STR(""));
    for (size_t len = 0; len < 17; len++) {
        frame.number = 99;
        assert_int_equal(kv_frame_read((struct str){buf_ptr(&b), len}, &frame, &n, NULL), ST_OK);
        assert_int_equal(n, len < 12 ? 12 : 17);
        assert_int_equal(frame.number, 99);
    }
    assert_int_equal(kv_frame_read(buf_str(&b), &frame, &n, NULL), ST_OK);
    assert_true(n == 17 && frame.kind == KV_FRAME_BATCH && frame.number == 7);
    assert_true(str_eq(frame.batch, STR("batch")));
    buf_consume(&b, n);
    assert_int_equal(kv_frame_read(buf_str(&b), &frame, &n, NULL), ST_OK);
    assert_true(n == 12 && frame.number == 8 && frame.batch.len == 0);
    buf_fini(&b);
}

static void frames_about_the_stream_are_read(void **state) {
    struct kv_frame f;

    (void)state;
    assert_int_equal(
        read_control("gap", "{\"asked\":3,\"resume\":9,\"generation\":\"0a\"}", &f, NULL), ST_OK);
    assert_true(f.kind == KV_FRAME_GAP && f.next == 9 && strcmp(f.generation, "0a") == 0);
    assert_int_equal(read_control("digest",
                                  "{\"sequence\":6,\"next\":7,\"generation\":\"0b\",\"sets\":["
                                  "{\"medium\":\"GPU\",\"group_idx\":1,\"blocks\":9,"
                                  "\"xor\":\"ffffffffffffffff0000000000000a0b\"},"
                                  "{\"medium\":\"TAPE\",\"blocks\":2,\"xor\":\"00000000000000ff\"}"
                                  "],\"new\":[]}",
                                  &f, NULL),
                     ST_OK);
    assert_true(f.kind == KV_FRAME_DIGEST && f.next == 7 && f.n_sets == 2);
    assert_true(f.sets[0].tier == KV_DEVICE && f.sets[0].group == 1 && f.sets[0].n_blocks == 9);
    assert_true(f.sets[0].digest == 0x0a0b && f.sets[1].digest == 0xff);
    assert_true(f.sets[1].tier == KV_TIER_COUNT && f.sets[1].group == KV_GROUP_NONE);
    assert_int_equal(read_control("closed", "{\"reason\":\"too slow\"}", &f, NULL), ST_OK);
    assert_true(f.kind == KV_FRAME_CLOSED && strcmp(f.why, "too slow") == 0);
    assert_int_equal(read_control("later", "{}", &f, NULL), ST_OK);
    assert_int_equal(f.kind, KV_FRAME_OTHER);
}

static void what_is_no_such_stream_is_refused(void **state) {
    static const struct {
        const char *name, *json;
    } bad[] = {
        {"gap", "{}"},
        {"gap", "{\"resume\":-1}"},
        {"gap", "[9]"},
        {"gap", "{\"resume\":9"},
        {"digest", "{\"next\":7,\"generation\":\"a b\"}"},
        {"digest", "{\"next\":7,\"generation\":\"a\\r\\nHost: x\"}"},
        {"digest", "{\"next\":7,\"sets\":[3]}"},
        {"digest", "{\"next\":7,\"sets\":[{\"medium\":\"GPU\",\"blocks\":1}]}"},
        {"digest", "{\"next\":7,\"sets\":[{\"blocks\":1,\"xor\":\"zzzzzzzzzzzzzzzz\"}]}"},
    };
    struct kv_frame f = {.number = 99};
    struct error err = {0};
    struct buf b;
    size_t n;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        err.message[0] = '\0';
        assert_int_equal(read_control(bad[i].name, bad[i].json, &f, &err), ST_INVALID);
        assert_true(err.message[0] && f.number == 99);
    }
    buf_init(&b, 0);
    put_frame(&b, UINT64_MAX, STR("\x01"));
    assert_int_equal(kv_frame_read(buf_str(&b), &f, &n, &err), ST_INVALID);
    assert_int_equal(kv_frame_read(STR("HTTP/1.1 200"), &f, &n, &err), ST_INVALID);
    assert_non_null(strstr(err.message, "above the limit"));
    buf_fini(&b);
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_frame_is_read_when_it_is_whole),
        cmocka_unit_test(frames_about_the_stream_are_read),
        cmocka_unit_test(what_is_no_such_stream_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
