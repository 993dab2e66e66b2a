/* router/fleet/supervisor.h - workers that this router launches (--launch N).
 *
 * Each is a child process on a port of its own. A child that exits is started again on that port,
 * at once the first time and then after a pause that doubles; a run of a minute resets the pause. A
 * child that exits at its first start with SUPERVISOR_EXIT_CONFIG has an invalid configuration:
 * that is reported instead of repeated. A child that has run before is always restarted, so that
 * the others keep serving.
 *
 *      waiting --fork--> running --exit--> waiting (500 ms, 1 s, 2 s ... 30 s)
 *
 * With `devices` each child is pinned to one, over restarts too.
 *
 * A child gets the arguments given here and our environment without INCIPIT_*, the router's own
 * options. It is in a process group of its own and inherits no descriptor but 0 to 2. Children
 * never outlive the router: the kernel kills them when the thread that started them ends
 * (PR_SET_PDEATHSIG), so the supervisor must be started on the main thread, which is the control
 * loop. Thread: control. */
#ifndef ROUTER_FLEET_SUPERVISOR_H
#define ROUTER_FLEET_SUPERVISOR_H

#include <sys/types.h>

#include "common/base/base.h"
#include "common/base/status.h"

struct loop;
struct log;
struct supervisor;

#define SUPERVISOR_MAX_CHILDREN 256
#define SUPERVISOR_EXIT_CONFIG  2 /* a worker's exit code for a wrong option or model folder */

struct supervisor_config {
    const char *program; /* path of incipit-worker */
    const char *const
        *args; /* passed to every child, NULL-terminated; --port and --threads added */
    uint32_t n_children;
    const char *const
        *devices; /* (n_children) child i gets --device devices[i] at each start; NULL: none */
    uint16_t first_port; /* ports in use are skipped */
    uint32_t n_threads;  /* each; 0: the machine's cores divided among the children */
    uint64_t backoff_min_us, backoff_max_us;
};

/* Calls `on_fatal` once, from the loop, when a child cannot be started or rejects its
 * configuration. It must not destroy the supervisor. */
typedef void supervisor_fatal_fn(const struct error *err, void *arg);

/* Finds the ports, starts the children. The config's strings are copied. */
MUST_USE enum status supervisor_create(struct supervisor **out, struct loop *loop, struct log *log,
                                       const struct supervisor_config *config,
                                       supervisor_fatal_fn *on_fatal, void *arg, struct error *err);

/* The environment of children: ours without INCIPIT_*. NULL-terminated; the strings are not copied;
 * free the array with mem_free. */
char **supervisor_environment(void);

uint32_t supervisor_count(const struct supervisor *s);
uint16_t supervisor_port(const struct supervisor *s, uint32_t i);
pid_t supervisor_pid(const struct supervisor *s, uint32_t i); /* 0 while it is not running */
uint64_t supervisor_restarts(const struct supervisor *s);

/* Sends SIGTERM to all and restarts none. Calls `on_stopped` once when the last has exited. */
void supervisor_stop(struct supervisor *s, void (*on_stopped)(void *arg), void *arg);

/* Kills what still runs. NULL is fine. */
void supervisor_destroy(struct supervisor *s);

#endif
