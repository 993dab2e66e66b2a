/* router/upgrade/handover_wire.c - sendmsg and recvmsg with control messages. */
#include "router/upgrade/handover_wire.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/mem.h"

union control { /* aligned as the system wants it */
    struct cmsghdr header;
    char bytes[CMSG_SPACE(HANDOVER_PACKET_FDS * sizeof(int))];
};

enum status handover_address(const char *path, struct sockaddr_un *addr, struct error *err) {
    size_t n = strlen(path);

    *addr = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (n == 0 || n >= sizeof(addr->sun_path)) {
        return error_set(err, ST_INVALID, "--handover %s: invalid socket path: use 1 to %zu bytes",
                         path, sizeof(addr->sun_path) - 1);
    }
    memcpy(addr->sun_path, path, n);
    return ST_OK;
}

static void take_fds(struct msghdr *msg, struct handover_packet *p) {
    for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
        size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
        memcpy(p->fds, CMSG_DATA(c), n * sizeof(int));
        p->n_fds = (uint32_t)n;
    }
}

void handover_packet_fini(struct handover_packet *p) {
    for (uint32_t i = 0; i < p->n_fds; i++) {
        if (p->fds[i] >= 0) close(p->fds[i]);
    }
    json_destroy(p->json);
    *p = (struct handover_packet){.n_fds = 0};
}

enum status handover_receive(int fd, struct handover_packet *p, struct error *err) {
    char text[HANDOVER_BYTES_MAX];
    union control control;
    struct iovec iov = {text, sizeof(text)};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.bytes,
                         .msg_controllen = sizeof(control.bytes)};
    struct str type = STR_NULL;
    ssize_t n = recvmsg(fd, &msg, MSG_CMSG_CLOEXEC);

    *p = (struct handover_packet){.n_fds = 0};
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return ST_AGAIN;
    if (n <= 0) return error_set(err, ST_UNAVAILABLE, "the other router closed the connection");
    take_fds(&msg, p);
    if ((msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) ||
        json_parse(&p->json, (struct str){text, (size_t)n}, NULL, NULL) != ST_OK ||
        json_type(p->json) != JSON_OBJECT ||
        json_get_str(p->json, "type", sizeof(p->type) - 1, &type, NULL, NULL) != ST_OK) {
        handover_packet_fini(p);
        return error_set(err, ST_INVALID, "invalid message from the other router");
    }
    if (type.len) memcpy(p->type, type.ptr, type.len);
    return ST_OK;
}

bool handover_send(int fd, struct str json, const int *fds, uint32_t n_fds) {
    union control control = {.bytes = {0}};
    struct iovec iov = {(void *)(uintptr_t)json.ptr, json.len};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    struct cmsghdr *c;

    if (n_fds) {
        msg.msg_control = control.bytes;
        msg.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
        c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
        memcpy(CMSG_DATA(c), fds, n_fds * sizeof(int));
    }
    return sendmsg(fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)json.len;
}

bool handover_say(int fd, const char *type) {
    char text[64];
    int n = snprintf(text, sizeof(text), "{\"type\":\"%s\"}", type);

    return handover_send(fd, (struct str){text, (size_t)n}, NULL, 0);
}
