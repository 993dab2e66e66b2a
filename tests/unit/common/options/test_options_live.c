/* tests/unit/common/options/test_options_live.c - options that change while the program runs: all
 * or nothing, from a file and from JSON. */
#include "common/options/options_live.h"
#include "common/base/rng.h"
#include "common/text/json.h"
#include "tests/fuzz/fuzz_options.c"
#include "tests/support/cm.h"
#include "tests/support/support.h"

static void rewrite(int fd, const char *text) {
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_int_equal(pwrite(fd, text, strlen(text), 0), strlen(text));
}

struct stage {
    struct options *o;
    struct target t;
    char path[64];
    int fd;
};

static void begin_with(struct stage *s, const char *text, const char *flag) {
    char *argv[] = {(char[]){"incipit-test"}, (char[]){"--config"}, s->path, NULL, NULL};
    struct error err = {0};

    s->fd = file_of(str_of(text), s->path, sizeof(s->path));
    argv[3] = (char *)(uintptr_t)flag;
    if (parse_args(&s->o, &s->t, flag ? 4 : 3, argv, &err) != ST_OK) fail_msg("%s", err.message);
}

static void end(struct stage *s) {
    options_destroy(s->o);
    close(s->fd);
}

static struct options_change *reread(struct stage *s, const char *text) {
    struct options_change *c = options_change_begin(s->o);

    rewrite(s->fd, text);
    assert_int_equal(options_change_file(c, NULL), ST_OK);
    return c;
}

static struct options_change *put(struct stage *s, const char *json) {
    struct options_change *c = options_change_begin(s->o);
    struct json *root;

    assert_int_equal(json_parse(&root, str_of(json), NULL, NULL), ST_OK);
    options_change_json(c, root);
    json_destroy(root);
    return c;
}

/* "timeout 1s 2s file" of each change; "block-size=64" of each refusal. */
static void assert_change(struct options_change *c, const char *expected) {
    struct buf out;

    buf_init(&out, 0);
    for (uint32_t i = 0; i < options_change_n_changed(c); i++) {
        const struct option_changed *x = options_change_at(c, i);

        buf_appendf(&out, "%s %s %s %s; ", x->option, x->before, x->after,
                    option_source_name(x->source));
    }
    for (uint32_t i = 0; i < options_change_n_kept(c); i++) {
        const struct option_refusal *x = options_change_refusal(c, i);

        assert_true(x->why[0]);
        buf_appendf(&out, "%s=%s refused; ", x->option, x->value);
    }
    buf_append_char(&out, '\0');
    assert_string_equal(buf_ptr(&out), expected);
    buf_fini(&out);
}

static void commit(struct options_change *c, const char *expected) {
    assert_change(c, expected);
    options_change_commit(c);
    options_change_drop(c);
}

static void refuse(struct options_change *c, const char *expected) {
    assert_change(c, expected);
    assert_true(options_change_n_refused(c) > 0);
    options_change_drop(c);
}

static void a_file_read_again_changes_live_options_or_nothing(void **state) {
    struct stage s;

    (void)state;
    begin_with(&s, "block-size: 32\ntimeout: 1s\nload-factor: 2\n", "--load-factor=3");
    /* the flag still decides the load factor */
    commit(reread(&s, "block-size: 32\ntimeout: 2s\nload-factor: 4\nhost: ::1\nnames: [n]\n"),
           "timeout 1s 2s file; host 127.0.0.1 ::1 file; names a,b n file; ");
    assert_int_equal(s.t.timeout_ms, 2000);
    assert_true(s.t.load_factor == 3);
    assert_string_equal(s.t.host, "::1");
    assert_int_equal(options_source(s.o, "host"), OPTION_FILE);

    refuse(reread(&s, "block-size: 64\ntimeout: 3s\n"),
           "timeout 2s 3s file; host ::1 127.0.0.1 default; names n a,b default; "
           "block-size=64 refused; ");
    assert_int_equal(s.t.timeout_ms, 2000);
    refuse(reread(&s, "block-size: 32\ntimeout: never\nhots: x\nload-factor: 5\nhost: ::1\n"
                      "names: [n]\n"),
           "timeout 2s 250ms default; timeout=never refused; hots= refused; ");
    refuse(reread(&s, "block-size: [\n"), "config= refused; ");
    refuse(reread(&s, "block-size: 32\ntimeout: 2s\nhost: ::1\nnames: [n]\napi-key: s3cret\n"),
           "api-key=set refused; ");
    assert_int_equal(s.t.timeout_ms, 2000);

    /* what is gone from the file falls back to its default */
    commit(reread(&s, "block-size: 32\n"), "timeout 2s 250ms default; host ::1 127.0.0.1 default; "
                                           "names n a,b default; ");
    assert_int_equal(s.t.timeout_ms, 250);
    assert_string_equal(s.t.host, "127.0.0.1");
    assert_int_equal(options_source(s.o, "host"), OPTION_DEFAULT);
    commit(reread(&s, "block-size: 32\n"), "");
    end(&s);
}

static void without_a_file_there_is_none_to_read_again(void **state) {
    char *argv[] = {(char[]){"incipit-test"}, NULL};
    struct options_change *c;
    struct error err = {0};
    struct options *o;
    struct target t;

    (void)state;
    assert_int_equal(parse_args(&o, &t, 1, argv, &err), ST_OK);
    c = options_change_begin(o);
    assert_int_equal(options_change_file(c, &err), ST_NOT_FOUND);
    options_change_drop(c);
    options_destroy(o);
}

