/* tests/unit/worker/kv/tiers/test_store.c - what a store keeps, finds, loses and refuses, with a
 * server on the test's loop. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/net/tls.h"
#include "tests/support/certs.h"
#include "tests/support/fake_store.h"
#include "tests/support/store_fixture.h"
#include "tests/support/support.h"

#define BLOCK_BYTES 1024u

struct fixture {
    struct store_desk desk;
    struct fake_store servers[3];
    char urls[512], names[3][64];
};

static void begin(struct fixture *f, bool is_sealed, uint32_t n_servers, const char *more) {
    store_desk_begin(&f->desk, is_sealed, BLOCK_BYTES);
    f->urls[0] = '\0';
    for (uint32_t i = 0; i < 3; i++)
        fake_store_init(&f->servers[i], f->desk.loop);
    for (uint32_t i = 0; i < n_servers; i++) {
        fake_store_start(&f->servers[i]);
        snprintf(f->urls + strlen(f->urls), sizeof(f->urls) - strlen(f->urls),
                 "%sredis://%s127.0.0.1:%u", i ? "," : "", more, f->servers[i].port);
    }
}

static void begin_open(struct fixture *f, bool is_sealed) {
    begin(f, is_sealed, 1, "");
    store_desk_open(&f->desk, f->urls);
}

static void end(struct fixture *f) {
    if (f->desk.tier) f->desk.tier->ops->destroy(f->desk.tier);
    f->desk.tier = NULL;
    for (uint32_t i = 0; i < 3; i++)
        fake_store_fini(&f->servers[i]);
    store_desk_end(&f->desk);
}

/* The name that block i has on the server. */
static const char *name_of(struct fixture *f, uint32_t i) {
    static char name[64];
    const uint8_t *b = f->desk.keys[i].bytes;
    int n = snprintf(name, sizeof(name), "ic1:{%02x%02x%02x%02x}:", b[12], b[13], b[14], b[15]);

    for (int k = 0; k < 16; k++)
        n += snprintf(name + n, sizeof(name) - (size_t)n, "%02x", b[k]);
    return name;
}

/* --- what comes back -------------------------------------------------------------------------- */

static void what_was_stored_is_found_and_comes_back(void **state) {
    struct tier_stats stats;
    struct tier_job job;
    struct fixture f;

    (void)state;
    for (int is_sealed = 0; is_sealed < 2; is_sealed++) {
        begin_open(&f, is_sealed);
        f.desk.config.ttl_s = 0;
        assert_int_equal(store_desk_find(&f.desk, 0, 8), 0);
        store_desk_run(&f.desk, &job, TIER_STORE, 0, 8);
        assert_int_equal(store_job_count(&job, TIER_OK), 8);
        assert_true(job.began_us > 0 && job.ended_us >= job.began_us);
        assert_int_equal(store_desk_find(&f.desk, 0, 8), 8);
        assert_int_equal(store_desk_find(&f.desk, 0, 9), 8);
        store_desk_run(&f.desk, &job, TIER_LOAD, 0, 8);
        assert_int_equal(store_job_count(&job, TIER_OK), 8);
        f.desk.tier->ops->stats(f.desk.tier, &stats);
        assert_int_equal(stats.loaded_bytes, 8 * BLOCK_BYTES);
        assert_int_equal(stats.stored_bytes, 8 * BLOCK_BYTES);
        assert_int_equal(stats.n_units, 8);
        assert_true(stats.is_open && stats.can_write);
        end(&f);
    }
}

static void a_key_is_named_and_lives_as_documented(void **state) {
    struct tier_job job;
    struct fixture f;

    (void)state;
    begin(&f, true, 1, "");
    f.desk.config.ttl_s = 90;
    store_desk_open(&f.desk, f.urls);
    store_desk_run(&f.desk, &job, TIER_STORE, 5, 1);
    assert_non_null(fake_store_find(&f.servers[0], name_of(&f, 5)));
    assert_string_equal(f.servers[0].last_set[1], name_of(&f, 5));
    assert_string_equal(f.servers[0].last_set[3], "PX");
    assert_string_equal(f.servers[0].last_set[4], "90000");
    assert_string_equal(f.servers[0].last_set[5], "NX");
    store_desk_run(&f.desk, &job, TIER_STORE, 5, 1);
    assert_int_equal(store_job_count(&job, TIER_OK), 1);
    assert_int_equal(store_desk_stats(&f.desk).n_existing, 1);
    end(&f);
}

static void a_sealed_value_shows_neither_tokens_nor_kv(void **state) {
    struct tier_job job;
    struct fixture f;
    struct str value;

    (void)state;
    begin_open(&f, true);
    store_desk_run(&f.desk, &job, TIER_STORE, 0, 1);
    value = buf_str(fake_store_find(&f.servers[0], name_of(&f, 0)));
    assert_int_equal(str_find(value, (struct str){(char *)store_desk_payload(&f.desk, 0), 16}), -1);
    assert_int_equal(str_find(value, (struct str){(char *)f.desk.blocks[0].tokens, 16}), -1);
    end(&f);
}

static void unknown_keys_are_asked_for_and_then_found(void **state) {
    struct tier_job job;
    struct fixture f;

    (void)state;
    begin_open(&f, true);
    store_desk_run(&f.desk, &job, TIER_STORE, 0, 40);
    store_desk_reopen(&f.desk);
    assert_int_equal(store_desk_find(&f.desk, 0, 64), 0);
    assert_int_equal(store_desk_find(&f.desk, 0, 64), 0); /* asks once */
    assert_int_equal(f.desk.tier->ops->guess(f.desk.tier, f.desk.keys, 64), 64);
    STORE_UNTIL(&f.desk, store_desk_find(&f.desk, 0, 64) == 40);
    assert_int_equal(f.desk.tier->ops->guess(f.desk.tier, f.desk.keys, 64), 40);
    assert_int_equal(f.servers[0].n_asks, 64);
    assert_int_equal(store_desk_stats(&f.desk).n_asked, 64);
    store_desk_run(&f.desk, &job, TIER_LOAD, 0, 40);
    assert_int_equal(store_job_count(&job, TIER_OK), 40);
    end(&f);
}

