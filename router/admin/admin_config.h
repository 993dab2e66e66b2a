/* router/admin/admin_config.h - options seen and changed while the router runs.
 *
 *      GET /config     {"options":{"NAME":{"value", "source", "live"}, ...}}
 *      PUT /config     {"NAME": value, ...}, null for the value without a change at run time
 *                      200 {"changed":[{"option", "before", "after", "source"}]}
 *                      400 {"error":{...},"refused":[{"option", "value", "reason"}]}
 *      SIGHUP          the --config file is read again
 *
 * A change is all or nothing (options_live.h). Each option that changed has a line in the log,
 * config_changed, which no rate and no level leaves out; each that was refused has config_refused.
 * Thread: control, which owns the options. */
#ifndef ROUTER_ADMIN_ADMIN_CONFIG_H
#define ROUTER_ADMIN_ADMIN_CONFIG_H

#include "common/base/base.h"

struct admin_asker;
struct log;
struct options;
struct options_change;

/* What the router does with a change. */
struct admin_config {
    struct options *options;
    struct log *log;
    /* Refuses what does not fit together, and opens what the change needs. */
    void (*prepare)(struct options_change *c, void *arg);
    /* After each prepare. Committed: the parts take the new values. Else: what was opened is
     * closed. */
    void (*finish)(const struct options_change *c, bool is_committed, void *arg);
    void *arg;
};

/* Reads the --config file again, if the router was started with one. */
void admin_config_reload(const struct admin_config *config, const struct admin_asker *asker);

#endif
