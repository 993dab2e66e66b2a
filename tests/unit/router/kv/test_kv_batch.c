/* tests/unit/router/kv/test_kv_batch.c - batches as engines of three years wrote them, and as no
 * engine would. The recordings are of msgspec 0.22 with the field lists of the engines' sources. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"
#include "router/kv/kv_batch.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"

#define HASH_A                                                                                     \
    "c420000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f" /* ends 18..1f */
#define HASH_B  "c4206465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f80818283"
#define STORED  "ab426c6f636b53746f726564"
#define REMOVED "ac426c6f636b52656d6f766564"
#define CLEARED "b0416c6c426c6f636b73436c6561726564"
#define HASHES  "ac626c6f636b5f686173686573"
#define PARENT  "b1706172656e745f626c6f636b5f68617368"
#define TOKENS  "a9746f6b656e5f696473"
#define SIZE    "aa626c6f636b5f73697a65"
#define LORA    "a76c6f72615f6964c0"
#define NAME    "a96c6f72615f6e616d65c0"
#define MEDIUM  "a66d656469756d"
#define GROUP   "a967726f75705f696478"
#define KIND    "b26b765f63616368655f737065635f6b696e64"
#define TIME    "cb3ff8000000000000"
#define TYPE    "a474797065"

static struct str bytes_of(const char *hex, char *to, size_t cap) {
    size_t n = strlen(hex) / 2;

    assert_true(n <= cap && strlen(hex) % 2 == 0);
    for (size_t i = 0; i < n; i++)
        to[i] = (char)(str_hex_value((unsigned char)hex[2 * i]) << 4 |
                       str_hex_value((unsigned char)hex[2 * i + 1]));
    return (struct str){to, n};
}

/* What was read, in words: "stored device 2 tokens: 7 8; removed host: 7". */
static void put_event(struct buf *out, struct kv_event *e) {
    static const char *const kinds[] = {"stored", "removed", "cleared"};
    uint64_t hash;
    bool is_gone;

    buf_appendf(out, "%s%s", buf_len(out) ? "; " : "", kinds[e->kind]);
    if (e->kind != KV_CLEARED)
        buf_appendf(out, " %s", e->tier < KV_TIER_COUNT ? kv_tier_names[e->tier] : "?");
    if (e->block_tokens) buf_appendf(out, " of %u", e->block_tokens);
    if (e->group >= 0) buf_appendf(out, " group %d", (int)e->group);
    if (!e->is_full) buf_appendf(out, " partial");
    if (e->has_pairs) buf_appendf(out, " pairs");
    while (kv_event_hash(e, &hash, &is_gone))
        buf_appendf(out, " %llx%s", (unsigned long long)hash, is_gone ? "" : "(copies)");
}

static void read_all(struct str payload, struct buf *out) {
    struct kv_batch b;
    struct kv_event e;
    enum status st;

    buf_clear(out);
    if (kv_batch_open(&b, payload) != ST_OK) {
        buf_appendf(out, "no batch");
        return;
    }
    while ((st = kv_batch_next(&b, &e)) == ST_OK)
        put_event(out, &e);
    if (b.n_unknown) buf_appendf(out, "; %u unknown", b.n_unknown);
    if (b.n_malformed) buf_appendf(out, "; %u malformed", b.n_malformed);
    if (st != ST_NOT_FOUND) buf_appendf(out, "; cut");
}

struct recording {
    const char *name, *hex, *events;
};

static void assert_reads(const struct recording *cases, size_t n) {
    char bytes[4096];
    struct buf out;

    buf_init(&out, 0);
    for (size_t i = 0; i < n; i++) {
        read_all(bytes_of(cases[i].hex, bytes, sizeof(bytes)), &out);
        buf_append_char(&out, '\0');
        if (strcmp(buf_ptr(&out), cases[i].events) != 0)
            fail_msg("%s: \"%s\", not \"%s\"", cases[i].name, buf_ptr(&out), cases[i].events);
    }
    buf_fini(&out);
}

