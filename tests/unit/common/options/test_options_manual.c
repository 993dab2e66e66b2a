/* tests/unit/common/options/test_options_manual.c - the table as roff and as three shells'
 * completions: nothing is left out, nothing in it is taken for syntax. */
#include <stdio.h>
#include <string.h>

#include "common/options/options_manual.h"
#include "tests/support/cm.h"

struct target {
    bool on;
    uint32_t n;
    const char *file, *dir, *key, *odd, *hidden;
    int color;
    struct option_list list;
    bool json;
};

#define FIELD(member) OPTION_FIELD(struct target, member)

static const char *const colors[] = {"red", "dark-green", NULL};
static const struct option_def rows[] = {
    {"on", OPT_BOOL, FIELD(on), .group = "One", .help = "It's on. Not off."},
    {"n", OPT_U32, FIELD(n), .def = "3", .min = "1", .max = "9", .aliases = "count", .group = "Two",
     .help = "How many: 'a' or [b]."},
    {"file", OPT_STR, FIELD(file), .metavar = "FILE", .aliases = "path", .group = "One",
     .help = ".profile is one; \\n is not."},
    {"dir", OPT_STR, FIELD(dir), .metavar = "DIR", .is_positional = true, .help = "A folder."},
    {"key", OPT_STR, FIELD(key), .is_secret = true, .help = "Stays hidden."},
    {"odd", OPT_STR, FIELD(odd), .help = "e.g. ~/x, `y`, ^z, \"w\"; 100% of $HOME."},
    {"hidden", OPT_STR, FIELD(hidden), .is_hidden = true, .help = "Nothing."},
    {"color", OPT_ENUM, FIELD(color), .names = colors, .help = "A choice."},
    {"list", OPT_LIST, FIELD(list), .help = "Several."},
};
static const struct option_def own_rows[] = {
    {"json", OPT_BOOL, FIELD(json), .help = "For programs."},
};
static const struct option_entry_of_manual examples[] = {{"Try:", ".x 'a'"}, {NULL, NULL}};
static const struct option_program program = {.examples = examples,
                                              .name = "incipit-test",
                                              .summary = "Tests.",
                                              .usage = "[DIR] [options]",
                                              .defs = rows,
                                              .n_defs = ARRAY_LEN(rows),
                                              .target_bytes = sizeof(struct target)};
static const struct option_program own = {.name = "incipit-test list",
                                          .summary = "Lists.",
                                          .usage = "[--json]",
                                          .defs = own_rows,
                                          .n_defs = ARRAY_LEN(own_rows),
                                          .target_bytes = sizeof(struct target)};
static const struct option_command commands[] = {
    {"list", "[--json]", "List them. All.", &own}, {"man", "", "Print this.", NULL}, {NULL}};
static const struct option_entry_of_manual none[] = {{NULL, NULL}},
                                           exits[] = {{"0", "Well."}, {NULL, NULL}};
static const struct option_manual manual = {.program = &program,
                                            .name = "test",
                                            .description = "It tests.\n\nTwice.",
                                            .commands = commands,
                                            .environment = none,
                                            .files = none,
                                            .signals = none,
                                            .exits = exits,
                                            .see_also = "true(1), false(1)"};

static void assert_holds(const struct buf *page, const char *part) {
    if (str_find(buf_str(page), str_of(part)) < 0) {
        fail_msg("'%s' is not in:\n%.*s", part, STR_ARG(buf_str(page)));
    }
}

static void assert_lacks(const struct buf *page, const char *part) {
    if (str_find(buf_str(page), str_of(part)) >= 0) fail_msg("'%s' is there", part);
}

