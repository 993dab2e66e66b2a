/* tests/unit/worker/api/stores/test_responses_store.c - the store beside the obvious model. */
#include <stdio.h>
#include <string.h>

#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"
#include "worker/api/stores/responses_store.h"

#define TTL   100
#define N_IDS 24
#define BYTES 1500 /* some five responses */

/* A response of the model: what was put under its number. */
struct known {
    bool is_there; /* unless the store has dropped it */
    uint64_t tenant, born_us;
    int previous; /* -1: none */
    int version;
};

static void id_of(int i, char out[16]) {
    snprintf(out, 16, "resp_%d", i);
}

static void put(struct responses_store *s, int i, const struct known *k, uint64_t now_us) {
    char id[16], previous[16] = "", input[32], output[32];

    id_of(i, id);
    if (k->previous >= 0) id_of(k->previous, previous);
    snprintf(input, sizeof(input), "\"in%d.%d\"", i, k->version);
    snprintf(output, sizeof(output), "\"out%d.%d\"", i, k->version);
    responses_store_put(s,
                        &(struct stored_response){.id = str_of(id),
                                                  .previous = str_of(previous),
                                                  .tenant = k->tenant,
                                                  .holder = k->tenant,
                                                  .input = str_of(input),
                                                  .output = str_of(output),
                                                  .response = STR("not read")},
                        now_us);
}

/* What the chain of i is in the model; `is_kept`: the store has all of it. */
static void model_items(struct responses_store *s, const struct known *known, int i,
                        uint64_t now_us, struct buf *out, bool *is_kept) {
    int chain[N_IDS + 1], n = 0;
    uint64_t tenant = known[i].tenant;

    *is_kept = true;
    for (; i >= 0 && *is_kept; i = known[i].previous) {
        struct stored_response r;
        char id[16];

        id_of(i, id);
        *is_kept = n < N_IDS && responses_store_get(s, str_of(id), tenant, now_us, &r);
        if (*is_kept) chain[n++] = i;
    }
    buf_append_char(out, '[');
    for (int k = n; k-- > 0;) {
        buf_appendf(out, "%s\"in%d.%d\",\"out%d.%d\"", k == n - 1 ? "" : ",", chain[k],
                    known[chain[k]].version, chain[k], known[chain[k]].version);
    }
    buf_append_char(out, ']');
}

static void compare_chain(struct responses_store *s, const struct known *known, int i,
                          uint64_t now_us) {
    struct buf want, got;
    enum status st;
    bool is_kept;
    char id[16];

    id_of(i, id);
    buf_init(&want, 0);
    buf_init(&got, 0);
    model_items(s, known, i, now_us, &want, &is_kept);
    st = responses_store_items(s, str_of(id), known[i].tenant, now_us, &got);
    assert_int_equal(st, is_kept ? ST_OK : ST_NOT_FOUND);
    if (is_kept && !str_eq(buf_str(&got), buf_str(&want)))
        fail_msg(STR_FMT " is not " STR_FMT, STR_ARG(buf_str(&got)), STR_ARG(buf_str(&want)));
    buf_fini(&want);
    buf_fini(&got);
}

static void look_up(struct responses_store *s, struct known *k, int i, uint64_t now_us) {
    struct stored_response r;
    char id[16];

    id_of(i, id);
    assert_false(responses_store_get(s, str_of(id), k->tenant + 1, now_us, &r));
    if (!responses_store_get(s, str_of(id), k->tenant, now_us, &r)) {
        k->is_there = false;
        return;
    }
    assert_true(k->is_there && now_us < k->born_us + TTL);
    assert_true(str_eq(r.id, str_of(id)) && str_eq(r.response, STR("not read")));
}

static void random_steps_agree_with_a_model(void **state) {
    struct known known[N_IDS] = {0};
    struct responses_store *s = responses_store_create(BYTES, TTL, support_seed());
    struct rng rng;
    uint64_t now_us = 1;

    (void)state;
    rng_seed(&rng, support_seed());
    for (int step = 0; step < 20000; step++) {
        int i = (int)rng_below(&rng, N_IDS);
        char id[16];

        id_of(i, id);
        now_us += rng_below(&rng, 4);
        switch (rng_below(&rng, 5)) {
        case 0:
        case 1:
            known[i] = (struct known){.is_there = true,
                                      .tenant = 1 + 2 * rng_below(&rng, 2),
                                      .born_us = now_us,
                                      .previous = (int)rng_below(&rng, N_IDS + 1) - 1,
                                      .version = step};
            put(s, i, &known[i], now_us);
            break;
        case 2: look_up(s, &known[i], i, now_us); break;
        case 3: compare_chain(s, known, i, now_us); break;
        default:
            (void)responses_store_erase(s, str_of(id), known[i].tenant, now_us);
            known[i].is_there = false;
        }
        responses_store_check(s);
    }
    assert_true(responses_store_stats(s).n_evicted > 100);
    responses_store_destroy(s);
}

