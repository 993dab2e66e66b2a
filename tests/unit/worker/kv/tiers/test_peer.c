/* tests/unit/worker/kv/tiers/test_peer.c - a source and a sink in one process: what comes is what
 * the source has, and whatever the other side does, every job comes home and every pin ends. */
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/peer_fixture.h"
#include "tests/support/support.h"

static struct peer_desk desk;

static void begin(bool is_sealed, size_t block_bytes) {
    peer_desk_begin(&desk, is_sealed, block_bytes);
    peer_desk_open_server(&desk, 0, UINT32_MAX);
    peer_desk_open_sink(&desk);
}

static void blocks_come_as_they_are(void **state) {
    static const size_t sizes[] = {4096, 32768, (3u << 20) + 64};
    static struct tier_job jobs[2];

    (void)state;
    for (size_t i = 0; i < 2 * ARRAY_LEN(sizes); i++) {
        uint32_t n = sizes[i / 2] > 1u << 20 ? 5 : TIER_JOB_UNITS;

        begin(i % 2, sizes[i / 2]);
        peer_job_submit(&desk, &jobs[0], 0, n);
        peer_job_submit(&desk, &jobs[1], n, n);
        peer_desk_await(&desk, 2);
        for (int j = 0; j < 2; j++) {
            peer_job_check(&desk, &jobs[j]);
            assert_int_equal(peer_job_count(&jobs[j], TIER_OK), n);
            assert_true(jobs[j].began_us > 0 && jobs[j].ended_us >= jobs[j].began_us);
        }
        PEER_UNTIL(atomic_load(&desk.n_pinned) == 0);
        peer_desk_end(&desk);
    }
}

static void a_run_ends_at_the_first_block_that_is_missing(void **state) {
    static struct tier_job job;

    (void)state;
    begin(true, 4096);
    atomic_store(&desk.has[7], false);
    peer_desk_run(&desk, &job, 0, 20);
    assert_int_equal(peer_job_count(&job, TIER_OK), 7);
    assert_int_equal(job.units[7].result, TIER_ABSENT);
    assert_int_equal(peer_job_count(&job, TIER_SKIPPED), 12);
    peer_desk_run(&desk, &job, 7, 3);
    assert_int_equal(job.units[0].result, TIER_ABSENT);
    assert_true(desk.tier->ops->can_ask(desk.tier, &desk.source));
    peer_desk_end(&desk);
}

/* Jobs of any lengths and places, some of which nobody needs any more, from a source that loses
 * blocks and gets them back: what is said to be there is right, and front to back. */
static void random_jobs_come_home(void **state) {
    static struct tier_job jobs[PEER_JOBS_MAX];
    struct rng rng;

    (void)state;
    begin(true, 4096);
    rng_seed(&rng, support_seed());
    for (int round = 0; round < 60; round++) {
        uint32_t n_jobs = 1 + (uint32_t)rng_below(&rng, PEER_JOBS_MAX), n_before = desk.n_mails;
        uint32_t n_absent = (uint32_t)rng_below(&rng, 4);

        for (uint32_t i = 0; i < PEER_TEST_BLOCKS; i++)
            atomic_store(&desk.has[i], rng_below(&rng, PEER_TEST_BLOCKS) >= n_absent);
        for (uint32_t j = 0; j < n_jobs; j++) {
            uint32_t first = PEER_TEST_BLOCKS / PEER_JOBS_MAX * j;

            peer_job_submit(&desk, &jobs[j], first, 1 + (uint32_t)rng_below(&rng, 4));
            if (rng_below(&rng, 8) == 0) atomic_store(&jobs[j].is_cancelled, true);
        }
        peer_desk_await(&desk, n_before + n_jobs);
        for (uint32_t j = 0; j < n_jobs; j++) {
            uint32_t n_ok = 0;

            peer_job_check(&desk, &jobs[j]);
            while (n_ok < jobs[j].n && jobs[j].units[n_ok].result == TIER_OK)
                n_ok++;
            assert_int_equal(peer_job_count(&jobs[j], TIER_OK), n_ok);
            if (n_ok == jobs[j].n || atomic_load(&jobs[j].is_cancelled)) continue;
            assert_int_equal(jobs[j].units[n_ok].result, TIER_ABSENT);
        }
    }
    PEER_UNTIL(atomic_load(&desk.n_pinned) == 0);
    peer_desk_end(&desk);
}

