/* tests/unit/worker/kv/tiers/test_peer_share.c - blocks that a sink copies from its source's
 * memory: what lands is what the source has, or it comes as a unit, or it is not there; and no
 * memory is mapped that could hurt its reader. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/peer_fixture.h"
#include "tests/support/support.h"
#include "worker/kv/tiers/peer/peer_pass.h"

#define BYTES 4096u

static struct peer_desk desk;

static void begin(bool is_sealed, size_t block_bytes) {
    peer_desk_begin(&desk, is_sealed, block_bytes);
    peer_desk_share(&desk);
    peer_desk_open_server(&desk, 0, UINT32_MAX);
    peer_desk_open_sink(&desk);
}

static struct tier_peer_stats sink_stats(void) {
    struct tier_peer_stats s;

    tier_peer_stats(desk.tier, &s);
    return s;
}

static struct peer_server_stats source_stats(void) {
    struct peer_server_stats s;

    peer_server_stats(desk.server, &s);
    return s;
}

static void blocks_are_copied_as_they_are(void **state) {
    static const size_t sizes[] = {4096, 32768, (3u << 20) + 64};
    static struct tier_job jobs[2];

    (void)state;
    for (size_t i = 0; i < 2 * ARRAY_LEN(sizes); i++) {
        uint32_t n = sizes[i / 2] > 1u << 20 ? 5 : TIER_JOB_UNITS;

        begin(i % 2, sizes[i / 2]);
        for (uint32_t round = 1; round <= 2; round++) { /* its sums are known, the second time */
            peer_job_submit(&desk, &jobs[0], 0, n);
            peer_job_submit(&desk, &jobs[1], n, n);
            peer_desk_await(&desk, 2 * round);
            for (int j = 0; j < 2; j++) {
                peer_job_check(&desk, &jobs[j]);
                assert_int_equal(peer_job_count(&jobs[j], TIER_OK), n);
            }
        }
        assert_int_equal(sink_stats().n_shared, 1);
        assert_int_equal(sink_stats().shared_units, 4 * n);
        assert_int_equal(source_stats().placed_units, 4 * n);
        assert_int_equal(source_stats().sent_units, 0);
        PEER_UNTIL(atomic_load(&desk.n_pinned) == 0);
        peer_desk_end(&desk);
    }
}

static void a_run_ends_at_the_first_block_that_is_missing(void **state) {
    static struct tier_job job;

    (void)state;
    begin(true, BYTES);
    atomic_store(&desk.has[7], false);
    peer_desk_run(&desk, &job, 0, 20);
    assert_int_equal(peer_job_count(&job, TIER_OK), 7);
    assert_int_equal(job.units[7].result, TIER_ABSENT);
    peer_desk_run(&desk, &job, 7, 3);
    assert_int_equal(job.units[0].result, TIER_ABSENT);
    assert_int_equal(sink_stats().shared_units, 7);
    peer_desk_end(&desk);
}

/* The source overwrites each block as soon as it has sent its place: while it is copied, before
 * or behind. */
static void a_block_that_is_reused_meanwhile_is_not_taken(void **state) {
    static struct tier_job job;
    uint64_t until_us = clock_now_us() + 60000000u;

    (void)state;
    begin(true, 65536);
    atomic_store(&desk.reuses, true);
    while (sink_stats().n_slipped < 20) {
        peer_job_submit(&desk, &job, 0, TIER_JOB_UNITS);
        peer_desk_await(&desk, desk.n_mails + 1);
        PEER_UNTIL(atomic_load(&desk.n_pinned) == 0); /* it is as it was */
        peer_job_check(&desk, &job);
        assert_int_equal(peer_job_count(&job, TIER_OK), TIER_JOB_UNITS);
        assert_true(clock_now_us() < until_us);
    }
    assert_true(source_stats().sent_units > 0); /* what slipped came so */
    assert_int_equal(sink_stats().n_differing, 0);
    peer_desk_end(&desk);
}

/* --- the numbers ------------------------------------------------------------------------------ */

struct rewriter {
    struct shared_pool *pool;
    atomic_bool is_over;
};

