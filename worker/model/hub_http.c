/* worker/model/hub_http.c - see hub_internal.h: one file over HTTP, resumed after failures.
 *
 * Each exchange starts at the endpoint and follows redirects itself, since a token belongs to one
 * origin and a redirect may lead anywhere. A transfer that is cut is tried again from where it was,
 * for as long as attempts bring bytes; ATTEMPTS that bring none in a row are the end of it. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "worker/model/hub_internal.h"

#define MAX_REDIRECTS  5
#define ATTEMPTS       5
#define FIRST_PAUSE_MS 200u
#define MAX_PAUSE_MS   10000u
#define READ_BYTES     ((size_t)1 << 20)
#define GIB            (1024.0 * 1024.0 * 1024.0)
#define MAX_URL        4096
#define MAX_FILE_BYTES ((uint64_t)1 << 50) /* so that no sum of sizes wraps around */

static void report_trouble(struct hub *h, const char *why, const char *instead) {
    const struct hub_events *on = &h->config->events;

    if (on->on_trouble) on->on_trouble(on->arg, why, instead);
}

static void pause_before(uint32_t attempt) {
    uint32_t ms = MIN(FIRST_PAUSE_MS << MIN(attempt, 10u), MAX_PAUSE_MS);
    struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};

    nanosleep(&t, NULL);
}

static bool is_worth_another(enum status st) {
    return st == ST_IO || st == ST_TIMEOUT || st == ST_UNAVAILABLE;
}

/* --- redirects and codes ---------------------------------------------------------------------- */
/* Follows redirects; `stops_elsewhere`: not to other origins, the answer that leads there is it. */
static enum status exchange(struct hub *h, const char *url, struct http_fetch_request *request,
                            bool stops_elsewhere, int *code, struct error *err) {
    char at[MAX_URL];
    int n_redirects = 0;

    snprintf(at, sizeof(at), "%s", url);
    for (;;) {
        struct http_origin origin;
        const char *location;
        bool is_ours;
        enum status st = http_origin_of(&origin, at, err);

        if (st != ST_OK) return st;
        is_ours = str_eq_nocase(str_of(origin.text), str_of(h->origin.text));
        if (!origin.is_https && !(origin.is_loopback && !h->origin.is_https))
            return error_set(err, ST_FORBIDDEN,
                             "%.100s redirects to %.100s, which is not https: check HF_ENDPOINT",
                             h->endpoint, origin.text);
        request->url = at;
        request->allows_http = !origin.is_https;
        request->bearer = is_ours && h->token[0] ? h->token : NULL;
        st = http_fetch_run(h->http, request, code, err);
        if (st != ST_OK || *code < 300 || *code >= 400) return st;
        location = http_fetch_location(h->http);
        if (!location || strlen(location) >= sizeof(at))
            return error_set(err, ST_BAD_GATEWAY,
                             "%.*s redirects (%d) without a Location header: check HF_ENDPOINT",
                             (int)MIN(strcspn(at, "?"), (size_t)200), at, *code);
        if (stops_elsewhere) {
            st = http_origin_of(&origin, location, err);
            if (st != ST_OK) return st;
            if (!str_eq_nocase(str_of(origin.text), str_of(h->origin.text))) return ST_OK;
        }
        if (++n_redirects > MAX_REDIRECTS)
            return error_set(err, ST_BAD_GATEWAY,
                             "%.200s redirects more than %d times: check HF_ENDPOINT", url,
                             MAX_REDIRECTS);
        memmove(at, location, strlen(location) + 1);
    }
}

static enum status refused(const struct hub *h, int code, const char *what, struct error *err) {
    const char *cause = http_fetch_header(h->http, "x-error-code");
    bool is_gate = cause && strcmp(cause, "GatedRepo") == 0;

