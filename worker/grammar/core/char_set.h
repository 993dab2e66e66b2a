/* worker/grammar/core/char_set.h - sets of characters (Unicode scalar values), and their spellings.
 *
 * A class of a pattern is a set of characters; what a model generates is bytes. In plain text a
 * character is its UTF-8. Inside a JSON string it is that too, except for those that JSON makes one
 * escape: quote, backslash and the controls. Each character has one spelling here, so that a mask
 * never offers two tokens for one meaning: \n and not \u000A, / and not \/. Pure. */
#ifndef WORKER_GRAMMAR_CORE_CHAR_SET_H
#define WORKER_GRAMMAR_CORE_CHAR_SET_H

#include "common/base/base.h"
#include "worker/grammar/core/expr.h"

#define CHAR_LAST 0x10FFFFu

struct char_range {
    uint32_t first, last;
};

struct char_set { /* zero-initialise; char_set_fini frees */
    struct char_range *range;
    uint32_t n, cap;
};

enum char_form {
    CHARS_PLAIN,  /* UTF-8 */
    CHARS_IN_JSON /* between the quotes of a JSON string */
};

void char_set_fini(struct char_set *s);
void char_set_add(struct char_set *s, uint32_t first, uint32_t last);
void char_set_add_set(struct char_set *s, const struct char_set *other);
void char_set_add_other_case(struct char_set *s); /* of the ASCII letters that are in it */
void char_set_complement(struct char_set *s);
bool char_set_has(const struct char_set *s, uint32_t c);

/* One character of the set; surrogates are none. */
expr_id char_set_expr(struct char_set *s, struct exprs *x, enum char_form form);

expr_id char_expr(struct exprs *x, uint32_t c, enum char_form form);
expr_id char_any_expr(struct exprs *x, enum char_form form); /* one character, whichever */

/* The characters of a text, in that form. */
expr_id char_text_expr(struct exprs *x, struct str text, enum char_form form);

/* Appends the characters of a text as between the quotes of a JSON string. */
void char_spell_json(struct str text, struct buf *out);

/* Reads the character that `s` (well-formed UTF-8, not empty) begins with; its bytes in *n. */
uint32_t char_decode(struct str s, size_t *n);

#endif