static void json_changes_live_options_or_nothing(void **state) {
    struct stage s;

    (void)state;
    begin_with(&s, "timeout: 1s\n", "--load-factor=3");
    commit(put(&s, "{\"load_factor\": 2.5, \"request-timeout-secs\": 4, \"host\": \"::1\", "
                   "\"names\": [\"x,y\", \"z\"], \"enable-cache\": false}"),
           "enable-cache true false runtime; timeout 1s 4s runtime; "
           "load-factor 3 2.5 runtime; host 127.0.0.1 ::1 runtime; names a,b x,y,z runtime; ");
    assert_true(s.t.load_factor == 2.5);
    assert_int_equal(s.t.timeout_ms, 4000);
    assert_int_equal(s.t.names.n, 2);
    assert_string_equal(s.t.names.items[0], "x,y");
    assert_false(s.t.cache);

    refuse(put(&s, "{\"timeout\": \"5s\", \"block-size\": 8, \"host\": \"h\", \"tiemout\": 1, "
                   "\"load-factor\": {}, \"api-key\": \"s3cret\"}"),
           "timeout 4s 5s runtime; host ::1 h runtime; tiemout= refused; "
           "load-factor=an object refused; block-size=8 refused; api-key=set refused; ");
    assert_int_equal(s.t.timeout_ms, 4000);
    refuse(put(&s, "{\"timeout\": \"5s\", \"request-timeout-secs\": 6}"),
           "timeout 4s 5s runtime; timeout=a number refused; ");
    commit(put(&s, "{\"block-size\": 16, \"timeout\": 4000}"), ""); /* as it is */

    /* null returns to what flag, environment, file or default hold */
    commit(put(&s, "{\"load-factor\": null, \"timeout\": null, \"names\": []}"),
           "timeout 4s 1s file; load-factor 2.5 3 command line; names x,y,z  runtime; ");
    assert_int_equal(options_source(s.o, "timeout"), OPTION_FILE);
    assert_int_equal(s.t.names.n, 0);
    end(&s);
}

/* A file names its options again; what it does not name, and what a flag holds, stays as set. */
static void runtime_values_last_until_a_file_names_them(void **state) {
    struct stage s;

    (void)state;
    begin_with(&s, "timeout: 1s\n", "--load-factor=3");
    commit(put(&s, "{\"timeout\": \"9s\", \"load-factor\": 9, \"host\": \"::1\"}"),
           "timeout 1s 9s runtime; load-factor 3 9 runtime; host 127.0.0.1 ::1 runtime; ");
    commit(reread(&s, "timeout: 1s\nload-factor: 4\n"), "timeout 9s 1s file; ");
    assert_true(s.t.load_factor == 9);
    assert_string_equal(s.t.host, "::1");
    commit(put(&s, "{\"load-factor\": null}"), "load-factor 9 3 command line; ");
    end(&s);
}

static void options_are_shown_with_value_source_and_whether_they_are_live(void **state) {
    struct json_writer w;
    struct stage s;
    struct buf out;

    (void)state;
    begin_with(&s, "timeout: 1s\napi-key: s3cret\n", "--block-size=8");
    buf_init(&out, 0);
    json_writer_init(&w, &out);
    options_put_json(s.o, &w);
    assert_true(str_find(buf_str(&out), STR("\"block-size\":{\"value\":8,\"source\":\"command "
                                            "line\",\"live\":false}")) >= 0);
    assert_true(str_find(buf_str(&out), STR("\"timeout\":{\"value\":\"1s\",\"source\":\"file\","
                                            "\"live\":true}")) >= 0);
    assert_true(str_find(buf_str(&out), STR("\"api-key\":{\"value\":\"set\"")) >= 0);
    assert_true(str_find(buf_str(&out), STR("\"names\":{\"value\":[\"a\",\"b\"]")) >= 0);
    assert_true(str_find(buf_str(&out), STR("s3cret")) < 0);
    buf_fini(&out);
    end(&s);
}

/* Whatever a peer sends, nothing but live rows changes, and each refusal has a reason. */
static void random_changes_keep_options_that_are_not_live(void **state) {
    static const char *const names[] = {"block-size", "timeout", "host",       "names",
                                        "color",      "nothing", "load-factor"};
    static const char *const values[] = {"1",       "null", "\"2s\"", "[]", "[\"a\",1]", "{}",
                                         "\"red\"", "1e99", "true",   "-1", "\"\"",      "3"};
    struct stage s;
    struct rng rng;
    char json[256];

    (void)state;
    rng_seed(&rng, support_seed());
    begin_with(&s, "block-size: 32\n", NULL);
    for (int i = 0; i < 3000; i++) {
        struct options_change *c;
        uint64_t a = rng_below(&rng, ARRAY_LEN(names)), b = rng_below(&rng, ARRAY_LEN(names));

        snprintf(json, sizeof(json), a == b ? "{\"%s\": %s}" : "{\"%s\": %s, \"%s\": %s}", names[a],
                 values[rng_below(&rng, ARRAY_LEN(values))], names[b],
                 values[rng_below(&rng, ARRAY_LEN(values))]);
        c = put(&s, json);
        if (options_change_n_refused(c)) {
            assert_true(options_change_refusal(c, 0)->why[0]);
        } else {
            options_change_commit(c);
        }
        options_change_drop(c);
        assert_int_equal(s.t.block_size, 32);
        assert_true(s.t.load_factor >= 1);
    }
    end(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_read_again_changes_live_options_or_nothing),
        cmocka_unit_test(without_a_file_there_is_none_to_read_again),
        cmocka_unit_test(json_changes_live_options_or_nothing),
        cmocka_unit_test(runtime_values_last_until_a_file_names_them),
        cmocka_unit_test(options_are_shown_with_value_source_and_whether_they_are_live),
        cmocka_unit_test(random_changes_keep_options_that_are_not_live),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
