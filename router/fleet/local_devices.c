/* router/fleet/local_devices.c - see local_devices.h. The list comes through a pipe; the program's
 * stderr is ours. */
#include "router/fleet/local_devices.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/text/json.h"
#include "router/fleet/supervisor.h"

#define ANSWER_MAX_BYTES (64u << 10)
#define ANSWER_MAX_DEPTH 8

static enum status read_device(struct local_device *d, const struct json *v, struct error *err) {
    struct str uuid = STR_NULL, name = STR_NULL;
    uint32_t index = 0;
    enum status st;

    if (json_type(v) != JSON_OBJECT) return error_set(err, ST_INVALID, "a device is not an object");
    st = json_get_u32(v, "index", 0, UINT32_MAX, &index, NULL, err);

    if (st == ST_OK) st = json_get_str(v, "uuid", sizeof(d->id) - 1, &uuid, NULL, err);
    if (st == ST_OK) st = json_get_str(v, "name", sizeof(d->name) - 1, &name, NULL, err);
    if (st != ST_OK) return st;
    if (uuid.len > 0)
        snprintf(d->id, sizeof(d->id), "%.*s", STR_ARG(uuid));
    else
        snprintf(d->id, sizeof(d->id), "%u", index);
    snprintf(d->name, sizeof(d->name), "%.*s", STR_ARG(name));
    return ST_OK;
}

static enum status read_devices(struct local_devices *out, const struct json *root,
                                struct error *err) {
    const struct json *list = json_get(root, "devices");
    struct local_devices found = {0};
    enum status st = ST_OK;

    if (json_type(list) != JSON_ARRAY)
        return error_set(err, ST_INVALID, "the output has no list of devices");
    JSON_FOR_EACH(v, list) {
        if (found.n == LOCAL_DEVICES_MAX)
            return error_set(err, ST_TOO_LARGE, "more than %u devices", LOCAL_DEVICES_MAX);
        st = read_device(&found.device[found.n++], v, err);
        if (st != ST_OK) return st;
    }
    *out = found;
    return ST_OK;
}

enum status local_devices_parse(struct local_devices *out, struct str text, struct error *err) {
    struct json_limits limits = {.max_bytes = ANSWER_MAX_BYTES, .max_depth = ANSWER_MAX_DEPTH};
    struct json *root;
    enum status st = json_parse(&root, text, &limits, err);

    if (st != ST_OK) return st;
    st = read_devices(out, root, err);
    json_destroy(root);
    return st;
}

static enum status start(pid_t *pid, int *fd, const char *program, char *const *argv,
                         struct error *err) {
    posix_spawn_file_actions_t actions;
    char **environment = supervisor_environment();
    int ends[2], code;

    if (pipe2(ends, O_CLOEXEC) != 0) {
        code = errno;
        mem_free(environment);
        return error_set(err, ST_IO, "cannot run '%s devices': %s", program, strerror(code));
    }
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    code = posix_spawn(pid, program, &actions, NULL, argv, environment);
    posix_spawn_file_actions_destroy(&actions);
    mem_free(environment);
    close(ends[1]);
    if (code == 0) {
        *fd = ends[0];
        return ST_OK;
    }
    close(ends[0]);
    return error_set(
        err, code == ENOENT ? ST_NOT_FOUND : ST_IO,
        "cannot run '%s devices': %s: build it with make, or give its path with --worker-program",
        program, strerror(code));
}

/* Until the other side closes. */
static enum status read_all(int fd, struct buf *out, uint64_t until_us) {
    char piece[4096];
    ssize_t n;

    for (;;) {
        uint64_t now_us = clock_now_us();
        struct pollfd p = {.fd = fd, .events = POLLIN};

        if (now_us >= until_us) return ST_TIMEOUT;
        if (poll(&p, 1, (int)((until_us - now_us) / 1000) + 1) <= 0) continue;
        n = read(fd, piece, sizeof(piece));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n == 0 ? ST_OK : ST_IO;
        buf_append(out, piece, (size_t)n);
        if (out->has_failed) return ST_TOO_LARGE;
    }
}

static enum status ask(struct local_devices *out, const char *program, char *const *argv,
                       uint32_t timeout_ms, struct error *err) {
    struct buf answer;
    int fd = -1, wait_status = 0;
    pid_t pid;
    enum status st = start(&pid, &fd, program, argv, err), got;

    if (st != ST_OK) return st;
    buf_init(&answer, ANSWER_MAX_BYTES);
    got = read_all(fd, &answer, clock_now_us() + timeout_ms * 1000ull);
    close(fd);
    if (got != ST_OK) kill(pid, SIGKILL);
    while (waitpid(pid, &wait_status, 0) < 0 && errno == EINTR) {
    }
    if (got == ST_TIMEOUT) {
        st = error_set(
            err, ST_TIMEOUT,
            "'%s devices' did not end within %u s: give the number of workers with --launch N",
            program, timeout_ms / 1000);
    } else if (got != ST_OK) {
        st = error_set(err, got, "cannot parse the output of '%s devices'", program);
    } else {
        st = local_devices_parse(out, buf_str(&answer), err);
        if (st != ST_OK)
            error_prefix(err, "%s devices --json ended with status %d, and its answer", program,
                         WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : -1);
    }
    buf_fini(&answer);
    return st;
}

enum status local_devices_ask(struct local_devices *out, const char *program,
                              const char *const *args, uint32_t timeout_ms, struct error *err) {
    uint32_t n_args = 0, n = 0;
    char **argv, *own = mem_strdup(program);
    enum status st;

    while (args[n_args])
        n_args++;
    argv = mem_calloc(n_args + 4, sizeof(*argv));
    argv[n++] = own;
    argv[n++] = mem_strdup("devices");
    argv[n++] = mem_strdup("--json");
    for (uint32_t i = 0; i < n_args; i++)
        argv[n++] = mem_strdup(args[i]);
    st = ask(out, program, argv, timeout_ms, err);
    for (uint32_t i = 0; i < n; i++)
        mem_free(argv[i]);
    mem_free(argv);
    return st;
}
