/* worker/batch_file.c - see batch_file.h.
 *
 *      open    input, line by line: check, enter its id      `ids`: custom id -> where it stands
 *              output, line by line: that id is done
 *      run     next line whose id is not done -> call -> line
 *
 * Responses 429 and 503 are temporary: the call is repeated after a pause. When the worker drains
 * after a signal, requests in flight are still written and no new ones are sent. */
#include "worker/batch_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/list.h"
#include "common/base/map.h"
#include "common/base/mem.h"
#include "common/http/http_client.h"
#include "common/net/loop.h"
#include "common/telemetry/log.h"
#include "common/text/json.h"

#define LINE_MAX_BYTES   (32u << 20)
#define ANSWER_MAX_BYTES (64u << 20)
#define CALL_TIMEOUT_MS  (7u * 24 * 3600 * 1000) /* a long queue is no failure */
#define RETRY_US         200000u
#define BAR_US           200000u   /* between two looks of the bar on a terminal ... */
#define LINE_US          10000000u /* ... and two lines in a log */
#define BAR_CELLS        30
#define ID_MAX           512                    /* bytes of a custom id */
#define ANSWER_BEGINS    "{\"id\":\"batch_req_" /* each line that is written */

static char is_asked_for, is_written; /* the values of `ids` */

struct line_call {
    struct list link; /* in flight, or waiting to be made again */
    struct batch_file *batch;
    struct http_call *call; /* NULL while it waits */
    char *id, *url;
    struct buf body;
};

struct batch_file {
    const char *input_name, *output_name;
    FILE *input;
    int output; /* -1: not open */
    struct strmap ids;
    struct batch_counts counts;
    struct batch_file_run run;
    struct http_client *client;
    struct list in_flight, waiting;
    uint32_t n_open; /* on both lists */
    struct loop_timer retry, progress;
    uint64_t started_us;
    char *line; /* the one that is being read */
    size_t line_cap;
    bool is_input_read, is_terminal, is_stopped, is_over;
    enum status outcome;
    struct error err;
};

/* --- lines ------------------------------------------------------------------------------------ */

/* The next line without its end, or max + 1 bytes of one that is longer; false at the end of the
 * file. *is_whole: its end was there. */
static bool read_line(struct batch_file *b, FILE *f, size_t max, struct str *out, bool *is_whole) {
    size_t n = 0;
    int c = EOF;

    while (n <= max && (c = getc_unlocked(f)) != EOF && c != '\n') {
        if (n == b->line_cap) {
            b->line_cap = MAX(2 * b->line_cap, (size_t)4096);
            b->line = mem_realloc(b->line, b->line_cap);
        }
        b->line[n++] = (char)c;
    }
    *is_whole = c == '\n';
    if (n == 0 && c == EOF) return false;
    while (n > 0 && b->line[n - 1] == '\r')
        n--;
    *out = (struct str){b->line, n};
    return true;
}

struct line_fields {
    struct str id, url;
    const struct json *body;
};

static enum status read_fields(const struct json *root, struct line_fields *out,
                               struct error *err) {
    struct str method = STR("POST");
    bool has_id, has_url, streams = false;
    enum status st = json_get_str(root, "custom_id", ID_MAX, &out->id, &has_id, err);

    if (st == ST_OK) st = json_get_str(root, "url", ID_MAX, &out->url, &has_url, err);
    if (st == ST_OK) st = json_get_str(root, "method", 16, &method, NULL, err);
    if (st == ST_OK) st = json_get_object(root, "body", &out->body, err);
    if (st == ST_OK) st = json_get_bool(out->body, "stream", &streams, NULL, err);
    if (st != ST_OK) return st;
    if (!has_id || out->id.len == 0)
        return error_set(err, ST_INVALID,
                         "custom_id is missing: give each request a unique string");
    if (!has_url || out->url.len == 0 || out->url.ptr[0] != '/') {
        return error_set(err, ST_INVALID, "url must be a path, such as \"/v1/chat/completions\"");
    }
    for (size_t i = 0; i < out->url.len; i++) {
        if (out->url.ptr[i] <= ' ' || out->url.ptr[i] > '~')
            return error_set(err, ST_INVALID,
                             "url has a space or a character outside ASCII: percent-encode it");
    }
    if (!str_eq(method, STR("POST"))) {
        return error_set(err, ST_INVALID, "method must be \"POST\", not \"%.*s\"", STR_ARG(method));
    }
    if (!out->body)
        return error_set(err, ST_INVALID, "body is missing: give the request's JSON object");
    if (streams)
        return error_set(err, ST_INVALID,
                         "streaming is not supported in a batch: leave \"stream\" out of body");
    return ST_OK;
}

