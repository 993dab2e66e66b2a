/* tests/integration/backends/fake_gpus.c - a loadable backend that reports four GPUs, where there
 * is none.
 *
 * The simulated backend behind the door of the real one: a shared object that exports
 * `incipit_backend`, devices found by number or by UUID. What programs do about GPUs (choose, pin,
 * restart on the same, share out their memory) is tested with it; nothing is computed. With
 * INCIPIT_TEST_NO_DRIVER in the environment it is on a machine without a driver, with
 * INCIPIT_TEST_OLD_GPU the second one is too old, with INCIPIT_TEST_LOST_AFTER=N the device is lost
 * after N steps. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "kernels/backend.h"

#define N_GPUS 4u
#define GIB    ((uint64_t)1 << 30)

struct backend_device; /* sim's own, with ours in front */

static const char *const uuids[N_GPUS] = {
    "GPU-0a000000-0000-4000-8000-000000000000", "GPU-1b000000-0000-4000-8000-000000000001",
    "GPU-2c000000-0000-4000-8000-000000000002", "GPU-3d000000-0000-4000-8000-000000000003"};

/* Which one a device was opened as. One device per process is all that the tests open. */
static uint32_t opened;
static bool is_loaded;
static uint64_t n_steps;

static enum status find(const struct backend_config *config, uint32_t *out, struct error *err) {
    if (getenv("INCIPIT_TEST_NO_DRIVER"))
        return error_set(err, ST_UNSUPPORTED, "there is no driver on this machine");
    if (!config->device_id) {
        *out = config->ordinal;
        if (*out == 1 && getenv("INCIPIT_TEST_OLD_GPU"))
            return error_set(err, ST_UNSUPPORTED, "GPU 1 is too old");
        if (*out < N_GPUS) return ST_OK;
        return error_set(err, ST_NOT_FOUND, "there is no GPU %u: there are %u", *out, N_GPUS);
    }
    for (uint32_t i = 0; i < N_GPUS; i++) {
        if (strncmp(uuids[i], config->device_id, strlen(config->device_id)) != 0) continue;
        *out = i;
        return ST_OK;
    }
    return error_set(err, ST_NOT_FOUND, "there is no GPU '%s' here", config->device_id);
}

static void describe(struct backend_info *info, uint32_t gpu) {
    snprintf(info->device, sizeof(info->device), "Fake GPU %u", gpu);
    snprintf(info->uuid, sizeof(info->uuid), "%s", uuids[gpu]);
    snprintf(info->path, sizeof(info->path), "fake");
    info->n_devices = N_GPUS;
    info->flags |= BACKEND_BF16_ONLY;
    info->flags |= BACKEND_OWN_MEMORY; /* 1 GiB is another program's; a model takes 3, plus KV */
    info->memory_total = 24 * GIB;
    info->memory_free = (is_loaded ? 20 : 23) * GIB;
}

static enum status fake_probe(const struct backend_config *config, struct backend_info *info,
                              struct error *err) {
    uint32_t gpu;
    enum status st = find(config, &gpu, err);

    if (st == ST_OK) st = backend_sim.probe(config, info, err);
    if (st == ST_OK) describe(info, gpu);
    return st;
}

static enum status fake_open(struct backend_device **out, const struct backend_config *config,
                             struct error *err) {
    enum status st = find(config, &opened, err);

    return st == ST_OK ? backend_sim.open(out, config, err) : st;
}

static void fake_info(struct backend_device *dev, struct backend_info *info) {
    backend_sim.info(dev, info);
    describe(info, opened);
}

static enum status fake_load_end(struct backend_model *m, struct error *err) {
    is_loaded = true;
    return backend_sim.load_end(m, err);
}

static enum status fake_submit(struct backend_model *m, uint32_t slot,
                               const struct backend_step *step, backend_fence *out,
                               struct error *err) {
    n_steps++;
    return backend_sim.submit(m, slot, step, out, err);
}

static const char *fake_fault(struct backend_device *dev) {
    const char *after = getenv("INCIPIT_TEST_LOST_AFTER");

    (void)dev;
    return after && n_steps > strtoull(after, NULL, 10) ? "the fake GPU has fallen off its bus"
                                                        : NULL;
}

static enum status fake_poll(struct backend_device *dev, backend_fence f) {
    return fake_fault(dev) ? ST_CLOSED : backend_sim.poll(dev, f);
}

static enum status fake_wait(struct backend_device *dev, backend_fence f, uint64_t timeout_us) {
    return fake_fault(dev) ? ST_CLOSED : backend_sim.wait(dev, f, timeout_us);
}

const struct backend_ops *incipit_backend(void) {
    static struct backend_ops ops;

    ops = backend_sim;
    ops.name = "cuda";
    ops.probe = fake_probe;
    ops.open = fake_open;
    ops.info = fake_info;
    ops.load_end = fake_load_end;
    ops.submit = fake_submit;
    ops.poll = fake_poll;
    ops.wait = fake_wait;
    ops.fault = fake_fault;
    return &ops;
}
