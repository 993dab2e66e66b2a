/* tests/unit/worker/kv/tiers/test_store_parts.c - URLs of a store, and what it may be assumed to
 * hold. */
#include <stdio.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"
#include "worker/kv/tiers/store/store_beliefs.h"
#include "worker/kv/tiers/store/store_url.h"

/* --- URLs ------------------------------------------------------------------------------------- */

static void urls_are_taken_apart(void **state) {
    static const struct {
        const char *url, *name, *host, *user, *password, *path;
        uint32_t database;
        uint16_t port;
        bool is_tls;
    } rows[] = {
        {"redis://h", "redis://h:6379", "h", "", "", "", 0, 6379, false},
        {"redis://h:7/", "redis://h:7", "h", "", "", "", 0, 7, false},
        {"rediss://H.x:7/12", "rediss://h.x:7", "h.x", "", "", "", 12, 7, true},
        {"redis://[::1]/3", "redis://[::1]:6379", "::1", "", "", "", 3, 6379, false},
        {"redis://[::1]:8", "redis://[::1]:8", "::1", "", "", "", 0, 8, false},
        {"redis://:p%40:%2f@h", "redis://h:6379", "h", "", "p@:/", "", 0, 6379, false},
        {"redis://u%40@h", "redis://h:6379", "h", "u@", "", "", 0, 6379, false},
        {"rediss://u:p@1.2.3.4:5/6", "rediss://1.2.3.4:5", "1.2.3.4", "u", "p", "", 6, 5, true},
        {"unix:///run/redis.sock", "unix:///run/redis.sock", "", "", "", "/run/redis.sock", 0, 0,
         false},
        {"unix:///s?db=9", "unix:///s", "", "", "", "/s", 9, 0, false},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct store_url u;

        assert_int_equal(store_url_parse(str_of(rows[i].url), &u, NULL), ST_OK);
        assert_string_equal(store_url_name(&u), rows[i].name);
        assert_string_equal(u.at.host, rows[i].host);
        assert_string_equal(u.user, rows[i].user);
        assert_string_equal(u.password, rows[i].password);
        assert_string_equal(u.path, rows[i].path);
        assert_int_equal(u.database, rows[i].database);
        assert_int_equal(u.at.port, rows[i].port);
        assert_int_equal(u.is_tls, rows[i].is_tls);
    }
}

static void other_urls_are_refused_without_their_secrets(void **state) {
    static const char *const urls[] = {
        "",
        "h:6379",
        "http://secret@h:1",
        "redis://",
        "redis://:secret@",
        "redis://:secret@h:0",
        "redis://:secret@h:65536",
        "redis://:secret@h:1/x",
        "redis://:secret@h:1/1024",
        "redis://:secret@h:1/1/2",
        "redis://:secret%4@h",
        "redis://:secret%00@h",
        "redis://secret h",
        "redis://[secret",
        "unix://",
        "unix://relative",
        "unix:///",
        "unix:///p?database=1",
        "unix:///p?db=x",
    };
    char longer[STORE_URL_MAX];
    struct error err = {0};
    struct store_url u;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(urls); i++) {
        assert_int_equal(store_url_parse(str_of(urls[i]), &u, &err), ST_INVALID);
        assert_null(strstr(err.message, "secret"));
    }
    memset(longer, 'a', sizeof(longer));
    memcpy(longer, "redis://", 8);
    assert_int_equal(store_url_parse((struct str){longer, sizeof(longer)}, &u, &err), ST_INVALID);
    memcpy(longer, "unix:///", 8);
    assert_int_equal(store_url_parse((struct str){longer, 8 + STORE_PATH_MAX}, &u, &err),
                     ST_INVALID);
}