static enum status parse_line(struct str line, struct json **root, struct line_fields *fields,
                              struct error *err) {
    struct json_limits limits = {.max_bytes = LINE_MAX_BYTES};
    enum status st;

    *root = NULL;
    st = json_parse(root, line, &limits, err);
    if (st != ST_OK) return st;
    if (json_type(*root) != JSON_OBJECT) {
        st = error_set(err, ST_INVALID, "a line must be a JSON object, not %s",
                       json_type_name(*root));
    }
    if (st == ST_OK) st = read_fields(*root, fields, err);
    if (st != ST_OK) {
        json_destroy(*root);
        *root = NULL;
    }
    return st;
}

/* --- opening ---------------------------------------------------------------------------------- */

static enum status check_input(struct batch_file *b, struct error *err) {
    struct line_fields fields;
    struct json *root;
    struct str line;
    uint64_t n = 0;
    bool is_whole;
    enum status st;

    while (read_line(b, b->input, LINE_MAX_BYTES, &line, &is_whole)) {
        n++;
        if (line.len == 0) continue;
        st = parse_line(line, &root, &fields, err);
        if (st == ST_OK && strmap_find(&b->ids, fields.id)) {
            st = error_set(err, ST_INVALID,
                           "custom_id \"%.*s\" appears in an earlier line: use unique ids",
                           STR_ARG(fields.id));
        }
        if (st == ST_OK) {
            strmap_insert(&b->ids, fields.id, &is_asked_for);
            b->counts.total++;
        }
        if (st != ST_OK) {
            json_destroy(root);
            return error_prefix(err, "%s, line %" PRIu64, b->input_name, n);
        }
        json_destroy(root);
    }
    if (ferror(b->input)) {
        return error_set(err, ST_IO, "%s: cannot be read: %s", b->input_name, strerror(errno));
    }
    if (b->counts.total == 0) {
        return error_set(
            err, ST_INVALID,
            "%s holds no requests: write one JSON object per line, such as "
            "{\"custom_id\":\"1\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{...}}",
            b->input_name);
    }
    if (fseeko(b->input, 0, SEEK_SET) != 0) {
        return error_set(err, ST_INVALID, "%s cannot be read twice: name a file, not a pipe",
                         b->input_name);
    }
    return ST_OK;
}

static enum status refuse_output(const struct batch_file *b, uint64_t n, struct error *err) {
    return error_set(err, ST_INVALID,
                     "%s, line %" PRIu64 ": not a response of a batch: name a file that does not "
                     "exist yet, or the output file to continue",
                     b->output_name, n);
}

static enum status note_written(struct batch_file *b, struct str line, uint64_t n,
                                struct error *err) {
    struct json_limits limits = {.max_bytes = ANSWER_MAX_BYTES + LINE_MAX_BYTES};
    struct json *root = NULL;
    struct str id = STR_NULL;
    enum status st = json_parse(&root, line, &limits, NULL);

    if (st == ST_OK) st = json_get_str(root, "custom_id", ID_MAX, &id, NULL, NULL);
    if (st != ST_OK || id.len == 0 ||
        (json_type(json_get(root, "response")) != JSON_OBJECT &&
         json_type(json_get(root, "error")) != JSON_OBJECT)) {
        json_destroy(root);
        return refuse_output(b, n, err);
    }
    if (strmap_find(&b->ids, id) == &is_asked_for) {
        strmap_insert(&b->ids, id, &is_written);
        b->counts.before++;
    }
    json_destroy(root);
    return ST_OK;
}

/* Reads the output of earlier runs. An unterminated last line is truncated, because its run ended
 * while writing it; a line that is no response refuses the file. */
static enum status read_answers(struct batch_file *b, FILE *f, struct error *err) {
    struct str line, begins = STR(ANSWER_BEGINS);
    off_t end = 0;
    uint64_t n = 0;
    bool is_whole;
    enum status st;

