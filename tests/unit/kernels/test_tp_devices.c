/* tests/unit/kernels/test_tp_devices.c - ranks as one device: which each takes, the info of all,
 * and what becomes of the others when one is late, lost or fails. */
#include <stdio.h>
#include <string.h>

#include "tests/support/cm.h"
#include "tests/support/tiny_model.h"

/* --- events for the engine ------------------------------------------------------------------- */

static void info_covers_all_ranks(void **state) {
    struct backend_config config = {.ranks = &backend_cpu, .tp_size = 2, .n_threads = 4};
    struct backend_info one, all;
    struct tiny_setup setup = {&backend_tp, NULL, 4, 16, 2, 32, 0, &backend_cpu, 2};
    struct tiny_model m;
    char begin[8] = "2 x ";

    (void)state;
    assert_int_equal(backend_cpu.probe(&config, &one, NULL), ST_OK);
    assert_int_equal(backend_tp.probe(&config, &all, NULL), ST_OK);
    assert_memory_equal(all.device, begin, 4);
    assert_string_equal(all.path, one.path);
    assert_int_equal(all.memory_total, one.memory_total);
    tiny_open(&m, &setup, &tiny_many_heads, 1);
    backend_tp.info(m.dev, &all);
    assert_int_equal(all.n_threads, 4);
    assert_int_equal(all.flags, BACKEND_INVARIANT);
    assert_int_equal(backend_tp.event_fd(m.dev), -1);
    assert_true(all.prefill_tokens_per_s > 0);
    tiny_close(&m);
}

/* A backend with four cards of its own memory; what it was asked for. */
static struct {
    char names[4][16];
    uint32_t ordinal[4], size;
    struct backend_device *first;
    uint64_t longest_us;
} asked;

static enum status card_probe(const struct backend_config *config, struct backend_info *info,
                              struct error *err) {
    (void)err;
    *info = (struct backend_info){.n_devices = 4,
                                  .n_threads = 1,
                                  .flags = BACKEND_OWN_MEMORY | (config->ordinal ? 0u : 1u),
                                  .memory_total = 80,
                                  .memory_free = 70 - config->ordinal};
    snprintf(info->device, sizeof(info->device), "Card");
    if (!config->device_id) snprintf(info->uuid, sizeof(info->uuid), "GPU-%u", config->ordinal);
    asked.ordinal[config->tp_rank] = config->ordinal;
    asked.size = config->tp_size;
    snprintf(asked.names[config->tp_rank], sizeof(asked.names[0]), "%s",
             config->device_id ? config->device_id : "");
    return ST_OK;
}

static enum status card_open(struct backend_device **out, const struct backend_config *config,
                             struct error *err) {
    static char card[4]; /* only their places are looked at */

    (void)err;
    *out = (struct backend_device *)(void *)&card[config->tp_rank];
    asked.first = (struct backend_device *)(void *)card;
    return ST_OK;
}

static void card_close(struct backend_device *dev) {
    (void)dev;
}

static int card_event_fd(struct backend_device *dev) {
    (void)dev;
    return -1;
}

/* The first waits for a sum that its neighbour, which is lost, will never add to. */
static enum status card_wait(struct backend_device *dev, backend_fence f, uint64_t timeout_us) {
    if (dev == asked.first) {
        asked.longest_us = MAX(asked.longest_us, timeout_us);
        return ST_TIMEOUT;
    }
    return f == 2 ? ST_CLOSED : ST_TIMEOUT;
}

static void a_lost_rank_is_not_waited_for(void **state) {
    struct backend_ops cards = {.abi = BACKEND_ABI,
                                .name = "cards",
                                .probe = card_probe,
                                .open = card_open,
                                .close = card_close,
                                .event_fd = card_event_fd,
                                .wait = card_wait};
    struct backend_config config = {.ranks = &cards, .tp_size = 2};
    struct backend_device *dev;

    (void)state;
    asked.longest_us = 0;
    assert_int_equal(backend_tp.open(&dev, &config, NULL), ST_OK);
    assert_int_equal(backend_tp.wait(dev, 1, 30000000), ST_TIMEOUT);
    assert_int_equal(backend_tp.wait(dev, 2, UINT64_MAX), ST_CLOSED);
    assert_true(asked.longest_us <= 1000000);
    backend_tp.close(dev);
}

