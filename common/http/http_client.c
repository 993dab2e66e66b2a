/* common/http/http_client.c - libcurl's multi interface on a loop; the only file that includes
 * libcurl.
 *
 * curl requests sockets to watch and a timer; the loop reports what is ready. Finished calls and
 * pieces of streams are delivered from our own events, never from inside curl, so that a callback
 * may start and cancel calls. Proxies from the environment are ignored: calls go to workers. */
#include "common/http/http_client.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <curl/curl.h>

#include "common/base/list.h"
#include "common/base/mem.h"
#include "common/http/http_parse.h"
#include "common/net/loop.h"

#define DEFAULT_TIMEOUT_MS         5000
#define DEFAULT_CONNECT_TIMEOUT_MS 250
#define MAX_IDLE                   1024L /* connections kept: curl's own limit is less than a fleet */
#define MAX_SPARES                 16u

/* A stream's peer that is gone without a word is noticed by the kernel, data under way or not. */
#define KEEPALIVE_IDLE_S     15
#define KEEPALIVE_INTERVAL_S 5
#define KEEPALIVE_COUNT      3
#define USER_TIMEOUT_MS      30000

struct http_client {
    struct loop *loop;
    CURLM *multi;
    struct loop_timer timer;
    struct list calls, sockets;
    struct list fresh; /* streams with bytes to deliver */
    struct http_client_trust trust;
    char *header;             /* of every request, or NULL */
    CURL *spares[MAX_SPARES]; /* of calls that have ended: a new one costs more than a reset */
    uint32_t n_spares;
};

struct socket_watch {
    struct list link;
    struct http_client *client;
    struct loop_fd watch;
};

struct http_call {
    struct list link;
    struct http_client *client;
    CURL *easy;
    struct curl_slist *headers, *connect_to;
    struct buf answer;
    char *request_body;
    http_client_fn *fn;
    http_client_data_fn *on_data; /* NULL: not a stream */
    void *arg;
    struct list fresh; /* on its client's */
    struct loop_timer silence;
    uint64_t silence_us;
    bool is_held;
    char message[CURL_ERROR_SIZE];
};

static void init_curl(void) {
    curl_global_init(CURL_GLOBAL_DEFAULT);
}

/* --- the end of a call ------------------------------------------------------------------------ */

static CURL *take_handle(struct http_client *client) {
    return client->n_spares ? client->spares[--client->n_spares] : curl_easy_init();
}

static void give_handle_back(struct http_client *client, CURL *easy) {
    curl_multi_remove_handle(client->multi, easy);
    if (client->n_spares == MAX_SPARES) {
        curl_easy_cleanup(easy);
        return;
    }
    curl_easy_reset(easy);
    client->spares[client->n_spares++] = easy;
}

static void call_destroy(struct http_call *call) {
    if (call->easy) give_handle_back(call->client, call->easy);
    curl_slist_free_all(call->headers);
    curl_slist_free_all(call->connect_to);
    buf_fini(&call->answer);
    mem_free(call->request_body);
    loop_timer_fini(&call->silence);
    if (list_is_linked(&call->fresh)) list_remove(&call->fresh);
    list_remove(&call->link);
    mem_free(call);
}

static enum status status_of(const struct http_call *call, CURLcode code) {
    if (call->answer.has_failed) return ST_TOO_LARGE;
    if (code == CURLE_OK) return ST_OK;
    return code == CURLE_OPERATION_TIMEDOUT ? ST_TIMEOUT : ST_IO;
}

static void finish(struct http_call *call, CURLcode code) {
    struct http_client_response r = {.status = status_of(call, code), .message = ""};
    curl_off_t elapsed_us = 0, retry_after_s = 0;
    const char *content_type = NULL;
    long http_code = 0, request_bytes = 0;

    curl_easy_getinfo(call->easy, CURLINFO_RESPONSE_CODE, &http_code);
    curl_easy_getinfo(call->easy, CURLINFO_TOTAL_TIME_T, &elapsed_us);
    curl_easy_getinfo(call->easy, CURLINFO_CONTENT_TYPE, &content_type);
    r.code = (int)http_code;
    curl_easy_getinfo(call->easy, CURLINFO_RETRY_AFTER, &retry_after_s);
    curl_easy_getinfo(call->easy, CURLINFO_REQUEST_SIZE, &request_bytes);
    r.was_sent = request_bytes > 0;
    r.elapsed_us = (uint64_t)elapsed_us;
    r.retry_after_s = (uint32_t)MIN(MAX(retry_after_s, 0), UINT32_MAX);
    r.content_type = content_type ? str_of(content_type) : STR("");
    if (r.status == ST_OK) {
        r.body = call->answer.data ? buf_str(&call->answer) : STR("");
    } else if (r.status == ST_TOO_LARGE) {
        r.message = "the answer is longer than allowed";
    } else {
        r.message = call->message[0] ? call->message : curl_easy_strerror(code);
    }
    call->fn(&r, call->arg);
    call_destroy(call);
}