/* Fills one block over and over, with bytes made of its number. */
static void *rewrite(void *arg) {
    struct rewriter *r = arg;
    struct generation *g = r->pool->generations;

    while (!atomic_load(&r->is_over)) {
        generation_raise(g);
        memset(r->pool->blocks, (uint8_t)atomic_load(&g->number), r->pool->block_bytes);
    }
    return NULL;
}

/* The reader may find a block that is not whole, for it does not wait until it is; but no byte of
 * what came behind. */
static void a_copy_under_one_number_has_no_later_byte(void **state) {
    struct shared_pool pool, view;
    struct rewriter r = {.pool = &pool};
    uint8_t *copy = mem_alloc(BYTES);
    struct error err = {0};
    uint64_t until_us = clock_now_us() + 60000000u;
    uint32_t n_same = 0, n_slipped = 0;
    pthread_t thread;

    (void)state;
    assert_int_equal(shared_pool_create(&pool, 1, BYTES, &err), ST_OK);
    assert_int_equal(shared_pool_open(&view, pool.fd, BYTES, &err), ST_OK);
    assert_int_equal(pthread_create(&thread, NULL, rewrite, &r), 0);
    while ((n_same < 20000 || n_slipped < 100) && clock_now_us() < until_us) {
        uint64_t number = atomic_load(&view.generations->number);
        uint8_t later = (uint8_t)(number + 1);

        memcpy(copy, view.blocks, BYTES);
        if (!generation_is(view.generations, number)) {
            n_slipped++;
            continue;
        }
        n_same++;
        assert_null(memchr(copy, later, BYTES));
    }
    atomic_store(&r.is_over, true);
    pthread_join(thread, NULL);
    assert_true(n_same > 0 && n_slipped > 0);
    shared_pool_close(&view);
    shared_pool_close(&pool);
    mem_free(copy);
}

/* --- what is mapped --------------------------------------------------------------------------- */

static void a_reader_cannot_write(void **state) {
    struct shared_pool pool, view;
    struct error err = {0};
    char path[64];
    int again;

    (void)state;
    assert_int_equal(shared_pool_create(&pool, 3, BYTES, &err), ST_OK);
    memset(pool.blocks, 7, BYTES); /* its owner can */
    assert_int_equal(shared_pool_open(&view, pool.fd, BYTES, &err), ST_OK);
    assert_memory_equal(view.blocks, pool.blocks, BYTES);
    assert_int_equal(mprotect(view.map, view.map_bytes, PROT_READ | PROT_WRITE), -1);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", pool.fd);
    again = open(path, O_RDWR | O_CLOEXEC);
    for (int i = 0; i < 2; i++) {
        int fd = i ? again : pool.fd;

        assert_true(fd >= 0);
        assert_ptr_equal(mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
        assert_int_equal(pwrite(fd, path, 1, 0), -1);
        assert_int_equal(ftruncate(fd, 0), -1);
        assert_int_equal(ftruncate(fd, 1 << 30), -1);
        assert_int_equal(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, BYTES), -1);
        assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
    }
    close(again);
    shared_pool_close(&view);
    shared_pool_close(&pool);
}

/* The head of a pool, as it lies there. */
struct head {
    char magic[8];
    uint32_t version, n_blocks;
    uint64_t block_bytes, blocks_at;
    uint8_t zeros[32];
};

#define ALL_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | 0x10)

