/* router/upgrade/handover.c - the predecessor's side of a handover: see handover.h. */
#include "router/upgrade/handover.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/net/loop.h"
#include "common/telemetry/log.h"
#include "router/upgrade/handover_wire.h"
#include "router/upgrade/snapshot.h"

#define PIECE_PAUSE_US 1000u /* pause between pieces of the index */

struct handover {
    struct loop *loop;
    struct handover_config config;
    int fd;
    struct loop_fd watch;
    struct stat file; /* the socket file's, at its creation */
    /* The current successor, if takeover_client_fd >= 0. */
    int takeover_client_fd, index_fd;
    struct loop_fd takeover_client_watch;
    struct loop_timer timer;
    struct snapshot_writer *writer;
};

/* --- the successor that is being made --------------------------------------------------------- */

static void stop_writing(struct handover *h) {
    loop_timer_stop(&h->timer);
    snapshot_writer_destroy(h->writer);
    h->writer = NULL;
    if (h->index_fd >= 0) close(h->index_fd);
    h->index_fd = -1;
}

static void drop_client(struct handover *h) {
    if (h->takeover_client_fd < 0) return;
    stop_writing(h);
    loop_fd_fini(&h->takeover_client_watch);
    close(h->takeover_client_fd);
    h->takeover_client_fd = -1;
}

static void give_up(struct handover *h, const char *why) {
    log_event(h->config.log, LOG_WARN, "handover_failed", log_z("why", why));
    drop_client(h);
}

static void put_hex(struct json_writer *w, const char *name, const uint8_t *bytes, size_t n) {
    static const char digits[] = "0123456789abcdef";
    char text[2 * HANDOVER_SECRET_BYTES];

    for (size_t i = 0; i < n; i++) {
        text[2 * i] = digits[bytes[i] >> 4];
        text[2 * i + 1] = digits[bytes[i] & 15];
    }
    json_field_str(w, name, (struct str){text, 2 * n});
}

/* Members of each packet of sockets. */
static void put_state(struct buf *out, const struct handover_state *g) {
    struct json_writer w;
    uint8_t seed[8];

    for (size_t i = 0; i < sizeof(seed); i++)
        seed[i] = (uint8_t)(g->hash_seed >> (56 - 8 * i));
    json_writer_init(&w, out);
    json_begin_object(&w);
    json_field_z(&w, "type", "sockets");
    json_field_u64(&w, "wire", HANDOVER_WIRE);
    json_field_z(&w, "version", INCIPIT_VERSION);
    put_hex(&w, "hash_seed", seed, sizeof(seed));
    if (g->has_salt_secret) put_hex(&w, "salt_secret", g->salt_secret, HANDOVER_SECRET_BYTES);
    json_field_u64(&w, "n_client", g->n_client);
    json_field_u64(&w, "n_admin", g->n_admin);
    json_end_object(&w);
}

static bool send_sockets(struct handover *h) {
    const struct handover_state *g = &h->config.state;
    uint32_t n = g->n_client + g->n_admin, n_packet;
    bool is_sent = true;
    struct buf text;

    buf_init(&text, HANDOVER_BYTES_MAX);
    put_state(&text, g);
    for (uint32_t from = 0; from < n && is_sent; from += n_packet) {
        int fds[HANDOVER_PACKET_FDS];

        n_packet = MIN(n - from, HANDOVER_PACKET_FDS);
        for (uint32_t i = 0; i < n_packet; i++)
            fds[i] = from + i < g->n_client ? g->client[from + i] : g->admin;
        is_sent = handover_send(h->takeover_client_fd, buf_str(&text), fds, n_packet);
    }
    buf_fini(&text);
    return is_sent;
}

static void on_piece(void *arg) {
    struct handover *h = arg;
    struct error err = {0};
    enum status st = snapshot_writer_step(h->writer, &err);
    bool is_sent;

    if (st == ST_AGAIN) {
        loop_timer_start(&h->timer, PIECE_PAUSE_US);
        return;
    }
    if (st != ST_OK) {
        log_event(h->config.log, LOG_WARN, "index_not_saved", log_z("why", err.message));
    }
    is_sent = handover_send(h->takeover_client_fd, STR("{\"type\":\"index\"}"), &h->index_fd,
                            st == ST_OK);
    stop_writing(h);
    if (!is_sent) give_up(h, "the successor does not listen");
}

static void begin_writing(struct handover *h) {
    h->index_fd = memfd_create("incipit-index", MFD_CLOEXEC);
    if (h->index_fd < 0) {
        (void)!handover_say(h->takeover_client_fd, "index");
        return;
    }
    h->writer = snapshot_writer_create(&h->config.index, h->index_fd);
    loop_timer_start(&h->timer, 0);
}

static void begin(struct handover *h, const struct handover_packet *p) {
    struct str version = STR("unknown");
    uint64_t pid = 0;

    (void)!json_get_str(p->json, "version", 32, &version, NULL, NULL);
    (void)!json_get_u64(p->json, "pid", 0, UINT32_MAX, &pid, NULL, NULL);
    log_event(h->config.log, LOG_INFO, "handover_begun", log_u64("pid", pid),
              log_str("version", version));
    if (!send_sockets(h)) {
        give_up(h, "the successor does not listen");
        return;
    }
    begin_writing(h);
}

