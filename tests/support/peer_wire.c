/* tests/support/peer_wire.c - see the header. */
#include "tests/support/peer_wire.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/list.h"
#include "common/base/mem.h"
#include "tests/support/cm.h"
#include "tests/support/peer_fixture.h"

#define INPUT_BYTES (PEER_FRAME_MAX + 65536u)

struct parcel {
    struct list link;
    uint64_t due_us;
    size_t n;
    uint8_t bytes[];
};

/* To one end of the connection. */
struct way {
    int fd;
    struct list parcels; /* in the order in which they are due */
};

struct passage {
    struct peer_wire *w;
    struct way to_source, to_sink;
    uint8_t *in; /* (INPUT_BYTES) of the source, less than a frame */
    size_t n_in;
    bool is_upgraded, is_ending; /* ends when what is on its way has come */
    uint64_t free_us;            /* the next frame can begin */
    struct peer_wire_frame frame;
};

/* --- what is on its way ----------------------------------------------------------------------- */

static void carry(struct way *way, const void *bytes, size_t n, uint64_t due_us) {
    struct parcel *p = mem_alloc(sizeof(*p) + n);

    p->due_us = due_us;
    p->n = n;
    memcpy(p->bytes, bytes, n);
    list_push_back(&way->parcels, &p->link);
}

static void carry_to_sink(struct passage *p, const void *bytes, size_t n) {
    const struct peer_wire *w = p->w;

    p->free_us = MAX(p->free_us, clock_now_us());
    if (w->bytes_per_s > 0) p->free_us += (uint64_t)((double)n / w->bytes_per_s * 1e6);
    carry(&p->to_sink, bytes, n, p->free_us + w->delay_us);
}

static bool send_all(int fd, const uint8_t *bytes, size_t n) {
    while (n > 0) {
        ssize_t k = send(fd, bytes, n, MSG_NOSIGNAL);

        if (k <= 0) return false;
        bytes += k;
        n -= (size_t)k;
    }
    return true;
}

/* Sends what is due. False: that end is gone. */
static bool deliver(struct way *way, uint64_t now_us) {
    while (!list_is_empty(&way->parcels)) {
        struct parcel *p = LIST_ENTRY(list_first(&way->parcels), struct parcel, link);
        bool is_sent;

        if (p->due_us > now_us) return true;
        is_sent = send_all(way->fd, p->bytes, p->n);
        list_remove(&p->link);
        mem_free(p);
        if (!is_sent) return false;
    }
    return true;
}

static uint64_t due_us(const struct way *way) {
    if (list_is_empty(&way->parcels)) return UINT64_MAX;
    return LIST_ENTRY(list_first(&way->parcels), struct parcel, link)->due_us;
}

static void discard(struct way *way) {
    struct list *link;

    while ((link = list_pop_front(&way->parcels)) != NULL)
        mem_free(LIST_ENTRY(link, struct parcel, link));
}

/* --- what comes ------------------------------------------------------------------------------- */

/* The next whole frame of the input, or the 101; 0: there is none. */
static size_t next_piece(const struct passage *p) {
    const uint8_t *end;
    uint32_t length;

    if (!p->is_upgraded) {
        end = memmem(p->in, p->n_in, "\r\n\r\n", 4);
        return end ? (size_t)(end - p->in) + 4 : 0;
    }
    if (p->n_in < PEER_HEAD_BYTES) return 0;
    memcpy(&length, p->in, sizeof(length));
    return length <= p->n_in ? length : 0;
}

static void take_frame(struct passage *p, const uint8_t *bytes, size_t n) {
    const struct peer_wire *w = p->w;

    p->frame.n = n;
    memcpy(p->frame.bytes, bytes, n);
    if (w->alter && !w->alter(w->arg, &p->frame)) p->is_ending = true;
    if (p->frame.n > 0) carry_to_sink(p, p->frame.bytes, p->frame.n);
}

