/* tests/unit/common/options/test_options.c - every source, every type, every refusal. */
#include "common/base/mem.h"
#include "common/options/options.h"
#include "common/base/rng.h"
#include "tests/fuzz/fuzz_options.c"
#include "tests/support/cm.h"
#include "tests/support/support.h"

#include <sys/stat.h>

#define MAX_ARGS 32

/* Parses "a b c"; an argument may not hold a blank. */
static enum status parse(struct options **o, struct target *t, const char *line,
                         struct error *err) {
    char *copy = mem_strdup(line), *argv[MAX_ARGS] = {(char[]){"incipit-test"}}, *rest, *arg;
    enum status st;
    int argc = 1;

    *o = NULL;
    for (arg = strtok_r(copy, " ", &rest); arg; arg = strtok_r(NULL, " ", &rest)) {
        argv[argc++] = arg;
    }
    st = parse_args(o, t, argc, argv, err);
    mem_free(copy);
    return st;
}

static struct options *parse_ok(struct target *t, const char *line) {
    struct error err = {0};
    struct options *o;

    if (parse(&o, t, line, &err) != ST_OK) fail_msg("'%s' refused: %s", line, err.message);
    return o;
}

/* What `parse` writes to stderr. */
static struct options *parse_loud(struct target *t, const char *line, char *printed, size_t size) {
    int pipe_fds[2], saved = dup(STDERR_FILENO);
    struct options *o;
    ssize_t n;

    assert_int_equal(pipe(pipe_fds), 0);
    dup2(pipe_fds[1], STDERR_FILENO);
    o = parse_ok(t, line);
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(pipe_fds[1]);
    n = read(pipe_fds[0], printed, size - 1);
    close(pipe_fds[0]);
    printed[MAX(n, 0)] = '\0';
    return o;
}

static void a_choice_has_other_names(void **state) {
    struct target t;
    struct options *o = parse_ok(&t, "--color Scarlet");
    struct buf dump;

    (void)state;
    assert_int_equal(t.color, RED);
    options_destroy(o);
    o = parse_ok(&t, "--color navy");
    assert_int_equal(t.color, BLUE);
    buf_init(&dump, 0);
    options_dump(o, &dump);
    assert_true(str_find(buf_str(&dump), STR("color: blue")) >= 0);
    buf_fini(&dump);
    options_destroy(o);
}

static void flags_of_other_programs_are_passed_over(void **state) {
    char printed[512];
    struct target t;
    struct options *o =
        parse_loud(&t, "--tokenizer-path p --with-wings --selector a=b c=d --block-size 8", printed,
                   sizeof(printed));

    (void)state;
    assert_int_equal(t.block_size, 8);
    assert_string_equal(printed,
                        "incipit-test: --tokenizer-path has no effect: there is no tokenizer\n"
                        "incipit-test: --with-wings has no effect: it does not fly\n"
                        "incipit-test: --selector has no effect: nothing is selected\n");
    options_destroy(o);
    o = parse_loud(&t, "--tokenizer_path=p --with-wings=false model", printed, sizeof(printed));
    assert_string_equal(t.model, "model");
    assert_string_equal(printed,
                        "incipit-test: --tokenizer-path has no effect: there is no tokenizer\n");
    options_destroy(o);
}

static void a_family_takes_the_flags_that_are_named_nowhere(void **state) {
    char printed[512];
    struct target t;
    struct options *o = parse_loud(&t, "--feather-light model --feather_color=red --feather-size 3",
                                   printed, sizeof(printed));

    (void)state;
    assert_string_equal(t.model, "model");
    assert_string_equal(printed, "incipit-test: --feather-light has no effect: it has no wings\n"
                                 "incipit-test: --feather_color has no effect: it has no wings\n"
                                 "incipit-test: --feather-size has no effect: it has no wings\n");
    options_destroy(o);
}

static void flags_of_other_programs_are_aliases_of_ours(void **state) {
    char printed[512];
    struct target t;
    struct options *o = parse_loud(&t, "--no-color", printed, sizeof(printed));

    (void)state;
    assert_int_equal(t.color, DARK_GREEN);
    assert_string_equal(printed, "incipit-test: --no-color is taken as --color dark-green\n");
    options_destroy(o);
    o = parse_loud(&t, "--no-color --color blue", printed, sizeof(printed)); /* the last one wins */
    assert_int_equal(t.color, BLUE);
    options_destroy(o);
    o = parse_ok(&t, "--no-color=false");
    assert_int_equal(t.color, RED);
    options_destroy(o);
}

