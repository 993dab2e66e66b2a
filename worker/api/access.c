/* worker/api/access.c - see the header. */
#include "worker/api/access.h"

#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/http/http_server.h"
#include "common/protocol/wire.h"
#include "worker/kv/tiers/peer/peer_frame.h"

#define FILE_MAX_BYTES ((size_t)1 << 20)
#define KEY_MAX_BYTES  1024

struct digest {
    uint8_t bytes[SHA256_BYTES];
};

struct access {
    struct digest *digests;
    uint32_t n, n_given; /* keys of --api-key first, then those of the file */
    char *file;          /* NULL: none */
    struct sha256 *sha;
};

/* What is open to all: whether it lives, how much it does, and what it is. */
static const char *const open_paths[] = {
    "/health",      "/ping",    "/readyz",
    "/livez",       "/version", "/metrics",
    WIRE_INFO_PATH, "/load",    "/admin/drain" /* of this machine alone */,
    PEER_PATH /* which proves a key of its own */};

static void digest_of(const struct access *a, struct str key, struct digest *out) {
    sha256_begin(a->sha);
    sha256_add(a->sha, key.ptr, key.len);
    sha256_end(a->sha, out->bytes);
}

static enum status add_key(struct access *a, struct str key, struct error *err) {
    if (key.len == 0 || key.len > KEY_MAX_BYTES) {
        return error_set_param(err, ST_INVALID, "api-key",
                               "an API key has %zu bytes: use a key of 1 to %d bytes", key.len,
                               KEY_MAX_BYTES);
    }
    for (size_t i = 0; i < key.len; i++) {
        if (key.ptr[i] > ' ' && key.ptr[i] < 127) continue;
        return error_set_param(err, ST_INVALID, "api-key",
                               "an API key has a character at byte %zu that an HTTP header cannot "
                               "carry: use printable ASCII without spaces",
                               i + 1);
    }
    a->digests = mem_realloc(a->digests, (a->n + 1) * sizeof(*a->digests));
    digest_of(a, key, &a->digests[a->n++]);
    return ST_OK;
}

static enum status add_lines(struct access *a, struct str text, struct error *err) {
    enum status st = ST_OK;

    while (text.len > 0 && st == ST_OK) {
        const char *end = memchr(text.ptr, '\n', text.len);
        size_t n = end ? (size_t)(end - text.ptr) : text.len;
        struct str line = str_trim((struct str){text.ptr, n});

        if (line.len && line.ptr[line.len - 1] == '\r') line.len--;
        if (line.len && *line.ptr != '#') st = add_key(a, line, err);
        n += end != NULL;
        text = (struct str){text.ptr + n, text.len - n};
    }
    return st;
}

static enum status add_file(struct access *a, struct error *err) {
    uint32_t n_before = a->n;
    char *text = NULL;
    size_t n = 0;
    enum status st = file_read(a->file, FILE_MAX_BYTES, &text, &n, err);

    if (st == ST_OK) st = add_lines(a, (struct str){text, n}, err);
    if (st == ST_OK && a->n == n_before)
        st = error_set_param(
            err, ST_INVALID, "api-key-file",
            "the file holds no API key: write one key per line, or leave the option out");
    mem_free(text);
    return st == ST_OK ? ST_OK : error_prefix(err, "--api-key-file %s", a->file);
}

enum status access_create(struct access **out, const struct option_list *given, const char *file,
                          struct error *err) {
    struct access *a;
    enum status st = ST_OK;

    *out = NULL;
    if (given->n == 0 && !file) return ST_OK;
    a = mem_zalloc(sizeof(*a));
    a->sha = sha256_create();
    a->file = file ? mem_strdup(file) : NULL;
    for (uint32_t i = 0; i < given->n && st == ST_OK; i++)
        st = add_key(a, str_of(given->items[i]), err);
    a->n_given = a->n;
    if (st == ST_OK && a->file) st = add_file(a, err);
    if (st == ST_OK)
        *out = a;
    else
        access_destroy(a);
    return st;
}

void access_destroy(struct access *a) {
    if (!a) return;
    sha256_destroy(a->sha);
    mem_free(a->digests);
    mem_free(a->file);
    mem_free(a);
}

enum status access_reload(struct access *a, struct error *err) {
    struct digest *before = a->digests;
    uint32_t n_before = a->n;
    enum status st;

    if (!a->file) return ST_OK;
    a->digests = mem_alloc((size_t)MAX(a->n_given, 1u) * sizeof(*a->digests));
    if (a->n_given) memcpy(a->digests, before, a->n_given * sizeof(*before));
    a->n = a->n_given;
    st = add_file(a, err);
    if (st == ST_OK) {
        mem_free(before);
    } else {
        mem_free(a->digests);
        a->digests = before;
        a->n = n_before;
    }
    return st;
}

struct str access_key_of(const struct http_request *req) {
    struct str value = http_request_header(req, STR("authorization")), scheme = STR("bearer ");

    if (value.len <= scheme.len || !str_eq_nocase((struct str){value.ptr, scheme.len}, scheme))
        return str_trim(http_request_header(req, STR("x-api-key")));
    return str_trim((struct str){value.ptr + scheme.len, value.len - scheme.len});
}

enum status access_check(const struct access *a, const struct http_request *req, struct str path,
                         struct error *err) {
    struct digest digest;
    struct str key;
    bool is_known = false;

    if (!a || req->method == HTTP_OPTIONS) return ST_OK;
    for (size_t i = 0; i < ARRAY_LEN(open_paths); i++) {
        if (str_eq(path, str_of(open_paths[i]))) return ST_OK;
    }
    key = access_key_of(req);
    digest_of(a, key, &digest);
    for (uint32_t i = 0; i < a->n; i++) /* all keys, even after a match */
        is_known |= hash_equal(a->digests[i].bytes, digest.bytes, SHA256_BYTES);
    if (is_known && key.len) return ST_OK;
    return error_set(err, ST_DENIED,
                     key.len ? "the API key is unknown: check the header authorization or x-api-key"
                             : "an API key is required: send \"Authorization: Bearer KEY\"");
}