static void a_job_that_nobody_needs_is_cancelled_on_its_way(void **state) {
    static struct tier_job job;

    (void)state;
    begin(false, 4096);
    atomic_store(&desk.n_keeps, 1);
    peer_job_submit(&desk, &job, 0, TIER_JOB_UNITS);
    PEER_UNTIL(atomic_load(&desk.n_pinned) == TIER_JOB_UNITS);
    atomic_store(&job.is_cancelled, true);
    peer_desk_release(&desk);
    peer_desk_await(&desk, 1);
    peer_job_check(&desk, &job);
    assert_int_equal(peer_job_count(&job, TIER_OK) + peer_job_count(&job, TIER_SKIPPED),
                     TIER_JOB_UNITS);
    assert_true(job.units[0].result == TIER_OK);
    PEER_UNTIL(atomic_load(&desk.n_pinned) == 0);
    peer_desk_end(&desk);
}

static void a_source_that_ends_loses_its_jobs_and_is_asked_again_later(void **state) {
    static struct tier_job jobs[4];

    (void)state;
    begin(true, 4096);
    peer_desk_run(&desk, &jobs[0], 0, 4);
    assert_int_equal(peer_job_count(&jobs[0], TIER_OK), 4);
    atomic_store(&desk.n_keeps, 1000); /* it has the question, and never answers */
    for (uint32_t j = 0; j < 4; j++)
        peer_job_submit(&desk, &jobs[j], 4 * j, 4);
    PEER_UNTIL(atomic_load(&desk.n_pinned) > 0);
    peer_desk_close_server(&desk);
    peer_desk_await(&desk, 5);
    for (uint32_t j = 0; j < 4; j++)
        assert_int_equal(jobs[j].units[0].result, TIER_IO);
    while (desk.tier->ops->can_ask(desk.tier, &desk.source)) { /* its breaker opens, for longer */
        peer_desk_run(&desk, &jobs[0], 0, 4);
        assert_int_equal(jobs[0].units[0].result, TIER_IO);
    }
    PEER_UNTIL(desk.tier->ops->can_ask(desk.tier, &desk.source)); /* half open */
    peer_desk_end(&desk);
}

/* It takes the connection, and no more. */
static void a_source_that_is_stopped_is_given_up(void **state) {
    static struct tier_job job;
    int listener;

    (void)state;
    peer_desk_begin(&desk, false, 4096);
    desk.config.greet_ms = 30;
    listener = peer_listen(&desk.source);
    peer_desk_open_sink(&desk);
    peer_desk_run(&desk, &job, 0, 4);
    assert_int_equal(job.units[0].result, TIER_IO);
    close(listener);
    peer_desk_end(&desk);
}

static void a_source_that_answers_no_ping_is_given_up(void **state) {
    static struct tier_job job;
    uint8_t body[2048];
    struct peer_frame f;
    int listener, fd;

    (void)state;
    peer_desk_begin(&desk, true, 4096);
    desk.config.ping_ms = 30;
    listener = peer_listen(&desk.source);
    peer_desk_open_sink(&desk);
    peer_job_submit(&desk, &job, 0, 4);
    fd = peer_accept(listener);
    peer_greet_as_source(&desk, fd);
    peer_desk_await(&desk, 1);
    assert_int_equal(job.units[0].result, TIER_IO);
    assert_true(peer_read(fd, &f, body) && f.type == PEER_WANT);
    assert_true(peer_read(fd, &f, body) && f.type == PEER_PING);
    assert_true(peer_read(fd, &f, body) && f.type == PEER_PING);
    assert_false(peer_read(fd, &f, body));
    close(fd);
    close(listener);
    peer_desk_end(&desk);
}

/* --- who differs ------------------------------------------------------------------------------ */