static void a_value_decides_whether_a_flag_is_refused(void **state) {
    static const struct {
        const char *line, *printed;
    } taken[] = {
        {"--quantization none", ""},
        {"-q auto", ""},
        {"--kv-cache-dtype=auto --kv_cache_dtype AUTO", ""},
        {"--kv-cache-dtype half",
         "incipit-test: --kv-cache-dtype has no effect: it is the model's\n"},
        {"--no-with-wings --with-wings False --with-wings=false", ""},
    };
    static const struct {
        const char *line, *message;
    } refused[] = {
        {"--quantization awq", "--quantization awq is not supported: weights keep their type"},
        {"-q fp8", "-q fp8 is not supported: weights keep their type"},
        {"--kv-cache-dtype fp8_e4m3", "--kv-cache-dtype fp8_e4m3 is not supported: it is the"},
        {"--quantization", "--quantization needs a value"},
        {"--no-quantization none", "unknown option --no-quantization"},
    };
    char printed[512];
    struct target t;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(taken); i++) {
        options_destroy(parse_loud(&t, taken[i].line, printed, sizeof(printed)));
        assert_string_equal(printed, taken[i].printed);
    }
    for (size_t i = 0; i < ARRAY_LEN(refused); i++) {
        struct error err = {0};
        struct options *o;

        assert_int_not_equal(parse(&o, &t, refused[i].line, &err), ST_OK);
        if (!strstr(err.message, refused[i].message))
            fail_msg("'%s': expected '%s', got '%s'", refused[i].line, refused[i].message,
                     err.message);
    }
}

static void flags_are_written_as_other_programs_write_them(void **state) {
    static const struct {
        const char *line;
        uint32_t block_size;
        const char *model, *printed;
    } cases[] = {
        {"-bs 8 m", 8, "m", ""},
        {"-bs=32 m", 32, "m", ""},
        {"-O3 m", 16, "m", "incipit-test: -O has no effect: nothing is compiled\n"},
        {"-O.mode=3 m", 16, "m", "incipit-test: -O has no effect: nothing is compiled\n"},
        {"--compilation-config.pass.fuse true m", 16, "m",
         "incipit-test: --compilation-config has no effect: nothing is compiled\n"},
        {"--numa-bind --model m", 16, "m",
         "incipit-test: --numa-bind has no effect: threads go where the system puts them\n"},
        {"--numa-bind 0 m", 16, "m",
         "incipit-test: --numa-bind has no effect: threads go where the system puts them\n"},
        {"--block-s 8 --tokenizer-p x m", 8, "m",
         "incipit-test: --tokenizer-path has no effect: there is no tokenizer\n"},
    };
    char printed[512];
    struct target t;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct options *o = parse_loud(&t, cases[i].line, printed, sizeof(printed));

        assert_int_equal(t.block_size, cases[i].block_size);
        assert_string_equal(t.model, cases[i].model);
        assert_string_equal(printed, cases[i].printed);
        options_destroy(o);
    }
}

/* model-path and model are names of one row; block-size and budget-bytes are of two. */
static void a_beginning_of_two_options_is_refused(void **state) {
    struct target t;
    struct options *o;
    struct error err = {0};

    (void)state;
    o = parse_ok(&t, "--model-p m");
    assert_string_equal(t.model, "m");
    options_destroy(o);
    assert_int_not_equal(parse(&o, &t, "--b 8", &err), ST_OK);
    assert_non_null(strstr(err.message, "unknown option --b"));
}

static void numbers_may_be_written_for_people(void **state) {
    static const struct {
        const char *line;
        uint32_t value;
    } cases[] = {{"--max-tokens 32k", 32000},
                 {"--max-tokens 32K", 32768},
                 {"--max-tokens 1.5k", 1500},
                 {"--max-tokens 64", 64},
                 {"--max-tokens=0.5m", 500000}};
    struct target t;
    struct options *o;
    struct error err = {0};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        options_destroy(parse_ok(&t, cases[i].line));
        assert_int_equal(t.max_tokens, cases[i].value);
    }
    assert_int_not_equal(parse(&o, &t, "--max-tokens 1.2345k", &err), ST_OK);
    assert_int_not_equal(parse(&o, &t, "--max-tokens k", &err), ST_OK);
    assert_int_not_equal(parse(&o, &t, "--max-tokens -3k", &err), ST_OK);
}

