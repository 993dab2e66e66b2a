/* worker/worker_reload.c - see the header. */
#include "worker/worker_reload.h"

#include "common/options/options_live.h"
#include "common/telemetry/log.h"

static void log_refused(const struct options_change *c, struct log *log) {
    for (uint32_t i = 0; i < options_change_n_kept(c); i++) {
        const struct option_refusal *x = options_change_refusal(c, i);

        log_always(log, LOG_WARN, "config_refused", log_z("option", x->option),
                   log_z("value", x->value), log_z("why", x->why));
    }
    log_always(log, LOG_ERROR, "config_not_reloaded",
               log_u64("refused", options_change_n_refused(c)),
               log_z("why", "nothing has changed: the lines config_refused before this one name "
                            "each option and what to do"));
}

static void log_changed(const struct options_change *c, struct log *log) {
    for (uint32_t i = 0; i < options_change_n_changed(c); i++) {
        const struct option_changed *x = options_change_at(c, i);

        log_always(log, LOG_INFO, "config_changed", log_z("option", x->option),
                   log_z("before", x->before), log_z("after", x->after),
                   log_z("source", option_source_name(x->source)));
    }
    log_always(log, LOG_INFO, "config_reloaded", log_u64("changed", options_change_n_changed(c)));
}

enum status worker_reload_options(struct options *live, struct log *log, bool *has_changed) {
    struct options_change *c = options_change_begin(live);
    enum status st = options_change_file(c, NULL);

    *has_changed = false;
    if (st == ST_OK && options_change_n_refused(c) > 0) {
        log_refused(c, log);
    } else if (st == ST_OK) {
        options_change_commit(c);
        log_changed(c, log);
        *has_changed = options_change_n_changed(c) > 0;
    }
    options_change_drop(c);
    return st;
}
