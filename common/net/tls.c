/* common/net/tls.c - a connection's handshake, bytes and end; the context in use and its reload.
 *
 * OpenSSL counts the users of a context, so a reload installs a new one and releases the old, which
 * is freed with its last connection.
 *
 *      struct tls --> current context <-- SSL of new connections
 *                     former context  <-- SSL of old ones
 *
 * Reading: OpenSSL takes what one recv returns, up to a record and some more; what does not fit
 * into the room that conn offers stays inside, with has_more set. Writing: a record at a time, so
 * that a sealed record that the kernel refused can be repeated, as it must, from the queue of the
 * connection. Many small pieces become one record.
 *
 * The queue of errors belongs to the thread: it is emptied before each call whose failure is
 * read. */
#include "common/net/tls.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include <openssl/err.h>
#include <openssl/x509v3.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/net/conn.h"
#include "common/net/tls_internal.h"

#define RECORD_BYTES     16384u /* the most that one record carries */
#define TLS_HANDSHAKE_ID 22     /* first byte of every TLS connection */

struct tls {
    struct tls_config config;
    pthread_mutex_t lock; /* of ctx: held to copy a pointer */
    SSL_CTX *ctx;
};

struct tls_ticket {
    SSL_SESSION *session;
    SSL_CTX *ctx; /* that verified the peer: another would have to do it again */
    char name[];
};

/* What a connection has: conn.session. */
struct tls_session {
    struct tls *tls;
    SSL *ssl; /* NULL until the handshake begins */
    struct tls_ticket **ticket;
    const char *failure; /* a constant, or NULL */
    int end_errno;       /* found while there still were bytes to deliver; 0: orderly */
    bool has_ended;
    char name[]; /* of the server; "" on its side */
};

/* --- settings --------------------------------------------------------------------------------- */

static int keep_ticket(SSL *ssl, SSL_SESSION *session);

static SSL_CTX *current(struct tls *tls) {
    SSL_CTX *ctx;

    pthread_mutex_lock(&tls->lock);
    ctx = tls->ctx;
    assert(ctx);
    SSL_CTX_up_ref(ctx);
    pthread_mutex_unlock(&tls->lock);
    return ctx;
}

enum status tls_reload(struct tls *tls, struct error *err) {
    SSL_CTX *ctx, *former;
    enum status st = tls_files_load(&ctx, &tls->config, (int64_t)(clock_wall_us() / 1000000u), err);

    if (st != ST_OK) return st;
    if (!tls->config.is_server) {
        SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
        SSL_CTX_sess_set_new_cb(ctx, keep_ticket);
    }
    pthread_mutex_lock(&tls->lock);
    former = tls->ctx;
    tls->ctx = ctx;
    pthread_mutex_unlock(&tls->lock);
    SSL_CTX_free(former);
    return ST_OK;
}

enum status tls_create(struct tls **out, const struct tls_config *config, struct error *err) {
    struct tls *tls = mem_zalloc(sizeof(*tls));
    enum status st;

    tls->config = *config;
    if (!config->handshake_timeout_ms) tls->config.handshake_timeout_ms = 5000;
    pthread_mutex_init(&tls->lock, NULL);
    st = config->is_late ? ST_OK : tls_reload(tls, err);
    if (st != ST_OK) {
        tls_destroy(tls);
        return st;
    }
    *out = tls;
    return ST_OK;
}

void tls_destroy(struct tls *tls) {
    if (!tls) return;
    SSL_CTX_free(tls->ctx);
    pthread_mutex_destroy(&tls->lock);
    mem_free(tls);
}

bool tls_is_loaded(struct tls *tls) {
    bool is_loaded;

    pthread_mutex_lock(&tls->lock);
    is_loaded = tls->ctx != NULL;
    pthread_mutex_unlock(&tls->lock);
    return is_loaded;
}