static void a_number_out_of_range_is_brought_into_it(void **state) {
    char printed[256];
    struct target t;

    (void)state;
    options_destroy(parse_loud(&t, "--max-tokens 2000000", printed, sizeof(printed)));
    assert_int_equal(t.max_tokens, 1000000);
    assert_string_equal(printed,
                        "incipit-test: --max-tokens 2000000 is out of range: 1000000 is used\n");
}

static void a_secret_on_the_command_line_is_warned_of(void **state) {
    char printed[512];
    struct target t;
    struct options *o = parse_loud(&t, "--token a,b c --token d", printed, sizeof(printed));
    struct buf dump;

    (void)state;
    assert_int_equal(t.tokens.n, 3);
    assert_string_equal(t.tokens.items[0], "a,b");
    assert_string_equal(t.tokens.items[2], "d");
    assert_string_equal(printed,
                        "incipit-test: --token shows in the process list: set INCIPIT_TOKEN, "
                        "or 'token' in the --config file, or use --token-file\n");
    buf_init(&dump, 0);
    options_dump(o, &dump);
    assert_true(str_find(buf_str(&dump), STR("a,b")) < 0);
    buf_fini(&dump);
    options_destroy(o);
}

static void a_variable_of_another_program_counts_when_ours_is_not_set(void **state) {
    struct target t;

    (void)state;
    setenv("OTHER_TOKEN", "theirs", 1);
    options_destroy(parse_ok(&t, ""));
    assert_int_equal(t.tokens.n, 1);
    setenv("INCIPIT_TOKEN", "ours", 1);
    options_destroy(parse_ok(&t, ""));
    assert_int_equal(t.tokens.n, 1);
    unsetenv("INCIPIT_TOKEN");
    unsetenv("OTHER_TOKEN");
}

static void a_file_may_hold_mappings(void **state) {
    struct target t;
    struct options *o;
    struct error err = {0};

    (void)state;
    assert_int_equal(
        parse_file(&o, &t,
                   STR("overrides:\n  a: 1\n  b: [x, 'y\"', {c: null}]\n  d: True\n  e: 1e3x\n"
                       "compilation-config: {mode: 3}\nquantization: none\n"),
                   &err),
        ST_OK);
    assert_string_equal(t.overrides,
                        "{\"a\":1,\"b\":[\"x\",\"y\\\"\",{\"c\":null}],\"d\":true,\"e\":\"1e3x\"}");
    options_destroy(o);
    assert_int_equal(parse_file(&o, &t, STR("quantization: awq\n"), &err), ST_UNSUPPORTED);
    assert_non_null(strstr(err.message, "line 1: --quantization awq is not supported"));
}

static void a_file_may_hold_the_opposite_of_a_flag(void **state) {
    static const char text[] = "no-enable-cache: true\nno-with-wings: true\n"
                               "compilation-config.mode: 3\n";
    struct target t;
    struct options *o;
    struct error err = {0};

    (void)state;
    assert_int_equal(parse_file(&o, &t, str_of(text), &err), ST_OK);
    assert_false(t.cache);
    options_destroy(o);
    assert_int_equal(parse_file(&o, &t, STR("no-enable-cache: false\n"), &err), ST_OK);
    assert_true(t.cache);
    options_destroy(o);
    assert_int_equal(parse_file(&o, &t, STR("no-block-size: true\n"), &err), ST_INVALID);
    assert_non_null(strstr(err.message, "unknown option no-block-size"));
    assert_int_equal(parse_file(&o, &t, STR("enable-cache: true\nno-enable-cache: true\n"), &err),
                     ST_INVALID);
    assert_non_null(strstr(err.message, "given twice"));
}

static void a_file_may_hold_them_too(void **state) {
    struct target t;
    struct options *o;
    struct error err = {0};

    (void)state;
    assert_int_equal(parse_file(&o, &t, STR("no-color: true\nblock-size: 8\n"), &err), ST_OK);
    assert_int_equal(t.color, DARK_GREEN);
    assert_int_equal(t.block_size, 8);
    options_destroy(o);
    assert_int_equal(parse_file(&o, &t, STR("no-color: false\n"), &err), ST_OK);
    assert_int_equal(t.color, RED);
    options_destroy(o);
    assert_int_equal(parse_file(&o, &t, STR("block-size: 8\nprefill: [a, b]\n"), &err),
                     ST_UNSUPPORTED);
    assert_non_null(strstr(err.message, "line 2: --prefill is not supported: use --worker-urls"));
}

