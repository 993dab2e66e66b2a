/* tests/unit/worker/kv/test_kv_events.c - bytes as published vectors have them, sequences without
 * holes, and a picture that follows from them alone. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/kv_events_reader.h"
#include "tests/support/support.h"
#include "worker/kv/kv_events.h"

static struct kv_event_config small(void) {
    return (struct kv_event_config){
        .max_batches = 8, .max_bytes = 4096, .block_size = 4, .hash_bytes = 32};
}

static struct kv_event_log *make(struct kv_event_config config) {
    struct kv_event_log *log;

    assert_int_equal(kv_event_log_create(&log, &config, NULL), ST_OK);
    return log;
}

static struct block_hash from_hex(const char *hex) {
    struct block_hash h = {0};

    for (size_t i = 0; i < BLOCK_HASH_BYTES; i++) {
        unsigned byte;

        assert_int_equal(sscanf(hex + 2 * i, "%2x", &byte), 1);
        h.bytes[i] = (uint8_t)byte;
    }
    return h;
}

static const char first_hex[] = "58d0879dff3800f65f8c5fd449d73048c0f7699dd238a03b84b146b151d55111";
static const char second_hex[] = "e1bc29393a2da9fd798f35ff04d215f846aee6df4b803ce3d43b57df56b58fb1";
static const uint32_t one_to_eight[] = {1, 2, 3, 4, 5, 6, 7, 8};

static struct kv_event_stored run_of_two(const struct block_hash *hashes) {
    return (struct kv_event_stored){
        .hashes = hashes, .n_blocks = 2, .tokens = one_to_eight, .lora_id = -1};
}

static void assert_payload(struct kv_event_log *log, uint64_t sequence, const char *hex) {
    uint64_t next;
    struct buf out;
    char *text;

    buf_init(&out, 0);
    assert_int_equal(kv_event_log_read(log, sequence, 0, &out, &next), ST_OK);
    assert_int_equal(next, sequence + 1);
    text = calloc(1, 2 * buf_len(&out) + 1);
    for (size_t i = KV_EVENT_HEAD_BYTES; i < buf_len(&out); i++)
        sprintf(text + 2 * (i - KV_EVENT_HEAD_BYTES), "%02x", (uint8_t)buf_ptr(&out)[i]);
    assert_string_equal(text, hex);
    free(text);
    buf_fini(&out);
}

static void batches_are_the_published_bytes(void **state) {
    const struct block_hash hashes[] = {from_hex(first_hex), from_hex(second_hex)};
    struct kv_event_stored stored = run_of_two(hashes);
    struct kv_event_log *log = make(small());

    (void)state;
    kv_event_log_stored(log, &stored);
    kv_event_log_count(log, KV_MEDIUM_GPU, 0, &hashes[0]);
    kv_event_log_count(log, KV_MEDIUM_GPU, 0, &hashes[1]);
    assert_true(kv_event_log_commit(log, 1500000, false));
    kv_event_log_removed(log, KV_MEDIUM_GPU, 0, &hashes[0]);
    kv_event_log_cleared(log);
    assert_true(kv_event_log_commit(log, 1500000, false));
    assert_payload(log, 0,
                   "93cb3ff80000000000009198ab426c6f636b53746f72656492c42058d0879dff3800f65f8c5fd4"
                   "49d73048c0f7699dd238a03b84b146b151d55111c420e1bc29393a2da9fd798f35ff04d215f846"
                   "aee6df4b803ce3d43b57df56b58fb1c098010203040506070804c0a3475055c000");
    assert_payload(log, 1,
                   "93cb3ff80000000000009293ac426c6f636b52656d6f76656491c42058d0879dff3800f65f8c5f"
                   "d449d73048c0f7699dd238a03b84b146b151d55111a347505591b0416c6c426c6f636b73436c65"
                   "6172656400");
    kv_event_log_destroy(log);
}

static void hashes_can_be_numbers(void **state) {
    const struct block_hash hashes[] = {from_hex(first_hex), from_hex(second_hex)};
    struct kv_event_config config = small();
    struct kv_event_stored stored = run_of_two(hashes);
    struct kv_events_read read;
    struct kv_event_log *log;

    (void)state;
    config.has_number_hashes = true;
    log = make(config);
    stored.parent = &hashes[1];
    kv_event_log_stored(log, &stored);
    assert_true(kv_event_log_commit(log, 0, false));
    kv_events_read_all(log, 0, &read);
    assert_string_equal(kv_events_text(&read, 0),
                        "BlockStored [9561501211280363793 15292913576410714033] "
                        "15292913576410714033 [1 2 3 4 5 6 7 8] 4 nil GPU nil");
    kv_events_read_fini(&read);
    kv_event_log_destroy(log);
}

static void extra_keys_rebuild_each_hash(void **state) {
    static const struct block_mm_item items[] = {{STR("img"), 3, 3}};
    const struct block_extras extras = {STR("ad"), STR("salt"), items, 1};
    const struct block_hash hashes[] = {from_hex(first_hex), from_hex(second_hex)};
    struct kv_event_stored stored = run_of_two(hashes);
    struct kv_event_config config = small();
    struct kv_events_read read;
    struct kv_event_log *log;

    (void)state;
    config.has_number_hashes = true;
    log = make(config);
    stored.extras = &extras;
    stored.lora_id = 42;
    kv_event_log_stored(log, &stored);
    stored.first_block = 2;
    kv_event_log_stored(log, &stored);
    assert_true(kv_event_log_commit(log, 0, false));
    kv_events_read_all(log, 0, &read);
    assert_string_equal(kv_events_text(&read, 0),
                        "BlockStored [9561501211280363793 15292913576410714033] nil "
                        "[1 2 3 4 5 6 7 8] 4 42 GPU ad [[ad [img 3] salt] [ad [img -1]]]");
    assert_string_equal(kv_events_text(&read, 1),
                        "BlockStored [9561501211280363793 15292913576410714033] nil "
                        "[1 2 3 4 5 6 7 8] 4 42 GPU ad [[ad] [ad]]");
    kv_events_read_fini(&read);
    kv_event_log_destroy(log);
}

static void groups_report_their_kind(void **state) {
    const struct block_hash hash = from_hex(first_hex);
    struct kv_event_config config = small();
    struct kv_event_stored stored = {.hashes = &hash, .n_blocks = 1, .lora_id = -1};
    struct kv_events_read read;
    struct kv_event_log *log;

    (void)state;
    config.has_number_hashes = true;
    config.n_groups = 2;
    config.groups[0] = (struct kv_event_group){"full_attention", 0};
    config.groups[1] = (struct kv_event_group){"sliding_window", 128};
    log = make(config);
    for (stored.group = 0; stored.group < 3; stored.group++)
        kv_event_log_stored(log, &stored);
    kv_event_log_count(log, KV_MEDIUM_GPU, 1, &hash);
    kv_event_log_removed(log, KV_MEDIUM_GPU, 1, &hash);
    assert_true(kv_event_log_commit(log, 0, false));
    kv_events_read_all(log, 0, &read);
    assert_string_equal(kv_events_text(&read, 0),
                        "BlockStored [9561501211280363793] nil [] 4 nil GPU nil nil 0 "
                        "full_attention");
    assert_string_equal(kv_events_text(&read, 1),
                        "BlockStored [9561501211280363793] nil [] 4 nil GPU nil nil 1 "
                        "sliding_window 128");
    assert_string_equal(kv_events_text(&read, 2),
                        "BlockStored [9561501211280363793] nil [] 4 nil GPU nil");
    assert_string_equal(kv_events_text(&read, 3), "BlockRemoved [9561501211280363793] GPU 1");
    kv_events_read_fini(&read);
    kv_event_log_destroy(log);
}

static void an_empty_batch_is_none(void **state) {
    struct kv_event_log *log = make(small());
    struct kv_event_stored nothing = {.n_blocks = 0, .lora_id = -1};
    struct buf out;
    uint64_t next;

    (void)state;
    buf_init(&out, 0);
    kv_event_log_stored(log, &nothing);
    assert_false(kv_event_log_commit(log, 1, true));
    assert_int_equal(kv_event_log_read(log, 0, 100, &out, &next), ST_AGAIN);
    assert_int_equal(next, 0);
    assert_int_equal(kv_event_log_read(log, 1, 100, &out, &next), ST_NOT_FOUND);
    kv_event_log_destroy(log);
}

static void a_late_subscriber_sees_a_gap(void **state) {
    struct kv_event_log *log = make(small());
    struct kv_event_digest digest;
    struct buf out;
    uint64_t next;

    (void)state;
    buf_init(&out, 0);
    for (int i = 0; i < 20; i++) {
        kv_event_log_cleared(log);
        assert_true(kv_event_log_commit(log, (uint64_t)i, false));
    }
    kv_event_log_digest(log, &digest);
    assert_int_equal(digest.next, 20);
    assert_int_equal(digest.oldest, 12);
    assert_int_equal(digest.sequence, 19);
    assert_int_equal(kv_event_log_read(log, 11, 100, &out, &next), ST_NOT_FOUND);
    assert_int_equal(next, 20);
    assert_int_equal(kv_event_log_read(log, 12, 1, &out, &next), ST_OK);
    assert_int_equal(next, 13);
    assert_int_equal(kv_event_log_read(log, 13, 1 << 20, &out, &next), ST_OK);
    assert_int_equal(next, 20);
    buf_fini(&out);
    kv_event_log_destroy(log);
}

static void a_batch_larger_than_the_ring_is_a_gap(void **state) {
    const struct block_hash hash = from_hex(first_hex);
    struct kv_event_log *log = make(small());
    struct kv_event_digest digest;
    struct buf out;
    uint64_t next;

    (void)state;
    buf_init(&out, 0);
    kv_event_log_cleared(log);
    assert_true(kv_event_log_commit(log, 0, false));
    for (int i = 0; i < 100; i++) {
        kv_event_log_count(log, KV_MEDIUM_CPU, 0, &hash);
        kv_event_log_removed(log, KV_MEDIUM_CPU, 0, &hash);
    }
    assert_true(kv_event_log_commit(log, 0, false));
    assert_int_equal(kv_event_log_read(log, 0, 100, &out, &next), ST_NOT_FOUND);
    assert_int_equal(kv_event_log_read(log, 1, 100, &out, &next), ST_NOT_FOUND);
    assert_int_equal(next, 2);
    kv_event_log_cleared(log);
    assert_true(kv_event_log_commit(log, 0, false));
    assert_int_equal(kv_event_log_read(log, 2, 100, &out, &next), ST_OK);
    kv_event_log_digest(log, &digest);
    assert_int_equal(digest.n_lost_batches, 1);
    buf_fini(&out);
    kv_event_log_destroy(log);
}

/* --- one picture ------------------------------------------------------------------------------ */

