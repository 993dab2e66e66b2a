/* tests/unit/worker/test_worker_options.c - the table of flags of vLLM and SGLang beside our own;
 * what the options mean on a device. */
#include <stdio.h>
#include <string.h>

#include "kernels/backend.h"
#include "tests/support/cm.h"
#include "worker/worker_device.h"
#include "worker/worker_options.h"

#define FLAGS_MAX 1200

/* "--name" or "-x" of the next flag of a row's list. */
static bool next_flag(const char **cursor, char out[96]) {
    size_t n = strcspn(*cursor, ","), name = strcspn(*cursor, "=,");

    if (n == 0) return false;
    snprintf(out, 96, "%s%.*s", **cursor == '-' ? "" : "--", (int)name, *cursor);
    *cursor += n + ((*cursor)[n] == ',');
    return true;
}

static bool is_own(const char *flag) {
    for (size_t i = 0; i < worker_program.n_defs; i++) {
        const struct option_def *d = &worker_program.defs[i];
        const char *cursor = d->aliases ? d->aliases : "";
        char alias[96];

        if (strcmp(d->name, flag + 2) == 0) return true;
        while (next_flag(&cursor, alias)) {
            if (strcmp(alias + 2 + (alias[2] == '!'), flag + 2) == 0) return true;
        }
    }
    return false;
}

/* One that has become ours would never be seen. */
static void every_flag_is_listed_once(void **state) {
    static char flags[FLAGS_MAX][96];
    size_t n = 0;

    (void)state;
    for (const struct option_compat *row = worker_compat_flags; row->flags; row++) {
        const char *cursor = row->flags;

        while (next_flag(&cursor, flags[n])) {
            if (flags[n][1] == '-' && is_own(flags[n]))
                fail_msg("%s is an option: take it from compat_flags.c", flags[n]);
            for (size_t i = 0; i < n; i++) {
                if (strcmp(flags[i], flags[n]) == 0) fail_msg("%s is there twice", flags[n]);
            }
            n++;
            assert_true(n < FLAGS_MAX);
        }
    }
    assert_true(n > 600);
}

/* A row without an option of ours has a reason; an option of ours exists. */
static void every_compat_row_has_a_target_or_a_reason(void **state) {
    (void)state;
    for (const struct option_compat *row = worker_compat_flags; row->flags; row++) {
        char name[96];

        if (row->as) {
            snprintf(name, sizeof(name), "--%s", row->as);
            if (!is_own(name)) fail_msg("%s: %s is no option", row->flags, name);
        } else if (!row->remark || strlen(row->remark) < 10) {
            fail_msg("%s: no reason", row->flags);
        }
        if (row->refuses) assert_false(row->is_refused);
    }
}

/* A command line with --block-size 64 starts there as well. */
static void a_device_with_one_block_size_uses_that(void **state) {
    const struct backend_ops cuda = {.name = "cuda"}, cpu = {.name = "cpu"};
    const struct backend_config config = {0};
    struct worker_options o = {.block_size = 64};

    (void)state;
    assert_int_equal(worker_block_size(&o, &cuda, &config, NULL), 16);
    assert_int_equal(worker_block_size(&o, &cpu, &config, NULL), 64);
    o.block_size = 16;
    assert_int_equal(worker_block_size(&o, &cuda, &config, NULL), 16);
}

/* As vLLM's --kv-offloading-size; a size with a unit has that unit, also when it is shown. */
static void a_bare_size_of_host_memory_is_in_gib(void **state) {
    static const struct {
        const char *given;
        uint64_t bytes;
        const char *shown;
    } cases[] = {
        {"16", 16ull << 30, "kv-offload-bytes: 16GiB"}, {"1024", 1ull << 40, ": 1TiB"},
        {"1025", 1025, "kv-offload-bytes: 1025B"},      {"1KiB", 1024, "kv-offload-bytes: 1KiB"},
        {"512B", 512, "kv-offload-bytes: 512B"},        {"0", 0, "kv-offload-bytes: 0"},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char program[] = "incipit-worker", value[16], option[] = "--kv-offload-bytes";
        char *argv[] = {program, option, value, NULL};
        struct worker_options o;
        struct options *options = NULL;
        struct error err = {0};
        bool wants_exit;
        struct buf dump;

        snprintf(value, sizeof(value), "%s", cases[i].given);
        if (options_parse(&options, &worker_program, &o, 3, argv, &wants_exit, &err) != ST_OK)
            fail_msg("%s", err.message);
        assert_int_equal(o.kv_offload_bytes, cases[i].bytes);
        buf_init(&dump, 0);
        options_dump(options, &dump);
        if (str_find(buf_str(&dump), str_of(cases[i].shown)) < 0) fail_msg("%s", cases[i].given);
        buf_fini(&dump);
        options_destroy(options);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_flag_is_listed_once),
        cmocka_unit_test(every_compat_row_has_a_target_or_a_reason),
        cmocka_unit_test(a_bare_size_of_host_memory_is_in_gib),
        cmocka_unit_test(a_device_with_one_block_size_uses_that),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