    if (code == 401 && cause && strcmp(cause, "RepoNotFound") == 0 && !h->token[0])
        return error_set(err, ST_DENIED,
                         "there is neither a folder %s nor a public model of that name at %.100s "
                         "(401): check the name, or set HF_TOKEN to a token that may read it",
                         h->name, h->endpoint);
    if ((code == 401 || code == 403) && !h->token[0])
        return error_set(err, ST_DENIED,
                         "%s is %s (%d): accept its terms at %.100s/%s, make a token at "
                         "%.100s/settings/tokens and set it in HF_TOKEN",
                         h->name, is_gate ? "gated" : "gated or private", code, h->endpoint,
                         h->name, h->endpoint);
    if (code == 401 || code == 403)
        return error_set(err, ST_DENIED,
                         "%s is %s and the token in HF_TOKEN may not read it (%d): accept its "
                         "terms at %.100s/%s with the token's account, or set another token",
                         h->name, is_gate ? "gated" : "gated or private", code, h->endpoint,
                         h->name);
    if (code == 404 && cause && strcmp(cause, "RevisionNotFound") == 0)
        return error_set(err, ST_NOT_FOUND, "%s has no revision '%.100s' (404): see %.100s/%s",
                         h->name, h->config->revision, h->endpoint, h->name);
    if (code == 404 && what != h->name)
        return error_set(err, ST_NOT_FOUND,
                         "%s at %s has no file %.200s (404), although its listing or index names "
                         "the file: use another revision",
                         h->name, h->config->revision, what);
    if (code == 404)
        return error_set(err, ST_NOT_FOUND,
                         "there is neither a folder %s nor a model of that name at %.100s (404): "
                         "check the name",
                         h->name, h->endpoint);
    if (code == 429 || code >= 500)
        return error_set(err, ST_UNAVAILABLE, "%.100s returned %d for %.200s: retry later",
                         h->endpoint, code, what);
    return error_set(err, ST_BAD_GATEWAY, "%.100s returned %d for %.200s", h->endpoint, code, what);
}

/* --- small answers ---------------------------------------------------------------------------- */
static enum status collect(void *arg, int code, const void *data, size_t n, struct error *err) {
    struct buf *out = arg;

    if (code != 200) return ST_OK;
    buf_append(out, data, n);
    if (buf_status(out) == ST_OK) return ST_OK;
    return error_set(err, ST_TOO_LARGE, "the response is longer than %zu bytes", out->limit);
}

enum status hub_http_get(struct hub *h, const char *url, const char *what, struct buf *out,
                         struct error *err) {
    for (uint32_t attempt = 0;; attempt++) {
        struct http_fetch_request request = {.on_bytes = collect, .arg = out};
        int code = 0;
        enum status st;

        buf_clear(out);
        st = exchange(h, url, &request, false, &code, err);
        if (st == ST_OK && code != 200) st = refused(h, code, what, err);
        if (!is_worth_another(st) || attempt + 1 == ATTEMPTS) return st;
        report_trouble(h, err->message, "retrying");
        pause_before(attempt);
    }
}

static void file_url(const struct hub *h, const struct hub_file *file, char url[MAX_URL]) {
    snprintf(url, MAX_URL, "%s/%s/resolve/%s/%s", h->endpoint, h->name, h->commit, file->name);
}

/* "W/\"abc\"" is abc. */
static struct str bare_etag(const char *value) {
    struct str s = str_of(value);

    if (str_starts(s, STR("W/"))) s = (struct str){s.ptr + 2, s.len - 2};
    if (s.len >= 2 && s.ptr[0] == '"' && s.ptr[s.len - 1] == '"')
        s = (struct str){s.ptr + 1, s.len - 2};
    return s;
}

static enum status read_description(struct hub *h, struct hub_file *file, struct error *err) {
    const char *linked = http_fetch_header(h->http, "x-linked-etag");
    const char *size = http_fetch_header(h->http, linked ? "x-linked-size" : "content-length");
    const char *value = linked ? linked : http_fetch_header(h->http, "etag");
    struct str etag = value ? bare_etag(value) : STR_NULL;

    if (!hub_is_etag(etag) || !size || str_to_u64(str_of(size), &file->n_bytes) != ST_OK ||
        file->n_bytes > MAX_FILE_BYTES)
        return error_set(err, ST_BAD_GATEWAY,
                         "the response of %.100s has no valid ETag or size for %s: check that "
                         "HF_ENDPOINT is a hub",
                         h->endpoint, file->name);
    snprintf(file->etag, sizeof(file->etag), STR_FMT, STR_ARG(etag));
    file->is_sha256 = etag.len == 64 && strspn(file->etag, "0123456789abcdef") == 64;
    file->is_known = true;
    return ST_OK;
}