int64_t tls_expires_s(struct tls *tls) {
    SSL_CTX *ctx = current(tls);
    const X509 *cert = SSL_CTX_get0_certificate(ctx);
    struct tm tm;
    int64_t s = 0;

    if (cert && ASN1_TIME_to_tm(X509_get0_notAfter(cert), &tm) == 1) s = (int64_t)timegm(&tm);
    SSL_CTX_free(ctx);
    return s;
}

/* --- tickets ---------------------------------------------------------------------------------- */

void tls_ticket_forget(struct tls_ticket **ticket) {
    if (!*ticket) return;
    SSL_SESSION_free((*ticket)->session);
    SSL_CTX_free((*ticket)->ctx);
    mem_free(*ticket);
    *ticket = NULL;
}

/* A server has given us a ticket. 1: the session is ours now. */
static int keep_ticket(SSL *ssl, SSL_SESSION *session) {
    struct tls_session *s = SSL_get_app_data(ssl);
    size_t n = strlen(s->name) + 1;
    struct tls_ticket *t;

    if (!s->ticket) return 0;
    tls_ticket_forget(s->ticket);
    t = mem_alloc(sizeof(*t) + n);
    t->session = session;
    t->ctx = SSL_get_SSL_CTX(ssl);
    SSL_CTX_up_ref(t->ctx);
    memcpy(t->name, s->name, n);
    *s->ticket = t;
    return 1;
}

/* Resumes a session only with the peer that issued it, verified by the current authorities. */
static void show_ticket(struct tls_session *s) {
    struct tls_ticket *t = s->ticket ? *s->ticket : NULL;

    if (!t) return;
    if (t->ctx == SSL_get_SSL_CTX(s->ssl) && strcmp(t->name, s->name) == 0) {
        SSL_set_session(s->ssl, t->session);
    } else {
        tls_ticket_forget(s->ticket);
    }
}

/* --- failures --------------------------------------------------------------------------------- */

/* The errno of the last call on s->ssl, which returned `rc`: EAGAIN when it must be repeated, 0
 * after the peer's close_notify. */
static int errno_of(struct conn *c, int rc) {
    struct tls_session *s = c->session;
    int system_errno = errno;
    long verdict;

    switch (SSL_get_error(s->ssl, rc)) {
    case SSL_ERROR_WANT_READ: return EAGAIN;
    case SSL_ERROR_WANT_WRITE: c->was_blocked = true; return EAGAIN;
    case SSL_ERROR_ZERO_RETURN: return 0;
    case SSL_ERROR_SYSCALL:
        ERR_clear_error();
        s->failure = system_errno ? strerrordesc_np(system_errno) : "the peer broke off";
        return system_errno ? system_errno : ECONNRESET;
    default: break;
    }
    verdict = SSL_get_verify_result(s->ssl);
    s->failure = verdict == X509_V_OK ? tls_drain_errors() : X509_verify_cert_error_string(verdict);
    ERR_clear_error();
    return EPROTO;
}

/* --- the handshake ---------------------------------------------------------------------------- */

