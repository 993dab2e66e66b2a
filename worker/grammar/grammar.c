/* worker/grammar/grammar.c - compiling, matchers, and memory.
 *
 * A grammar keeps a list of its matchers, so that their rows can be followed when memory is given
 * back. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "worker/grammar/grammar_internal.h"

/* --- compiling -------------------------------------------------------------------------------- */

/* Why the store of expressions refused, in words for the client. */
static enum status too_much(const struct grammar *g, struct error *err) {
    const char *place = g->rules->place, *colon = *place ? ": " : "";

    if (exprs_failure(g->exprs) == EXPRS_STOPPED)
        return error_set(err, ST_CLOSED, "none waits for it any more");
    if (exprs_failure(g->exprs) == EXPRS_OUT_OF_MEMORY)
        return error_set(err, ST_INVALID, "%s%sit takes more than %zu MiB: make it smaller", place,
                         colon, GRAMMAR_MAX_BYTES >> 20);
    return error_set(err, ST_INVALID, "%s%sit takes more than 50 ms to compile: make it smaller",
                     place, colon);
}

/* The first mask: what is too much for masks must not reach a request. */
static enum status try_first(struct grammar *g, struct error *err) {
    struct grammar_matcher m;
    const uint32_t *mask;
    bool is_new;
    enum status st;

    grammar_matcher_init(&m, g);
    st = grammar_mask(&m, &mask, &is_new);
    grammar_matcher_fini(&m);
    return st == ST_OK ? ST_OK : too_much(g, err);
}

static int by_id(const void *a, const void *b) {
    uint32_t p = *(const uint32_t *)a, q = *(const uint32_t *)b;

    return (p > q) - (p < q);
}

/* Ids of the rules that are in a trie too. */
static void list_named(struct grammar *g) {
    const struct rules *r = g->rules;
    uint32_t cap = 0, n = 0;

    for (uint32_t k = 0; k < r->n_code; k++) {
        uint32_t id = symbol_value(r->code[k]);

        if (symbol_kind_of(r->code[k]) != SYMBOL_TOKEN || id >= g->vocabulary->n_tokens ||
            vocabulary_bytes(g->vocabulary, id).len == 0)
            continue;
        if (g->n_named == cap) {
            cap = MAX(cap * 2, 16u);
            g->named = mem_realloc(g->named, cap * sizeof(*g->named));
        }
        g->named[g->n_named++] = id;
    }
    if (g->n_named > 1) qsort(g->named, g->n_named, sizeof(*g->named), by_id);
    for (uint32_t i = 0; i < g->n_named; i++)
        if (i == 0 || g->named[i] != g->named[n - 1]) g->named[n++] = g->named[i];
    g->n_named = n;
}

static enum status build(struct grammar *g, const struct grammar_spec *spec, struct error *err) {
    symbol start;
    enum status st = grammar_front_end(g, spec, &start, err);

    if (exprs_failure(g->exprs) != EXPRS_OK) return too_much(g, err);
    if (st != ST_OK) return st;
    list_named(g);
    exprs_freeze(g->exprs);
    st = rules_finish(g->rules, start, err);
    if (exprs_failure(g->exprs) != EXPRS_OK) return too_much(g, err);
    if (st != ST_OK) return st;
    g->rows = rows_create(g->exprs, g->rules, GRAMMAR_MAX_BYTES / 2);
    if (exprs_failure(g->exprs) != EXPRS_OK) return too_much(g, err);
    return try_first(g, err);
}

enum status grammar_compile(struct grammar **out, const struct grammar_spec *spec,
                            const struct vocabulary *vocabulary, struct error *err) {
    struct grammar *g;
    enum status st;

    if (spec->text.len > GRAMMAR_TEXT_MAX)
        return error_set(err, ST_INVALID, "it has %zu bytes: the limit is %u", spec->text.len,
                         GRAMMAR_TEXT_MAX);
    g = mem_zalloc(sizeof(*g));
    atomic_init(&g->refs, 1);
    list_init(&g->matchers);
    g->vocabulary = vocabulary;
    g->one = mem_calloc(MAX(vocabulary->n_words, 1u), sizeof(*g->one));
    g->exprs = exprs_create(GRAMMAR_MAX_BYTES / 2);
    g->rules = rules_create(g->exprs);
    exprs_set_fuel(g->exprs, GRAMMAR_COMPILE_WORK);
    exprs_set_stop(g->exprs, spec->is_abandoned);
    st = build(g, spec, err);
    if (st == ST_OK && !exprs_pay(g->exprs, 0)) st = too_much(g, err);
    exprs_set_stop(g->exprs, NULL);
    if (st != ST_OK) {
        grammar_unref(g);
        return st;
    }
    *out = g;
    return ST_OK;
}

