/* router/fleet/supervisor.c - start, watch, restart and stop local workers.
 *
 * A pidfd wakes the loop when a child has ended: no signal handler, no global, no race with reused
 * process ids. */
#include "router/fleet/supervisor.h"

#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/net/loop.h"
#include "common/telemetry/log.h"

#define HEALTHY_RUN_US (60 * 1000000ull) /* a run this long resets the backoff */
#define PORT_SEARCH    1000              /* ports tried beyond first_port */

struct child {
    struct supervisor *owner;
    struct loop_fd exit_watch;
    struct loop_timer restart;
    uint64_t started_us, backoff_us;
    uint32_t n_starts;
    pid_t pid;
    int pidfd;
    uint16_t port;
    char *device; /* NULL: the child's choice */
};

struct supervisor {
    struct loop *loop;
    struct log *log;
    char *program;
    char **args;        /* the common ones, NULL-terminated */
    char **environment; /* of the children: pointers into ours */
    uint32_t n_args, n_threads, n_children;
    uint64_t backoff_min_us, backoff_max_us, restarts;
    supervisor_fatal_fn *on_fatal;
    void (*on_stopped)(void *arg);
    void *fatal_arg, *stopped_arg;
    bool is_stopping, has_failed;
    struct child *children;
};

static bool port_is_free(uint16_t port) {
    struct sockaddr_in addr = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool is_free;

    if (fd < 0) return false;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    is_free = bind(fd, (struct sockaddr *)&addr, sizeof(addr)) == 0;
    close(fd);
    return is_free;
}

static enum status choose_ports(struct supervisor *s, uint16_t first, struct error *err) {
    uint32_t port = first, last = MIN(65535u, (uint32_t)first + PORT_SEARCH);

    for (uint32_t i = 0; i < s->n_children; i++, port++) {
        while (port <= last && !port_is_free((uint16_t)port))
            port++;
        if (port > last) {
            return error_set(err, ST_IO,
                             "no free port for worker %u of %u from %u to %u: give another range "
                             "with --worker-base-port",
                             i + 1, s->n_children, first, last);
        }
        s->children[i].port = (uint16_t)port;
    }
    return ST_OK;
}

/* Removes INCIPIT_*: INCIPIT_PORT would change the worker's port. */
char **supervisor_environment(void) {
    uint32_t n = 0, kept = 0;
    char **out;

    while (environ[n])
        n++;
    out = mem_calloc(n + 1, sizeof(*out));
    for (uint32_t i = 0; i < n; i++) {
        if (strncmp(environ[i], "INCIPIT_", strlen("INCIPIT_")) != 0) out[kept++] = environ[i];
    }
    return out;
}

static void complain(const char *text) {
    (void)!write(2, text, strlen(text));
}

/* In the child, a copy of one thread of a process that has several: only what is safe in a signal
 * handler may be called. Signals are blocked until the handlers, which belong to the parent, are
 * gone; no descriptor but the standard ones is taken along. */
static NORETURN void become_worker(const char *program, char *const *argv, char *const *env,
                                   pid_t parent) {
    sigset_t none;

    for (int signo = 1; signo < NSIG; signo++)
        signal(signo, SIG_DFL); /* our signal dispositions are not inherited */
    setpgid(0, 0);              /* Ctrl-C is the router's to handle: it drains before it stops us */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);     /* it died before prctl */
    syscall(SYS_close_range, 3u, ~0u, 0u); /* all are close-on-exec, unless a library forgot one */
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execve(program, argv, env);
    complain("incipit-router: this system cannot run ");
    complain(program);
    complain("\n");
    _exit(SUPERVISOR_EXIT_CONFIG);
}

static pid_t fork_worker(const struct supervisor *s, char *const *argv) {
    pid_t parent = getpid(), pid;
    sigset_t all, before;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pid = fork();
    if (pid == 0) become_worker(s->program, argv, s->environment, parent);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return pid;
}

static void report_fatal(struct supervisor *s, const struct error *err) {
    if (s->has_failed || s->is_stopping) return;
    s->has_failed = true;
    s->on_fatal(err, s->fatal_arg);
}

static void on_exit_ready(unsigned ready, void *arg);

