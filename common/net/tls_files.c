/* common/net/tls_files.c - loads PEM files into a context, or reports the error.
 *
 * Checks early what OpenSSL would report during handshakes: a key of another certificate, a
 * certificate out of its time, a folder of authorities without hashed names. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include "common/net/tls_internal.h"

/* For 1.2 alone; those of 1.3 are all fit. */
#define CIPHERS_1_2    "ECDHE+AESGCM:ECDHE+CHACHA20"
#define SECURITY_LEVEL 2 /* 112 bits: RSA of 2048 and more, no SHA-1 */

const char *tls_drain_errors(void) {
    unsigned long code = ERR_peek_error();
    const char *reason = code ? ERR_reason_error_string(code) : NULL;

    ERR_clear_error();
    return reason ? reason : "unknown reason";
}

static enum status check_readable(const char *what, const char *path, struct error *err) {
    FILE *f = fopen(path, "re");

    if (!f) {
        return error_set(err, ST_INVALID, "cannot read %s %s: %s", what, path, strerror(errno));
    }
    fclose(f);
    return ST_OK;
}

/* --- the certificate -------------------------------------------------------------------------- */

static void format_day(const ASN1_TIME *at, char out[32]) {
    struct tm tm;

    if (ASN1_TIME_to_tm(at, &tm) != 1 || strftime(out, 32, "%Y-%m-%d", &tm) == 0) {
        snprintf(out, 32, "an unreadable date");
    }
}

static enum status check_time(const char *path, X509 *cert, int64_t now_s, struct error *err) {
    time_t now = (time_t)now_s;
    char day[32];

    if (X509_cmp_time(X509_get0_notAfter(cert), &now) <= 0) {
        format_day(X509_get0_notAfter(cert), day);
        return error_set(err, ST_INVALID, "certificate %s expired on %s: renew it", path, day);
    }
    if (X509_cmp_time(X509_get0_notBefore(cert), &now) > 0) {
        format_day(X509_get0_notBefore(cert), day);
        return error_set(err, ST_INVALID,
                         "certificate %s is not valid before %s: check this machine's clock, or "
                         "use another certificate",
                         path, day);
    }
    return ST_OK;
}

static enum status use_cert(SSL_CTX *ctx, const char *path, int64_t now_s, struct error *err) {
    enum status st = check_readable("certificate", path, err);
    STACK_OF(X509) *chain = NULL;

    if (st != ST_OK) return st;
    if (SSL_CTX_use_certificate_chain_file(ctx, path) != 1) {
        return error_set(
            err, ST_INVALID,
            "invalid certificate %s (%s): use PEM, beginning with -----BEGIN CERTIFICATE-----",
            path, tls_drain_errors());
    }
    st = check_time(path, SSL_CTX_get0_certificate(ctx), now_s, err);
    SSL_CTX_get0_chain_certs(ctx, &chain);
    for (int i = 0; st == ST_OK && i < sk_X509_num(chain); i++)
        st = check_time(path, sk_X509_value(chain, i), now_s, err);
    return st;
}

/* --- the key ---------------------------------------------------------------------------------- */

/* No terminal to ask. */
static int refuse_passphrase(char *to, int size, int is_writing, void *was_asked) {
    (void)to;
    (void)size;
    (void)is_writing;
    *(bool *)was_asked = true;
    return -1;
}

static enum status use_key(SSL_CTX *ctx, const struct tls_config *config, struct error *err) {
    bool was_asked = false;
    EVP_PKEY *key;
    FILE *f = fopen(config->key, "re");
    enum status st = ST_OK;

    if (!f) {
        return error_set(err, ST_INVALID, "cannot read key %s: %s", config->key, strerror(errno));
    }
    key = PEM_read_PrivateKey(f, NULL, refuse_passphrase, &was_asked);
    fclose(f);
    if (was_asked) {
        st = error_set(
            err, ST_INVALID,
            "key %s is encrypted: remove its passphrase, openssl pkey -in %s -out plain.pem",
            config->key, config->key);
    } else if (!key) {
        st = error_set(err, ST_INVALID,
                       "invalid key %s (%s): use PEM, beginning with -----BEGIN PRIVATE KEY-----",
                       config->key, tls_drain_errors());
    } else if (X509_check_private_key(SSL_CTX_get0_certificate(ctx), key) != 1) {
        st = error_set(
            err, ST_INVALID,
            "key %s does not belong to certificate %s: give a certificate and its own key",
            config->key, config->cert);
    } else if (SSL_CTX_use_PrivateKey(ctx, key) != 1) {
        st = error_set(err, ST_INVALID, "key %s cannot be used: %s", config->key,
                       tls_drain_errors());
    }
    EVP_PKEY_free(key);
    return st;
}

/* --- authorities ------------------------------------------------------------------------------ */

/* OpenSSL looks for "<hash>.<n>" in a folder and for nothing else. */
static bool has_hashed_names(const char *folder) {
    DIR *dir = opendir(folder);
    bool found = false;
    struct dirent *e;

    while (dir && !found && (e = readdir(dir)) != NULL)
        found = strspn(e->d_name, "0123456789abcdef") == 8 && e->d_name[8] == '.';
    if (dir) closedir(dir);
    return found;
}