static void an_old_answer_does_not_hide_what_was_stored_since(void **state) {
    struct tier_job job;
    struct fixture f;

    (void)state;
    begin_open(&f, true);
    fake_store_fail(&f.servers[0], FAULT_HOLD, "EXISTS", 1);
    assert_int_equal(store_desk_find(&f.desk, 0, 1), 0);
    STORE_UNTIL(&f.desk, f.servers[0].n_asks == 1);
    store_desk_run(&f.desk, &job, TIER_STORE, 0, 1);
    assert_int_equal(store_desk_find(&f.desk, 0, 1), 1);
    fake_store_release(&f.servers[0]);
    store_desk_run(&f.desk, &job, TIER_LOAD, 9, 1); /* is answered behind it */
    assert_int_equal(job.units[0].result, TIER_ABSENT);
    assert_int_equal(store_desk_find(&f.desk, 0, 1), 1);
    end(&f);
}

static void two_fleets_share_nothing(void **state) {
    static const uint8_t other[1][32] = {{9}};
    struct tier_job job;
    struct fixture f;

    (void)state;
    begin_open(&f, true);
    store_desk_run(&f.desk, &job, TIER_STORE, 0, 4);
    f.desk.config.unit.fleet_keys = other;
    f.desk.config.unit.n_fleet_keys = 1;
    store_desk_reopen(&f.desk);
    for (uint32_t i = 0; i < 4; i++) {
        unit_block_make(&f.desk.blocks[i], other[0], f.desk.config.unit.fingerprint, 1, i);
        f.desk.keys[i] = f.desk.blocks[i].id.key;
    }
    store_desk_run(&f.desk, &job, TIER_LOAD, 0, 4);
    assert_int_equal(job.units[0].result, TIER_ABSENT);
    store_desk_make_chain(&f.desk, 1); /* even where the names are known */
    store_desk_run(&f.desk, &job, TIER_LOAD, 0, 4);
    assert_int_equal(job.units[0].result, TIER_REJECTED);
    assert_int_equal(job.units[0].cause, UNIT_AUTH);
    end(&f);
}

static void a_reply_may_come_in_two_pieces_cut_anywhere(void **state) {
    struct tier_job job;
    struct fixture f;
    size_t n;

    (void)state;
    begin_open(&f, false);
    store_desk_run(&f.desk, &job, TIER_STORE, 0, 2);
    n = buf_len(fake_store_find(&f.servers[0], name_of(&f, 0))) + 9;
    for (size_t cut = 0; cut <= n; cut += cut < 20 || cut + 20 > n ? 1 : 37) {
        fake_store_fail(&f.servers[0], FAULT_SPLIT, "GET", 1);
        f.servers[0].split_at = cut;
        store_desk_run(&f.desk, &job, TIER_LOAD, 0, 2);
        assert_int_equal(store_job_count(&job, TIER_OK), 2);
    }
    end(&f);
}

/* --- what is absent --------------------------------------------------------------------------- */

static void what_is_gone_is_absent_and_forgotten(void **state) {
    struct tier_job job;
    struct fixture f;

    (void)state;
    begin_open(&f, true);
    store_desk_run(&f.desk, &job, TIER_STORE, 0, 8);
    fake_store_flush(&f.servers[0]);
    assert_int_equal(store_desk_find(&f.desk, 0, 8), 8);
    store_desk_run(&f.desk, &job, TIER_LOAD, 0, 8);
    assert_int_equal(job.units[0].result, TIER_ABSENT);
    assert_int_equal(store_job_count(&job, TIER_ABSENT) + store_job_count(&job, TIER_SKIPPED), 8);
    assert_int_equal(store_desk_find(&f.desk, 0, 8), 0);
    assert_true(store_desk_stats(&f.desk).n_absent >= 1);
    end(&f);
}

/* Of those behind what a load has asked for, too: they are to be written again. */
static void an_emptied_store_is_noticed_at_once(void **state) {
    struct tier_job job;
    struct fixture f;

    (void)state;
    begin_open(&f, true);
    store_desk_run(&f.desk, &job, TIER_STORE, 0, 40);
    assert_int_equal(store_desk_find(&f.desk, 0, 40), 40);
    fake_store_flush(&f.servers[0]);
    store_desk_run(&f.desk, &job, TIER_LOAD, 0, 12);
    assert_true(store_job_count(&job, TIER_ABSENT) >= 8);
    assert_int_equal(store_desk_find(&f.desk, 12, 28), 0);
    store_desk_run(&f.desk, &job, TIER_STORE, 0, 40);
    assert_int_equal(store_desk_find(&f.desk, 0, 40), 40);
    end(&f);
}

static void the_front_of_a_run_is_kept(void **state) {
    struct tier_job job;
    struct fixture f;

    (void)state;
    begin_open(&f, true);
    store_desk_run(&f.desk, &job, TIER_STORE, 0, 8);
    fake_store_put(&f.servers[0], name_of(&f, 3), STR("torn"));
    store_desk_run(&f.desk, &job, TIER_LOAD, 0, 8);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(job.units[i].result, TIER_OK);
    assert_int_equal(job.units[3].result, TIER_REJECTED);
    assert_int_equal(job.units[3].cause, UNIT_TORN);
    for (uint32_t i = 4; i < 8; i++)
        assert_int_equal(job.units[i].result, TIER_SKIPPED);
    end(&f);
}

static void another_valid_unit_is_rejected_and_then_overwritten(void **state) {
    struct tier_job job;
    struct fixture f;

    (void)state;
    for (int is_sealed = 0; is_sealed < 2; is_sealed++) {
        char name[64];

        begin_open(&f, is_sealed);
        store_desk_run(&f.desk, &job, TIER_STORE, 0, 2);
        snprintf(name, sizeof(name), "%s", name_of(&f, 0));
        fake_store_put(&f.servers[0], name,
                       buf_str(fake_store_find(&f.servers[0], name_of(&f, 1))));
        store_desk_run(&f.desk, &job, TIER_LOAD, 0, 1);
        assert_int_equal(job.units[0].result, TIER_REJECTED);
        assert_int_equal(job.units[0].cause, UNIT_POSITION);
        assert_int_equal(store_desk_find(&f.desk, 0, 1), 0);
        store_desk_run(&f.desk, &job, TIER_STORE, 0, 1);
        assert_int_equal(store_desk_find(&f.desk, 0, 1), 1);
        store_desk_run(&f.desk, &job, TIER_LOAD, 0, 1);
        assert_int_equal(job.units[0].result, TIER_OK);
        assert_int_equal(store_desk_stats(&f.desk).n_rejected, 1);
        end(&f);
    }
}

