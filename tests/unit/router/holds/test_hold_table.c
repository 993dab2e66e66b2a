/* tests/unit/router/holds/test_hold_table.c - entries and copies against a list; bounds. */
#include <stdio.h>
#include <string.h>

#include "common/base/rng.h"
#include "router/holds/hold_table.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"

#define N_OPS  100000u
#define LISTED 64u

static struct hold_copy copy_of(uint32_t worker, uint32_t number) {
    struct hold_copy c = {.worker = worker, .incarnation = 1};

    snprintf(c.id, sizeof(c.id), "hold-%016x", number);
    return c;
}

static enum status put(struct hold_table *t, uint64_t id, uint64_t tenant, const char *body,
                       size_t body_len, struct hold_entry **out) {
    struct hold_entry like = {.id = id,
                              .owner = tenant,
                              .tenant = tenant,
                              .n_wanted = 1,
                              .body = (char *)(uintptr_t)body,
                              .body_len = body_len};
    enum status st = hold_table_check_room(t, tenant, body_len, NULL);

    return st == ST_OK ? hold_table_insert(t, &like, out) : st;
}

static void tenant_has_half_of_the_table(void **state) {
    struct hold_table *t = hold_table_create();
    struct hold_entry *e;
    struct error err = {0};

    (void)state;
    for (uint32_t i = 0; i < HOLD_TABLE_MAX / 2; i++)
        assert_int_equal(put(t, 1 + i, 7, "b", 1, &e), ST_OK);
    assert_int_equal(hold_table_check_room(t, 7, 1, &err), ST_BUSY);
    assert_string_equal(err.param, "hold_quota");
    for (uint32_t i = 0; i < HOLD_TABLE_MAX / 2; i++)
        assert_int_equal(put(t, 5000 + i, 0, "b", 1, &e), ST_OK);
    assert_int_equal(put(t, 9000, 8, "b", 1, &e), ST_BUSY); /* it is full */
    hold_table_check(t);
    hold_table_destroy(t);
}

static void bodies_are_bounded_in_total_and_per_tenant(void **state) {
    static char body[HOLD_TABLE_MAX_BYTES / 4];
    struct hold_table *t = hold_table_create();
    struct hold_entry *e;

    (void)state;
    assert_int_equal(put(t, 1, 7, body, sizeof(body), &e), ST_OK);
    assert_int_equal(put(t, 2, 7, body, sizeof(body), &e), ST_OK);
    assert_int_equal(put(t, 3, 7, body, 1, &e), ST_BUSY);
    assert_int_equal(put(t, 3, 8, body, sizeof(body), &e), ST_OK);
    assert_int_equal(put(t, 4, 0, body, sizeof(body), &e), ST_OK);
    assert_int_equal(put(t, 5, 0, body, 1, &e), ST_BUSY);
    hold_table_erase(t, e);
    assert_int_equal(put(t, 5, 0, body, 1, &e), ST_OK);
    hold_table_check(t);
    hold_table_destroy(t);
}

static void entry_is_found_by_its_owner_and_body(void **state) {
    struct hold_table *t = hold_table_create();
    char one[] = "{\"prompt\": \"one\"}", two[] = "{\"prompt\": \"two\"}";
    struct hold_entry *e, *other;

    (void)state;
    assert_int_equal(put(t, 1, 7, one, sizeof(one), &e), ST_OK);
    assert_int_equal(put(t, 2, 8, one, sizeof(one), &other), ST_OK);
    assert_ptr_equal(hold_table_find_body(t, 7, (struct str){one, sizeof(one)}), e);
    assert_ptr_equal(hold_table_find_body(t, 8, (struct str){one, sizeof(one)}), other);
    assert_null(hold_table_find_body(t, 9, (struct str){one, sizeof(one)}));
    assert_null(hold_table_find_body(t, 7, (struct str){two, sizeof(two)}));
    assert_null(hold_table_find_body(t, 7, (struct str){one, sizeof(one) - 1}));
    hold_table_erase(t, e);
    assert_null(hold_table_find_body(t, 7, (struct str){one, sizeof(one)}));
    hold_table_destroy(t);
}

static void copy_of_a_worker_is_replaced(void **state) {
    struct hold_entry e = {.n_wanted = 1};
    struct hold_copy copy;

    (void)state;
    for (uint32_t w = 0; w < HOLD_COPIES_MAX + 2; w++) {
        copy = copy_of(w, w);
        hold_entry_add(&e, &copy);
    }
    assert_int_equal(e.n_copies, HOLD_COPIES_MAX);
    copy = copy_of(3, 77);
    hold_entry_add(&e, &copy);
    assert_int_equal(e.n_copies, HOLD_COPIES_MAX);
    assert_string_equal(e.copies[3].id, copy.id);
    hold_entry_drop(&e, 0);
    assert_int_equal(e.n_copies, HOLD_COPIES_MAX - 1);
    assert_int_equal(e.copies[0].worker, HOLD_COPIES_MAX - 1);
}

/* --- beside a list ---------------------------------------------------------------------------- */

struct listed {
    uint64_t id, owner;
    uint32_t body_len, worker; /* its only copy, of number id */
};

static void random_entries_are_those_of_the_list(void **state) {
    static char body[100];
    struct hold_table *t = hold_table_create();
    struct listed list[LISTED];
    uint32_t n = 0, n_bytes = 0;
    uint64_t next = 1;
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    for (uint32_t i = 0; i < N_OPS; i++) {
        uint32_t at = (uint32_t)rng_below(&rng, LISTED);
        struct hold_entry *e;
        struct hold_copy copy;

        if (at < n) {
            copy = copy_of(list[at].worker, (uint32_t)list[at].id);
            e = hold_table_find(t, list[at].id);
            assert_non_null(e);
            assert_int_equal(e->owner, list[at].owner);
            assert_ptr_equal(hold_table_find_copy(t, list[at].owner, &copy), e);
            assert_null(hold_table_find_copy(t, list[at].owner + 1, &copy));
            if (rng_below(&rng, 2)) continue;
            n_bytes -= list[at].body_len;
            hold_table_erase(t, e);
            assert_null(hold_table_find(t, list[at].id));
            list[at] = list[--n];
        } else if (n < LISTED) {
            list[n] = (struct listed){.id = next++,
                                      .owner = rng_below(&rng, 3),
                                      .body_len = (uint32_t)rng_below(&rng, sizeof(body)),
                                      .worker = (uint32_t)rng_below(&rng, 4)};
            assert_int_equal(put(t, list[n].id, list[n].owner, body, list[n].body_len, &e), ST_OK);
            copy = copy_of(list[n].worker, (uint32_t)list[n].id);
            hold_entry_add(e, &copy);
            n_bytes += list[n++].body_len;
        }
        hold_table_check(t);
        assert_int_equal(hold_table_n(t), n);
        assert_int_equal(hold_table_bytes(t), n_bytes);
    }
    hold_table_destroy(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tenant_has_half_of_the_table),
        cmocka_unit_test(bodies_are_bounded_in_total_and_per_tenant),
        cmocka_unit_test(entry_is_found_by_its_owner_and_body),
        cmocka_unit_test(copy_of_a_worker_is_replaced),
        cmocka_unit_test(random_entries_are_those_of_the_list),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
