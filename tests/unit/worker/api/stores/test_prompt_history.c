/* tests/unit/worker/api/stores/test_prompt_history.c - planted changes, and the memory beside the
 * obvious model of it. */
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/text/json.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"
#include "worker/api/stores/prompt_history.h"

#define BS 4

#define OWNERS_OF_A_TENANT 10 /* by salts */

/* --- what changed ----------------------------------------------------------------------------- */

#define SYSTEM "{\"role\":\"system\",\"content\":\"be brief\"}"
#define U1     "{\"role\":\"user\",\"content\":\"one\"}"
#define A1     "{\"role\":\"assistant\",\"content\":\"two\"}"
#define U2     "{\"role\":\"user\",\"content\":\"three\"}"
#define TOOLS                                                                                      \
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"a\":[[1],2]}}}]"

#define BODY(system, messages, tools, more)                                                        \
    "{\"messages\":[" system "," messages "],\"tools\":" tools more "}"
#define FIRST BODY(SYSTEM, U1, TOOLS, "")

struct prompt {
    const char *body;
    uint32_t n_tokens;
    uint32_t other_from; /* its tokens differ from those of others from there on */
    uint32_t n_cached;
};

static struct prompt_diagnosis add(struct prompt_history *h, const char *id, const char *earlier,
                                   uint64_t owner, const struct prompt *p) {
    struct prompt_seen seen = {.n_tokens = p->n_tokens,
                               .n_cached = p->n_cached,
                               .block_size = BS,
                               .tenant = owner / OWNERS_OF_A_TENANT};
    struct prompt_diagnosis d;
    struct json *chat;
    uint32_t tokens[256];

    assert_true(p->n_tokens <= ARRAY_LEN(tokens));
    for (uint32_t i = 0; i < p->n_tokens; i++)
        tokens[i] = i < p->other_from ? i : 1000 + i;
    assert_int_equal(json_parse(&chat, str_of(p->body), NULL, NULL), ST_OK);
    seen.chat = chat;
    seen.tokens = tokens;
    d = prompt_history_add(h, str_of(id), earlier ? str_of(earlier) : STR_NULL, owner, &seen);
    json_destroy(chat);
    prompt_history_check(h);
    return d;
}

