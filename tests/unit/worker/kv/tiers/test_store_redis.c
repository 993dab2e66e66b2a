/* tests/unit/worker/kv/tiers/test_store_redis.c - the store before a real server, where one is
 * installed. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/support/certs.h"
#include "tests/support/redis_server.h"
#include "tests/support/store_fixture.h"
#include "tests/support/support.h"

#define BLOCK_BYTES 65536u

struct fixture {
    struct store_desk desk;
    struct redis_server server;
    char url[256];
};

static void begin_of(struct fixture *f, size_t block_bytes, const char *const *more) {
    if (!redis_server_start(&f->server, more)) {
        print_message("SKIPPED a real Redis: make deps-test\n");
        skip();
    }
    store_desk_begin(&f->desk, true, block_bytes);
    snprintf(f->url, sizeof(f->url), "redis://127.0.0.1:%u", f->server.port);
}

static void begin(struct fixture *f, const char *const *more) {
    begin_of(f, BLOCK_BYTES, more);
}

static void end(struct fixture *f) {
    store_desk_end(&f->desk);
    redis_server_stop(&f->server);
}

static void a_chain_comes_back_over_tcp_and_a_unix_socket(void **state) {
    struct tier_job job;
    struct fixture f;

    (void)state;
    begin(&f, NULL);
    for (int is_unix = 0; is_unix < 2; is_unix++) {
        char url[256];

        snprintf(url, sizeof(url), is_unix ? "unix://%s?db=3" : "redis://127.0.0.1:%s/3",
                 is_unix ? f.server.path : f.server.port_text);
        store_desk_open(&f.desk, url);
        if (!is_unix) {
            store_desk_run(&f.desk, &job, TIER_STORE, 0, 64);
            assert_int_equal(store_job_count(&job, TIER_OK), 64);
            store_desk_reopen(&f.desk);
        }
        STORE_UNTIL(&f.desk, store_desk_find(&f.desk, 0, 64) == 64);
        store_desk_run(&f.desk, &job, TIER_LOAD, 0, 64);
        assert_int_equal(store_job_count(&job, TIER_OK), 64);
        f.desk.tier->ops->destroy(f.desk.tier);
        f.desk.tier = NULL;
    }
    end(&f);
}

static void blocks_of_any_size_come_back(void **state) {
    static const size_t sizes[] = {1, 4096, 1000001, (3u << 20) + 7}; /* the window holds one */
    struct tier_job job;
    struct fixture f;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        begin_of(&f, sizes[i], NULL);
        store_desk_open(&f.desk, f.url);
        store_desk_run(&f.desk, &job, TIER_STORE, 0, 6);
        assert_int_equal(store_job_count(&job, TIER_OK), 6);
        store_desk_run(&f.desk, &job, TIER_LOAD, 0, 6);
        assert_int_equal(store_job_count(&job, TIER_OK), 6);
        end(&f);
    }
}

static void what_the_server_drops_is_absent(void **state) {
    struct tier_job job;
    struct fixture f;

    (void)state;
    begin(&f, NULL);
    f.desk.config.ttl_s = 1;
    store_desk_open(&f.desk, f.url);
    store_desk_run(&f.desk, &job, TIER_STORE, 0, 8);
    redis_server_command(&f.server, "FLUSHALL");
    store_desk_run(&f.desk, &job, TIER_LOAD, 0, 8);
    assert_int_equal(job.units[0].result, TIER_ABSENT);
    store_desk_run(&f.desk, &job, TIER_STORE, 0, 8);
    do { /* until its time is over */
        store_desk_run(&f.desk, &job, TIER_LOAD, 0, 8);
    } while (job.units[0].result == TIER_OK);
    assert_int_equal(job.units[0].result, TIER_ABSENT);
    assert_int_equal(store_desk_find(&f.desk, 0, 8), 0);
    end(&f);
}