static void restart_later(struct child *c) {
    struct supervisor *s = c->owner;

    loop_timer_start(&c->restart, c->backoff_us);
    c->backoff_us = c->backoff_us ? MIN(c->backoff_us * 2, s->backoff_max_us) : s->backoff_min_us;
}

/* Fatal at the beginning; later a shortage may be temporary. */
static void start_failed(struct child *c, const char *what, int code) {
    struct error err = {0};

    error_set(&err, ST_IO, "cannot start a worker: %s: %s", what, strerror(code));
    if (c->n_starts == 0) {
        report_fatal(c->owner, &err);
        return;
    }
    log_event(c->owner->log, LOG_ERROR, "worker_start_failed", log_u64("port", c->port),
              log_z("why", err.message));
    restart_later(c);
}

static void child_start(struct child *c) {
    struct supervisor *s = c->owner;
    char port_flag[] = "--port", threads_flag[] = "--threads", device_flag[] = "--device";
    char port[8], threads[16], **argv = mem_calloc(s->n_args + 8, sizeof(*argv));
    uint32_t n = 0;

    snprintf(port, sizeof(port), "%u", c->port);
    snprintf(threads, sizeof(threads), "%u", s->n_threads);
    argv[n++] = s->program;
    for (uint32_t i = 0; i < s->n_args; i++)
        argv[n++] = s->args[i];
    argv[n++] = port_flag;
    argv[n++] = port;
    argv[n++] = threads_flag;
    argv[n++] = threads;
    if (c->device) {
        argv[n++] = device_flag;
        argv[n++] = c->device;
    }
    c->pid = fork_worker(s, argv);
    mem_free(argv);
    if (c->pid < 0) {
        c->pid = 0;
        start_failed(c, "fork", errno);
        return;
    }
    c->pidfd = (int)syscall(SYS_pidfd_open, c->pid, 0);
    if (c->pidfd < 0) {
        int code = errno;

        kill(c->pid, SIGKILL);
        waitpid(c->pid, NULL, 0);
        c->pid = 0;
        start_failed(c, "pidfd_open (--launch needs Linux 5.3)", code);
        return;
    }
    if (c->n_starts++) s->restarts++;
    c->started_us = loop_now_us(s->loop);
    log_event(s->log, LOG_INFO, "worker_started", log_u64("port", c->port),
              log_u64("pid", (uint64_t)c->pid), log_z("device", c->device ? c->device : "any"));
    loop_fd_init(&c->exit_watch, s->loop, c->pidfd, on_exit_ready, c);
    loop_fd_watch(&c->exit_watch, LOOP_READ);
}

static bool any_running(const struct supervisor *s) {
    for (uint32_t i = 0; i < s->n_children; i++) {
        if (s->children[i].pid) return true;
    }
    return false;
}

static void child_ended(struct child *c, int wait_status) {
    struct supervisor *s = c->owner;
    uint64_t lived_us = loop_now_us(s->loop) - c->started_us;
    pid_t pid = c->pid;
    struct error err = {0};

    loop_fd_fini(&c->exit_watch);
    close(c->pidfd);
    c->pidfd = -1;
    c->pid = 0;
    if (s->is_stopping) {
        if (!any_running(s) && s->on_stopped) s->on_stopped(s->stopped_arg);
        return;
    }
    if (lived_us >= HEALTHY_RUN_US) c->backoff_us = 0;
    log_event(s->log, LOG_WARN, "worker_ended", log_u64("port", c->port),
              log_u64("pid", (uint64_t)pid), log_f64("lived_s", (double)lived_us * 1e-6),
              WIFSIGNALED(wait_status) ? log_i64("signal", WTERMSIG(wait_status))
                                       : log_i64("exit_code", WEXITSTATUS(wait_status)),
              log_f64("restart_in_s", (double)c->backoff_us * 1e-6));
    if (c->n_starts == 1 && lived_us < HEALTHY_RUN_US && WIFEXITED(wait_status) &&
        WEXITSTATUS(wait_status) == SUPERVISOR_EXIT_CONFIG) {
        error_set(&err, ST_INVALID,
                  "the worker on port %u exited at its start: see its message above; the command "
                  "was %s ... --port %u",
                  c->port, s->program, c->port);
        report_fatal(s, &err);
        return;
    }
    restart_later(c);
}