/* --- faults ----------------------------------------------------------------------------------- */

static void each_error_at_each_command_is_a_counted_absence(void **state) {
    static const struct {
        const char *text;
        enum store_error error;
        enum tier_result load, store;
    } rows[] = {
        {"-LOADING Redis is loading the dataset in memory", STORE_LOADING, TIER_IO, TIER_IO},
        {"-BUSY Redis is busy running a script", STORE_LOADING, TIER_IO, TIER_IO},
        {"-OOM command not allowed when used memory > 'maxmemory'.", STORE_OOM, TIER_BUSY,
         TIER_BUSY},
        {"-READONLY You can't write against a read only replica.", STORE_READONLY, TIER_BUSY,
         TIER_BUSY},
        {"-NOAUTH Authentication required.", STORE_NOAUTH, TIER_IO, TIER_IO},
        {"-WRONGTYPE Operation against a key", STORE_WRONGTYPE, TIER_REJECTED, TIER_REJECTED},
        {"-MOVED 1 ", STORE_MOVED, TIER_IO, TIER_IO},
        {"-MOVED 99999 127.0.0.1:1", STORE_MOVED, TIER_IO, TIER_IO},
        {"-ASK x 127.0.0.1:1", STORE_ASK, TIER_IO, TIER_IO},
        {"-CLUSTERDOWN The cluster is down", STORE_CLUSTERDOWN, TIER_IO, TIER_IO},
        {"-ERR max number of clients reached", STORE_OTHER, TIER_IO, TIER_IO},
        {"-", STORE_OTHER, TIER_IO, TIER_IO},
    };
    struct tier_job job;
    struct fixture f;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        begin_open(&f, true);
        f.servers[0].fault_text = rows[i].text;
        store_desk_run(&f.desk, &job, TIER_STORE, 0, 6);
        for (uint32_t at = 1; at <= 6; at += 2) {
            uint64_t n = store_desk_stats(&f.desk).n_errors[rows[i].error];

            store_desk_run_until_ok(&f.desk, &job, TIER_STORE, 0, 6);
            fake_store_fail(&f.servers[0], FAULT_ERROR, "GET", at);
            store_desk_run(&f.desk, &job, TIER_LOAD, 0, 6);
            for (uint32_t k = 0; k + 1 < at; k++)
                assert_int_equal(job.units[k].result, TIER_OK);
            assert_int_equal(job.units[at - 1].result, rows[i].load);
            fake_store_fail(&f.servers[0], FAULT_ERROR, "SET", at);
            store_desk_run_until_ok(&f.desk, &job, TIER_LOAD, at - 1 ? 0 : 1, at - 1 ? 1 : 5);
            store_desk_run(&f.desk, &job, TIER_STORE, 0, 6);
            if (f.servers[0].fault == FAULT_NONE) /* it was not full already */
                assert_int_equal(job.units[at - 1].result, rows[i].store);
            f.servers[0].fault = FAULT_NONE;
            assert_true(store_desk_stats(&f.desk).n_errors[rows[i].error] > n);
        }
        store_desk_run_until_ok(&f.desk, &job, TIER_STORE, 0, 6);
        store_desk_run_until_ok(&f.desk, &job, TIER_LOAD, 0, 6);
        end(&f);
    }
}

static void a_connection_cut_at_each_command_ends_what_was_sent(void **state) {
    struct tier_job job;
    struct fixture f;

    (void)state;
    begin_open(&f, true);
    for (uint32_t at = 1; at <= 6; at++) {
        for (int op = TIER_LOAD; op <= TIER_STORE; op++) {
            store_desk_run_until_ok(&f.desk, &job, TIER_STORE, 0, 6);
            fake_store_fail(&f.servers[0], FAULT_CUT, op == TIER_LOAD ? "GET" : "SET", at);
            store_desk_run(&f.desk, &job, op, 0, 6);
            assert_int_equal(job.units[at - 1].result, TIER_IO);
            store_desk_run_until_ok(&f.desk, &job, TIER_LOAD, 0, 6);
        }
    }
    fake_store_fail(&f.servers[0], FAULT_CUT, "EXISTS", 1);
    assert_int_equal(store_desk_find(&f.desk, 10, 3), 0);
    STORE_UNTIL(&f.desk, store_desk_stats(&f.desk).n_lost >= 13);
    end(&f);
}

static void a_server_that_hangs_in_a_value_is_dropped(void **state) {
    struct tier_job job;
    struct fixture f;

    (void)state;
    begin(&f, true, 1, "");
    f.desk.config.silence_ms = 50;
    store_desk_open(&f.desk, f.urls);
    store_desk_run_until_ok(&f.desk, &job, TIER_STORE, 0, 6);
    fake_store_fail(&f.servers[0], FAULT_HALF, "GET", 2);
    store_desk_run(&f.desk, &job, TIER_LOAD, 0, 6);
    assert_true(job.units[1].result == TIER_IO || job.units[0].result == TIER_IO);
    store_desk_run_until_ok(&f.desk, &job, TIER_LOAD, 0, 6);
    fake_store_fail(&f.servers[0], FAULT_HALF, "SET", 1);
    store_desk_run(&f.desk, &job, TIER_STORE, 10, 2);
    assert_int_equal(job.units[0].result, TIER_IO);
    end(&f);
}

static void a_wrong_length_ends_the_connection(void **state) {
    static const struct {
        enum fake_fault fault;
        enum tier_result result;
    } rows[] = {{FAULT_LONGER, TIER_IO}, {FAULT_HUGE, TIER_REJECTED}};
    struct tier_job job;
    struct fixture f;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        begin_open(&f, true);
        store_desk_run(&f.desk, &job, TIER_STORE, 0, 6);
        fake_store_fail(&f.servers[0], rows[i].fault, "GET", 3);
        store_desk_run(&f.desk, &job, TIER_LOAD, 0, 6);
        assert_int_equal(job.units[2].result, rows[i].result);
        assert_int_equal(store_desk_stats(&f.desk).n_lost, 1);
        store_desk_run_until_ok(&f.desk, &job, TIER_STORE, 0, 6);
        store_desk_run_until_ok(&f.desk, &job, TIER_LOAD, 0, 6);
        end(&f);
    }
}