static void a_server_killed_at_any_time_loses_and_comes_back(void **state) {
    struct tier_job jobs[2];
    struct fixture f;
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    begin(&f, NULL);
    snprintf(f.url, sizeof(f.url), "unix://%s",
             f.server.path); /* its port may be taken meanwhile */
    store_desk_open(&f.desk, f.url);
    for (int round = 0; round < 12; round++) {
        uint32_t n_mails;

        store_desk_run_until_ok(&f.desk, &jobs[0], TIER_STORE, 0, 64);
        n_mails = f.desk.n_mails;
        for (int i = 0; i < 2; i++) {
            store_job_make(&f.desk, &jobs[i], i ? TIER_STORE : TIER_LOAD, i ? 32 : 0, 32);
            f.desk.tier->ops->submit(f.desk.tier, &jobs[i]);
        }
        loop_turn(f.desk.loop, rng_below(&rng, 4000));
        redis_server_kill(&f.server);
        STORE_UNTIL(&f.desk, store_desk_harvest(&f.desk) == n_mails + 2);
        store_job_check(&f.desk, &jobs[0]);
        store_job_check(&f.desk, &jobs[1]);
        redis_server_restart(&f.server, NULL);
    }
    end(&f);
}

static void writing_stops_where_the_memory_ends(void **state) {
    struct tier_stats stats;
    struct tier_job job;
    struct fixture f;

    (void)state;
    begin(&f, NULL);
    store_desk_open(&f.desk, f.url);
    redis_server_command(&f.server, "CONFIG SET maxmemory 3mb");
    do { /* three of eight find no room, or more */
        store_desk_run(&f.desk, &job, TIER_STORE, 0, 64);
        f.desk.tier->ops->stats(f.desk.tier, &stats);
    } while (store_job_count(&job, TIER_BUSY) == 0 || stats.can_write);
    assert_true(store_desk_stats(&f.desk).n_errors[STORE_OOM] > 0);
    redis_server_command(&f.server, "CONFIG SET maxmemory 0");
    store_desk_run_until_ok(&f.desk, &job, TIER_STORE, 0, 64);
    store_desk_run(&f.desk, &job, TIER_LOAD, 0, 64);
    assert_int_equal(store_job_count(&job, TIER_OK), 64);

    f.desk.config.max_bytes = 1; /* less than an empty server has */
    store_desk_reopen(&f.desk);
    do {
        store_desk_run(&f.desk, &job, TIER_STORE, 0, 1);
        f.desk.tier->ops->stats(f.desk.tier, &stats);
    } while (job.units[0].result != TIER_BUSY || stats.can_write);
    assert_true(stats.bytes > 64 * BLOCK_BYTES);
    end(&f);
}

static void a_user_of_the_url_has_the_password_of_the_file(void **state) {
    char path[] = "/tmp/store_password_XXXXXX";
    int fd = mkstemp(path);
    struct tier_job job;
    struct fixture f;

    (void)state;
    assert_true(fd >= 0 && pwrite(fd, "s@cret\n", 7, 0) == 7);
    close(fd);
    begin(&f, NULL);
    redis_server_command(&f.server, "ACL SETUSER alice on >s@cret allkeys allcommands");
    snprintf(f.url, sizeof(f.url), "redis://alice@127.0.0.1:%u", f.server.port);
    f.desk.config.password_file = path;
    store_desk_open(&f.desk, f.url);
    store_desk_run(&f.desk, &job, TIER_STORE, 0, 2);
    assert_int_equal(store_job_count(&job, TIER_OK), 2);
    end(&f);
    unlink(path);
}

static void a_password_is_asked_for(void **state) {
    static const char *const more[] = {"--requirepass", "s@cret", NULL};
    static const char *const who[] = {"", ":no@", "default@", ":s%40cret@", "default:s%40cret@"};
    struct tier_job job;
    struct fixture f;

    (void)state;
    begin(&f, more);
    for (size_t i = 0; i < ARRAY_LEN(who); i++) {
        snprintf(f.url, sizeof(f.url), "redis://%s127.0.0.1:%u", who[i], f.server.port);
        store_desk_open(&f.desk, f.url);
        store_desk_run(&f.desk, &job, TIER_STORE, 0, 2);
        assert_int_equal(store_job_count(&job, i < 3 ? TIER_IO : TIER_OK), 2);
        f.desk.tier->ops->destroy(f.desk.tier);
        f.desk.tier = NULL;
    }
    end(&f);
}

