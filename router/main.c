/* router/main.c - options in, exit code out: 0 served and stopped, 2 wrong options, 1 all else. */
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>

#include "router/router.h"
#include "router/router_options.h"

/* Connections are descriptors: take as many as we may. */
static void raise_descriptor_limit(void) {
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

int main(int argc, char **argv) {
    struct router_options values = {0};
    struct options *options = NULL;
    struct router *router = NULL;
    struct error err = {0};
    bool wants_exit = false;
    enum status st;

    signal(SIGPIPE, SIG_IGN);
    raise_descriptor_limit();
    st = options_parse(&options, &router_program, &values, argc, argv, &wants_exit, &err);
    if (st == ST_OK && !wants_exit) {
        st = router_create(&router, &values, &err);
        if (st == ST_OK) st = router_run(router, &err);
    }
    router_destroy(router);
    options_destroy(options);
    if (st == ST_OK) return 0;
    fprintf(stderr, "incipit-router: %s\n", err.message);
    return st == ST_INVALID || st == ST_NOT_FOUND ? 2 : 1;
}
