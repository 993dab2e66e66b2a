/* common/net/tls.h - TLS below a conn, and certificates that can be changed at run time.
 *
 * A `struct tls` is one side's settings: a listener's certificate, or the authorities and the
 * certificate for connections to workers. It reads its files when created and on tls_reload; a
 * connection uses the settings at the start of its handshake, so that a reload touches no open
 * connection. Unusable files are refused with a message, and the previous settings stay.
 *
 *      conn_init    -> tls_accept  --handshake--> on_connected    (the owner bounds the time)
 *      conn_connect -> tls_connect --handshake--> on_connected    (else CONN_TIMED_OUT)
 *
 * TLS 1.3, or 1.2 with ECDHE and an AEAD; no renegotiation, no compression, no early data. ALPN is
 * http/1.1. Names and addresses of servers are always verified, unless is_insecure.
 *
 * An end without close_notify is CONN_RESET, never CONN_EOF. An idle connection has an SSL object
 * and no buffers; one before its handshake has neither.
 *
 * Threads: a struct tls is for all of them, the rest belongs to the connection's loop. The program
 * ignores SIGPIPE. OpenSSL is included in tls.c and tls_files.c alone. */
#ifndef COMMON_NET_TLS_H
#define COMMON_NET_TLS_H

#include "common/base/status.h"

struct conn;
struct tls;
struct tls_ticket;

struct tls_config {   /* paths are borrowed for the life of the struct tls */
    const char *cert; /* PEM: certificate, then its chain. A client may have none */
    const char *key;  /* PEM: the certificate's key, without a passphrase */
    const char
        *ca; /* PEM file, or a folder made by `openssl rehash`. Client: trusted issuers, NULL:
                          the system's. Server: clients must show a certificate of one of these */
    uint32_t handshake_timeout_ms; /* clients; 0: 5000. A server's: http_limits */
    bool is_server;
    bool is_insecure; /* clients: any certificate will do. For trying things out */
    bool is_late;     /* reads nothing yet: connections only after the first tls_reload */
};

/* ST_INVALID: "certificate a.pem expired on 2026-01-31: renew it". */
MUST_USE enum status tls_create(struct tls **out, const struct tls_config *config,
                                struct error *err);
void tls_destroy(struct tls *tls); /* open connections do not mind; NULL is fine */

/* Reads the files again, for connections to come. A failure changes nothing. */
MUST_USE enum status tls_reload(struct tls *tls, struct error *err);

/* When the certificate that new connections are shown ends, in seconds since 1970; 0: there is
 * none. */
int64_t tls_expires_s(struct tls *tls);
bool tls_is_loaded(struct tls *tls); /* is_late: has tls_reload succeeded yet? */

/* Right after conn_init. Plain HTTP ends the handshake with on_connected on a plain connection (see
 * tls_is_on), so that it can be answered with an error. */
void tls_accept(struct conn *c, struct tls *tls);

/* Right after conn_connect. `name`: host name or address that the certificate must be for. *ticket,
 * NULL at first, keeps the last session with that name for a shorter handshake; it must outlive the
 * connection. */
void tls_connect(struct conn *c, struct tls *tls, const char *name, struct tls_ticket **ticket);
void tls_ticket_forget(struct tls_ticket **ticket);

bool tls_is_on(const struct conn *c);
bool tls_was_resumed(const struct conn *c);

/* Why the handshake or the connection failed, for a person; "" when it did not. Until conn_fini. */
const char *tls_failure(const struct conn *c);

#endif
