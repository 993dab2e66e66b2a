/* tests/reference/grammar.c - grammars on a line of JSON each, for json_schema_suite.py,
 * llguidance_masks.py, grammar_speed.py and constrained_answers.py.
 *
 *      grammar accept < lines > lines            {"kind": "json", "text": t, "answers": [...]}
 *      grammar masks VOCABULARY < lines > lines  {"kind": "json", "text": t} begins an answer,
 *                                                {"token": id} goes on, {} begins it again
 *      grammar draw VOCABULARY < lines > lines   {"kind": "json", "text": t, "n": n}; "end": of raw
 *                                                text
 *      grammar speed VOCABULARY < lines          {"kind": "json", "text": t}: figures
 *
 * "spaces": "compact" is white space as grammar.h has it. Answered by {"error": message}; or by
 * {"accepts": [bool, ...]}, or {"mask": hex, "ends": bool}; or {"drawn": [text or null, ...]}: n
 * random answers, null where one did not end within 4,000 tokens. A vocabulary file has the number
 * of tokens (4 bytes), then of each its length (2 bytes) and bytes; nothing means that it is
 * special. "speed" follows random answers of 60 tokens, five of each grammar. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/text/json.h"
#include "worker/grammar/core/vocabulary.h"
#include "worker/grammar/grammar.h"

struct tokens {
    struct str *text;
    uint32_t n;
};

static struct str bytes_of(const void *arg, uint32_t id) {
    const struct tokens *t = arg;

    return t->text[id];
}

static bool is_special(const void *arg, uint32_t id) {
    const struct tokens *t = arg;

    return t->text[id].len == 0;
}

static void need(bool ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "grammar: %s\n", what);
    exit(2);
}

/* Without a file a byte is a token. */
static void read_tokens(const char *path, struct tokens *t) {
    FILE *f = path ? fopen(path, "rb") : NULL;

    need(!path || f, "cannot open the vocabulary");
    t->n = 256;
    if (f) need(fread(&t->n, sizeof(t->n), 1, f) == 1, "no vocabulary");
    t->text = mem_calloc(t->n, sizeof(*t->text));
    for (uint32_t id = 0; id < t->n; id++) {
        uint16_t len = 1;
        char *text;

        if (f) need(fread(&len, sizeof(len), 1, f) == 1, "a vocabulary that is cut off");
        text = mem_alloc(len + 1u);
        if (f) {
            need(fread(text, 1, len, f) == len, "a vocabulary that is cut off");
        } else {
            text[0] = (char)id;
        }
        t->text[id] = (struct str){text, len};
    }
    if (f) fclose(f);
}

static enum status compile(const struct json *line, const struct vocabulary *v, struct grammar **g,
                           struct error *err) {
    static const char *const kinds[] = {"json", "regex", "choice", "ebnf", "lark", "tag"};
    struct grammar_spec spec = {0};
    struct str kind = STR_NULL;
    bool found = false;

    need(json_to_str(json_get(line, "kind"), &kind) == ST_OK, "a line without its kind");
    need(json_to_str(json_get(line, "text"), &spec.text) == ST_OK, "a line without its text");
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        if (!str_eq(kind, str_of(kinds[i]))) continue;
        spec.kind = (enum grammar_kind)i;
        found = true;
    }
    need(found, "an unknown kind");
    if (json_to_str(json_get(line, "spaces"), &kind) == ST_OK && str_eq(kind, STR("compact")))
        spec.spaces = GRAMMAR_SPACES_COMPACT;
    return grammar_compile(g, &spec, v, err);
}

/* --- answers ---------------------------------------------------------------------------------- */

static void accept(const struct json *line, struct grammar *g, struct json_writer *w) {
    json_put_key(w, "accepts");
    json_begin_array(w);
    JSON_FOR_EACH(it, json_get(line, "answers")) {
        struct str text;

        need(json_to_str(it, &text) == ST_OK, "an answer that is no string");
        json_put_bool(w, grammar_accepts(g, text));
    }
    json_end_array(w);
}

static void put_mask(struct json_writer *w, struct grammar_matcher *m, uint32_t n_words) {
    static const char digits[] = "0123456789abcdef";
    const uint32_t *mask;
    char *hex = mem_alloc(n_words * 8u + 1);
    bool is_new;

    need(grammar_mask(m, &mask, &is_new) == ST_OK, "a mask that is too much");
    for (uint32_t i = 0; i < n_words * 8; i++) /* bytes in order, as a file of the mask has them */
        hex[i] = digits[((const uint8_t *)mask)[i / 2] >> (i % 2 ? 0 : 4) & 15];
    json_field_str(w, "mask", (struct str){hex, n_words * 8u});
    json_field_bool(w, "ends", grammar_is_accepting(m));
    mem_free(hex);
}

