/* tests/unit/worker/kv/tiers/test_peer_wire.c - a wire between a sink and a source that damages,
 * replaces and replays units, and alters frames: not one wrong block comes, each unit is counted by
 * the cause that it was refused for, and every job comes home.
 *
 * DAMAGED=100000 is the number of units, and of frames, of each test (3000; a tenth of it for
 * frames), plain and encrypted. The tables list what was done and what came of it. */
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "tests/support/cm.h"
#include "tests/support/peer_fixture.h"
#include "tests/support/peer_wire.h"
#include "tests/support/support.h"
#include "tests/support/unit_damage.h"

#define BLOCK_BYTES 2000u
#define UNIT_BYTES  (UNIT_HEADER_BYTES + UNIT_TEST_TOKENS * sizeof(uint32_t) + BLOCK_BYTES)
#define KEY_AT      48u /* in a unit */
#define N           PEER_TEST_BLOCKS
#define N_JOBS      PEER_JOBS_MAX
#define JOB_BLOCKS  (N / N_JOBS)

/* What becomes of a frame. */
enum frame_damage { FRAME_FLIPPED, FRAME_CUT, FRAME_DROPPED, FRAME_TWICE, FRAME_LATER, N_WAYS };

static const char *const way_names[N_WAYS] = {"flipped", "cut off", "dropped", "twice", "later"};

struct fixture {
    struct peer_desk desk;
    struct peer_wire wire;
    struct tier_job jobs[N_JOBS];

    pthread_mutex_t lock; /* of what the wire's thread uses, too */
    struct unit_damages damages;
    uint8_t kept[N][UNIT_BYTES]; /* as they came last, before any damage */
    enum unit_damage damage[N];
    bool is_victim[N], is_changed[N];

    enum frame_damage way;
    uint32_t n_frames, at, n_more; /* so many came; that one is altered; the wire ends behind it */
    struct peer_wire_frame late;
    uint64_t results[N_WAYS][TIER_N_RESULTS]; /* of units */
};

static struct fixture x;

static void open_wire(bool is_sealed, bool (*alter)(void *, struct peer_wire_frame *)) {
    memset(&x, 0, sizeof(x));
    pthread_mutex_init(&x.lock, NULL);
    peer_desk_begin(&x.desk, is_sealed, BLOCK_BYTES);
    peer_desk_open_server(&x.desk, 0, UINT32_MAX);
    x.wire = (struct peer_wire){.behind = &x.desk.door.source, .alter = alter, .arg = &x};
    peer_wire_open(&x.wire);
    x.desk.source = x.wire.source;
    x.damages.form = &x.desk.form;
    x.damages.blocks = x.desk.blocks;
    x.damages.chain = 1; /* of the desk */
    rng_seed(&x.damages.rng, support_seed());
}

static void close_wire(void) {
    if (x.desk.tier) x.desk.tier->ops->destroy(x.desk.tier);
    x.desk.tier = NULL;
    peer_wire_close(&x.wire);
    PEER_UNTIL(atomic_load(&x.desk.n_pinned) == 0);
    peer_desk_end(&x.desk);
    pthread_mutex_destroy(&x.lock);
}

static uint32_t draw(uint32_t n) {
    return (uint32_t)rng_below(&x.damages.rng, n);
}

/* --- units ------------------------------------------------------------------------------------ */

static uint32_t block_with_key(const uint8_t *key) {
    uint32_t i = 0;

    while (memcmp(&x.desk.blocks[i].id.key, key, UNIT_KEY_BYTES) != 0)
        i++;
    return i;
}

static void damage_unit(uint32_t i, struct peer_wire_frame *f) {
    uint8_t *unit = f->bytes + PEER_HEAD_BYTES;
    uint16_t stream;
    size_t n;

    memcpy(x.kept[i], unit, UNIT_BYTES);
    if (!x.is_victim[i]) return;
    n = unit_damage(&x.damages, x.damage[i], i, x.kept[(i + 1 + draw(N - 1)) % N], unit);
    x.is_changed[i] = n < UNIT_BYTES || memcmp(unit, x.kept[i], UNIT_BYTES) != 0;
    memcpy(&stream, f->bytes + 6, sizeof(stream));
    n = MAX(n, 1);
    peer_frame_head(PEER_UNIT, 0, stream, n, f->bytes);
    f->n = PEER_HEAD_BYTES + n;
}

