/* worker/grammar/core/rows.c - a row is drafted item by item, closed, sorted, and looked up.
 *
 *      scan        items of the row before that the byte continues; both readings of a lexeme's end
 *      close       each item in turn: a finished production returns, a rule is predicted
 *      intern      the number of an equal row, or a new one
 *
 * A row that predicted a rule keeps all items that wait for it, for returns from later rows. */
#include "worker/grammar/core/rows.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "worker/grammar/core/expr_internal.h"

#define FIRST_SLOTS 256u
#define MAX_HOPS    64u /* of tails followed at once: rules that only rename each other form circles */
#define FIRST_NODES 1024u /* looked at for the first bytes of a text, less than its derivatives */
#define DEAD_ENDS   8u    /* texts that a byte does not continue cost as much as one that it does */

/* --- drafting --------------------------------------------------------------------------------- */

static void fail(struct rows *rows) {
    if (rows->exprs->failure == EXPRS_OK) rows->exprs->failure = EXPRS_OUT_OF_MEMORY;
}

/* Room for one more, within the limit of memory. */
static bool grow(struct rows *rows, void *array, uint32_t n, uint32_t *cap, size_t size) {
    uint32_t more = *cap ? *cap * 2 : 64;
    void **at = array, *grown;

    if (n < *cap) return true;
    if (rows->n_bytes + (size_t)(more - *cap) * size > rows->max_bytes ||
        !(grown = mem_try_realloc(*at, more * size))) {
        fail(rows);
        return false;
    }
    rows->n_bytes += (size_t)(more - *cap) * size;
    *at = grown;
    *cap = more;
    return true;
}

static uint64_t hash_item(const struct row_item *i) {
    return rng_mix(((uint64_t)i->at << 32 | i->state) ^
                   rng_mix(((uint64_t)i->row << 32 | i->rule) + i->count));
}

static bool is_same(const struct row_item *a, const struct row_item *b) {
    return memcmp(a, b, sizeof(*a)) == 0;
}

static uint32_t find_draft(const struct rows *rows, const struct row_item *i) {
    uint32_t at = (uint32_t)hash_item(i) & (rows->n_draft_slots - 1);

    while (rows->draft_slot[at] != 0 && !is_same(&rows->draft[rows->draft_slot[at] - 1], i))
        at = (at + 1) & (rows->n_draft_slots - 1);
    return at;
}

static void begin_draft(struct rows *rows) {
    for (uint32_t i = 0; i < rows->n_draft; i++) /* cheaper than to clear a table that once grew */
        rows->draft_slot[find_draft(rows, &rows->draft[rows->n_draft - 1 - i])] = 0;
    rows->n_draft = 0;
    rows->n_drafts++;
    rows->draft_is_accepting = false;
}

static void grow_draft_slots(struct rows *rows) {
    mem_free(rows->draft_slot);
    rows->n_draft_slots *= 2;
    rows->draft_slot = mem_calloc(rows->n_draft_slots, sizeof(*rows->draft_slot));
    for (uint32_t i = 0; i < rows->n_draft; i++)
        rows->draft_slot[find_draft(rows, &rows->draft[i])] = i + 1;
}

/* An item of the draft, unless it is there. A lexeme begins with all of it to come. */
static void add(struct rows *rows, struct row_item i) {
    symbol s = rows->rules->code[i.at];
    uint32_t at;

    if (symbol_kind_of(s) == SYMBOL_TEXT && i.state == EXPR_NONE) i.state = symbol_value(s);
    if (!exprs_pay(rows->exprs, 1)) return;
    at = find_draft(rows, &i);
    if (rows->draft_slot[at] != 0) return;
    if (!grow(rows, &rows->draft, rows->n_draft, &rows->cap_draft, sizeof(i))) return;
    rows->draft[rows->n_draft++] = i;
    rows->draft_slot[at] = rows->n_draft;
    if (rows->n_draft * 2 >= rows->n_draft_slots) grow_draft_slots(rows);
}

