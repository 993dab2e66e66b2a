/* worker/worker_device.h - the options resolved on this machine: backend, device, and the defaults
 * of each. Used by serve and inspect. */
#ifndef WORKER_WORKER_DEVICE_H
#define WORKER_WORKER_DEVICE_H

#include "common/base/status.h"
#include "kernels/backend.h"

struct engine_options;
struct log;
struct model;
struct worker_options;

/* The backend, and how to open its device. Logs once when it is not the first choice. */
MUST_USE enum status worker_choose_device(const struct worker_options *o,
                                          const struct backend_ops **out,
                                          struct backend_config *config, struct log *log,
                                          struct error *err);

/* Tokens per KV block on that device: --block-size, or the one size that the device has, which is
 * logged when it differs. `log` may be NULL. */
uint32_t worker_block_size(const struct worker_options *o, const struct backend_ops *backend,
                           const struct backend_config *config, struct log *log);

/* Types, batch, memory and weights of `e`, whose backend, device and model are set: the options, or
 * what suits the device. A device that cannot be probed is left to engine_create, which reports
 * why. ST_UNSUPPORTED for a --dtype that the device lacks. */
MUST_USE enum status worker_size_engine(const struct worker_options *o, const struct model *m,
                                        struct engine_options *e, struct error *err);

#endif