enum status hub_http_describe(struct hub *h, struct hub_file *file, struct error *err) {
    char url[MAX_URL];

    if (file->is_known) return ST_OK;
    file_url(h, file, url);
    for (uint32_t attempt = 0;; attempt++) {
        struct http_fetch_request request = {.is_head = true};
        int code = 0;
        enum status st = exchange(h, url, &request, true, &code, err);

        if (st == ST_OK && code >= 400) st = refused(h, code, file->name, err);
        if (st == ST_OK) return read_description(h, file, err);
        if (!is_worth_another(st) || attempt + 1 == ATTEMPTS) return st;
        report_trouble(h, err->message, "retrying");
        pause_before(attempt);
    }
}

/* --- large ones ------------------------------------------------------------------------------- */
struct download {
    struct hub *h;
    const struct hub_file *file;
    char path[HUB_PATH_MAX]; /* of the incomplete file */
    int fd;
    uint64_t n_have;  /* bytes of it that are written, and in h->sha */
    bool has_started; /* the body of this answer */
};

static enum status cannot_write(const struct download *d, struct error *err) {
    if (errno == ENOSPC || errno == EDQUOT)
        return error_set(err, ST_NOMEM,
                         "the disk of %.200s is full with %.2f of %.2f GiB of %s: free space and "
                         "start again, or name another folder with --download-dir",
                         d->h->cache.root, (double)d->n_have / GIB, (double)d->file->n_bytes / GIB,
                         d->file->name);
    return error_set(err, ST_INTERNAL, "cannot write %.300s: %s", d->path, strerror(errno));
}

static enum status start_over(struct download *d, struct error *err) {
    if (ftruncate(d->fd, 0) != 0 || lseek(d->fd, 0, SEEK_SET) != 0) return cannot_write(d, err);
    sha256_begin(d->h->sha);
    d->n_have = 0;
    return ST_OK;
}

/* The bytes left by an earlier attempt of any process. */
static enum status take_up(struct download *d, struct error *err) {
    uint8_t *piece = mem_alloc(READ_BYTES);
    enum status st = ST_OK;
    ssize_t n;

    sha256_begin(d->h->sha);
    d->n_have = 0;
    while ((n = read(d->fd, piece, READ_BYTES)) > 0) {
        sha256_add(d->h->sha, piece, (size_t)n);
        d->n_have += (uint64_t)n;
    }
    mem_free(piece);
    if (n < 0 || d->n_have > d->file->n_bytes) st = start_over(d, err);
    return st;
}

/* A server may answer with all of it, or with another part: then what we have is worth nothing. */
static enum status check_start(struct download *d, int code, struct error *err) {
    const char *range = http_fetch_header(d->h->http, "content-range");
    unsigned long long first = 0;

    d->has_started = true;
    if (code == 200 && d->n_have > 0) return start_over(d, err);
    if (code == 200) return ST_OK;
    if (range && sscanf(range, "bytes %llu-", &first) == 1 && first == d->n_have) return ST_OK;
    return error_set(err, ST_BAD_GATEWAY, "%s: requested bytes from %llu on, but received '%.60s'",
                     d->file->name, (unsigned long long)d->n_have, range ? range : "no range");
}

static enum status take_piece(void *arg, int code, const void *data, size_t n, struct error *err) {
    struct download *d = arg;
    const struct hub_events *on = &d->h->config->events;
    enum status st;

    if (code != 200 && code != 206) return ST_OK;
    if (!d->has_started && (st = check_start(d, code, err)) != ST_OK) return st;
    if (n > d->file->n_bytes - d->n_have)
        return error_set(
            err, ST_BAD_GATEWAY,
            "%s is longer than the %llu bytes that the hub declares: download it again",
            d->file->name, (unsigned long long)d->file->n_bytes);
    for (size_t at = 0; at < n;) {
        ssize_t put = write(d->fd, (const char *)data + at, n - at);

        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return cannot_write(d, err);
        at += (size_t)put;
    }
    sha256_add(d->h->sha, data, n);
    d->n_have += n;
    if (on->on_bytes && d->h->total_bytes) /* not for the index, which gives the total */
        on->on_bytes(on->arg, d->file->name, d->h->done_bytes + d->n_have, d->h->total_bytes);
    return ST_OK;
}

