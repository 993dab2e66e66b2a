/* router/upgrade/service_manager.c - datagrams to one socket; descriptors from three on. */
#include "router/upgrade/service_manager.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/net/loop.h"

#define FIRST_FD 3

struct service_manager {
    struct loop_timer watchdog;
    uint64_t watchdog_us; /* between two watchdog messages; 0: none */
    int fd;               /* -1: no manager */
};

/* --- telling ---------------------------------------------------------------------------------- */

/* Never blocks: drops the message when the manager does not read. */
static void notify(struct service_manager *m, const char *text) {
    if (m && m->fd >= 0) (void)!send(m->fd, text, strlen(text), MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void feed(void *arg) {
    struct service_manager *m = arg;

    notify(m, "WATCHDOG=1");
    loop_timer_start(&m->watchdog, m->watchdog_us);
}

static int connect_to(const char *path) {
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    socklen_t n = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + (path ? strlen(path) : 0));
    int fd;

    if (!path || (path[0] != '/' && path[0] != '@') || strlen(path) >= sizeof(addr.sun_path))
        return -1;
    memcpy(addr.sun_path, path, strlen(path));
    if (path[0] == '@') addr.sun_path[0] = '\0'; /* an abstract name */
    fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&addr, n) != 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* A number in the environment; 0: none. */
static unsigned long long variable(const char *name) {
    const char *text = getenv(name);
    char *end = NULL;
    unsigned long long v = text && *text >= '0' && *text <= '9' ? strtoull(text, &end, 10) : 0;

    return end && *end == '\0' ? v : 0;
}

struct service_manager *service_manager_open(struct loop *loop) {
    struct service_manager *m = mem_zalloc(sizeof(*m));
    unsigned long long pid = variable("WATCHDOG_PID");

    m->fd = connect_to(getenv("NOTIFY_SOCKET"));
    if (!getenv("WATCHDOG_PID") || pid == (unsigned long long)getpid())
        m->watchdog_us = variable("WATCHDOG_USEC") / 2;
    loop_timer_init(&m->watchdog, loop, feed, m);
    if (m->fd >= 0 && m->watchdog_us) feed(m);
    return m;
}

void service_manager_close(struct service_manager *m) {
    if (!m) return;
    loop_timer_fini(&m->watchdog);
    if (m->fd >= 0) close(m->fd);
    mem_free(m);
}

void service_manager_ready(struct service_manager *m) {
    notify(m, "READY=1");
}

void service_manager_succeeding(struct service_manager *m) {
    char text[64];

    snprintf(text, sizeof(text), "MAINPID=%ld\nREADY=1", (long)getpid());
    notify(m, text);
}

void service_manager_reloading(struct service_manager *m) {
    char text[80];

    snprintf(text, sizeof(text), "RELOADING=1\nMONOTONIC_USEC=%llu",
             (unsigned long long)clock_now_us());
    notify(m, text);
}

void service_manager_stopping(struct service_manager *m) {
    notify(m, "STOPPING=1");
}

/* --- sockets ---------------------------------------------------------------------------------- */

enum status service_socket_check(int fd, struct error *err) {
    int type = 0, listens = 0, family = 0;
    socklen_t n = sizeof(int);

    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &n) != 0 || type != SOCK_STREAM ||
        getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &n) != 0 ||
        (family != AF_INET && family != AF_INET6) ||
        getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &n) != 0 || !listens)
        return error_set(
            err, ST_INVALID,
            "LISTEN_FDS: descriptor %d is not a listening TCP socket: correct the socket unit", fd);
    if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0 || fcntl(fd, F_SETFL, O_RDWR | O_NONBLOCK) != 0)
        return error_set(err, ST_IO, "LISTEN_FDS: descriptor %d: %s", fd, strerror(errno));
    return ST_OK;
}

static enum status take_socket(struct service_sockets *out, int fd, const char *name, size_t n,
                               struct error *err) {
    bool is_admin = n == 5 && memcmp(name, "admin", 5) == 0;
    enum status st = service_socket_check(fd, err);

    if (st != ST_OK) return error_prefix(err, "LISTEN_FDS");
    if (is_admin) {
        out->admin[out->n_admin++] = fd;
    } else {
        out->client[out->n_client++] = fd;
    }
    return ST_OK;
}

enum status service_manager_sockets(struct service_sockets *out, struct error *err) {
    unsigned long long n = variable("LISTEN_FDS");
    const char *names = getenv("LISTEN_FDNAMES");
    enum status st = ST_OK;

    *out = (struct service_sockets){.n_client = 0};
    if (variable("LISTEN_PID") != (unsigned long long)getpid()) n = 0;
    if (n > SERVICE_SOCKETS_MAX) {
        st = error_set(err, ST_INVALID,
                       "LISTEN_FDS: %llu sockets exceed the limit of %d: pass fewer", n,
                       SERVICE_SOCKETS_MAX);
        n = 0;
    }
    for (int i = 0; i < (int)n && st == ST_OK; i++) {
        size_t len = names ? strcspn(names, ":") : 0;

        st = take_socket(out, FIRST_FD + i, names, len, err);
        if (names) names = names[len] ? names + len + 1 : NULL;
    }
    unsetenv("LISTEN_PID");
    unsetenv("LISTEN_FDS");
    unsetenv("LISTEN_FDNAMES");
    return st;
}