static void each_rank_takes_a_device(void **state) {
    struct backend_ops cards = {.abi = BACKEND_ABI, .name = "cards", .probe = card_probe};
    struct backend_config config = {.ranks = &cards, .tp_size = 3, .ordinal = 1};
    struct backend_info info;
    struct error err;

    (void)state;
    assert_int_equal(backend_tp.probe(&config, &info, &err), ST_OK);
    for (uint32_t r = 0; r < 3; r++)
        assert_int_equal(asked.ordinal[r], 1 + r);
    assert_int_equal(asked.size, 3);
    assert_int_equal(info.memory_total, 3 * 80);
    assert_int_equal(info.memory_free, 3 * 67); /* of each as much as the poorest has */
    assert_int_equal(info.flags, BACKEND_OWN_MEMORY);
    assert_string_equal(info.device, "3 x Card");
    config.ordinal = 2;
    assert_int_equal(backend_tp.probe(&config, &info, &err), ST_UNSUPPORTED);
    assert_string_equal(err.message, "3 ranks from device 2 on: this machine has 4 devices");
    config.device_id = "GPU-b,GPU-a,GPU-d";
    assert_int_equal(backend_tp.probe(&config, &info, &err), ST_OK);
    assert_string_equal(asked.names[0], "GPU-b");
    assert_string_equal(asked.names[1], "GPU-a");
    assert_string_equal(asked.names[2], "GPU-d");
    config.device_id = "3,cuda:0,GPU-d";
    assert_int_equal(backend_tp.probe(&config, &info, &err), ST_OK);
    assert_int_equal(asked.ordinal[0], 3);
    assert_int_equal(asked.ordinal[1], 0);
    assert_string_equal(asked.names[1], "");
    assert_string_equal(asked.names[2], "GPU-d");
    config.device_id = "2,0,2";
    assert_int_equal(backend_tp.probe(&config, &info, &err), ST_INVALID);
    assert_non_null(strstr(err.message, "ranks 0 and 2 would share the device GPU-2"));
    config.device_id = "GPU-b,,GPU-d";
    assert_int_equal(backend_tp.probe(&config, &info, &err), ST_INVALID);
    config.device_id = "GPU-a,GPU-b,GPU-c,GPU-d"; /* one would be idle, unreported */
    assert_int_equal(backend_tp.probe(&config, &info, &err), ST_INVALID);
    assert_non_null(strstr(err.message, "3 ranks"));
    config.device_id = "1,card:2,3"; /* not the third card: a name like any other */
    assert_int_equal(backend_tp.probe(&config, &info, &err), ST_OK);
    assert_string_equal(asked.names[1], "card:2");
    cards.abi++;
    assert_int_equal(backend_tp.probe(&config, &info, &err), ST_UNSUPPORTED);
}

static void impossible_settings_are_refused(void **state) {
    struct backend_config config = {.ranks = &backend_cpu, .tp_size = 17};
    struct backend_device *dev;
    struct backend_info info;
    struct error err;

    (void)state;
    assert_int_equal(backend_tp.probe(&config, &info, &err), ST_INVALID);
    assert_non_null(strstr(err.message, "17 ranks"));
    config.tp_size = 2;
    config.device_id = "GPU-a";
    assert_int_equal(backend_tp.open(&dev, &config, &err), ST_INVALID);
    assert_non_null(strstr(err.message, "name one for each"));
    config = (struct backend_config){.tp_size = 2};
    assert_int_equal(backend_tp.open(&dev, &config, &err), ST_INVALID);
    config = (struct backend_config){.ranks = &backend_cpu, .tp_size = 2, .path = "mmx"};
    assert_int_equal(backend_tp.open(&dev, &config, &err), ST_UNSUPPORTED);
    assert_non_null(strstr(err.message, "rank 0 of 2"));
}

static int n_asked; /* by rank 0's thread; read between calls */

static int telling_fd(struct backend_device *dev) {
    (void)dev;
    return 100 + n_asked++;
}

/* A device that signals only when asked to: backend.h wants it asked before each sleep. */
static void the_device_is_asked_for_its_event_fd_each_time(void **state) {
    struct backend_ops telling = backend_ref;
    struct backend_config config = {.ranks = &telling, .tp_size = 2};
    struct backend_device *dev;
    struct error err;

    (void)state;
    telling.event_fd = telling_fd;
    n_asked = 0;
    assert_int_equal(backend_tp.open(&dev, &config, &err), ST_OK);
    assert_int_equal(n_asked, 1); /* rank 0 alone */
    assert_int_equal(backend_tp.event_fd(dev), 101);
    assert_int_equal(backend_tp.event_fd(dev), 102);
    backend_tp.close(dev);
}

/* --- a rank that fails ----------------------------------------------------------------------- */

static struct { /* what rank 1 refuses */
    bool tensor, end, submit, open;
    struct backend_device *first; /* rank 0's, to know rank 1 by */
} failing;

static enum status failing_open(struct backend_device **out, const struct backend_config *config,
                                struct error *err) {
    enum status st;

    if (failing.open && config->tp_rank == 1)
        return error_set(err, ST_UNAVAILABLE, "no such device");
    st = backend_cpu.open(out, config, err);
    if (config->tp_rank == 0) failing.first = *out;
    return st;
}

/* Which of two models is rank 1's: each begins in the thread of its own. */
static _Thread_local uint32_t my_rank;

static enum status failing_begin(struct backend_device *dev, struct backend_model **out,
                                 const struct geometry *g, const struct backend_limits *limits,
                                 struct error *err) {
    my_rank = dev != failing.first;
    return backend_cpu.load_begin(dev, out, g, limits, err);
}