static void a_reply_of_another_kind_ends_the_connection(void **state) {
    static const char *const replies[] = {":1", "+OK", "*1\r\n:1", "*2", "$-7", "HTTP/1.1 400"};
    struct tier_job job;
    struct fixture f;

    (void)state;
    begin_open(&f, true);
    store_desk_run(&f.desk, &job, TIER_STORE, 0, 2);
    for (size_t i = 0; i < ARRAY_LEN(replies); i++) {
        fake_store_fail(&f.servers[0], FAULT_ERROR, "GET", 1);
        f.servers[0].fault_text = replies[i];
        store_desk_run(&f.desk, &job, TIER_LOAD, 0, 2);
        assert_int_equal(job.units[0].result, TIER_IO);
        store_desk_run_until_ok(&f.desk, &job, TIER_LOAD, 0, 2);
    }
    assert_int_equal(store_desk_stats(&f.desk).n_lost, ARRAY_LEN(replies));
    end(&f);
}

static void no_more_is_asked_for_than_the_window(void **state) {
    struct tier_job job;
    struct fixture f;

    (void)state;
    begin(&f, true, 1, "");
    f.desk.config.silence_ms = 200;
    store_desk_open(&f.desk, f.urls);
    store_desk_run_until_ok(&f.desk, &job, TIER_STORE, 0, 64);
    for (int op = TIER_LOAD; op <= TIER_STORE; op++) {
        f.servers[0].n_unanswered = 0;
        fake_store_fail(&f.servers[0], FAULT_HALF, NULL, 1);
        store_desk_run(&f.desk, &job, op, 0, 64);
        assert_int_equal(store_job_count(&job, TIER_OK), 0);
        assert_true(f.servers[0].n_unanswered <= (op == TIER_LOAD ? 15u : 3u));
        store_desk_run_until_ok(&f.desk, &job, TIER_STORE, 0, 1);
    }
    end(&f);
}

/* --- the breaker ------------------------------------------------------------------------------ */

static void a_server_that_is_away_is_absent_until_it_is_back(void **state) {
    struct tier_stats stats;
    struct tier_job job;
    struct fixture f;

    (void)state;
    begin_open(&f, true);
    store_desk_run(&f.desk, &job, TIER_STORE, 0, 4);
    fake_store_stop(&f.servers[0]);
    for (int i = 0; i < 4; i++)
        store_desk_run(&f.desk, &job, TIER_LOAD, 0, 4);
    do { /* open, but for the moments in which one job is let through */
        store_desk_run(&f.desk, &job, TIER_LOAD, 0, 4);
    } while (job.units[0].result != TIER_BUSY);
    STORE_UNTIL(&f.desk, store_desk_find(&f.desk, 0, 4) == 0);
    assert_int_equal(store_desk_stats(&f.desk).n_away, 1);
    f.desk.tier->ops->stats(f.desk.tier, &stats);
    assert_true(!stats.is_open && !stats.can_write);
    fake_store_start(&f.servers[0]);
    store_desk_run_until_ok(&f.desk, &job, TIER_LOAD, 0, 4);
    assert_int_equal(store_desk_find(&f.desk, 0, 4), 4);
    assert_int_equal(store_desk_stats(&f.desk).n_away, 0);
    end(&f);
}

static void an_idle_connection_that_ends_is_no_failure(void **state) {
    struct tier_job job;
    struct fixture f;

    (void)state;
    begin_open(&f, true);
    store_desk_run(&f.desk, &job, TIER_STORE, 0, 4);
    for (int i = 0; i < 5; i++) {
        uint32_t n = f.servers[0].n_accepted;

        store_desk_run_until_ok(&f.desk, &job, TIER_LOAD, 0, 4);
        fake_store_stop(&f.servers[0]);
        fake_store_start(&f.servers[0]);
        store_desk_run_until_ok(&f.desk, &job, TIER_LOAD, 0, 4);
        assert_true(f.servers[0].n_accepted > n);
    }
    assert_int_equal(store_desk_stats(&f.desk).n_away, 0);
    end(&f);
}

/* --- jobs ------------------------------------------------------------------------------------- */

static void a_job_too_late_or_cancelled_does_not_begin(void **state) {
    struct tier_job job;
    struct fixture f;

    (void)state;
    begin_open(&f, true);
    store_desk_run(&f.desk, &job, TIER_STORE, 0, 4);
    for (int is_late = 0; is_late < 2; is_late++) {
        uint32_t n_mails = f.desk.n_mails;

        store_job_make(&f.desk, &job, TIER_LOAD, 0, 4);
        if (is_late) job.deadline_us = 1;
        atomic_store(&job.is_cancelled, !is_late);
        f.desk.tier->ops->submit(f.desk.tier, &job);
        STORE_UNTIL(&f.desk, store_desk_harvest(&f.desk) > n_mails);
        assert_int_equal(job.units[0].result, is_late ? TIER_LATE : TIER_SKIPPED);
        assert_int_equal(store_job_count(&job, TIER_OK), 0);
        assert_int_equal(job.began_us, 0);
    }
    assert_int_equal(f.servers[0].n_gets, 0);
    end(&f);
}

static void what_was_not_sent_by_the_deadline_is_late(void **state) {
    struct tier_job job;
    struct fixture f;

    (void)state;
    begin_open(&f, true);
    store_desk_run(&f.desk, &job, TIER_STORE, 0, 64);
    store_desk_run(&f.desk, &job, TIER_LOAD, 0, 1); /* a connection */
    store_job_make(&f.desk, &job, TIER_LOAD, 0, 64);
    job.deadline_us = clock_now_us() + 20000;
    f.desk.tier->ops->submit(f.desk.tier, &job);
    while (clock_now_us() <= job.deadline_us + 2000) /* the server is not turned meanwhile */
        usleep(1000);
    STORE_UNTIL(&f.desk, store_desk_harvest(&f.desk) == 3);
    store_job_check(&f.desk, &job);
    assert_true(store_job_count(&job, TIER_OK) <= 16);
    assert_true(store_job_count(&job, TIER_LATE) >= 1);
    assert_int_equal(store_job_count(&job, TIER_OK) + store_job_count(&job, TIER_LATE) +
                         store_job_count(&job, TIER_SKIPPED),
                     64);
    end(&f);
}

