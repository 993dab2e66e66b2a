/* tests/support/redis_server.c - fork, exec, and PING until it answers. */
#include "tests/support/redis_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"

#define ARGS_MAX    64
#define START_US    30000000u
#define PAUSE_US    2000u
#define START_TIMES 10

/* The last as `make deps-test` installs it. */
static const char *const programs[] = {"redis-server", "valkey-server",
                                       "build/tools/bin/redis-server"};

static uint16_t free_port(void) {
    struct sockaddr_in addr = {.sin_family = AF_INET};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t n = sizeof(addr);

    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(fd, (struct sockaddr *)&addr, sizeof(addr)) != 0) abort();
    if (getsockname(fd, (struct sockaddr *)&addr, &n) != 0) abort();
    close(fd);
    return ntohs(addr.sin_port);
}

static const char *find_program(void) {
    char command[64];

    for (size_t i = 0; i < ARRAY_LEN(programs); i++) {
        snprintf(command, sizeof(command), "command -v %s >/dev/null", programs[i]);
        if (system(command) == 0) return programs[i];
    }
    return NULL;
}

/* Sends the words as an inline command; the first byte of the reply, 0: none. */
static char ask(struct redis_server *s, const char *command) {
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    char line[256], reply = 0;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int n = snprintf(line, sizeof(line), "%s\r\n", command);

    memcpy(addr.sun_path, s->path, strlen(s->path) + 1);
    if (connect(fd, (struct sockaddr *)&addr, sizeof(addr)) != 0 ||
        write(fd, line, (size_t)n) != n || read(fd, &reply, 1) != 1)
        reply = 0;
    close(fd);
    return reply;
}

void redis_server_command(struct redis_server *s, const char *command) {
    char reply = ask(s, command);

    if (reply && reply != '-') return;
    fprintf(stderr, "%s: the server answers with %c\n", command, reply ? reply : '?');
    abort();
}

static void run(struct redis_server *s, const char *program, const char *const *more) {
    const char *args[ARGS_MAX] = {program,     "--port",       s->port_text, "--bind",
                                  "127.0.0.1", "--dir",        s->folder,    "--save",
                                  "",          "--appendonly", "no",         "--unixsocket",
                                  s->path,     "--loglevel",   "warning"};
    int n = 15;

    for (int i = 0; more && more[i] && n + 1 < ARGS_MAX; i++)
        args[n++] = strcmp(more[i], "PORT") == 0 ? s->port_text : more[i];
    if (!freopen("/dev/null", "w", stdout)) _exit(126);
    execvp(program, (char *const *)(uintptr_t)args);
    _exit(127);
}

static void use_free_port(struct redis_server *s) {
    s->port = free_port();
    snprintf(s->port_text, sizeof(s->port_text), "%u", s->port);
}

/* False: it has ended, for its port was taken in the meantime. */
static bool runs(struct redis_server *s, const char *program, const char *const *more) {
    uint64_t until_us = clock_now_us() + START_US;
    int status;

    s->pid = fork();
    if (s->pid == 0) run(s, program, more);
    while (ask(s, "PING") == 0) {
        if (waitpid(s->pid, &status, WNOHANG) != 0) {
            fprintf(stderr, "%s has ended with status %d\n", program, status);
            return false;
        }
        if (clock_now_us() > until_us) abort();
        usleep(PAUSE_US);
    }
    return true;
}

void redis_server_restart(struct redis_server *s, const char *const *more) {
    int n_left = START_TIMES;

    while (!runs(s, find_program(), more)) {
        if (--n_left == 0) abort();
        use_free_port(s);
    }
}

bool redis_server_start(struct redis_server *s, const char *const *more) {
    if (!find_program()) return false;
    memset(s, 0, sizeof(*s));
    snprintf(s->folder, sizeof(s->folder), "/tmp/redis_XXXXXX");
    if (!mkdtemp(s->folder)) abort();
    snprintf(s->path, sizeof(s->path), "%s/socket", s->folder);
    use_free_port(s);
    redis_server_restart(s, more);
    return true;
}

void redis_server_kill(struct redis_server *s) {
    if (s->pid <= 0) return;
    kill(s->pid, SIGKILL);
    waitpid(s->pid, NULL, 0);
    s->pid = 0;
    unlink(s->path);
}

void redis_server_stop(struct redis_server *s) {
    char command[128];

    redis_server_kill(s);
    snprintf(command, sizeof(command), "rm -rf '%s'", s->folder);
    if (system(command) != 0) abort();
}