static bool damage_units(void *arg, struct peer_wire_frame *f) {
    (void)arg;
    if (f->bytes[4] != PEER_UNIT) return true;
    pthread_mutex_lock(&x.lock);
    damage_unit(block_with_key(f->bytes + PEER_HEAD_BYTES + KEY_AT), f);
    pthread_mutex_unlock(&x.lock);
    return true;
}

/* One unit of each job. */
static void choose_victims(uint32_t victims[N_JOBS]) {
    pthread_mutex_lock(&x.lock);
    memset(x.is_victim, 0, sizeof(x.is_victim));
    memset(x.is_changed, 0, sizeof(x.is_changed));
    for (uint32_t j = 0; j < N_JOBS; j++) {
        uint32_t at = draw(JOB_BLOCKS), i = j * JOB_BLOCKS + at;

        victims[j] = at;
        x.is_victim[i] = true;
        x.damage[i] = (enum unit_damage)draw(N_DAMAGES);
    }
    pthread_mutex_unlock(&x.lock);
}

static void run_jobs(uint32_t n_jobs) {
    uint32_t n_before = x.desk.n_mails;

    for (uint32_t j = 0; j < n_jobs; j++)
        peer_job_submit(&x.desk, &x.jobs[j], j * JOB_BLOCKS, JOB_BLOCKS);
    peer_desk_await(&x.desk, n_before + n_jobs);
    for (uint32_t j = 0; j < n_jobs; j++)
        peer_job_check(&x.desk, &x.jobs[j]); /* the bytes */
}

/* What was sent behind the victim before its sink knew is looked at, too. */
static void judge_job(uint32_t j, uint32_t victim) {
    const struct tier_job *job = &x.jobs[j];
    uint32_t i = j * JOB_BLOCKS + victim;

    unit_damage_judge(&x.damages, x.damage[i], x.is_changed[i], &job->units[victim]);
    for (uint32_t k = 0; k < JOB_BLOCKS; k++)
        if (k != victim && !(x.is_changed[i] && job->units[k].result == TIER_SKIPPED))
            assert_int_equal(job->units[k].result, TIER_OK);
}

static void damage_units_again_and_again(bool is_sealed) {
    uint32_t victims[N_JOBS];
    uint64_t n = 0;

    open_wire(is_sealed, damage_units);
    peer_desk_open_sink(&x.desk);
    run_jobs(N_JOBS); /* as they are: the wire has all of them */
    for (uint32_t j = 0; j < N_JOBS; j++)
        assert_int_equal(peer_job_count(&x.jobs[j], TIER_OK), JOB_BLOCKS);
    for (; n < unit_damages_wanted(); n += N_JOBS) {
        choose_victims(victims);
        run_jobs(N_JOBS);
        pthread_mutex_lock(&x.lock);
        for (uint32_t j = 0; j < N_JOBS; j++)
            judge_job(j, victims[j]);
        pthread_mutex_unlock(&x.lock);
    }
    unit_damages_report(&x.damages, "wire", n);
    close_wire();
}

static void a_wire_that_damages_units_brings_no_wrong_block(void **state) {
    (void)state;
    damage_units_again_and_again(false);
}

static void a_wire_that_damages_sealed_units_brings_no_wrong_block(void **state) {
    (void)state;
    damage_units_again_and_again(true);
}

/* --- frames ----------------------------------------------------------------------------------- */

static void append(struct peer_wire_frame *f, const uint8_t *bytes, size_t n) {
    memcpy(f->bytes + f->n, bytes, n);
    f->n += n;
}

/* Half of the bits that are flipped are those of the head. */
static void damage_frame(struct peer_wire_frame *f) {
    size_t n = draw(2) ? PEER_HEAD_BYTES : f->n;
    uint32_t at = draw((uint32_t)n * 8);

    switch (x.way) {
    case FRAME_FLIPPED: f->bytes[at / 8] ^= (uint8_t)(1u << at % 8); break;
    case FRAME_CUT: f->n = draw((uint32_t)f->n); break;
    case FRAME_DROPPED: f->n = 0; break;
    case FRAME_TWICE: append(f, f->bytes, f->n); break;
    default:
        memcpy(x.late.bytes, f->bytes, f->n);
        x.late.n = f->n;
        f->n = 0;
    }
}