static void succeed(struct handover *h) {
    bool is_sent = handover_say(h->takeover_client_fd, "leaving");

    (void)is_sent; /* the successor accepts and is the router from now on */
    drop_client(h);
    loop_fd_fini(&h->watch);
    close(h->fd);
    h->fd = -1;
    h->config.on_succeeded(h->config.arg); /* may close h */
}

static void on_successor(unsigned ready, void *arg) {
    struct handover *h = arg;
    struct handover_packet p;
    struct error err = {0};
    enum status st = handover_receive(h->takeover_client_fd, &p, &err);
    bool is_hello, is_ready;

    (void)ready;
    if (st == ST_AGAIN) return;
    if (st != ST_OK) {
        give_up(h, st == ST_UNAVAILABLE ? "the successor went before it was ready" : err.message);
        return;
    }
    is_hello = strcmp(p.type, "hello") == 0;
    is_ready = strcmp(p.type, "ready") == 0;
    if (is_hello && !h->writer) begin(h, &p);
    handover_packet_fini(&p);
    if (is_ready) succeed(h);
}

/* --- who asks --------------------------------------------------------------------------------- */

static bool is_trusted(int fd) {
    struct ucred who = {0};
    socklen_t n = sizeof(who);

    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) == 0 &&
           (who.uid == geteuid() || who.uid == 0);
}

static void on_connection(unsigned ready, void *arg) {
    struct handover *h = arg;
    int fd = accept4(h->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    (void)ready;
    if (fd < 0) return;
    if (!is_trusted(fd) || h->takeover_client_fd >= 0) {
        (void)!handover_say(fd, "busy");
        close(fd);
        return;
    }
    h->takeover_client_fd = fd;
    loop_fd_init(&h->takeover_client_watch, h->loop, fd, on_successor, h);
    loop_fd_watch(&h->takeover_client_watch, LOOP_READ);
}

/* --- the socket ------------------------------------------------------------------------------- */

/* A user who may write to the folder could replace the socket and receive everything. */
static enum status check_folder(const char *path, struct error *err) {
    char folder[PATH_MAX];
    struct stat sb;
    char *slash;

    snprintf(folder, sizeof(folder), "%s", path);
    slash = strrchr(folder, '/');
    if (!slash) {
        snprintf(folder, sizeof(folder), ".");
    } else {
        slash[slash == folder] = '\0';
    }
    if (stat(folder, &sb) != 0)
        return error_set(err, ST_IO, "--handover %s: %s", path, strerror(errno));
    if (sb.st_uid != geteuid() || (sb.st_mode & (S_IWGRP | S_IWOTH))) {
        return error_set(err, ST_INVALID,
                         "--handover %s: other users may write to %s and replace this router: use "
                         "a folder of this user with mode 700",
                         path, folder);
    }
    return ST_OK;
}

/* Creates the socket under a temporary name and renames it, so that it appears at `path`
 * complete. */
static enum status bind_to(struct handover *h, const char *path, struct error *err) {
    char fresh[PATH_MAX];
    struct sockaddr_un addr;
    enum status st;

    snprintf(fresh, sizeof(fresh), "%s.%ld", path, (long)getpid());
    st = handover_address(fresh, &addr, err);
    if (st != ST_OK) return st;
    (void)!unlink(fresh);
    if (bind(h->fd, (struct sockaddr *)&addr, sizeof(addr)) != 0)
        return error_set(err, ST_IO, "--handover %s: %s", path, strerror(errno));
    if (chmod(fresh, 0600) != 0 || listen(h->fd, 4) != 0 || rename(fresh, path) != 0 ||
        stat(path, &h->file) != 0) {
        st = error_set(err, ST_IO, "--handover %s: %s", path, strerror(errno));
        unlink(fresh);
    }
    return st;
}

enum status handover_open(struct handover **out, struct loop *loop,
                          const struct handover_config *config, struct error *err) {
    enum status st = check_folder(config->path, err);
    struct handover *h;

    if (st != ST_OK) return st;
    h = mem_zalloc(sizeof(*h));
    h->loop = loop;
    h->config = *config;
    h->takeover_client_fd = h->index_fd = -1;
    loop_timer_init(&h->timer, loop, on_piece, h);
    h->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (h->fd < 0) {
        st = error_set(err, ST_IO, "--handover %s: %s", config->path, strerror(errno));
    } else {
        loop_fd_init(&h->watch, loop, h->fd, on_connection, h);
        st = bind_to(h, config->path, err);
    }
    if (st != ST_OK) {
        handover_close(h);
        return st;
    }
    loop_fd_watch(&h->watch, LOOP_READ);
    *out = h;
    return ST_OK;
}

/* Unless a successor has replaced it. */
static void remove_file(const struct handover *h) {
    struct stat now;

    if (stat(h->config.path, &now) == 0 && now.st_ino == h->file.st_ino &&
        now.st_dev == h->file.st_dev)
        unlink(h->config.path);
}

void handover_close(struct handover *h) {
    if (!h) return;
    drop_client(h);
    loop_timer_fini(&h->timer);
    if (h->fd >= 0) {
        remove_file(h);
        loop_fd_fini(&h->watch);
        close(h->fd);
    }
    mem_free(h);
}