static void defaults_fill_the_target(void **state) {
    struct target t;
    struct options *o = parse_ok(&t, "");

    (void)state;
    assert_true(t.cache);
    assert_int_equal(t.block_size, 16);
    assert_int_equal(t.budget_bytes, 64 << 20);
    assert_int_equal(t.timeout_ms, 250);
    assert_int_equal(t.seed, 0);
    assert_true(t.load_factor == 1.25);
    assert_null(t.model);
    assert_string_equal(t.host, "127.0.0.1");
    assert_int_equal(t.color, RED);
    assert_int_equal(t.urls.n, 0);
    assert_int_equal(t.names.n, 2);
    assert_string_equal(t.names.items[1], "b");
    assert_int_equal(options_source(o, "block-size"), OPTION_DEFAULT);
    options_destroy(o);
}

static void flags_are_read_in_all_spellings(void **state) {
    struct target t;
    struct options *o = parse_ok(&t, "--block_size=32 --budget-bytes 2GiB --timeout 2m --seed "
                                     "18446744073709551615 --load-factor=2.5 --host= --color "
                                     "dark_green --no-enable-cache --names x,y --names z");

    (void)state;
    assert_int_equal(t.block_size, 32);
    assert_true(t.budget_bytes == 2ull << 30);
    assert_int_equal(t.timeout_ms, 120000);
    assert_true(t.seed == UINT64_MAX);
    assert_true(t.load_factor == 2.5);
    assert_string_equal(t.host, "");
    assert_int_equal(t.color, DARK_GREEN);
    assert_false(t.cache);
    assert_int_equal(t.names.n, 3);
    assert_string_equal(t.names.items[2], "z");
    assert_int_equal(options_source(o, "block_size"), OPTION_FLAG);
    options_destroy(o);
}

static void aliases_positionals_and_many_values(void **state) {
    struct target t;
    struct options *o = parse_ok(&t, "--page-size 8 --disable-radix-cache --request-timeout-secs 3 "
                                     "--worker-urls http://a http://b,http://c --color blue dir");

    (void)state;
    assert_int_equal(t.block_size, 8);
    assert_false(t.cache);
    assert_int_equal(t.timeout_ms, 3000);
    assert_int_equal(t.urls.n, 3);
    assert_string_equal(t.urls.items[0], "http://a");
    assert_string_equal(t.urls.items[2], "http://c");
    assert_string_equal(t.model, "dir");
    options_destroy(o);
    o = parse_ok(
        &t, "--request-timeout-secs 30ms --enable-cache=off --no-disable-radix-cache -- --dir");
    assert_int_equal(t.timeout_ms, 30);
    assert_true(t.cache);
    assert_string_equal(t.model, "--dir");
    options_destroy(o);
}

static void sizes_and_durations_have_units(void **state) {
    static const struct {
        const char *line;
        uint64_t bytes;
    } cases[] = {{"--budget-bytes 64M", 64ull << 20},    {"--budget-bytes 64MB", 64000000},
                 {"--budget-bytes 64mib", 64ull << 20},  {"--budget-bytes 64Mi", 64ull << 20},
                 {"--budget-bytes 2097152", 2ull << 20}, {"--budget-bytes 1T", 1ull << 40}};
    struct target t;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct options *o = parse_ok(&t, cases[i].line);

        assert_true(t.budget_bytes == cases[i].bytes);
        options_destroy(o);
    }
}

