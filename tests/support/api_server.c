/* tests/support/api_server.c - connections of the scripted API server.
 *
 * Straight on sockets and OpenSSL, not on common/conn: what is wanted here is what conn.h exists to
 * prevent. Each SSL_write makes one record, so the pieces are chosen by us; an end leaves out
 * close_notify; a listener can be deaf. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <openssl/err.h>

#include "common/base/mem.h"
#include "tests/support/api_server_internal.h"
#include "tests/support/cm.h"

#define MAX_REQUEST_BYTES (16u << 20)

static void on_ready(unsigned ready, void *arg);

/* --- the end of a connection ------------------------------------------------------------------ */

static void reap(void *arg) {
    mem_free(arg);
}

void api_conn_end(struct api_conn *c, bool is_reset) {
    struct api_server *a = c->server;
    struct linger linger = {.l_onoff = 1, .l_linger = 0};
    int fd = c->watch.fd;

    if (!list_is_linked(&c->link)) return;
    list_remove(&c->link);
    loop_timer_fini(&c->pace);
    loop_timer_fini(&c->late);
    loop_timer_fini(&c->end);
    loop_timer_fini(&c->bookmark);
    loop_fd_fini(&c->watch);
    if (is_reset) (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
    SSL_free(c->ssl);
    close(fd);
    buf_fini(&c->in);
    buf_fini(&c->out);
    a->stats.open_connections--;
    a->stats.open_watches -= c->is_watching;
    loop_defer(a->loop, &c->reap);
}

/* --- out -------------------------------------------------------------------------------------- */

static size_t piece_bytes(struct api_conn *c) {
    const struct api_knobs *k = &c->server->knobs;
    size_t most = MIN(buf_len(&c->out), (size_t)k->record_bytes);

    if (c->retry_bytes) return c->retry_bytes;
    return k->is_ragged ? 1 + (size_t)rng_below(&c->server->rng, most) : most;
}

/* Bytes taken; 0: later; -1: the connection is broken. */
static ssize_t send_piece(struct api_conn *c, size_t n) {
    int sent, why;

    if (!c->ssl) {
        ssize_t m = send(c->watch.fd, buf_ptr(&c->out), n, MSG_NOSIGNAL);

        return m >= 0 ? m : errno == EAGAIN ? 0 : -1;
    }
    ERR_clear_error();
    sent = SSL_write(c->ssl, buf_ptr(&c->out), (int)n);
    if (sent > 0) return sent;
    why = SSL_get_error(c->ssl, sent);
    return why == SSL_ERROR_WANT_WRITE || why == SSL_ERROR_WANT_READ ? 0 : -1;
}

void api_conn_send(struct api_conn *c) {
    if (!list_is_linked(&c->link)) return;
    while (buf_len(&c->out) && c->is_shaken && !c->is_held && !loop_timer_is_running(&c->pace)) {
        size_t n = piece_bytes(c);
        ssize_t sent = send_piece(c, n);

        if (sent < 0) {
            api_conn_end(c, false);
            return;
        }
        c->retry_bytes = sent ? 0 : n;
        if (sent == 0) {
            loop_fd_watch(&c->watch, LOOP_READ | LOOP_WRITE);
            return;
        }
        buf_consume(&c->out, (size_t)sent);
        if (c->server->knobs.drip_us) loop_timer_start(&c->pace, c->server->knobs.drip_us);
    }
    if (buf_len(&c->out)) return;
    loop_fd_watch(&c->watch, LOOP_READ);
    if (c->then != API_KEEP) api_conn_end(c, c->then == API_THEN_RESET);
}

/* --- in --------------------------------------------------------------------------------------- */

static struct str header(struct str head, const char *name) {
    while (head.len) {
        ptrdiff_t end = str_find(head, STR("\r\n"));
        struct str line = {head.ptr, end < 0 ? head.len : (size_t)end};
        size_t n = strlen(name);

        if (line.len > n && line.ptr[n] == ':' && str_bytes_eq_nocase(line.ptr, name, n)) {
            return str_trim((struct str){line.ptr + n + 1, line.len - n - 1});
        }
        if (end < 0) break;
        head = (struct str){head.ptr + end + 2, head.len - (size_t)end - 2};
    }
    return STR_NULL;
}

static struct str cut(struct str *s, char at) {
    const char *end = memchr(s->ptr, at, s->len);
    struct str first = {s->ptr, end ? (size_t)(end - s->ptr) : s->len};
    size_t used = first.len + (end != NULL);

    *s = (struct str){s->ptr + used, s->len - used};
    return first;
}

/* A request that is whole: its bytes; 0 while it is not. */
static size_t take_request(struct api_conn *c, struct api_request *r) {
    struct str in = buf_str(&c->in), head, line;
    ptrdiff_t end = str_find(in, STR("\r\n\r\n"));
    uint64_t body_bytes = 0;

    if (end < 0) return 0;
    head = (struct str){in.ptr, (size_t)end};
    if (str_to_u64(header(head, "content-length"), &body_bytes) != ST_OK) body_bytes = 0;
    if (in.len < (size_t)end + 4 + body_bytes) return 0;
    *r = (struct api_request){.body = {in.ptr + end + 4, (size_t)body_bytes}};
    line = cut(&head, '\r');
    r->method = cut(&line, ' ');
    r->query = cut(&line, ' ');
    r->path = cut(&r->query, '?');
    r->token = header(head, "authorization");
    if (str_starts(r->token, STR("Bearer "))) {
        r->token = (struct str){r->token.ptr + 7, r->token.len - 7};
    }
    return (size_t)end + 4 + (size_t)body_bytes;
}

static void serve(struct api_conn *c) {
    struct api_request r;
    size_t n;

    while (!c->is_watching && !c->is_stalled && !c->is_answering && (n = take_request(c, &r)) > 0) {
        c->server->stats.requests++;
        api_answer(c, &r);
        if (!list_is_linked(&c->link)) return;
        buf_consume(&c->in, n);
    }
    api_conn_send(c);
}

static bool shake(struct api_conn *c) {
    int done, why;

    if (c->is_shaken) return true;
    ERR_clear_error();
    done = SSL_accept(c->ssl);
    if (done == 1) {
        c->is_shaken = true;
        c->server->stats.handshakes++;
        return true;
    }
    why = SSL_get_error(c->ssl, done);
    if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE) {
        loop_fd_watch(&c->watch, why == SSL_ERROR_WANT_READ ? LOOP_READ : LOOP_WRITE);
    } else {
        api_conn_end(c, false);
    }
    return false;
}