static enum status use_authorities(SSL_CTX *ctx, const struct tls_config *config,
                                   struct error *err) {
    const char *path = config->ca;
    STACK_OF(X509_NAME) * names;
    struct stat s;

    if (stat(path, &s) != 0) {
        return error_set(err, ST_INVALID, "cannot read authorities %s: %s", path, strerror(errno));
    }
    if (S_ISDIR(s.st_mode)) {
        if (!has_hashed_names(path)) {
            return error_set(
                err, ST_INVALID,
                "folder %s has no hashed certificates: run openssl rehash %s, or give one PEM file",
                path, path);
        }
        SSL_CTX_load_verify_dir(ctx, path);
    } else if (SSL_CTX_load_verify_file(ctx, path) != 1) {
        return error_set(err, ST_INVALID,
                         "invalid authorities %s (%s): use a file of PEM certificates", path,
                         tls_drain_errors());
    } else if (config->is_server && (names = SSL_load_client_CA_file(path)) != NULL) {
        SSL_CTX_set_client_CA_list(ctx, names); /* the hint, so that clients choose the right one */
    }
    return ST_OK;
}

static enum status use_trust(SSL_CTX *ctx, const struct tls_config *config, struct error *err) {
    if (config->is_server) {
        if (!config->ca) return ST_OK;
        SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
        return use_authorities(ctx, config, err);
    }
    SSL_CTX_set_verify(ctx, config->is_insecure ? SSL_VERIFY_NONE : SSL_VERIFY_PEER, NULL);
    if (config->ca) return use_authorities(ctx, config, err);
    if (SSL_CTX_set_default_verify_paths(ctx) != 1) {
        return error_set(err, ST_INVALID,
                         "cannot read the system's certificate authorities (%s): give a file",
                         tls_drain_errors());
    }
    return ST_OK;
}

/* --- all of it -------------------------------------------------------------------------------- */

static const unsigned char our_protocols[] = {8, 'h', 't', 't', 'p', '/', '1', '.', '1'};

/* Selects our protocol, or reports that there is none in common. */
static int choose_protocol(SSL *ssl, const unsigned char **out, unsigned char *out_len,
                           const unsigned char *offered, unsigned offered_len, void *arg) {
    unsigned char *chosen;

    (void)ssl;
    (void)arg;
    if (SSL_select_next_proto(&chosen, out_len, our_protocols, sizeof(our_protocols), offered,
                              offered_len) != OPENSSL_NPN_NEGOTIATED) {
        return SSL_TLSEXT_ERR_ALERT_FATAL;
    }
    *out = chosen;
    return SSL_TLSEXT_ERR_OK;
}

static bool set_up(SSL_CTX *ctx, const struct tls_config *config) {
    static const unsigned char id[] = "incipit";

    SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                 SSL_OP_CIPHER_SERVER_PREFERENCE);
    SSL_CTX_set_mode(ctx, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE |
                              SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_read_ahead(ctx, 1); /* one recv for a record, not one for its header as well */
    SSL_CTX_set_security_level(ctx, SECURITY_LEVEL);
    if (SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION) != 1) return false;
    if (SSL_CTX_set_cipher_list(ctx, CIPHERS_1_2) != 1) return false;
    if (!config->is_server) {
        return SSL_CTX_set_alpn_protos(ctx, our_protocols, sizeof(our_protocols)) == 0;
    }
    SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF); /* tickets: clients remember, not we */
    SSL_CTX_set_alpn_select_cb(ctx, choose_protocol, NULL);
    return SSL_CTX_set_session_id_context(ctx, id, sizeof(id) - 1) == 1;
}

static enum status check_pair(const struct tls_config *config, struct error *err) {
    if (config->is_server && !config->cert) {
        return error_set(err, ST_INVALID, "a key without a certificate: give both");
    }
    if (!config->cert == !config->key) return ST_OK;
    return error_set(err, ST_INVALID, "%s without %s: give both",
                     config->cert ? "a certificate" : "a key",
                     config->cert ? "its key" : "its certificate");
}

enum status tls_files_load(SSL_CTX **out, const struct tls_config *config, int64_t now_s,
                           struct error *err) {
    enum status st = check_pair(config, err);
    SSL_CTX *ctx;

    if (st != ST_OK) return st;
    ERR_clear_error();
    ctx = SSL_CTX_new(config->is_server ? TLS_server_method() : TLS_client_method());
    if (!ctx || !set_up(ctx, config)) {
        st = error_set(err, ST_INTERNAL, "cannot set up TLS: %s", tls_drain_errors());
    }
    if (st == ST_OK && config->cert) st = use_cert(ctx, config->cert, now_s, err);
    if (st == ST_OK && config->cert) st = use_key(ctx, config, err);
    if (st == ST_OK) st = use_trust(ctx, config, err);
    ERR_clear_error(); /* a refused file leaves its traces there */
    if (st != ST_OK) {
        SSL_CTX_free(ctx);
        return st;
    }
    *out = ctx;
    return ST_OK;
}
