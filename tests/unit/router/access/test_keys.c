/* tests/unit/router/access/test_keys.c - keys: the file, the limits, and what a reload leaves
 * alone. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "router/access/keys.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"

static struct keys *make(const char *text) {
    struct keys *k = NULL;
    struct error err = {0};

    assert_int_equal(keys_create(&k, NULL, "from-the-environment", NULL), ST_OK);
    if (keys_load(k, str_of(text), "keys", &err) != ST_OK) fail_msg("%s", err.message);
    return k;
}

static enum status enter(struct keys *k, const char *key, double tokens, uint64_t now_us,
                         struct key_use *use, uint64_t *wait_us) {
    struct error err = {0};
    enum status st = keys_enter(k, str_of(key), tokens, now_us, use, wait_us, &err);

    assert_null(strstr(err.message, key));
    return st;
}

static void without_keys_every_client_may_enter(void **state) {
    struct keys *k = NULL;

    (void)state;
    assert_int_equal(keys_create(&k, NULL, NULL, NULL), ST_OK);
    assert_false(keys_are_needed(k));
    assert_false(keys_are_needed(NULL));
    assert_int_equal(keys_check(k, STR_NULL, NULL), ST_OK);
    keys_destroy(k);
    assert_int_equal(keys_create(&k, NULL, "", NULL), ST_OK);
    assert_false(keys_are_needed(k));
    keys_destroy(k);
}

static void a_file_gives_keys_and_limits(void **state) {
    struct keys *k = make("# ours\n\n  alpha tenant=a rps=2.5 priority=-3 # the first\r\n"
                          "be#ta\tmax_concurrent=2 tokens_per_s=100 # more\ngamma");
    struct key_use use = {0}, other = {0};
    struct error err = {0};
    uint64_t wait_us;

    (void)state;
    assert_true(keys_are_needed(k));
    assert_int_equal(keys_count(k), 4);
    keys_check_invariants(k);
    assert_int_equal(keys_check(k, STR("alpha"), NULL), ST_OK);
    assert_int_equal(keys_check(k, STR("be#ta"), NULL), ST_OK);
    assert_int_equal(keys_check(k, STR("from-the-environment"), NULL), ST_OK);
    assert_int_equal(keys_check(k, STR("alph"), NULL), ST_DENIED);
    assert_int_equal(keys_check(k, STR("alpha "), NULL), ST_DENIED);
    assert_int_equal(keys_check(k, STR_NULL, NULL), ST_DENIED);
    assert_int_equal(keys_check(k, STR("alph"), &err), ST_DENIED);
    assert_non_null(strstr(err.message, "Authorization or x-api-key"));
    assert_int_equal(keys_check(k, STR_NULL, &err), ST_DENIED);
    assert_non_null(strstr(err.message, "\"x-api-key: KEY\""));
    assert_int_equal(enter(k, "alpha", 1, 1, &use, &wait_us), ST_OK);
    assert_string_equal(key_tenant(use.key).ptr, "a");
    assert_int_equal(use.priority, -3);
    assert_int_equal(enter(k, "gamma", 1, 1, &other, &wait_us), ST_OK);
    assert_string_not_equal(key_tenant(other.key).ptr, "a"); /* a tenant of its own */
    keys_leave(k, &use, -1);
    keys_leave(k, &other, -1);
    keys_leave(k, &other, -1); /* once more is nothing */
    keys_destroy(k);
}

static void weight_and_share_are_the_tenants_and_change_with_the_file(void **state) {
    struct keys *k = make("a tenant=x weight=0.01 max_share=0.25\nb tenant=x max_share=0.25 "
                          "weight=0.01\nc\nd weight=100 max_share=1\n");
    static const struct {
        const char *key;
        double weight, max_share;
    } expected[] = {{"a", 0.01, 0.25}, {"b", 0.01, 0.25}, {"c", 1, 1}, {"d", 100, 1}};
    struct key_use use;
    uint64_t wait_us;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(expected); i++) {
        assert_int_equal(enter(k, expected[i].key, 1, 1, &use, &wait_us), ST_OK);
        assert_float_equal(use.weight, expected[i].weight, 1e-9);
        assert_float_equal(use.max_share, expected[i].max_share, 1e-9);
        keys_leave(k, &use, -1);
    }
    assert_int_equal(keys_load(k, STR("a tenant=x weight=3\nc max_share=0.5"), "keys", NULL),
                     ST_OK);
    assert_int_equal(enter(k, "a", 1, 1, &use, &wait_us), ST_OK);
    assert_true(use.weight == 3 && use.max_share == 1);
    keys_leave(k, &use, -1);
    keys_destroy(k);
}