static bool expect_server(struct tls_session *s) {
    X509_VERIFY_PARAM *param = SSL_get0_param(s->ssl);
    struct in6_addr address;

    if (inet_pton(AF_INET, s->name, &address) == 1 || inet_pton(AF_INET6, s->name, &address) == 1) {
        return X509_VERIFY_PARAM_set1_ip_asc(param, s->name) == 1; /* SNI has no addresses */
    }
    X509_VERIFY_PARAM_set_hostflags(param, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    return X509_VERIFY_PARAM_set1_host(param, s->name, 0) == 1 &&
           SSL_set_tlsext_host_name(s->ssl, s->name) == 1;
}

static bool begin(struct conn *c) {
    struct tls_session *s = c->session;
    SSL_CTX *ctx = current(s->tls);

    s->ssl = SSL_new(ctx); /* has its own use of ctx */
    SSL_CTX_free(ctx);
    if (!s->ssl || SSL_set_fd(s->ssl, c->watch.fd) != 1) return false;
    SSL_set_app_data(s->ssl, s);
    if (s->tls->config.is_server) {
        SSL_set_accept_state(s->ssl);
        return true;
    }
    SSL_set_connect_state(s->ssl);
    if (c->connect_timer) {
        loop_timer_start(c->connect_timer, (uint64_t)s->tls->config.handshake_timeout_ms * 1000);
    }
    if (!expect_server(s)) return false;
    show_ticket(s);
    return true;
}

/* The first byte of a client shows TLS or plain HTTP, whose methods are letters. */
static enum conn_handshake look_at_first_byte(struct conn *c) {
    struct tls_session *s = c->session;
    unsigned char first;
    ssize_t n = recv(c->watch.fd, &first, 1, MSG_PEEK);

    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return CONN_HANDSHAKE_WANTS_READ;
    if (n == 1 && first == TLS_HANDSHAKE_ID) return CONN_HANDSHAKE_DONE;
    if (n == 1 && ((first | 0x20) >= 'a' && (first | 0x20) <= 'z')) {
        conn_use_plain(c);
        return CONN_HANDSHAKE_DONE;
    }
    if (n >= 0) errno = n ? EPROTO : ECONNRESET;
    s->failure = n == 1 ? "not TLS" : "the peer broke off";
    return CONN_HANDSHAKE_FAILED;
}

static enum conn_handshake tls_handshake(struct conn *c) {
    struct tls_session *s = c->session;
    enum conn_handshake at;
    int rc;

    if (!s->ssl && s->tls->config.is_server) {
        at = look_at_first_byte(c);
        if (at != CONN_HANDSHAKE_DONE || !tls_is_on(c)) return at;
    }
    ERR_clear_error();
    if (!s->ssl && !begin(c)) {
        s->failure = tls_drain_errors();
        errno = ENOMEM;
        return CONN_HANDSHAKE_FAILED;
    }
    errno = 0;
    rc = SSL_do_handshake(s->ssl);
    if (rc == 1) {
        c->has_more = SSL_has_pending(s->ssl); /* a request may have come along with it */
        return CONN_HANDSHAKE_DONE;
    }
    if (SSL_get_error(s->ssl, rc) == SSL_ERROR_WANT_WRITE) return CONN_HANDSHAKE_WANTS_WRITE;
    errno = errno_of(c, rc);
    if (errno == EAGAIN) return CONN_HANDSHAKE_WANTS_READ;
    if (errno == 0) errno = ECONNRESET;
    return CONN_HANDSHAKE_FAILED;
}

/* --- bytes ------------------------------------------------------------------------------------ */

static ssize_t as_errno(int error) {
    if (error == 0) return 0;
    errno = error;
    return -1;
}

static ssize_t tls_recv(struct conn *c, void *to, size_t n) {
    struct tls_session *s = c->session;
    size_t got = 0, more;
    int rc, error;

    c->has_more = false;
    if (s->has_ended) return as_errno(s->end_errno);
    do {
        ERR_clear_error();
        errno = 0;
        rc = SSL_read_ex(s->ssl, (char *)to + got, n - got, &more);
        if (rc != 1) {
            error = errno_of(c, rc);
            if (error == EAGAIN && got) return (ssize_t)got;
            if (error != EAGAIN) {
                s->has_ended = true;
                s->end_errno = error;
                c->has_more = got > 0;
            }
            return got ? (ssize_t)got : as_errno(error);
        }
        got += more;
    } while (got < n && SSL_has_pending(s->ssl));
    c->has_more = SSL_has_pending(s->ssl);
    return (ssize_t)got;
}

/* The next bytes for one record, at most RECORD_BYTES, in one piece: where they are, or gathered in
 * `scratch`. How many depends only on how many are left, so that a repeated record is never shorter
 * than it was. */
static struct iovec next_record(const struct iovec *iov, int n, size_t skip,
                                char scratch[RECORD_BYTES]) {
    size_t len = 0;

    while (n > 0 && skip >= iov->iov_len) {
        skip -= iov->iov_len;
        iov++;
        n--;
    }
    if (n > 0 && (n == 1 || iov->iov_len - skip >= RECORD_BYTES)) {
        return (struct iovec){(char *)iov->iov_base + skip,
                              MIN(iov->iov_len - skip, (size_t)RECORD_BYTES)};
    }
    for (; n > 0 && len < RECORD_BYTES; iov++, n--, skip = 0) {
        size_t part = MIN(iov->iov_len - skip, RECORD_BYTES - len);

        memcpy(scratch + len, (const char *)iov->iov_base + skip, part);
        len += part;
    }
    return (struct iovec){scratch, len};
}

static ssize_t tls_send(struct conn *c, struct iovec *iov, int n) {
    struct tls_session *s = c->session;
    char scratch[RECORD_BYTES];
    size_t sent = 0, more;

    for (;;) {
        struct iovec record = next_record(iov, n, sent, scratch);
        int rc;

        if (record.iov_len == 0) return (ssize_t)sent;
        ERR_clear_error();
        errno = 0;
        rc = SSL_write_ex(s->ssl, record.iov_base, record.iov_len, &more);
        if (rc != 1) {
            int error = errno_of(c, rc);

            if (sent) return (ssize_t)sent; /* an error is there next time as well */
            return as_errno(error ? error : EPIPE);
        }
        sent += more;
    }
}

/* --- the end ---------------------------------------------------------------------------------- */

/* After a failure OpenSSL wants to hear no more of a connection. */
static void send_close_notify(struct tls_session *s) {
    if (s->failure || !s->ssl || !SSL_is_init_finished(s->ssl)) return;
    ERR_clear_error();
    SSL_shutdown(s->ssl);
    ERR_clear_error();
}

static void tls_shutdown_write(struct conn *c) {
    send_close_notify(c->session);
}

static void tls_close(struct conn *c, bool is_orderly) {
    struct tls_session *s = c->session;

    if (is_orderly) send_close_notify(s);
    /* Else OpenSSL takes the session for a broken one, and its ticket for useless. */
    if (s->ssl) SSL_set_shutdown(s->ssl, SSL_SENT_SHUTDOWN | SSL_RECEIVED_SHUTDOWN);
    SSL_free(s->ssl);
    mem_free(s);
    c->session = NULL;
}

static const struct conn_transport tls_transport = {
    .recv = tls_recv,
    .send = tls_send,
    .handshake = tls_handshake,
    .shutdown_write = tls_shutdown_write,
    .close = tls_close,
};

/* --- beginning -------------------------------------------------------------------------------- */

static struct tls_session *session_create(struct tls *tls, const char *name) {
    size_t n = strlen(name) + 1;
    struct tls_session *s = mem_zalloc(sizeof(*s) + n);

    s->tls = tls;
    memcpy(s->name, name, n);
    return s;
}

void tls_accept(struct conn *c, struct tls *tls) {
    conn_use_transport(c, &tls_transport, session_create(tls, ""), true);
}

void tls_connect(struct conn *c, struct tls *tls, const char *name, struct tls_ticket **ticket) {
    struct tls_session *s = session_create(tls, name);

    s->ticket = ticket;
    conn_use_transport(c, &tls_transport, s, false);
}

bool tls_is_on(const struct conn *c) {
    return c->transport == &tls_transport;
}

bool tls_was_resumed(const struct conn *c) {
    const struct tls_session *s = c->session;

    return tls_is_on(c) && s && s->ssl && SSL_session_reused(s->ssl);
}

const char *tls_failure(const struct conn *c) {
    const struct tls_session *s = c->session;

    return tls_is_on(c) && s && s->failure ? s->failure : "";
}