/* Its server lives and answers each PING; its engine hangs, so that no run ends. */
static void a_source_that_ends_no_run_is_given_up(void **state) {
    static struct tier_job job;
    uint8_t body[2048];
    struct peer_frame f;
    int listener, fd;

    (void)state;
    peer_desk_begin(&desk, true, 4096);
    desk.config.ping_ms = 30;
    desk.patience_us = 2000000;
    listener = peer_listen(&desk.source);
    peer_desk_open_sink(&desk);
    peer_job_submit(&desk, &job, 0, 4);
    fd = peer_accept(listener);
    peer_greet_as_source(&desk, fd);
    assert_true(peer_read(fd, &f, body) && f.type == PEER_WANT);
    while (peer_read(fd, &f, body)) {
        assert_true(clock_now_us() < job.deadline_us + 30000000);
        peer_write(fd, PEER_PING, 0, NULL, 0);
    }
    peer_desk_await(&desk, 1);
    peer_job_check(&desk, &job);
    assert_int_equal(job.units[0].result, TIER_IO);
    close(fd);
    close(listener);
    peer_desk_end(&desk);
}

static void make_version(struct peer_hello *h) {
    h->version++;
}
static void make_encryption(struct peer_hello *h) {
    h->is_sealed = !h->is_sealed;
}
static void make_block_size(struct peer_hello *h) {
    h->block_tokens *= 2;
}
static void make_block_bytes(struct peer_hello *h) {
    h->block_bytes *= 2;
}
static void make_fingerprint(struct peer_hello *h) {
    h->fingerprint[31] ^= 1;
}
static void make_same(struct peer_hello *h) {
    h->generation = 2;
}

static void one_who_differs_is_refused_by_name(void **state) {
    static const struct {
        void (*make)(struct peer_hello *h);
        enum peer_refusal why;
        const char *name;
    } ways[] = {
        {make_version, PEER_DIFFERS_VERSION, "version"},
        {make_encryption, PEER_DIFFERS_ENCRYPTION, "encryption"},
        {make_block_size, PEER_DIFFERS_BLOCK_SIZE, "block_size"},
        {make_block_bytes, PEER_DIFFERS_BLOCK_BYTES, "block_bytes"},
        {make_fingerprint, PEER_DIFFERS_FINGERPRINT, "fingerprint"},
        {make_same, PEER_SAME_GENERATION, "generation"},
    };
    struct peer_server_stats stats;

    (void)state;
    begin(true, 4096);
    for (size_t i = 0; i < ARRAY_LEN(ways); i++) {
        int fd = peer_connect(&desk);
        struct peer_hello hello;
        struct peer_frame f;
        uint8_t body[256];

        peer_hello_make(&desk.form, 77, &hello);
        ways[i].make(&hello);
        peer_write(fd, PEER_HELLO, 0, &hello, sizeof(hello));
        assert_true(peer_read(fd, &f, body) && f.type == PEER_REFUSE);
        assert_int_equal(peer_read_number(&f), ways[i].why);
        assert_string_equal(peer_refusal_name(ways[i].why), ways[i].name);
        assert_false(peer_read(fd, &f, body));
        close(fd);
    }
    peer_server_stats(desk.server, &stats);
    assert_int_equal(stats.n_refused, ARRAY_LEN(ways));
    peer_desk_end(&desk);
}

static void a_sink_of_another_model_finds_nothing_and_does_not_ask_again(void **state) {
    static struct tier_job job;
    struct unit_codec_config other;
    struct tier_peer_stats stats;

    (void)state;
    peer_desk_begin(&desk, true, 4096);
    peer_desk_open_server(&desk, 0, UINT32_MAX);
    other = desk.form;
    other.fingerprint[0] ^= 1;
    desk.config.codec = &other;
    peer_desk_open_sink(&desk);
    peer_desk_run(&desk, &job, 0, 4);
    assert_int_equal(job.units[0].result, TIER_ABSENT);
    assert_false(desk.tier->ops->can_ask(desk.tier, &desk.source));
    tier_peer_stats(desk.tier, &stats);
    assert_int_equal(stats.n_refused, 1);
    peer_desk_end(&desk);
}

static void another_key_proves_nothing(void **state) {
    static const uint8_t other[1][32] = {{10}};
    static struct tier_job job;
    struct unit_codec_config form;

    (void)state;
    peer_desk_begin(&desk, true, 4096);
    peer_desk_open_server(&desk, 0, UINT32_MAX);
    form = desk.form;
    form.fleet_keys = other;
    desk.config.codec = &form;
    peer_desk_open_sink(&desk);
    peer_desk_run(&desk, &job, 0, 4);
    assert_int_equal(job.units[0].result, TIER_ABSENT);
    peer_desk_end(&desk);
}