static int make_file(const struct head *h, size_t n_bytes, int seals) {
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    assert_int_equal(ftruncate(fd, (off_t)n_bytes), 0);
    assert_int_equal(pwrite(fd, h, MIN(sizeof(*h), n_bytes), 0), MIN(sizeof(*h), n_bytes));
    if (seals) assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static void assert_not_mapped(int fd, const char *why) {
    struct shared_pool view;
    struct error err = {0};

    assert_int_equal(shared_pool_open(&view, fd, BYTES, &err), ST_INVALID);
    if (!strstr(err.message, why)) fail_msg("%s: not %s", err.message, why);
    assert_null(view.map);
    shared_pool_close(&view);
    close(fd);
}

static void memory_that_could_hurt_is_not_mapped(void **state) {
    static const struct head good = {"ICPTSHM", 1, 2, BYTES, BYTES, {0}};
    static const int seals[] = {F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_SEAL, 0x10};
    struct shared_pool view;
    struct error err = {0};
    struct head h = good;
    int ends[2], fd = make_file(&good, 3 * BYTES, ALL_SEALS);

    (void)state;
    assert_int_equal(shared_pool_open(&view, fd, BYTES, &err), ST_OK);
    assert_int_equal(view.n_blocks, 2);
    shared_pool_close(&view);
    close(fd);

    for (size_t i = 0; i < ARRAY_LEN(seals); i++)
        assert_not_mapped(make_file(&good, 3 * BYTES, ALL_SEALS & ~seals[i]), "not sealed");
    assert_int_equal(pipe(ends), 0);
    assert_not_mapped(ends[0], "not sealed");
    close(ends[1]);
    fd = memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
    if (fd >= 0) { /* a page that is missing there ends who reads it */
        assert_int_equal(fcntl(fd, F_ADD_SEALS, ALL_SEALS), 0);
        assert_not_mapped(fd, "tmpfs");
    }
    assert_not_mapped(make_file(&good, sizeof(good) - 1, ALL_SEALS), "bytes");
    assert_not_mapped(make_file(&good, 0, ALL_SEALS), "bytes");
    assert_not_mapped(make_file(&good, 3 * BYTES - 1, ALL_SEALS), "are not in");
    assert_not_mapped(make_file(&good, (size_t)SHARED_POOL_MAX + BYTES, ALL_SEALS), "bytes");
    h.magic[0] ^= 1;
    assert_not_mapped(make_file(&h, 3 * BYTES, ALL_SEALS), "head");
    h = good, h.version = 2;
    assert_not_mapped(make_file(&h, 3 * BYTES, ALL_SEALS), "head");
    h = good, h.block_bytes = BYTES / 2;
    assert_not_mapped(make_file(&h, 3 * BYTES, ALL_SEALS), "blocks of 2048 bytes, not 4096");
    h = good, h.n_blocks = 0;
    assert_not_mapped(make_file(&h, 3 * BYTES, ALL_SEALS), "are not in");
    h = good, h.n_blocks = UINT32_MAX, h.blocks_at = 64;
    assert_not_mapped(make_file(&h, 3 * BYTES, ALL_SEALS), "are not in");
    h = good, h.blocks_at = UINT64_MAX - 63;
    assert_not_mapped(make_file(&h, 3 * BYTES, ALL_SEALS), "are not in");
    h = good, h.blocks_at = 64; /* in its numbers */
    assert_not_mapped(make_file(&h, 3 * BYTES, ALL_SEALS), "are not in");
    h = good, h.blocks_at = BYTES - 8;
    assert_not_mapped(make_file(&h, 3 * BYTES, ALL_SEALS), "are not in");
}

/* --- who gets it ------------------------------------------------------------------------------ */

static void assert_all_come_as_units(void) {
    static struct tier_job job;

    peer_desk_run(&desk, &job, 0, 8);
    assert_int_equal(peer_job_count(&job, TIER_OK), 8);
    assert_int_equal(sink_stats().n_shared, 0);
    assert_int_equal(sink_stats().shared_units, 0);
    assert_int_equal(source_stats().sent_units, 8);
    assert_int_equal(source_stats().placed_units, 0);
}

static void another_user_is_served_over_the_network(void **state) {
    (void)state;
    for (int side = 0; side < 2; side++) {
        peer_desk_begin(&desk, true, BYTES);
        peer_desk_share(&desk);
        if (side == 0) desk.share_uid++;
        if (side == 1) desk.config.share_uid++;
        peer_desk_open_server(&desk, 0, UINT32_MAX);
        peer_desk_open_sink(&desk);
        assert_all_come_as_units();
        assert_int_equal(source_stats().n_sharing, side);
        peer_desk_end(&desk);
    }
}

static void who_does_not_share_is_served_over_the_network(void **state) {
    (void)state;
    peer_desk_begin(&desk, true, BYTES);
    peer_desk_share(&desk);
    desk.config.can_share = false;
    peer_desk_open_server(&desk, 0, UINT32_MAX);
    peer_desk_open_sink(&desk);
    assert_all_come_as_units();
    peer_desk_end(&desk);

    peer_desk_begin(&desk, true, BYTES);
    desk.config.can_share = true;
    desk.config.share_uid = geteuid();
    peer_desk_open_server(&desk, 0, UINT32_MAX);
    peer_desk_open_sink(&desk);
    assert_all_come_as_units();
    peer_desk_end(&desk);
}

static void await(int socket) {
    struct timeval patience = {.tv_sec = 60};

    fcntl(socket, F_SETFL, 0);
    setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
}

/* Only the sink of a connection that is proved gets it, once. */
static void a_wrong_proof_gets_no_memory(void **state) {
    static const uint8_t other[32] = {10};
    struct peer_greeting g;
    struct peer_pass_text text;
    struct peer_pass p;
    int fd, socket;

    (void)state;
    begin(true, BYTES);
    fd = peer_connect(&desk);
    peer_greet(&desk, fd, false, PEER_CAN_SHARE, &g);
    assert_true(g.source.flags & PEER_CAN_SHARE);
    assert_int_equal(peer_pass_dial(g.source.generation, &socket, NULL), ST_OK);
    memcpy(text.nonce, g.sink.nonce, sizeof(text.nonce));
    peer_prove_pass(other, false, &g.sink, &g.source, text.proof);
    assert_int_equal(peer_pass_send(socket, &text, -1, NULL), ST_OK);
    peer_prove_pass(desk.form.fleet_keys[0], true, &g.sink, &g.source, text.proof);
    assert_int_equal(peer_pass_send(socket, &text, -1, NULL), ST_OK); /* the source's own */
    peer_prove_pass(desk.form.fleet_keys[0], false, &g.sink, &g.source, text.proof);
    text.nonce[0] ^= 1;
    assert_int_equal(peer_pass_send(socket, &text, -1, NULL), ST_OK); /* of no connection */
    assert_int_equal(send(socket, "x", 1, 0), 1);
    text.nonce[0] ^= 1;
    assert_int_equal(peer_pass_send(socket, &text, desk.pool.fd, NULL),
                     ST_OK); /* that is dropped */
    assert_int_equal(peer_pass_send(socket, &text, -1, NULL), ST_OK);
    await(socket);
    assert_int_equal(peer_pass_receive(socket, geteuid(), &p), ST_OK); /* to the fifth */
    assert_true(p.fd >= 0 && p.uid == geteuid());
    peer_prove_pass(desk.form.fleet_keys[0], true, &g.sink, &g.source, text.proof);
    assert_memory_equal(p.text.proof, text.proof, sizeof(text.proof));
    close(p.fd);
    peer_desk_close_server(&desk); /* it has looked at all that it was sent */
    assert_int_equal(recv(socket, &text, sizeof(text), MSG_DONTWAIT), -1);
    close(socket);
    close(fd);
    peer_desk_end(&desk);
}

/* A file that its sender can let hang a close is none that a source gets: it comes to no other
 * than who asked for one. */
static void a_descriptor_that_was_not_asked_for_is_dropped(void **state) {
    const uid_t of[] = {PEER_PASS_NOBODY, geteuid() + 1, geteuid()};
    struct peer_pass_text text = {.nonce = {1}};
    int source, sink, ends[2];
    struct peer_pass p;
    char x;

    (void)state;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pipe(ends), 0);
        assert_int_equal(peer_pass_listen(77, &source, NULL), ST_OK);
        assert_int_equal(peer_pass_dial(77, &sink, NULL), ST_OK);
        assert_int_equal(peer_pass_send(sink, &text, ends[1], NULL), ST_OK);
        close(ends[1]);
        assert_int_equal(peer_pass_receive(source, of[i], &p), ST_OK);
        assert_int_equal(p.fd >= 0, i == 2);
        assert_int_equal(p.uid, geteuid());
        assert_memory_equal(&p.text, &text, sizeof(text));
        if (p.fd >= 0) close(p.fd);
        assert_int_equal(read(ends[0], &x, 1), 0); /* the other end is closed */
        close(ends[0]);
        close(sink);
        close(source);
    }
}