static ssize_t receive(struct api_conn *c, char *to, size_t n) {
    int got, why;

    if (!c->ssl) {
        ssize_t m = recv(c->watch.fd, to, n, 0);

        return m > 0 ? m : m < 0 && errno == EAGAIN ? 0 : -1;
    }
    ERR_clear_error();
    got = SSL_read(c->ssl, to, (int)n);
    if (got > 0) return got;
    why = SSL_get_error(c->ssl, got);
    return why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE ? 0 : -1;
}

static void on_ready(unsigned ready, void *arg) {
    struct api_conn *c = arg;

    if (!shake(c)) return;
    if (ready & LOOP_READ) {
        for (;;) {
            char *to = buf_reserve(&c->in, 16384);
            ssize_t n = to ? receive(c, to, 16384) : -1;

            if (n < 0) {
                api_conn_end(c, false);
                return;
            }
            if (n == 0) break;
            buf_commit(&c->in, (size_t)n);
        }
    }
    serve(c);
}

/* --- connections ------------------------------------------------------------------------------ */

static void on_pace(void *arg) {
    api_conn_send(arg);
}

static void on_late(void *arg) {
    struct api_conn *c = arg;

    c->is_answering = c->is_held = false;
    serve(c);
}

static void on_end(void *arg) {
    struct api_conn *c = arg;

    api_watch_end(c);
    serve(c);
}

static void on_bookmark(void *arg) {
    struct api_conn *c = arg;

    api_watch_bookmark(c);
    loop_timer_start(&c->bookmark, (uint64_t)c->server->knobs.bookmark_ms * 1000);
    api_conn_send(c);
}

static void open_conn(struct api_server *a, int fd) {
    struct api_conn *c = mem_zalloc(sizeof(*c));
    int on = 1;

    c->server = a;
    list_init(&c->link);
    list_push_back(&a->conns, &c->link);
    loop_fd_init(&c->watch, a->loop, fd, on_ready, c);
    loop_task_init(&c->reap, reap, c);
    loop_timer_init(&c->pace, a->loop, on_pace, c);
    loop_timer_init(&c->late, a->loop, on_late, c);
    loop_timer_init(&c->end, a->loop, on_end, c);
    loop_timer_init(&c->bookmark, a->loop, on_bookmark, c);
    buf_init(&c->in, MAX_REQUEST_BYTES);
    buf_init(&c->out, 0);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    a->stats.connections++;
    a->stats.open_connections++;
    if (a->accept == API_RESET || a->accept == API_CLOSE) {
        api_conn_end(c, a->accept == API_RESET);
        return;
    }
    if (a->accept == API_STALL) return; /* not even a handshake */
    if (a->is_plain) {
        c->is_shaken = true;
    } else {
        c->ssl = SSL_new(a->tls);
        SSL_set_fd(c->ssl, fd);
    }
    loop_fd_watch(&c->watch, LOOP_READ);
}