/* A recorded AUTH, and the source's own sent back to it. */
static void a_replayed_or_reflected_proof_is_none(void **state) {
    struct peer_hello hello, theirs;
    uint8_t proof[PEER_PROOF_BYTES], body[256];
    struct peer_frame f;
    int fd;

    (void)state;
    begin(true, 4096);
    peer_hello_make(&desk.form, 77, &hello);
    fd = peer_connect(&desk);
    peer_write(fd, PEER_HELLO, 0, &hello, sizeof(hello));
    assert_true(peer_read(fd, &f, body) && f.type == PEER_HELLO);
    peer_read_hello(&f, &theirs);
    peer_prove(desk.form.fleet_keys[0], false, &hello, &theirs, proof);
    peer_write(fd, PEER_AUTH, 0, proof, sizeof(proof));
    assert_true(peer_read(fd, &f, body) && f.type == PEER_AUTH);
    close(fd);

    fd = peer_connect(&desk); /* replayed, word for word */
    peer_write(fd, PEER_HELLO, 0, &hello, sizeof(hello));
    peer_write(fd, PEER_AUTH, 0, proof, sizeof(proof));
    assert_true(peer_read(fd, &f, body) && f.type == PEER_HELLO);
    assert_true(peer_read(fd, &f, body) && f.type == PEER_REFUSE);
    assert_int_equal(peer_read_number(&f), PEER_DIFFERS_KEY);
    close(fd);
    peer_desk_end(&desk);
}

/* A source without the key that sends back what the sink sends. */
static void a_sink_takes_no_proof_of_its_own(void **state) {
    static struct tier_job job;
    struct peer_hello hello;
    struct peer_frame f;
    uint8_t body[256];
    int listener, fd;

    (void)state;
    peer_desk_begin(&desk, true, 4096);
    listener = peer_listen(&desk.source);
    peer_desk_open_sink(&desk);
    peer_job_submit(&desk, &job, 0, 4);
    fd = peer_accept(listener);
    assert_true(peer_read(fd, &f, body) && f.type == PEER_HELLO);
    peer_read_hello(&f, &hello);
    hello.generation++;
    peer_write(fd, PEER_HELLO, 0, &hello, sizeof(hello));
    assert_true(peer_read(fd, &f, body) && f.type == PEER_AUTH);
    peer_write(fd, PEER_AUTH, 0, f.body.ptr, f.body.len);
    peer_desk_await(&desk, 1);
    assert_int_equal(job.units[0].result, TIER_ABSENT);
    assert_false(peer_read(fd, &f, body));
    close(fd);
    close(listener);
    peer_desk_end(&desk);
}

/* --- what is wrong on the wire ---------------------------------------------------------------- */

static void put_head(uint8_t *at, uint32_t length, uint8_t type) {
    memset(at, 0, PEER_HEAD_BYTES);
    memcpy(at, &length, sizeof(length));
    at[4] = type;
}

static void a_sink_that_breaks_the_protocol_is_cut_off(void **state) {
    static struct tier_job job;

    (void)state;
    begin(true, 4096);
    for (int way = 0; way < 9; way++) {
        int fd = peer_connect(&desk);
        uint8_t bytes[PEER_HEAD_BYTES + 64] = {0}, body[256];
        uint32_t number = PEER_CREDIT_MAX + 1;
        struct peer_frame f;
        size_t n = PEER_HEAD_BYTES;

        if (way > 0) peer_greet_as_sink(&desk, fd);
        switch (way) {
        case 0: put_head(bytes, PEER_HEAD_BYTES, PEER_PING); break; /* before its HELLO */
        case 1: put_head(bytes, 0, PEER_PING); break;
        case 2: put_head(bytes, UINT32_MAX, PEER_UNIT); break;
        case 3: put_head(bytes, PEER_HEAD_BYTES, PEER_N_TYPES); break;
        case 4: put_head(bytes, PEER_HEAD_BYTES, 0); break;
        case 5: put_head(bytes, PEER_HEAD_BYTES + 4, PEER_END), n += 4; break;
        case 6: put_head(bytes, PEER_HEAD_BYTES + 1, PEER_UNIT), n += 1; break;
        case 7:
            put_head(bytes, PEER_HEAD_BYTES + 4, PEER_CREDIT), n += 4;
            memcpy(bytes + PEER_HEAD_BYTES, &number, sizeof(number));
            break;
        default: /* no keys where it says that there are two */
            put_head(bytes, PEER_HEAD_BYTES + PEER_ASKED_BYTES(1), PEER_WANT);
            bytes[PEER_HEAD_BYTES + 12] = 2;
            n += PEER_ASKED_BYTES(1);
        }
        assert_int_equal(send(fd, bytes, n, MSG_NOSIGNAL), (ssize_t)n);
        assert_false(peer_read(fd, &f, body));
        close(fd);
    }
    peer_desk_run(&desk, &job, 0, 8); /* others are served */
    assert_int_equal(peer_job_count(&job, TIER_OK), 8);
    peer_desk_end(&desk);
}