/* --- a source that lies ----------------------------------------------------------------------- */

struct liar {
    struct peer_greeting g;
    int listener, fd, pass;
    uint8_t body[PEER_FRAME_MAX];
    struct peer_frame f;
    struct tier_job job;
};

static struct liar liar;

/* The test is the source of a job of four blocks, whose question is in liar.f. `how`: what it
 * answers to the one who asks for memory. */
enum passing { PASSES, IS_AWAY, PASSES_NONE, PROVES_NOTHING, PASSES_UNSEALED };

static void pass_memory(enum passing how) {
    struct peer_pass p;
    struct peer_pass_text text = {.nonce = {0}};
    int unsealed = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    await(liar.pass);
    assert_int_equal(peer_pass_receive(liar.pass, PEER_PASS_NOBODY, &p), ST_OK);
    peer_prove_pass(desk.form.fleet_keys[0], how != PROVES_NOTHING, &liar.g.sink, &liar.g.source,
                    text.proof);
    assert_int_equal(peer_pass_send(liar.pass, &text,
                                    how == PASSES_NONE       ? -1
                                    : how == PASSES_UNSEALED ? unsealed
                                                             : desk.pool.fd,
                                    &p),
                     ST_OK);
    close(unsealed);
}

static void lie(enum passing how) {
    peer_desk_begin(&desk, true, BYTES);
    peer_desk_share(&desk);
    liar.listener = peer_listen(&desk.source);
    liar.pass = -1;
    if (how != IS_AWAY) assert_int_equal(peer_pass_listen(78, &liar.pass, NULL), ST_OK);
    peer_desk_open_sink(&desk);
    peer_job_submit(&desk, &liar.job, 0, 4);
    liar.fd = peer_accept(liar.listener);
    peer_greet(&desk, liar.fd, true, PEER_CAN_SHARE, &liar.g);
    if (how != IS_AWAY) pass_memory(how);
    assert_true(peer_read(liar.fd, &liar.f, liar.body) && liar.f.type == PEER_WANT);
    assert_int_equal(liar.f.flags, how == PASSES ? PEER_FLAG_PLACES : 0);
}

