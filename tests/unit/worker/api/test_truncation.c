/* tests/unit/worker/api/test_truncation.c - where a conversation may begin, and what is left. */
#include <string.h>

#include "common/base/buf.h"
#include "common/base/rng.h"
#include "common/text/json.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"
#include "worker/api/truncation.h"

#define MAX_ITEMS 64u

/* A conversation as letters: s system, u user, a assistant's text, r reasoning, 0-9 a call, and A-J
 * its output. */
struct conversation {
    struct json *root;
    const struct json *item[MAX_ITEMS];
    size_t n;
};

static void put_item(struct json_writer *w, char c) {
    char id[2] = {c >= 'A' && c <= 'J' ? (char)(c - 'A' + '0') : c, 0};
    const char *role = c == 's' ? "developer" : c == 'u' ? "user" : c == 'a' ? "assistant" : NULL;

    json_begin_object(w);
    if (role) {
        json_field_z(w, "role", role);
    } else if (c == 'r') {
        json_field_z(w, "type", "reasoning");
    } else {
        json_field_z(w, "type", *id == c ? "custom_tool_call" : "custom_tool_call_output");
        json_field_z(w, "call_id", id);
    }
    json_end_object(w);
}

static void open_conversation(struct conversation *c, const char *letters) {
    struct json_writer w;
    struct buf text;

    *c = (struct conversation){0};
    buf_init(&text, 0);
    json_writer_init(&w, &text);
    json_begin_array(&w);
    for (const char *p = letters; *p; p++)
        put_item(&w, *p);
    json_end_array(&w);
    assert_int_equal(json_parse(&c->root, buf_str(&text), NULL, NULL), ST_OK);
    JSON_FOR_EACH(it, c->root) c->item[c->n++] = it;
    buf_fini(&text);
}

/* The letters that each cut leaves, divided by blanks. */
static void write_cuts(const char *letters, struct buf *out) {
    bool is_dropped[MAX_ITEMS];
    size_t cut[MAX_ITEMS], n_cuts;
    struct conversation c;

    open_conversation(&c, letters);
    n_cuts = truncation_find_cuts(c.item, c.n, cut);
    for (size_t i = 0; i < n_cuts; i++) {
        if (i > 0) buf_append_char(out, ' ');
        truncation_drop(c.item, c.n, cut[i], is_dropped);
        for (size_t k = 0; k < c.n; k++)
            if (!is_dropped[k]) buf_append_char(out, letters[k]);
    }
    json_destroy(c.root);
}

static void assert_cuts(const char *letters, const char *want) {
    struct buf got;

    buf_init(&got, 0);
    write_cuts(letters, &got);
    if (!str_eq(buf_str(&got), str_of(want)))
        fail_msg("%s: cuts are '" STR_FMT "', not '%s'", letters, STR_ARG(buf_str(&got)), want);
    buf_fini(&got);
}

static void oldest_turns_go_first(void **state) {
    (void)state;
    assert_cuts("uauau", "uau u");
    assert_cuts("suauau", "suau su");
    assert_cuts("uu", "u");
    assert_cuts("u", "");
    assert_cuts("", "");
    assert_cuts("s", "");
}

static void system_stays_wherever_it_is(void **state) {
    (void)state;
    assert_cuts("suasuasu", "ssuasu sssu");
}

static void calls_keep_their_outputs_and_reasoning_what_follows(void **state) {
    (void)state;
    assert_cuts("u0A1B2C", "u1B2C u2C");
    assert_cuts("u01AB2C", "u2C");
    assert_cuts("u01BA2C", "u2C");
    assert_cuts("u0A1", "u1");
    assert_cuts("ur0Ar1B", "ur1B");
    assert_cuts("ura0Au", "u0Au u");
    assert_cuts("u0uA1B", "u1B");
}

static void cut_inside_a_turn_keeps_its_user(void **state) {
    (void)state;
    assert_cuts("ua0A1Bu2C3D", "u0A1Bu2C3D u1Bu2C3D u2C3D u3D");
}

/* A repeated id, and an output without its call. */
static void odd_conversations_are_cut_too(void **state) {
    (void)state;
    assert_cuts("uA0Au", "u0Au u");
    assert_cuts("u0A0Au", "u");
}

/* Whatever the conversation is: no output without its call, no cut that leaves all or nothing, and
 * each leaves less than the one before. */
static void cuts_of_any_conversation_are_whole(void **state) {
    static const char kinds[] = "suar0123AB";
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    for (uint32_t round = 0; round < 5000; round++) {
        char letters[24];
        size_t n = rng_below(&rng, sizeof(letters)), before = n;
        struct buf got;

        for (size_t i = 0; i < n; i++)
            letters[i] = kinds[rng_below(&rng, sizeof(kinds) - 1)];
        letters[n] = '\0';
        buf_init(&got, 0);
        write_cuts(letters, &got);
        for (struct str rest = buf_str(&got); rest.len > 0;) {
            const char *blank = memchr(rest.ptr, ' ', rest.len);
            struct str left = {rest.ptr, blank ? (size_t)(blank - rest.ptr) : rest.len};

            assert_true(left.len > 0 && left.len < before);
            assert_int_equal(left.ptr[left.len - 1], letters[n - 1]);
            before = left.len;
            rest = (struct str){rest.ptr + left.len, rest.len - left.len};
            if (rest.len > 0) rest = (struct str){rest.ptr + 1, rest.len - 1};
            for (char id = '0'; id < '2'; id++) { /* a call that was before its output still is */
                char call[2] = {id, 0}, output[2] = {(char)(id - '0' + 'A'), 0};
                const char *first = strchr(letters, *call), *last = strrchr(letters, *output);

                if (!first || !last || first > last || strchr(first + 1, *call)) continue;
                if (strchr(letters, *output) != last) continue;
                assert_int_equal(str_find(left, str_of(call)) >= 0,
                                 str_find(left, str_of(output)) >= 0);
            }
        }
        buf_fini(&got);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(oldest_turns_go_first),
        cmocka_unit_test(system_stays_wherever_it_is),
        cmocka_unit_test(calls_keep_their_outputs_and_reasoning_what_follows),
        cmocka_unit_test(cut_inside_a_turn_keeps_its_user),
        cmocka_unit_test(odd_conversations_are_cut_too),
        cmocka_unit_test(cuts_of_any_conversation_are_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