#define N_HASHES 200

static struct block_hash hash_number(uint32_t i) {
    struct block_hash h = {0};
    struct rng rng;

    rng_seed(&rng, i + 1);
    for (size_t k = 0; k < 4; k++) {
        uint64_t x = rng_u64(&rng);

        memcpy(h.bytes + 8 * k, &x, sizeof(x));
    }
    return h;
}

/* Random stored, removed and cleared events on a set of hashes per medium. */
static void play(struct kv_event_log *log, struct rng *rng, bool is_in[KV_MEDIUM_COUNT][N_HASHES]) {
    for (uint64_t n = rng_below(rng, 12); n > 0; n--) {
        uint32_t i = (uint32_t)rng_below(rng, N_HASHES);
        enum kv_medium medium = (enum kv_medium)rng_below(rng, KV_MEDIUM_COUNT);
        struct block_hash hash = hash_number(i);
        struct kv_event_stored stored = {.medium = medium,
                                         .hashes = &hash,
                                         .n_blocks = 1,
                                         .tokens = one_to_eight,
                                         .lora_id = -1};

        if (rng_below(rng, 300) == 0) {
            kv_event_log_cleared(log);
            memset(is_in, 0, sizeof(bool) * KV_MEDIUM_COUNT * N_HASHES);
        } else if (is_in[medium][i] && rng_below(rng, 2)) {
            kv_event_log_removed(log, medium, 0, &hash);
            is_in[medium][i] = false;
        } else {
            kv_event_log_stored(log, &stored); /* a repetition changes nothing */
            if (!is_in[medium][i]) kv_event_log_count(log, medium, 0, &hash);
            is_in[medium][i] = true;
        }
    }
}