static void end_lie(void) {
    uint32_t absent = TIER_ABSENT;

    peer_write(liar.fd, PEER_END, liar.f.stream, &absent, sizeof(absent));
    peer_desk_await(&desk, 1);
    peer_job_check(&desk, &liar.job);
    close(liar.fd);
    close(liar.listener);
    if (liar.pass >= 0) close(liar.pass);
    peer_desk_end(&desk);
}

/* The first n places as they are, number `lying` but for what is changed, with a proof of that. */
static size_t places_of(uint32_t n, uint8_t out[PEER_PLACES_BYTES(PEER_KEYS_MAX)]) {
    struct peer_place *places = (struct peer_place *)out;

    for (uint32_t i = 0; i < n; i++) {
        struct hash128 sum = hash_128(desk.theirs + i * BYTES, BYTES);

        places[i] = (struct peer_place){.block = i};
        memcpy(places[i].sum, &sum, sizeof(sum));
    }
    return PEER_PLACES_BYTES(n);
}

static void prove_places(uint32_t n, uint8_t *places) {
    struct unit_codec *codec;
    struct error err = {0};
    struct sha256 *digest = sha256_create();
    uint8_t identities[UNIT_DIGEST_BYTES];

    assert_int_equal(unit_codec_create(&codec, &desk.form, &err), ST_OK);
    sha256_begin(digest);
    for (uint32_t i = 0; i < n; i++)
        unit_add_identity(codec, &desk.blocks[i].id, digest);
    sha256_end(digest, identities);
    peer_prove_places(desk.form.fleet_keys[0], &liar.g.sink, &liar.g.source, liar.f.stream,
                      (struct peer_place *)places, n, identities,
                      places + n * sizeof(struct peer_place));
    sha256_destroy(digest);
    unit_codec_destroy(codec);
}

static void memory_that_is_not_passed_is_done_without(void **state) {
    (void)state;
    for (int how = IS_AWAY; how <= PASSES_UNSEALED; how++) {
        lie((enum passing)how);
        end_lie();
        assert_int_equal(liar.job.units[0].result, TIER_ABSENT);
    }
}

enum lie { NONE, NO_PROOF, OTHER_BLOCK, NO_BLOCK, OTHER_NUMBER, OTHER_SUM, OTHER_BYTES, N_LIES };

