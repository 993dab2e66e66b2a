/* tests/unit/router/options/test_router_options.c - what start scripts of other routers ask for. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/options/options_live.h"
#include "common/text/json.h"
#include "router/options/router_options.h"
#include "tests/support/cm.h"

#define MAX_ARGS 32

static enum status parse(struct options **o, struct router_options *t, const char *line,
                         struct error *err) {
    char *copy = mem_strdup(line), *argv[MAX_ARGS] = {(char[]){"incipit-router"}}, *rest, *arg;
    bool wants_exit;
    enum status st;
    int argc = 1;

    *o = NULL;
    for (arg = strtok_r(copy, " ", &rest); arg; arg = strtok_r(NULL, " ", &rest))
        argv[argc++] = arg;
    st = options_parse(o, &router_program, t, argc, argv, &wants_exit, err);
    mem_free(copy);
    return st;
}

static const char *policy_of(const char *line) {
    struct router_options t = {0};
    struct options *o;
    struct error err = {0};

    if (parse(&o, &t, line, &err) != ST_OK) fail_msg("'%s' refused: %s", line, err.message);
    options_destroy(o);
    return policy_names[t.policy];
}

static void policies_go_by_the_names_of_others(void **state) {
    static const struct {
        const char *line, *policy;
    } cases[] = {
        {"--policy cache_aware", "cache_aware"},
        {"--policy power-of-two", "power_of_two"},
        {"--policy prefix_hash", "chwbl"},
        {"--policy consistent_hashing", "session"},
        {"--policy manual", "session"},
        {"--routing-logic roundrobin", "round_robin"},
        {"--routing-logic session --session-key x-user-id", "session"},
        {"--routing-logic prefixaware", "hash_trie"},
        {"--routing-logic kvaware", "prefix"},
        {"--policy PrefixHash", "chwbl"},
        {"--policy LeastLoad", "least_load"},
        {"--routing-strategy prefix-cache", "aibrix"},
        {"--routing-strategy least-request", "least_load"},
    };
    (void)state;

    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        assert_string_equal(policy_of(cases[i].line), cases[i].policy);
    for (size_t i = 0; i < router_program.n_defs; i++) { /* each stands for one that exists */
        const char *const *a = router_program.defs[i].name_aliases;

        if (router_program.defs[i].type != OPT_ENUM) continue;
        for (; a && a[0]; a += 2) {
            const char *const *name = router_program.defs[i].names;

            while (*name && strcmp(*name, a[1]) != 0)
                name++;
            assert_non_null(*name);
        }
    }
}

/* The weights had Greek names; flags, files and variables with those still set them. */
static void greek_names_of_the_cost_weights_are_accepted(void **state) {
    static const char *const variables[] = {"INCIPIT_BETA", "INCIPIT_KAPPA", "INCIPIT_GAMMA",
                                            "INCIPIT_LAMBDA", "INCIPIT_DELTA"};
    struct router_options t = {0};
    const struct policy_options *p = &t.policy_options;
    struct options *o;
    struct error err = {0};
    char path[] = "/tmp/incipit_greek_XXXXXX", line[64];
    FILE *file = fdopen(mkstemp(path), "w");
    (void)state;

    fputs("beta: 1\nkappa: 2\ngamma: 3\nlambda: 4\ndelta: 5\n", file);
    fclose(file);
    snprintf(line, sizeof(line), "--config %s", path);
    for (int i = 0; i < 3; i++) {
        for (size_t v = 0; i == 2 && v < ARRAY_LEN(variables); v++)
            setenv(variables[v], (const char *[]){"1", "2", "3", "4", "5"}[v], 1);
        assert_int_equal(parse(&o, &t,
                               i == 0   ? "--beta 1 --kappa 2 --gamma 3 --lambda 4 --delta 5"
                               : i == 1 ? line
                                        : "",
                               &err),
                         ST_OK);
        assert_float_equal(p->cost_later_arrivals, 1, 0);
        assert_float_equal(p->cost_decoding, 2, 0);
        assert_float_equal(p->cost_queued, 3, 0);
        assert_float_equal(p->cost_fleet_busy, 4, 0);
        assert_float_equal(p->cost_batch_slot_s, 5, 0);
        options_destroy(o);
    }
    for (size_t v = 0; v < ARRAY_LEN(variables); v++)
        unsetenv(variables[v]);
    unlink(path);
}