static void jobs_beyond_the_limit_are_refused(void **state) {
    struct tier_job jobs[5];
    uint32_t n_ok = 0, n_busy = 0;
    struct fixture f;

    (void)state;
    begin(&f, true, 1, "");
    f.desk.config.max_jobs = 2;
    store_desk_open(&f.desk, f.urls);
    for (int i = 0; i < 5; i++) { /* the server is not turned meanwhile */
        store_job_make(&f.desk, &jobs[i], TIER_STORE, 0, 4);
        f.desk.tier->ops->submit(f.desk.tier, &jobs[i]);
    }
    STORE_UNTIL(&f.desk, store_desk_harvest(&f.desk) == 5);
    for (int i = 0; i < 5; i++) {
        n_ok += store_job_count(&jobs[i], TIER_OK) == 4;
        n_busy += store_job_count(&jobs[i], TIER_BUSY) == 4;
    }
    assert_int_equal(n_ok, 2);
    assert_int_equal(n_busy, 3);
    end(&f);
}

static void closing_ends_all_jobs(void **state) {
    struct tier_job jobs[3];
    struct fixture f;

    (void)state;
    begin_open(&f, true);
    for (int i = 0; i < 3; i++) { /* to a server that is not turned */
        store_job_make(&f.desk, &jobs[i], i ? TIER_LOAD : TIER_STORE, 0, 20);
        f.desk.tier->ops->submit(f.desk.tier, &jobs[i]);
    }
    assert_int_equal(store_desk_find(&f.desk, 20, 20), 0);
    f.desk.tier->ops->destroy(f.desk.tier);
    f.desk.tier = NULL;
    assert_int_equal(store_desk_harvest(&f.desk), 3);
    for (int i = 0; i < 3; i++)
        assert_int_equal(store_job_count(&jobs[i], TIER_OK), 0);
    end(&f);
}

static void an_empty_job_comes_home(void **state) {
    struct tier_job job;
    struct fixture f;

    (void)state;
    begin_open(&f, true);
    store_desk_run(&f.desk, &job, TIER_LOAD, 0, 0);
    end(&f);
}

/* --- writing ---------------------------------------------------------------------------------- */

static void a_full_server_gets_no_more_until_it_has_room(void **state) {
    struct tier_stats stats;
    struct tier_job job;
    struct fixture f;

    (void)state;
    begin_open(&f, true);
    do { /* seen within a second of the answer, which a busy machine may miss */
        fake_store_fail(&f.servers[0], FAULT_ERROR, "SET", 1);
        f.servers[0].fault_text = "-OOM command not allowed";
        store_desk_run(&f.desk, &job, TIER_STORE, 0, 1);
        f.desk.tier->ops->stats(f.desk.tier, &stats);
        assert_true(stats.is_open);
    } while (stats.can_write);
    assert_int_equal(job.units[0].result, TIER_BUSY);
    /* The engine sends nothing while a tier takes nothing: it must see that it may again. */
    STORE_UNTIL(&f.desk, (f.desk.tier->ops->stats(f.desk.tier, &stats), stats.can_write));
    store_desk_run_until_ok(&f.desk, &job, TIER_STORE, 0, 1);
    f.desk.tier->ops->stats(f.desk.tier, &stats);
    assert_true(stats.can_write);
    end(&f);
}

static void writing_stops_at_the_budget(void **state) {
    struct tier_stats stats;
    struct tier_job job;
    struct fixture f;
    uint32_t n_sets;

    (void)state;
    begin(&f, true, 1, "");
    f.desk.config.max_bytes = 10 * BLOCK_BYTES;
    store_desk_open(&f.desk, f.urls);
    store_desk_run(&f.desk, &job, TIER_STORE, 0, 20); /* may all be under way */
    store_desk_run(&f.desk, &job, TIER_STORE, 20, 1);
    assert_int_equal(job.units[0].result, TIER_BUSY);
    n_sets = f.servers[0].n_sets;
    f.desk.tier->ops->stats(f.desk.tier, &stats);
    assert_true(stats.bytes >= stats.max_bytes && stats.max_bytes == 10 * BLOCK_BYTES);
    store_desk_run(&f.desk, &job, TIER_LOAD, 0, 4); /* reading goes on */
    assert_int_equal(store_job_count(&job, TIER_OK), 4);
    assert_int_equal(f.servers[0].n_sets, n_sets);
    fake_store_flush(&f.servers[0]); /* is noticed */
    store_desk_run_until_ok(&f.desk, &job, TIER_STORE, 20, 1);
    assert_true(store_desk_stats(&f.desk).n_full > 0);
    end(&f);
}

/* --- several servers -------------------------------------------------------------------------- */

static void several_urls_are_shards_whatever_their_order(void **state) {
    char reversed[512];
    struct tier_job job;
    struct fixture f;

    (void)state;
    begin(&f, true, 3, "");
    store_desk_open(&f.desk, f.urls);
    for (uint64_t chain = 1; chain <= 24; chain++) {
        store_desk_make_chain(&f.desk, chain);
        store_desk_run(&f.desk, &job, TIER_STORE, 0, 2);
        assert_int_equal(store_job_count(&job, TIER_OK), 2);
    }
    for (int i = 0; i < 3; i++)
        assert_true(f.servers[i].n_sets > 0);
    snprintf(reversed, sizeof(reversed),
             "redis://127.0.0.1:%u redis://127.0.0.1:%u,redis://127.0.0.1:%u", f.servers[2].port,
             f.servers[1].port, f.servers[0].port);
    f.desk.config.urls = reversed;
    store_desk_reopen(&f.desk);
    for (uint64_t chain = 1; chain <= 24; chain++) {
        store_desk_make_chain(&f.desk, chain);
        store_desk_run(&f.desk, &job, TIER_LOAD, 0, 2);
        assert_int_equal(store_job_count(&job, TIER_OK), 2);
    }
    fake_store_stop(&f.servers[1]); /* the others stay */
    for (int round = 0; round < 4; round++) {
        uint32_t n_ok = 0, n_away = 0; /* the most: it is tried again after a pause */

        for (uint64_t chain = 1; chain <= 24; chain++) {
            store_desk_make_chain(&f.desk, chain);
            store_desk_run(&f.desk, &job, TIER_LOAD, 0, 2);
            n_ok += store_job_count(&job, TIER_OK);
            n_away = MAX(n_away, (uint32_t)store_desk_stats(&f.desk).n_away);
        }
        assert_true(n_ok > 0 && n_ok < 48);
        assert_int_equal(n_away, 1);
    }
    end(&f);
}

