/* worker/grammar/core/rows.h - where an answer stands in a grammar: rows of an Earley recogniser,
 * as values.
 *
 * A row is the set of items that are possible behind some bytes. An item is a place in a
 * production, the state of the lexeme that is being read there, how often a loop has gone round,
 * and where to return: the row in which its rule was predicted. Earley numbers rows by position;
 * here equal sets are one row with one number, whatever was read to get there. So
 *
 *   - a row is all there is to remember: to fork, to roll back or to keep an answer is to copy a
 *     number;
 *   - the step from a row by a byte is made once and then looked up, and a whole grammar becomes a
 *     finite automaton where it is one: behind each element of an array stands the row of before;
 *   - what is computed for a row (a mask of tokens) serves every request of the grammar.
 *
 * There is no longest match: a lexeme may end wherever it is a member, and both readings go on side
 * by side. Left recursion is Earley's as ever. A rule at the end of a production returns where that
 * production would (Leo), so right recursion and chains of optional parts need no depth.
 *
 * Memory is bounded: rows_collect keeps the rows of answers in progress and what they return to,
 * and forgets the others. Ids change by it, their order does not.
 *
 * Follows: Earley, CACM 1970; Leo, TCS 1991; Aycock and Horspool, The Computer Journal 2002 (rules
 * that may be empty). One thread at a time. */
#ifndef WORKER_GRAMMAR_CORE_ROWS_H
#define WORKER_GRAMMAR_CORE_ROWS_H

#include "common/base/base.h"
#include "worker/grammar/core/expr.h"
#include "worker/grammar/core/rules.h"

typedef uint32_t row_id;

#define ROW_DEAD  0u
#define ROW_START 1u
#define ROW_UNKNOWN                                                                                \
    UINT32_MAX /* of row.next: not computed; of rows_step: the limits were reached */

struct row_item {
    uint32_t at;    /* in rules->code: the symbol that comes next */
    expr_id state;  /* of a TEXT: what may follow of it */
    uint32_t count; /* rounds of a loop that are behind */
    row_id row;     /* where to return: a row that waits for a member of `rule`; */
    uint32_t rule;  /* or ITEM_HERE, the row itself; or ITEM_ROOT, the end */
};
#define ITEM_HERE UINT32_MAX
#define ITEM_ROOT (UINT32_MAX - 1)

struct row {
    uint32_t first; /* of its items, sorted: those before a rule, by rule; before */
    uint32_t n_rules, n_texts, n_tokens; /* a lexeme; before a token */
    uint32_t *next;    /* (n_classes) row behind a byte of the class; NULL: none known yet */
    uint32_t mask;     /* the owner's: a mask's number, or ROW_UNKNOWN */
    bool is_accepting; /* what was read may end here */
};

struct rows {
    struct exprs *exprs; /* the caller's, frozen; and its rules */
    struct rules *rules;
    struct row *row; /* (n_rows) */
    struct row_item *item;
    uint32_t n_rows, cap_rows, n_items, cap_items;
    uint32_t *slot; /* of the hash table: id; (n_slots), a power of two; 0: free */
    uint32_t n_slots;
    size_t n_bytes, max_bytes;
    uint64_t n_steps; /* that were computed */
    /* of the row under construction */
    struct row_item *draft;
    uint32_t n_draft, cap_draft;
    uint32_t *draft_slot; /* index + 1 */
    uint32_t n_draft_slots;
    uint32_t *seen_rule; /* (n_rules) the draft in which it was predicted last */
    uint32_t n_drafts;
    bool draft_is_accepting;
};

/* `rules` are finished. Sets up ROW_START; look at exprs_failure. */
struct rows *rows_create(struct exprs *exprs, struct rules *rules, size_t max_bytes);
void rows_destroy(struct rows *rows); /* NULL is fine */

/* The row behind a byte of `class`: ROW_DEAD if there is none; ROW_UNKNOWN, and exprs_failure, when
 * work or memory ran out. */
row_id rows_step(struct rows *rows, row_id from, uint32_t class);

static inline row_id rows_next(struct rows *rows, row_id from, uint32_t class) {
    const uint32_t *next = rows->row[from].next;

    return next && next[class] != ROW_UNKNOWN ? next[class] : rows_step(rows, from, class);
}

/* The row behind a marker. */
row_id rows_step_token(struct rows *rows, row_id from, uint32_t token);

/* May anything follow? */
static inline bool rows_continues(const struct rows *rows, row_id id) {
    return rows->row[id].n_texts + rows->row[id].n_tokens > 0;
}

/* The items of a row before a lexeme, and those before a token. */
static inline const struct row_item *rows_texts(const struct rows *rows, row_id id) {
    return rows->item + rows->row[id].first + rows->row[id].n_rules;
}
static inline const struct row_item *rows_tokens(const struct rows *rows, row_id id) {
    return rows_texts(rows, id) + rows->row[id].n_texts;
}

/* The most characters of plain text that surely may follow (expr_free_chars). */
uint32_t rows_free_chars(struct rows *rows, row_id id);

/* Forgets all rows but those marked in `is_live` (n_rows), what they return to, and ROW_START; then
 * all expressions that no row and no rule needs. moved[id] (n_rows) is the new id of a kept one.
 * Masks are unknown again. */
void rows_collect(struct rows *rows, uint8_t *is_live, row_id *moved);

void rows_check(const struct rows *rows); /* asserts every invariant; for tests */

#endif