struct grammar *grammar_ref(struct grammar *g) {
    atomic_fetch_add_explicit(&g->refs, 1, memory_order_relaxed);
    return g;
}

static void set_bytes(struct grammar *g, size_t n_bytes) {
    size_t before = atomic_exchange_explicit(&g->n_bytes, n_bytes, memory_order_relaxed);

    if (g->total) atomic_fetch_add_explicit(g->total, n_bytes - before, memory_order_relaxed);
}

void grammar_unref(struct grammar *g) {
    if (!g || atomic_fetch_sub_explicit(&g->refs, 1, memory_order_acq_rel) != 1) return;
    set_bytes(g, 0);
    grammar_masks_drop(g);
    mem_free(g->mask_of.slot);
    mem_free(g->one);
    mem_free(g->named);
    rows_destroy(g->rows);
    rules_destroy(g->rules);
    exprs_destroy(g->exprs);
    mem_free(g);
}

size_t grammar_bytes(const struct grammar *g) {
    return atomic_load_explicit(&g->n_bytes, memory_order_relaxed);
}

void grammar_note_bytes(struct grammar *g) {
    set_bytes(g, g->rows->n_bytes + exprs_bytes(g->exprs) + rules_bytes(g->rules) +
                     ((size_t)g->mask_of.n + 1) * g->vocabulary->n_words * sizeof(uint32_t));
}

void grammar_count_in(struct grammar *g, atomic_size_t *total, const atomic_size_t *max_bytes) {
    g->total = total;
    g->total_max = max_bytes;
    atomic_fetch_add_explicit(total, grammar_bytes(g), memory_order_relaxed);
}

/* --- matchers --------------------------------------------------------------------------------- */

void grammar_matcher_init(struct grammar_matcher *m, struct grammar *g) {
    m->grammar = grammar_ref(g);
    m->row = ROW_START;
    m->n_taken = 0;
    list_push_back(&g->matchers, &m->link);
}

void grammar_matcher_fork(struct grammar_matcher *m, const struct grammar_matcher *from) {
    *m = *from;
    (void)grammar_ref(m->grammar);
    list_push_back(&m->grammar->matchers, &m->link);
}

void grammar_matcher_fini(struct grammar_matcher *m) {
    if (!m->grammar) return;
    list_remove(&m->link);
    grammar_unref(m->grammar);
    m->grammar = NULL;
}

/* The row behind `bytes`; ROW_DEAD, or ROW_UNKNOWN beyond the limits. */
static row_id follow(struct grammar *g, row_id row, struct str bytes) {
    const uint8_t *class_of = exprs_class_of(g->exprs);

    for (size_t i = 0; i < bytes.len && row != ROW_DEAD && row != ROW_UNKNOWN; i++)
        row = rows_next(g->rows, row, class_of[(uint8_t)bytes.ptr[i]]);
    return row;
}

enum status grammar_take(struct grammar_matcher *m, uint32_t token) {
    struct grammar *g = m->grammar;
    struct str bytes = vocabulary_bytes(g->vocabulary, token);
    row_id row = ROW_DEAD;

    grammar_prepare(g);
    if (bytes.len > 0 && !grammar_names(g, token)) {
        row = follow(g, m->row, bytes);
    } else if (g->rows->row[m->row].n_tokens > 0) {
        row = rows_step_token(g->rows, m->row, token);
    }
    if (row == ROW_DEAD) return ST_INVALID;
    if (row == ROW_UNKNOWN) return grammar_limit_status(g);
    m->before[m->n_taken++ % GRAMMAR_ROLLBACK_MAX] = m->row;
    m->row = row;
    return ST_OK;
}