static void the_page_escapes_roff_requests(void **state) {
    struct buf page;

    (void)state;
    buf_init(&page, 0);
    options_man(&manual, &page);
    assert_holds(&page, ".TH \"INCIPIT\\-TEST\" 1 ");
    assert_holds(&page, ".SH NAME\nincipit\\-test \\- test\n");
    assert_holds(&page, "It tests.\n.PP\nTwice.\n");
    assert_holds(&page, ".B \\-\\-[no\\-]on\nIt\\(aqs on.\nNot off.\n");
    assert_holds(&page, "\n\\&.profile is one; \\en is not.\n");
    assert_holds(&page, "\\(ti/x, \\(gay\\(ga, \\(haz, \\(dqw\\(dq; 100% of $HOME.");
    assert_holds(&page, "[default 3; from 1 to 9; also \\-\\-count; INCIPIT_N]");
    assert_holds(&page, ".EX\n\\&.x \\(aqa\\(aq\n.EE");
    assert_holds(&page, ".BR true (1) ,\n.BR false (1)\n");
    assert_holds(&page, ".SS Of the command list alone\n.TP\n.B \\-\\-[no\\-]json");
    assert_holds(&page, ".B INCIPIT_KEY\nStays hidden.\n");
    assert_holds(&page, ".SS Rarely needed\n.TP\n.BI \"\\-\\-hidden");
    assert_lacks(&page, "\\-\\-key");
    buf_fini(&page);
}

static void a_group_stands_together(void **state) {
    struct buf page;

    (void)state;
    buf_init(&page, 0);
    options_man(&manual, &page);
    assert_true(str_find(buf_str(&page), STR("\\-\\-file")) <
                str_find(buf_str(&page), STR(".SS Two")));
    buf_fini(&page);
}

static void every_shell_offers_the_options_and_no_secrets(void **state) {
    static const char *const shells[] = {"bash", "zsh", "fish"};
    static const char *const names[] = {"on",    "no-on", "n",    "file",   "dir", "odd",
                                        "color", "list",  "json", "config", "help"};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(shells); i++) {
        struct buf page;

        buf_init(&page, 0);
        assert_int_equal(options_completion(&manual, shells[i], &page, NULL), ST_OK);
        for (size_t k = 0; k < ARRAY_LEN(names); k++) {
            char flag[32];

            snprintf(flag, sizeof(flag), i == 2 ? "-l %s" : "--%s", names[k]);
            assert_holds(&page, flag);
        }
        assert_holds(&page, "red dark-green");
        assert_lacks(&page, "hidden");
        assert_lacks(&page, i == 2 ? "-l key" : "--key");
        buf_fini(&page);
    }
}

static void another_shell_is_refused_by_name(void **state) {
    struct error err = {0};
    struct buf page;

    (void)state;
    buf_init(&page, 0);
    assert_int_equal(options_completion(&manual, "csh", &page, &err), ST_INVALID);
    assert_string_equal(err.message, "there is no completion for the shell 'csh': use incipit-test "
                                     "completion bash, zsh or fish");
    assert_int_equal(buf_len(&page), 0);
    buf_fini(&page);
}

static void quotes_of_the_help_end_no_quotes_of_a_shell(void **state) {
    struct buf page;

    (void)state;
    buf_init(&page, 0);
    assert_int_equal(options_completion(&manual, "zsh", &page, NULL), ST_OK);
    assert_holds(&page, "'--on[It'\\''s on]'");
    assert_holds(&page, "'--n=[How many\\: '\\''a'\\'' or \\[b\\]]:N:'");
    assert_holds(&page, "'--file=[.profile is one; \\\\n is not]:FILE:_files'");
    buf_clear(&page);
    assert_int_equal(options_completion(&manual, "fish", &page, NULL), ST_OK);
    assert_holds(&page, "-d 'It\\'s on'");
    buf_fini(&page);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_page_escapes_roff_requests),
        cmocka_unit_test(a_group_stands_together),
        cmocka_unit_test(every_shell_offers_the_options_and_no_secrets),
        cmocka_unit_test(another_shell_is_refused_by_name),
        cmocka_unit_test(quotes_of_the_help_end_no_quotes_of_a_shell),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
