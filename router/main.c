/* router/main.c - parses options and returns an exit code: 0 served and stopped, or healthy; 2
 * wrong options; 1 any other failure. The first word is a command: none, `healthcheck`, `drain`,
 * `man` or `completion`. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "common/http/healthcheck.h"
#include "common/options/process_limits.h"
#include "router/drain_command.h"
#include "router/options/router_options.h"
#include "router/router.h"

static enum status serve(const struct router_options *values, struct options *options,
                         struct error *err) {
    struct router *router = NULL;
    enum status st;

    (void)process_raise_descriptors(); /* connections are descriptors: as many as it may */
    st = router_create(&router, values, options, err);
    if (st == ST_OK) st = router_run(router, err);
    router_destroy(router);
    return st;
}

/* Tests liveness, not readiness: a starting or draining router needs no restart. */
static enum status check_health(const struct router_options *values, struct error *err) {
    const struct healthcheck check = {
        .host = values->admin_host,
        .port = values->admin_port,
        .path = "/livez",
        .is_tls = values->tls_cert_path && !router_is_loopback(values->admin_host),
    };

    return healthcheck_ask(&check, err);
}

/* --- the first word --------------------------------------------------------------------------- */

struct command {
    const char *word; /* NULL: none */
    const struct option_program *program;
    enum status (*run)(const struct router_options *values, struct error *err); /* NULL: serve */
};

static const struct command commands[] = {
    {"healthcheck", &router_healthcheck_program, check_health},
    {"drain", &router_drain_program, drain_command},
    {NULL, &router_program, NULL},
};

int main(int argc, char **argv) {
    const struct command *c = commands;
    struct router_options values = {0};
    struct options *options = NULL;
    struct error err = {0};
    bool wants_exit;
    enum status st;

    signal(SIGPIPE, SIG_IGN);
    st = options_answer(&router_manual, argc, argv, &wants_exit, &err);
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
    if (st == ST_OK) return 0;
    fprintf(stderr, "%s: %s\n", c->program->name, err.message);
    return st == ST_INVALID || st == ST_NOT_FOUND ? 2 : 1;
}