static bool damage_frames(void *arg, struct peer_wire_frame *f) {
    uint32_t number;
    bool goes_on;

    (void)arg;
    pthread_mutex_lock(&x.lock);
    number = x.n_frames++;
    if (number == x.at) {
        damage_frame(f);
    } else if (x.late.n > 0) {
        append(f, x.late.bytes, x.late.n);
        x.late.n = 0;
    }
    goes_on = number < x.at + x.n_more;
    pthread_mutex_unlock(&x.lock);
    return goes_on;
}

/* What a frame that was lost leaves behind is seen by PINGs, and the wire ends behind the answers
 * to them. A sink has a new tier each time: one that failed is not asked for a while. */
static void damage_one_frame(enum frame_damage way) {
    const uint32_t n_jobs = 3;

    pthread_mutex_lock(&x.lock);
    x.way = way;
    x.n_frames = 0;
    x.late.n = 0;
    x.at = draw(2 + n_jobs * (JOB_BLOCKS + 2));
    x.n_more = way == FRAME_CUT ? 0 : 1 + draw(6);
    pthread_mutex_unlock(&x.lock);
    x.desk.config.ping_ms = x.desk.config.greet_ms = 5;
    peer_desk_open_sink(&x.desk);
    run_jobs(n_jobs);
    for (uint32_t j = 0; j < n_jobs; j++)
        for (uint32_t k = 0; k < JOB_BLOCKS; k++)
            x.results[way][x.jobs[j].units[k].result]++;
    x.desk.tier->ops->destroy(x.desk.tier);
    x.desk.tier = NULL;
}

static void report_frames(bool is_sealed, uint64_t n) {
    print_message("frames, %s: %llu\n", is_sealed ? "sealed" : "plain", (unsigned long long)n);
    for (int way = 0; way < N_WAYS; way++) {
        print_message("  %-16s", way_names[way]);
        for (int r = 0; r < TIER_N_RESULTS; r++)
            if (x.results[way][r])
                print_message(" %s %llu", tier_result_name((enum tier_result)r),
                              (unsigned long long)x.results[way][r]);
        print_message("\n");
        assert_true(x.results[way][TIER_OK] > 0 && x.results[way][TIER_IO] > 0);
    }
}

static void damage_frames_again_and_again(bool is_sealed) {
    uint64_t n = 0;

    open_wire(is_sealed, damage_frames);
    for (; n < unit_damages_wanted() / 10; n++)
        damage_one_frame((enum frame_damage)(n % N_WAYS));
    report_frames(is_sealed, n);
    close_wire();
}

static void a_wire_that_alters_frames_brings_no_wrong_block(void **state) {
    (void)state;
    damage_frames_again_and_again(false);
}

static void a_wire_that_alters_frames_of_sealed_units_brings_no_wrong_block(void **state) {
    (void)state;
    damage_frames_again_and_again(true);
}

/* --- a connection again ----------------------------------------------------------------------- */

struct recording {
    bool is_replayed;
    uint32_t n, at;
    size_t n_bytes[8];
    uint8_t bytes[8][UNIT_BYTES + PEER_HEAD_BYTES];
};

static bool record_or_replay(void *arg, struct peer_wire_frame *f) {
    struct recording *r = arg;

    if (!r->is_replayed && r->n < ARRAY_LEN(r->bytes)) {
        memcpy(r->bytes[r->n], f->bytes, f->n);
        r->n_bytes[r->n++] = f->n;
    } else if (r->is_replayed && r->at < r->n) {
        f->n = 0;
        append(f, r->bytes[r->at], r->n_bytes[r->at]);
        r->at++;
    }
    return true;
}

/* All that a source has sent once, to the byte: its proof is of another sink's HELLO. */
static void what_a_source_has_sent_before_proves_nothing(void **state) {
    static struct recording r;

    (void)state;
    for (int is_sealed = 0; is_sealed < 2; is_sealed++) {
        memset(&r, 0, sizeof(r));
        open_wire(is_sealed, record_or_replay);
        x.wire.arg = &r; /* no frame has come yet */
        peer_desk_open_sink(&x.desk);
        peer_desk_run(&x.desk, &x.jobs[0], 0, 2);
        assert_int_equal(peer_job_count(&x.jobs[0], TIER_OK), 2);
        x.desk.tier->ops->destroy(x.desk.tier);
        r.is_replayed = true;
        peer_desk_open_sink(&x.desk);
        peer_desk_run(&x.desk, &x.jobs[0], 0, 2);
        peer_job_check(&x.desk, &x.jobs[0]);
        assert_int_equal(x.jobs[0].units[0].result, TIER_ABSENT);
        close_wire();
    }
}

