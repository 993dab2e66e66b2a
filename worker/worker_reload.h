/* worker/worker_reload.h - the --config file read again, on SIGHUP: all or nothing
 * (options_live.h). */
#ifndef WORKER_WORKER_RELOAD_H
#define WORKER_WORKER_RELOAD_H

#include "common/base/status.h"

struct log;
struct options;

/* Each option that changed has a line config_changed, each that was refused config_refused. Returns
 * whether the values have changed. ST_NOT_FOUND: the worker was started without a file. */
MUST_USE enum status worker_reload_options(struct options *live, struct log *log,
                                           bool *has_changed);

#endif