/* A cluster of the first two servers, each of which has half of the slots. */
static void make_cluster(struct fixture *f, char slots[512]) {
    snprintf(slots, 512,
             "*2\r\n*3\r\n:0\r\n:8191\r\n*3\r\n$9\r\n127.0.0.1\r\n:%u\r\n$2\r\nid\r\n"
             "*4\r\n:8192\r\n:16383\r\n*3\r\n$-1\r\n:%u\r\n$2\r\nid\r\n*2\r\n$3\r\nbad\r\n:1\r\n",
             f->servers[0].port, f->servers[1].port);
    f->servers[0].slots = f->servers[1].slots = slots;
}

static void a_cluster_tells_where_keys_are(void **state) {
    struct tier_job job;
    char slots[512];
    struct fixture f;

    (void)state;
    begin(&f, true, 2, "");
    make_cluster(&f, slots);
    *strchr(f.urls, ',') = '\0'; /* one of them is known */
    store_desk_open(&f.desk, f.urls);
    for (uint64_t chain = 1; chain <= 24; chain++) {
        store_desk_make_chain(&f.desk, chain);
        store_desk_run(&f.desk, &job, TIER_STORE, 0, 2);
    }
    assert_true(f.servers[0].n_sets > 0 && f.servers[1].n_sets > 0);
    assert_int_equal(store_desk_stats(&f.desk).n_nodes, 2);
    end(&f);
}

static void a_moved_slot_is_followed_and_remembered(void **state) {
    char moved[64], slots[512];
    struct tier_job job;
    struct fixture f;

    (void)state;
    begin(&f, true, 2, "");
    *strchr(f.urls, ',') = '\0';
    store_desk_open(&f.desk, f.urls);
    store_desk_run(&f.desk, &job, TIER_STORE, 0, 1);
    assert_int_equal(f.servers[0].n_sets, 1);
    fake_store_put(&f.servers[1], name_of(&f, 0),
                   buf_str(fake_store_find(&f.servers[0], name_of(&f, 0))));
    /* The slot of the key is what the server says it is. */
    snprintf(moved, sizeof(moved), "-ASK 7 127.0.0.1:%u", f.servers[1].port);
    fake_store_fail(&f.servers[0], FAULT_ERROR, "GET", 1);
    f.servers[0].fault_text = moved;
    store_desk_run(&f.desk, &job, TIER_LOAD, 0, 1);
    assert_int_equal(job.units[0].result, TIER_OK);
    assert_int_equal(f.servers[1].n_asking, 1);
    assert_int_equal(f.servers[1].n_gets, 1);
    store_desk_run(&f.desk, &job, TIER_LOAD, 0, 1); /* asked for once only */
    assert_int_equal(f.servers[1].n_gets, 1);
    assert_int_equal(job.units[0].result, TIER_OK);

    make_cluster(&f, slots); /* now all slots are the second's */
    snprintf(slots, sizeof(slots), "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$0\r\n\r\n:%u\r\n",
             f.servers[1].port);
    snprintf(moved, sizeof(moved), "-MOVED 7 :%u", f.servers[1].port);
    fake_store_fail(&f.servers[0], FAULT_ERROR, "GET", 1);
    store_desk_run(&f.desk, &job, TIER_LOAD, 0, 1);
    assert_int_equal(job.units[0].result, TIER_OK);
    assert_int_equal(f.servers[1].n_gets, 2);
    STORE_UNTIL(&f.desk, (store_desk_run(&f.desk, &job, TIER_LOAD, 0, 1), f.servers[1].n_gets > 2));
    assert_int_equal(job.units[0].result, TIER_OK);
    assert_int_equal(store_desk_stats(&f.desk).n_errors[STORE_MOVED], 1);
    assert_int_equal(store_desk_stats(&f.desk).n_errors[STORE_ASK], 1);
    end(&f);
}

static void keys_that_move_to_and_fro_are_found(void **state) {
    const struct strmap_slot *slot;
    char moved[64], slots[512];
    struct tier_job job;
    struct fixture f;

    (void)state;
    begin(&f, true, 2, "");
    make_cluster(&f, slots);
    store_desk_open(&f.desk, f.urls);
    for (uint32_t round = 0; round < 12; round++) {
        struct fake_store *from = &f.servers[round % 2], *to = &f.servers[1 - round % 2];

        for (size_t i = 0; (slot = strmap_next(&from->values, &i));)
            fake_store_put(to, slot->key.ptr, buf_str(slot->value));
        fake_store_flush(from);
        snprintf(moved, sizeof(moved), "-%s %u 127.0.0.1:%u", round % 3 ? "MOVED" : "ASK", round,
                 to->port);
        to->fault = FAULT_NONE;
        fake_store_fail(from, FAULT_ERROR, NULL, 1);
        from->fault_text = moved;
        from->fault_lasts = true;
        store_desk_run(&f.desk, &job, TIER_STORE, round * 4, 8);
        assert_int_equal(store_job_count(&job, TIER_OK), 8);
        store_desk_run(&f.desk, &job, TIER_LOAD, 0, round * 4 + 8);
        assert_int_equal(store_job_count(&job, TIER_OK), round * 4 + 8);
        assert_int_equal(from->values.n, 0);
    }
    end(&f);
}

static void servers_that_send_each_other_a_key_end_it(void **state) {
    char there[64], back[64];
    struct tier_job job;
    struct fixture f;

    (void)state;
    begin(&f, true, 2, "");
    store_desk_open(&f.desk, f.urls);
    snprintf(there, sizeof(there), "-MOVED 5 127.0.0.1:%u", f.servers[1].port);
    snprintf(back, sizeof(back), "-MOVED 5 127.0.0.1:%u", f.servers[0].port);
    for (int i = 0; i < 2; i++) {
        fake_store_fail(&f.servers[i], FAULT_ERROR, "GET", 1);
        f.servers[i].fault_text = i ? back : there;
        f.servers[i].fault_lasts = true;
    }
    store_desk_run(&f.desk, &job, TIER_LOAD, 0, 1);
    assert_int_equal(job.units[0].result, TIER_IO);
    assert_int_equal(store_desk_stats(&f.desk).n_errors[STORE_MOVED], 4);
    end(&f);
}

