/* tests/integration/herd.c - very many workers that compute nothing, in one process.
 *
 *      herd PORT SERVICE_MS
 *
 * Each worker is an address of 127.0.0.0/8 at PORT with a server of its own: it describes itself,
 * is healthy and answers each request after SERVICE_MS, with its address in x-worker. Lines of the
 * input command which there are, each answered by "ok" and how many requests were answered, or an
 * error:
 *
 *      up 127.1.0.5        begins to listen; another life, with another generation
 *      leave 127.1.0.5     as a pod that was asked to end: finishes what it has, takes no connection
 *      kill 127.1.0.5      as one that gets no signal: resets what it has
 *      asked 127.1.0.5     requests that it has answered in this life */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/http/http_server.h"
#include "common/net/loop.h"
#include "common/protocol/wire.h"

#define MAX_WORKERS 4096

struct herd;

struct worker {
    struct herd *herd;
    struct http_server *server; /* NULL: it is not there */
    char host[INET_ADDRSTRLEN];
    uint64_t n_answered, n_lives;
};

struct call { /* a request that waits for its time */
    struct worker *worker;
    struct http_request *req;
    struct loop_timer timer;
    struct loop_task reap;
};

struct herd {
    struct loop *loop;
    uint16_t port;
    uint64_t service_us, n_answered, n_generations;
    struct worker *workers[MAX_WORKERS];
    uint32_t n_workers;
    struct loop_fd input;
    struct buf in;
};

/* --- answering -------------------------------------------------------------------------------- */

static void reap(void *arg) {
    mem_free(arg);
}

static void end_call(struct call *call) {
    loop_timer_fini(&call->timer);
    loop_defer(call->worker->herd->loop, &call->reap);
}

static void answer(void *arg) {
    struct call *call = arg;
    struct worker *w = call->worker;

    w->n_answered++;
    w->herd->n_answered++;
    http_add_header(call->req, STR("x-worker"), str_of(w->host));
    http_add_header(call->req, STR(WIRE_PROMPT_TOKENS), STR("16"));
    http_add_header(call->req, STR(WIRE_CACHED_TOKENS), STR("0"));
    http_reply(
        call->req, 200, "application/json",
        STR("{\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":1,\"model\":"
            "\"herd\",\"choices\":[{\"index\":0,\"text\":\" x\",\"finish_reason\":\"length\","
            "\"logprobs\":null}],\"usage\":{\"prompt_tokens\":16,\"completion_tokens\":1,"
            "\"total_tokens\":17}}"));
    end_call(call);
}

static void on_abort(struct http_request *req) {
    end_call(req->user);
}

static void describe(struct http_request *req, const struct worker *w) {
    struct wire_server_info info = {.wire = WIRE_VERSION,
                                    .model = "herd",
                                    .backend = "sim",
                                    .block_size = 16,
                                    .n_blocks = 4096,
                                    .max_model_len = 32768,
                                    .max_num_seqs = 256,
                                    .prefill_tokens_per_s = 10000};
    struct buf body;

    snprintf(info.generation, sizeof(info.generation), "g%llu", (unsigned long long)w->n_lives);
    buf_init(&body, 0);
    wire_append_server_info(&body, &info);
    http_reply(req, 200, "application/json", buf_str(&body));
    buf_fini(&body);
}

static void on_request(struct http_request *req, void *arg) {
    struct worker *w = arg;
    struct call *call;

    if (str_eq(req->path, STR(WIRE_INFO_PATH))) {
        describe(req, w);
    } else if (str_starts(req->path, STR("/v1/")) && req->method == HTTP_POST) {
        call = mem_zalloc(sizeof(*call));
        call->worker = w;
        call->req = req;
        loop_timer_init(&call->timer, w->herd->loop, answer, call);
        loop_task_init(&call->reap, reap, call);
        req->user = call;
        req->on_abort = on_abort;
        loop_timer_start(&call->timer, w->herd->service_us);
    } else if (str_eq(req->path, STR("/health"))) {
        http_reply(req, 200, "application/json", STR("{\"status\":\"ok\"}"));
    } else {
        http_reply_error(req, ST_NOT_FOUND, NULL);
    }
}