static void finish_done(struct http_client *client) {
    CURLMsg *msg;
    int n_left;

    while ((msg = curl_multi_info_read(client->multi, &n_left))) {
        struct http_call *call = NULL;

        if (msg->msg != CURLMSG_DONE) continue;
        curl_easy_getinfo(msg->easy_handle, CURLINFO_PRIVATE, (char **)&call);
        finish(call, msg->data.result);
    }
}

/* --- streams ---------------------------------------------------------------------------------- */

static void silence_is_over(void *arg) {
    struct http_call *call = arg;

    snprintf(call->message, sizeof(call->message), "nothing was heard for %u s",
             (unsigned)(call->silence_us / 1000000));
    finish(call, CURLE_OPERATION_TIMEDOUT);
}

/* The peer's silence begins now, unless we have paused the stream. */
static void begin_silence(struct http_call *call) {
    if (call->silence_us && !call->is_held) loop_timer_start(&call->silence, call->silence_us);
}

/* What the callback is given stays where it is until it returns, even when it cancels the call. */
static void deliver_piece(struct http_call *call) {
    struct buf piece = call->answer;
    long code = 0;

    curl_easy_getinfo(call->easy, CURLINFO_RESPONSE_CODE, &code);
    buf_init(&call->answer, piece.limit);
    call->answer.has_failed = piece.has_failed; /* its end reports that */
    begin_silence(call);
    call->on_data((int)code, buf_str(&piece), call->arg);
    buf_fini(&piece);
}

/* Delivers pieces, then ends: a stream's last piece precedes its end. */
static void deliver_pieces(struct http_client *client) {
    struct list *link;

    while ((link = list_pop_front(&client->fresh))) {
        deliver_piece(LIST_ENTRY(link, struct http_call, fresh));
    }
    finish_done(client);
}

/* --- curl's sockets and time on the loop ------------------------------------------------------ */

static void socket_is_ready(unsigned ready, void *arg) {
    struct socket_watch *s = arg;
    struct http_client *client = s->client;
    int n_running;

    curl_multi_socket_action(client->multi, s->watch.fd,
                             ready == LOOP_READ ? CURL_CSELECT_IN : CURL_CSELECT_OUT, &n_running);
    deliver_pieces(client); /* the watch may be gone */
}

static void time_is_up(void *arg) {
    struct http_client *client = arg;
    int n_running;

    curl_multi_socket_action(client->multi, CURL_SOCKET_TIMEOUT, 0, &n_running);
    deliver_pieces(client);
}

static int set_timer(CURLM *multi, long timeout_ms, void *arg) {
    struct http_client *client = arg;

    (void)multi;
    if (timeout_ms < 0) {
        loop_timer_stop(&client->timer);
    } else {
        loop_timer_start(&client->timer, (uint64_t)timeout_ms * 1000);
    }
    return 0;
}

static void socket_watch_destroy(struct socket_watch *s) {
    loop_fd_fini(&s->watch);
    list_remove(&s->link);
    mem_free(s);
}

static int set_socket(CURL *easy, curl_socket_t fd, int what, void *arg, void *socket_arg) {
    struct http_client *client = arg;
    struct socket_watch *s = socket_arg;

    (void)easy;
    if (what == CURL_POLL_REMOVE) {
        if (s) socket_watch_destroy(s);
        return 0;
    }
    if (!s) {
        s = mem_zalloc(sizeof(*s));
        s->client = client;
        loop_fd_init(&s->watch, client->loop, fd, socket_is_ready, s);
        list_push_back(&client->sockets, &s->link);
        curl_multi_assign(client->multi, fd, s);
    }
    loop_fd_watch(&s->watch, (what & CURL_POLL_IN ? LOOP_READ : 0u) |
                                 (what & CURL_POLL_OUT ? LOOP_WRITE : 0u));
    return 0;
}

