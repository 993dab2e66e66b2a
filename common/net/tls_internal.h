/* common/net/tls_internal.h - shared by the two files of TLS.
 *
 *   tls_files.c   loads PEM files into a context, or reports the error
 *   tls.c         the context in use and its reload; a connection's handshake, bytes and end */
#ifndef COMMON_NET_TLS_INTERNAL_H
#define COMMON_NET_TLS_INTERNAL_H

#include <openssl/ssl.h>

#include "common/net/tls.h"

/* A context from the files, at the wall-clock time now_s. */
MUST_USE enum status tls_files_load(SSL_CTX **out, const struct tls_config *config, int64_t now_s,
                                    struct error *err);

/* The most useful line of OpenSSL's error queue, which is empty afterwards. */
const char *tls_drain_errors(void);

#endif