/* Each after FIRST, of 42 tokens: ten blocks and a half. */
static void first_part_that_differs_is_named(void **state) {
    static const struct {
        const char *name;
        struct prompt now;
        enum prompt_change change;
        uint64_t n_equal, n_missed;
    } rows[] = {
        {"continued",
         {BODY(SYSTEM, U1 "," A1 "," U2, TOOLS, ""), 60, 60, 40},
         PROMPT_REUSED,
         40,
         0},
        {"the same, its last block computed", {FIRST, 42, 42, 40}, PROMPT_REUSED, 40, 0},
        {"as long as its blocks", {FIRST, 40, 40, 36}, PROMPT_REUSED, 36, 0},
        {"changed behind the last block",
         {BODY(SYSTEM, U2, TOOLS, ""), 42, 40, 40},
         PROMPT_REUSED,
         40,
         0},
        {"changed, and cached by others",
         {BODY(SYSTEM, U2, TOOLS, ""), 60, 8, 56},
         PROMPT_REUSED,
         8,
         0},
        {"system",
         {BODY("{\"role\":\"system\",\"content\":\"be long\"}", U1, TOOLS, ""), 42, 5, 4},
         PROMPT_SYSTEM,
         4,
         36},
        {"no system", {BODY(U1, A1, TOOLS, ""), 42, 0, 0}, PROMPT_SYSTEM, 0, 40},
        {"system before tools", {BODY(U1, A1, "[]", ""), 42, 0, 0}, PROMPT_SYSTEM, 0, 40},
        {"tools",
         {BODY(SYSTEM, U1,
               "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"a\":[[1,2]]}"
               "}}]",
               ""),
          42, 8, 8},
         PROMPT_TOOLS,
         8,
         32},
        {"effort",
         {BODY(SYSTEM, U1, TOOLS, ",\"reasoning_effort\":\"low\""), 42, 8, 8},
         PROMPT_EFFORT,
         8,
         32},
        {"settings",
         {BODY(SYSTEM, U1, TOOLS, ",\"chat_template_kwargs\":{\"enable_thinking\":false}"), 42, 8,
          8},
         PROMPT_SETTINGS,
         8,
         32},
        {"messages",
         {BODY(SYSTEM, U2 "," A1 "," U2, TOOLS, ""), 60, 30, 28},
         PROMPT_MESSAGES,
         28,
         12},
        {"fewer messages than before",
         {BODY(SYSTEM, U2, TOOLS, ""), 20, 9, 8},
         PROMPT_MESSAGES,
         8,
         8},
        {"template",
         {BODY(SYSTEM, U1 "," A1 "," U2, TOOLS, ""), 60, 30, 28},
         PROMPT_TEMPLATE,
         28,
         12},
        {"evicted",
         {BODY(SYSTEM, U1 "," A1 "," U2, TOOLS, ""), 60, 60, 16},
         PROMPT_EVICTED,
         40,
         24},
        {"evicted, and changed behind",
         {BODY(SYSTEM, U2 "," A1 "," U2, TOOLS, ""), 60, 30, 4},
         PROMPT_MESSAGES,
         28,
         36},
        {"sampling alone",
         {BODY(SYSTEM, U1, TOOLS, ",\"temperature\":2"), 42, 42, 0},
         PROMPT_EVICTED,
         40,
         40},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct prompt_history *h = prompt_history_create(1 << 20, 7);
        struct prompt first = {FIRST, 42, 42, 0};
        struct prompt_diagnosis d = add(h, "a", NULL, 1, &first);

        assert_int_equal(d.change, PROMPT_NOT_COMPARED);
        d = add(h, "b", "a", 1, &rows[i].now);
        if (d.change != rows[i].change || d.n_equal != rows[i].n_equal ||
            d.n_missed != rows[i].n_missed)
            fail_msg("%s: %s, %llu equal, %llu missed", rows[i].name, prompt_change_name(d.change),
                     (unsigned long long)d.n_equal, (unsigned long long)d.n_missed);
        prompt_history_destroy(h);
    }
}

static void a_prompt_shorter_than_a_block_misses_nothing(void **state) {
    struct prompt_history *h = prompt_history_create(1 << 20, 7);
    struct prompt first = {FIRST, 3, 3, 0}, other = {BODY(SYSTEM, U2, "[]", ""), 3, 0, 0};

    (void)state;
    (void)add(h, "a", NULL, 1, &first);
    assert_int_equal(add(h, "b", "a", 1, &other).change, PROMPT_REUSED);
    prompt_history_destroy(h);
}

/* --- what is remembered ----------------------------------------------------------------------- */

static void requests_of_another_owner_are_not_found(void **state) {
    struct prompt_history *h = prompt_history_create(1 << 20, 7);
    struct prompt p = {FIRST, 42, 42, 40};

    (void)state;
    (void)add(h, "a", NULL, 1, &p);
    assert_int_equal(add(h, "b", "a", 2, &p).change, PROMPT_NOT_FOUND);
    assert_int_equal(add(h, "c", "a", 1, &p).change, PROMPT_REUSED);
    assert_int_equal(add(h, "d", "x", 1, &p).change, PROMPT_NOT_FOUND);
    prompt_history_destroy(h);
}

/* Clients choose ids: what one owner adds displaces nothing of another under the same id. */
static void equal_ids_of_two_owners_are_two_requests(void **state) {
    struct prompt_history *h = prompt_history_create(1 << 20, 7);
    struct prompt p = {FIRST, 42, 42, 40}, other = {"{\"messages\":[]}", 42, 42, 40};

    (void)state;
    (void)add(h, "a", NULL, 1, &p);
    (void)add(h, "a", NULL, 2, &other);
    assert_int_equal(add(h, "b", "a", 1, &p).change, PROMPT_REUSED);
    assert_int_equal(add(h, "b", "a", 2, &p).change, PROMPT_REUSED);
    prompt_history_destroy(h);
}