static void an_error_is_named_by_its_line_and_changes_nothing(void **state) {
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"", "no key"},
        {"# only this\n", "no key"},
        {"secret rsp=3", "line 1: unknown setting"},
        {"a\nsecret word", "line 2: unexpected text after the key"},
        {"secret rps=", "invalid rps"},
        {"secret rps=0", "invalid rps"},
        {"secret rps=nan", "invalid rps"},
        {"secret tokens_per_s=-1", "tokens_per_s"},
        {"secret max_concurrent=1.5", "max_concurrent"},
        {"secret priority=1e9", "priority"},
        {"secret weight=0", "invalid weight: give a number from 0.01 to 100"},
        {"secret weight=100.1", "invalid weight"},
        {"secret weight=nan", "invalid weight"},
        {"secret weight=-1", "invalid weight"},
        {"secret max_share=0", "invalid max_share: give a number above 0"},
        {"secret max_share=1.01", "invalid max_share"},
        {"secret max_share=half", "invalid max_share"},
        {"secret tenant=a weight=2\nb tenant=a", "line 2: another key of this tenant"},
        {"secret tenant=a\nb tenant=b\nc tenant=a max_share=0.5", "line 3: another key"},
        {"secret tenant=", "tenant"},
        {"secret tenant=a\"b", "letters"},
        {"secret\nsecret", "line 2: duplicate key"},
        {"from-the-environment", "duplicate key"},
        {"sec\x01ret", "visible"},
    };
    struct keys *k = make("alpha");

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct error err = {0};

        assert_int_equal(keys_load(k, str_of(cases[i].text), "keys", &err), ST_INVALID);
        if (!strstr(err.message, cases[i].words)) fail_msg("%s: %s", cases[i].text, err.message);
        assert_null(strstr(err.message, "secret"));
        assert_int_equal(keys_check(k, STR("alpha"), NULL), ST_OK);
        assert_int_equal(keys_check(k, STR("secret"), NULL), ST_DENIED);
    }
    keys_check_invariants(k);
    keys_destroy(k);
}

static void a_limit_refuses_with_its_name_and_retry_time(void **state) {
    struct keys *k = make("r rps=2\nt tokens_per_s=100\nc max_concurrent=2\n");
    struct key_use use[4] = {{0}};
    struct error err = {0};
    uint64_t wait_us;

    (void)state;
    for (int i = 0; i < 2; i++)
        assert_int_equal(enter(k, "r", 1, 5, &use[i], &wait_us), ST_OK);
    assert_int_equal(keys_enter(k, STR("r"), 1, 5, &use[2], &wait_us, &err), ST_BUSY);
    assert_int_equal(wait_us, 500000);
    assert_non_null(strstr(err.message, "rps=2"));
    keys_leave(k, &use[0], -1);
    keys_leave(k, &use[1], -1);

    assert_int_equal(enter(k, "t", 900, 5, &use[0], &wait_us), ST_OK);
    assert_int_equal(keys_enter(k, STR("t"), 200, 5, &use[1], &wait_us, &err), ST_BUSY);
    assert_int_equal(wait_us, 1000000);
    assert_non_null(strstr(err.message, "tokens_per_s=100"));
    keys_leave(k, &use[0], 800); /* there were fewer than predicted */
    assert_int_equal(enter(k, "t", 200, 5, &use[0], &wait_us), ST_OK);
    keys_leave(k, &use[0], -1);

    for (int i = 0; i < 2; i++)
        assert_int_equal(enter(k, "c", 1, 5, &use[i], &wait_us), ST_OK);
    assert_int_equal(keys_enter(k, STR("c"), 1, 5, &use[2], &wait_us, &err), ST_BUSY);
    assert_non_null(strstr(err.message, "max_concurrent=2"));
    assert_true(wait_us > 0);
    keys_leave(k, &use[0], -1);
    assert_int_equal(enter(k, "c", 1, 5, &use[2], &wait_us), ST_OK);
    keys_leave(k, &use[1], -1);
    keys_leave(k, &use[2], -1);
    keys_destroy(k);
}