static void a_follower_ends_with_the_digest(void **state) {
    struct kv_event_config config = small();
    bool is_in[KV_MEDIUM_COUNT][N_HASHES] = {{0}};
    struct kv_events_picture picture;
    struct kv_event_log *log;
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    config.max_bytes = 3000; /* a few batches: the ring turns often */
    config.max_batches = 5;
    log = make(config);
    kv_events_picture_init(&picture);
    for (int i = 0; i < 20000; i++) {
        play(log, &rng, is_in);
        kv_event_log_commit(log, (uint64_t)i, rng_below(&rng, 2));
        if (rng_below(&rng, 3)) continue;      /* not each time: some wait in the ring */
        if (kv_events_follow(log, &picture)) { /* too late: the subscriber gets a gap */
            kv_events_picture_clear(&picture);
            for (uint32_t m = 0; m < KV_MEDIUM_COUNT; m++) {
                for (uint32_t k = 0; k < N_HASHES; k++) {
                    struct block_hash hash = hash_number(k);

                    if (is_in[m][k]) kv_events_picture_add(&picture, (enum kv_medium)m, 0, &hash);
                }
            }
        }
        kv_events_assert_digest(log, &picture);
    }
    kv_events_picture_fini(&picture);
    kv_event_log_destroy(log);
}

