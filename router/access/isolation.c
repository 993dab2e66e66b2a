/* router/access/isolation.c - salts, and where they go. */
#include "router/access/isolation.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/base/mem.h"

#define SECRET_BYTES_MAX 65536
#define TENANT_BYTES_MAX 256

static const char purpose[] = "incipit isolation secret";

static bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static enum status take_secret(struct isolation *s, struct str text, const char *from,
                               struct error *err) {
    while (text.len && is_blank(text.ptr[text.len - 1]))
        text.len--;
    while (text.len && is_blank(text.ptr[0])) {
        text.ptr++;
        text.len--;
    }
    if (text.len < ISOLATION_SECRET_MIN) {
        return error_set(err, ST_INVALID,
                         "%s: a secret of %zu bytes is too short: use at least %d bytes, e.g. from "
                         "'openssl rand -hex 32'",
                         from, text.len, ISOLATION_SECRET_MIN);
    }
    hash_hmac_sha256(purpose, sizeof(purpose) - 1, text.ptr, text.len, s->secret);
    return ST_OK;
}

enum status isolation_init(struct isolation *s, const char *file, const char *text,
                           struct error *err) {
    char *data;
    size_t n;
    enum status st;

    memset(s, 0, sizeof(*s));
    if (file && text) {
        return error_set(
            err, ST_INVALID,
            "--isolation-secret-file and INCIPIT_ISOLATION_SECRET exclude each other: remove one");
    }
    if (text) return take_secret(s, str_of(text), "INCIPIT_ISOLATION_SECRET", err);
    if (!file) {
        s->is_random = true;
        hash_random(s->secret, sizeof(s->secret));
        return ST_OK;
    }
    st = file_read(file, SECRET_BYTES_MAX, &data, &n, err);
    if (st != ST_OK) {
        error_prefix(err, "--isolation-secret-file");
        return st;
    }
    st = take_secret(s, (struct str){data, n}, file, err);
    explicit_bzero(data, n);
    mem_free(data);
    return st;
}

void isolation_derive(struct isolation *s, const void *seed, size_t n) {
    static const char from_seed[] = "incipit isolation secret, from the prefix hash seed";

    hash_hmac_sha256(from_seed, sizeof(from_seed) - 1, seed, n, s->secret);
    s->is_random = false;
}

void isolation_salt(const struct isolation *s, struct str tenant, struct str client_salt,
                    char out[ISOLATION_SALT_CHARS + 1]) {
    static const char hex[] = "0123456789abcdef";
    uint8_t data[SHA256_BYTES + TENANT_BYTES_MAX], digest[SHA256_BYTES];
    size_t n = MIN(tenant.len, (size_t)TENANT_BYTES_MAX);

    /* Fixed length: a tenant's name cannot run over into the salt. */
    hash_hmac_sha256(s->secret, sizeof(s->secret), client_salt.ptr ? client_salt.ptr : "",
                     client_salt.len, data);
    if (n) memcpy(data + SHA256_BYTES, tenant.ptr, n);
    hash_hmac_sha256(s->secret, sizeof(s->secret), data, SHA256_BYTES + n, digest);
    for (size_t i = 0; i < SHA256_BYTES; i++) {
        out[2 * i] = hex[digest[i] >> 4];
        out[2 * i + 1] = hex[digest[i] & 15];
    }
    out[ISOLATION_SALT_CHARS] = '\0';
}

static bool is_empty_object(struct str body, size_t open) {
    size_t i = open + 1;

    while (i < body.len && is_blank(body.ptr[i]))
        i++;
    return i < body.len && body.ptr[i] == '}';
}

void isolation_splice(struct isolation_splice *out, struct str body, const struct body_scan *scan,
                      bool is_generate, const char *salt) {
    enum body_key key = is_generate ? BODY_EXTRA_KEY : BODY_CACHE_SALT;
    const char *name = is_generate ? "extra_key" : "cache_salt";
    struct str given = scan->spans[key];
    int n;

    if (given.ptr) {
        out->at = (size_t)(given.ptr - body.ptr);
        out->removed = given.len;
        n = snprintf(out->text, sizeof(out->text), "\"%s\"", salt);
    } else {
        const char *open = memchr(body.ptr, '{', body.len);

        assert(open); /* it was scanned: an object */
        out->at = (size_t)(open - body.ptr) + 1;
        out->removed = 0;
        n = snprintf(out->text, sizeof(out->text), "\"%s\":\"%s\"%s", name, salt,
                     is_empty_object(body, out->at - 1) ? "" : ",");
    }
    assert(n > 0 && (size_t)n < sizeof(out->text));
    out->len = (size_t)n;
}