/* --- who may connect -------------------------------------------------------------------------- */

static void passwords_come_from_the_url_or_a_file(void **state) {
    static const struct {
        const char *more, *file;
        enum tier_result result;
    } rows[] = {
        {"", NULL, TIER_IO},
        {":wrong@", NULL, TIER_IO},
        {":s%40cret@", NULL, TIER_OK},
        {"user:s%40cret@", NULL, TIER_OK},
        {"user:wrong@", "s@cret\n", TIER_OK},
        {"", "no\n", TIER_IO},
    };
    char path[] = "/tmp/store_password_XXXXXX";
    struct tier_job job;
    struct fixture f;
    int fd = mkstemp(path);

    (void)state;
    assert_true(fd >= 0);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        begin(&f, true, 1, rows[i].more);
        f.servers[0].password = "s@cret";
        if (rows[i].file) {
            ssize_t n = (ssize_t)strlen(rows[i].file);

            assert_int_equal(ftruncate(fd, 0), 0);
            assert_int_equal(pwrite(fd, rows[i].file, (size_t)n, 0), n);
            f.desk.config.password_file = path;
        }
        store_desk_open(&f.desk, f.urls);
        store_desk_run(&f.desk, &job, TIER_STORE, 0, 1);
        assert_int_equal(job.units[0].result, rows[i].result);
        assert_int_equal(store_desk_stats(&f.desk).n_errors[STORE_NOAUTH],
                         rows[i].result == TIER_IO);
        end(&f);
    }
    close(fd);
    unlink(path);
}

static void a_server_that_forgets_the_user_is_greeted_again(void **state) {
    struct tier_job job;
    struct fixture f;

    (void)state;
    begin(&f, true, 1, ":x@");
    f.servers[0].password = "x";
    store_desk_open(&f.desk, f.urls);
    store_desk_run(&f.desk, &job, TIER_STORE, 0, 4);
    assert_int_equal(store_job_count(&job, TIER_OK), 4);
    for (int i = 0; i < FAKE_STORE_PEERS; i++)
        f.servers[0].peers[i].is_known = false;
    store_desk_run(&f.desk, &job, TIER_STORE, 4, 4);
    assert_int_equal(job.units[0].result, TIER_IO);
    store_desk_run_until_ok(&f.desk, &job, TIER_STORE, 4, 4);
    store_desk_run_until_ok(&f.desk, &job, TIER_LOAD, 0, 8);
    end(&f);
}

static void the_name_of_a_server_is_looked_up(void **state) {
    struct tier_job job;
    struct fixture f;

    (void)state;
    begin(&f, true, 1, "");
    snprintf(f.urls, sizeof(f.urls), "redis://localhost:%u", f.servers[0].port);
    store_desk_open(&f.desk, f.urls);
    store_desk_run(&f.desk, &job, TIER_STORE, 0, 4);
    assert_int_equal(store_job_count(&job, TIER_OK), 4);
    end(&f);
}

static void what_cannot_be_opened_is_refused_with_a_reason(void **state) {
    static const struct {
        const char *urls, *password_file, *ca;
        bool is_plain;
        enum status st;
    } rows[] = {
        {"redis://h", NULL, NULL, false, ST_INVALID}, /* and no key */
        {"", NULL, NULL, true, ST_INVALID},
        {NULL, NULL, NULL, true, ST_INVALID},
        {"http://h:1", NULL, NULL, true, ST_INVALID},
        {"redis://h:1 redis://h:x", NULL, NULL, true, ST_INVALID},
        {"redis://h", "/nowhere/password", NULL, true, ST_NOT_FOUND},
        {"redis://h", "/dev/null", NULL, true, ST_COUNT},
        {"rediss://h", NULL, "/nowhere/ca.pem", true, ST_COUNT},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct tier_store_config config = {
            .urls = rows[i].urls,
            .password_file = rows[i].password_file,
            .tls_ca = rows[i].ca,
            .is_plain = rows[i].is_plain,
            .unit = {.block_tokens = UNIT_TEST_TOKENS, .block_bytes = BLOCK_BYTES}};
        struct error err = {0};
        struct tier *tier = NULL;
        enum status st = tier_store_open(&tier, &config, &err);

        assert_true(st != ST_OK && (st == rows[i].st || rows[i].st == ST_COUNT));
        assert_null(tier);
        assert_true(err.message[0] != '\0');
        if (config.is_plain) assert_int_equal(tier_store_check(&config, &err), st);
    }
}

static void tls_is_verified(void **state) {
    static const struct {
        const char *cert, *ca;
        bool is_ok;
    } rows[] = {
        {"good", "ca.pem", true},
        {"good", "other.pem", false},
        {"elsewhere", "ca.pem", false},
        {NULL, "ca.pem", false},
    };
    struct certs certs;
    struct fixture f;

    (void)state;
    certs_init(&certs);
    certs_make(&certs, &(struct certs_spec){.name = "good", .address = "127.0.0.1"});
    certs_make(&certs, &(struct certs_spec){.name = "elsewhere", .address = "127.0.0.2"});
    certs_make(&certs, &(struct certs_spec){
                           .name = "other", .address = "127.0.0.1", .is_self_signed = true});
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct tls_config server = {.is_server = true};
        struct tls *tls = NULL;
        char cert[256], key[256], ca[256];
        struct tier_job job;
        struct error err = {0};

        begin(&f, true, 1, "");
        if (rows[i].cert) {
            snprintf(cert, sizeof(cert), "%s/%s.pem", certs.folder, rows[i].cert);
            snprintf(key, sizeof(key), "%s/%s.key", certs.folder, rows[i].cert);
            server.cert = cert;
            server.key = key;
            assert_int_equal(tls_create(&tls, &server, &err), ST_OK);
            f.servers[0].tls = tls;
        }
        snprintf(ca, sizeof(ca), "%s/%s", certs.folder, rows[i].ca);
        f.desk.config.tls_ca = ca;
        snprintf(f.urls, sizeof(f.urls), "rediss://127.0.0.1:%u", f.servers[0].port);
        store_desk_open(&f.desk, f.urls);
        store_desk_run(&f.desk, &job, TIER_STORE, 0, 6);
        assert_int_equal(store_job_count(&job, rows[i].is_ok ? TIER_OK : TIER_IO), 6);
        if (rows[i].is_ok) {
            store_desk_run(&f.desk, &job, TIER_LOAD, 0, 6);
            assert_int_equal(store_job_count(&job, TIER_OK), 6);
        }
        assert_int_equal(f.servers[0].n_sets, rows[i].is_ok ? 6 : 0);
        end(&f);
        tls_destroy(tls);
    }
    certs_fini(&certs);
}

