/* common/telemetry/metrics.c - the registry and its page.
 *
 * A child is found by its label text, `policy="prefix",code="200"`, which is at once its key in the
 * family's map and what the page shows. The lock guards the families' maps and lists; the numbers
 * are atomics outside it. The parts of a child hang on it, newest first, and never leave it; each
 * has one writer, who therefore needs no atomic addition, only loads and stores. A histogram keeps
 * no count: it is the sum of its buckets, so that the page agrees with itself whatever is updated
 * meanwhile. */
#include "common/telemetry/metrics.h"

#include <assert.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>

#include "common/base/list.h"
#include "common/base/map.h"
#include "common/base/mem.h"

#define DEFAULT_CHILDREN  256
#define LABEL_VALUE_BYTES 128  /* longer values are cut: names of things, not texts */
#define LABELS_MAX_BYTES  4096 /* METRIC_MAX_LABELS values, each byte of them replaced by three */
#define MAX_COLLECTORS    8

const double metrics_ttft_buckets[METRICS_TTFT_BUCKETS] = {.001, .005, .01, .02, .04, .06, .08, .1,
                                                           .25,  .5,   .75, 1,   2.5, 5,   7.5, 10,
                                                           20,   40,   80,  160, 640, 2560};
const double metrics_latency_buckets[METRICS_LATENCY_BUCKETS] = {
    .3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
const double metrics_itl_buckets[METRICS_ITL_BUCKETS] = {
    .01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80};
const double metrics_token_buckets[METRICS_TOKEN_BUCKETS] = {
    1,    2,    5,     10,    20,    50,     100,    200,    500,    1000,
    2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000};
const double metrics_seconds_buckets[METRICS_SECONDS_BUCKETS] = {
    .0001, .0002, .0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10};

struct metric {
    struct list link; /* family.children, in order of creation */
    const struct family *family;
    char *labels;                 /* `a="x",b="y"`; "" without labels */
    struct metric *_Atomic parts; /* linked by next_part */
    struct metric *next_part;     /* of a part, which is in no other list */
    bool is_part;
    atomic_uint_fast64_t
        bits; /* counter: the count; gauge and sum of a histogram: a double's bits */
    atomic_uint_fast64_t hits[]; /* histogram: observations per bucket, the last is +Inf */
};

struct family {
    const struct metric_def *def;
    const char *label_names[METRIC_MAX_LABELS]; /* point into label_text */
    char *label_text;                           /* def->labels, commas cut into terminators */
    uint32_t n_labels;
    const double *buckets;
    uint32_t n_buckets;
    struct list children;
    struct strmap by_labels;
    struct metric *only; /* the child of a family without labels */
};

struct metrics {
    struct family *families;
    uint32_t n_families;
    char *common_labels; /* `model_name="x",` or "" */
    pthread_mutex_t lock;
    struct {
        metrics_collect_fn *fn;
        void *ctx;
    } collectors[MAX_COLLECTORS];
    uint32_t n_collectors;
};

/* --- children ---------------------------------------------------------------------------------*/

/* A child or a part, with a line of the cache between it and what comes next. */
static struct metric *metric_create(const struct family *f) {
    size_t n_hits = f->def->kind == METRIC_HISTOGRAM ? f->n_buckets + 1 : 0;
    struct metric *c = mem_zalloc(sizeof(*c) + n_hits * sizeof(c->hits[0]) + CACHE_LINE);

    c->family = f;
    return c;
}

static struct metric *child_create(struct family *f, struct str labels) {
    struct metric *c = metric_create(f);

    c->labels = mem_strndup(labels.ptr, labels.len);
    list_push_back(&f->children, &c->link);
    strmap_insert(&f->by_labels, labels, c);
    return c;
}

static void child_destroy(struct family *f, struct metric *c) {
    struct metric *part, *next;

    for (part = c->parts; part; part = next) {
        next = part->next_part;
        mem_free(part);
    }
    strmap_erase(&f->by_labels, str_of(c->labels));
    list_remove(&c->link);
    mem_free(c->labels);
    mem_free(c);
}

/* `name="value",`: quotes, backslashes and line ends escaped, what is not UTF-8 replaced. */
static void append_label(struct buf *out, const char *name, struct str value) {
    buf_appendf(out, "%s=\"", name);
    for (size_t i = 0, n; i < value.len && i < LABEL_VALUE_BYTES; i += n) {
        struct str rest = {value.ptr + i, value.len - i};

        n = str_utf8_len(rest);
        if (n == 0) {
            buf_append_str(out, STR("\xEF\xBF\xBD"));
            n = 1;
        } else if (rest.ptr[0] == '\n') {
            buf_append_str(out, STR("\\n"));
        } else {
            if (rest.ptr[0] == '"' || rest.ptr[0] == '\\') buf_append_char(out, '\\');
            buf_append(out, rest.ptr, n);
        }
    }
    buf_append_str(out, STR("\","));
}

/* The label text of these values, composed in `memory`. */
static struct str label_text(const struct family *f, const char *const *values,
                             char memory[LABELS_MAX_BYTES]) {
    struct buf out = {.data = memory, .cap = LABELS_MAX_BYTES, .limit = LABELS_MAX_BYTES};
    struct str text;

    for (uint32_t i = 0; i < f->n_labels; i++) {
        append_label(&out, f->label_names[i], str_of(values ? values[i] : "other"));
    }
    text = buf_str(&out);
    if (text.len) text.len--; /* the last comma */
    return text;
}

struct metric *metrics_get(struct metrics *m, uint32_t id, const char *const *values,
                           uint32_t n_values) {
    struct family *f = &m->families[id];
    char memory[LABELS_MAX_BYTES];
    struct metric *c;
    struct str labels;
    uint32_t max = f->def->max_children ? f->def->max_children : DEFAULT_CHILDREN;

    assert(id < m->n_families && n_values == f->n_labels);
    if (f->only) return f->only;
    labels = label_text(f, values, memory);
    pthread_mutex_lock(&m->lock);
    c = strmap_find(&f->by_labels, labels);
    if (!c && f->by_labels.n >= max) {
        labels = label_text(f, NULL, memory);
        c = strmap_find(&f->by_labels, labels);
    }
    if (!c) c = child_create(f, labels);
    pthread_mutex_unlock(&m->lock);
    return c;
}

struct metric *metrics_at(struct metrics *m, uint32_t id) {
    assert(id < m->n_families && m->families[id].only);
    return m->families[id].only;
}

struct metric *metric_part(struct metrics *m, struct metric *whole) {
    struct metric *part = metric_create(whole->family);

    assert(!whole->is_part && whole->family->def->kind != METRIC_GAUGE);
    part->is_part = true;
    pthread_mutex_lock(&m->lock);
    part->next_part = whole->parts;
    atomic_store_explicit(&whole->parts, part, memory_order_release);
    pthread_mutex_unlock(&m->lock);
    return part;
}

/* --- the registry -----------------------------------------------------------------------------*/
static void family_init(struct family *f, const struct metric_def *def) {
    char *rest, *name;

    f->def = def;
    list_init(&f->children);
    strmap_init(&f->by_labels, (uint64_t)(uintptr_t)def);
    f->label_text = mem_strdup(def->labels ? def->labels : "");
    for (name = strtok_r(f->label_text, ", ", &rest); name; name = strtok_r(NULL, ", ", &rest)) {
        assert(f->n_labels < METRIC_MAX_LABELS);
        f->label_names[f->n_labels++] = name;
    }
    f->buckets = def->buckets ? def->buckets : metrics_seconds_buckets;
    f->n_buckets = def->buckets ? def->n_buckets : METRICS_SECONDS_BUCKETS;
    for (uint32_t i = 1; i < f->n_buckets; i++)
        assert(f->buckets[i - 1] < f->buckets[i]);
    if (f->n_labels == 0) f->only = child_create(f, STR(""));
}

static void family_fini(struct family *f) {
    LIST_FOR_EACH(it, &f->children) {
        child_destroy(f, LIST_ENTRY(it, struct metric, link));
    }
    strmap_fini(&f->by_labels);
    mem_free(f->label_text);
}

struct metrics *metrics_create(const struct metric_def *defs, uint32_t n_defs) {
    struct metrics *m = mem_zalloc(sizeof(*m));

    m->families = mem_calloc(n_defs, sizeof(*m->families));
    m->n_families = n_defs;
    m->common_labels = mem_strdup("");
    pthread_mutex_init(&m->lock, NULL);
    for (uint32_t i = 0; i < n_defs; i++)
        family_init(&m->families[i], &defs[i]);
    return m;
}

void metrics_destroy(struct metrics *m) {
    if (!m) return;
    for (uint32_t i = 0; i < m->n_families; i++)
        family_fini(&m->families[i]);
    mem_free(m->families);
    mem_free(m->common_labels);
    pthread_mutex_destroy(&m->lock);
    mem_free(m);
}

void metrics_add_common_label(struct metrics *m, const char *name, const char *value) {
    struct buf out;

    buf_init(&out, 0);
    pthread_mutex_lock(&m->lock);
    buf_append_str(&out, str_of(m->common_labels));
    append_label(&out, name, str_of(value));
    mem_free(m->common_labels);
    m->common_labels = buf_strdup(&out);
    pthread_mutex_unlock(&m->lock);
    buf_fini(&out);
}

void metrics_on_collect(struct metrics *m, metrics_collect_fn *fn, void *ctx) {
    pthread_mutex_lock(&m->lock);
    assert(m->n_collectors < MAX_COLLECTORS);
    m->collectors[m->n_collectors].fn = fn;
    m->collectors[m->n_collectors++].ctx = ctx;
    pthread_mutex_unlock(&m->lock);
}

/* --- updates ----------------------------------------------------------------------------------*/
static uint64_t bits_of(double v) {
    uint64_t bits;

    memcpy(&bits, &v, sizeof(bits));
    return bits;
}

static double double_of(uint64_t bits) {
    double v;

    memcpy(&v, &bits, sizeof(v));
    return v;
}

static uint64_t load(const atomic_uint_fast64_t *a) {
    return atomic_load_explicit(a, memory_order_relaxed);
}

static const struct metric *first_part(const struct metric *c) {
    return atomic_load_explicit(&c->parts, memory_order_acquire);
}

static void add(struct metric *c, atomic_uint_fast64_t *a, uint64_t n) {
    if (c->is_part)
        atomic_store_explicit(a, load(a) + n, memory_order_relaxed);
    else
        atomic_fetch_add_explicit(a, n, memory_order_relaxed);
}

static void add_double(struct metric *c, atomic_uint_fast64_t *a, double delta) {
    uint_fast64_t before = load(a);

    if (c->is_part) {
        atomic_store_explicit(a, bits_of(double_of(before) + delta), memory_order_relaxed);
        return;
    }
    while (!atomic_compare_exchange_weak_explicit(a, &before, bits_of(double_of(before) + delta),
                                                  memory_order_relaxed, memory_order_relaxed)) {
    }
}

void metric_add(struct metric *c, uint64_t n) {
    assert(c->family->def->kind == METRIC_COUNTER);
    add(c, &c->bits, n);
}

void metric_inc(struct metric *c) {
    metric_add(c, 1);
}

void metric_reach(struct metric *c, uint64_t total) {
    uint_fast64_t was = atomic_load_explicit(&c->bits, memory_order_relaxed);

    assert(c->family->def->kind == METRIC_COUNTER && !c->is_part && !first_part(c));
    while (was < total && !atomic_compare_exchange_weak_explicit(
                              &c->bits, &was, total, memory_order_relaxed, memory_order_relaxed))
        continue;
}

void metric_set(struct metric *g, double value) {
    assert(g->family->def->kind == METRIC_GAUGE);
    atomic_store_explicit(&g->bits, bits_of(value), memory_order_relaxed);
}

void metric_shift(struct metric *g, double delta) {
    assert(g->family->def->kind == METRIC_GAUGE);
    add_double(g, &g->bits, delta);
}

void metric_observe(struct metric *h, double value) {
    const struct family *f = h->family;
    uint32_t i = 0;

    assert(f->def->kind == METRIC_HISTOGRAM);
    if (isnan(value)) return;
    while (i < f->n_buckets && value > f->buckets[i])
        i++;
    add(h, &h->hits[i], 1);
    add_double(h, &h->bits, value);
}

static uint64_t sum_of_counts(const struct metric *c) {
    uint64_t n = load(&c->bits);

    for (const struct metric *part = first_part(c); part; part = part->next_part)
        n += load(&part->bits);
    return n;
}

static double sum_of_doubles(const struct metric *c) {
    double v = double_of(load(&c->bits));

    for (const struct metric *part = first_part(c); part; part = part->next_part)
        v += double_of(load(&part->bits));
    return v;
}

static uint64_t sum_of_hits(const struct metric *h, uint32_t bucket) {
    uint64_t n = load(&h->hits[bucket]);

    for (const struct metric *part = first_part(h); part; part = part->next_part)
        n += load(&part->hits[bucket]);
    return n;
}

double metric_value(const struct metric *c) {
    const struct metric_def *def = c->family->def;

    if (def->kind != METRIC_COUNTER) return sum_of_doubles(c);
    return (double)sum_of_counts(c) * (def->scale != 0 ? def->scale : 1);
}

uint64_t metric_count(const struct metric *h) {
    uint64_t n = 0;

    assert(h->family->def->kind == METRIC_HISTOGRAM);
    for (uint32_t i = 0; i <= h->family->n_buckets; i++)
        n += sum_of_hits(h, i);
    return n;
}

/* --- the page ---------------------------------------------------------------------------------*/
static void append_number(struct buf *out, double v) {
    if (isnan(v)) {
        buf_append_str(out, STR("NaN"));
    } else if (isinf(v)) {
        buf_append_str(out, v > 0 ? STR("+Inf") : STR("-Inf"));
    } else {
        buf_append_f64(out, v);
    }
}

/* `name_suffix{common,own,le="bound"} `; pieces that are empty leave no trace. */
static void append_series(struct buf *out, const struct metrics *m, struct str name,
                          const char *suffix, const struct metric *c, const double *le) {
    size_t n_common = strlen(m->common_labels);
    bool has_own = c->labels[0] != '\0';

    buf_appendf(out, STR_FMT "%s", STR_ARG(name), suffix);
    if (n_common || has_own || le) {
        if (!has_own && !le) n_common--; /* without the comma */
        buf_append_char(out, '{');
        buf_append(out, m->common_labels, n_common);
        buf_append_str(out, str_of(c->labels));
        if (le) {
            buf_append_str(out, has_own ? STR(",le=\"") : STR("le=\""));
            append_number(out, *le);
            buf_append_char(out, '"');
        }
        buf_append_char(out, '}');
    }
    buf_append_char(out, ' ');
}

static void write_histogram(struct buf *out, const struct metrics *m, struct str name,
                            const struct metric *h) {
    const struct family *f = h->family;
    const double infinity = INFINITY;
    uint64_t n = 0;

    for (uint32_t i = 0; i <= f->n_buckets; i++) {
        n += sum_of_hits(h, i);
        append_series(out, m, name, "_bucket", h, i < f->n_buckets ? &f->buckets[i] : &infinity);
        buf_appendf(out, "%llu\n", (unsigned long long)n);
    }
    append_series(out, m, name, "_sum", h, NULL);
    append_number(out, metric_value(h));
    buf_append_char(out, '\n');
    append_series(out, m, name, "_count", h, NULL);
    buf_appendf(out, "%llu\n", (unsigned long long)n);
}

static void write_child(struct buf *out, const struct metrics *m, struct str name,
                        const struct metric *c) {
    const struct metric_def *def = c->family->def;

    if (def->kind == METRIC_HISTOGRAM) {
        write_histogram(out, m, name, c);
        return;
    }
    append_series(out, m, name, "", c, NULL);
    if (def->kind == METRIC_COUNTER && (def->scale == 0 || def->scale == 1)) {
        buf_appendf(out, "%llu", (unsigned long long)sum_of_counts(c));
    } else {
        append_number(out, metric_value(c));
    }
    buf_append_char(out, '\n');
}

static void write_family(struct buf *out, const struct metrics *m, const struct family *f,
                         struct str name) {
    static const char *const kinds[] = {"counter", "gauge", "histogram"};

    buf_appendf(out, "# HELP " STR_FMT " ", STR_ARG(name));
    for (const char *p = f->def->help; *p; p++) {
        if (*p == '\\') buf_append_char(out, '\\');
        if (*p == '\n') {
            buf_append_str(out, STR("\\n"));
        } else {
            buf_append_char(out, *p);
        }
    }
    buf_appendf(out, "\n# TYPE " STR_FMT " %s\n", STR_ARG(name), kinds[f->def->kind]);
    LIST_FOR_EACH(it, &f->children) {
        write_child(out, m, name, LIST_ENTRY(it, struct metric, link));
    }
}

void metrics_write(struct metrics *m, struct buf *out) {
    /* Outside the lock: a collector may look children up. They are set before the first page. */
    for (uint32_t i = 0; i < m->n_collectors; i++)
        m->collectors[i].fn(m->collectors[i].ctx);
    pthread_mutex_lock(&m->lock);
    for (uint32_t i = 0; i < m->n_families; i++) {
        const struct family *f = &m->families[i];
        const char *alias = f->def->aliases ? f->def->aliases : "";

        write_family(out, m, f, str_of(f->def->name));
        while (*alias) {
            size_t n = strcspn(alias, ",");

            write_family(out, m, f, (struct str){alias, n});
            alias += n + (alias[n] == ',');
        }
    }
    pthread_mutex_unlock(&m->lock);
}
