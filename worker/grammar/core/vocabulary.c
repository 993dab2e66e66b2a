/* worker/grammar/core/vocabulary.c - sorts the tokens of each slice, and lays their trie out. */
#include "worker/grammar/core/vocabulary.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "worker/grammar/core/expr.h"

static const uint32_t slice_chars[VOCABULARY_SLICES] = {10, 30, UINT32_MAX, 0};

struct entry { /* of a slice, while it is built */
    struct str bytes;
    uint32_t token;
};

/* The characters of plain text that a token is; 0: it is something else. */
static uint32_t text_chars(struct str s) {
    uint32_t n = 0;

    while (s.len > 0) {
        uint8_t first = (uint8_t)s.ptr[0];
        size_t len = first < 0x80 ? expr_is_text_byte(first) : str_utf8_len(s);

        if (len == 0) return 0;
        s.ptr += len;
        s.len -= len;
        n++;
    }
    return n;
}

static uint32_t slice_of(struct str s) {
    uint32_t n = text_chars(s), i = 0;

    if (n == 0) return VOCABULARY_SLICES - 1;
    while (n > slice_chars[i])
        i++;
    return i;
}

static int by_bytes(const void *a, const void *b) {
    const struct entry *p = a, *q = b;
    int order = memcmp(p->bytes.ptr, q->bytes.ptr, MIN(p->bytes.len, q->bytes.len));

    if (order != 0) return order;
    if (p->bytes.len != q->bytes.len) return p->bytes.len < q->bytes.len ? -1 : 1;
    return (p->token > q->token) - (p->token < q->token);
}

/* The nodes of sorted entries that begin with the same `depth` bytes, the last of them added. */
static void lay_out(struct vocabulary *v, struct vocabulary_slice *slice, const struct entry *e,
                    size_t n, uint32_t depth) {
    size_t i = 0, next;

    for (; i < n && e[i].bytes.len == depth; i++) {
        struct trie_node *parent = &slice->node[slice->n_nodes - 1];

        if (parent->token == VOCABULARY_NONE) {
            parent->token = e[i].token;
        } else {
            v->twin[v->n_twins][0] = e[i].token;
            v->twin[v->n_twins++][1] = parent->token;
        }
    }
    for (; i < n; i = next) {
        uint32_t at = slice->n_nodes++;

        next = i + 1;
        while (next < n && e[next].bytes.ptr[depth] == e[i].bytes.ptr[depth])
            next++;
        slice->node[at] = (struct trie_node){.token = VOCABULARY_NONE,
                                             .byte = (uint8_t)e[i].bytes.ptr[depth],
                                             .depth = (uint8_t)(depth + 1)};
        lay_out(v, slice, e + i, next - i, depth + 1);
        slice->node[at].n_nodes = slice->n_nodes - at;
    }
}

static size_t count_nodes(const struct entry *e, size_t n) {
    size_t n_nodes = 0;

    for (size_t i = 0; i < n; i++) {
        size_t same = 0, most = i > 0 ? MIN(e[i].bytes.len, e[i - 1].bytes.len) : 0;

        while (same < most && e[i].bytes.ptr[same] == e[i - 1].bytes.ptr[same])
            same++;
        n_nodes += e[i].bytes.len - same;
    }
    return n_nodes;
}

/* From the last node to the first: those below are behind it. */
static void note_below(struct vocabulary_slice *s) {
    s->below = mem_calloc(MAX(s->n_nodes, 1u), sizeof(*s->below));
    for (uint32_t at = s->n_nodes; at-- > 0;)
        for (uint32_t kid = at + 1; kid < at + s->node[at].n_nodes; kid += s->node[kid].n_nodes)
            s->below[at] |= s->below[kid] | vocabulary_bit(s->node[kid].byte);
}

static void build_slice(struct vocabulary *v, uint32_t number, struct entry *e) {
    struct vocabulary_slice *slice = &v->slice[number];
    size_t n = 0;

    for (uint32_t id = 0; id < v->n_tokens; id++) {
        struct str bytes = vocabulary_bytes(v, id);

        if (bytes.len == 0 || slice_of(bytes) != number) continue;
        e[n++] = (struct entry){bytes, id};
    }
    if (n > 0) qsort(e, n, sizeof(*e), by_bytes);
    slice->max_chars = slice_chars[number];
    slice->node = mem_calloc(MAX(count_nodes(e, n), 1u), sizeof(*slice->node));
    lay_out(v, slice, e, n, 0);
    note_below(slice);
    slice->mask = mem_calloc(v->n_words, sizeof(*slice->mask));
    if (number > 0) memcpy(slice->mask, v->slice[number - 1].mask, v->n_words * sizeof(uint32_t));
    for (size_t i = 0; i < n; i++)
        slice->mask[e[i].token / 32] |= 1u << (e[i].token % 32);
}