static const char *name_of(struct keys *k, const char *key) {
    static char name[KEY_NAME_MAX];

    keys_name(k, str_of(key), name);
    return name;
}

static void a_key_has_a_name_for_the_log(void **state) {
    struct keys *k = make("# two\nfirst\nsecond tenant=ops\n"), *single, *none;

    (void)state;
    assert_string_equal(name_of(k, "first"), "line 2");
    assert_string_equal(name_of(k, "second"), "ops");
    assert_string_equal(name_of(k, "third"), "unknown");
    assert_string_equal(name_of(k, ""), "unknown");
    assert_int_equal(keys_load(k, STR("other\n\n\nfirst\n"), "keys", NULL), ST_OK);
    assert_string_equal(name_of(k, "first"), "line 4");
    keys_destroy(k);
    assert_int_equal(keys_create(&single, NULL, "from-the-environment", NULL), ST_OK);
    assert_string_equal(name_of(single, "from-the-environment"), "environment");
    keys_destroy(single);
    assert_int_equal(keys_create(&none, NULL, NULL, NULL), ST_OK);
    assert_string_equal(name_of(none, "any"), "none");
    assert_string_equal(name_of(NULL, "any"), "none");
    keys_destroy(none);
}

static void a_reload_keeps_usage_and_refuses_removed_keys(void **state) {
    struct keys *k = make("stays rps=1\ngoes\nmoves tenant=a\n");
    struct key_use stays = {0}, goes = {0}, moves = {0}, again = {0};
    uint64_t wait_us;

    (void)state;
    assert_int_equal(enter(k, "stays", 1, 5, &stays, &wait_us), ST_OK);
    assert_int_equal(enter(k, "goes", 1, 5, &goes, &wait_us), ST_OK);
    assert_int_equal(enter(k, "moves", 1, 5, &moves, &wait_us), ST_OK);
    assert_int_equal(keys_load(k, STR("stays rps=1\nmoves tenant=b\nnew"), "keys", NULL), ST_OK);
    keys_check_invariants(k);
    assert_int_equal(enter(k, "stays", 1, 5, &again, &wait_us), ST_BUSY);
    assert_int_equal(enter(k, "goes", 1, 5, &again, &wait_us), ST_DENIED);
    assert_string_equal(key_tenant(moves.key).ptr, "a");
    assert_int_equal(enter(k, "moves", 1, 5, &again, &wait_us), ST_OK);
    assert_string_equal(key_tenant(again.key).ptr, "b");
    keys_leave(k, &again, -1);
    keys_leave(k, &moves, -1);
    keys_leave(k, &goes, -1);
    keys_leave(k, &stays, -1);
    keys_destroy(k);
}

static void the_file_is_read_again(void **state) {
    char path[] = "/tmp/test_keys_XXXXXX";
    int fd = mkstemp(path);
    struct keys *k = NULL;
    struct error err = {0};

    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "one\n", 4), 4);
    assert_int_equal(keys_create(&k, path, NULL, NULL), ST_OK);
    assert_int_equal(keys_check(k, STR("two"), NULL), ST_DENIED);
    assert_int_equal(write(fd, "two\n", 4), 4);
    assert_int_equal(keys_reload(k, NULL), ST_OK);
    assert_int_equal(keys_check(k, STR("two"), NULL), ST_OK);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(keys_reload(k, &err), ST_NOT_FOUND);
    assert_non_null(strstr(err.message, path));
    assert_int_equal(keys_check(k, STR("two"), NULL), ST_OK);
    close(fd);
    keys_destroy(k);
}

static void a_key_is_found_in_its_headers(void **state) {
    (void)state;
    assert_true(str_eq(keys_from_headers(STR("Bearer k1"), STR_NULL), STR("k1")));
    assert_true(str_eq(keys_from_headers(STR("bearer   k1 "), STR_NULL), STR("k1")));
    assert_true(str_eq(keys_from_headers(STR_NULL, STR("k2")), STR("k2")));
    assert_true(str_eq(keys_from_headers(STR("Bearer k1"), STR("k2")), STR("k1")));
    assert_null(keys_from_headers(STR("Basic k1"), STR("k2")).ptr);
    assert_null(keys_from_headers(STR("Bearer "), STR_NULL).ptr);
    assert_null(keys_from_headers(STR_NULL, STR_NULL).ptr);
}

