/* worker/main.c - options in, exit code out: 0 served and stopped; 2 it would fail again the same
 * way (options, model, instruction set), so a restart is useless; 1 all else. The first word is the
 * command: none or `serve`, `batch`, `inspect`, `devices`, `healthcheck`, `drain`, `man` or
 * `completion`. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/http/healthcheck.h"
#include "common/options/process_limits.h"
#include "common/text/json.h"
#include "worker/batch_file.h"
#include "worker/devices.h"
#include "worker/inspect.h"
#include "worker/worker.h"
#include "worker/worker_options.h"

static enum status serve(struct worker_options *values, struct options *options,
                         struct error *err) {
    struct worker *worker = NULL;
    enum status st;

    (void)process_raise_descriptors(); /* connections are descriptors: as many as it may */
    st = worker_create(&worker, values, options, err);
    if (st == ST_OK) st = worker_run(worker, err);
    worker_destroy(worker);
    return st;
}

/* --- batch ------------------------------------------------------------------------------------ */

static void on_batch_done(void *arg) {
    worker_stop(arg);
}

static void on_batch_signal(void *arg) {
    batch_file_stop(arg);
}

static uint64_t generated_tokens(void *arg) {
    return worker_generated_tokens(arg);
}

static enum status run_batch(struct batch_file *b, struct worker_options *values,
                             struct error *err) {
    struct worker *worker = NULL;
    struct batch_file_run run = {.generated_tokens = generated_tokens, .on_done = on_batch_done};
    enum status st = worker_create(&worker, values, NULL, err);

    if (st == ST_OK) {
        run.loop = worker_loop(worker);
        run.log = worker_log(worker);
        run.port = worker_port(worker);
        run.max_in_flight = MIN(2 * worker_max_num_seqs(worker), values->max_waiting);
        run.arg = worker;
        worker_on_signal(worker, on_batch_signal, b);
        st = batch_file_start(b, &run, err);
    }
    if (st == ST_OK) st = worker_run(worker, err);
    if (st == ST_OK) st = batch_file_outcome(b, err);
    batch_file_close(b); /* before the loop goes */
    worker_destroy(worker);
    return st;
}

/* The file is checked before the model is loaded, and only the batch run reaches the worker's API.
 * */
static enum status batch(struct worker_options *values, struct error *err) {
    struct batch_file *b;
    enum status st;

    if (!values->input_file || !values->output_file) {
        return error_set(err, ST_INVALID,
                         "both files are required: incipit-worker batch MODEL "
                         "--input-file FILE --output-file FILE");
    }
    st = batch_file_open(&b, values->input_file, values->output_file, err);
    if (st != ST_OK) return st;
    values->host = "127.0.0.1";
    values->port = 0;
    values->ssl_certfile = values->ssl_keyfile = values->ssl_ca_certs = NULL;
    values->api_keys = (struct option_list){NULL, 0}; /* only the batch run sends requests, on
                                                       * loopback */
    values->api_key_file = values->root_path = NULL;
    values->request_events_bytes = 0;
    return run_batch(b, values, err);
}

/* --- healthcheck ------------------------------------------------------------------------------ */

static enum status check_health(struct worker_options *values, struct error *err) {
    const struct healthcheck check = {
        .host = values->host,
        .port = values->port,
        .path = "/livez",
        .is_tls = values->ssl_certfile != NULL,
    };

    return healthcheck_ask(&check, err);
}

/* --- drain ------------------------------------------------------------------------------------ */

static enum status ask_to_drain(struct worker_options *values, struct error *err) {
    const struct healthcheck ask = {
        .host = values->host,
        .port = values->port,
        .path = "/admin/drain",
        .method = "POST",
        .code = 202,
        .is_tls = values->ssl_certfile != NULL,
    };

    return healthcheck_ask(&ask, err);
}

/* --- the first word --------------------------------------------------------------------------- */

struct command {
    const char *word; /* NULL: none */
    const struct option_program *program;
    enum status (*run)(struct worker_options *values, struct error *err); /* NULL: serve */
};

static const struct command commands[] = {
    {"serve", &worker_program, NULL},
    {"batch", &worker_batch_program, batch},
    {"inspect", &worker_inspect_program, inspect_model},
    {"devices", &worker_devices_program, list_devices},
    {"healthcheck", &worker_healthcheck_program, check_health},
    {"drain", &worker_drain_program, ask_to_drain},
    {NULL, &worker_program, NULL},
};

/* Escaped: messages quote files of strangers, and control characters would reach the terminal.
 * Quotes and ends of lines stay. */
static void print_error(const char *program, const char *message) {
    struct buf text;

    buf_init(&text, 0);
    while (*message) {
        size_t n = strcspn(message, "\"\\\n");

        json_escape_visibly(&text, (struct str){message, n});
        message += n;
        if (*message) buf_append_char(&text, *message++);
    }
    fprintf(stderr, "%s: %.*s\n", program, STR_ARG(buf_str(&text)));
    buf_fini(&text);
}

int main(int argc, char **argv) {
    const struct command *c = commands;
    struct worker_options values = {0};
    struct options *options = NULL;
    struct error err = {0};
    bool wants_exit;
    enum status st;

    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a limit on files fails the write, as a full disk does */
    signal(SIGHUP, SIG_IGN);  /* while the model loads there is nothing to read again */
    st = options_answer(&worker_manual, argc, argv, &wants_exit, &err);
    while (c->word && (argc < 2 || strcmp(argv[1], c->word) != 0))
        c++;
    if (c->word) {
        argc--;
        argv++;
    }
    if (st == ST_OK && !wants_exit) {
        st = options_parse(&options, c->program, &values, argc, argv, &wants_exit, &err);
    }
    if (st == ST_OK && !wants_exit)
        st = c->run ? c->run(&values, &err) : serve(&values, options, &err);
    options_destroy(options);
    switch (st) {
    case ST_OK: return 0;
    case ST_INVALID:
    case ST_NOT_FOUND:
    case ST_UNSUPPORTED:
    case ST_NOMEM: print_error(c->program->name, err.message); return 2;
    default: print_error(c->program->name, err.message); return 1;
    }
}