/* The line begins an answer, or goes on with the one that `m` follows. */
static enum status follow(const struct json *line, struct grammar_matcher *m,
                          const struct vocabulary *v, struct error *err) {
    struct grammar *g = m->grammar ? grammar_ref(m->grammar) : NULL;
    enum status st = ST_OK;
    uint64_t id;

    if (json_get(line, "text")) {
        grammar_unref(g);
        g = NULL;
        st = compile(line, v, &g, err);
    }
    need(st != ST_OK || g, "a token before a grammar");
    if (st == ST_OK && json_to_u64(json_get(line, "token"), &id) == ST_OK) {
        if (grammar_take(m, (uint32_t)id) != ST_OK)
            st = error_set(err, ST_INVALID, "the token is refused");
    } else {
        grammar_matcher_fini(m);
        if (st == ST_OK) grammar_matcher_init(m, g);
    }
    grammar_unref(g);
    return st;
}

/* --- random answers --------------------------------------------------------------------------- */

#define DRAWN_MAX  4000u /* tokens */
#define CLOSING_AT 60u   /* behind so many, what closes is taken where it is allowed */

static bool draw(const uint32_t *mask, uint32_t n_words, struct rng *rng, uint32_t *id) {
    uint64_t n = 0, pick;

    for (uint32_t i = 0; i < n_words; i++)
        n += (uint64_t)__builtin_popcount(mask[i]);
    if (n == 0) return false;
    pick = rng_below(rng, n);
    for (uint32_t i = 0;; i++) {
        uint32_t here = (uint32_t)__builtin_popcount(mask[i]), word = mask[i];

        if (pick >= here) {
            pick -= here;
            continue;
        }
        while (pick-- > 0)
            word &= word - 1;
        *id = i * 32 + (uint32_t)__builtin_ctz(word);
        return true;
    }
}

/* The token of one byte. */
static uint32_t byte_token(const struct vocabulary *v, char byte) {
    uint32_t id = 0;

    need(vocabulary_find_text(v, (struct str){&byte, 1}, &id), "a vocabulary without a byte");
    return id;
}

/* The byte of `end` that comes next, if the text ends with what is before it. */
static char next_of_end(struct str text, struct str end) {
    size_t n = MIN(end.len - 1, text.len);

    while (n > 0 && memcmp(text.ptr + text.len - n, end.ptr, n) != 0)
        n--;
    return end.ptr[n];
}

/* Any allowed token with the same probability, but sometimes, and mostly behind CLOSING_AT tokens,
 * one that closes: most of a vocabulary goes on with a string. `end`: of raw text, or empty. */
static bool draw_closing(const struct vocabulary *v, const uint32_t *mask, struct str text,
                         struct str end, uint32_t n_taken, struct rng *rng, uint32_t *id) {
    static const char closing[] = "\"}]0a";
    bool closes = rng_below(rng, 4) < (n_taken > CLOSING_AT ? 3 : 1);
    char next = closes && end.len > 0 ? next_of_end(text, end) : '\0';

    if (closes && end.len > 0 && (next != end.ptr[0] || rng_below(rng, 2) == 0)) {
        *id = byte_token(v, next);
        if (mask[*id / 32] >> (*id % 32) & 1) return true;
    }
    for (size_t i = 0; closes && i < strlen(closing); i++) {
        *id = byte_token(v, closing[i]);
        if (mask[*id / 32] >> (*id % 32) & 1) return true;
    }
    return draw(mask, v->n_words, rng, id);
}

static void draw_one(struct grammar *g, const struct vocabulary *v, struct str end, struct rng *rng,
                     struct json_writer *w) {
    struct grammar_matcher m;
    struct buf text;
    uint32_t n = 0;
    bool is_whole = false;

    buf_init(&text, 0);
    grammar_matcher_init(&m, g);
    while (n++ < DRAWN_MAX) {
        const uint32_t *mask;
        uint32_t id;
        bool is_new;

        if (grammar_is_accepting(&m) && (!grammar_continues(&m) || rng_below(rng, 2) == 0)) {
            is_whole = true;
            break;
        }
        need(grammar_mask(&m, &mask, &is_new) == ST_OK, "a mask that is too much");
        need(draw_closing(v, mask, buf_str(&text), end, n, rng, &id), "a mask of no token");
        need(grammar_take(&m, id) == ST_OK, "a token of the mask that is refused");
        buf_append_str(&text, vocabulary_bytes(v, id));
    }
    if (is_whole) {
        json_put_str(w, buf_len(&text) ? buf_str(&text) : STR(""));
    } else {
        json_put_null(w);
    }
    grammar_matcher_fini(&m);
    buf_fini(&text);
}

static void put_drawn(const struct json *line, struct grammar *g, const struct vocabulary *v,
                      struct rng *rng, struct json_writer *w) {
    struct str end = STR_NULL;
    uint64_t n = 0;

    need(json_to_u64(json_get(line, "n"), &n) == ST_OK, "a line without its n");
    need(json_to_str(json_get(line, "end"), &end) == ST_OK || !json_get(line, "end"),
         "an end that is no string");
    json_put_key(w, "drawn");
    json_begin_array(w);
    for (; n > 0; n--)
        draw_one(g, v, end, rng, w);
    json_end_array(w);
}

