/* tests/bench/load/report.c - what became of the requests. */
#include "tests/bench/load/report.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/base/mem.h"
#include "common/text/json.h"

/* Upper bounds of the buckets of every histogram, in seconds: a 1-2-5 ladder. */
static const double bounds[] = {0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1,
                                0.2,    0.5,    1,      2,     5,     10,    20,   50,   100};

struct sample {
    double *v;
    uint64_t n;
};

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double quantile(const struct sample *s, double q) {
    uint64_t i = (uint64_t)(q * (double)s->n);

    return s->n ? s->v[MIN(i, s->n - 1)] : 0;
}

static void put_sample(struct json_writer *w, const char *name, struct sample *s) {
    static const struct {
        const char *name;
        double q;
    } quantiles[] = {{"p50", 0.5}, {"p90", 0.9}, {"p95", 0.95}, {"p99", 0.99}, {"p999", 0.999}};
    double sum = 0;
    uint64_t at = 0;

    qsort(s->v, s->n, sizeof(*s->v), by_value);
    for (uint64_t i = 0; i < s->n; i++)
        sum += s->v[i];
    json_put_key(w, name);
    json_begin_object(w);
    json_field_u64(w, "count", s->n);
    json_field_f64(w, "mean", s->n ? sum / (double)s->n : 0);
    for (size_t i = 0; i < ARRAY_LEN(quantiles); i++)
        json_field_f64(w, quantiles[i].name, quantile(s, quantiles[i].q));
    json_field_f64(w, "max", s->n ? s->v[s->n - 1] : 0);
    json_put_key(w, "histogram"); /* [upper bound, requests at or below it] */
    json_begin_array(w);
    for (size_t i = 0; i < ARRAY_LEN(bounds) && at < s->n; i++) {
        while (at < s->n && s->v[at] <= bounds[i])
            at++;
        if (at == 0) continue;
        json_begin_array(w);
        json_put_f64(w, bounds[i]);
        json_put_u64(w, at);
        json_end_array(w);
    }
    json_end_array(w);
    json_end_object(w);
}

/* Seconds from `from` to `to`, if the request was answered and has both. */
static void add(struct sample *s, uint64_t from_us, uint64_t to_us) {
    s->v[s->n++] = to_us > from_us ? (double)(to_us - from_us) * 1e-6 : 0;
}

struct totals {
    uint64_t n, n_outcome[OUTCOME_COUNT], n_code[600];
    uint64_t ended_in_window, events_in_window;
    uint64_t prompt_tokens, cached_tokens, events, answer_bytes, body_bytes;
};

static void put_counts(struct json_writer *w, const struct totals *t) {
    char code[8];

    json_field_u64(w, "ok", t->n_outcome[OUTCOME_OK]);
    json_field_u64(w, "failed", t->n - t->n_outcome[OUTCOME_OK] - t->n_outcome[OUTCOME_ABORTED]);
    json_put_key(w, "outcomes");
    json_begin_object(w);
    for (int i = 0; i < OUTCOME_COUNT; i++) {
        if (t->n_outcome[i]) json_field_u64(w, outcome_names[i], t->n_outcome[i]);
    }
    json_end_object(w);
    json_put_key(w, "codes");
    json_begin_object(w);
    for (unsigned i = 100; i < ARRAY_LEN(t->n_code); i++) {
        if (!t->n_code[i]) continue;
        snprintf(code, sizeof(code), "%u", i);
        json_field_u64(w, code, t->n_code[i]);
    }
    json_end_object(w);
    json_field_u64(w, "body_bytes", t->body_bytes);
    json_field_u64(w, "answer_bytes", t->answer_bytes);
    json_field_u64(w, "events", t->events);
    json_field_u64(w, "prompt_tokens", t->prompt_tokens);
    json_field_u64(w, "cached_tokens", t->cached_tokens);
}

