/* router/proxy/decision_log.c - the file, its secret, and the JSON of a line. */
#include "router/proxy/decision_log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/telemetry/line_sink.h"
#include "common/text/json.h"

#define BUFFER_BYTES     (4u << 20) /* some 0.1 s of a busy router */
#define SECRET_BYTES_MAX 4096
#define SECRET_BYTES_MIN 16

struct decision_log {
    char *path;
    struct line_sink *sink;
    struct hash_key key;
};

static enum status open_file(const char *path, int *fd, struct error *err) {
    *fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (*fd >= 0) return ST_OK;
    return error_set(err, ST_IO, "cannot open the decision log %s: %s", path, strerror(errno));
}

static enum status take_secret(struct decision_log *d, const char *file, struct error *err) {
    uint8_t random[32];
    enum status st;
    char *text;
    size_t n;

    if (!file) {
        hash_random(random, sizeof(random));
        hash_key_init(&d->key, random, sizeof(random));
        return ST_OK;
    }
    st = file_read(file, SECRET_BYTES_MAX, &text, &n, err);
    if (st != ST_OK) return st;
    if (n < SECRET_BYTES_MIN) {
        st = error_set(err, ST_INVALID,
                       "the secret in %s has %zu bytes: use at least %d, for example from "
                       "'head -c 32 /dev/urandom'",
                       file, n, SECRET_BYTES_MIN);
    } else {
        hash_key_init(&d->key, text, n);
    }
    explicit_bzero(text, n);
    mem_free(text);
    return st;
}

enum status decision_log_open(struct decision_log **out, const char *path, const char *secret_file,
                              struct error *err) {
    struct decision_log *d = mem_zalloc(sizeof(*d));
    enum status st = take_secret(d, secret_file, err);
    int fd = -1;

    d->path = mem_strndup(path, strlen(path));
    if (st == ST_OK) st = open_file(path, &fd, err);
    if (st == ST_OK) {
        d->sink = line_sink_create(fd, true, BUFFER_BYTES);
        if (!d->sink) st = error_set(err, ST_IO, "cannot start a thread for the decision log");
    }
    if (st != ST_OK) {
        if (fd >= 0) close(fd);
        decision_log_close(d);
        return st;
    }
    *out = d;
    return ST_OK;
}

void decision_log_close(struct decision_log *d) {
    if (!d) return;
    line_sink_destroy(d->sink);
    mem_free(d->path);
    mem_free(d);
}

enum status decision_log_reopen(struct decision_log *d, struct error *err) {
    enum status st;
    int fd;

    st = open_file(d->path, &fd, err);
    if (st == ST_OK) line_sink_reopen(d->sink, fd);
    return st;
}

uint64_t decision_log_n_dropped(struct decision_log *d) {
    return d ? line_sink_n_dropped(d->sink) : 0;
}

static void put_hashes(struct json_writer *w, const struct decision_log *d,
                       const struct route_request *rq) {
    uint32_t n = MIN(rq->n_blocks, DECISION_HASHES_MAX);
    char text[17];

    json_put_key(w, "hashes");
    json_begin_array(w);
    for (uint32_t i = 0; i < n; i++) {
        struct hash128 h = hash_keyed_128(&d->key, &rq->chain[i], sizeof(rq->chain[i]));

        snprintf(text, sizeof(text), "%016llx", (unsigned long long)h.lo);
        json_put_str(w, (struct str){text, 16});
    }
    json_end_array(w);
}

static void put_candidates(struct json_writer *w, const struct explanation *why) {
    json_field_u64(w, "candidates", why->n_candidates);
    json_put_key(w, "top");
    json_begin_array(w);
    for (uint32_t i = 0; i < why->n; i++) {
        json_begin_object(w);
        json_field_u64(w, "worker", why->top[i].worker);
        explain_put_terms(w, &why->top[i]);
        json_end_object(w);
    }
    json_end_array(w);
}

static void put_if_known(struct json_writer *w, const char *name, int64_t value) {
    if (value >= 0) json_field_i64(w, name, value);
}

/* From where KV was to be fetched, and what came of it. */
static void put_fetch(struct json_writer *w, const struct route_ticket *ticket,
                      const struct route_feedback *f) {
    json_field_u64(w, "fetch_from", ticket->fetch.source);
    json_field_f64(w, "fetch_tokens", ticket->fetch.tokens);
    json_field_f64(w, "fetch_s", ticket->fetch.fetch_s);
    json_field_u64(w, "restored_tokens", f->restored_tokens);
    json_field_f64(w, "restore_s", (double)f->restore_us / 1e6);
}

void decision_log_put(struct decision_log *d, const struct decision *decision, struct buf *line) {
    const struct route_ticket *ticket = decision->ticket;
    struct json_writer w;

    buf_clear(line);
    json_writer_init(&w, line);
    json_begin_object(&w);
    json_field_f64(&w, "t", (double)decision->arrived_wall_us * 1e-6);
    json_field_str(&w, "id", decision->id);
    json_field_str(&w, "model", decision->model);
    json_field_i64(&w, "code", decision->code);
    json_field_u64(&w, "worker", decision->worker);
    json_field_u64(&w, "attempts", decision->n_attempts);
    put_if_known(&w, "prefill_worker", decision->prefill_worker);
    if (decision->pair) {
        json_field_f64(&w, "together_s", pair_together_s(decision->pair));
        json_field_f64(&w, "apart_s", pair_apart_s(decision->pair));
    }
    json_field_u64(&w, "prompt_bytes", decision->rq->prompt_bytes);
    json_field_u64(&w, "blocks", decision->rq->n_blocks);
    json_field_u64(&w, "matched_blocks", ticket->matched_blocks);
    put_hashes(&w, d, decision->rq);
    put_candidates(&w, decision->why);
    json_field_f64(&w, "predicted_cached_tokens", ticket->cached_tokens);
    if (ticket->below_tokens > 0)
        json_field_f64(&w, "predicted_below_tokens", ticket->below_tokens);
    if (ticket->fetch.fetch_tokens > 0) put_fetch(&w, ticket, &decision->feedback);
    put_if_known(&w, "prompt_tokens", decision->feedback.prompt_tokens);
    put_if_known(&w, "cached_tokens", decision->feedback.cached_tokens);
    put_if_known(&w, "below_tokens",
                 decision->feedback.has_below ? decision->feedback.below_tokens : -1);
    put_if_known(&w, "output_tokens", decision->output_tokens);
    if (decision->ttft_s > 0) json_field_f64(&w, "ttft_s", decision->ttft_s);
    json_field_f64(&w, "duration_s", decision->duration_s);
    json_end_object(&w);
    buf_append_char(line, '\n');
    if (buf_status(line) == ST_OK) (void)line_sink_put(d->sink, buf_str(line));
}