void grammar_take_back(struct grammar_matcher *m, uint32_t n) {
    assert(n <= MIN(m->n_taken, GRAMMAR_ROLLBACK_MAX));
    if (n == 0) return;
    m->n_taken -= n;
    m->row = m->before[m->n_taken % GRAMMAR_ROLLBACK_MAX];
}

bool grammar_is_accepting(const struct grammar_matcher *m) {
    return m->grammar->rows->row[m->row].is_accepting;
}

bool grammar_continues(const struct grammar_matcher *m) {
    return rows_continues(m->grammar->rows, m->row);
}

void grammar_forced(struct grammar_matcher *m, struct buf *out) {
    row_id path[GRAMMAR_FORCED_MAX + 1];
    char bytes[GRAMMAR_FORCED_MAX];
    uint32_t n;

    grammar_prepare(m->grammar);
    n = grammar_force(m->grammar, m->row, GRAMMAR_FORCED_MAX, bytes, path);
    buf_append(out, bytes, n);
}

/* --- memory ----------------------------------------------------------------------------------- */

void grammar_collect(struct grammar *g) {
    uint8_t *is_live = mem_calloc(g->rows->n_rows, 1);
    row_id *moved = mem_calloc(g->rows->n_rows, sizeof(*moved));

    LIST_FOR_EACH(it, &g->matchers) {
        struct grammar_matcher *m = LIST_ENTRY(it, struct grammar_matcher, link);

        is_live[m->row] = 1;
        for (uint32_t i = 0; i < MIN(m->n_taken, GRAMMAR_ROLLBACK_MAX); i++)
            is_live[m->before[i]] = 1;
    }
    rows_collect(g->rows, is_live, moved);
    LIST_FOR_EACH(it, &g->matchers) {
        struct grammar_matcher *m = LIST_ENTRY(it, struct grammar_matcher, link);

        m->row = moved[m->row];
        for (uint32_t i = 0; i < MIN(m->n_taken, GRAMMAR_ROLLBACK_MAX); i++)
            m->before[i] = moved[m->before[i]];
    }
    mem_free(is_live);
    mem_free(moved);
    grammar_masks_drop(g);
    g->n_collections++;
}

static bool is_crowded(const struct grammar *g) {
    return g->total && atomic_load_explicit(g->total, memory_order_relaxed) >
                           atomic_load_explicit(g->total_max, memory_order_relaxed);
}

size_t grammar_allowance(const struct grammar *g) {
    return is_crowded(g) ? GRAMMAR_CROWDED_BYTES : GRAMMAR_MAX_BYTES;
}

enum status grammar_limit_status(const struct grammar *g) {
    bool is_memory = exprs_failure(g->exprs) == EXPRS_OUT_OF_MEMORY;

    return is_memory && is_crowded(g) ? ST_BUSY : ST_TOO_LARGE;
}

void grammar_prepare(struct grammar *g) {
    size_t n_bytes = g->rows->n_bytes + exprs_bytes(g->exprs), most = grammar_allowance(g);

    exprs_forgive(g->exprs);
    exprs_set_fuel(g->exprs, GRAMMAR_MASK_WORK);
    exprs_set_max(g->exprs, most / 2);
    g->rows->max_bytes = most / 2;
    if (n_bytes <= MAX(g->kept_bytes * 3 / 2, most / 4) && n_bytes <= most / 2) return;
    grammar_collect(g);
    g->kept_bytes = g->rows->n_bytes + exprs_bytes(g->exprs);
    grammar_note_bytes(g);
}

/* --- for tests -------------------------------------------------------------------------------- */

bool grammar_allows(struct grammar_matcher *m, struct str bytes) {
    row_id row;

    grammar_prepare(m->grammar);
    row = follow(m->grammar, m->row, bytes);
    return row != ROW_DEAD && row != ROW_UNKNOWN;
}

bool grammar_accepts(struct grammar *g, struct str bytes) {
    row_id row;

    grammar_prepare(g);
    row = follow(g, ROW_START, bytes);
    return row != ROW_DEAD && row != ROW_UNKNOWN && g->rows->row[row].is_accepting;
}

uint64_t grammar_collections(const struct grammar *g) {
    return g->n_collections;
}

void grammar_check(const struct grammar *g) {
    rows_check(g->rows);
}