void report_summary(const struct drive *d, const struct report_config *config, struct buf *out) {
    uint64_t n_records;
    const struct record *records = drive_records(d, &n_records);
    struct sample ttft = {mem_calloc(n_records + 1, sizeof(double)), 0}, e2e = ttft, late = ttft,
                  pace = ttft;
    struct totals *t = mem_zalloc(sizeof(*t));
    double window_s = (double)(config->until_us - config->warmup_us) * 1e-6;
    struct json_writer w;

    e2e.v = mem_calloc(n_records + 1, sizeof(double));
    late.v = mem_calloc(n_records + 1, sizeof(double));
    pace.v = mem_calloc(n_records + 1, sizeof(double));
    for (uint64_t i = 0; i < n_records; i++) {
        const struct record *r = &records[i];

        if (r->outcome == OUTCOME_OK && r->end_us >= config->warmup_us &&
            r->end_us < config->until_us) {
            t->ended_in_window++;
            t->events_in_window += r->n_events;
        }
        if (r->due_us < config->warmup_us) continue;
        t->n++;
        t->n_outcome[r->outcome]++;
        if (r->code < ARRAY_LEN(t->n_code)) t->n_code[r->code]++;
        t->events += r->n_events;
        t->answer_bytes += r->answer_bytes;
        t->body_bytes += r->body_bytes;
        t->prompt_tokens += r->prompt_tokens > 0 ? (uint64_t)r->prompt_tokens : 0;
        t->cached_tokens += r->cached_tokens > 0 ? (uint64_t)r->cached_tokens : 0;
        add(&late, r->due_us, r->sent_us);
        if (r->outcome != OUTCOME_OK) continue;
        add(&ttft, r->due_us, r->first_us);
        add(&e2e, r->due_us, r->end_us);
        if (r->n_events > 1) {
            pace.v[pace.n++] = (double)(r->end_us - r->first_us) * 1e-6 / (r->n_events - 1);
        }
    }
    json_writer_init(&w, out);
    json_begin_object(&w);
    json_field_u64(&w, "requests", t->n);
    put_counts(&w, t);
    json_field_u64(&w, "resent", drive_n_resent(d));
    json_field_u64(&w, "resets", drive_n_resets(d));
    json_field_u64(&w, "connections", drive_n_connections(d));
    json_field_f64(&w, "window_s", window_s);
    json_field_f64(&w, "completed_per_s", (double)t->ended_in_window / window_s);
    json_field_f64(&w, "events_per_s", (double)t->events_in_window / window_s);
    put_sample(&w, "ttft_s", &ttft);
    put_sample(&w, "e2e_s", &e2e);
    put_sample(&w, "time_per_event_s", &pace);
    put_sample(&w, "lateness_s", &late);
    json_end_object(&w);
    buf_append_char(out, '\n');
    mem_free(ttft.v);
    mem_free(e2e.v);
    mem_free(late.v);
    mem_free(pace.v);
    mem_free(t);
}

void report_records(const struct drive *d, struct buf *out) {
    uint64_t n;
    const struct record *records = drive_records(d, &n);

    buf_append_str(out, STR("due_us,sent_us,first_us,end_us,outcome,code,session,turn,body_bytes,"
                            "max_tokens,events,answer_bytes,prompt_tokens,cached_tokens\n"));
    for (uint64_t i = 0; i < n; i++) {
        const struct record *r = &records[i];

        buf_appendf(out, "%llu,%llu,%llu,%llu,%s,%u,%u,%u,%u,%u,%u,%llu,%d,%d\n",
                    (unsigned long long)r->due_us, (unsigned long long)r->sent_us,
                    (unsigned long long)r->first_us, (unsigned long long)r->end_us,
                    outcome_names[r->outcome], r->code, r->session, r->turn, r->body_bytes,
                    r->max_tokens, r->n_events, (unsigned long long)r->answer_bytes,
                    r->prompt_tokens, r->cached_tokens);
    }
}