/* A tenant's salts make it several owners. */
static void a_tenant_displaces_its_own_first(void **state) {
    struct prompt_history *h = prompt_history_create(4000, 7);
    struct prompt p = {FIRST, 42, 42, 40};
    const uint64_t quiet = 1, loud = OWNERS_OF_A_TENANT;
    char id[8];

    (void)state;
    (void)add(h, "a", NULL, quiet, &p);
    for (unsigned i = 0; i < 100; i++) {
        snprintf(id, sizeof(id), "i%u", i);
        (void)add(h, id, NULL, loud + i % OWNERS_OF_A_TENANT, &p);
    }
    assert_int_equal(add(h, "b", "a", quiet, &p).change, PROMPT_REUSED);
    assert_int_equal(add(h, "b", "i99", loud + 99 % OWNERS_OF_A_TENANT, &p).change, PROMPT_REUSED);
    prompt_history_destroy(h);
}

static void a_prompt_larger_than_the_memory_is_not_remembered(void **state) {
    struct prompt_history *h = prompt_history_create(700, 7);
    struct prompt small = {FIRST, 42, 42, 40}, large = {FIRST, 240, 240, 40};

    (void)state;
    (void)add(h, "a", NULL, 1, &small);
    (void)add(h, "b", NULL, 1, &large);
    assert_int_equal(add(h, "c", "b", 1, &small).change, PROMPT_NOT_FOUND);
    prompt_history_destroy(h);
}

static void refused_memory_compares_nothing(void **state) {
    struct prompt_history *h = prompt_history_create(1 << 20, 7);
    struct prompt p = {FIRST, 42, 42, 40};

    (void)state;
    (void)add(h, "a", NULL, 1, &p);
    mem_fail_at(1);
    assert_int_equal(add(h, "b", "a", 1, &p).change, PROMPT_NOT_FOUND);
    mem_fail_at(0);
    assert_int_equal(add(h, "c", "b", 1, &p).change, PROMPT_NOT_FOUND);
    prompt_history_destroy(h);
}

#define N_IDS    6
#define N_OWNERS 2

/* The ids of each owner in the order of their last use: all that is remembered is the end of
 * that list. */
static void memory_is_that_of_the_model(void **state) {
    struct rng rng;
    uint32_t used[N_OWNERS][N_IDS] = {{0}}, now = 0;
    struct prompt_history *h = prompt_history_create(2000, 7);
    uint32_t n_found = 0, n_lost = 0;

    (void)state;
    rng_seed(&rng, 3);
    for (int step = 0; step < 20000; step++) {
        uint32_t i = rng_below(&rng, N_IDS), k = rng_below(&rng, N_IDS), newer = 0;
        struct prompt p = {FIRST, 42, 42, 40};
        uint64_t by = rng_below(&rng, N_OWNERS);
        char id[8], earlier[8];
        bool is_known;
        struct prompt_diagnosis d;

        snprintf(id, sizeof(id), "i%u", i);
        snprintf(earlier, sizeof(earlier), "i%u", k);
        for (uint32_t j = 0; j < N_OWNERS * N_IDS; j++)
            newer += used[j / N_IDS][j % N_IDS] > used[by][k];
        is_known = used[by][k] > 0 && newer < 4; /* of 2000 bytes, four fit */
        d = add(h, id, earlier, by, &p);
        assert_int_equal(d.change, is_known ? PROMPT_REUSED : PROMPT_NOT_FOUND);
        is_known ? n_found++ : n_lost++;
        if (is_known) used[by][k] = ++now;
        used[by][i] = ++now;
    }
    assert_true(n_found > 1000 && n_lost > 1000);
    prompt_history_destroy(h);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_part_that_differs_is_named),
        cmocka_unit_test(a_prompt_shorter_than_a_block_misses_nothing),
        cmocka_unit_test(requests_of_another_owner_are_not_found),
        cmocka_unit_test(equal_ids_of_two_owners_are_two_requests),
        cmocka_unit_test(a_tenant_displaces_its_own_first),
        cmocka_unit_test(a_prompt_larger_than_the_memory_is_not_remembered),
        cmocka_unit_test(refused_memory_compares_nothing),
        cmocka_unit_test(memory_is_that_of_the_model),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