/* --- lives ------------------------------------------------------------------------------------ */

static struct worker *find(struct herd *h, const char *host) {
    struct worker *w;

    for (uint32_t i = 0; i < h->n_workers; i++) {
        if (strcmp(h->workers[i]->host, host) == 0) return h->workers[i];
    }
    if (h->n_workers == MAX_WORKERS) return NULL;
    w = mem_zalloc(sizeof(*w));
    w->herd = h;
    snprintf(w->host, sizeof(w->host), "%s", host);
    h->workers[h->n_workers++] = w;
    return w;
}

static const char *come(struct worker *w) {
    static struct error err;
    static const struct http_server_events events = {.on_request = on_request};

    if (!w) return "too many workers";
    http_server_destroy(w->server); /* one that leaves and is not gone yet */
    w->server = http_server_create(w->herd->loop, NULL, &events, w);
    w->n_answered = 0;
    w->n_lives = ++w->herd->n_generations;
    if (http_server_listen(w->server, w->host, w->herd->port, false, &err) != ST_OK) {
        return err.message;
    }
    return NULL;
}

static const char *obey(struct herd *h, char *line) {
    char *host = strchr(line, ' ');
    struct worker *w;

    if (!host) return "which worker?";
    *host++ = '\0';
    w = find(h, host);
    if (strcmp(line, "up") == 0) return come(w);
    if (!w || !w->server) return "no such worker";
    if (strcmp(line, "leave") == 0) {
        http_server_drain(w->server, NULL, NULL);
    } else if (strcmp(line, "kill") == 0) {
        http_server_destroy(w->server);
        w->server = NULL;
    } else if (strcmp(line, "asked") == 0) {
        printf("%llu ", (unsigned long long)w->n_answered);
    } else {
        return "up, leave, kill or asked";
    }
    return NULL;
}

static void on_input(unsigned ready, void *arg) {
    struct herd *h = arg;
    char *to = buf_reserve(&h->in, 65536), *end, line[256];
    ssize_t n = read(STDIN_FILENO, to, 65536);

    (void)ready;
    if (n == 0 || (n < 0 && errno != EAGAIN)) {
        loop_stop(h->loop);
        return;
    }
    if (n < 0) return;
    buf_commit(&h->in, (size_t)n);
    while (buf_len(&h->in) && (end = memchr(buf_ptr(&h->in), '\n', buf_len(&h->in))) != NULL) {
        size_t len = (size_t)(end - buf_ptr(&h->in));
        const char *wrong;

        snprintf(line, sizeof(line), "%.*s", (int)MIN(len, sizeof(line) - 1), buf_ptr(&h->in));
        buf_consume(&h->in, len + 1);
        wrong = obey(h, line);
        if (wrong) {
            printf("%s\n", wrong);
        } else {
            printf("ok %llu\n", (unsigned long long)h->n_answered);
        }
    }
    (void)fflush(stdout);
}

int main(int argc, char **argv) {
    struct herd h = {0};
    struct error err;

    (void)signal(SIGPIPE, SIG_IGN);
    if (argc != 3 || loop_create(&h.loop, &err) != ST_OK) {
        fprintf(stderr, "herd: PORT SERVICE_MS\n");
        return 1;
    }
    h.port = (uint16_t)strtoul(argv[1], NULL, 10);
    h.service_us = strtoull(argv[2], NULL, 10) * 1000;
    buf_init(&h.in, 0);
    (void)fcntl(STDIN_FILENO, F_SETFL, fcntl(STDIN_FILENO, F_GETFL) | O_NONBLOCK);
    loop_fd_init(&h.input, h.loop, STDIN_FILENO, on_input, &h);
    loop_fd_watch(&h.input, LOOP_READ);
    loop_run(h.loop);
    loop_fd_fini(&h.input);
    for (uint32_t i = 0; i < h.n_workers; i++) {
        http_server_destroy(h.workers[i]->server);
        mem_free(h.workers[i]);
    }
    buf_fini(&h.in);
    loop_destroy(h.loop);
    return 0;
}