static void a_wrong_command_line_gets_a_sentence(void **state) {
    static const struct {
        const char *line, *message;
    } cases[] = {
        {"--blok-size 8", "unknown option --blok-size: did you mean --block-size?"},
        {"--no-enable-cash", "unknown option --no-enable-cash: did you mean --enable-cache?"},
        {"--modelpath x", "unknown option --modelpath: did you mean --model-path?"},
        {"--hlep", "unknown option --hlep: did you mean --help?"},
        {"--help=nothing", "no option and no group is called 'nothing': --help-all lists all"},
        {"--xyzzyplugh", "unknown option --xyzzyplugh: incipit-test --help-all lists all"},
        {"-b 8",
         "unknown option -b: options begin with two hyphens, incipit-test --help-all lists all"},
        {"--no-block-size", "unknown option --no-block-size: did you mean --block-size?"},
        {"--block-size 999", "--block-size must be a whole number from 1 to 128, not '999'"},
        {"--block-size=0", "--block-size must be a whole number from 1 to 128, not '0'"},
        {"--page_size x", "--page_size must be a whole number from 1 to 128, not 'x'"},
        {"--block-size 4294967297", "not '4294967297'"},
        {"--block-size -1", "not '-1'"},
        {"--block-size", "--block-size needs a value"},
        {"--block-size --seed 1", "--block-size needs a value"},
        {"--seed 18446744073709551616",
         "--seed must be a whole number, not '18446744073709551616'"},
        {"--budget-bytes 1K",
         "--budget-bytes must be a size such as 64MiB or 2G from 1M to 1T, not "
         "'1K'"},
        {"--budget-bytes 99999999999T", "not '99999999999T'"},
        {"--budget-bytes 1.5G", "not '1.5G'"},
        {"--timeout 5d", "--timeout must be a duration such as 250ms, 5s or 2m of at most 1h, not "
                         "'5d'"},
        {"--timeout 61m", "not '61m'"},
        {"--load-factor nan", "--load-factor must be a number from 1 to 10, not 'nan'"},
        {"--load-factor 0x", "not '0x'"},
        {"--prefill a b", "--prefill is not supported: use --worker-urls"},
        {"--tokenizer-path", "--tokenizer-path needs a value"},
        {"--color pink", "--color must be one of red, dark-green, blue, not 'pink'"},
        {"--enable-cache=maybe", "--enable-cache must be true or false, not 'maybe'"},
        {"--no-enable-cache=1", "--no-enable-cache takes no value"},
        {"--worker-urls a,b,c,d,e,f", "--worker-urls must be a list of at most 5 items"},
        {"--api-key s3cret",
         "the process list: set INCIPIT_API_KEY, or 'api-key' in the --config file"},
        {"dir other", "unexpected argument 'other': the usage is incipit-test [MODEL] [options]"},
        {"--config /nonexistent.yaml", "cannot open the config file /nonexistent.yaml: No such"},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct error err = {0};
        struct options *o;
        struct target t;

        if (parse(&o, &t, cases[i].line, &err) == ST_OK || !strstr(err.message, cases[i].message)) {
            fail_msg("'%s': expected '%s', got '%s'", cases[i].line, cases[i].message, err.message);
        }
        assert_null(strstr(err.message, "s3cret"));
    }
}

static void environment_is_between_file_and_flags(void **state) {
    struct error err = {0};
    struct options *o;
    struct target t;

    (void)state;
    setenv("INCIPIT_BLOCK_SIZE", "64", 1);
    setenv("INCIPIT_API_KEY", "s3cret", 1);
    setenv("INCIPIT_SEED", "", 1);
    o = parse_ok(&t, "");
    assert_int_equal(t.block_size, 64);
    assert_string_equal(t.api_key, "s3cret");
    assert_int_equal(options_source(o, "block-size"), OPTION_ENV);
    assert_int_equal(options_source(o, "seed"), OPTION_DEFAULT);
    options_destroy(o);
    o = parse_ok(&t, "--block-size 8");
    assert_int_equal(t.block_size, 8);
    options_destroy(o);
    setenv("INCIPIT_BLOCK_SIZE", "tcp://10.0.0.1:80", 1);
    assert_int_equal(parse(&o, &t, "", &err), ST_INVALID);
    assert_non_null(
        strstr(err.message, "INCIPIT_BLOCK_SIZE is 'tcp://10.0.0.1:80', as Kubernetes"));
    setenv("INCIPIT_BLOCK_SIZE", "0", 1);
    assert_int_equal(parse(&o, &t, "", &err), ST_INVALID);
    assert_string_equal(err.message,
                        "INCIPIT_BLOCK_SIZE must be a whole number from 1 to 128, not '0'");
    unsetenv("INCIPIT_BLOCK_SIZE");
    unsetenv("INCIPIT_API_KEY");
    unsetenv("INCIPIT_SEED");
}

static void the_file_is_below_them(void **state) {
    char path[64], line[160];
    int fd = file_of(STR("# ours\nblock_size: 32\nworker-urls:\n  - http://a,b\n  - 'http://c'\n"
                         "timeout: 5s\nrequest-timeout-secs: 7\n"),
                     path, sizeof(path));
    struct error err = {0};
    struct options *o;
    struct target t;

    (void)state;
    snprintf(line, sizeof(line), "--config %s", path);
    assert_int_equal(parse(&o, &t, line, &err), ST_INVALID);
    assert_non_null(strstr(err.message, "line 7: timeout is given twice"));
    close(fd);
    fd = file_of(STR("block_size: 32\nworker-urls:\n  - http://a,b\n  - 'http://c'\n"
                     "request-timeout-secs: 7\nnames: []\nenable-cache: off\nseed: 5\n"
                     "api-key: s3cret\n"),
                 path, sizeof(path));
    setenv("INCIPIT_SEED", "6", 1);
    snprintf(line, sizeof(line), "--config=%s --block-size 4", path);
    o = parse_ok(&t, line);
    assert_int_equal(t.block_size, 4);
    assert_int_equal(t.seed, 6);
    assert_int_equal(t.timeout_ms, 7000);
    assert_int_equal(t.urls.n, 2);
    assert_string_equal(t.urls.items[0], "http://a,b"); /* an item is one item */
    assert_int_equal(t.names.n, 0);
    assert_false(t.cache);
    assert_string_equal(t.api_key, "s3cret");
    assert_int_equal(options_source(o, "worker-urls"), OPTION_FILE);
    options_destroy(o);
    unsetenv("INCIPIT_SEED");
    close(fd);
}

