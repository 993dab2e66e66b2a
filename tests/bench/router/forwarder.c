/* tests/bench/router/forwarder.c - the bare forwarder: what a proxied request costs when nothing is
 * done to it. It stands beside the proxies that are measured, as their floor.
 *
 *      forwarder PORT WORKER_PORT...
 *
 *      client ── recv until content-length is there ──▶ buffer ── send ──▶ worker
 *      client ◀────────────── send what was received ──────────────────── worker
 *
 * One thread, one epoll, edge-triggered. Each client has a worker connection of its own. A request
 * is kept until it is whole, as a proxy must that routes by the body, in a buffer of a stack of
 * them: the one used last is the next. Answers pass as they come. There is no parser, no log, no
 * timer, no limit.
 *
 * LIMITS. A request is at most 1 MiB; nothing is pipelined. A client that reads no answers ends the
 * process. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAX_FDS       65536
#define REQUEST_BYTES (1u << 20)
#define ANSWER_BYTES  65536

enum kind { IS_NONE, IS_LISTENER, IS_CLIENT, IS_WORKER };

struct peer {
    enum kind kind;
    int other; /* of a client its worker, of a worker its client */
    /* Of a client, while a request is here. */
    char *request;
    size_t n, total, sent;
};

static struct peer *peers;
static char *spares[MAX_FDS];
static uint32_t n_spares;
static uint16_t workers[64];
static uint32_t n_workers;
static int epoll;

static void die(const char *what) {
    perror(what);
    exit(1);
}

static void watch(int fd, enum kind kind, int other) {
    struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};

    if (fd < 0 || fd >= MAX_FDS) die("a descriptor");
    peers[fd] = (struct peer){.kind = kind, .other = other};
    if (kind != IS_LISTENER) e.events |= EPOLLOUT | EPOLLET;
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &e) != 0) die("epoll_ctl");
}

static char *take_buffer(void) {
    char *buffer = n_spares ? spares[--n_spares] : malloc(REQUEST_BYTES);

    if (!buffer) die("malloc");
    return buffer;
}

static void give_back(struct peer *client) {
    if (client->request) spares[n_spares++] = client->request;
    client->request = NULL;
    client->n = client->total = client->sent = 0;
}

static void drop(int fd) {
    int other = peers[fd].other;

    give_back(&peers[fd]);
    give_back(&peers[other]);
    close(fd);
    close(other);
    peers[fd].kind = peers[other].kind = IS_NONE;
}

/* What is left of the request, to its worker; epoll reports room for more. */
static void send_on(struct peer *client) {
    ssize_t n = send(client->other, client->request + client->sent, client->n - client->sent,
                     MSG_NOSIGNAL | MSG_DONTWAIT);

    if (n < 0 && errno != EAGAIN) die("send to a worker");
    if (n > 0) client->sent += (size_t)n;
    if (client->sent == client->n) give_back(client);
}

/* Head and body together; 0: the head is not whole yet. */
static size_t request_bytes(struct peer *client) {
    char *end = memmem(client->request, client->n, "\r\n\r\n", 4), *length;
    size_t body = 0;

    if (!end) return 0;
    *end = '\0'; /* put back below: the head as a string */
    length = strcasestr(client->request, "content-length:");
    if (length) body = (size_t)strtoul(length + 15, NULL, 10);
    *end = '\r';
    return (size_t)(end + 4 - client->request) + body;
}

static bool is_whole(const struct peer *client) {
    return client->total && client->n >= client->total;
}

static void on_client(int fd) {
    struct peer *client = &peers[fd];
    ssize_t n;

    if (is_whole(client)) return; /* its worker takes the rest first */
    if (!client->request) client->request = take_buffer();
    n = recv(fd, client->request + client->n, REQUEST_BYTES - client->n, MSG_DONTWAIT);
    if (n <= 0) {
        if (client->n == 0) give_back(client);
        if (n == 0 || errno != EAGAIN) drop(fd);
        return;
    }
    client->n += (size_t)n;
    if (!client->total) client->total = request_bytes(client);
    if (is_whole(client)) send_on(client);
}

static void on_worker(int fd, uint32_t events) {
    static char answer[ANSWER_BYTES];
    struct peer *client = &peers[peers[fd].other];
    ssize_t n;

    if (events & EPOLLOUT && is_whole(client)) send_on(client);
    if (!(events & ~(uint32_t)EPOLLOUT)) return;
    while ((n = recv(fd, answer, sizeof(answer), MSG_DONTWAIT)) > 0) {
        if (send(peers[fd].other, answer, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT) != n)
            die("send to a client");
        if (n < ANSWER_BYTES) return;
    }
    if (n == 0 || errno != EAGAIN) drop(fd);
}

static int open_socket(void) {
    const int on = 1;
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    if (fd < 0) die("socket");
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    return fd;
}

static struct sockaddr_in address(uint16_t port) {
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

/* The worker is on this machine: connecting to it does not wait. */
static int open_worker(void) {
    static uint32_t next;
    struct sockaddr_in addr = address(workers[next++ % n_workers]);
    int fd = open_socket();

    if (connect(fd, (struct sockaddr *)&addr, sizeof(addr)) != 0) die("connect to a worker");
    return fd;
}

static void on_connection(int listener) {
    const int on = 1;
    int client = accept(listener, NULL, NULL), worker;

    if (client < 0) return;
    setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    worker = open_worker();
    watch(client, IS_CLIENT, worker);
    watch(worker, IS_WORKER, client);
}

static void listen_on(uint16_t port) {
    struct sockaddr_in addr = address(port);
    int fd = open_socket();

    if (bind(fd, (struct sockaddr *)&addr, sizeof(addr)) != 0 || listen(fd, 4096) != 0)
        die("listen");
    watch(fd, IS_LISTENER, 0);
}

static void on_ready(int fd, uint32_t events) {
    switch (peers[fd].kind) {
    case IS_LISTENER: on_connection(fd); break;
    case IS_CLIENT:
        if (events & ~(uint32_t)EPOLLOUT) on_client(fd);
        break;
    case IS_WORKER: on_worker(fd, events); break;
    case IS_NONE: break; /* closed with its other in this turn */
    }
}

int main(int argc, char **argv) {
    struct epoll_event ready[512];

    epoll = epoll_create1(0);
    peers = calloc(MAX_FDS, sizeof(*peers));
    if (!peers || argc < 3 || argc > 66) die("usage: forwarder PORT WORKER_PORT...");
    for (int i = 2; i < argc; i++)
        workers[n_workers++] = (uint16_t)atoi(argv[i]);
    listen_on((uint16_t)atoi(argv[1]));
    for (;;) {
        int n = epoll_wait(epoll, ready, 512, -1);

        for (int i = 0; i < n; i++)
            on_ready(ready[i].data.fd, ready[i].events);
    }
}