/* The example of sglang-router's manual. */
static void a_command_line_of_sglang_router_is_understood(void **state) {
    struct router_options t = {0};
    struct options *o;
    struct error err = {0};
    (void)state;

    assert_int_equal(
        parse(&o, &t,
              "--worker-urls http://w1:8000 http://w2:8000 --policy cache_aware "
              "--cache-threshold 0.5 --balance-abs-threshold 32 --balance-rel-threshold 1.1 "
              "--max-tree-size 1048576 --request-timeout-secs 600 --max-payload-size 1048576",
              &err),
        ST_OK);
    assert_int_equal(t.worker_urls.n, 2);
    assert_float_equal(t.policy_options.cache_threshold, 0.5, 0);
    assert_int_equal(t.policy_options.balance_abs, 32);
    assert_float_equal(t.policy_options.balance_rel, 1.1, 0);
    assert_int_equal(t.policy_options.max_tree_bytes, 1048576);
    assert_int_equal(t.request_timeout_ms, 600000);
    options_destroy(o);
    assert_int_equal(
        parse(&o, &t, "--max-concurrent-requests -1 --queue-size=50 --log-level warning", &err),
        ST_OK);
    assert_int_equal(t.max_concurrent_requests, 0); /* no limit */
    assert_int_equal(t.log_level, LOG_WARN);
    options_destroy(o);
    assert_int_equal(parse(&o, &t, "--max-concurrent-requests -2", &err), ST_INVALID);
    assert_int_equal(parse(&o, &t, "--disable-retries --eviction-interval 120", &err), ST_OK);
    assert_int_equal(t.max_retries, 0);
    options_destroy(o);
}

static void pods_are_found_by_the_flags_of_others(void **state) {
    static const struct {
        const char *line;
        int discovery;
        uint32_t n_labels, port;
    } cases[] = {
        {"", DISCOVER_NONE, 0, 0},
        {"--service-discovery", DISCOVER_K8S, 0, 0},
        {"--service-discovery=none", DISCOVER_NONE, 0, 0},
        {"--service-discovery static", DISCOVER_NONE, 0, 0},
        {"--service-discovery dns --worker-dns w:80", DISCOVER_DNS, 0, 0},
        {"--service-discovery --selector a=b c=d --service-discovery-port 80", DISCOVER_K8S, 2, 80},
        {"--service-discovery k8s --k8s-label-selector a=b,c=d --k8s-port 8000", DISCOVER_K8S, 2,
         8000},
    };
    (void)state;

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct router_options t = {0};
        struct options *o;
        struct error err = {0};

        if (parse(&o, &t, cases[i].line, &err) != ST_OK) fail_msg("%s", err.message);
        assert_int_equal(t.service_discovery, cases[i].discovery);
        assert_int_equal(t.k8s_selector.n, cases[i].n_labels);
        assert_int_equal(t.k8s_port, cases[i].port);
        options_destroy(o);
    }
}

static void unsupported_flags_are_refused_with_an_alternative(void **state) {
    static const struct {
        const char *line, *message;
    } cases[] = {
        {"--enable-mesh", "--enable-mesh is not supported: the workers connect the routers"},
        {"--cache-threshold 1.1", "a number from 0 to 1, not '1.1'"},
        {"--prefix-hash-load-factor 0.9", "a number from 1 to 1000, not '0.9'"},
        {"--service-discovery --prefill-selector a=b", "--prefill-selector is not supported"},
        {"--service-discovery etcd", "--service-discovery must be one of none, k8s"},
        {"--policy best", "--policy must be one of prefix, least_load"},
    };
    (void)state;

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct router_options t = {0};
        struct options *o;
        struct error err = {0};

        assert_int_not_equal(parse(&o, &t, cases[i].line, &err), ST_OK);
        if (!strstr(err.message, cases[i].message))
            fail_msg("'%s': expected '%s', got '%s'", cases[i].line, cases[i].message, err.message);
    }
}

/* A compat flag that is an option here would never be looked up. */
static bool is_own(const char *name) {
    for (size_t i = 0; i < router_program.n_defs; i++) {
        if (strcmp(router_program.defs[i].name, name) == 0) return true;
    }
    return false;
}

/* The row's first flag, up to what it takes. */
static const char *flag_of(const struct option_compat *f, char out[64]) {
    snprintf(out, 64, "%.*s", (int)strcspn(f->flags, "=,"), f->flags);
    return out;
}

