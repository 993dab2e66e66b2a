/* router/upgrade/takeover_client.c - the successor's side of a handover: see handover.h. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/net/loop.h"
#include "router/upgrade/handover_wire.h"
#include "router/upgrade/service_manager.h"

#define ANSWER_TIMEOUT_S 10 /* the predecessor's control loop may be busy */

struct takeover_client {
    int fd;
    struct loop_fd watch;
    struct loop *loop; /* NULL until takeover_client_listen */
    struct takeover_client_events events;
    bool has_index, is_ready, is_alone;
};

/* --- asking, before there is a loop ----------------------------------------------------------- */

static enum status connect_to(const char *path, int *out, struct error *err) {
    const struct timeval timeout = {.tv_sec = ANSWER_TIMEOUT_S};
    struct sockaddr_un addr;
    enum status st = handover_address(path, &addr, err);
    int fd;

    if (st != ST_OK) return st;
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0) return error_set(err, ST_IO, "--handover %s: %s", path, strerror(errno));
    if (connect(fd, (struct sockaddr *)&addr, sizeof(addr)) != 0) {
        bool is_absent = errno == ENOENT || errno == ECONNREFUSED;

        st = error_set(err, is_absent ? ST_NOT_FOUND : ST_IO, "--handover %s: %s", path,
                       strerror(errno));
        close(fd);
        return st;
    }
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    *out = fd;
    return ST_OK;
}

/* A member of 2 n hexadecimal digits. */
static enum status get_bytes(const struct json *json, const char *name, uint8_t *out, size_t n) {
    struct str text = STR_NULL;

    if (json_get_str(json, name, 2 * n, &text, NULL, NULL) != ST_OK || text.len != 2 * n)
        return ST_INVALID;
    for (size_t i = 0; i < n; i++) {
        int high = str_hex_value((unsigned char)text.ptr[2 * i]);
        int low = str_hex_value((unsigned char)text.ptr[2 * i + 1]);

        if (high < 0 || low < 0) return ST_INVALID;
        out[i] = (uint8_t)(high << 4 | low);
    }
    return ST_OK;
}

static enum status get_secrets(const struct json *json, struct handover_state *state) {
    uint8_t seed[8];

    if (get_bytes(json, "hash_seed", seed, sizeof(seed)) != ST_OK) return ST_INVALID;
    state->hash_seed = 0;
    for (size_t i = 0; i < sizeof(seed); i++)
        state->hash_seed = state->hash_seed << 8 | seed[i];
    state->has_salt_secret =
        get_bytes(json, "salt_secret", state->salt_secret, HANDOVER_SECRET_BYTES) == ST_OK;
    return ST_OK;
}

/* Takes the packet's sockets, after those of earlier packets: clients' first. */
static enum status take_sockets(struct handover_packet *p, struct handover_state *state,
                                uint32_t *n_left, struct error *err) {
    uint32_t n_client = 0, n_admin = 0;
    enum status st = get_secrets(p->json, state);

    if (st == ST_OK)
        st = json_get_u32(p->json, "n_client", 1, HANDOVER_SOCKETS_MAX, &n_client, NULL, err);
    if (st == ST_OK) st = json_get_u32(p->json, "n_admin", 0, 1, &n_admin, NULL, err);
    for (uint32_t i = 0; i < p->n_fds && st == ST_OK; i++) {
        st = service_socket_check(p->fds[i], err);
        if (st == ST_OK && state->n_client + state->n_admin >= n_client + n_admin) st = ST_INVALID;
        if (st != ST_OK) break;
        if (state->n_client < n_client) {
            state->client[state->n_client++] = p->fds[i];
        } else {
            state->admin = p->fds[i];
            state->n_admin++;
        }
        p->fds[i] = -1; /* taken */
    }
    *n_left = n_client + n_admin - state->n_client - state->n_admin;
    if (st != ST_OK && err && !err->message[0])
        (void)error_set(err, st, "the state sent by the other router is incomplete");
    return st;
}

static void close_state(struct handover_state *state) {
    for (uint32_t i = 0; i < state->n_client; i++)
        close(state->client[i]);
    if (state->n_admin) close(state->admin);
    *state = (struct handover_state){.n_client = 0};
}

