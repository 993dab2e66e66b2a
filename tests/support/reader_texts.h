/* tests/support/reader_texts.h - random answers in a format: as models write them, cut, and broken.
 *
 * An answer is a list of pieces: tokens, and text between them. It is read in one way, with each
 * text whole, or in others, with texts cut. */
#ifndef TESTS_SUPPORT_READER_TEXTS_H
#define TESTS_SUPPORT_READER_TEXTS_H

#include "common/base/rng.h"
#include "tests/support/reader_fixture.h"

#define TEXT_MAX_PIECES 256u

struct reader_text {
    struct buf bytes;
    struct reader_piece {
        bool is_token;
        uint32_t token; /* its number in the fixture */
        size_t at, len; /* of text */
    } piece[TEXT_MAX_PIECES];
    uint32_t n;
    bool is_cut;
};

void reader_text_init(struct reader_text *t);
void reader_text_fini(struct reader_text *t);
void reader_text_clear(struct reader_text *t);
/* Tokens of the fixture become tokens, but one of `spelt_of` of them is spelt (0: none). What is
 * not UTF-8 becomes '?'. */
void reader_text_add(struct reader_text *t, const struct reader_fixture *f, struct str text,
                     struct rng *rng, uint32_t spelt_of);
size_t reader_text_length(const struct reader_text *t); /* bytes of text: places to cut at */

/* A random answer in the fixture's format. */
void reader_text_draw(struct reader_text *t, const struct reader_fixture *f, struct rng *rng);

/* Pushes it to the fixture's reader, between reader_fixture_begin and reader_fixture_end. Texts are
 * cut where `is_cut_at` returns true of a place (in bytes of text), at whole characters alone. */
void reader_text_push(const struct reader_text *t, struct reader_fixture *f,
                      bool (*is_cut_at)(void *arg, size_t at), void *arg);

/* Reads it, cut so. Appends the answer as lines. Returns how many bytes were read, those read again
 * too. */
uint64_t reader_text_read(const struct reader_text *t, struct reader_fixture *f,
                          bool (*is_cut_at)(void *arg, size_t at), void *arg, struct buf *out);

#endif