/* --- anything --------------------------------------------------------------------------------- */

/* Random jobs under random faults. The model is the server: what is OK was in it, and every job
 * comes home once, with a result of each unit. */
static void random_jobs_under_random_faults_are_right_or_absent(void **state) {
    static const char *const errors[] = {"-LOADING", "-OOM", "-WRONGTYPE",
                                         "-ERR",     ":3",   "-MOVED 1 :1"};
    struct tier_job jobs[4];
    uint64_t n_ok = 0, n_units = 0;
    struct fixture f;
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    begin(&f, true, 2, "");
    f.desk.config.max_keys = 64; /* fewer than there are */
    store_desk_open(&f.desk, f.urls);
    for (int round = 0; round < 400; round++) {
        struct fake_store *server = &f.servers[rng_below(&rng, 2)];
        uint32_t n = 1 + (uint32_t)rng_below(&rng, 4), n_mails = f.desk.n_mails;

        if (rng_below(&rng, 4) == 0) {
            fake_store_fail(server, (enum fake_fault)(FAULT_ERROR + rng_below(&rng, 2)), NULL,
                            1 + (uint32_t)rng_below(&rng, 20));
            server->fault_text = errors[rng_below(&rng, ARRAY_LEN(errors))];
        } else if (rng_below(&rng, 4) == 0) {
            fake_store_fail(server, FAULT_SPLIT, NULL, 1 + (uint32_t)rng_below(&rng, 20));
            server->split_at = rng_below(&rng, 2000);
        }
        if (rng_below(&rng, 20) == 0) fake_store_flush(server);
        if (rng_below(&rng, 20) == 0) {
            fake_store_stop(server);
            fake_store_start(server);
        }
        for (uint32_t i = 0; i < n; i++) {
            uint32_t first = (uint32_t)rng_below(&rng, 16) + i * 16;

            store_job_make(&f.desk, &jobs[i], (enum tier_op)rng_below(&rng, 2), first,
                           (uint32_t)rng_below(&rng, 17 - first % 16));
            atomic_store(&jobs[i].is_cancelled, rng_below(&rng, 16) == 0);
            if (rng_below(&rng, 16) == 0) jobs[i].deadline_us = clock_now_us();
            f.desk.tier->ops->submit(f.desk.tier, &jobs[i]);
            (void)store_desk_find(&f.desk, (uint32_t)rng_below(&rng, 64), 1);
        }
        STORE_UNTIL(&f.desk, store_desk_harvest(&f.desk) - n_mails == n);
        for (uint32_t i = 0; i < n; i++) {
            store_job_check(&f.desk, &jobs[i]);
            n_ok += store_job_count(&jobs[i], TIER_OK);
            n_units += jobs[i].n;
        }
    }
    assert_true(n_ok > 0 && n_ok < n_units);
    end(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_stored_is_found_and_comes_back),
        cmocka_unit_test(a_key_is_named_and_lives_as_documented),
        cmocka_unit_test(a_sealed_value_shows_neither_tokens_nor_kv),
        cmocka_unit_test(unknown_keys_are_asked_for_and_then_found),
        cmocka_unit_test(an_old_answer_does_not_hide_what_was_stored_since),
        cmocka_unit_test(two_fleets_share_nothing),
        cmocka_unit_test(a_reply_may_come_in_two_pieces_cut_anywhere),
        cmocka_unit_test(what_is_gone_is_absent_and_forgotten),
        cmocka_unit_test(an_emptied_store_is_noticed_at_once),
        cmocka_unit_test(the_front_of_a_run_is_kept),
        cmocka_unit_test(another_valid_unit_is_rejected_and_then_overwritten),
        cmocka_unit_test(each_error_at_each_command_is_a_counted_absence),
        cmocka_unit_test(a_connection_cut_at_each_command_ends_what_was_sent),
        cmocka_unit_test(a_server_that_hangs_in_a_value_is_dropped),
        cmocka_unit_test(a_wrong_length_ends_the_connection),
        cmocka_unit_test(a_reply_of_another_kind_ends_the_connection),
        cmocka_unit_test(no_more_is_asked_for_than_the_window),
        cmocka_unit_test(a_server_that_is_away_is_absent_until_it_is_back),
        cmocka_unit_test(an_idle_connection_that_ends_is_no_failure),
        cmocka_unit_test(a_job_too_late_or_cancelled_does_not_begin),
        cmocka_unit_test(what_was_not_sent_by_the_deadline_is_late),
        cmocka_unit_test(jobs_beyond_the_limit_are_refused),
        cmocka_unit_test(closing_ends_all_jobs),
        cmocka_unit_test(an_empty_job_comes_home),
        cmocka_unit_test(a_full_server_gets_no_more_until_it_has_room),
        cmocka_unit_test(writing_stops_at_the_budget),
        cmocka_unit_test(several_urls_are_shards_whatever_their_order),
        cmocka_unit_test(a_cluster_tells_where_keys_are),
        cmocka_unit_test(a_moved_slot_is_followed_and_remembered),
        cmocka_unit_test(keys_that_move_to_and_fro_are_found),
        cmocka_unit_test(servers_that_send_each_other_a_key_end_it),
        cmocka_unit_test(passwords_come_from_the_url_or_a_file),
        cmocka_unit_test(a_server_that_forgets_the_user_is_greeted_again),
        cmocka_unit_test(the_name_of_a_server_is_looked_up),
        cmocka_unit_test(what_cannot_be_opened_is_refused_with_a_reason),
        cmocka_unit_test(tls_is_verified),
        cmocka_unit_test(random_jobs_under_random_faults_are_right_or_absent),
    };

    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