static void on_accept(unsigned ready, void *arg) {
    struct api_server *a = arg;

    (void)ready;
    for (;;) {
        int fd = accept4(a->listener.fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

        if (fd < 0) return;
        open_conn(a, fd);
    }
}

bool api_server_listen(struct api_server *a, bool on) {
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons(a->port)};
    socklen_t len = sizeof(addr);
    int yes = 1, fd = a->listener.fd;

    if (on == (fd >= 0)) return true;
    if (!on) {
        loop_fd_fini(&a->listener);
        close(fd);
        a->listener.fd = -1;
        return true;
    }
    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) != 0 ||
        bind(fd, (struct sockaddr *)&addr, sizeof(addr)) != 0 || listen(fd, 1024) != 0) {
        close(fd);
        return false;
    }
    assert_int_equal(getsockname(fd, (struct sockaddr *)&addr, &len), 0);
    a->port = ntohs(addr.sin_port);
    loop_fd_init(&a->listener, a->loop, fd, on_accept, a);
    loop_fd_watch(&a->listener, LOOP_READ);
    return true;
}

/* --- certificates ----------------------------------------------------------------------------- */

void api_server_load_certificate(struct api_server *a, const struct certs *certs) {
    SSL_CTX *tls = SSL_CTX_new(TLS_server_method());

    SSL_CTX_set_mode(tls, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_min_proto_version(tls, TLS1_2_VERSION);
    assert_int_equal(
        SSL_CTX_use_certificate_file(tls, certs_path(certs, "server.pem"), SSL_FILETYPE_PEM), 1);
    assert_int_equal(
        SSL_CTX_use_PrivateKey_file(tls, certs_path(certs, "server.key"), SSL_FILETYPE_PEM), 1);
    assert_int_equal(SSL_CTX_load_verify_locations(tls, certs_path(certs, "ca.pem"), NULL), 1);
    SSL_CTX_set_verify(tls, SSL_VERIFY_PEER, NULL); /* who has a certificate may show it */
    SSL_CTX_set_session_id_context(tls, (const unsigned char *)"api", 3);
    SSL_CTX_free(a->tls);
    a->tls = tls;
}

static void make_certificates(struct certs *certs) {
    certs_init(certs);
    certs_make(certs, &(struct certs_spec){.name = "server",
                                           .host = "kubernetes.default.svc",
                                           .address = "127.0.0.1"});
    certs_make(certs, &(struct certs_spec){.name = "client"});
}

/* --- life ------------------------------------------------------------------------------------- */

struct api_server *api_server_create(struct loop *loop, bool is_plain) {
    struct api_server *a = mem_zalloc(sizeof(*a));

    a->loop = loop;
    a->is_plain = is_plain;
    a->listener.fd = -1;
    list_init(&a->conns);
    api_store_init(&a->store);
    rng_seed(&a->rng, 1);
    a->knobs = (struct api_knobs){.chunk_bytes = 2048,
                                  .record_bytes = 4096,
                                  .bookmark_ms = 60000,
                                  .bookmark_before_end_ms = 2000};
    a->tokens = cJSON_CreateArray();
    a->rules = cJSON_CreateArray();
    a->forbidden = cJSON_CreateArray();
    a->calls = cJSON_CreateArray();
    make_certificates(&a->certs);
    api_server_load_certificate(a, &a->certs);
    assert_true(api_server_listen(a, true));
    return a;
}

void api_server_destroy(struct api_server *a) {
    if (!a) return;
    (void)api_server_listen(a, false);
    while (!list_is_empty(&a->conns))
        api_conn_end(CONTAINER_OF(list_first(&a->conns), struct api_conn, link), false);
    api_snapshots_forget(a);
    api_store_fini(&a->store);
    cJSON_Delete(a->tokens);
    cJSON_Delete(a->rules);
    cJSON_Delete(a->forbidden);
    cJSON_Delete(a->calls);
    SSL_CTX_free(a->tls);
    certs_fini(&a->certs);
    if (a->has_next_certs) certs_fini(&a->next_certs);
    mem_free(a);
}

uint16_t api_server_port(const struct api_server *a) {
    return a->port;
}

const char *api_server_folder(const struct api_server *a) {
    return a->certs.folder;
}