static void a_thousand_wants_pin_no_more_than_some(void **state) {
    struct peer_asked asked = {.patience_us = UINT64_MAX, .n = 1};
    static struct tier_job job;
    uint32_t n_busy = 0, n_have = 0;
    struct peer_frame f;
    uint8_t body[256];
    int fd;

    (void)state;
    begin(true, 4096);
    fd = peer_connect(&desk);
    peer_greet_as_sink(&desk, fd);
    asked.keys[0] = desk.blocks[0].id.key;
    for (uint16_t i = 0; i < 1000; i++) /* without credit: nothing can be sent */
        peer_write(fd, PEER_WANT, i, &asked, PEER_ASKED_BYTES(1));
    while (n_busy + n_have < 1000) {
        assert_true(peer_read(fd, &f, body));
        n_have += f.type == PEER_HAVE;
        n_busy += f.type == PEER_END && peer_read_number(&f) == TIER_BUSY;
    }
    assert_in_range(n_have, 1, PEER_WANTS_MAX);
    assert_in_range(atomic_load(&desk.most_pinned), 1, PEER_WANTS_MAX);
    peer_desk_run(&desk, &job, 0, 8); /* another finds room */
    assert_int_equal(peer_job_count(&job, TIER_OK), 8);
    close(fd);
    PEER_UNTIL(atomic_load(&desk.n_pinned) == 0);
    peer_desk_end(&desk);
}

/* It asks for more than the buffers between them hold, and reads nothing of it. */
static void a_sink_that_does_not_read_holds_no_block_for_long(void **state) {
    struct peer_asked asked = {.patience_us = UINT64_MAX, .credit_bytes = PEER_CREDIT_MAX, .n = 64};
    int fd;

    (void)state;
    peer_desk_begin(&desk, false, 1u << 20);
    peer_desk_open_server(&desk, 20000, UINT32_MAX);
    fd = peer_connect(&desk);
    peer_greet_as_sink(&desk, fd);
    for (uint32_t i = 0; i < asked.n; i++)
        asked.keys[i] = desk.blocks[i].id.key;
    peer_write(fd, PEER_WANT, 1, &asked, PEER_ASKED_BYTES(asked.n));
    PEER_UNTIL(atomic_load(&desk.most_pinned) == 64);
    PEER_UNTIL(atomic_load(&desk.n_pinned) == 0);
    close(fd);
    peer_desk_end(&desk);
}

static void a_sink_that_proves_nothing_is_cut_off(void **state) {
    struct peer_server_stats stats;
    struct peer_frame f;
    uint8_t body[256];
    int fd;

    (void)state;
    peer_desk_begin(&desk, true, 4096);
    peer_desk_open_server(&desk, 5000, 0);
    fd = peer_connect(&desk);
    assert_false(peer_read(fd, &f, body));
    peer_server_stats(desk.server, &stats);
    assert_int_equal(stats.n_broken, 1);
    close(fd);
    peer_desk_end(&desk);
}

