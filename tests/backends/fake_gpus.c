/* tests/backends/fake_gpus.c - a loadable backend that reports four GPUs, where there is none.
 *
 * The simulated backend behind the door of the real one: a shared object that exports
 * `incipit_backend`, devices found by number or by UUID. What programs do about GPUs (choose, pin,
 * restart on the same) is tested with it; nothing is computed. */
#include <stdio.h>
#include <string.h>

#include "common/mem.h"
#include "kernels/backend.h"

#define N_GPUS 4u

struct backend_device; /* sim's own, with ours in front */

static const char *const uuids[N_GPUS] = {
    "GPU-0a000000-0000-4000-8000-000000000000", "GPU-1b000000-0000-4000-8000-000000000001",
    "GPU-2c000000-0000-4000-8000-000000000002", "GPU-3d000000-0000-4000-8000-000000000003"};

/* Which one a device was opened as. One device per process is all that the tests open. */
static uint32_t opened;

static enum status find(const struct backend_config *config, uint32_t *out, struct error *err) {
    if (!config->device_id) {
        *out = config->ordinal;
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

const struct backend_ops *incipit_backend(void) {
    static struct backend_ops ops;

    ops = backend_sim;
    ops.name = "cuda";
    ops.probe = fake_probe;
    ops.open = fake_open;
    ops.info = fake_info;
    return &ops;
}
