/* tests/unit/common/text/test_yaml_tree.c - parts of a document, found by name. */
#include "common/text/yaml_tree.h"
#include "tests/support/cm.h"

static struct yaml_tree *tree_of(const char *text) {
    struct yaml_tree *t = NULL;

    assert_int_equal(yaml_tree_parse(&t, str_of(text), NULL), ST_OK);
    return t;
}

static void assert_text(struct yaml_tree *t, int node, const char *want) {
    struct str s = yaml_tree_str(t, node);

    assert_true(str_eq(s, str_of(want)));
    assert_int_equal(s.ptr == NULL, want == NULL);
}

static void parts_are_found_by_name_and_number(void **state) {
    struct yaml_tree *t = tree_of("a: 1\nlist:\n- x\n- {k: v, k: w}\n- 'null'\n- null\n- ~\n-\n");
    int root = yaml_tree_root(t), list = yaml_tree_get(t, root, "list");

    (void)state;
    assert_text(t, yaml_tree_get(t, root, "a"), "1");
    assert_text(t, yaml_tree_item(t, list, 0), "x");
    assert_text(t, yaml_tree_get(t, yaml_tree_item(t, list, 1), "k"), "v");
    assert_text(t, yaml_tree_item(t, list, 2), "null"); /* quoted: a word */
    for (uint32_t i = 3; i < 6; i++)
        assert_text(t, yaml_tree_item(t, list, i), NULL);
    assert_int_equal(yaml_tree_item(t, list, 6), 0);
    yaml_tree_destroy(t);
}

static void asking_none_gives_none(void **state) {
    struct yaml_tree *t = tree_of("a: 1\n"), *empty = tree_of("");

    (void)state;
    assert_int_equal(yaml_tree_get(t, yaml_tree_get(t, yaml_tree_root(t), "x"), "y"), 0);
    assert_int_equal(yaml_tree_get(t, yaml_tree_get(t, yaml_tree_root(t), "a"), "y"), 0);
    assert_int_equal(yaml_tree_item(t, yaml_tree_root(t), 0), 0);
    assert_text(t, 0, NULL);
    assert_text(t, yaml_tree_root(t), NULL);
    assert_int_equal(yaml_tree_root(empty), 0);
    yaml_tree_destroy(t);
    yaml_tree_destroy(empty);
}

static void json_is_read_too(void **state) {
    struct yaml_tree *t = tree_of("{\"users\": [{\"name\": \"a\\u0062\"}]}");
    int users = yaml_tree_get(t, yaml_tree_root(t), "users");

    (void)state;
    assert_text(t, yaml_tree_get(t, yaml_tree_item(t, users, 0), "name"), "ab");
    yaml_tree_destroy(t);
}

static void aliases_are_links(void **state) {
    struct yaml_tree *t = tree_of("a: &x {k: v}\nb: *x\nc: &loop [*loop]\n");
    int node = yaml_tree_get(t, yaml_tree_root(t), "c");

    (void)state;
    assert_text(t, yaml_tree_get(t, yaml_tree_get(t, yaml_tree_root(t), "b"), "k"), "v");
    for (int i = 0; i < 10; i++)
        node = yaml_tree_item(t, node, 0);
    assert_true(node != 0);
    yaml_tree_destroy(t);
}

static void invalid_yaml_is_refused_with_its_line(void **state) {
    struct yaml_tree *t = NULL;
    struct error err = {0};

    (void)state;
    assert_int_equal(yaml_tree_parse(&t, STR("a: 1\nb: [\n"), &err), ST_INVALID);
    assert_non_null(strstr(err.message, "line 3"));
    assert_int_equal(yaml_tree_parse(&t, STR("a: *nothing\n"), &err), ST_INVALID);
    assert_null(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_are_found_by_name_and_number),
        cmocka_unit_test(asking_none_gives_none),
        cmocka_unit_test(json_is_read_too),
        cmocka_unit_test(aliases_are_links),
        cmocka_unit_test(invalid_yaml_is_refused_with_its_line),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