static void a_place_that_is_wrong_is_asked_for_as_a_unit(void **state) {
    (void)state;
    for (int way = NONE; way < N_LIES; way++) {
        uint32_t ok = TIER_OK, n_right = way == NONE ? 4 : way == NO_PROOF ? 0 : 2;
        static _Alignas(8) uint8_t places[PEER_PLACES_BYTES(PEER_KEYS_MAX)];
        struct peer_place *third = (struct peer_place *)places + 2;
        size_t n;

        lie(PASSES);
        n = places_of(4, places);
        switch (way) {
        case OTHER_BLOCK: third->block = 3; break;
        case NO_BLOCK: third->block = PEER_TEST_BLOCKS; break;
        case OTHER_NUMBER: third->number++; break;
        case OTHER_SUM: third->sum[15] ^= 1; break;
        case OTHER_BYTES: desk.theirs[2 * BYTES + 9] ^= 1; break;
        default: break;
        }
        prove_places(4, places);
        if (way == NO_PROOF) places[n - 1] ^= 1;
        peer_write(liar.fd, PEER_PLACES, liar.f.stream, places, n);
        peer_write(liar.fd, PEER_END, liar.f.stream, &ok, sizeof(ok));
        if (way != NONE) {
            struct peer_asked asked;
            struct error err = {0};

            assert_true(peer_read(liar.fd, &liar.f, liar.body) && liar.f.type == PEER_WANT);
            assert_int_equal(liar.f.flags, 0);
            assert_int_equal(peer_read_asked(&liar.f, &asked, &err), ST_OK);
            assert_int_equal(asked.n, 4 - n_right);
            end_lie();
        } else {
            peer_desk_await(&desk, 1);
            end_lie();
        }
        assert_int_equal(peer_job_count(&liar.job, TIER_OK), n_right);
        if (n_right < 4) assert_int_equal(liar.job.units[n_right].result, TIER_ABSENT);
    }
}

/* A source with a connection of this protocol, and frames that it has not. */
static void a_source_that_breaks_the_protocol_loses_its_jobs(void **state) {
    (void)state;
    for (int way = 0; way < 4; way++) {
        static _Alignas(8) uint8_t places[PEER_PLACES_BYTES(PEER_KEYS_MAX)];
        size_t n;

        lie(way == 0 ? IS_AWAY : PASSES);
        n = places_of(way == 1 ? 5 : 4, places);
        prove_places(way == 1 ? 5 : 4, places);
        if (way == 3) n -= 8;
        peer_write(liar.fd, PEER_PLACES, liar.f.stream, places, n);
        if (way == 2) peer_write(liar.fd, PEER_PLACES, liar.f.stream, places, n);
        peer_desk_await(&desk, 1);
        peer_job_check(&desk, &liar.job);
        assert_int_equal(peer_job_count(&liar.job, TIER_OK), way == 2 ? 4 : 0);
        assert_int_equal(peer_job_count(&liar.job, TIER_IO), way != 2);
        end_lie();
    }
}

/* --- ends ------------------------------------------------------------------------------------- */

static void a_source_that_restarts_is_mapped_again(void **state) {
    static struct tier_job job;

    (void)state;
    begin(true, BYTES);
    peer_desk_run(&desk, &job, 0, 8);
    peer_desk_close_server(&desk);
    PEER_UNTIL((peer_desk_run(&desk, &job, 0, 1), job.units[0].result == TIER_IO));
    for (uint32_t i = 0; i < PEER_TEST_BLOCKS; i++)
        generation_raise(&desk.pool.generations[i]);
    peer_desk_open_server(&desk, 0, UINT32_MAX);
    PEER_UNTIL(desk.tier->ops->can_ask(desk.tier, &desk.source));
    peer_desk_run(&desk, &job, 0, 8);
    assert_int_equal(peer_job_count(&job, TIER_OK), 8);
    assert_int_equal(sink_stats().n_shared, 2);
    assert_int_equal(sink_stats().shared_units, 16);
    peer_desk_end(&desk);
}

/* Another process with the same blocks: a source that writes its address to `to`, or a sink of
 * `source`. */
static pid_t start_source(int to) {
    pid_t pid = fork();

    if (pid != 0) return pid;
    peer_desk_begin(&desk, true, 65536);
    peer_desk_share(&desk);
    peer_desk_open_server(&desk, 0, UINT32_MAX);
    if (write(to, &desk.source, sizeof(desk.source)) != sizeof(desk.source)) _exit(1);
    for (;;)
        pause();
}

