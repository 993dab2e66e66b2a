/* worker/main.c - options in, exit code out: 0 served and stopped; 2 it would fail again the same
 * way (options, model, instruction set), so nobody need restart it; 1 all else. */
#include <signal.h>
#include <stdio.h>

#include "worker/worker.h"
#include "worker/worker_options.h"

int main(int argc, char **argv) {
    struct worker_options values = {0};
    struct options *options = NULL;
    struct worker *worker = NULL;
    struct error err = {0};
    bool wants_exit = false;
    enum status st;

    signal(SIGPIPE, SIG_IGN);
    signal(SIGHUP, SIG_IGN); /* while the model loads there is nothing to read again */
    st = options_parse(&options, &worker_program, &values, argc, argv, &wants_exit, &err);
    if (st == ST_OK && !wants_exit) {
        st = worker_create(&worker, &values, &err);
        if (st == ST_OK) st = worker_run(worker, &err);
    }
    worker_destroy(worker);
    options_destroy(options);
    switch (st) {
    case ST_OK: return 0;
    case ST_INVALID:
    case ST_NOT_FOUND:
    case ST_UNSUPPORTED:
    case ST_NOMEM: fprintf(stderr, "incipit-worker: %s\n", err.message); return 2;
    default: fprintf(stderr, "incipit-worker: %s\n", err.message); return 1;
    }
}