static void more_connections_than_there_is_room_for_are_refused(void **state) {
    int fds[PEER_CLIENTS_MAX + 1];
    struct peer_frame f;
    uint8_t body[256];

    (void)state;
    peer_desk_begin(&desk, true, 4096);
    peer_desk_open_server(&desk, 0, UINT32_MAX);
    for (uint32_t i = 0; i <= PEER_CLIENTS_MAX; i++)
        fds[i] = peer_connect(&desk);
    assert_true(peer_read(fds[PEER_CLIENTS_MAX], &f, body) && f.type == PEER_REFUSE);
    assert_int_equal(peer_read_number(&f), PEER_HAS_NO_ROOM);
    for (uint32_t i = 0; i <= PEER_CLIENTS_MAX; i++)
        close(fds[i]);
    peer_desk_end(&desk);
}

/* So many frames of a whole answer. */
static void answer_in_part(int fd, uint16_t stream, const uint8_t *units, size_t unit_size,
                           int n_frames) {
    uint32_t have = 4, ok = TIER_OK;

    for (int i = 0; i < n_frames; i++) {
        if (i == 0) peer_write(fd, PEER_HAVE, stream, &have, 4);
        if (i > 0 && i < 5)
            peer_write(fd, PEER_UNIT, stream, units + (i - 1) * unit_size, unit_size);
        if (i == 5) peer_write(fd, PEER_END, stream, &ok, 4);
    }
}

/* What has come whole before is right and stays; the rest is lost, and nothing is waited for. */
static void a_source_that_ends_behind_any_frame_loses_the_rest(void **state) {
    struct unit_codec *codec;
    struct error err = {0};
    size_t unit_size;
    uint8_t *units;

    (void)state;
    for (int n_frames = -2; n_frames <= 6; n_frames++) {
        static struct tier_job job;
        uint8_t body[2048];
        struct peer_frame f;
        int listener, fd;

        peer_desk_begin(&desk, true, 4096);
        assert_int_equal(unit_codec_create(&codec, &desk.form, &err), ST_OK);
        unit_size = unit_bytes(codec);
        units = mem_alloc(4 * unit_size);
        for (uint32_t i = 0; i < 4; i++)
            assert_int_equal(
                unit_seal(codec, &desk.blocks[i].id, desk.theirs + i * 4096, units + i * unit_size),
                ST_OK);
        listener = peer_listen(&desk.source);
        peer_desk_open_sink(&desk);
        peer_job_submit(&desk, &job, 0, 4);
        fd = peer_accept(listener);
        if (n_frames > -2) peer_greet_as_source(&desk, fd);
        if (n_frames > -1) {
            assert_true(peer_read(fd, &f, body) && f.type == PEER_WANT);
            answer_in_part(fd, f.stream, units, unit_size, n_frames);
        }
        shutdown(fd, SHUT_WR);
        peer_desk_await(&desk, 1);
        peer_job_check(&desk, &job);
        assert_int_equal(peer_job_count(&job, TIER_OK), MIN(MAX(n_frames - 1, 0), 4));
        if (n_frames < 5) assert_int_equal(job.units[MAX(n_frames - 1, 0)].result, TIER_IO);
        close(fd);
        close(listener);
        mem_free(units);
        unit_codec_destroy(codec);
        peer_desk_end(&desk);
    }
}

static void a_sink_that_ends_behind_any_frame_leaves_no_pin(void **state) {
    struct peer_asked asked = {.patience_us = UINT64_MAX, .credit_bytes = 1u << 20, .n = 16};

    (void)state;
    begin(true, 4096);
    for (uint32_t i = 0; i < asked.n; i++)
        asked.keys[i] = desk.blocks[i].id.key;
    for (int n_frames = 0; n_frames <= 18; n_frames++) {
        static uint8_t body[PEER_FRAME_MAX];
        int fd = peer_connect(&desk);
        struct peer_frame f;

        peer_greet_as_sink(&desk, fd);
        peer_write(fd, PEER_WANT, 9, &asked, PEER_ASKED_BYTES(asked.n));
        for (int i = 0; i < n_frames; i++)
            assert_true(peer_read(fd, &f, body) && f.stream == 9);
        close(fd);
        PEER_UNTIL(atomic_load(&desk.n_pinned) == 0);
    }
    peer_desk_end(&desk);
}