static void recorded_batches_of_each_generation_are_read(void **state) {
    static const struct recording cases[] = {
        {"vLLM 0.10: arrays, integers",
         "92" TIME "9396" STORED "9207cf8000000000000005c09201cd012c01c092" REMOVED
         "910791" CLEARED,
         "stored device of 1 7 8000000000000005; removed device 7; cleared"},
        {"SGLang: arrays, signed integers",
         "92" TIME "9296" STORED "91fdf79201ce0001117002c092" REMOVED "91fd",
         "stored device of 2 fffffffffffffffd; removed device fffffffffffffffd"},
        {"vLLM 0.20: arrays, SHA-256",
         "93" TIME "9397" STORED "91" HASH_A "c092010202c0a347505593" REMOVED "91" HASH_A
         "a347505591" CLEARED "00",
         "stored device of 2 18191a1b1c1d1e1f; removed device 18191a1b1c1d1e1f; cleared"},
        {"vLLM 0.26: maps",
         "93" TIME "938b" TYPE STORED HASHES "92" HASH_A HASH_B PARENT HASH_A TOKENS
         "9401020304" SIZE "02" LORA MEDIUM "a3435055" NAME
         "aa65787472615f6b65797392c091a473616c74" GROUP "01" KIND
         "ae66756c6c5f617474656e74696f6e84" TYPE REMOVED HASHES "91" HASH_B MEDIUM "a3435055" GROUP
         "0181" TYPE CLEARED "03",
         "stored host of 2 group 1 18191a1b1c1d1e1f 7c7d7e7f80818283; removed host group 1 "
         "7c7d7e7f80818283; cleared"},
        {"vLLM: a map of maps, a sliding window",
         "83a27473" TIME "a66576656e7473928b" TYPE STORED HASHES "91" HASH_A PARENT "c0" TOKENS
         "920101" SIZE "02" LORA MEDIUM "c0" NAME GROUP "02" KIND
         "ae736c6964696e675f77696e646f77bc6b765f63616368655f737065635f736c6964696e675f77696e646f77"
         "cc8084" TYPE REMOVED HASHES "91" HASH_A MEDIUM "c0" GROUP
         "02b2646174615f706172616c6c656c5f72616e6b01",
         "stored device of 2 group 2 partial 18191a1b1c1d1e1f; removed device group 2 "
         "18191a1b1c1d1e1f"},
        {"SGLang: maps with a session, copies that are left",
         "93" TIME "928a" TYPE STORED HASHES "92fd05" PARENT "c0" TOKENS "920101" SIZE
         "01" LORA MEDIUM "a3475055" NAME
         "aa73657373696f6e5f6964a3732d31aa63616368655f73616c74a473616c7484" TYPE REMOVED HASHES
         "9205fd" MEDIUM "a3475055b572656d61696e696e675f636f70795f636f756e7473920100c0",
         "stored device of 1 fffffffffffffffd 5; removed device 5(copies) fffffffffffffffd"},
    };

    (void)state;
    assert_reads(cases, ARRAY_LEN(cases));
}

static void what_is_not_understood_is_stepped_over(void **state) {
    static const struct recording cases[] = {
        {"an unknown tag", "92009292a3466f6f9192c00192" REMOVED "9107",
         "removed device 7; 1 unknown"},
        {"a byte that is no MessagePack", "92009292a3466f6fc192" REMOVED "9107",
         "; 1 malformed; cut"},
        {"a tag of tomorrow",
         "92009292a3466f6f82a161c0a1629101"
         "92" REMOVED "9107",
         "removed device 7; 1 unknown"},
        {"more fields than are known", "92009196" REMOVED "9107c0c0c081a17801", "removed device 7"},
        {"hashes that are no array", "92009292" REMOVED "0792" REMOVED "9107",
         "removed device 7; 1 malformed"},
        {"a hash of four bytes", "92009192" REMOVED "91c40401020304", "; 1 malformed"},
        {"no block size", "92009194" STORED "9107c090", "; 1 malformed"},
        {"a block of no tokens", "92009195" STORED "9107c09000", "; 1 malformed"},
        {"a block of 65,536 tokens", "92009195" STORED "9107c090ce00010000", "; 1 malformed"},
        {"tokens that are pairs",
         "92009195" STORED "9107c0919201020"
         "1",
         "stored device of 1 pairs 7"},
        {"a medium that is not known", "92009193" REMOVED "9107a3584d4c", "removed ? 7"},
        {"a medium in small letters", "92009193" REMOVED "9107a3637075", "removed host 7"},
        {"no events", "920090", ""},
        {"an empty event", "92009190", "; 1 malformed"},
        {"an event that is a number", "92009107", "; 1 malformed"},
        {"a map without a type", "92009181" HASHES "9107", "; 1 unknown"},
        {"a batch that is a string", "a3616263", "no batch"},
        {"a batch without events", "9100", "no batch"},
        {"a map without events", "81a2747300", "no batch"},
        {"nothing", "", "no batch"},
    };

    (void)state;
    assert_reads(cases, ARRAY_LEN(cases));
}

/* 20,000 arrays in each other, where a field that is not known may be anything. */
static void deep_nesting_is_stepped_over(void **state) {
    struct buf b, out;

    (void)state;
    buf_init(&b, 0);
    buf_init(&out, 0);
    msgpack_begin_array(&b, 2);
    msgpack_put_nil(&b);
    msgpack_begin_array(&b, 1);
    msgpack_begin_array(&b, 5);
    msgpack_put_str(&b, STR("AllBlocksCleared"));
    for (uint32_t i = 0; i < 4; i++) {
        for (uint32_t depth = 0; depth < 20000; depth++)
            msgpack_begin_array(&b, 1);
        msgpack_put_nil(&b);
    }
    read_all(buf_str(&b), &out);
    assert_true(str_eq(buf_str(&out), STR("cleared")));
    buf_fini(&b);
    buf_fini(&out);
}

static void a_batch_cut_anywhere_gives_no_event_of_its_rest(void **state) {
    char bytes[256];
    struct str whole =
        bytes_of("92" TIME "9292" REMOVED "910792" REMOVED "9108", bytes, sizeof(bytes));
    struct buf out;

    (void)state;
    buf_init(&out, 0);
    for (size_t n = 0; n < whole.len; n++) {
        char *cut = malloc(n ? n : 1); /* for the sanitizer */

        memcpy(cut, whole.ptr, n);
        read_all((struct str){cut, n}, &out);
        assert_true(str_find(buf_str(&out), STR("removed device 8")) < 0);
        free(cut);
    }
    buf_fini(&out);
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_batches_of_each_generation_are_read),
        cmocka_unit_test(what_is_not_understood_is_stepped_over),
        cmocka_unit_test(deep_nesting_is_stepped_over),
        cmocka_unit_test(a_batch_cut_anywhere_gives_no_event_of_its_rest),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
