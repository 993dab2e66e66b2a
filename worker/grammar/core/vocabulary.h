/* worker/grammar/core/vocabulary.h - the tokens of a model, as bytes, in the order in which a mask
 * looks at them.
 *
 * Which tokens may follow is found by walking a trie of their bytes: what is impossible after one
 * byte is skipped with all that begins with it. Nodes lie in the order of the walk, so that a walk
 * is one pass over an array.
 *
 *      "a" ─┬─ "b" ── "c"         node:   a      b     c     d
 *           └─ "d"                skips:  4      2     1     1
 *
 * Inside a JSON string most of the vocabulary fits, and to walk it all would take a millisecond. So
 * tokens of plain text (whole characters, printable, neither quote nor backslash) are divided by
 * their length in characters into slices; where a grammar takes any text of that length
 * (rows_free_chars), a slice is allowed as a whole, from a mask that is ready.
 *
 * Free text that must not contain a marker takes nearly all tokens too: `below` has the bytes of
 * the nodes below each, so that a walk passes over all that cannot begin a marker.
 *
 * Special tokens, and those without bytes, are in no trie: no text of a grammar is spelt with them.
 * A *marker* is a token that formats of answers name: a special one, or one that the source has as
 * such (<tool_call>). The latter are in the trie, as text of grammars that do not name them.
 * LIMITS. A token of more than 255 bytes is never allowed by a grammar.
 *
 * Immutable: any thread may read it. */
#ifndef WORKER_GRAMMAR_CORE_VOCABULARY_H
#define WORKER_GRAMMAR_CORE_VOCABULARY_H

#include "common/base/base.h"
#include "common/base/buf.h"
#include "common/base/mem.h"
#include "worker/grammar/core/byte_set.h"

#define VOCABULARY_SLICES    4u   /* of 1-10, 11-30, more characters; then all other tokens */
#define VOCABULARY_MAX_BYTES 255u /* of a token */
#define VOCABULARY_NONE      UINT32_MAX

struct trie_node {
    uint32_t token;      /* whose last byte this is, or VOCABULARY_NONE */
    uint32_t n_nodes;    /* this one and all below */
    uint8_t byte, depth; /* depth: from 1 */
};

struct vocabulary_slice {
    struct trie_node *node;
    uint64_t *below; /* (n_nodes) bits of the bytes below a node, its own left out */
    uint32_t n_nodes, max_chars;
    uint32_t *mask; /* (n_words) of this slice and those before it; all tries for the last */
};

struct vocabulary {
    uint32_t n_tokens, n_words; /* n_words: of a mask, ceil(n_tokens / 32) */
    uint32_t *offset;           /* (n_tokens + 1) into bytes */
    char *bytes;
    struct vocabulary_slice slice[VOCABULARY_SLICES];
    struct vocabulary_marker {
        struct str name; /* in `names` */
        uint32_t id;
    } * marker; /* (n_markers) */
    uint32_t n_markers, cap_markers;
    struct arena names;
    struct byte_set marker_first; /* bytes that names begin with */
    const void *arg;              /* of the source, for encode */
    uint32_t (*encode)(const void *arg, struct str text, uint32_t *ids, uint32_t max);
    uint32_t (*twin)[2]; /* (n_twins) a token, and the one in a trie that is spelt so too */
    uint32_t n_twins;
};

/* Where the tokens come from. */
struct vocabulary_source {
    uint32_t n_tokens;
    const void *arg;
    /* What an id stands for; empty: nothing. */
    struct str (*bytes)(const void *arg, uint32_t id);
    /* Is it a special token? Then `bytes` is its name. */
    bool (*is_special)(const void *arg, uint32_t id);
    /* Is it a marker, though not special? Then its bytes are its name. NULL: none is. */
    bool (*is_marker)(const void *arg, uint32_t id);
    /* The tokenizer's spelling of a text: at most `max` ids, and their number; 0 when it has none.
     * Any thread, as long as the vocabulary lives. NULL: unknown. */
    uint32_t (*encode)(const void *arg, struct str text, uint32_t *ids, uint32_t max);
};

/* Takes 0.1 s for 131,072 tokens. */
struct vocabulary *vocabulary_create(const struct vocabulary_source *source);
void vocabulary_destroy(struct vocabulary *v); /* NULL is fine */

static inline struct str vocabulary_bytes(const struct vocabulary *v, uint32_t id) {
    return (struct str){v->bytes + v->offset[id], v->offset[id + 1] - v->offset[id]};
}

/* The bit of a byte in `below`; two bytes may share one. */
static inline uint64_t vocabulary_bit(uint8_t byte) {
    return UINT64_C(1) << (byte & 63);
}

/* The marker of that name; NULL if there is none. */
const struct vocabulary_marker *vocabulary_find_marker(const struct vocabulary *v, struct str name);
const struct vocabulary_marker *vocabulary_marker_of(const struct vocabulary *v, uint64_t id);
/* The first marker in a text, the longest there, and its place; NULL if there is none. */
const struct vocabulary_marker *vocabulary_next_marker(const struct vocabulary *v, struct str text,
                                                       size_t *at);
/* The token in a trie that is spelt so; false if there is none. */
bool vocabulary_find_text(const struct vocabulary *v, struct str text, uint32_t *id);

void vocabulary_check(const struct vocabulary *v); /* asserts every invariant; for tests */

#endif