static void a_wrong_file_gets_a_sentence_with_its_line(void **state) {
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"block-size: 32\nblok-size: 1\n",
         "line 2: unknown option blok-size: did you mean block-size?"},
        {"a: 1\nblock-size: 999\n", "line 1: unknown option a"},
        {"block-size: 999\n", "line 1: block-size must be a whole number from 1 to 128, not '999'"},
        {"block-size: [1, 2]\n", "line 1: block-size is a list: write one value"},
        {"block-size: []\n", "line 1: block-size is a list"},
        {"block-size:\n", "line 1: no value: give one or remove the line"},
        {"block-size: ~\n", "line 1: no value"},
        {"block-size:\n  nested: 1\n", "line 2: block-size is a mapping: write a value or a list"},
        {"names: [[a]]\n", "an item of the list is no plain value"},
        {"- a\n- b\n", "line 1: expected lines of the form 'name: value'"},
        {"{seed: 1\n", "not valid YAML"},
        {"names: &x [a]\nworker-urls: *x\n", "anchors are not supported"},
        {"seed: 1\n---\nseed: 2\n", "a second YAML document"},
        {"host: \"a\\0b\"\n", "line 1: host must be a text"},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct error err = {0};
        struct options *o = NULL;
        struct target t;

        if (parse_file(&o, &t, str_of(cases[i].text), &err) == ST_OK ||
            !strstr(err.message, cases[i].message)) {
            fail_msg("'%s': expected '%s', got '%s'", cases[i].text, cases[i].message, err.message);
        }
        assert_true(str_starts(str_of(err.message), STR("config file /proc/self/fd/")));
    }
}

static void empty_files_change_nothing(void **state) {
    static const char *const texts[] = {"", "# only a comment\n", "---\n", "{}"};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        struct error err = {0};
        struct options *o = NULL;
        struct target t;

        assert_int_equal(parse_file(&o, &t, str_of(texts[i]), &err), ST_OK);
        assert_int_equal(t.block_size, 16);
        options_destroy(o);
    }
}

static void a_config_file_with_secrets_that_all_may_read_is_warned_of(void **state) {
    static const struct {
        const char *text;
        mode_t mode;
        bool is_warned;
    } cases[] = {
        {"api-key: hush\n", 0644, true},
        {"api-key: hush\n", 0640, false},
        {"block-size: 16\n", 0644, false},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char path[] = "/tmp/incipit-options-XXXXXX", line[64], printed[512];
        int fd = mkstemp(path);
        struct target t;
        size_t n = strlen(cases[i].text);

        assert_int_equal(write(fd, cases[i].text, n), n);
        assert_int_equal(fchmod(fd, cases[i].mode), 0);
        close(fd);
        snprintf(line, sizeof(line), "--config %s", path);
        options_destroy(parse_loud(&t, line, printed, sizeof(printed)));
        assert_int_equal(strstr(printed, "has a secret (api-key)") != NULL, cases[i].is_warned);
        assert_null(strstr(printed, "hush"));
        unlink(path);
    }
}

static void mutated_files_and_lines_never_break_it(void **state) {
    static const char *const seeds[] = {
        "block-size: 32\nworker_urls: [http://a:1, \"http://b:2\"]\ntimeout: 5s # c\n"
        "enable-cache: no\ncolor: blue\napi-key: \"x\"\nhost: 'it''s'\nnames: []\n",
        "--block-size=8\n--no-enable-cache\n--worker-urls\na\nb\n--names=x,y\n--load_factor\n2."
        "5\nm",
    };
    static const char alphabet[] = ":-[]{}#&*!|>'\"%@`,\n 0x5sM=~\\\xC3\xA9\t";
    struct rng rng;
    char text[256];

    (void)state;
    rng_seed(&rng, support_seed());
    for (int i = 0; i < 5000; i++) {
        const char *seed = seeds[rng_below(&rng, ARRAY_LEN(seeds))];
        size_t len = strlen(seed);

        memcpy(text, seed, len);
        for (uint64_t n = 1 + rng_below(&rng, 3); n > 0; n--) {
            text[rng_below(&rng, len)] = alphabet[rng_below(&rng, sizeof(alphabet))];
        }
        LLVMFuzzerTestOneInput((const uint8_t *)text, len);
    }
}