static void compat_flags_have_a_purpose(void **state) {
    char name[64], other[64];

    (void)state;
    for (const struct option_compat *f = router_compat_flags; f->flags; f++) {
        flag_of(f, name);
        assert_true((f->as != NULL) == (f->value != NULL));
        assert_true((f->as == NULL) == (f->remark != NULL));
        if (f->as) assert_true(is_own(f->as));
        if (is_own(name)) fail_msg("--%s is an option: take it out of the compat flags", name);
        for (const struct option_compat *g = router_compat_flags; g < f; g++)
            assert_string_not_equal(name, flag_of(g, other));
    }
}

/* Another valid value of the row, as JSON. */
static void other_value(const struct option_def *d, char *out, size_t cap) {
    switch (d->type) {
    case OPT_BOOL:
        snprintf(out, cap, "%s", d->def && !strcmp(d->def, "true") ? "false" : "true");
        break;
    case OPT_ENUM: snprintf(out, cap, "\"%s\"", d->names[strcmp(d->names[0], d->def) == 0]); break;
    case OPT_STR: snprintf(out, cap, "\"/other\""); break;
    case OPT_LIST: snprintf(out, cap, "[\"other\"]"); break;
    default: /* of all numbers one of the bounds is not the default */
        snprintf(out, cap, "\"%s\"",
                 !d->min || (d->def && !strcmp(d->min, d->def)) ? d->max : d->min);
        if (!d->min && !d->max) snprintf(out, cap, "12345");
        if (!d->min && d->def && strcmp(d->def, "0") != 0) snprintf(out, cap, "0");
    }
}

static struct options_change *change_of(struct options *o, const char *json) {
    struct options_change *c = options_change_begin(o);
    struct json *root;

    if (json_parse(&root, str_of(json), NULL, NULL) != ST_OK) fail_msg("%s", json);
    options_change_json(c, root);
    json_destroy(root);
    return c;
}

/* Each live row takes another value and returns; each other row is refused, and with it the
 * change. */
static void rows_change_while_running_exactly_where_they_are_live(void **state) {
    struct router_options t = {0};
    struct error err = {0};
    struct options *o;
    uint32_t n_live = 0;

    (void)state;
    assert_int_equal(parse(&o, &t, "", &err), ST_OK);
    for (size_t i = 0; i < router_program.n_defs; i++) {
        const struct option_def *d = &router_program.defs[i];
        struct options_change *c;
        char value[80], json[200];

        other_value(d, value, sizeof(value));
        snprintf(json, sizeof(json), "{\"%s\": %s}", d->name, value);
        c = change_of(o, json);
        if (options_change_n_changed(c) + options_change_n_refused(c) != 1)
            fail_msg("%s: %u changed, %u refused", json, options_change_n_changed(c),
                     options_change_n_refused(c));
        assert_int_equal(options_change_n_changed(c), d->is_live && !d->is_path);
        if (d->is_live && d->is_path) {
            assert_non_null(strstr(options_change_refusal(c, 0)->why, "SIGHUP"));
        } else if (d->is_live) {
            options_change_commit(c);
            options_change_drop(c);
            assert_int_equal(options_source(o, d->name), OPTION_RUNTIME);
            snprintf(json, sizeof(json), "{\"%s\": null}", d->name);
            c = change_of(o, json);
            assert_int_equal(options_change_n_changed(c), 1);
            options_change_commit(c);
            assert_int_equal(options_source(o, d->name), OPTION_DEFAULT);
            n_live++;
        } else {
            const struct option_refusal *x = options_change_refusal(c, 0);

            assert_string_equal(x->option, d->name);
            assert_non_null(strstr(x->why, "restart"));
        }
        options_change_drop(c);
    }
    assert_in_range(n_live, 50, router_program.n_defs);
    options_destroy(o);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(policies_go_by_the_names_of_others),
        cmocka_unit_test(greek_names_of_the_cost_weights_are_accepted),
        cmocka_unit_test(a_command_line_of_sglang_router_is_understood),
        cmocka_unit_test(pods_are_found_by_the_flags_of_others),
        cmocka_unit_test(unsupported_flags_are_refused_with_an_alternative),
        cmocka_unit_test(compat_flags_have_a_purpose),
        cmocka_unit_test(rows_change_while_running_exactly_where_they_are_live),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