/* --- the client ------------------------------------------------------------------------------- */

enum status http_client_create(struct http_client **out, struct loop *loop, struct error *err) {
    static pthread_once_t once = PTHREAD_ONCE_INIT; /* curl's own global state */
    struct http_client *client = mem_zalloc(sizeof(*client));

    pthread_once(&once, init_curl);
    client->loop = loop;
    list_init(&client->calls);
    list_init(&client->sockets);
    list_init(&client->fresh);
    loop_timer_init(&client->timer, loop, time_is_up, client);
    client->multi = curl_multi_init();
    if (!client->multi) {
        http_client_destroy(client);
        return error_set(err, ST_NOMEM, "cannot start libcurl: out of memory");
    }
    curl_multi_setopt(client->multi, CURLMOPT_MAXCONNECTS, MAX_IDLE);
    curl_multi_setopt(client->multi, CURLMOPT_SOCKETFUNCTION, set_socket);
    curl_multi_setopt(client->multi, CURLMOPT_SOCKETDATA, client);
    curl_multi_setopt(client->multi, CURLMOPT_TIMERFUNCTION, set_timer);
    curl_multi_setopt(client->multi, CURLMOPT_TIMERDATA, client);
    *out = client;
    return ST_OK;
}

void http_client_header(struct http_client *client, const char *line) {
    mem_free(client->header);
    client->header = line ? mem_strdup(line) : NULL;
}

void http_client_trust(struct http_client *client, const struct http_client_trust *trust) {
    client->trust = *trust;
}

void http_client_destroy(struct http_client *client) {
    struct list *link;

    if (!client) return;
    while ((link = list_first(&client->calls))) {
        call_destroy(LIST_ENTRY(link, struct http_call, link));
    }
    while (client->n_spares)
        curl_easy_cleanup(client->spares[--client->n_spares]);
    if (client->multi) curl_multi_cleanup(client->multi); /* closes idle connections: set_socket */
    while ((link = list_first(&client->sockets))) {
        socket_watch_destroy(LIST_ENTRY(link, struct socket_watch, link));
    }
    loop_timer_fini(&client->timer);
    mem_free(client->header);
    mem_free(client);
}

/* --- starting a call -------------------------------------------------------------------------- */

static size_t take_answer(char *data, size_t size, size_t n, void *arg) {
    struct http_call *call = arg;

    buf_append(&call->answer, data, size * n);
    if (call->on_data && buf_len(&call->answer) && !list_is_linked(&call->fresh)) {
        list_push_back(&call->client->fresh, &call->fresh);
    }
    return call->answer.has_failed ? 0 : size * n; /* 0 ends the transfer */
}

static bool is_one_line(const char *s) {
    return !strpbrk(s, "\r\n");
}

static enum status check(const struct http_client_request *r, struct error *err) {
    if (strncmp(r->url, "http://", 7) != 0 && strncmp(r->url, "https://", 8) != 0) {
        return error_set(err, ST_INVALID, "invalid URL '%s': begin it with http:// or https://",
                         r->url);
    }
    if (!is_one_line(r->url) || (r->method && !http_is_token(str_of(r->method)))) {
        return error_set(err, ST_INVALID,
                         "invalid byte in the method or in the URL '%s': remove it", r->url);
    }
    for (const char *const *h = r->headers; h && *h; h++) {
        if (!is_one_line(*h) || !strchr(*h, ':')) {
            return error_set(err, ST_INVALID, "invalid header for %s: use 'name: value'", r->url);
        }
    }
    return ST_OK;
}

/* Remembers the first option that curl refused. */
#define SET(call, rc, option, value)                                                               \
    do {                                                                                           \
        if ((rc) == CURLE_OK) (rc) = curl_easy_setopt((call)->easy, option, value);                \
    } while (0)

static CURLcode set_body(struct http_call *call, const struct http_client_request *r) {
    CURLcode rc = CURLE_OK;

    if (r->body.ptr) {
        call->request_body = mem_strndup(r->body.ptr, r->body.len);
        SET(call, rc, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)r->body.len);
        SET(call, rc, CURLOPT_POSTFIELDS, call->request_body);
    }
    if (r->method && strcmp(r->method, "HEAD") == 0) {
        SET(call, rc, CURLOPT_NOBODY, 1L);
    } else if (r->method) {
        SET(call, rc, CURLOPT_CUSTOMREQUEST, r->method);
    }
    return rc;
}