/* --- numbers out of bounds -------------------------------------------------------------------- */

static void a_source_that_sends_no_frame_loses_its_jobs(void **state) {
    static const struct {
        uint32_t length;
        uint8_t type;
    } heads[] = {
        {0, PEER_UNIT},
        {PEER_HEAD_BYTES - 1, PEER_PING},
        {UINT32_MAX, PEER_UNIT},
        {PEER_HEAD_BYTES + PEER_PART_BYTES + 1, PEER_UNIT},
        {PEER_HEAD_BYTES, PEER_UNIT},
        {PEER_HEAD_BYTES, 0},
        {PEER_HEAD_BYTES, PEER_N_TYPES},
        {PEER_HEAD_BYTES, UINT8_MAX},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(heads); i++) {
        static uint8_t body[PEER_FRAME_MAX];
        uint8_t head[PEER_HEAD_BYTES] = {0};
        struct peer_frame f;
        int listener, fd;

        peer_desk_begin(&x.desk, true, BLOCK_BYTES);
        listener = peer_listen(&x.desk.source);
        peer_desk_open_sink(&x.desk);
        peer_job_submit(&x.desk, &x.jobs[0], 0, 4);
        fd = peer_accept(listener);
        peer_greet_as_source(&x.desk, fd);
        assert_true(peer_read(fd, &f, body) && f.type == PEER_WANT);
        memcpy(head, &heads[i].length, sizeof(heads[i].length));
        head[4] = heads[i].type;
        assert_int_equal(send(fd, head, sizeof(head), MSG_NOSIGNAL), sizeof(head));
        assert_false(peer_read(fd, &f, body)); /* it is cut off */
        peer_desk_await(&x.desk, 1);
        assert_int_equal(x.jobs[0].units[0].result, TIER_IO);
        close(fd);
        close(listener);
        peer_desk_end(&x.desk);
    }
}

/* Each is within bounds, and their sum is not. */
static void credit_beyond_its_limit_cuts_a_sink_off(void **state) {
    struct peer_asked asked = {.patience_us = UINT64_MAX, .credit_bytes = PEER_CREDIT_MAX, .n = 1};
    uint32_t one = 1;
    struct peer_frame f;
    uint8_t body[256];
    int fd;

    (void)state;
    peer_desk_begin(&x.desk, true, BLOCK_BYTES);
    peer_desk_open_server(&x.desk, 0, UINT32_MAX);
    atomic_store(&x.desk.n_keeps, 1); /* so that the stream has not ended */
    fd = peer_connect(&x.desk);
    peer_greet_as_sink(&x.desk, fd);
    asked.keys[0] = x.desk.blocks[0].id.key;
    peer_write(fd, PEER_CREDIT, 7, &asked.credit_bytes, sizeof(one)); /* of no stream */
    peer_write(fd, PEER_WANT, 8, &asked, PEER_ASKED_BYTES(1));
    peer_write(fd, PEER_CREDIT, 8, &one, sizeof(one));
    assert_false(peer_read(fd, &f, body));
    close(fd);
    peer_desk_release(&x.desk);
    PEER_UNTIL(atomic_load(&x.desk.n_pinned) == 0);
    peer_desk_end(&x.desk);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wire_that_damages_units_brings_no_wrong_block),
        cmocka_unit_test(a_wire_that_damages_sealed_units_brings_no_wrong_block),
        cmocka_unit_test(a_wire_that_alters_frames_brings_no_wrong_block),
        cmocka_unit_test(a_wire_that_alters_frames_of_sealed_units_brings_no_wrong_block),
        cmocka_unit_test(what_a_source_has_sent_before_proves_nothing),
        cmocka_unit_test(a_source_that_sends_no_frame_loses_its_jobs),
        cmocka_unit_test(credit_beyond_its_limit_cuts_a_sink_off),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
