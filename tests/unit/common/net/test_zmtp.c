/* tests/unit/common/net/test_zmtp.c - what libzmq sends, in pieces of any size; and what others do.
 */
#include <string.h>

#include "common/net/zmtp.h"
#include "tests/support/cm.h"

#define GREETING                                                                                   \
    "\xff\0\0\0\0\0\0\0\1\x7f\3\1NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"                             \
    "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
#define READY_PUB    "\4\x19\5READY\13Socket-Type\0\0\0\3PUB"
#define READY_ROUTER "\4\x1c\5READY\13Socket-Type\0\0\0\6ROUTER"
#define PING                                                                                       \
    "\4\x0a\4PING\0\x0a"                                                                           \
    "abc"

/* Reads all of it, as it would come in pieces of `piece` bytes; in words. */
static void read_all(enum zmtp_socket socket, struct str all, size_t piece, struct buf *words) {
    struct zmtp z = {.socket = socket, .max_frame_bytes = 1000};
    size_t at = 0, end = 0;

    buf_clear(words);
    while (at < all.len) {
        struct zmtp_item item;
        struct error err = {0};
        enum status st = zmtp_read(&z, (struct str){all.ptr + at, end - at}, &item, &err);

        if (st != ST_OK) {
            buf_appendf(words, "%s: %s", status_name(st), err.message);
            break;
        }
        if (item.n_taken == 0) {
            if (end == all.len) break;
            assert_true(item.wanted > end - at);
            end = MIN(end + piece, all.len);
            continue;
        }
        at += item.n_taken;
        assert_true(at <= end);
        if (item.kind == ZMTP_READY) buf_appendf(words, "ready ");
        if (item.kind == ZMTP_PINGED) buf_appendf(words, "ping(" STR_FMT ") ", STR_ARG(item.body));
        if (item.kind == ZMTP_COMMAND) buf_appendf(words, "command ");
        if (item.kind == ZMTP_FRAME)
            buf_appendf(words, STR_FMT "%s ", STR_ARG(item.body), item.has_more ? "+" : ".");
    }
}

static void assert_reads(enum zmtp_socket socket, struct str all, const char *expected) {
    struct buf words;

    buf_init(&words, 0);
    for (size_t piece = 1; piece < 200; piece += 7) {
        read_all(socket, all, piece, &words);
        buf_append_char(&words, '\0');
        assert_string_equal(buf_ptr(&words), expected);
    }
    buf_fini(&words);
}

static void messages_are_read_in_pieces_of_any_size(void **state) {
    (void)state;
    assert_reads(
        ZMTP_SUB,
        STR(GREETING READY_PUB "\1\2kv\1\0\0\3abc" PING "\2\0\0\0\0\0\0\0\4long\4\5\4PONG"),
        "ready kv+ + abc. ping(abc) long. command ");
    assert_reads(ZMTP_DEALER, STR(GREETING READY_ROUTER "\1\0\0\1x"), "ready + x. ");
}

static void peers_of_another_kind_are_refused(void **state) {
    (void)state;
    assert_reads(ZMTP_SUB, STR("HTTP/1.1 400 Bad Request\r\n\r\n"),
                 "invalid: the port does not speak ZMTP (its first byte is 0x48): name the port of "
                 "the engine's KV event publisher");
    assert_reads(ZMTP_SUB, STR("\xff\0\0\0\0\0\0\0\1\x7f\1\0NULL"),
                 "invalid: the publisher speaks ZMTP 1: it needs ZeroMQ 4 or later");
    assert_reads(ZMTP_SUB, STR(GREETING READY_ROUTER),
                 "invalid: the socket behind the port is of type \"ROUTER\", which does not fit "
                 "SUB: name the publisher's port and the replay port in their places");
    assert_reads(ZMTP_SUB, STR(GREETING "\4\7\5ERROR\0"),
                 "invalid: the publisher refused the handshake: ");
}

static void a_mechanism_other_than_null_is_refused(void **state) {
    char greeting[] = GREETING;

    (void)state;
    memcpy(greeting + 12, "CURVE", 5);
    assert_reads(
        ZMTP_SUB, (struct str){greeting, 64},
        "invalid: the publisher requires the security mechanism CURVE: only NULL is known");
}

static void frames_that_are_none_end_the_connection(void **state) {
    (void)state;
    assert_reads(ZMTP_SUB, STR(GREETING "\0\1x"),
                 "invalid: the publisher sent a frame with flags 0x00: not ZMTP");
    assert_reads(ZMTP_SUB, STR(GREETING READY_PUB "\x48x"),
                 "ready invalid: the publisher sent a frame with flags 0x48: not ZMTP");
    assert_reads(ZMTP_SUB, STR(GREETING READY_PUB "\2\0\0\0\0\0\0\3\xe9"),
                 "ready too_large: a frame of 1001 bytes is above the limit of 1000");
    assert_reads(ZMTP_SUB, STR(GREETING READY_PUB "\2\xff\xff\xff\xff\xff\xff\xff\xff"),
                 "ready too_large: a frame of 18446744073709551615 bytes is above the limit of "
                 "1000");
    assert_reads(ZMTP_SUB, STR(GREETING READY_PUB "\4\0"),
                 "ready invalid: the publisher sent a command without a name");
    assert_reads(ZMTP_SUB, STR(GREETING READY_PUB "\4\2\7x"),
                 "ready invalid: the publisher sent a command without a name");
    assert_reads(ZMTP_SUB, STR(GREETING READY_PUB "\6\0\0\0\0\0\0\x10\1"),
                 "ready too_large: a frame of 4097 bytes is above the limit of 4096");
}

/* What is written is what the other side reads. */
static void what_is_written_can_be_read(void **state) {
    struct zmtp z = {.socket = ZMTP_DEALER};
    char large[300];
    struct buf out, words;

    (void)state;
    memset(large, 'x', sizeof(large));
    buf_init(&out, 0);
    zmtp_put_greeting(&z, &out);
    zmtp_put_frame(&out, STR("a"), true);
    zmtp_put_frame(&out, (struct str){large, sizeof(large)}, false);
    zmtp_put_ping(&out);
    zmtp_put_pong(&out, STR("0123456789abcdefX"));
    assert_int_equal(buf_len(&out), 64 + 43 + 3 + 9 + 300 + 2 + 7 + 2 + 5 + 16);
    assert_memory_equal(buf_ptr(&out), GREETING, 64);
    assert_true(str_find(buf_str(&out), STR("Socket-Type\0\0\0\6DEALER")) > 0);
    buf_init(&words, 0);
    read_all(ZMTP_DEALER, buf_str(&out), 50, &words);
    assert_int_equal(str_find(buf_str(&words), STR("ready a+ xxx")), 0);
    assert_true(str_ends(buf_str(&words), STR("x. ping() command ")));
    buf_fini(&words);
    buf_fini(&out);
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_are_read_in_pieces_of_any_size),
        cmocka_unit_test(peers_of_another_kind_are_refused),
        cmocka_unit_test(a_mechanism_other_than_null_is_refused),
        cmocka_unit_test(frames_that_are_none_end_the_connection),
        cmocka_unit_test(what_is_written_can_be_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