static void a_cluster_gets_its_keys(void **state) {
    static const char *const more[] = {"--cluster-enabled", "yes", "--cluster-port", "0", NULL};
    struct tier_job job;
    struct fixture f;

    (void)state;
    begin(&f, more);
    store_desk_open(&f.desk, f.url);
    store_desk_run(&f.desk, &job, TIER_STORE, 0, 4); /* nobody has the slots */
    assert_int_equal(store_job_count(&job, TIER_IO), 4);
    assert_true(store_desk_stats(&f.desk).n_errors[STORE_CLUSTERDOWN] > 0);
    redis_server_command(&f.server, "CLUSTER ADDSLOTSRANGE 0 16383");
    store_desk_run_until_ok(&f.desk, &job, TIER_STORE, 0, 64);
    store_desk_run(&f.desk, &job, TIER_LOAD, 0, 64);
    assert_int_equal(store_job_count(&job, TIER_OK), 64);
    store_desk_reopen(&f.desk);
    store_desk_run(&f.desk, &job, TIER_LOAD, 0, 64);
    assert_int_equal(store_job_count(&job, TIER_OK), 64);
    assert_int_equal(store_desk_stats(&f.desk).n_nodes, 1);
    end(&f);
}

static void tls_is_verified(void **state) {
    static const struct {
        const char *cert, *ca;
        bool is_ok;
    } rows[] = {{"good", "ca", true}, {"good", "other", false}, {"expired", "ca", false}};
    struct certs certs;
    struct fixture f;

    (void)state;
    certs_init(&certs);
    certs_make(&certs, &(struct certs_spec){.name = "good", .address = "127.0.0.1"});
    certs_make(&certs, &(struct certs_spec){
                           .name = "expired", .address = "127.0.0.1", .from_days = -9, .days = 3});
    certs_make(&certs, &(struct certs_spec){
                           .name = "other", .address = "127.0.0.1", .is_self_signed = true});
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char cert[128], key[128], trusted[128], ca[128];
        const char *const more[] = {"--port",
                                    "0",
                                    "--tls-port",
                                    "PORT",
                                    "--tls-cert-file",
                                    cert,
                                    "--tls-key-file",
                                    key,
                                    "--tls-ca-cert-file",
                                    ca,
                                    "--tls-auth-clients",
                                    "no",
                                    NULL};
        struct tier_job job;

        snprintf(cert, sizeof(cert), "%s/%s.pem", certs.folder, rows[i].cert);
        snprintf(key, sizeof(key), "%s/%s.key", certs.folder, rows[i].cert);
        snprintf(ca, sizeof(ca), "%s/ca.pem", certs.folder);
        snprintf(trusted, sizeof(trusted), "%s/%s.pem", certs.folder, rows[i].ca);
        begin(&f, more);
        f.desk.config.tls_ca = trusted;
        snprintf(f.url, sizeof(f.url), "rediss://127.0.0.1:%u", f.server.port);
        store_desk_open(&f.desk, f.url);
        store_desk_run(&f.desk, &job, TIER_STORE, 0, 64);
        assert_int_equal(store_job_count(&job, rows[i].is_ok ? TIER_OK : TIER_IO), 64);
        if (rows[i].is_ok) {
            store_desk_run(&f.desk, &job, TIER_LOAD, 0, 64);
            assert_int_equal(store_job_count(&job, TIER_OK), 64);
        }
        end(&f);
    }
    certs_fini(&certs);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_chain_comes_back_over_tcp_and_a_unix_socket),
        cmocka_unit_test(blocks_of_any_size_come_back),
        cmocka_unit_test(what_the_server_drops_is_absent),
        cmocka_unit_test(a_server_killed_at_any_time_loses_and_comes_back),
        cmocka_unit_test(writing_stops_where_the_memory_ends),
        cmocka_unit_test(a_user_of_the_url_has_the_password_of_the_file),
        cmocka_unit_test(a_password_is_asked_for),
        cmocka_unit_test(a_cluster_gets_its_keys),
        cmocka_unit_test(tls_is_verified),
    };

    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
