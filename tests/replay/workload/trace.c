/* tests/replay/workload/trace.c - a workload from a file of one JSON object per line. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/text/json.h"
#include "tests/replay/workload/crowd.h"

#define LENGTH_MAX (1u << 24) /* tokens */

static void read_chain(struct workload *w, struct workload_request *q, const struct json *ids) {
    uint32_t n = (uint32_t)MIN(json_count(ids), (size_t)CEIL_DIV(q->n_prompt, w->block_tokens));
    uint64_t *chain = workload_new_chain(w, n), id;

    q->chain = chain;
    JSON_FOR_EACH(it, ids) {
        if (q->n_names == n || json_to_u64(it, &id) != ST_OK) break;
        chain[q->n_names++] = workload_name(id);
    }
    q->n_blocks = MIN(q->n_names, q->n_prompt / w->block_tokens);
}

static enum status read_number(const struct json *root, const char *name, double most, double *out,
                               struct error *err) {
    bool is_present;
    enum status st = json_get_f64(root, name, 0, most, out, &is_present, err);

    if (st != ST_OK || is_present) return st;
    return error_set(err, ST_INVALID, "there is no %s", name);
}

static enum status read_request(struct workload *w, double ticks_per_s, const struct json *root,
                                struct error *err) {
    double ticks, n_prompt, n_output;
    struct workload_request q = {.line = w->n};
    enum status st = read_number(root, "timestamp", 1e18, &ticks, err);

    if (st == ST_OK) st = read_number(root, "input_length", LENGTH_MAX, &n_prompt, err);
    if (st == ST_OK) st = read_number(root, "output_length", LENGTH_MAX, &n_output, err);
    if (st != ST_OK) return st;
    q.arrival_s = ticks / ticks_per_s;
    q.n_prompt = MAX((uint32_t)n_prompt, 1u);
    q.n_output = MAX((uint32_t)n_output, 1u);
    read_chain(w, &q, json_get(root, "hash_ids"));
    workload_add(w, q);
    return ST_OK;
}

static void spread_equal_stamps(struct workload *w, uint64_t draw) {
    uint64_t lots = crowd_seed_of_ticks(draw);

    for (uint32_t i = 0, end; i < w->n; i = end) {
        double base_s = w->requests[i].arrival_s, next_s;

        for (end = i; end < w->n && w->requests[end].arrival_s <= base_s; end++)
            ;
        next_s = end < w->n ? w->requests[end].arrival_s : base_s + 1;
        for (uint32_t k = i; k < end; k++) {
            double share = draw ? crowd_lot(&lots) : (double)(k - i) / (end - i);

            w->requests[k].arrival_s = base_s + (next_s - base_s) * share;
        }
    }
    workload_sort(w);
}

static enum status read_line(struct workload *w, const struct trace *t, struct str line,
                             struct error *err) {
    struct error why = {0};
    struct json *root = NULL;
    enum status st = json_parse(&root, line, NULL, &why);

    if (st == ST_OK) st = read_request(w, t->ticks_per_s, root, &why);
    json_destroy(root);
    if (st == ST_OK) return ST_OK;
    return error_set(err, ST_INVALID, "%s, line %u: %s", t->path, w->n + 1, why.message);
}

enum status workload_read(struct workload *w, const struct trace *t, struct error *err) {
    FILE *f = fopen(t->path, "r");
    enum status st = ST_OK;
    char *line = NULL;
    size_t size = 0;
    ssize_t n;

    *w = (struct workload){.block_tokens = t->block_tokens};
    if (!f) return error_set(err, ST_IO, "cannot open the trace %s: %s", t->path, strerror(errno));
    while (st == ST_OK && (n = getline(&line, &size, f)) > 0)
        st = read_line(w, t, (struct str){line, (size_t)n - (line[n - 1] == '\n')}, err);
    free(line);
    fclose(f);
    if (st == ST_OK && !w->n) st = error_set(err, ST_INVALID, "the trace %s is empty", t->path);
    if (st != ST_OK) workload_free(w);
    workload_sort(w);
    spread_equal_stamps(w, t->draw);
    return st;
}

/* --- writing ---------------------------------------------------------------------------------- */

#define NAME_ZEROS 16 /* low bits of each name */

static void write_request(struct json_writer *j, const struct workload_request *q) {
    json_begin_object(j);
    if (isfinite(q->arrival_s)) json_field_f64(j, "timestamp", q->arrival_s * TRACE_TICKS_PER_S);
    json_field_u64(j, "input_length", q->n_prompt);
    json_field_u64(j, "output_length", q->n_output);
    json_field_u64(j, "tenant", q->tenant);
    if (q->next) {
        json_field_u64(j, "next", q->next - 1);
        json_field_f64(j, "gap_ms", q->gap_s * 1000);
    }
    json_put_key(j, "hash_ids");
    json_begin_array(j);
    for (uint32_t i = 0; i < q->n_names; i++)
        json_put_u64(j, q->chain[i] >> NAME_ZEROS);
    json_end_array(j);
    json_end_object(j);
}

enum status workload_write(const struct workload *w, const char *path, struct error *err) {
    FILE *f = fopen(path, "w");
    bool is_written = f != NULL;
    struct buf line;

    buf_init(&line, 0);
    for (uint32_t i = 0; i < w->n && is_written; i++) {
        struct json_writer j;

        buf_clear(&line);
        json_writer_init(&j, &line);
        write_request(&j, &w->requests[i]);
        buf_append_char(&line, '\n');
        is_written = fwrite(buf_ptr(&line), 1, buf_len(&line), f) == buf_len(&line);
    }
    buf_fini(&line);
    if (f && fclose(f) != 0) is_written = false;
    if (is_written) return ST_OK;
    return error_set(err, ST_IO, "cannot write the trace %s: %s", path, strerror(errno));
}