static enum status failing_tensor(struct backend_model *m, const struct backend_tensor *t,
                                  struct error *err) {
    if (failing.tensor && my_rank == 1) return error_set(err, ST_NOMEM, "no memory for that");
    return backend_cpu.load_tensor(m, t, err);
}

static enum status failing_end(struct backend_model *m, struct error *err) {
    if (failing.end && my_rank == 1) return error_set(err, ST_NOMEM, "no memory at the end");
    return backend_cpu.load_end(m, err);
}

static enum status failing_submit(struct backend_model *m, uint32_t slot,
                                  const struct backend_step *step, backend_fence *out,
                                  struct error *err) {
    if (failing.submit && my_rank == 1) return error_set(err, ST_IO, "the device fell off");
    return backend_cpu.submit(m, slot, step, out, err);
}

static struct backend_ops failing_ops(void) {
    struct backend_ops ops = backend_cpu;

    ops.open = failing_open;
    ops.load_begin = failing_begin;
    ops.load_tensor = failing_tensor;
    ops.load_end = failing_end;
    ops.submit = failing_submit;
    return ops;
}

/* Up to load_end; the error when it ended before. */
static enum status load_failing(const struct backend_ops *ops, struct backend_device **dev,
                                struct backend_model **model, struct error *err) {
    struct backend_config config = {.ranks = ops, .tp_size = 2, .n_threads = 2};
    struct tiny_setup setup = {&backend_tp, NULL, 2, 16, 2, 32};
    float inv_freq[128];
    uint8_t kind[64];
    struct geometry g = tiny_geometry(&tiny_many_heads, inv_freq, kind);
    struct backend_limits limits = tiny_limits(&setup, &tiny_many_heads);
    enum status st = backend_tp.open(dev, &config, err);

    if (st == ST_OK) st = backend_tp.load_begin(*dev, model, &g, &limits, err);
    if (st == ST_OK) st = tiny_load(&backend_tp, *model, &tiny_many_heads, 1, ROLE_COUNT, err);
    if (st == ST_OK) st = backend_tp.load_end(*model, err);
    return st;
}

static void a_rank_that_fails_at_load_ends_all(void **state) {
    struct backend_ops ops = failing_ops();
    static const char *const message[] = {"rank 1 of 2: no such device",
                                          "rank 1 of 2: no memory for that",
                                          "rank 1 of 2: no memory at the end"};

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct backend_device *dev = NULL;
        struct backend_model *model = NULL;
        struct error err = {0};

        failing.open = i == 0, failing.tensor = i == 1, failing.end = i == 2;
        assert_int_not_equal(load_failing(&ops, &dev, &model, &err), ST_OK);
        assert_string_equal(err.message, message[i]);
        backend_tp.unload(model);
        backend_tp.close(dev);
    }
    failing.end = false;
}

static void a_rank_that_fails_in_a_step_leaves_none_waiting(void **state) {
    struct backend_ops ops = failing_ops();
    struct backend_step step = {.n_tokens = 1, .n_rows = 1, .n_updates = 1};
    struct backend_device *dev = NULL;
    struct backend_model *model = NULL;
    struct backend_kv_info kv;
    struct backend_stage s;
    struct error err = {0};
    backend_fence fence;

    (void)state;
    assert_int_equal(load_failing(&ops, &dev, &model, &err), ST_OK);
    assert_int_equal(backend_tp.kv_alloc(model, 9, 0, &kv, &err), ST_OK);
    backend_tp.stage(model, 0, &s);
    s.token[0] = 1, s.position[0] = 0, s.kv_slot[0] = 16;
    s.row[0] = (struct backend_row){0, 0, 1, 1};
    s.update[0] = (struct backend_table_update){0, 0, 1};
    assert_int_equal(backend_tp.submit(model, 0, &step, &fence, &err), ST_OK);
    assert_int_equal(backend_tp.wait(dev, fence, 1000), ST_OK);
    failing.submit = true;
    assert_int_equal(backend_tp.submit(model, 0, &step, &fence, &err), ST_IO);
    assert_string_equal(err.message, "rank 1 of 2: the device fell off");
    failing.submit = false; /* too late: rank 0 has been left in the middle of a step */
    assert_int_equal(backend_tp.submit(model, 0, &step, &fence, &err), ST_CLOSED);
    backend_tp.unload(model);
    backend_tp.close(dev);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(info_covers_all_ranks),
        cmocka_unit_test(each_rank_takes_a_device),
        cmocka_unit_test(a_lost_rank_is_not_waited_for),
        cmocka_unit_test(impossible_settings_are_refused),
        cmocka_unit_test(the_device_is_asked_for_its_event_fd_each_time),
        cmocka_unit_test(a_rank_that_fails_at_load_ends_all),
        cmocka_unit_test(a_rank_that_fails_in_a_step_leaves_none_waiting),
    };

    return cmocka_run_group_tests_name("kernels/tp, devices", tests, NULL, NULL);
}