static void the_dump_shows_sources_and_no_secrets(void **state) {
    struct target t;
    struct options *o;
    struct buf out;

    (void)state;
    setenv("INCIPIT_API_KEY", "s3cret", 1);
    o = parse_ok(&t, "--budget-bytes 1536M --timeout 90s --names a,\"q\" --no-enable-cache");
    unsetenv("INCIPIT_API_KEY");
    buf_init(&out, 0);
    options_dump(o, &out);
    buf_append_char(&out, '\0');
    assert_string_equal(strchr(buf_ptr(&out), '\n') + 1, "enable-cache: false  # flag\n"
                                                         "block-size: 16  # default\n"
                                                         "budget-bytes: 1536MiB  # flag\n"
                                                         "timeout: 90s  # flag\n"
                                                         "max-tokens: 0  # default\n"
                                                         "seed: 0  # default\n"
                                                         "load-factor: 1.25  # default\n"
                                                         "# model: not set  # default\n"
                                                         "host: \"127.0.0.1\"  # default\n"
                                                         "# api-key: ***  # environment\n"
                                                         "# token: not set  # default\n"
                                                         "# overrides: not set  # default\n"
                                                         "color: red  # default\n"
                                                         "worker-urls: []  # default\n"
                                                         "names: [\"a\", \"\\\"q\\\"\"]  # flag\n");
    buf_fini(&out);
    options_destroy(o);
}

static void help_lists_every_row_within_the_width(void **state) {
    size_t width = 0;
    struct buf out;

    (void)state;
    buf_init(&out, 0);
    assert_true(options_help(&program, "all", 60, &out));
    for (size_t i = 0; i < buf_len(&out); i++) {
        width = buf_ptr(&out)[i] == '\n' ? 0 : width + 1;
        assert_true(width <= 60);
    }
    buf_append_char(&out, '\0');
    assert_non_null(strstr(buf_ptr(&out), "Usage: incipit-test [MODEL] [options]\n"));
    assert_non_null(strstr(buf_ptr(&out), "\nCache\n  --[no-]enable-cache\n"));
    assert_non_null(strstr(buf_ptr(&out),
                           "  --block-size N\n"
                           "      Tokens per KV block. Smaller blocks share more of a\n"
                           "      prompt; larger ones cost less bookkeeping.\n"
                           "      [default 16; from 1 to 128; also --page-size;\n"
                           "      INCIPIT_BLOCK_SIZE]\n"));
    assert_non_null(strstr(buf_ptr(&out), "opposite --disable-radix-cache"));
    assert_non_null(strstr(buf_ptr(&out), "one of red, dark-green, blue"));
    assert_non_null(strstr(buf_ptr(&out), "  INCIPIT_API_KEY, or api-key in the --config file\n"));
    assert_non_null(strstr(buf_ptr(&out), "--config FILE"));
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        assert_non_null(strstr(buf_ptr(&out), rows[i].name));
    }
    buf_fini(&out);
}

static void help_of_a_topic_is_the_option_or_its_group(void **state) {
    struct buf out;

    (void)state;
    buf_init(&out, 0);
    assert_true(options_help(&program, "page_size", 60, &out)); /* an alias */
    assert_true(str_starts(buf_str(&out), STR("  --block-size N\n")));
    assert_true(str_find(buf_str(&out), STR("\n  --")) < 0);
    buf_clear(&out);
    assert_true(options_help(&program, "cache", 60, &out)); /* any case */
    assert_true(str_starts(buf_str(&out), STR("\nCache\n  --")));
    buf_clear(&out);
    assert_false(options_help(&program, "nothing", 60, &out));
    buf_fini(&out);
}