/* --- two threads ------------------------------------------------------------------------------ */

struct shared {
    struct kv_event_log *log;
    atomic_bool is_done;
};

static void *write_events(void *arg) {
    struct shared *s = arg;
    bool is_in[KV_MEDIUM_COUNT][N_HASHES] = {{0}};
    struct rng rng;

    rng_seed(&rng, 7);
    for (int i = 0; i < 3000; i++) {
        play(s->log, &rng, is_in);
        kv_event_log_commit(s->log, (uint64_t)i, false);
    }
    kv_event_log_commit(s->log, 0, true);
    atomic_store(&s->is_done, true);
    return NULL;
}

static void a_reader_beside_the_writer_misses_nothing(void **state) {
    struct kv_event_config config = small();
    struct kv_events_picture picture;
    struct shared s = {0};
    pthread_t thread;
    bool is_last;

    (void)state;
    config.max_bytes = 8 << 20;
    config.max_batches = 4000;
    s.log = make(config);
    kv_events_picture_init(&picture);
    assert_int_equal(pthread_create(&thread, NULL, write_events, &s), 0);
    do {
        is_last = atomic_load(&s.is_done);
        assert_false(kv_events_follow(s.log, &picture));
    } while (!is_last);
    pthread_join(thread, NULL);
    kv_events_assert_digest(s.log, &picture);
    kv_events_picture_fini(&picture);
    kv_event_log_destroy(s.log);
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(batches_are_the_published_bytes),
        cmocka_unit_test(hashes_can_be_numbers),
        cmocka_unit_test(extra_keys_rebuild_each_hash),
        cmocka_unit_test(groups_report_their_kind),
        cmocka_unit_test(an_empty_batch_is_none),
        cmocka_unit_test(a_late_subscriber_sees_a_gap),
        cmocka_unit_test(a_batch_larger_than_the_ring_is_a_gap),
        cmocka_unit_test(a_follower_ends_with_the_digest),
        cmocka_unit_test(a_reader_beside_the_writer_misses_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