static enum status receive_state(int fd, struct handover_state *state, struct error *err) {
    struct handover_packet p;
    uint32_t n_left = 1;
    enum status st;

    while (n_left) {
        st = handover_receive(fd, &p, err);
        if (st == ST_AGAIN)
            return error_set(err, ST_TIMEOUT, "the router at the socket sent nothing for %d s",
                             ANSWER_TIMEOUT_S);
        if (st != ST_OK) return st;
        if (strcmp(p.type, "busy") == 0) {
            st =
                error_set(err, ST_BUSY, "another takeover is in progress: retry when it has ended");
        } else if (strcmp(p.type, "sockets") == 0) {
            uint32_t n = p.n_fds;

            st = take_sockets(&p, state, &n_left, err);
            if (st == ST_OK && n == 0)
                st = error_set(err, ST_INVALID,
                               "the router at the socket sent no listening sockets");
        }
        handover_packet_fini(&p);
        if (st != ST_OK) return st;
    }
    return ST_OK;
}

enum status takeover_client_open(struct takeover_client **out, const char *path,
                                 struct handover_state *state, struct error *err) {
    char hello[128];
    int fd = -1, n;
    struct takeover_client *h;
    enum status st = connect_to(path, &fd, err);

    *state = (struct handover_state){.n_client = 0};
    if (st != ST_OK) return st;
    n = snprintf(hello, sizeof(hello),
                 "{\"type\":\"hello\",\"wire\":%u,\"version\":\"%s\",\"pid\":%ld}", HANDOVER_WIRE,
                 INCIPIT_VERSION, (long)getpid());
    st = handover_send(fd, (struct str){hello, (size_t)n}, NULL, 0)
             ? receive_state(fd, state, err)
             : error_set(err, ST_UNAVAILABLE, "the other router closed the connection");
    if (st != ST_OK) {
        close_state(state);
        close(fd);
        return error_prefix(err, "--handover %s", path);
    }
    h = mem_zalloc(sizeof(*h));
    h->fd = fd;
    *out = h;
    return ST_OK;
}

/* --- hearing, on the loop --------------------------------------------------------------------- */

static void become_alone(struct takeover_client *h) {
    if (h->is_alone) return;
    h->is_alone = true;
    h->has_index = true;
    loop_fd_watch(&h->watch, 0);
    h->events.on_alone(h->events.arg);
}

static void take_index(struct takeover_client *h, struct handover_packet *p) {
    if (h->has_index) return;
    h->has_index = true;
    if (p->n_fds != 1) return; /* the predecessor could not write the index */
    p->n_fds = 0;
    h->events.on_index(p->fds[0], h->events.arg);
}

static void on_readable(unsigned ready, void *arg) {
    struct takeover_client *h = arg;
    struct handover_packet p;
    enum status st = handover_receive(h->fd, &p, NULL);

    (void)ready;
    if (st == ST_AGAIN) return;
    if (st != ST_OK) {
        become_alone(h);
        return;
    }
    if (strcmp(p.type, "index") == 0) take_index(h, &p);
    if (strcmp(p.type, "leaving") == 0) become_alone(h);
    handover_packet_fini(&p);
}

void takeover_client_listen(struct takeover_client *h, struct loop *loop,
                            const struct takeover_client_events *events) {
    const struct timeval never = {0};

    h->loop = loop;
    h->events = *events;
    setsockopt(h->fd, SOL_SOCKET, SO_RCVTIMEO, &never, sizeof(never));
    loop_fd_init(&h->watch, loop, h->fd, on_readable, h);
    loop_fd_watch(&h->watch, LOOP_READ);
}

bool takeover_client_has_index(const struct takeover_client *h) {
    return h->has_index;
}

bool takeover_client_is_alone(const struct takeover_client *h) {
    return h->is_alone;
}

void takeover_client_ready(struct takeover_client *h) {
    if (h->is_ready || h->is_alone) return;
    h->is_ready = true;
    if (!handover_say(h->fd, "ready")) become_alone(h);
}

void takeover_client_close(struct takeover_client *h) {
    if (!h) return;
    if (h->loop) loop_fd_fini(&h->watch);
    close(h->fd);
    mem_free(h);
}