/* Behind the symbol of `i`. */
static void advance(struct rows *rows, struct row_item i) {
    i.at++;
    i.state = EXPR_NONE;
    add(rows, i);
}

/* --- returning -------------------------------------------------------------------------------- */

/* Is item k of a row one that waits for `rule`? */
static bool is_waiting(const struct rows *rows, const struct row *row, uint32_t k, uint32_t rule) {
    return k < row->first + row->n_rules &&
           symbol_value(rows->rules->code[rows->item[k].at]) == rule;
}

/* The first item of a row that waits for `rule`, if one does; the others are behind it. */
static uint32_t find_waiting(const struct rows *rows, const struct row *row, uint32_t rule) {
    uint32_t low = row->first, high = row->first + row->n_rules;

    while (low < high) {
        uint32_t mid = low + (high - low) / 2;

        if (symbol_value(rows->rules->code[rows->item[mid].at]) < rule) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low;
}

/* Is what follows the end of a production that goes round no more? */
static bool is_tail(const struct rows *rows, uint32_t at) {
    symbol s = rows->rules->code[at];

    return symbol_kind_of(s) == SYMBOL_END && !rows->rules->production[symbol_value(s)].is_loop;
}

/* Where a member of `rule`, predicted in row `id`, returns to: past all that would return at once.
 * All of many members ask, so it looks at two of those that wait, however many there are. */
static void find_return(const struct rows *rows, row_id id, uint32_t rule, struct row_item *out) {
    const struct row *row = &rows->row[id];

    for (uint32_t hops = 0; hops < MAX_HOPS && exprs_pay(rows->exprs, hops > 0); hops++) {
        uint32_t k = find_waiting(rows, row, rule);
        const struct row_item *w = &rows->item[k];

        if (!is_waiting(rows, row, k, rule) || is_waiting(rows, row, k + 1, rule)) break;
        if (!is_tail(rows, w->at + 1)) break;
        if (w->row != ITEM_HERE) {
            out->row = w->row;
            out->rule = w->rule;
            return;
        }
        rule = w->rule;
    }
    out->row = id;
    out->rule = rule;
}

/* A member of `rule` that was begun in row `id` ends here. */
static void complete(struct rows *rows, row_id id, uint32_t rule) {
    const struct row *row;

    if (id == ITEM_HERE) return; /* it is empty: its prediction has seen to that */
    if (id == ITEM_ROOT) {
        rows->draft_is_accepting = true;
        return;
    }
    row = &rows->row[id];
    for (uint32_t k = find_waiting(rows, row, rule); is_waiting(rows, row, k, rule); k++) {
        struct row_item w = rows->item[k];

        if (w.row == ITEM_HERE) find_return(rows, id, w.rule, &w);
        advance(rows, w);
    }
}

/* --- closing ---------------------------------------------------------------------------------- */

static void end_production(struct rows *rows, const struct row_item *i, uint32_t number) {
    const struct production *p = &rows->rules->production[number];
    struct row_item again = *i;

    if (!p->is_loop) {
        complete(rows, i->row, i->rule);
        return;
    }
    again.count++;
    if (p->max == EXPR_FOREVER) again.count = MIN(again.count, p->min);
    if (again.count >= p->min) complete(rows, i->row, i->rule);
    if (p->max != EXPR_FOREVER && again.count >= p->max) return;
    again.at = p->first;
    again.state = EXPR_NONE;
    add(rows, again);
}

static void predict(struct rows *rows, uint32_t rule) {
    const struct rules *r = rows->rules;

    if (rows->seen_rule[rule] == rows->n_drafts) return;
    rows->seen_rule[rule] = rows->n_drafts;
    for (uint32_t i = r->first_of[rule]; i < r->first_of[rule + 1]; i++)
        add(rows, (struct row_item){
                      .at = r->production[r->by_rule[i]].first, .row = ITEM_HERE, .rule = rule});
}

static void close_draft(struct rows *rows) {
    const symbol *code = rows->rules->code;

    for (uint32_t at = 0; at < rows->n_draft && rows->exprs->failure == EXPRS_OK; at++) {
        struct row_item i = rows->draft[at]; /* a copy: the array grows */
        symbol s = code[i.at];

        switch (symbol_kind_of(s)) {
        case SYMBOL_END: end_production(rows, &i, symbol_value(s)); break;
        case SYMBOL_RULE:
            predict(rows, symbol_value(s));
            if (rows->rules->is_nullable[symbol_value(s)]) advance(rows, i);
            break;
        case SYMBOL_TEXT:
            if (i.state == symbol_value(s) && expr_is_nullable(rows->exprs, i.state))
                advance(rows, i);
            break;
        case SYMBOL_TOKEN: break;
        }
    }
}

/* --- interning -------------------------------------------------------------------------------- */

struct sorted_item { /* with its place in the order of symbols in front */
    uint64_t key;
    struct row_item i;
};

static int by_key(const void *a, const void *b) {
    const struct sorted_item *p = a, *q = b;

    if (p->key != q->key) return p->key < q->key ? -1 : 1;
    if (p->i.at != q->i.at) return p->i.at < q->i.at ? -1 : 1;
    if (p->i.state != q->i.state) return p->i.state < q->i.state ? -1 : 1;
    if (p->i.count != q->i.count) return p->i.count < q->i.count ? -1 : 1;
    if (p->i.row != q->i.row) return p->i.row < q->i.row ? -1 : 1;
    return (p->i.rule > q->i.rule) - (p->i.rule < q->i.rule);
}

/* Rules first, by number; then lexemes, then tokens. */
static uint64_t sort_key(symbol s) {
    switch (symbol_kind_of(s)) {
    case SYMBOL_RULE: return symbol_value(s);
    case SYMBOL_TEXT: return UINT64_C(1) << 32;
    default: return UINT64_C(2) << 32;
    }
}

static bool lay_down(struct rows *rows, struct row *row) {
    const symbol *code = rows->rules->code;
    struct sorted_item small[64], *sorted = small;
    uint32_t n = 0;

    if (rows->n_draft > ARRAY_LEN(small)) sorted = mem_alloc(rows->n_draft * sizeof(*sorted));
    for (uint32_t k = 0; k < rows->n_draft; k++) {
        struct row_item i = rows->draft[k];
        symbol s = code[i.at];

        if (symbol_kind_of(s) == SYMBOL_END) continue;
        if (symbol_kind_of(s) == SYMBOL_TEXT && !expr_continues(rows->exprs, i.state)) continue;
        row->n_rules += symbol_kind_of(s) == SYMBOL_RULE;
        row->n_texts += symbol_kind_of(s) == SYMBOL_TEXT;
        row->n_tokens += symbol_kind_of(s) == SYMBOL_TOKEN;
        sorted[n++] = (struct sorted_item){sort_key(s), i};
    }
    if (n > 1) qsort(sorted, n, sizeof(*sorted), by_key);
    for (uint32_t k = 0; k < n; k++) {
        if (!grow(rows, &rows->item, row->first + k, &rows->cap_items, sizeof(*rows->item))) break;
        rows->item[row->first + k] = sorted[k].i;
    }
    if (sorted != small) mem_free(sorted);
    return rows->exprs->failure == EXPRS_OK;
}

static uint32_t row_n_items(const struct row *row) {
    return row->n_rules + row->n_texts + row->n_tokens;
}

static uint32_t find_row(const struct rows *rows, const struct row *row) {
    size_t n_bytes = row_n_items(row) * sizeof(*rows->item);
    uint64_t hash = hash_64(rows->item + row->first, n_bytes, row->is_accepting);
    uint32_t at = (uint32_t)hash & (rows->n_slots - 1), id;

    for (; (id = rows->slot[at]) != 0; at = (at + 1) & (rows->n_slots - 1)) {
        const struct row *r = &rows->row[id];

        if (row_n_items(r) == row_n_items(row) && r->is_accepting == row->is_accepting &&
            memcmp(rows->item + r->first, rows->item + row->first, n_bytes) == 0)
            break;
    }
    return at;
}

static void grow_slots(struct rows *rows) {
    rows->n_bytes += rows->n_slots * sizeof(*rows->slot);
    rows->n_slots *= 2;
    mem_free(rows->slot);
    rows->slot = mem_calloc(rows->n_slots, sizeof(*rows->slot));
    for (uint32_t id = ROW_START; id < rows->n_rows; id++)
        rows->slot[find_row(rows, &rows->row[id])] = id;
}

/* The closed draft as a row. */
static row_id intern(struct rows *rows) {
    struct row row = {
        .first = rows->n_items, .mask = ROW_UNKNOWN, .is_accepting = rows->draft_is_accepting};
    uint32_t at;

    if (rows->exprs->failure != EXPRS_OK || !lay_down(rows, &row)) return ROW_UNKNOWN;
    if (row_n_items(&row) == 0 && !row.is_accepting) return ROW_DEAD;
    at = find_row(rows, &row);
    if (rows->slot[at] != 0) return rows->slot[at];
    if (!grow(rows, &rows->row, rows->n_rows, &rows->cap_rows, sizeof(row))) return ROW_UNKNOWN;
    rows->n_items += row_n_items(&row);
    rows->row[rows->n_rows] = row;
    rows->slot[at] = rows->n_rows++;
    if (rows->n_rows * 2 >= rows->n_slots) grow_slots(rows);
    return rows->n_rows - 1;
}

/* --- steps ------------------------------------------------------------------------------------ */

static void scan(struct rows *rows, row_id from, uint32_t class) {
    struct exprs *x = rows->exprs;

    if (!exprs_pay(x, rows->row[from].n_texts / DEAD_ENDS)) return;
    for (uint32_t k = 0; k < rows->row[from].n_texts; k++) {
        struct row_item i = rows_texts(rows, from)[k];
        expr_id d = expr_derive(x, i.state, class);

        if (d == EXPR_NONE || !expr_is_alive(x, d)) continue;
        if (i.row == ITEM_HERE) find_return(rows, from, i.rule, &i);
        if (expr_is_nullable(x, d)) advance(rows, i);
        i.state = d;
        if (expr_continues(x, d)) add(rows, i);
    }
}

/* Most bytes lead nowhere from most rows: to see that of all at once saves a derivative for each of
 * them. */
static void note_dead_ends(const struct rows *rows, row_id id, uint32_t *next) {
    const struct row_item *items = rows_texts(rows, id);
    struct byte_set first = {{0}};

    for (uint32_t k = 0; k < rows->row[id].n_texts; k++)
        expr_first(rows->exprs, items[k].state, FIRST_NODES, &first);
    for (uint32_t class = 0; class < exprs_n_classes(rows->exprs); class ++)
        if (!byte_set_has(&first, exprs_byte_of(rows->exprs, class))) next[class] = ROW_DEAD;
}

static bool make_next(struct rows *rows, row_id id) {
    size_t n_bytes = exprs_n_classes(rows->exprs) * sizeof(uint32_t);
    uint32_t *next;

    if (rows->row[id].next) return true;
    if (rows->n_bytes + n_bytes > rows->max_bytes || !(next = mem_try(n_bytes))) {
        fail(rows);
        return false;
    }
    memset(next, 0xFF, n_bytes);
    note_dead_ends(rows, id, next);
    rows->n_bytes += n_bytes;
    rows->row[id].next = next;
    return true;
}

row_id rows_step(struct rows *rows, row_id from, uint32_t class) {
    row_id to;

    if (!make_next(rows, from)) return ROW_UNKNOWN;
    if (rows->row[from].next[class] == ROW_DEAD) return ROW_DEAD;
    rows->n_steps++;
    begin_draft(rows);
    scan(rows, from, class);
    close_draft(rows);
    to = intern(rows);
    if (to != ROW_UNKNOWN) rows->row[from].next[class] = to;
    return to;
}

row_id rows_step_token(struct rows *rows, row_id from, uint32_t token) {
    begin_draft(rows);
    for (uint32_t k = 0; k < rows->row[from].n_tokens; k++) {
        struct row_item i = rows_tokens(rows, from)[k];

        if (symbol_value(rows->rules->code[i.at]) != token) continue;
        if (i.row == ITEM_HERE) find_return(rows, from, i.rule, &i);
        advance(rows, i);
    }
    close_draft(rows);
    return intern(rows);
}

uint32_t rows_free_chars(struct rows *rows, row_id id) {
    uint32_t most = 0;

    for (uint32_t k = 0; k < rows->row[id].n_texts; k++) {
        uint32_t chars = expr_free_chars(rows->exprs, rows_texts(rows, id)[k].state);

        most = MAX(most, chars);
    }
    return most;
}

/* --- creation --------------------------------------------------------------------------------- */

struct rows *rows_create(struct exprs *exprs, struct rules *rules, size_t max_bytes) {
    struct rows *rows = mem_zalloc(sizeof(*rows));
    uint32_t first = rules->production[rules->by_rule[rules->first_of[rules->start]]].first;

    rows->exprs = exprs;
    rows->rules = rules;
    rows->max_bytes = max_bytes;
    rows->n_slots = FIRST_SLOTS;
    rows->slot = mem_calloc(rows->n_slots, sizeof(*rows->slot));
    rows->n_draft_slots = 128;
    rows->draft_slot = mem_calloc(rows->n_draft_slots, sizeof(*rows->draft_slot));
    rows->seen_rule = mem_calloc(rules->n_rules, sizeof(*rows->seen_rule));
    rows->n_bytes = sizeof(*rows) + rows->n_slots * sizeof(*rows->slot) +
                    rules->n_rules * sizeof(*rows->seen_rule);
    if (!grow(rows, &rows->row, 0, &rows->cap_rows, sizeof(*rows->row)) ||
        !grow(rows, &rows->item, 0, &rows->cap_items, sizeof(*rows->item)))
        return rows;
    rows->row[rows->n_rows++] = (struct row){.mask = ROW_UNKNOWN};
    begin_draft(rows);
    add(rows, (struct row_item){.at = first, .row = ITEM_ROOT, .rule = rules->start});
    close_draft(rows);
    (void)intern(rows);
    return rows;
}

void rows_destroy(struct rows *rows) {
    if (!rows) return;
    for (uint32_t id = 0; id < rows->n_rows; id++)
        mem_free(rows->row[id].next);
    mem_free(rows->row);
    mem_free(rows->item);
    mem_free(rows->slot);
    mem_free(rows->draft);
    mem_free(rows->draft_slot);
    mem_free(rows->seen_rule);
    mem_free(rows);
}

/* --- giving memory back ----------------------------------------------------------------------- */

/* A row returns to rows with smaller ids: one pass from the last to the first finds all. */
static void mark(const struct rows *rows, uint8_t *is_live, uint8_t *is_live_expr) {
    for (uint32_t id = rows->n_rows; id-- > 0;) {
        const struct row *row = &rows->row[id];

        for (uint32_t k = 0; is_live[id] && k < row_n_items(row); k++) {
            const struct row_item *i = &rows->item[row->first + k];

            is_live_expr[i->state] = 1;
            if (i->row < ITEM_ROOT) is_live[i->row] = 1;
        }
    }
    for (uint32_t k = 0; k < rows->rules->n_code; k++)
        if (symbol_kind_of(rows->rules->code[k]) == SYMBOL_TEXT)
            is_live_expr[symbol_value(rows->rules->code[k])] = 1;
}

static void move_row(struct rows *rows, struct row *row, const row_id *moved,
                     const expr_id *moved_expr) {
    uint32_t n = row_n_items(row);

    for (uint32_t k = 0; k < n; k++) {
        struct row_item i = rows->item[row->first + k];

        i.state = moved_expr[i.state];
        if (i.row < ITEM_ROOT) i.row = moved[i.row];
        rows->item[rows->n_items + k] = i;
    }
    row->first = rows->n_items;
    rows->n_items += n;
}

/* Arrays as small as what is left allows; the table of rows empty. */
static void shrink(struct rows *rows) {
    rows->n_bytes -= rows->cap_rows * sizeof(*rows->row) + rows->cap_items * sizeof(*rows->item) +
                     rows->n_slots * sizeof(*rows->slot);
    rows->cap_rows = MAX(rows->n_rows, 64u);
    rows->cap_items = MAX(rows->n_items, 64u);
    while (rows->n_slots > FIRST_SLOTS && rows->n_slots / 4 > rows->n_rows)
        rows->n_slots /= 2;
    mem_free(rows->slot);
    rows->slot = mem_calloc(rows->n_slots, sizeof(*rows->slot));
    rows->row = mem_realloc(rows->row, rows->cap_rows * sizeof(*rows->row));
    rows->item = mem_realloc(rows->item, rows->cap_items * sizeof(*rows->item));
    rows->n_bytes += rows->cap_rows * sizeof(*rows->row) + rows->cap_items * sizeof(*rows->item) +
                     rows->n_slots * sizeof(*rows->slot);
}

void rows_collect(struct rows *rows, uint8_t *is_live, row_id *moved) {
    uint8_t *is_live_expr = mem_calloc(exprs_count(rows->exprs), 1);
    expr_id *moved_expr = mem_calloc(exprs_count(rows->exprs), sizeof(*moved_expr));
    uint32_t n = 0;

    is_live[ROW_DEAD] = is_live[ROW_START] = 1;
    mark(rows, is_live, is_live_expr);
    exprs_collect(rows->exprs, is_live_expr, moved_expr);
    begin_draft(rows);
    rows->n_items = 0;
    for (uint32_t id = 0; id < rows->n_rows; id++) {
        struct row row = rows->row[id];

        if (row.next) rows->n_bytes -= exprs_n_classes(rows->exprs) * sizeof(*row.next);
        mem_free(row.next);
        row.next = NULL;
        row.mask = ROW_UNKNOWN;
        if (!is_live[id]) continue;
        move_row(rows, &row, moved, moved_expr);
        moved[id] = n;
        rows->row[n++] = row;
    }
    rows->n_rows = n;
    shrink(rows);
    for (uint32_t k = 0; k < rows->rules->n_code; k++) {
        symbol *s = &rows->rules->code[k];

        if (symbol_kind_of(*s) == SYMBOL_TEXT) *s = rules_text(moved_expr[symbol_value(*s)]);
    }
    for (uint32_t id = ROW_START; id < n; id++)
        rows->slot[find_row(rows, &rows->row[id])] = id;
    mem_free(is_live_expr);
    mem_free(moved_expr);
}

void rows_check(const struct rows *rows) {
    for (uint32_t id = ROW_START; id < rows->n_rows; id++) {
        const struct row *row = &rows->row[id];

        assert(rows->slot[find_row(rows, row)] == id);
        for (uint32_t k = 0; k < row_n_items(row); k++) {
            const struct row_item *i = &rows->item[row->first + k];
            symbol s = rows->rules->code[i->at];

            assert(k < row->n_rules                  ? symbol_kind_of(s) == SYMBOL_RULE
                   : k < row->n_rules + row->n_texts ? symbol_kind_of(s) == SYMBOL_TEXT
                                                     : symbol_kind_of(s) == SYMBOL_TOKEN);
            assert(i->row >= ITEM_ROOT || i->row < id);
            assert(i->state == EXPR_NONE || i->state < exprs_count(rows->exprs));
        }
    }
    exprs_check(rows->exprs);
}
