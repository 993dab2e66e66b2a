/* tests/fuzz/fuzz_http_server.c - clients that do anything, in any order and in any pieces.
 *
 * An input is a script. Each step is a byte that selects the action, and by which of four
 * connections; what is sent follows, up to a zero byte:
 *
 *      0..5  send      6  close      7  half-close      8  read      9  answer what was kept
 *
 * The server must stay within its budget, end each request that it handed over, and be able to
 * answer after all that. Linked to libFuzzer by `make fuzz`. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/http/body_budget.h"
#include "common/http/http_server.h"
#include "common/net/loop.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define N_CLIENTS      4
#define MAX_KEPT       64
#define MAX_PER_SERVER 1000 /* then a new one, so that what the old one leaks is seen */

#define REQUIRE(x)                                                                                 \
    do {                                                                                           \
        if (!(x)) abort();                                                                         \
    } while (0)

static struct {
    struct loop *loop;
    struct http_server *server;
    struct body_budget *budget;
    struct http_request *kept[MAX_KEPT];
    int clients[N_CLIENTS];
    uint32_t n_kept, n_runs, n_handed, n_ended;
} f;

static void forget(struct http_request *req) {
    f.n_ended++;
    for (uint32_t i = 0; i < f.n_kept; i++) {
        if (f.kept[i] == req) f.kept[i] = f.kept[--f.n_kept];
    }
}

static void on_request(struct http_request *req, void *arg) {
    struct str at = req->path;
    char last = at.len ? at.ptr[at.len - 1] : 0;

    (void)arg;
    f.n_handed++;
    if (last == 'k' && f.n_kept < MAX_KEPT) {
        req->on_abort = forget;
        f.kept[f.n_kept++] = req;
        return;
    }
    f.n_ended++;
    if (last == 's') {
        http_stream_begin(req, 200, HTTP_SSE);
        http_sse_event(req, STR("{}"));
        http_stream_end(req);
    } else {
        http_reply(req, 200, "text/plain", req->body);
    }
}

static enum status on_head(struct http_request *req, void *arg, struct error *err) {
    (void)arg;
    if (req->path.len > 1 && req->path.ptr[1] == 'd') return error_set(err, ST_DENIED, "not you");
    return ST_OK;
}

static void begin(void) {
    static const struct http_server_events events = {.on_request = on_request, .on_head = on_head};
    struct http_limits limits = {
        .max_body_bytes = 100000, .max_connections = 64, .body_wait_ms = 5, .head_timeout_ms = 50};
    struct error err = {0};

    limits.budget = f.budget = body_budget_create(300000, 1);
    REQUIRE(loop_create(&f.loop, &err) == ST_OK);
    f.server = http_server_create(f.loop, &limits, &events, NULL);
    REQUIRE(http_server_listen(f.server, "127.0.0.1", 0, false, &err) == ST_OK);
}

static void answer_one(void) {
    struct http_request *req = f.n_kept ? f.kept[--f.n_kept] : NULL;

    if (!req) return;
    f.n_ended++;
    http_reply(req, 200, "text/plain", req->body);
}

static void turn(void) {
    loop_turn(f.loop, 0);
    body_budget_check(f.budget);
    REQUIRE(http_server_stats(f.server).open_connections <= 64);
    REQUIRE(http_server_stats(f.server).open_requests == f.n_kept);
}

static int connect_one(void) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(http_server_port(f.server))};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    struct linger at_once = {1, 0}; /* or the ports of this machine are used up */

    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    (void)!connect(fd, (struct sockaddr *)&to, sizeof(to));
    turn();
    return fd;
}

static void leave(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

static size_t send_piece(int fd, const uint8_t *data, size_t size) {
    const uint8_t *end = memchr(data, 0, size);
    size_t n = end ? (size_t)(end - data) : size;

    (void)!send(fd, data, n, MSG_NOSIGNAL);
    return MIN(n + 1, size);
}

/* Returns how many bytes of the script were used. */
static size_t step(const uint8_t *data, size_t size) {
    char got[4096];
    int *fd = &f.clients[data[0] / 10 % N_CLIENTS];
    size_t used = 1;

    if (*fd < 0) *fd = connect_one();
    switch (data[0] % 10) {
    case 6: leave(fd); break;
    case 7: shutdown(*fd, SHUT_WR); break;
    case 8:
        while (recv(*fd, got, sizeof(got), 0) > 0) {
        }
        break;
    case 9: answer_one(); break;
    default: used += send_piece(*fd, data + 1, size - 1);
    }
    turn();
    return used;
}

/* Whatever came before, a request of a new client is answered. */
static void require_service(void) {
    static const char request[] = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    char got[64];
    ssize_t n = -1;
    int fd = connect_one();

    (void)!send(fd, request, sizeof(request) - 1, MSG_NOSIGNAL);
    for (int i = 0; i < 1000 && n < 0; i++) {
        turn();
        n = recv(fd, got, sizeof(got), 0);
    }
    REQUIRE(n > 12 && memcmp(got, "HTTP/1.1 200", 12) == 0);
    close(fd);
}

static void end(void) {
    http_server_destroy(f.server);
    loop_destroy(f.loop);
    body_budget_destroy(f.budget);
    memset(&f, 0, sizeof(f));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!f.server) begin();
    for (int i = 0; i < N_CLIENTS; i++)
        f.clients[i] = -1;
    for (size_t at = 0; at < size;)
        at += step(data + at, size - at);
    for (int i = 0; i < N_CLIENTS; i++)
        leave(&f.clients[i]);
    while (f.n_kept)
        answer_one();
    require_service();
    REQUIRE(f.n_handed == f.n_ended);
    if (++f.n_runs == MAX_PER_SERVER) end();
    return 0;
}