static CURLcode set_headers(struct http_call *call, const struct http_client_request *r) {
    CURLcode rc = CURLE_OK;

    call->headers = curl_slist_append(NULL, "Expect:"); /* no waiting for 100 Continue */
    for (const char *const *h = r->headers; h && *h && call->headers; h++) {
        struct curl_slist *longer = curl_slist_append(call->headers, *h);

        if (!longer) return CURLE_OUT_OF_MEMORY;
        call->headers = longer;
    }
    if (call->headers && call->client->header) {
        struct curl_slist *longer = curl_slist_append(call->headers, call->client->header);

        if (!longer) return CURLE_OUT_OF_MEMORY;
        call->headers = longer;
    }
    if (!call->headers) return CURLE_OUT_OF_MEMORY;
    SET(call, rc, CURLOPT_HTTPHEADER, call->headers);
    return rc;
}

/* The name stays in the Host header and in TLS. */
static CURLcode set_address(struct http_call *call, const struct http_client_request *r) {
    CURLcode rc = CURLE_OK;
    char rule[128];

    if (!r->connect_to) return rc;
    snprintf(rule, sizeof(rule), "::%s", r->connect_to);
    call->connect_to = curl_slist_append(NULL, rule);
    if (!call->connect_to) return CURLE_OUT_OF_MEMORY;
    SET(call, rc, CURLOPT_CONNECT_TO, call->connect_to);
    return rc;
}

static CURLcode set_blob(struct http_call *call, CURLoption option, struct str pem) {
    struct curl_blob blob = {.data = (void *)(uintptr_t)pem.ptr, .len = pem.len};

    blob.flags = CURL_BLOB_COPY;
    return curl_easy_setopt(call->easy, option, &blob);
}

static CURLcode set_authorities(struct http_call *call, const struct http_client_trust *trust) {
    CURLcode rc = CURLE_OK;
    struct stat s;

    if (trust->ca_pem.len) {
        rc = set_blob(call, CURLOPT_CAINFO_BLOB, trust->ca_pem);
        SET(call, rc, CURLOPT_CAPATH, NULL);
    } else if (trust->ca) {
        bool is_folder = stat(trust->ca, &s) == 0 && S_ISDIR(s.st_mode);

        SET(call, rc, is_folder ? CURLOPT_CAPATH : CURLOPT_CAINFO, trust->ca);
        SET(call, rc, is_folder ? CURLOPT_CAINFO : CURLOPT_CAPATH, NULL); /* not the system's too */
        SET(call, rc, CURLOPT_CA_CACHE_TIMEOUT, 0L); /* a new file counts at once */
    }
    return rc;
}

static CURLcode set_trust(struct http_call *call) {
    const struct http_client_trust *trust = &call->client->trust;
    CURLcode rc = set_authorities(call, trust);

    SET(call, rc, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
    if (rc == CURLE_OK && trust->cert_pem.len) {
        rc = set_blob(call, CURLOPT_SSLCERT_BLOB, trust->cert_pem);
    } else if (trust->cert) {
        SET(call, rc, CURLOPT_SSLCERT, trust->cert);
    }
    if (rc == CURLE_OK && trust->key_pem.len) {
        rc = set_blob(call, CURLOPT_SSLKEY_BLOB, trust->key_pem);
    } else if (trust->key) {
        SET(call, rc, CURLOPT_SSLKEY, trust->key);
    }
    SET(call, rc, CURLOPT_SSL_VERIFYPEER, trust->is_insecure ? 0L : 1L);
    SET(call, rc, CURLOPT_SSL_VERIFYHOST, trust->is_insecure ? 0L : 2L);
    return rc;
}

static int set_probing(void *arg, curl_socket_t fd, curlsocktype purpose) {
    int timeout_ms = USER_TIMEOUT_MS, n = KEEPALIVE_COUNT;

    (void)arg;
    (void)purpose;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof(timeout_ms));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &n, sizeof(n));
    return CURL_SOCKOPT_OK;
}

static CURLcode set_probes(struct http_call *call) {
    CURLcode rc = CURLE_OK;

    SET(call, rc, CURLOPT_TCP_KEEPALIVE, 1L);
    SET(call, rc, CURLOPT_TCP_KEEPIDLE, (long)KEEPALIVE_IDLE_S);
    SET(call, rc, CURLOPT_TCP_KEEPINTVL, (long)KEEPALIVE_INTERVAL_S);
    SET(call, rc, CURLOPT_SOCKOPTFUNCTION, set_probing);
    return rc;
}