/* --- speed ------------------------------------------------------------------------------------ */

struct times {
    double *us;
    size_t n, cap;
};

static struct times compiling, computed, known, taking;

static void note(struct times *t, uint64_t began_ns) {
    double us = (double)(clock_now_ns() - began_ns) * 1e-3;

    if (t->n == t->cap) {
        t->cap = MAX(t->cap * 2, 1024u);
        t->us = mem_realloc(t->us, t->cap * sizeof(*t->us));
    }
    t->us[t->n++] = us;
}

static int by_size(const void *a, const void *b) {
    double p = *(const double *)a, q = *(const double *)b;

    return (p > q) - (p < q);
}

static void show(const char *name, struct times *t) {
    double sum = 0;

    if (t->n == 0) return;
    qsort(t->us, t->n, sizeof(*t->us), by_size);
    for (size_t i = 0; i < t->n; i++)
        sum += t->us[i];
    printf("%-13s n %-7zu mean %8.2f  p50 %8.2f  p90 %8.2f  p99 %8.2f  max %9.2f us\n", name, t->n,
           sum / (double)t->n, t->us[t->n / 2], t->us[t->n * 9 / 10], t->us[t->n * 99 / 100],
           t->us[t->n - 1]);
}

static void walk(struct grammar *g, const struct vocabulary *v, struct rng *rng) {
    struct grammar_matcher m;

    grammar_matcher_init(&m, g);
    for (uint32_t n = 0; n < 60; n++) {
        const uint32_t *mask;
        uint64_t began_ns = clock_now_ns();
        uint32_t id;
        bool is_new;

        need(grammar_mask(&m, &mask, &is_new) == ST_OK, "a mask that is too much");
        note(is_new ? &computed : &known, began_ns);
        if (!draw(mask, v->n_words, rng, &id)) break;
        began_ns = clock_now_ns();
        need(grammar_take(&m, id) == ST_OK, "a token of the mask that is refused");
        note(&taking, began_ns);
    }
    grammar_matcher_fini(&m);
}

/* --- lines ------------------------------------------------------------------------------------ */

static void answer_mask(const struct json *line, const struct vocabulary *v,
                        struct grammar_matcher *m) {
    struct json_writer w;
    struct buf out;
    struct error err = {0};
    enum status st = follow(line, m, v, &err);

    buf_init(&out, 0);
    json_writer_init(&w, &out);
    json_begin_object(&w);
    if (st == ST_OK) {
        put_mask(&w, m, v->n_words);
    } else {
        json_field_z(&w, "error", err.message);
    }
    json_end_object(&w);
    printf("%.*s\n", STR_ARG(buf_str(&out)));
    fflush(stdout);
    buf_fini(&out);
}

static void answer(const char *mode, const struct json *line, const struct vocabulary *v,
                   struct rng *rng) {
    struct grammar *g = NULL;
    struct json_writer w;
    struct buf out;
    struct error err = {0};
    uint64_t began_ns = clock_now_ns();
    enum status st = compile(line, v, &g, &err);

    buf_init(&out, 0);
    json_writer_init(&w, &out);
    if (st == ST_OK && *mode == 's') {
        note(&compiling, began_ns);
        for (uint32_t i = 0; i < 5; i++)
            walk(g, v, rng);
    } else {
        json_begin_object(&w);
        if (st != ST_OK) {
            json_field_z(&w, "error", err.message);
        } else if (*mode == 'a') {
            accept(line, g, &w);
        } else {
            put_drawn(line, g, v, rng, &w);
        }
        json_end_object(&w);
        printf("%.*s\n", STR_ARG(buf_str(&out)));
        fflush(stdout);
    }
    buf_fini(&out);
    grammar_unref(g);
}

int main(int argc, char **argv) {
    struct json_limits limits = {.max_depth = 512};
    struct tokens t;
    struct vocabulary_source source = {.arg = &t, .bytes = bytes_of, .is_special = is_special};
    struct grammar_matcher m = {0};
    struct vocabulary *v;
    struct rng rng;
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;

    need(argc > 1 && strchr("amds", argv[1][0]), "use accept, masks, draw or speed");
    read_tokens(argc > 2 ? argv[2] : NULL, &t);
    source.n_tokens = t.n;
    v = vocabulary_create(&source);
    rng_seed(&rng, 1);
    while ((n = getline(&line, &cap, stdin)) > 0) {
        struct json *root;
        struct error err = {0};

        need(json_parse(&root, (struct str){line, (size_t)n}, &limits, &err) == ST_OK, err.message);
        if (argv[1][0] == 'm') {
            answer_mask(root, v, &m);
        } else {
            answer(argv[1], root, v, &rng);
        }
        json_destroy(root);
    }
    show("compile", &compiling);
    show("new mask", &computed);
    show("known mask", &known);
    show("take", &taking);
    grammar_matcher_fini(&m);
    vocabulary_destroy(v);
    return 0;
}