static void add_marker(struct vocabulary *v, uint32_t id, struct str name) {
    if (v->n_markers == v->cap_markers) {
        v->cap_markers = MAX(v->cap_markers * 2, 16u);
        v->marker = mem_realloc(v->marker, v->cap_markers * sizeof(*v->marker));
    }
    v->marker[v->n_markers++] =
        (struct vocabulary_marker){{arena_strndup(&v->names, name.ptr, name.len), name.len}, id};
    byte_set_add(&v->marker_first, (uint8_t)name.ptr[0]);
}

const struct vocabulary_marker *vocabulary_find_marker(const struct vocabulary *v,
                                                       struct str name) {
    for (uint32_t i = 0; i < v->n_markers; i++)
        if (str_eq(name, v->marker[i].name)) return &v->marker[i];
    return NULL;
}

const struct vocabulary_marker *vocabulary_marker_of(const struct vocabulary *v, uint64_t id) {
    for (uint32_t i = 0; i < v->n_markers; i++)
        if (v->marker[i].id == id) return &v->marker[i];
    return NULL;
}

const struct vocabulary_marker *vocabulary_next_marker(const struct vocabulary *v, struct str text,
                                                       size_t *at) {
    const struct vocabulary_marker *found = NULL;

    for (size_t i = 0; i < text.len && !found; i++) {
        struct str rest = {text.ptr + i, text.len - i};

        if (!byte_set_has(&v->marker_first, (uint8_t)text.ptr[i])) continue;
        for (uint32_t k = 0; k < v->n_markers; k++) {
            const struct vocabulary_marker *m = &v->marker[k];

            if (str_starts(rest, m->name) && (!found || m->name.len > found->name.len)) found = m;
        }
        *at = i;
    }
    return found;
}

bool vocabulary_find_text(const struct vocabulary *v, struct str text, uint32_t *id) {
    for (uint32_t i = 0; i < v->n_tokens; i++) {
        if (text.len == 0 || !str_eq(vocabulary_bytes(v, i), text)) continue;
        *id = i;
        return true;
    }
    return false;
}

/* All bytes of all ordinary tokens, one behind the other; the first pass only measures. */
static void copy_bytes(struct vocabulary *v, const struct vocabulary_source *source,
                       bool measures) {
    size_t at = 0;

    for (uint32_t id = 0; id < v->n_tokens; id++) {
        struct str s = source->bytes(source->arg, id);
        bool is_special = source->is_special(source->arg, id);

        v->offset[id] = (uint32_t)at;
        if (!measures && s.len > 0 &&
            (is_special || (source->is_marker && source->is_marker(source->arg, id))))
            add_marker(v, id, s);
        if (is_special || s.len > VOCABULARY_MAX_BYTES) continue;
        if (!measures && s.len > 0) memcpy(v->bytes + at, s.ptr, s.len);
        at += s.len;
    }
    v->offset[v->n_tokens] = (uint32_t)at;
    if (measures) v->bytes = mem_alloc(at + 1);
}

struct vocabulary *vocabulary_create(const struct vocabulary_source *source) {
    struct vocabulary *v = mem_zalloc(sizeof(*v));
    uint32_t n_tokens = source->n_tokens;
    struct entry *e = mem_calloc(MAX(n_tokens, 1u), sizeof(*e));

    arena_init(&v->names, 0);
    v->n_tokens = n_tokens;
    v->arg = source->arg;
    v->encode = source->encode;
    v->n_words = CEIL_DIV(n_tokens, 32u);
    v->offset = mem_calloc(n_tokens + 1, sizeof(*v->offset));
    v->twin = mem_calloc(MAX(n_tokens, 1u), sizeof(*v->twin));
    copy_bytes(v, source, true);
    copy_bytes(v, source, false);
    for (uint32_t i = 0; i < VOCABULARY_SLICES; i++)
        build_slice(v, i, e);
    mem_free(e);
    return v;
}

void vocabulary_destroy(struct vocabulary *v) {
    if (!v) return;
    for (uint32_t i = 0; i < VOCABULARY_SLICES; i++) {
        mem_free(v->slice[i].node);
        mem_free(v->slice[i].below);
        mem_free(v->slice[i].mask);
    }
    mem_free(v->marker);
    arena_fini(&v->names);
    mem_free(v->offset);
    mem_free(v->bytes);
    mem_free(v->twin);
    mem_free(v);
}

void vocabulary_check(const struct vocabulary *v) {
    for (uint32_t i = 0; i < VOCABULARY_SLICES; i++) {
        const struct vocabulary_slice *s = &v->slice[i];
        char path[VOCABULARY_MAX_BYTES];

        for (uint32_t at = 0; at < s->n_nodes; at++) {
            const struct trie_node *n = &s->node[at];

            path[n->depth - 1] = (char)n->byte;
            assert(at + n->n_nodes <= s->n_nodes);
            assert(at + n->n_nodes == s->n_nodes || s->node[at + n->n_nodes].depth <= n->depth);
            if (n->token == VOCABULARY_NONE) continue;
            assert(str_eq(vocabulary_bytes(v, n->token), (struct str){path, n->depth}));
            assert(slice_of(vocabulary_bytes(v, n->token)) == i);
        }
    }
}
