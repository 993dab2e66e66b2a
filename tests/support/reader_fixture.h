/* tests/support/reader_fixture.h - answers of a reader as lines of text.
 *
 * Texts are written as templates write them. A fixture's vocabulary has the tokens of a list; in a
 * text a token is found wherever it stands, unless a NUL-free text is pushed by fixture_push_text,
 * which spells everything. */
#ifndef TESTS_SUPPORT_READER_FIXTURE_H
#define TESTS_SUPPORT_READER_FIXTURE_H

#include "common/text/json.h"
#include "worker/output/reader.h"

#define FIXTURE_MAX_TOKENS 24u

struct reader_fixture {
    const char *token[FIXTURE_MAX_TOKENS]; /* ids from 100 */
    uint32_t n_tokens;
    struct output_model model;
    struct reader_setup setup;
    struct json *tools;
    struct answer answer;
    struct reader *reader;
    void (*look)(void *arg); /* after each piece that reader_text_push pushes; NULL: no one does */
    void *look_arg;
};

/* `calls`, `reasoning`: names, or NULL. `has_tokens`: the vocabulary has the tokens of the rows.
 * The tools are f(x: integer), g(s: string) and h(). */
void reader_fixture_init(struct reader_fixture *f, const char *calls, const char *reasoning,
                         bool has_tokens);
void reader_fixture_fini(struct reader_fixture *f);

void reader_fixture_begin(struct reader_fixture *f); /* a new answer */
/* Pushes text, tokens as tokens; between these in pieces of at most `piece` bytes, rounded up to
 * whole characters. */
void reader_fixture_push(struct reader_fixture *f, struct str text, size_t piece);
void reader_fixture_end(struct reader_fixture *f, bool is_cut);

/* A line for each part: "text hi ", "call f {...}", "cut f {...}". Newlines as \n. */
void reader_fixture_print(const struct reader_fixture *f, struct buf *out);

#endif