static void chain_loses_its_newest_first(void **state) {
    struct responses_store *s = responses_store_create(BYTES, TTL, 1);
    struct known first = {.tenant = 1, .previous = -1}, next = {.tenant = 1, .previous = 0};
    struct stored_response r;
    struct buf items;

    (void)state;
    buf_init(&items, 0);
    put(s, 0, &first, 1);
    put(s, 1, &next, 1);
    assert_int_equal(responses_store_items(s, STR("resp_1"), 1, 1, &items), ST_OK);
    for (int i = 2; responses_store_stats(s).n_evicted == 0; i++)
        put(s, i, &first, 1);
    assert_false(responses_store_get(s, STR("resp_1"), 1, 1, &r));
    assert_true(responses_store_get(s, STR("resp_0"), 1, 1, &r));
    buf_fini(&items);
    responses_store_destroy(s);
}

static void one_that_is_too_large_is_not_kept(void **state) {
    struct responses_store *s = responses_store_create(10, TTL, 1);
    struct stored_response r;

    (void)state;
    put(s, 0, &(struct known){.tenant = 1, .previous = -1}, 1);
    assert_false(responses_store_get(s, STR("resp_0"), 1, 1, &r));
    assert_int_equal(responses_store_stats(s).bytes, 0);
    responses_store_destroy(s);
}

static void a_tenant_displaces_its_own_first(void **state) {
    struct responses_store *s = responses_store_create(BYTES, TTL, 1);
    struct known quiet = {.tenant = 1, .previous = -1}, loud = {.tenant = 2, .previous = -1};
    struct stored_response r;

    (void)state;
    put(s, 0, &quiet, 1);
    put(s, 1, &quiet, 1);
    for (int i = 2; i < 100; i++)
        put(s, i, &loud, 1);
    assert_true(responses_store_get(s, STR("resp_0"), 1, 1, &r));
    assert_true(responses_store_get(s, STR("resp_1"), 1, 1, &r));
    assert_true(responses_store_get(s, STR("resp_99"), 2, 1, &r));
    for (int i = 100; i < 110;
         i++) /* and the loud one keeps its share when the quiet one is loud */
        put(s, i, &quiet, 1);
    assert_true(responses_store_get(s, STR("resp_99"), 2, 1, &r));
    assert_false(responses_store_get(s, STR("resp_100"), 1, 1, &r));
    responses_store_check(s);
    responses_store_destroy(s);
}

/* Its salts make it many tenants, and it is one holder. */
static void a_holder_of_many_salts_has_one_share(void **state) {
    struct responses_store *s = responses_store_create(BYTES, TTL, 1);
    struct known quiet = {.tenant = 1, .previous = -1};
    struct stored_response r;

    (void)state;
    put(s, 0, &quiet, 1);
    put(s, 1, &quiet, 1);
    for (int i = 2; i < 100; i++) {
        struct stored_response loud = {
            .id = {"0123456789", 1 + (size_t)i % 10}, .tenant = (uint64_t)i, .holder = 2};

        responses_store_put(s, &loud, 1);
    }
    assert_true(responses_store_get(s, STR("resp_0"), 1, 1, &r));
    assert_true(responses_store_get(s, STR("resp_1"), 1, 1, &r));
    responses_store_check(s);
    responses_store_destroy(s);
}

static void put_large(struct responses_store *s, size_t n) {
    char text[BYTES];

    memset(text, '1', n);
    responses_store_put(s,
                        &(struct stored_response){
                            .id = STR("large"), .tenant = 9, .holder = 9, .response = {text, n}},
                        1);
    responses_store_check(s);
}

/* Eight others fill the store. A first response of an eighth finds room, a larger one does not. */
static void a_newcomer_takes_an_eighth_at_most(void **state) {
    struct responses_store *s = responses_store_create(8 * BYTES, TTL, 1);
    struct stored_response r;

    (void)state;
    for (int i = 0; i < 100; i++)
        put(s, i, &(struct known){.tenant = (uint64_t)(i % 8), .previous = -1}, 1);
    put_large(s, BYTES);
    assert_false(responses_store_get(s, STR("large"), 9, 1, &r));
    put_large(s, BYTES - 300);
    assert_true(responses_store_get(s, STR("large"), 9, 1, &r));
    for (int i = 92; i < 100; i++) {
        char id[16];

        id_of(i, id);
        assert_true(responses_store_get(s, str_of(id), (uint64_t)(i % 8), 1, &r));
    }
    responses_store_destroy(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_steps_agree_with_a_model),
        cmocka_unit_test(chain_loses_its_newest_first),
        cmocka_unit_test(one_that_is_too_large_is_not_kept),
        cmocka_unit_test(a_tenant_displaces_its_own_first),
        cmocka_unit_test(a_holder_of_many_salts_has_one_share),
        cmocka_unit_test(a_newcomer_takes_an_eighth_at_most),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