static void take_input(struct passage *p) {
    ssize_t got = recv(p->to_source.fd, p->in + p->n_in, INPUT_BYTES - p->n_in, 0);
    size_t n;

    if (got <= 0) {
        p->is_ending = true;
        return;
    }
    p->n_in += (size_t)got;
    while (!p->is_ending && (n = next_piece(p)) > 0) {
        if (p->is_upgraded) {
            take_frame(p, p->in, n);
        } else {
            carry_to_sink(p, p->in, n);
            p->is_upgraded = true;
        }
        p->n_in -= n;
        memmove(p->in, p->in + n, p->n_in);
    }
}

/* False: the sink is gone. */
static bool take_questions(struct passage *p) {
    uint8_t bytes[8192];
    ssize_t got = recv(p->to_sink.fd, bytes, sizeof(bytes), 0);

    if (got <= 0) return false;
    carry(&p->to_source, bytes, (size_t)got, clock_now_us() + p->w->delay_us);
    return true;
}

/* --- one connection --------------------------------------------------------------------------- */

/* Until one end has gone, or the wire is closed. */
static void pass(struct passage *p) {
    for (;;) {
        struct pollfd fds[3] = {{.fd = p->w->stop[0], .events = POLLIN},
                                {.fd = p->to_sink.fd, .events = POLLIN},
                                {.fd = p->is_ending ? -1 : p->to_source.fd, .events = POLLIN}};
        uint64_t now_us = clock_now_us(), next_us;
        struct timespec wait;

        if (!deliver(&p->to_sink, now_us)) return;
        if (!p->is_ending && !deliver(&p->to_source, now_us)) p->is_ending = true;
        if (p->is_ending && list_is_empty(&p->to_sink.parcels)) return;
        next_us = MIN(due_us(&p->to_sink), p->is_ending ? UINT64_MAX : due_us(&p->to_source));
        next_us = next_us > now_us ? MIN(next_us - now_us, 60000000u) : 0;
        wait = (struct timespec){(time_t)(next_us / 1000000), (long)(next_us % 1000000) * 1000};
        if (ppoll(fds, 3, &wait, NULL) <= 0) continue;
        if (fds[0].revents) return;
        if (fds[1].revents && !take_questions(p)) return;
        if (fds[2].revents) take_input(p);
    }
}

static int dial(const struct tier_source *source) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;

    at.sin_port = htons((uint16_t)atoi(strchr(source->authority, ':') + 1));
    if (fd >= 0 && connect(fd, (struct sockaddr *)&at, sizeof(at)) != 0) {
        close(fd);
        return -1;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    return fd;
}

static void join(struct peer_wire *w, struct passage *p, int sink) {
    int source = dial(w->behind), on = 1;

    setsockopt(sink, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    p->to_sink.fd = sink;
    p->to_source.fd = source;
    p->n_in = 0;
    p->is_upgraded = p->is_ending = false;
    p->free_us = 0;
    if (source >= 0) {
        pass(p);
        close(source);
    }
    discard(&p->to_sink);
    discard(&p->to_source);
    close(sink);
}

static void *wire_main(void *arg) {
    struct peer_wire *w = arg;
    struct passage *p = mem_zalloc(sizeof(*p));
    struct pollfd fds[2] = {{.fd = w->stop[0], .events = POLLIN},
                            {.fd = w->listener, .events = POLLIN}};

    p->w = w;
    p->in = mem_alloc(INPUT_BYTES);
    list_init(&p->to_sink.parcels);
    list_init(&p->to_source.parcels);
    while (poll(fds, 2, -1) > 0 && !fds[0].revents) {
        int sink = accept4(w->listener, NULL, NULL, SOCK_CLOEXEC);

        if (sink >= 0) join(w, p, sink);
    }
    mem_free(p->in);
    mem_free(p);
    return NULL;
}

void peer_wire_open(struct peer_wire *w) {
    w->listener = peer_listen(&w->source);
    assert_int_equal(pipe(w->stop), 0);
    assert_int_equal(pthread_create(&w->thread, NULL, wire_main, w), 0);
}

void peer_wire_close(struct peer_wire *w) {
    close(w->stop[1]); /* its other end becomes readable, for good */
    pthread_join(w->thread, NULL);
    close(w->stop[0]);
    close(w->listener);
}
