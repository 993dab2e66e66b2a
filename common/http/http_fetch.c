/* common/http/http_fetch.c - see http_fetch.h. */
#include "common/http/http_fetch.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include <curl/curl.h>

#include "common/base/mem.h"

#define CONNECT_TIMEOUT_S 20L
#define DEFAULT_STALL_S   30u
#define MAX_IGNORED       ((size_t)1 << 20) /* of a body without on_bytes */

struct http_fetch {
    CURL *easy;
    const struct http_fetch_request *request; /* while one runs */
    enum status taken;                        /* result of on_bytes */
    struct error *err;
    size_t n_ignored;
    char message[CURL_ERROR_SIZE];
};

static void init_curl(void) {
    curl_global_init(CURL_GLOBAL_DEFAULT);
}

enum status http_fetch_create(struct http_fetch **out, struct error *err) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct http_fetch *f = mem_zalloc(sizeof(*f));

    pthread_once(&once, init_curl);
    f->easy = curl_easy_init();
    if (!f->easy) {
        http_fetch_destroy(f);
        return error_set(err, ST_NOMEM, "no memory for an HTTP connection");
    }
    *out = f;
    return ST_OK;
}

void http_fetch_destroy(struct http_fetch *f) {
    if (!f) return;
    curl_easy_cleanup(f->easy);
    mem_free(f);
}

/* --- one exchange ----------------------------------------------------------------------------- */
static size_t take_bytes(char *data, size_t size, size_t n, void *arg) {
    struct http_fetch *f = arg;
    long code = 0;

    n *= size;
    if (!f->request->on_bytes) {
        f->n_ignored += n;
        return f->n_ignored > MAX_IGNORED ? CURL_WRITEFUNC_ERROR : n;
    }
    curl_easy_getinfo(f->easy, CURLINFO_RESPONSE_CODE, &code);
    f->taken = f->request->on_bytes(f->request->arg, (int)code, data, n, f->err);
    return f->taken == ST_OK ? n : CURL_WRITEFUNC_ERROR;
}

#define SET(option, value)                                                                         \
    do {                                                                                           \
        if (rc == CURLE_OK) rc = curl_easy_setopt(f->easy, option, value);                         \
    } while (0)

static CURLcode set_up(struct http_fetch *f, const struct http_fetch_request *r) {
    CURLcode rc = CURLE_OK;
    char range[32];

    curl_easy_reset(f->easy); /* connections stay */
    SET(CURLOPT_URL, r->url);
    SET(CURLOPT_PROTOCOLS_STR, r->allows_http ? "http,https" : "https");
    SET(CURLOPT_FOLLOWLOCATION, 0L);
    SET(CURLOPT_NOSIGNAL, 1L);
    SET(CURLOPT_ERRORBUFFER, f->message);
    SET(CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
    SET(CURLOPT_USERAGENT, "incipit/" INCIPIT_VERSION);
    SET(CURLOPT_CONNECTTIMEOUT, CONNECT_TIMEOUT_S);
    SET(CURLOPT_LOW_SPEED_LIMIT, 1L);
    SET(CURLOPT_LOW_SPEED_TIME, (long)(r->stall_s ? r->stall_s : DEFAULT_STALL_S));
    SET(CURLOPT_WRITEFUNCTION, take_bytes);
    SET(CURLOPT_WRITEDATA, f);
    if (r->is_head) SET(CURLOPT_NOBODY, 1L);
    snprintf(range, sizeof(range), "%llu-", (unsigned long long)r->first_byte);
    if (r->first_byte) SET(CURLOPT_RANGE, range); /* not RESUME_FROM, which minds a server's 200 */
    if (r->bearer) SET(CURLOPT_HTTPAUTH, (long)CURLAUTH_BEARER);
    if (r->bearer) SET(CURLOPT_XOAUTH2_BEARER, r->bearer);
    return rc;
}

/* Length of a URL for logs: the query may be a signature that grants access. */
static int shown(const char *url) {
    return (int)MIN(strcspn(url, "?#"), (size_t)200);
}

enum status http_fetch_run(struct http_fetch *f, const struct http_fetch_request *r, int *code,
                           struct error *err) {
    long http_code = 0;
    CURLcode rc;

    f->request = r;
    f->taken = ST_OK;
    f->err = err;
    f->n_ignored = 0;
    f->message[0] = '\0';
    rc = set_up(f, r);
    if (rc == CURLE_OK) rc = curl_easy_perform(f->easy);
    f->request = NULL;
    curl_easy_getinfo(f->easy, CURLINFO_RESPONSE_CODE, &http_code);
    *code = (int)http_code;
    if (f->taken != ST_OK) return f->taken;
    if (rc == CURLE_OK) return ST_OK;
    if (rc == CURLE_WRITE_ERROR && http_code >= 300) return ST_OK; /* a page too long to matter */
    return error_set(err, rc == CURLE_OPERATION_TIMEDOUT ? ST_TIMEOUT : ST_IO, "%.*s: %.200s",
                     shown(r->url), r->url, f->message[0] ? f->message : curl_easy_strerror(rc));
}

const char *http_fetch_header(struct http_fetch *f, const char *name) {
    struct curl_header *h = NULL;

    return curl_easy_header(f->easy, name, 0, CURLH_HEADER, -1, &h) == CURLHE_OK ? h->value : NULL;
}

const char *http_fetch_location(struct http_fetch *f) {
    char *url = NULL;

    curl_easy_getinfo(f->easy, CURLINFO_REDIRECT_URL, &url);
    return url;
}

/* --- origins ---------------------------------------------------------------------------------- */
static bool is_loopback(const char *host) {
    return strcmp(host, "localhost") == 0 || strcmp(host, "[::1]") == 0 ||
           (strncmp(host, "127.", 4) == 0 && strspn(host, "0123456789.") == strlen(host));
}

/* A name, and perhaps a password, before the host: not for logs. */
static bool has_user(const char *url) {
    const char *host = strstr(url, "://");

    host = host ? host + 3 : url;
    return memchr(host, '@', strcspn(host, "/?#"));
}

enum status http_origin_of(struct http_origin *out, const char *url, struct error *err) {
    CURLU *u = curl_url();
    char *scheme = NULL, *host = NULL, *port = NULL, *user = NULL;
    enum status st = ST_OK;

    if (!u || curl_url_set(u, CURLUPART_URL, url, 0) != CURLUE_OK ||
        curl_url_get(u, CURLUPART_SCHEME, &scheme, 0) != CURLUE_OK ||
        curl_url_get(u, CURLUPART_HOST, &host, 0) != CURLUE_OK ||
        curl_url_get(u, CURLUPART_PORT, &port, CURLU_DEFAULT_PORT) != CURLUE_OK ||
        curl_url_get(u, CURLUPART_USER, &user, 0) != CURLUE_NO_USER ||
        (strcmp(scheme, "http") != 0 && strcmp(scheme, "https") != 0) ||
        (size_t)snprintf(out->text, sizeof(out->text), "%s://%s:%s", scheme, host, port) >=
            sizeof(out->text)) {
        st = has_user(url)
                 ? error_set(err, ST_INVALID, "the URL has a user name: use https://host/path")
                 : error_set(err, ST_INVALID, "invalid URL %.*s: use https://host/path", shown(url),
                             url);
    } else {
        out->is_https = strcmp(scheme, "https") == 0;
        out->is_loopback = is_loopback(host);
    }
    curl_free(scheme);
    curl_free(host);
    curl_free(port);
    curl_free(user);
    curl_url_cleanup(u);
    return st;
}