static void the_short_help_has_one_line_for_each_group(void **state) {
    static const struct option_entry_of_manual examples[] = {{"One:", "incipit-test 1"},
                                                             {"Two:", "incipit-test 2"},
                                                             {"Three:", "incipit-test 3"},
                                                             {"Four:", "incipit-test 4"},
                                                             {NULL, NULL}};
    struct option_program p = program;
    struct buf out;

    (void)state;
    p.most_used = "block-size";
    p.examples = examples;
    buf_init(&out, 0);
    assert_true(options_help(&p, NULL, 80, &out));
    assert_true(str_find(buf_str(&out), STR("\nMost used\n  --block-size N ")) > 0);
    assert_true(str_find(buf_str(&out), STR("\nMore\n  Cache ")) > 0);
    assert_true(str_find(buf_str(&out), STR("incipit-test 3\n")) > 0);
    assert_true(str_find(buf_str(&out), STR("incipit-test 4")) < 0);
    assert_true(str_find(buf_str(&out), STR("--help-all")) > 0);
    buf_fini(&out);
}

/* It is read as a topic, so that one that is none is refused. */
static void help_takes_a_name_with_its_dashes(void **state) {
    char *argv[] = {(char[]){"incipit-test"}, (char[]){"--help"}, (char[]){"--xyzzyplugh"}};
    struct options *o = NULL;
    struct target t = {0};
    bool wants_exit = false;
    struct error err = {0};

    (void)state;
    assert_int_not_equal(options_parse(&o, &program, &t, 3, argv, &wants_exit, &err), ST_OK);
    assert_non_null(strstr(err.message, "no option and no group is called 'xyzzyplugh'"));
}

static void help_and_version_end_the_program(void **state) {
    static const char *const lines[] = {"--help",
                                        "-h",
                                        "--help-all",
                                        "--help block-size",
                                        "--version",
                                        "--block-size 8 --help",
                                        "--dump-config --block-size 8"};
    int saved = dup(STDOUT_FILENO);

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
        char *copy = mem_strdup(lines[i]), *argv[MAX_ARGS] = {(char[]){"incipit-test"}}, *rest;
        struct options *o = NULL;
        struct target t = {0};
        bool wants_exit = false;
        enum status st;
        int argc = 1;

        for (char *arg = strtok_r(copy, " ", &rest); arg; arg = strtok_r(NULL, " ", &rest)) {
            argv[argc++] = arg;
        }
        fflush(stdout);
        assert_non_null(freopen("/dev/null", "w", stdout));
        st = options_parse(&o, &program, &t, argc, argv, &wants_exit, NULL);
        fflush(stdout);
        dup2(saved, STDOUT_FILENO);
        assert_int_equal(st, ST_OK);
        assert_true(wants_exit);
        options_destroy(o);
        mem_free(copy);
    }
    close(saved);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_fill_the_target),
        cmocka_unit_test(flags_are_read_in_all_spellings),
        cmocka_unit_test(aliases_positionals_and_many_values),
        cmocka_unit_test(sizes_and_durations_have_units),
        cmocka_unit_test(a_wrong_command_line_gets_a_sentence),
        cmocka_unit_test(environment_is_between_file_and_flags),
        cmocka_unit_test(the_file_is_below_them),
        cmocka_unit_test(a_wrong_file_gets_a_sentence_with_its_line),
        cmocka_unit_test(empty_files_change_nothing),
        cmocka_unit_test(a_config_file_with_secrets_that_all_may_read_is_warned_of),
        cmocka_unit_test(mutated_files_and_lines_never_break_it),
        cmocka_unit_test(the_dump_shows_sources_and_no_secrets),
        cmocka_unit_test(a_choice_has_other_names),
        cmocka_unit_test(flags_of_other_programs_are_passed_over),
        cmocka_unit_test(a_family_takes_the_flags_that_are_named_nowhere),
        cmocka_unit_test(flags_of_other_programs_are_aliases_of_ours),
        cmocka_unit_test(a_value_decides_whether_a_flag_is_refused),
        cmocka_unit_test(flags_are_written_as_other_programs_write_them),
        cmocka_unit_test(a_beginning_of_two_options_is_refused),
        cmocka_unit_test(numbers_may_be_written_for_people),
        cmocka_unit_test(a_number_out_of_range_is_brought_into_it),
        cmocka_unit_test(a_secret_on_the_command_line_is_warned_of),
        cmocka_unit_test(a_variable_of_another_program_counts_when_ours_is_not_set),
        cmocka_unit_test(a_file_may_hold_mappings),
        cmocka_unit_test(a_file_may_hold_the_opposite_of_a_flag),
        cmocka_unit_test(a_file_may_hold_them_too),
        cmocka_unit_test(help_lists_every_row_within_the_width),
        cmocka_unit_test(help_of_a_topic_is_the_option_or_its_group),
        cmocka_unit_test(the_short_help_has_one_line_for_each_group),
        cmocka_unit_test(help_takes_a_name_with_its_dashes),
        cmocka_unit_test(help_and_version_end_the_program),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
