/* tests/support/grammar_fixture.h - vocabularies and grammars for tests of worker/grammar. */
#ifndef TESTS_SUPPORT_GRAMMAR_FIXTURE_H
#define TESTS_SUPPORT_GRAMMAR_FIXTURE_H

#include "common/base/rng.h"
#include "worker/grammar/core/vocabulary.h"
#include "worker/grammar/grammar.h"

#define FIXTURE_SPECIALS 3u /* after the tokens of a vocabulary: <|end|>, <|call|>, <|x|> */

/* One token for each byte, `n_more` of random text with `alphabet`, then the special ones. */
struct vocabulary *fixture_vocabulary(struct rng *rng, uint32_t n_more, const char *alphabet);

/* Gives it a tokenizer, which takes the longest token at each place. */
void fixture_vocabulary_encodes(struct vocabulary *v);

/* The grammar; fails the test with the message if there is none. */
struct grammar *fixture_grammar(enum grammar_kind kind, const char *text, bool is_closed,
                                const struct vocabulary *v);

/* The message with which it is refused; fails the test if it is not. Overwritten by the next. */
const char *fixture_refusal(enum grammar_kind kind, const char *text, const struct vocabulary *v);

/* The mask of a row by the definition: each token by itself, as its bytes. */
void fixture_mask(struct grammar_matcher *m, const struct vocabulary *v, uint32_t *mask);

#endif
