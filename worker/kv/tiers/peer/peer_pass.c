/* worker/kv/tiers/peer/peer_pass.c - see the header. */
#include "worker/kv/tiers/peer/peer_pass.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The control data of a message: who sent it, and a descriptor. More of it is cut off, and
 * descriptors that do not fit are closed by the kernel. */
union control {
    char bytes[CMSG_SPACE(sizeof(struct ucred)) + CMSG_SPACE(sizeof(int))];
    struct cmsghdr align;
};

/* --- sockets ---------------------------------------------------------------------------------- */

static socklen_t name_of(uint64_t generation, struct sockaddr_un *out) {
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    snprintf(out->sun_path + 1, sizeof(out->sun_path) - 1, "incipit-kv-%016llx",
             (unsigned long long)generation);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(out->sun_path + 1));
}

/* With a name, of its own choice or the kernel's: who has none gets no answer. */
static enum status make(const struct sockaddr_un *name, socklen_t n, int *out, struct error *err) {
    int on = 1, fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) == 0 &&
        bind(fd, (const struct sockaddr *)name, n) == 0) {
        *out = fd;
        return ST_OK;
    }
    error_set(err, ST_IO, "cannot open a unix socket: %s", strerror(errno));
    if (fd >= 0) close(fd);
    return ST_IO;
}

enum status peer_pass_listen(uint64_t generation, int *out, struct error *err) {
    struct sockaddr_un name;
    socklen_t n = name_of(generation, &name);

    return make(&name, n, out, err);
}

enum status peer_pass_dial(uint64_t generation, int *out, struct error *err) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    enum status st = make(&name, sizeof(name.sun_family), out, err);
    socklen_t n = name_of(generation, &name);

    if (st != ST_OK || connect(*out, (const struct sockaddr *)&name, n) == 0) return st;
    st = errno == ECONNREFUSED ? ST_UNAVAILABLE : ST_IO;
    error_set(err, st, "cannot reach its unix socket: %s", strerror(errno));
    close(*out);
    *out = -1;
    return st;
}

/* --- messages --------------------------------------------------------------------------------- */

enum status peer_pass_send(int socket, const struct peer_pass_text *text, int fd,
                           const struct peer_pass *to) {
    struct iovec piece = {(void *)(uintptr_t)text, sizeof(*text)};
    struct msghdr m = {.msg_iov = &piece, .msg_iovlen = 1};
    union control control;

    if (to) {
        m.msg_name = (void *)(uintptr_t)&to->from;
        m.msg_namelen = to->from_len;
    }
    if (fd >= 0) {
        struct cmsghdr *c;

        memset(&control, 0, sizeof(control));
        m.msg_control = &control;
        m.msg_controllen = CMSG_SPACE(sizeof(fd));
        c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(fd));
        memcpy(CMSG_DATA(c), &fd, sizeof(fd));
    }
    if (sendmsg(socket, &m, MSG_NOSIGNAL) == (ssize_t)sizeof(*text)) return ST_OK;
    return errno == EAGAIN || errno == ENOBUFS ? ST_BUSY : ST_IO;
}

/* Room for one is room for two: CMSG_SPACE rounds up. */
static void take_descriptors(const struct cmsghdr *c, struct peer_pass *out) {
    size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

    for (size_t i = 0; i < n; i++) {
        int fd;

        memcpy(&fd, CMSG_DATA(c) + i * sizeof(fd), sizeof(fd));
        if (out->fd < 0) {
            out->fd = fd;
        } else {
            close(fd);
        }
    }
}

static bool take_control(struct msghdr *m, struct peer_pass *out) {
    bool has_uid = false;

    for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
        struct ucred who;

        if (c->cmsg_level != SOL_SOCKET) continue;
        if (c->cmsg_type == SCM_CREDENTIALS) {
            memcpy(&who, CMSG_DATA(c), sizeof(who));
            out->uid = who.uid;
            has_uid = true;
        } else if (c->cmsg_type == SCM_RIGHTS) {
            take_descriptors(c, out);
        }
    }
    return has_uid;
}

/* Without room for descriptors the kernel drops them; to close one may mean to wait for its
 * sender. */
static enum status receive(int socket, int flags, bool takes_fd, struct peer_pass *out) {
    struct iovec piece = {&out->text, sizeof(out->text)};
    union control control;
    struct msghdr m = {.msg_name = &out->from,
                       .msg_namelen = sizeof(out->from),
                       .msg_iov = &piece,
                       .msg_iovlen = 1,
                       .msg_control = &control,
                       .msg_controllen =
                           takes_fd ? sizeof(control) : CMSG_SPACE(sizeof(struct ucred))};
    ssize_t n;

    out->fd = -1;
    n = recvmsg(socket, &m, flags | MSG_CMSG_CLOEXEC);
    if (n < 0) return errno == EAGAIN || errno == EINTR ? ST_AGAIN : ST_IO;
    out->from_len = m.msg_namelen;
    if (take_control(&m, out) && n == (ssize_t)sizeof(out->text) && !(m.msg_flags & MSG_TRUNC))
        return ST_OK;
    if (out->fd >= 0) close(out->fd);
    out->fd = -1;
    return ST_INVALID;
}

/* Who sent it is known before its descriptor is taken. */
enum status peer_pass_receive(int socket, uid_t fds_of, struct peer_pass *out) {
    enum status st = ST_INVALID;

    if (fds_of != PEER_PASS_NOBODY) {
        st = receive(socket, MSG_PEEK, false, out);
        if (st != ST_OK && st != ST_INVALID) return st;
    }
    return receive(socket, 0, st == ST_OK && out->uid == fds_of, out);
}