/* --- two loops and a reload at once, for the thread sanitizer --------------------------------- */

static void *use_keys(void *arg) {
    struct keys *k = arg;
    uint64_t wait_us, n_in = 0;

    for (uint64_t i = 1; i < 3000; i++) {
        struct key_use use = {0};
        enum status st = keys_enter(k, STR("shared"), 10, i * 1000, &use, &wait_us, NULL);

        assert_true(st == ST_OK || st == ST_BUSY || st == ST_DENIED);
        if (st != ST_OK) continue;
        assert_true(key_tenant(use.key).len > 0);
        keys_leave(k, &use, (double)(i % 20));
        n_in++;
    }
    return (void *)(uintptr_t)n_in;
}

static void loops_and_a_reload_do_not_meet(void **state) {
    struct keys *k = make("shared tenant=a max_concurrent=1 rps=1000");
    pthread_t threads[2];
    void *n[2];

    (void)state;
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, use_keys, k), 0);
    for (int i = 0; i < 200; i++) {
        assert_int_equal(keys_load(k, i % 2 ? STR("shared tenant=a") : STR("shared tenant=b rps=9"),
                                   "keys", NULL),
                         ST_OK);
    }
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_join(threads[i], &n[i]), 0);
    assert_true((uintptr_t)n[0] + (uintptr_t)n[1] > 0);
    keys_check_invariants(k);
    keys_destroy(k);
}

static void other_keys_are_prepared_and_committed_or_change_nothing(void **state) {
    struct keys *k = NULL;
    struct keys_change *c = NULL;
    struct key_use use = {0};
    struct error err = {0};
    uint64_t wait_us;

    (void)state;
    assert_int_equal(keys_create(&k, NULL, "old", NULL), ST_OK);
    assert_int_equal(enter(k, "old", 1, 1, &use, &wait_us), ST_OK);
    assert_int_equal(keys_prepare(k, NULL, "new", &c, &err), ST_OK);
    assert_int_equal(keys_check(k, STR("new"), NULL), ST_DENIED);
    keys_drop(c);
    assert_int_equal(keys_check(k, STR("old"), NULL), ST_OK);
    assert_int_equal(keys_prepare(k, NULL, "new", &c, &err), ST_OK);
    keys_commit(k, c);
    assert_int_equal(keys_check(k, STR("new"), NULL), ST_OK);
    assert_int_equal(keys_check(k, STR("old"), NULL), ST_DENIED);
    keys_leave(k, &use, -1); /* what the old key let in ends in peace */
    assert_int_equal(keys_prepare(k, "/nowhere", "new", &c, &err), ST_NOT_FOUND);
    assert_int_equal(keys_prepare(k, NULL, "a b", &c, &err), ST_INVALID);
    assert_int_equal(keys_prepare(k, NULL, NULL, &c, &err), ST_INVALID); /* none would be needed */
    assert_int_equal(keys_check(k, STR("new"), NULL), ST_OK);
    keys_check_invariants(k);
    keys_destroy(k);
    assert_int_equal(keys_create(&k, NULL, NULL, NULL), ST_OK);
    assert_int_equal(keys_prepare(k, NULL, "new", &c, &err), ST_INVALID);
    keys_destroy(k);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_keys_every_client_may_enter),
        cmocka_unit_test(a_file_gives_keys_and_limits),
        cmocka_unit_test(weight_and_share_are_the_tenants_and_change_with_the_file),
        cmocka_unit_test(an_error_is_named_by_its_line_and_changes_nothing),
        cmocka_unit_test(a_limit_refuses_with_its_name_and_retry_time),
        cmocka_unit_test(a_key_has_a_name_for_the_log),
        cmocka_unit_test(a_reload_keeps_usage_and_refuses_removed_keys),
        cmocka_unit_test(the_file_is_read_again),
        cmocka_unit_test(a_key_is_found_in_its_headers),
        cmocka_unit_test(loops_and_a_reload_do_not_meet),
        cmocka_unit_test(other_keys_are_prepared_and_committed_or_change_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