    while (read_line(b, f, ANSWER_MAX_BYTES + LINE_MAX_BYTES, &line, &is_whole)) {
        n++;
        if (!is_whole) {
            if (memcmp(line.ptr, begins.ptr, MIN(line.len, begins.len)) != 0)
                return refuse_output(b, n, err);
            break;
        }
        st = note_written(b, line, n, err);
        if (st != ST_OK) return st;
        end = ftello(f);
    }
    if (!ferror(f) && ftruncate(b->output, end) == 0) return ST_OK;
    return error_set(err, ST_IO, "%s: cannot continue the output file: %s", b->output_name,
                     strerror(errno));
}

/* Held until the end of the run: two at once would each answer what the other answers. */
static enum status open_output(struct batch_file *b, struct error *err) {
    struct stat sb;
    FILE *f;
    enum status st;
    int fd;

    b->output = open(b->output_name, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (b->output < 0 || fstat(b->output, &sb) != 0)
        return error_set(err, ST_IO, "%s: cannot be written: %s", b->output_name, strerror(errno));
    if (!S_ISREG(sb.st_mode))
        return error_set(
            err, ST_INVALID,
            "%s is not a regular file: name a file, which an interrupted run can continue",
            b->output_name);
    if (flock(b->output, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return error_set(
            err, ST_BUSY,
            "%s is being written by another run: wait until that run ends, or name another file",
            b->output_name);
    fd = dup(b->output);
    f = fd < 0 ? NULL : fdopen(fd, "r");
    if (!f) {
        if (fd >= 0) close(fd);
        return error_set(err, ST_IO, "%s: cannot be read: %s", b->output_name, strerror(errno));
    }
    st = read_answers(b, f, err);
    fclose(f);
    return st;
}

enum status batch_file_open(struct batch_file **out, const char *input, const char *output,
                            struct error *err) {
    struct batch_file *b = mem_zalloc(sizeof(*b));
    uint64_t seed;
    enum status st;

    *out = NULL;
    hash_random(&seed, sizeof(seed));
    b->input_name = input;
    b->output_name = output;
    b->output = -1;
    strmap_init(&b->ids, seed);
    list_init(&b->in_flight);
    list_init(&b->waiting);
    b->input = fopen(input, "re");
    if (b->input) {
        st = check_input(b, err);
    } else {
        st = error_set(err, errno == ENOENT ? ST_NOT_FOUND : ST_IO, "%s: %s", input,
                       strerror(errno));
    }
    if (st == ST_OK) st = open_output(b, err);
    if (st != ST_OK) {
        batch_file_close(b);
        return st;
    }
    *out = b;
    return ST_OK;
}

static void free_call(struct line_call *c) {
    http_call_cancel(c->call);
    list_remove(&c->link);
    c->batch->n_open--;
    buf_fini(&c->body);
    mem_free(c->id);
    mem_free(c->url);
    mem_free(c);
}

static void free_calls(struct list *calls) {
    while (list_first(calls))
        free_call(LIST_ENTRY(list_first(calls), struct line_call, link));
}

void batch_file_close(struct batch_file *b) {
    if (!b) return;
    free_calls(&b->in_flight);
    free_calls(&b->waiting);
    http_client_destroy(b->client);
    loop_timer_fini(&b->retry);
    loop_timer_fini(&b->progress);
    strmap_fini(&b->ids);
    if (b->input) fclose(b->input);
    if (b->output >= 0) close(b->output);
    mem_free(b->line);
    mem_free(b);
}

/* --- progress --------------------------------------------------------------------------------- */

static void show_bar(const struct batch_file *b, uint64_t done, double tokens_per_s,
                     double left_s) {
    char cells[BAR_CELLS + 1];
    uint64_t full = b->counts.total ? done * BAR_CELLS / b->counts.total : BAR_CELLS;

    for (uint64_t i = 0; i < BAR_CELLS; i++)
        cells[i] = i < full ? '#' : '.';
    cells[BAR_CELLS] = '\0';
    fprintf(stderr,
            "\r[%s] %" PRIu64 "/%" PRIu64 "  %.0f tokens/s  %02u:%02u:%02u left  %" PRIu64
            " refused ",
            cells, done, b->counts.total, tokens_per_s, (unsigned)(left_s / 3600),
            (unsigned)(left_s / 60) % 60, (unsigned)left_s % 60, b->counts.refused);
    fflush(stderr);
}

static void show_progress(struct batch_file *b) {
    uint64_t done = b->counts.before + b->counts.written;
    double passed_s = (double)(clock_now_us() - b->started_us) * 1e-6;
    double tokens_per_s = passed_s > 0 ? (double)b->run.generated_tokens(b->run.arg) / passed_s : 0;
    double left_s = b->counts.written
                        ? passed_s / (double)b->counts.written * (double)(b->counts.total - done)
                        : 0;

    left_s = MIN(left_s, 359999.0);
    if (b->is_terminal) {
        show_bar(b, done, tokens_per_s, left_s);
    } else {
        log_event(b->run.log, LOG_INFO, "batch_progress", log_u64("done", done),
                  log_u64("total", b->counts.total), log_u64("refused", b->counts.refused),
                  log_f64("gen_tokens_per_s", tokens_per_s), log_f64("left_s", left_s));
    }
}

static void on_progress(void *arg) {
    struct batch_file *b = arg;

    show_progress(b);
    loop_timer_start(&b->progress, b->is_terminal ? BAR_US : LINE_US);
}

/* --- the run ---------------------------------------------------------------------------------- */

static void send_more(struct batch_file *b);

static void give_up(struct batch_file *b, enum status st, const struct error *err) {
    if (b->outcome == ST_OK) {
        b->outcome = st;
        b->err = *err;
    }
    b->is_stopped = true;
}

/* An answer too long to take would be as long the next time: that is its line. */
static void put_answer(struct json_writer *w, const struct line_call *c,
                       const struct http_client_response *r) {
    json_put_key(w, r->status == ST_OK ? "response" : "error");
    json_begin_object(w);
    if (r->status == ST_OK) {
        json_field_u64(w, "status_code", (uint64_t)r->code);
        json_field_z(w, "request_id", c->id);
        json_put_key(w, "body");
        json_put_raw(w, r->body.len ? r->body : STR("null"));
    } else {
        json_field_z(w, "code", "answer_too_large");
        json_field_z(w, "message", r->message);
    }
    json_end_object(w);
    json_field_null(w, r->status == ST_OK ? "error" : "response");
}

static void write_line(struct batch_file *b, const struct line_call *c,
                       const struct http_client_response *r) {
    struct json_writer w;
    struct error err = {0};
    struct buf line;
    char name[40];
    uint64_t id;
    size_t done = 0;

    hash_random(&id, sizeof(id));
    snprintf(name, sizeof(name), "batch_req_%016" PRIx64, id);
    buf_init(&line, 0);
    json_writer_init(&w, &line);
    json_begin_object(&w);
    json_field_z(&w, "id", name);
    json_field_z(&w, "custom_id", c->id);
    put_answer(&w, c, r);
    json_end_object(&w);
    buf_append_char(&line, '\n');
    if (buf_status(&line) != ST_OK) {
        error_set(&err, ST_NOMEM, "out of memory for the response to \"%s\"", c->id);
        give_up(b, ST_NOMEM, &err);
    }
    while (b->outcome == ST_OK && done < buf_len(&line)) {
        ssize_t n = write(b->output, buf_ptr(&line) + done, buf_len(&line) - done);

        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            error_set(&err, ST_IO, "%s: cannot be written: %s", b->output_name, strerror(errno));
            give_up(b, ST_IO, &err);
        } else {
            done += (size_t)n;
        }
    }
    if (b->outcome == ST_OK) {
        b->counts.written++;
        b->counts.refused += r->status != ST_OK || r->code != 200;
    }
    buf_fini(&line);
}

static void on_answer(const struct http_client_response *r, void *arg) {
    struct line_call *c = arg;
    struct batch_file *b = c->batch;
    struct error err = {0};

    c->call = NULL;
    if (r->status == ST_OK && (r->code == 429 || r->code == 503) && !b->is_stopped) {
        list_remove(&c->link);
        list_push_back(&b->waiting, &c->link);
        if (!loop_timer_is_running(&b->retry)) loop_timer_start(&b->retry, RETRY_US);
        return;
    }
    if ((r->status == ST_OK && r->code != 429 && r->code != 503) || r->status == ST_TOO_LARGE) {
        write_line(b, c, r);
    } else if (r->status != ST_OK) {
        error_set(&err, r->status, "the request \"%s\" got no response: %s", c->id, r->message);
        give_up(b, r->status, &err);
    }
    free_call(c);
    send_more(b);
}

static void make_call(struct line_call *c) {
    static const char *const headers[] = {"content-type: application/json", NULL};
    struct batch_file *b = c->batch;
    char url[ID_MAX + 64];
    struct http_client_request request = {.method = "POST",
                                          .url = url,
                                          .headers = headers,
                                          .body = buf_str(&c->body),
                                          .timeout_ms = CALL_TIMEOUT_MS,
                                          .connect_timeout_ms = 10000,
                                          .max_body_bytes = ANSWER_MAX_BYTES};
    struct error err = {0};
    enum status st;

    snprintf(url, sizeof(url), "http://127.0.0.1:%u%s", b->run.port, c->url);
    list_remove(&c->link);
    list_push_back(&b->in_flight, &c->link);
    st = http_client_start(b->client, &request, on_answer, c, &c->call, &err);
    if (st == ST_OK) return;
    give_up(b, st, &err);
    free_call(c);
}

/* The next line that has no answer yet, as a call; NULL when none is left. */
static struct line_call *next_call(struct batch_file *b) {
    struct line_fields fields;
    struct json_writer w;
    struct error err = {0};
    struct json *root;
    struct line_call *c;
    struct str line;
    bool is_whole;

    while (read_line(b, b->input, LINE_MAX_BYTES, &line, &is_whole)) {
        if (line.len == 0) continue;
        if (parse_line(line, &root, &fields, &err) != ST_OK) {
            error_prefix(&err,
                         "%s changed during the run: start again with a file that does not change",
                         b->input_name);
            give_up(b, ST_INVALID, &err);
            return NULL;
        }
        if (strmap_find(&b->ids, fields.id) != &is_asked_for) {
            json_destroy(root);
            continue;
        }
        c = mem_zalloc(sizeof(*c));
        c->batch = b;
        c->id = mem_strndup(fields.id.ptr, fields.id.len);
        c->url = mem_strndup(fields.url.ptr, fields.url.len);
        buf_init(&c->body, 0);
        json_writer_init(&w, &c->body);
        json_put_tree(&w, fields.body);
        list_push_back(&b->waiting, &c->link);
        b->n_open++;
        json_destroy(root);
        return c;
    }
    b->is_input_read = true;
    return NULL;
}

/* Keeps the worker busy, and notices the end. */
static void send_more(struct batch_file *b) {
    struct line_call *c;

    while (!b->is_stopped && !b->is_input_read && b->n_open < b->run.max_in_flight &&
           (c = next_call(b)) != NULL)
        make_call(c);
    if (b->is_stopped) free_calls(&b->waiting);
    if (b->n_open > 0 || b->is_over || (!b->is_input_read && !b->is_stopped)) return;
    b->is_over = true;
    loop_timer_stop(&b->progress);
    show_progress(b);
    if (b->is_terminal) fputc('\n', stderr);
    if (fsync(b->output) != 0 && errno != EINVAL) {
        error_set(&b->err, ST_IO, "%s: %s", b->output_name, strerror(errno));
        b->outcome = ST_IO;
    }
    b->run.on_done(b->run.arg);
}

static void on_retry(void *arg) {
    struct batch_file *b = arg;

    if (!b->is_stopped) {
        LIST_FOR_EACH(it, &b->waiting) make_call(LIST_ENTRY(it, struct line_call, link));
    }
    send_more(b);
}

enum status batch_file_start(struct batch_file *b, const struct batch_file_run *run,
                             struct error *err) {
    enum status st = http_client_create(&b->client, run->loop, err);

    if (st != ST_OK) return st;
    b->run = *run;
    b->is_terminal = isatty(2);
    b->started_us = clock_now_us();
    loop_timer_init(&b->retry, run->loop, on_retry, b);
    loop_timer_init(&b->progress, run->loop, on_progress, b);
    log_event(run->log, LOG_INFO, "batch_started", log_u64("requests", b->counts.total),
              log_u64("answered_before", b->counts.before));
    loop_timer_start(&b->progress, b->is_terminal ? BAR_US : LINE_US);
    send_more(b);
    return ST_OK;
}

void batch_file_stop(struct batch_file *b) {
    b->is_stopped = true;
}

enum status batch_file_outcome(const struct batch_file *b, struct error *err) {
    uint64_t done = b->counts.before + b->counts.written;

    if (b->outcome != ST_OK) {
        *err = b->err;
        return error_prefix(err,
                            "%" PRIu64 " of %" PRIu64 " requests are answered; run the same "
                            "command to continue",
                            done, b->counts.total);
    }
    if (done == b->counts.total) return ST_OK;
    return error_set(err, ST_UNAVAILABLE,
                     "stopped after %" PRIu64 " of %" PRIu64
                     " requests: run the same command to continue",
                     done, b->counts.total);
}