static CURLcode set_options(struct http_call *call, const struct http_client_request *r) {
    long timeout_ms = r->timeout_ms ? (long)r->timeout_ms : DEFAULT_TIMEOUT_MS;
    bool is_tls = strncmp(r->url, "https:", 6) == 0;
    long connect_ms = r->connect_timeout_ms ? (long)r->connect_timeout_ms
                      : is_tls              ? timeout_ms
                                            : DEFAULT_CONNECT_TIMEOUT_MS;
    CURLcode rc = CURLE_OK;

    SET(call, rc, CURLOPT_URL, r->url);
    SET(call, rc, CURLOPT_PRIVATE, call);
    SET(call, rc, CURLOPT_ERRORBUFFER, call->message);
    SET(call, rc, CURLOPT_WRITEFUNCTION, take_answer);
    SET(call, rc, CURLOPT_WRITEDATA, call);
    SET(call, rc, CURLOPT_FRESH_CONNECT, r->is_sent_once ? 1L : 0L);
    SET(call, rc, CURLOPT_NOSIGNAL, 1L);
    SET(call, rc, CURLOPT_QUICK_EXIT, 1L); /* a lookup that is given up is not waited for */
    SET(call, rc, CURLOPT_PROXY, "");
    SET(call, rc, CURLOPT_PROTOCOLS_STR, "http,https");
    SET(call, rc, CURLOPT_FOLLOWLOCATION, 0L);
    SET(call, rc, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    SET(call, rc, CURLOPT_TIMEOUT_MS, timeout_ms);
    SET(call, rc, CURLOPT_CONNECTTIMEOUT_MS, MIN(connect_ms, timeout_ms));
    SET(call, rc, CURLOPT_USERAGENT, "incipit/" INCIPIT_VERSION);
    if (rc == CURLE_OK) rc = set_address(call, r);
    if (rc == CURLE_OK) rc = set_headers(call, r);
    if (rc == CURLE_OK) rc = set_body(call, r);
    if (rc == CURLE_OK && r->on_data) SET(call, rc, CURLOPT_TIMEOUT_MS, (long)r->timeout_ms);
    if (rc == CURLE_OK && (r->on_data || r->is_probed)) rc = set_probes(call);
    return rc == CURLE_OK && is_tls ? set_trust(call) : rc;
}

enum status http_client_start(struct http_client *client, const struct http_client_request *request,
                              http_client_fn *fn, void *arg, struct http_call **out,
                              struct error *err) {
    enum status st = check(request, err);
    struct http_call *call;
    CURLcode rc;

    if (st != ST_OK) return st;
    call = mem_zalloc(sizeof(*call));
    call->client = client;
    call->fn = fn;
    call->on_data = request->on_data;
    call->arg = arg;
    loop_timer_init(&call->silence, client->loop, silence_is_over, call);
    buf_init(&call->answer,
             request->max_body_bytes ? request->max_body_bytes : HTTP_CLIENT_MAX_BODY_BYTES);
    list_push_back(&client->calls, &call->link);
    call->easy = take_handle(client);
    rc = call->easy ? set_options(call, request) : CURLE_OUT_OF_MEMORY;
    if (rc == CURLE_OK && curl_multi_add_handle(client->multi, call->easy) != CURLM_OK) {
        rc = CURLE_FAILED_INIT;
    }
    if (rc != CURLE_OK) {
        call_destroy(call);
        return error_set(err, ST_INVALID, "cannot call %s: %s", request->url,
                         curl_easy_strerror(rc));
    }
    call->silence_us = (uint64_t)request->silence_ms * 1000;
    begin_silence(call);
    if (out) *out = call;
    return ST_OK;
}

void http_call_pause(struct http_call *call, bool is_held) {
    call->is_held = is_held;
    loop_timer_stop(&call->silence);
    begin_silence(call);
    (void)curl_easy_pause(call->easy, is_held ? CURLPAUSE_RECV : CURLPAUSE_CONT);
}

void http_call_cancel(struct http_call *call) {
    if (call) call_destroy(call);
}

int http_call_code(const struct http_call *call) {
    long code = 0;

    curl_easy_getinfo(call->easy, CURLINFO_RESPONSE_CODE, &code);
    return (int)code;
}