static pid_t start_sink(int from) {
    static struct tier_job job;
    struct tier_source source;
    pid_t pid = fork();

    if (pid != 0) return pid;
    if (read(from, &source, sizeof(source)) != sizeof(source)) _exit(1);
    peer_desk_begin(&desk, true, 65536);
    peer_desk_share(&desk);
    desk.source = source;
    peer_desk_open_sink(&desk);
    for (;;)
        peer_desk_run(&desk, &job, 0, TIER_JOB_UNITS);
}

static void a_source_that_is_killed_costs_its_jobs_alone(void **state) {
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    for (int round = 0; round < 8; round++) {
        static struct tier_job job;
        int ends[2];
        pid_t pid;

        assert_int_equal(pipe(ends), 0);
        pid = start_source(ends[1]);
        peer_desk_begin(&desk, true, 65536);
        peer_desk_share(&desk);
        assert_int_equal(read(ends[0], &desk.source, sizeof(desk.source)), sizeof(desk.source));
        peer_desk_open_sink(&desk);
        for (uint64_t n = rng_below(&rng, 20); n > 0; n--) {
            peer_desk_run(&desk, &job, 0, TIER_JOB_UNITS);
            assert_int_equal(peer_job_count(&job, TIER_OK), TIER_JOB_UNITS);
        }
        peer_job_submit(&desk, &job, 0, TIER_JOB_UNITS);
        usleep((useconds_t)rng_below(&rng, 2000));
        kill(pid, SIGKILL);
        peer_desk_await(&desk, desk.n_mails + 1);
        peer_job_check(&desk, &job);
        PEER_UNTIL((peer_desk_run(&desk, &job, 0, 8), job.units[0].result == TIER_IO));
        assert_int_equal(sink_stats().n_differing, 0);
        waitpid(pid, NULL, 0);
        close(ends[0]);
        close(ends[1]);
        peer_desk_end(&desk);
    }
}

static void a_sink_that_is_killed_leaves_no_pin(void **state) {
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    for (int round = 0; round < 8; round++) {
        static struct tier_job job;
        int ends[2];
        pid_t pid;

        assert_int_equal(pipe(ends), 0);
        pid = start_sink(ends[0]);
        peer_desk_begin(&desk, true, 65536);
        peer_desk_share(&desk);
        peer_desk_open_server(&desk, 0, UINT32_MAX);
        desk.config.generation = 3;
        assert_int_equal(write(ends[1], &desk.source, sizeof(desk.source)), sizeof(desk.source));
        PEER_UNTIL(source_stats().placed_units > 0);
        usleep((useconds_t)rng_below(&rng, 5000));
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        PEER_UNTIL(source_stats().n_clients == 0 && atomic_load(&desk.n_pinned) == 0);
        peer_desk_open_sink(&desk);
        peer_desk_run(&desk, &job, 0, TIER_JOB_UNITS); /* others are served */
        assert_int_equal(peer_job_count(&job, TIER_OK), TIER_JOB_UNITS);
        assert_int_equal(sink_stats().n_differing, 0);
        close(ends[0]);
        close(ends[1]);
        peer_desk_end(&desk);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_source_that_is_killed_costs_its_jobs_alone),
        cmocka_unit_test(a_sink_that_is_killed_leaves_no_pin),
        cmocka_unit_test(blocks_are_copied_as_they_are),
        cmocka_unit_test(a_run_ends_at_the_first_block_that_is_missing),
        cmocka_unit_test(a_block_that_is_reused_meanwhile_is_not_taken),
        cmocka_unit_test(a_copy_under_one_number_has_no_later_byte),
        cmocka_unit_test(a_reader_cannot_write),
        cmocka_unit_test(memory_that_could_hurt_is_not_mapped),
        cmocka_unit_test(another_user_is_served_over_the_network),
        cmocka_unit_test(who_does_not_share_is_served_over_the_network),
        cmocka_unit_test(a_wrong_proof_gets_no_memory),
        cmocka_unit_test(a_descriptor_that_was_not_asked_for_is_dropped),
        cmocka_unit_test(memory_that_is_not_passed_is_done_without),
        cmocka_unit_test(a_place_that_is_wrong_is_asked_for_as_a_unit),
        cmocka_unit_test(a_source_that_breaks_the_protocol_loses_its_jobs),
        cmocka_unit_test(a_source_that_restarts_is_mapped_again),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