/* A source that proves the key, and then sends what it should not. */
static void a_source_that_breaks_the_protocol_loses_its_jobs(void **state) {
    size_t unit_size;
    struct error err = {0};
    struct unit_codec *codec;

    (void)state;
    for (int way = 0; way < 8; way++) {
        static struct tier_job job;
        static uint8_t body[PEER_FRAME_MAX];
        uint32_t have = 2, zero = 0, many = 5, ok = TIER_OK, none = TIER_REJECTED;
        struct peer_frame f;
        uint8_t *unit;
        int listener, fd;

        peer_desk_begin(&desk, true, 4096);
        assert_int_equal(unit_codec_create(&codec, &desk.form, &err), ST_OK);
        unit_size = unit_bytes(codec);
        unit = mem_alloc(unit_size);
        assert_int_equal(unit_seal(codec, &desk.blocks[0].id, desk.theirs, unit), ST_OK);
        listener = peer_listen(&desk.source);
        peer_desk_open_sink(&desk);
        peer_job_submit(&desk, &job, 0, 4);
        fd = peer_accept(listener);
        peer_greet_as_source(&desk, fd);
        assert_true(peer_read(fd, &f, body) && f.type == PEER_WANT);
        switch (way) {
        case 0: peer_write(fd, PEER_UNIT, f.stream, unit, unit_size); break; /* before HAVE */
        case 1: peer_write(fd, PEER_HAVE, (uint16_t)(f.stream + 1), &have, 4); break;
        case 2: peer_write(fd, PEER_HAVE, f.stream, &zero, 4); break;
        case 3: peer_write(fd, PEER_HAVE, f.stream, &many, 4); break;
        case 4: peer_write(fd, PEER_END, f.stream, &ok, 4); break;
        case 5: peer_write(fd, PEER_END, f.stream, &none, 4); break;
        case 6: peer_write(fd, PEER_WANT, f.stream, body, f.body.len); break;
        default: /* one bit; then it is told to stop, and does */
            peer_write(fd, PEER_HAVE, f.stream, &have, 4);
            unit[unit_size - 1] ^= 4;
            peer_write(fd, PEER_UNIT, f.stream, unit, unit_size);
            have = TIER_SKIPPED;
            assert_true(peer_read(fd, &f, body) && f.type == PEER_CANCEL);
            peer_write(fd, PEER_END, f.stream, &have, 4);
        }
        peer_desk_await(&desk, 1);
        peer_job_check(&desk, &job);
        assert_int_equal(job.units[0].result, way < 7 ? TIER_IO : TIER_REJECTED);
        assert_true(way < 7 || job.units[0].cause == UNIT_AUTH);
        assert_int_equal(peer_job_count(&job, TIER_SKIPPED), 3);
        close(fd);
        close(listener);
        mem_free(unit);
        unit_codec_destroy(codec);
        peer_desk_end(&desk);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_come_as_they_are),
        cmocka_unit_test(a_run_ends_at_the_first_block_that_is_missing),
        cmocka_unit_test(random_jobs_come_home),
        cmocka_unit_test(a_job_that_nobody_needs_is_cancelled_on_its_way),
        cmocka_unit_test(a_source_that_ends_loses_its_jobs_and_is_asked_again_later),
        cmocka_unit_test(a_source_that_is_stopped_is_given_up),
        cmocka_unit_test(a_source_that_answers_no_ping_is_given_up),
        cmocka_unit_test(a_source_that_ends_no_run_is_given_up),
        cmocka_unit_test(one_who_differs_is_refused_by_name),
        cmocka_unit_test(a_sink_of_another_model_finds_nothing_and_does_not_ask_again),
        cmocka_unit_test(another_key_proves_nothing),
        cmocka_unit_test(a_replayed_or_reflected_proof_is_none),
        cmocka_unit_test(a_sink_takes_no_proof_of_its_own),
        cmocka_unit_test(a_sink_that_breaks_the_protocol_is_cut_off),
        cmocka_unit_test(a_thousand_wants_pin_no_more_than_some),
        cmocka_unit_test(a_sink_that_does_not_read_holds_no_block_for_long),
        cmocka_unit_test(a_sink_that_proves_nothing_is_cut_off),
        cmocka_unit_test(more_connections_than_there_is_room_for_are_refused),
        cmocka_unit_test(a_source_that_ends_behind_any_frame_loses_the_rest),
        cmocka_unit_test(a_sink_that_ends_behind_any_frame_leaves_no_pin),
        cmocka_unit_test(a_source_that_breaks_the_protocol_loses_its_jobs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