static void on_exit_ready(unsigned ready, void *arg) {
    struct child *c = arg;
    int wait_status = 0;

    (void)ready;
    if (waitpid(c->pid, &wait_status, WNOHANG) == c->pid) child_ended(c, wait_status);
}

static void on_restart(void *arg) {
    struct child *c = arg;

    if (!c->owner->is_stopping) child_start(c);
}

enum status supervisor_create(struct supervisor **out, struct loop *loop, struct log *log,
                              const struct supervisor_config *config, supervisor_fatal_fn *on_fatal,
                              void *arg, struct error *err) {
    struct supervisor *s = mem_zalloc(sizeof(*s));
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    enum status st;

    *out = NULL;
    s->loop = loop;
    s->log = log;
    s->on_fatal = on_fatal;
    s->fatal_arg = arg;
    s->program = mem_strdup(config->program);
    while (config->args && config->args[s->n_args])
        s->n_args++;
    s->args = mem_calloc(s->n_args + 1, sizeof(*s->args));
    for (uint32_t i = 0; i < s->n_args; i++)
        s->args[i] = mem_strdup(config->args[i]);
    s->environment = supervisor_environment();
    s->n_children = config->n_children;
    s->n_threads =
        config->n_threads ? config->n_threads : (uint32_t)MAX(1, cores / (long)config->n_children);
    s->backoff_min_us = config->backoff_min_us;
    s->backoff_max_us = config->backoff_max_us;
    s->children = mem_calloc(s->n_children, sizeof(*s->children));
    for (uint32_t i = 0; i < s->n_children; i++) {
        struct child *c = &s->children[i];

        c->owner = s;
        c->pidfd = -1;
        if (config->devices) c->device = mem_strdup(config->devices[i]);
        loop_timer_init(&c->restart, loop, on_restart, c);
    }
    if (access(s->program, X_OK) != 0) {
        st = error_set(err, ST_NOT_FOUND,
                       "cannot launch workers: %s: %s: build the program with make, or give its "
                       "path with --worker-program",
                       s->program, strerror(errno));
        goto fail;
    }
    st = choose_ports(s, config->first_port, err);
    if (st != ST_OK) goto fail;
    for (uint32_t i = 0; i < s->n_children; i++)
        loop_timer_start(&s->children[i].restart, 0);
    *out = s;
    return ST_OK;
fail:
    supervisor_destroy(s);
    return st;
}

uint32_t supervisor_count(const struct supervisor *s) {
    return s->n_children;
}

uint16_t supervisor_port(const struct supervisor *s, uint32_t i) {
    return s->children[i].port;
}

pid_t supervisor_pid(const struct supervisor *s, uint32_t i) {
    return s->children[i].pid;
}

uint64_t supervisor_restarts(const struct supervisor *s) {
    return s->restarts;
}

void supervisor_stop(struct supervisor *s, void (*on_stopped)(void *arg), void *arg) {
    s->is_stopping = true;
    s->on_stopped = on_stopped;
    s->stopped_arg = arg;
    for (uint32_t i = 0; i < s->n_children; i++) {
        loop_timer_stop(&s->children[i].restart);
        if (s->children[i].pid) kill(s->children[i].pid, SIGTERM);
    }
    if (!any_running(s)) on_stopped(arg);
}

void supervisor_destroy(struct supervisor *s) {
    if (!s) return;
    s->is_stopping = true;
    for (uint32_t i = 0; i < s->n_children; i++) {
        struct child *c = &s->children[i];

        loop_timer_fini(&c->restart);
        mem_free(c->device);
        if (!c->pid) continue;
        loop_fd_fini(&c->exit_watch);
        close(c->pidfd);
        kill(c->pid, SIGKILL);
        waitpid(c->pid, NULL, 0);
    }
    for (uint32_t i = 0; i < s->n_args; i++)
        mem_free(s->args[i]);
    mem_free(s->args);
    mem_free(s->environment);
    mem_free(s->children);
    mem_free(s->program);
    mem_free(s);
}
