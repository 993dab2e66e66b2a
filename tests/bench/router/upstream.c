/* tests/bench/router/upstream.c - the worker that costs next to nothing: what stands behind every
 * proxy that is measured.
 *
 *      upstream PORT PORT...
 *
 * One thread, one epoll, no parser to speak of. A POST is answered with 339 bytes of JSON, or, when
 * the end of its body asks for a stream, with 20 events in chunks, one per tick of 5 ms. What a
 * router asks of a worker it does not know (/health, /v1/models) is answered too.
 *
 * LIMITS. A request is at most 1 MiB; nothing is pipelined. An answer that does not fit the socket
 * at once ends the process: it is too small for that to happen. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define MAX_FDS       65536
#define REQUEST_MAX   (1u << 20)
#define N_EVENTS      20
#define TICK_NS       5000000
#define STREAM_MARK   "\"stream\":true"
#define MARK_WITHIN   96 /* bytes from the end of the body */
#define BODY_BYTES    339
#define PAYLOAD_BYTES 190

struct peer {
    bool is_listener;
    int32_t at; /* place among the streams, -1: none */
    uint32_t n_sent;
    size_t n;
    char *in;
};

static struct peer *peers;
static int streams[MAX_FDS];
static int n_streams;
static char json_answer[1024], event_chunk[512], last_chunks[1024], stream_head[256], models[512];
static size_t json_len, event_len, last_len, head_len, models_len;

static void die(const char *what) {
    perror(what);
    exit(1);
}

static void put(int fd, const char *text, size_t n) {
    ssize_t sent = send(fd, text, n, MSG_NOSIGNAL);

    if (sent >= 0 && (size_t)sent != n) die("a short send");
}

static void end_stream(struct peer *p) {
    if (p->at < 0) return;
    streams[p->at] = streams[--n_streams];
    peers[streams[p->at]].at = p->at;
    p->at = -1;
}

static void drop(int fd) {
    end_stream(&peers[fd]);
    free(peers[fd].in);
    peers[fd].in = NULL;
    close(fd);
}

static void on_tick(int timer) {
    uint64_t n;

    if (read(timer, &n, sizeof(n)) < 0) return;
    for (int i = n_streams - 1; i >= 0; i--) {
        struct peer *p = &peers[streams[i]];
        int fd = streams[i];

        if (p->n_sent == 0) put(fd, stream_head, head_len);
        if (++p->n_sent < N_EVENTS) {
            put(fd, event_chunk, event_len);
        } else {
            put(fd, last_chunks, last_len);
            end_stream(p);
        }
    }
}

static void answer(int fd, struct peer *p, const char *body, size_t body_len) {
    size_t tail = body_len < MARK_WITHIN ? body_len : MARK_WITHIN;

    if (memcmp(p->in, "GET /v1/models", 14) == 0) {
        put(fd, models, models_len);
    } else if (memcmp(p->in, "GET /health", 11) == 0) {
        put(fd, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 38);
    } else if (memcmp(p->in, "GET ", 4) == 0) {
        put(fd, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", 45);
    } else if (memmem(body + body_len - tail, tail, STREAM_MARK, strlen(STREAM_MARK))) {
        p->n_sent = 0;
        p->at = n_streams;
        streams[n_streams++] = fd;
    } else {
        put(fd, json_answer, json_len);
    }
}

static void on_bytes(int fd) {
    struct peer *p = &peers[fd];
    ssize_t n = recv(fd, p->in + p->n, REQUEST_MAX - p->n, 0);
    const char *end, *length;
    size_t body_len = 0;

    if (n <= 0) {
        drop(fd);
        return;
    }
    p->n += (size_t)n;
    end = memmem(p->in, p->n, "\r\n\r\n", 4);
    if (!end) return;
    *(char *)(uintptr_t)end = '\0'; /* put back below: the head as a string */
    length = strcasestr(p->in, "content-length:");
    if (length) body_len = (size_t)strtoul(length + 15, NULL, 10);
    *(char *)(uintptr_t)end = '\r';
    if (p->n < (size_t)(end + 4 - p->in) + body_len) return;
    answer(fd, p, end + 4, body_len);
    p->n = 0;
}

static void watch(int epoll, int fd) {
    struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};

    if (fd < 0 || fd >= MAX_FDS) die("a descriptor");
    peers[fd].at = -1;
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &e) != 0) die("epoll_ctl");
}

static void on_connection(int epoll, int listener) {
    const int on = 1;
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);

    if (fd < 0) return;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    watch(epoll, fd);
    peers[fd].is_listener = false;
    peers[fd].n = 0;
    peers[fd].in = malloc(REQUEST_MAX + 1);
    if (!peers[fd].in) die("malloc");
}

static void listen_on(int epoll, const char *port) {
    struct sockaddr_in addr = {.sin_family = AF_INET,
                               .sin_port = htons((uint16_t)atoi(port)),
                               .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int on = 1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);

    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(fd, (struct sockaddr *)&addr, sizeof(addr)) != 0 || listen(fd, 1024) != 0) die(port);
    watch(epoll, fd);
    peers[fd].is_listener = true;
}

/* `n` bytes that begin and end as given, with x between. */
static void pad(char *out, const char *begin, const char *end, size_t n) {
    memset(out, 'x', n);
    memcpy(out, begin, strlen(begin));
    memcpy(out + n - strlen(end), end, strlen(end) + 1);
}

static void make_answers(void) {
    char body[BODY_BYTES + 1], event[PAYLOAD_BYTES + 1];

    pad(body, "{\"id\":\"chatcmpl-0\",\"choices\":[{\"message\":{\"content\":\"",
        "\"}}],\"usage\":{\"prompt_tokens\":256,\"completion_tokens\":20,\"total_tokens\":276}}",
        BODY_BYTES);
    json_len = (size_t)sprintf(json_answer,
                               "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                               "Content-Length: %d\r\n\r\n%s",
                               BODY_BYTES, body);
    head_len = (size_t)sprintf(stream_head, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                                            "Transfer-Encoding: chunked\r\n\r\n");
    pad(event, "data: {\"id\":\"chatcmpl-0\",\"choices\":[{\"delta\":{\"content\":\"", "\"}}]}\n\n",
        PAYLOAD_BYTES);
    event_len = (size_t)sprintf(event_chunk, "%x\r\n%s\r\n", PAYLOAD_BYTES, event);
    last_len =
        (size_t)sprintf(last_chunks, "%s%x\r\ndata: [DONE]\n\n\r\n0\r\n\r\n", event_chunk, 14);
    models_len = (size_t)sprintf(models,
                                 "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                                 "Content-Length: 50\r\n\r\n%-50s",
                                 "{\"object\":\"list\",\"data\":[{\"id\":\"bench\"}]}");
}

int main(int argc, char **argv) {
    struct itimerspec tick = {{0, TICK_NS}, {0, TICK_NS}};
    struct epoll_event ready[512];
    int epoll = epoll_create1(0), timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);

    peers = calloc(MAX_FDS, sizeof(*peers));
    if (!peers || argc < 2) die("usage: upstream PORT...");
    make_answers();
    for (int i = 1; i < argc; i++)
        listen_on(epoll, argv[i]);
    watch(epoll, timer);
    timerfd_settime(timer, 0, &tick, NULL);
    for (;;) {
        int n = epoll_wait(epoll, ready, 512, -1);

        for (int i = 0; i < n; i++) {
            int fd = ready[i].data.fd;

            if (fd == timer) {
                on_tick(timer);
            } else if (peers[fd].is_listener) {
                on_connection(epoll, fd);
            } else {
                on_bytes(fd);
            }
        }
    }
}