/* One attempt: the rest of it, or less. */
static enum status take_rest(struct download *d, struct error *err) {
    struct http_fetch_request request = {.first_byte = d->n_have, .on_bytes = take_piece, .arg = d};
    char url[MAX_URL];
    int code = 0;
    enum status st;

    file_url(d->h, d->file, url);
    d->has_started = false;
    st = exchange(d->h, url, &request, false, &code, err);
    if (st == ST_OK && code == 416) { /* there is less than we have */
        st = start_over(d, err);
        return st == ST_OK
                   ? error_set(err, ST_IO, "%s: the server has no bytes in the requested range",
                               d->file->name)
                   : st;
    }
    if (st == ST_OK && code != 200 && code != 206) st = refused(d->h, code, d->file->name, err);
    if (st == ST_OK && d->n_have < d->file->n_bytes)
        st = error_set(err, ST_IO, "%s: the response ended after %llu of %llu bytes", d->file->name,
                       (unsigned long long)d->n_have, (unsigned long long)d->file->n_bytes);
    return st;
}

static enum status take_all(struct download *d, struct error *err) {
    uint32_t attempt = 0;

    while (d->n_have < d->file->n_bytes) {
        uint64_t before = d->n_have;
        enum status st = take_rest(d, err);

        if (st == ST_OK) continue;
        attempt = d->n_have > before ? 0 : attempt + 1;
        if (!is_worth_another(st) || attempt == ATTEMPTS) return st;
        report_trouble(d->h, err->message, "resuming");
        pause_before(attempt);
    }
    return ST_OK;
}

static enum status verify(struct download *d, struct error *err) {
    uint8_t digest[SHA256_BYTES];
    char hex[SHA256_BYTES * 2 + 1];

    sha256_end(d->h->sha, digest);
    for (int i = 0; i < SHA256_BYTES; i++)
        snprintf(hex + i * 2, 3, "%02x", digest[i]);
    if (!d->file->is_sha256 || strcmp(hex, d->file->etag) == 0) return ST_OK;
    unlink(d->path);
    return error_set(err, ST_BAD_GATEWAY,
                     "%s of %s has the SHA-256 %s, but the hub reports %s: the damaged file is "
                     "removed; start again",
                     d->file->name, d->h->name, hex, d->file->etag);
}

static enum status fetch_blob(struct download *d, const char *blob, struct error *err) {
    enum status st;

    d->fd = open(d->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (d->fd < 0)
        return error_set(err, ST_INTERNAL, "cannot open %.300s: %s", d->path, strerror(errno));
    st = take_up(d, err);
    if (st == ST_OK) st = take_all(d, err);
    if (st == ST_OK) st = verify(d, err);
    if (st == ST_OK && (fsync(d->fd) != 0 || rename(d->path, blob) != 0)) st = cannot_write(d, err);
    close(d->fd);
    return st;
}

static void on_wait(void *arg) {
    report_trouble(arg, "another process is fetching a file of this model",
                   "waiting for the other process");
}

enum status hub_http_download(struct hub *h, const struct hub_file *file, struct error *err) {
    struct download d = {.h = h, .file = file};
    char blob[HUB_PATH_MAX];
    struct stat sb;
    enum status st;
    int lock;

    hub_cache_blob_path(&h->cache, file->etag, "", blob);
    hub_cache_blob_path(&h->cache, file->etag, ".incomplete", d.path);
    if (stat(blob, &sb) != 0) {
        st = hub_cache_lock(&h->cache, file->etag, on_wait, h, &lock, err);
        if (st != ST_OK) return st;
        if (stat(blob, &sb) != 0) st = fetch_blob(&d, blob, err); /* unless the other brought it */
        close(lock);
        if (st != ST_OK) return st;
    }
    h->done_bytes += file->n_bytes;
    return ST_OK;
}
