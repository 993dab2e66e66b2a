/* router/admin/admin_config.c - one way for both: a change is prepared, committed or refused,
 * logged. */
#include "router/admin/admin_config.h"

#include "common/options/options_live.h"
#include "common/telemetry/log.h"
#include "common/text/json.h"
#include "router/admin/admin_commands_internal.h"

#define BODY_MAX 65536

/* --- what the log keeps ----------------------------------------------------------------------- */

static void log_changed(const struct admin_config *config, const struct options_change *c,
                        const struct admin_asker *asker) {
    for (uint32_t i = 0; i < options_change_n_changed(c); i++) {
        const struct option_changed *x = options_change_at(c, i);

        log_always(config->log, LOG_INFO, "config_changed", log_z("option", x->option),
                   log_z("before", x->before), log_z("after", x->after),
                   log_z("source", option_source_name(x->source)), log_z("key", asker->name),
                   log_z("client", asker->address));
    }
}

static void log_refused(const struct admin_config *config, const struct options_change *c,
                        const struct admin_asker *asker) {
    for (uint32_t i = 0; i < options_change_n_kept(c); i++) {
        const struct option_refusal *x = options_change_refusal(c, i);

        log_always(config->log, LOG_WARN, "config_refused", log_z("option", x->option),
                   log_z("value", x->value), log_z("why", x->why), log_z("key", asker->name),
                   log_z("client", asker->address));
    }
}

/* True when the change holds now. */
static bool carry_out(const struct admin_config *config, struct options_change *c,
                      const struct admin_asker *asker) {
    bool is_good;

    if (options_change_n_refused(c) == 0) {
        config->prepare(c, config->arg);
        is_good = options_change_n_refused(c) == 0;
        if (is_good) options_change_commit(c);
        config->finish(c, is_good, config->arg);
    }
    is_good = options_change_n_refused(c) == 0;
    if (is_good) {
        log_changed(config, c, asker);
    } else {
        log_refused(config, c, asker);
    }
    return is_good;
}

void admin_config_reload(const struct admin_config *config, const struct admin_asker *asker) {
    struct options_change *c = options_change_begin(config->options);

    if (options_change_file(c, NULL) == ST_OK) {
        if (carry_out(config, c, asker)) {
            log_always(config->log, LOG_INFO, "config_reloaded",
                       log_u64("changed", options_change_n_changed(c)));
        } else {
            log_always(config->log, LOG_ERROR, "config_not_reloaded",
                       log_u64("refused", options_change_n_refused(c)),
                       log_z("why", "nothing has changed: the lines config_refused before this one "
                                    "name each option and what to do"));
        }
    }
    options_change_drop(c);
}

/* --- calls ------------------------------------------------------------------------------------ */

static void answer_config(struct admin_call *call, const struct admin_config *config) {
    struct json_writer w;

    json_writer_init(&w, &call->answer);
    json_begin_object(&w);
    json_put_key(&w, "options");
    options_put_json(config->options, &w);
    json_end_object(&w);
    admin_call_done(call, 200);
}

static void answer_changed(struct admin_call *call, const struct options_change *c) {
    struct json_writer w;

    json_writer_init(&w, &call->answer);
    json_begin_object(&w);
    json_put_key(&w, "changed");
    json_begin_array(&w);
    for (uint32_t i = 0; i < options_change_n_changed(c); i++) {
        const struct option_changed *x = options_change_at(c, i);

        json_begin_object(&w);
        json_field_z(&w, "option", x->option);
        json_field_z(&w, "before", x->before);
        json_field_z(&w, "after", x->after);
        json_field_z(&w, "source", option_source_name(x->source));
        json_end_object(&w);
    }
    json_end_array(&w);
    json_end_object(&w);
    admin_call_done(call, 200);
}

static void put_refusals(struct json_writer *w, const struct options_change *c) {
    json_put_key(w, "refused");
    json_begin_array(w);
    for (uint32_t i = 0; i < options_change_n_kept(c); i++) {
        const struct option_refusal *x = options_change_refusal(c, i);

        json_begin_object(w);
        json_field_z(w, "option", x->option);
        json_field_z(w, "value", x->value);
        json_field_z(w, "reason", x->why);
        json_end_object(w);
    }
    json_end_array(w);
}

/* The error of every call (openai.h), for the first refusal, and beside it all of them. */
static void answer_refused(struct admin_call *call, const struct options_change *c) {
    const struct option_refusal *first = options_change_refusal(c, 0);
    uint32_t n = options_change_n_refused(c);
    struct json_writer w;

    error_set_param(&call->err, ST_INVALID, first->option, "nothing has changed: %s%s", first->why,
                    n > 1 ? " (\"refused\" has the reasons of all)" : "");
    json_writer_init(&w, &call->answer);
    json_begin_object(&w);
    json_put_key(&w, "error");
    json_begin_object(&w);
    json_field_z(&w, "message", call->err.message);
    json_field_z(&w, "type", status_api_type(ST_INVALID));
    json_field_z(&w, "param", first->option[0] ? first->option : NULL);
    json_field_u64(&w, "code", 400);
    json_end_object(&w);
    put_refusals(&w, c);
    json_end_object(&w);
    admin_call_done(call, 400);
}

static enum status read_body(struct admin_call *call, struct json **out) {
    static const struct json_limits limits = {
        .max_bytes = BODY_MAX, .max_depth = 16, .max_values = 4000};
    enum status st = json_parse(out, buf_str(&call->body), &limits, &call->err);

    if (st != ST_OK || json_type(*out) == JSON_OBJECT) return st;
    return error_set(&call->err, ST_INVALID,
                     "the body is %s: send the options to change, as {\"log-level\":\"debug\"}",
                     json_type_name(*out));
}

static void put_config(struct admin_call *call, const struct admin_config *config) {
    struct options_change *c;
    struct json *root = NULL;

    if (read_body(call, &root) != ST_OK) {
        json_destroy(root);
        admin_call_failed(call);
        return;
    }
    c = options_change_begin(config->options);
    options_change_json(c, root);
    json_destroy(root);
    if (carry_out(config, c, &call->asker)) {
        answer_changed(call, c);
    } else {
        answer_refused(call, c);
    }
    options_change_drop(c);
}

void admin_config_answer(struct admin_call *call) {
    const struct admin_config *config = call->commands->config;

    if (!config) {
        error_set(&call->err, ST_UNAVAILABLE, "the router is starting: try again");
        admin_call_failed(call);
    } else if (call->method == HTTP_PUT) {
        put_config(call, config);
    } else {
        answer_config(call, config);
    }
}