static void a_sibling_differs_in_its_place_alone(void **state) {
    struct store_url u, other;

    (void)state;
    assert_int_equal(store_url_parse(STR("rediss://u:p@h:1/2"), &u, NULL), ST_OK);
    assert_int_equal(store_url_sibling(&u, STR("10.0.0.1"), 99, &other), ST_OK);
    assert_string_equal(store_url_name(&other), "rediss://10.0.0.1:99");
    assert_string_equal(other.password, "p");
    assert_int_equal(other.database, 2);
    assert_int_equal(store_url_sibling(&u, STR("fd00::1"), 99, &other), ST_OK);
    assert_string_equal(store_url_name(&other), "rediss://[fd00::1]:99");
    assert_int_equal(store_url_sibling(&u, STR(""), 99, &other), ST_INVALID);
    assert_int_equal(store_url_sibling(&u, STR("a b"), 99, &other), ST_INVALID);
}

/* --- beliefs ---------------------------------------------------------------------------------- */

#define KEYS 512

struct model {
    enum belief belief[KEYS];
    uint64_t until_us[KEYS];
};

static struct unit_key key_of(uint32_t i) {
    struct unit_key key;
    uint64_t words[2] = {rng_at(1, i), rng_at(2, i)};

    memcpy(key.bytes, words, sizeof(key.bytes));
    return key;
}

/* With room for all keys it is the model; with less it forgets, and never makes anything up. */
static void drive(uint32_t n_keys, bool forgets) {
    struct beliefs *b = beliefs_create(n_keys, 5);
    uint64_t now_us = 1000, n_forgotten = 0, until_us = 0;
    struct model m = {0};
    struct rng rng;

    rng_seed(&rng, support_seed());
    for (int step = 0; step < 20000; step++) {
        uint32_t i = (uint32_t)rng_below(&rng, KEYS);
        struct unit_key key = key_of(i);
        enum belief found = beliefs_find(b, &key, now_us);
        enum belief expected = m.until_us[i] > now_us ? m.belief[i] : BELIEF_NONE;

        if (forgets && found == BELIEF_NONE) {
            n_forgotten += expected != BELIEF_NONE;
        } else {
            assert_int_equal(found, expected);
        }
        if (rng_below(&rng, 2)) {
            m.belief[i] = (enum belief)rng_below(&rng, BELIEF_SPOILED + 1);
            m.until_us[i] = now_us + rng_below(&rng, 100);
            beliefs_set(b, &key, m.belief[i], now_us, m.until_us[i]);
            if (m.belief[i] == BELIEF_PRESENT && m.until_us[i] <= until_us) m.until_us[i] = 0;
        }
        now_us += rng_below(&rng, 2);
        if (rng_below(&rng, 1000) == 0) {
            beliefs_forget_present(b, now_us + 100);
            until_us = now_us + 100;
            for (uint32_t k = 0; k < KEYS; k++)
                if (m.belief[k] == BELIEF_PRESENT && m.until_us[k] <= until_us) m.until_us[k] = 0;
        }
        if (step % 512 == 0) beliefs_check(b);
    }
    assert_int_equal(n_forgotten > 0, forgets);
    beliefs_check(b);
    beliefs_destroy(b);
}

static void random_beliefs_are_those_of_the_model(void **state) {
    (void)state;
    drive(64 * KEYS, false);
    drive(32, true);
}

static void a_full_set_forgets_what_ends_first(void **state) {
    struct beliefs *b = beliefs_create(1, 5);
    struct unit_key key;

    (void)state;
    for (uint32_t i = 0; i < 8; i++) { /* the third ends first */
        key = key_of(i);
        beliefs_set(b, &key, BELIEF_PRESENT, 0, i == 3 ? 5 : 100 + i);
    }
    assert_int_equal(beliefs_n_present(b), 8);
    key = key_of(99);
    beliefs_set(b, &key, BELIEF_ABSENT, 0, 3);
    assert_int_equal(beliefs_n_present(b), 7);
    for (uint32_t i = 0; i < 8; i++) {
        key = key_of(i);
        assert_int_equal(beliefs_find(b, &key, 1), i == 3 ? BELIEF_NONE : BELIEF_PRESENT);
    }
    beliefs_check(b);
    beliefs_destroy(b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(urls_are_taken_apart),
        cmocka_unit_test(other_urls_are_refused_without_their_secrets),
        cmocka_unit_test(a_sibling_differs_in_its_place_alone),
        cmocka_unit_test(random_beliefs_are_those_of_the_model),
        cmocka_unit_test(a_full_set_forgets_what_ends_first),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
