/* worker/grammar/core/expr.h - languages of byte strings, as expressions that can be derived.
 *
 * A lexeme of a grammar (a key, a number, a string with a pattern) is a regular language. It is
 * kept as an expression; its automaton is made on demand, by Brzozowski derivatives: the state
 * behind a byte is the expression of all that may follow that byte. Equal expressions have one id,
 * so that the automaton is finite in practice, and counters stay counters: x{0,100000} is one
 * node, and has as many states as an answer really visits.
 *
 *      "ab*"  ──a──▶  b*  ──b──▶  b*          derive(e, byte) is an id; 0 is the dead state
 *
 * Intersection and complement cost nothing to write down (a string with a length and a pattern; a
 * key that is none of the declared ones), but such an expression may be empty without looking so:
 * expr_is_alive searches, and remembers.
 *
 * Work and memory are limited: each constructor counts, and beyond the limits the store has
 * *failed* (exprs_failure): every result is EXPR_NONE from there, and the owner checks at the end,
 * as with a struct buf.
 *
 * Bytes are grouped into classes that no expression of the store distinguishes (exprs_freeze).
 * Follows: Brzozowski, Derivatives of Regular Expressions, JACM 1964; Owens, Reppy, Turon,
 * Regular-expression derivatives re-examined, JFP 2009.
 *
 * One thread at a time. */
#ifndef WORKER_GRAMMAR_CORE_EXPR_H
#define WORKER_GRAMMAR_CORE_EXPR_H

#include <stdatomic.h>

#include "common/base/base.h"
#include "common/base/buf.h"
#include "worker/grammar/core/byte_set.h"

typedef uint32_t expr_id;

#define EXPR_NONE    0u         /* no string at all: the dead state */
#define EXPR_EMPTY   1u         /* the empty string alone */
#define EXPR_ANY     2u         /* every string of bytes */
#define EXPR_FOREVER UINT32_MAX /* expr_repeat: without a limit */

struct exprs;

enum exprs_failure { EXPRS_OK, EXPRS_OUT_OF_WORK, EXPRS_OUT_OF_MEMORY, EXPRS_STOPPED };

struct exprs *exprs_create(size_t max_bytes);
void exprs_set_max(struct exprs *x, size_t max_bytes); /* below what it takes: it cannot grow */
/* Once that is true, on any thread, it fails as soon as it works. NULL: never. */
void exprs_set_stop(struct exprs *x, const atomic_bool *stop);
void exprs_destroy(struct exprs *x); /* NULL is fine */

/* The work that is left, in nodes looked at; set before each piece of work. */
void exprs_set_fuel(struct exprs *x, uint64_t fuel);
uint64_t exprs_fuel(const struct exprs *x);
enum exprs_failure exprs_failure(const struct exprs *x);
bool exprs_pay(struct exprs *x, uint64_t n); /* spends fuel; false once there is none left */
void exprs_forgive(struct exprs *x); /* forgets the failure; what was made before it holds */
void exprs_note(struct exprs *x, const struct buf *b); /* fails too, if text was lost in b */
size_t exprs_bytes(const struct exprs *x);

/* --- building: before exprs_freeze ------------------------------------------------------------ */

expr_id expr_class(struct exprs *x, struct byte_set set);
expr_id expr_byte(struct exprs *x, uint8_t byte);
expr_id expr_literal(struct exprs *x, struct str s);
/* One of `n` strings; sorts the array. Shared beginnings are shared. */
expr_id expr_one_of(struct exprs *x, struct str *strings, size_t n);

expr_id expr_concat(struct exprs *x, expr_id a, expr_id b);
expr_id expr_alt(struct exprs *x, expr_id a, expr_id b);
expr_id expr_alt_of(struct exprs *x, const expr_id *ids, size_t n);
expr_id expr_and(struct exprs *x, expr_id a, expr_id b);
expr_id expr_not(struct exprs *x, expr_id a);
expr_id expr_repeat(struct exprs *x, expr_id a, uint32_t min, uint32_t max);
expr_id expr_multiple(struct exprs *x, uint32_t of); /* digits whose number is a multiple; "" too */
static inline expr_id expr_optional(struct exprs *x, expr_id a) {
    return expr_repeat(x, a, 0, 1);
}

/* --- the automaton ---------------------------------------------------------------------------- */

/* Divides the bytes into classes for what has been built. Again, when something was built since. */
void exprs_freeze(struct exprs *x);
uint32_t exprs_n_classes(const struct exprs *x);
const uint8_t *exprs_class_of(const struct exprs *x);         /* (256) */
uint8_t exprs_byte_of(const struct exprs *x, uint32_t class); /* one of its bytes */

/* What may follow a byte of `class`. */
expr_id expr_derive(struct exprs *x, expr_id e, uint32_t class);

bool expr_is_nullable(const struct exprs *x, expr_id e); /* holds the empty string */
bool expr_matches(struct exprs *x, expr_id e, struct str s);

/* Holds a string at all. A search where complements are involved, which may run out of fuel. */
bool expr_is_alive(struct exprs *x, expr_id e);

/* May be followed by something: holds a string that is not empty. */
bool expr_continues(struct exprs *x, expr_id e);

/* Adds the bytes that members may begin with; some may lead nowhere, where intersections and
 * complements are involved, but no other byte begins one. All bytes, if more than max_nodes nodes
 * would have to be looked at. Returns how many were. */
uint32_t expr_first(const struct exprs *x, expr_id e, uint32_t max_nodes, struct byte_set *out);

/* The most characters of plain text (VOCABULARY_TEXT in vocabulary.h: printable, neither quote nor
 * backslash) that surely fit in front of whatever else: any string of up to so many characters is a
 * prefix of a member. EXPR_FOREVER: as many as one likes. A lower bound: 0 promises nothing. */
uint32_t expr_free_chars(struct exprs *x, expr_id e);

/* Does `byte` belong to the plain text above? At the beginning of a character. */
static inline bool expr_is_text_byte(uint8_t byte) {
    return byte >= 0x20 && byte < 0x80 && byte != '"' && byte != '\\' && byte != 0x7F;
}

/* --- giving memory back ----------------------------------------------------------------------- */

uint32_t exprs_count(const struct exprs *x); /* ids are below */

/* Keeps what is reachable from the ids marked in `is_live` (exprs_count), and fills `moved`
 * (exprs_count): new id by old id. Order is kept, so that sorted ids stay sorted. */
void exprs_collect(struct exprs *x, uint8_t *is_live, expr_id *moved);

void exprs_check(const struct exprs *x); /* asserts every invariant; for tests */

#endif
