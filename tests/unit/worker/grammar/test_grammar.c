/* tests/unit/worker/grammar/test_grammar.c - masks and matchers, limits, and the other kinds of
 * grammar. */
#include <stdio.h>
#include <time.h>

#include "common/base/mem.h"
#include "tests/support/cm.h"
#include "tests/support/grammar_fixture.h"
#include "tests/support/support.h"

#define TEXT_LETTERS "abkv 012e.-\"\\n,:{}[]truefalsenull\n"

static const struct {
    enum grammar_kind kind;
    const char *text;
} samples[] = {
    {GRAMMAR_JSON_SCHEMA, "{\"type\":\"object\"}"},
    {GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"maxLength\":12},\"k\":{"
     "\"type\":\"array\",\"items\":{\"type\":\"number\",\"minimum\":-10,\"maximum\":2000}}},"
     "\"required\":[\"k\"]}"},
    {GRAMMAR_JSON_SCHEMA,
     "{\"anyOf\":[{\"type\":\"string\",\"pattern\":\"a.*b\"},{\"enum\":[\"kv\",\"kva\",null,12]},"
     "{\"type\":\"array\",\"prefixItems\":[{\"type\":\"boolean\"}]}]}"},
    {GRAMMAR_REGEX, "(ab|a[kv]{2,5}|\\{.*\\})+"},
    {GRAMMAR_CHOICE, "[\"ab\",\"abk\",\"b\",\"nul\"]"},
    {GRAMMAR_EBNF, "root ::= item (\",\" item)*\nitem ::= [a-k]+ | \"{\" root? \"}\"\n"},
    {GRAMMAR_LARK, "start: e\ne: e \"-\" e | /[0-9]+/ | <|call|> \"a\"\n%ignore \" \"\n"},
};

static uint32_t draw_allowed(struct rng *rng, const uint32_t *mask, uint32_t n_words) {
    uint32_t n = 0, pick;

    for (uint32_t i = 0; i < n_words; i++)
        n += (uint32_t)__builtin_popcount(mask[i]);
    if (n == 0) return UINT32_MAX;
    pick = (uint32_t)rng_below(rng, n);
    for (uint32_t id = 0;; id++)
        if ((mask[id / 32] >> (id % 32) & 1) && pick-- == 0) return id;
}

static void add_markers(const struct vocabulary *v, const uint32_t *mask, uint32_t *expected) {
    for (uint32_t i = 0; i < v->n_markers; i++)
        expected[v->marker[i].id / 32] |=
            mask[v->marker[i].id / 32] & 1u << (v->marker[i].id % 32); /* tested elsewhere */
}

/* Random answers: at each place the mask is what each token by itself would have. */
static void a_mask_is_each_token_by_itself(void **state) {
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    for (size_t i = 0; i < ARRAY_LEN(samples); i++) {
        struct vocabulary *v = fixture_vocabulary(&rng, 600, TEXT_LETTERS);
        struct grammar *g = fixture_grammar(samples[i].kind, samples[i].text, false, v);
        uint32_t *expected = mem_calloc(v->n_words, sizeof(*expected));

        for (uint32_t walk = 0; walk < 8; walk++) {
            struct grammar_matcher m;

            grammar_matcher_init(&m, g);
            for (uint32_t n = 0; n < 30; n++) {
                const uint32_t *mask;
                uint32_t id;
                bool is_new;

                if (n % 7 == 3 && walk % 2) grammar_collect(g);
                assert_int_equal(grammar_mask(&m, &mask, &is_new), ST_OK);
                fixture_mask(&m, v, expected);
                add_markers(v, mask, expected);
                assert_memory_equal(mask, expected, v->n_words * sizeof(*mask));
                id = draw_allowed(&rng, mask, v->n_words);
                assert_true(id != UINT32_MAX || grammar_is_accepting(&m));
                assert_int_equal(id != UINT32_MAX, grammar_continues(&m));
                if (id == UINT32_MAX) break;
                assert_int_equal(grammar_take(&m, id), ST_OK);
            }
            grammar_matcher_fini(&m);
            grammar_check(g);
        }
        mem_free(expected);
        grammar_unref(g);
        vocabulary_destroy(v);
    }
}

/* Inside a free string whole slices are allowed without a walk: long tokens, and of any letters. */
static void a_slice_is_what_its_tokens_are(void **state) {
    static const char *const schemas[] = {
        "{\"type\":\"string\"}", "{\"type\":\"string\",\"maxLength\":12}",
        "{\"type\":\"string\",\"maxLength\":35}", "{\"type\":\"string\",\"pattern\":\"x$\"}",
        "{\"type\":\"object\",\"properties\":{\"key\":{},\"other\":{}}}"};
    struct rng rng;
    struct vocabulary *v;

    (void)state;
    rng_seed(&rng, support_seed());
    v = fixture_vocabulary(&rng, 3000, "abcxy \xC3\xA9\xE2\x82\xAC");
    for (size_t i = 0; i < ARRAY_LEN(schemas); i++) {
        struct grammar *g = fixture_grammar(GRAMMAR_JSON_SCHEMA, schemas[i], false, v);
        uint32_t *expected = mem_calloc(v->n_words, sizeof(*expected));
        struct grammar_matcher m;
        const uint32_t *mask;
        bool is_new;

        grammar_matcher_init(&m, g);
        for (uint32_t n = 0; n < 3; n++) {
            if (i == 4 && n == 0) assert_int_equal(grammar_take(&m, '{'), ST_OK);
            if (n == 0) assert_int_equal(grammar_take(&m, '"'), ST_OK);
            assert_int_equal(grammar_mask(&m, &mask, &is_new), ST_OK);
            fixture_mask(&m, v, expected);
            assert_memory_equal(mask, expected, v->n_words * sizeof(*mask));
            assert_int_equal(grammar_take(&m, 'x'), ST_OK);
        }
        grammar_matcher_fini(&m);
        mem_free(expected);
        grammar_unref(g);
    }
    vocabulary_destroy(v);
}

static void tokens_can_be_taken_back(void **state) {
    struct rng rng;
    struct vocabulary *v;
    struct grammar *g;
    struct grammar_matcher m, fork;
    uint32_t rows[40];

    (void)state;
    rng_seed(&rng, support_seed());
    v = fixture_vocabulary(&rng, 0, "");
    g = fixture_grammar(GRAMMAR_REGEX, "(ab?c{1,3})*", false, v);
    grammar_matcher_init(&m, g);
    for (uint32_t i = 0; i < 40; i++) {
        rows[i] = m.row;
        assert_int_equal(grammar_take(&m, (uint8_t) "abcc"[i % 4]), ST_OK);
    }
    assert_int_equal(grammar_take(&m, 'z'), ST_INVALID);
    grammar_matcher_fork(&fork, &m);
    grammar_take_back(&m, 0);
    grammar_take_back(&m, 5);
    assert_int_equal(m.row, rows[35]);
    grammar_take_back(&m, 11);
    assert_int_equal(m.row, rows[24]);
    grammar_collect(g);
    assert_int_equal(grammar_take(&m, 'a'), ST_OK);
    assert_true(grammar_is_accepting(&fork));
    grammar_take_back(&fork, 2);
    assert_false(grammar_is_accepting(&fork));
    grammar_matcher_fini(&m);
    grammar_matcher_fini(&fork);
    grammar_unref(g);
    vocabulary_destroy(v);
}

static void special_tokens_spell_nothing(void **state) {
    struct rng rng;
    struct vocabulary *v;
    struct grammar *g;
    struct grammar_matcher m;
    const uint32_t *mask;
    bool is_new;
    uint32_t call;

    (void)state;
    rng_seed(&rng, support_seed());
    v = fixture_vocabulary(&rng, 0, "");
    g = fixture_grammar(GRAMMAR_REGEX, "(.|\\n)*", false, v);
    grammar_matcher_init(&m, g);
    assert_int_equal(grammar_mask(&m, &mask, &is_new), ST_OK);
    for (uint32_t i = 0; i < v->n_markers; i++) {
        assert_false(mask[v->marker[i].id / 32] >> (v->marker[i].id % 32) & 1);
        assert_int_equal(grammar_take(&m, v->marker[i].id), ST_INVALID);
    }
    grammar_matcher_fini(&m);
    grammar_unref(g);

    assert_non_null(vocabulary_find_marker(v, STR("<|call|>")));
    call = vocabulary_find_marker(v, STR("<|call|>"))->id;
    g = fixture_grammar(GRAMMAR_LARK, "start: \"a\" <|call|> \"b\"", false, v);
    grammar_matcher_init(&m, g);
    assert_int_equal(grammar_take(&m, 'a'), ST_OK);
    assert_int_equal(grammar_mask(&m, &mask, &is_new), ST_OK);
    for (uint32_t id = 0; id < v->n_tokens; id++)
        assert_int_equal(mask[id / 32] >> (id % 32) & 1, id == call);
    assert_int_equal(grammar_take(&m, call), ST_OK);
    assert_int_equal(grammar_take(&m, 'b'), ST_OK);
    assert_true(grammar_is_accepting(&m));
    assert_false(grammar_continues(&m));
    grammar_matcher_fini(&m);
    grammar_unref(g);
    assert_string_equal(fixture_refusal(GRAMMAR_LARK, "start: <|none|>", v),
                        "line 1 of the grammar: the model has no special token <|none|>");
    vocabulary_destroy(v);
}

/* A character of three bytes from three tokens of one. */
static void bytes_compose_characters(void **state) {
    struct rng rng;
    struct vocabulary *v;
    struct grammar *g;
    struct grammar_matcher m;
    struct buf forced;

    (void)state;
    rng_seed(&rng, support_seed());
    v = fixture_vocabulary(&rng, 0, "");
    g = fixture_grammar(GRAMMAR_CHOICE, "[\"\xE2\x82\xAC\"]", false, v);
    grammar_matcher_init(&m, g);
    buf_init(&forced, 0);
    grammar_forced(&m, &forced);
    assert_true(str_eq(buf_str(&forced), STR("\xE2\x82\xAC")));
    buf_fini(&forced);
    assert_int_equal(grammar_take(&m, 0xE2), ST_OK);
    assert_int_equal(grammar_take(&m, 0x82), ST_OK);
    assert_false(grammar_is_accepting(&m));
    assert_int_equal(grammar_take(&m, 0xAC), ST_OK);
    assert_true(grammar_is_accepting(&m));
    grammar_matcher_fini(&m);
    grammar_unref(g);
    vocabulary_destroy(v);
}

/* --- spelling --------------------------------------------------------------------------------- */

/* A tokenizer that takes the longest token each time: "city" and not c, ci, cit. */
static const char *const pieces[] = {"c",  "ci",   "cit",  "city", "\":", "\"",
                                     "un", "unit", "\": ", ": ",   "y"};
#define N_PIECES ((uint32_t)ARRAY_LEN(pieces))

static struct str piece_bytes(const void *arg, uint32_t id) {
    static char bytes[256];

    (void)arg;
    if (id >= 256) return str_of(pieces[id - 256]);
    bytes[id] = (char)id;
    return (struct str){bytes + id, 1};
}

static bool no_piece_is_special(const void *arg, uint32_t id) {
    (void)arg;
    (void)id;
    return false;
}

static uint32_t longest_pieces(const void *arg, struct str text, uint32_t *ids, uint32_t max) {
    uint32_t n = 0;

    (void)arg;
    for (size_t len; text.len > 0 && n < max; text.ptr += len, text.len -= len) {
        len = 1;
        ids[n] = (uint8_t)*text.ptr;
        for (uint32_t i = 0; i < N_PIECES; i++)
            if (strlen(pieces[i]) >= len && str_starts(text, str_of(pieces[i]))) {
                len = strlen(pieces[i]);
                ids[n] = 256 + i;
            }
        n++;
    }
    return n;
}

static uint32_t only_token(const uint32_t *mask, uint32_t n_tokens) {
    uint32_t found = UINT32_MAX;

    for (uint32_t id = 0; id < n_tokens; id++) {
        if (!(mask[id / 32] >> (id % 32) & 1)) continue;
        if (found != UINT32_MAX) return UINT32_MAX;
        found = id;
    }
    return found;
}

/* Behind the quote the key is forced, and its first token is sure. Its last one might be joined
 * with what follows: `":` or `": `. */
static void forced_text_has_the_tokenizers_spelling(void **state) {
    struct vocabulary_source source = {.n_tokens = 256 + N_PIECES,
                                       .bytes = piece_bytes,
                                       .is_special = no_piece_is_special,
                                       .encode = longest_pieces};
    struct vocabulary *v = vocabulary_create(&source);
    struct grammar *g = fixture_grammar(
        GRAMMAR_JSON_SCHEMA,
        "{\"type\":\"object\",\"properties\":{\"city\":{},\"unit\":{}},\"required\":[\"city\"]}",
        true, v);
    struct grammar_matcher m;
    const uint32_t *mask;
    bool is_new;

    (void)state;
    grammar_matcher_init(&m, g);
    assert_int_equal(grammar_mask(&m, &mask, &is_new), ST_OK);
    assert_int_equal(only_token(mask, v->n_tokens), '{');
    assert_int_equal(grammar_take(&m, '{'), ST_OK);
    assert_int_equal(grammar_take(&m, '"'), ST_OK);
    assert_int_equal(grammar_mask(&m, &mask, &is_new), ST_OK);
    assert_int_equal(only_token(mask, v->n_tokens), 256 + 3);
    assert_int_equal(grammar_take(&m, 256 + 1), ST_OK); /* ci: another spelling is not refused */
    assert_int_equal(grammar_take(&m, 't'), ST_OK);
    assert_int_equal(grammar_take(&m, 'y'), ST_OK);
    assert_int_equal(grammar_mask(&m, &mask, &is_new), ST_OK);
    assert_int_equal(only_token(mask, v->n_tokens), UINT32_MAX); /* ", ": or ": with blanks */
    assert_true(mask[(256 + 4) / 32] >> (256 + 4) % 32 & 1);
    grammar_matcher_fini(&m);
    grammar_unref(g);
    vocabulary_destroy(v);
}

/* --- other kinds ------------------------------------------------------------------------------ */

static void other_kinds_accept_their_texts(void **state) {
    static const struct {
        enum grammar_kind kind;
        const char *text, *yes[4], *no[4];
    } cases[] = {
        {GRAMMAR_CHOICE,
         "[\"yes\",\"no\",\"yes sir\"]",
         {"yes", "no", "yes sir"},
         {"ye", "yesno", ""}},
        {GRAMMAR_REGEX, "", {""}, {"a"}},
        {GRAMMAR_REGEX, "a+", {"a", "aaa"}, {"ab", "ba", ""}},
        {GRAMMAR_REGEX, "^(ab|c\\d{2,3})?x.$", {"x1", "c12x\xC3\xA9"}, {"c1xa", "x\n"}},
        {GRAMMAR_EBNF,
         "root ::= \"yes\" | \"no\" ws item* # end\nws ::= [ \\t]+\nitem ::= [a-z]{2,3} (\",\" "
         "item)?",
         {"yes", "no  ab,cd"},
         {"no", "no abcdX"}},
        {GRAMMAR_EBNF, "root ::= root \"a\" | \"b\" | root", {"b", "baa"}, {"a", ""}},
        {GRAMMAR_EBNF, "root ::= \"a\" root | \"\"", {"", "aaaa"}, {"b"}},
        {GRAMMAR_EBNF, "root ::= x | y\nx ::= y\ny ::= x | \"k\"", {"k"}, {"kk", ""}},
        {GRAMMAR_EBNF, "root ::= (a b)*\na ::= \"x\"?\nb ::= \"y\"?", {"", "xyxyy"}, {"z"}},
        {GRAMMAR_EBNF,
         "root ::= (\"a\"*)* \"\\u20ac\\x41\"",
         {"aa\xE2\x82\xAC"
          "A"},
         {"aa"}},
        {GRAMMAR_EBNF, "root ::= \"(\" root \")\" | [^()]", {"((x))", "y"}, {"((x)", "()"}},
        {GRAMMAR_LARK,
         "start: e\n?e: e \"+\" t -> add\n  | t\nt: N | \"(\" e \")\"\nN: /[0-9]+/\n%ignore \" \"",
         {"1+2", "1 + (2+ 3) ", " 7"},
         {"1+", "12 3", "+1"}},
        {GRAMMAR_LARK, "start: \"a\"..\"c\" \"HI\"i [\"z\"]", {"bhI", "cHIz"}, {"dhi", "b"}},
        {GRAMMAR_LARK,
         "%import common.INT\n%import common (WS, CNAME)\nstart: CNAME \"=\" INT~2..3\n%ignore WS",
         {"ab = 12", "a=1\n23"},
         {"=1", "a=1"}},
        {GRAMMAR_LARK, "start: A\nA.1: \"x\" B // end\nB: /y{2}/i", {"xyY"}, {"xy"}},
    };
    struct grammar_matcher m;
    struct grammar *g;
    struct rng rng;
    struct vocabulary *v;

    (void)state;
    rng_seed(&rng, support_seed());
    v = fixture_vocabulary(&rng, 0, "");
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        g = fixture_grammar(cases[i].kind, cases[i].text, false, v);

        for (size_t k = 0; k < 4 && cases[i].yes[k]; k++)
            if (!grammar_accepts(g, str_of(cases[i].yes[k])))
                fail_msg("%s refuses \"%s\"", cases[i].text, cases[i].yes[k]);
        for (size_t k = 0; k < 4 && cases[i].no[k]; k++)
            if (grammar_accepts(g, str_of(cases[i].no[k])))
                fail_msg("%s accepts \"%s\"", cases[i].text, cases[i].no[k]);
        grammar_check(g);
        grammar_unref(g);
    }
    g = fixture_grammar(GRAMMAR_CHOICE, "[\"\"]", false, v);
    grammar_matcher_init(&m, g);
    assert_true(grammar_is_accepting(&m) && !grammar_continues(&m)); /* complete before it begins */
    grammar_matcher_fini(&m);
    grammar_unref(g);
    vocabulary_destroy(v);
}

static void broken_grammars_are_refused_with_their_line(void **state) {
    static const struct {
        enum grammar_kind kind;
        const char *text, *message;
    } cases[] = {
        {GRAMMAR_CHOICE, "[]", "the list of choices is empty"},
        {GRAMMAR_CHOICE, "[1]", "a choice must be a string, not a number"},
        {GRAMMAR_REGEX, "a(b", "the pattern \"a(b\" has a group without its )"},
        {GRAMMAR_EBNF, "root ::= foo", "line 1 of the grammar: the rule \"foo\" is used, but not"},
        {GRAMMAR_EBNF, "root ::= \"a\"\nroot ::= \"b\"",
         "line 2 of the grammar: the rule \"root\" is"},
        {GRAMMAR_EBNF, "a ::= \"a\"", "the grammar has no rule \"root\""},
        {GRAMMAR_EBNF, "root ::= \"ab", "line 1 of the grammar: a \" is missing"},
        {GRAMMAR_EBNF, "root ::= (\"a\"", "a ) is missing"},
        {GRAMMAR_EBNF, "root ::= root", "no text satisfies it"},
        {GRAMMAR_EBNF, "", "the grammar has no rule \"root\""},
        {GRAMMAR_LARK, "start: \"a\"\n%json {}", "line 2 of the grammar: unsupported statement"},
        {GRAMMAR_LARK, "start: x\n", "the rule \"x\" is used, but not defined"},
        {GRAMMAR_LARK, "start: <[99999]>", "<[id]> must have the id of a special token"},
        {GRAMMAR_LARK, "start: <[97]> \"b\"", "<[id]> must have the id of a special token"},
    };
    struct rng rng;
    struct vocabulary *v;

    (void)state;
    rng_seed(&rng, support_seed());
    v = fixture_vocabulary(&rng, 0, "");
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const char *message = fixture_refusal(cases[i].kind, cases[i].text, v);

        if (!strstr(message, cases[i].message)) fail_msg("%s: %s", cases[i].text, message);
    }
    vocabulary_destroy(v);
}

/* --- limits ----------------------------------------------------------------------------------- */

enum bomb {
    DEEP,
    MANY_VALUES,
    MANY_OPTIONAL,
    MANY_REQUIRED,
    NESTED_ONE_OF,
    LONG_REGEX,
    WIDE_ANY_OF,
    LONG_VALUE,
    OPTIONAL_CHAIN,
    RULE_CHAIN,
    LONG_MATCH,
    BOMBS
};

static void write_bomb(enum bomb which, uint32_t n, struct buf *out) {
    switch (which) {
    case DEEP:
        for (uint32_t i = 0; i < n; i++)
            buf_appendf(out, "{\"type\":\"object\",\"properties\":{\"a\":");
        buf_appendf(out, "{}");
        for (uint32_t i = 0; i < n; i++)
            buf_appendf(out, "}}");
        break;
    case MANY_VALUES:
        buf_appendf(out, "{\"enum\":[");
        for (uint32_t i = 0; i < n; i++)
            buf_appendf(out, "%s\"v%u\"", i ? "," : "", i);
        buf_appendf(out, "]}");
        break;
    case MANY_OPTIONAL:
    case MANY_REQUIRED:
        buf_appendf(out, "{\"type\":\"object\",\"properties\":{");
        for (uint32_t i = 0; i < n; i++)
            buf_appendf(out, "%s\"property_%u\":{\"type\":\"integer\"}", i ? "," : "", i);
        buf_appendf(out, "},\"required\":[");
        for (uint32_t i = 0; which == MANY_REQUIRED && i < n; i++)
            buf_appendf(out, "%s\"property_%u\"", i ? "," : "", i);
        buf_appendf(out, "]}");
        break;
    case NESTED_ONE_OF:
        for (uint32_t i = 0; i < n; i++)
            buf_appendf(out, "{\"oneOf\":[{\"type\":\"null\"},{\"minimum\":%u},", i);
        buf_appendf(out, "{\"type\":\"string\"}");
        for (uint32_t i = 0; i < n; i++)
            buf_appendf(out, "]}");
        break;
    case LONG_REGEX:
        for (uint32_t i = 0; i < n; i++)
            buf_appendf(out, "%sword%u", i ? "|" : "", i);
        break;
    case WIDE_ANY_OF:
        buf_appendf(out, "{\"anyOf\":[");
        for (uint32_t i = 0; i < n; i++)
            buf_appendf(out, "%s{\"type\":\"object\",\"required\":[\"k%u\"]}", i ? "," : "", i);
        buf_appendf(out, "]}");
        break;
    case LONG_VALUE: /* one string, which is one long expression */
        buf_appendf(out, "{\"const\":[\"");
        for (uint32_t i = 0; i < n; i++)
            buf_append_char(out, (char)('a' + i % 26));
        buf_appendf(out, "\"]}");
        break;
    case OPTIONAL_CHAIN: /* each may be left out: a derivative looks at them all */
        buf_appendf(out, "root ::= ");
        for (uint32_t i = 0; i < n; i++)
            buf_appendf(out, "\"%c\"? ", (char)('a' + i % 26));
        break;
    case RULE_CHAIN: /* what a rule may be is known from the last one back to the first */
        buf_appendf(out, "start: r0\n");
        for (uint32_t i = 0; i < n; i++)
            buf_appendf(out, "r%u: \"a\" r%u | r%u\n", i, i + 1, i + 1);
        buf_appendf(out, "r%u: \"z\"", n);
        break;
    case LONG_MATCH: /* a counter beside a pattern */
        buf_appendf(out, "{\"type\":\"string\",\"pattern\":\"[0-9]-[0-9]\",\"minLength\":%u}", n);
        break;
    case BOMBS: break;
    }
}

static void bombs_are_refused_and_large_schemas_are_not(void **state) {
    static const struct {
        enum bomb which;
        enum grammar_kind kind;
        uint32_t n_good, n_bad;
    } cases[BOMBS] = {
        [DEEP] = {DEEP, GRAMMAR_JSON_SCHEMA, 64, 65},
        [MANY_VALUES] = {MANY_VALUES, GRAMMAR_JSON_SCHEMA, 10000, 100000},
        [MANY_OPTIONAL] = {MANY_OPTIONAL, GRAMMAR_JSON_SCHEMA, 500, 501},
        [MANY_REQUIRED] = {MANY_REQUIRED, GRAMMAR_JSON_SCHEMA, 2000, 2001},
        [NESTED_ONE_OF] = {NESTED_ONE_OF, GRAMMAR_JSON_SCHEMA, 1, 12},
        [LONG_REGEX] = {LONG_REGEX, GRAMMAR_REGEX, 400, 120000},
        [WIDE_ANY_OF] = {WIDE_ANY_OF, GRAMMAR_JSON_SCHEMA, 300, 5000},
        [LONG_VALUE] = {LONG_VALUE, GRAMMAR_JSON_SCHEMA, 60000, 300000},
        [OPTIONAL_CHAIN] = {OPTIONAL_CHAIN, GRAMMAR_EBNF, 300, 40000},
        [RULE_CHAIN] = {RULE_CHAIN, GRAMMAR_LARK, 2500, 9000},
        [LONG_MATCH] = {LONG_MATCH, GRAMMAR_JSON_SCHEMA, 5000, 50000},
    };
    struct rng rng;
    struct vocabulary *v;

    (void)state;
    rng_seed(&rng, support_seed());
    v = fixture_vocabulary(&rng, 1000, TEXT_LETTERS);
    for (size_t i = 0; i < BOMBS; i++) {
        struct buf text;
        struct grammar *g;

        buf_init(&text, 0);
        write_bomb(cases[i].which, cases[i].n_good, &text);
        buf_append_char(&text, '\0');
        if (cases[i].which != NESTED_ONE_OF) {
            g = fixture_grammar(cases[i].kind, buf_ptr(&text), false, v);
            assert_true(grammar_bytes(g) <= GRAMMAR_MAX_BYTES);
            grammar_unref(g);
        }
        buf_clear(&text);
        write_bomb(cases[i].which, cases[i].n_bad, &text);
        buf_append_char(&text, '\0');
        (void)fixture_refusal(cases[i].kind, buf_ptr(&text), v);
        buf_fini(&text);
    }
    vocabulary_destroy(v);
}

/* Refused or not: what matters is how long that takes. */
static void compile(enum grammar_kind kind, const char *text, const struct vocabulary *v) {
    struct grammar_spec spec = {.kind = kind, .text = str_of(text)};
    struct grammar *g = NULL;
    struct error err = {0};
    clock_t began = clock();

    if (grammar_compile(&g, &spec, v, &err) == ST_OK) grammar_unref(g);
    assert_true(clock() - began <
                5 * CLOCKS_PER_SEC); /* of the processor; a tenth of one is usual */
}

/* `n_waiting` items wait for a rule that has `n_members`: each member is cheap, and none may look
 * at all that wait. Where they do, this takes the time of tens of thousands of masks. */
static void members_do_not_look_at_all_that_wait(void **state) {
    const uint32_t n_waiting = 12000, n_members = 20000;
    struct rng rng;
    struct vocabulary *v;
    struct buf text;

    (void)state;
    rng_seed(&rng, support_seed());
    v = fixture_vocabulary(&rng, 1000, TEXT_LETTERS);
    buf_init(&text, 0);
    buf_appendf(&text, "y ::= \"q\" y | \"b\"\nroot ::= x");
    for (uint32_t i = 0; i < n_waiting; i++)
        buf_appendf(&text, "|x \"c\"");
    buf_appendf(&text, "\nx ::= y");
    for (uint32_t i = 0; i < n_members; i++)
        buf_appendf(&text, "|\"a\" y");
    buf_append_char(&text, '\0');
    compile(GRAMMAR_EBNF, buf_ptr(&text), v);
    buf_fini(&text);
    vocabulary_destroy(v);
}

/* Whether every text fits is asked of each lexeme that repeats. Here all bytes of continuation are
 * classes of their own, and a lexeme leaves out one of the last characters of four bytes. */
static void classes_that_lead_to_the_same_are_looked_at_once(void **state) {
    struct rng rng;
    struct vocabulary *v;
    struct buf text;

    (void)state;
    rng_seed(&rng, support_seed());
    v = fixture_vocabulary(&rng, 1000, TEXT_LETTERS);
    buf_init(&text, 0);
    buf_appendf(&text, "b: \"z\" b | \"y\"\nstart: \"q\"");
    for (uint32_t i = 0; i < 64; i++)
        buf_appendf(&text, " | \"\\u%04x\" start", 0x80 + i);
    for (uint32_t i = 0; i < 60 * 16; i++)
        buf_appendf(&text, " | /[^\xF4\x8F%c%c]*/ b", (char)(0xBF - i / 60), (char)(0xBF - i % 60));
    buf_append_char(&text, '\0');
    compile(GRAMMAR_LARK, buf_ptr(&text), v);
    buf_fini(&text);
    vocabulary_destroy(v);
}

/* What a schema has too much of is said with its place. */
static void what_is_too_much_is_named(void **state) {
    static const struct {
        enum grammar_kind kind;
        const char *text, *message;
    } cases[] = {
        {GRAMMAR_JSON_SCHEMA,
         "{\"properties\":{\"a\":{},\"b\":{\"type\":\"string\",\"pattern\":\"a$\",\"minLength\":"
         "50000}}}",
         "#/properties/b: it takes more than 50 ms to compile"},
        {GRAMMAR_TAG,
         "{\"type\":\"structural_tag\",\"format\":{\"type\":\"json_schema\",\"json_schema\":{"
         "\"items\":"
         "{\"type\":\"string\",\"pattern\":\"a$\",\"minLength\":50000}}}}",
         "#/format/json_schema/items: it takes more than 50 ms to compile"},
    };
    struct rng rng;
    struct vocabulary *v;

    (void)state;
    rng_seed(&rng, support_seed());
    v = fixture_vocabulary(&rng, 300, TEXT_LETTERS);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const char *message = fixture_refusal(cases[i].kind, cases[i].text, v);

        if (!strstr(message, cases[i].message)) fail_msg("%s: %s", cases[i].text, message);
    }
    vocabulary_destroy(v);
}

static void counters_are_not_unrolled(void **state) {
    static const char *const schemas[] = {
        "{\"type\":\"string\",\"maxLength\":100000}", "{\"type\":\"array\",\"maxItems\":100000}",
        "{\"type\":\"object\",\"minProperties\":1,\"maxProperties\":100000}",
        "{\"type\":\"string\",\"pattern\":\"^(a|b)*a(a|b){20}$\"}"};
    struct rng rng;
    struct vocabulary *v;

    (void)state;
    rng_seed(&rng, support_seed());
    v = fixture_vocabulary(&rng, 300, TEXT_LETTERS);
    for (size_t i = 0; i < ARRAY_LEN(schemas); i++) {
        struct grammar *g = fixture_grammar(GRAMMAR_JSON_SCHEMA, schemas[i], false, v);

        assert_true(grammar_bytes(g) < (4u << 20));
        grammar_unref(g);
    }
    vocabulary_destroy(v);
}

/* Each large allocation is refused in turn: an error, and nothing leaks or is half made. */
static void refused_memory_is_an_error(void **state) {
    struct grammar_spec spec = {
        .kind = GRAMMAR_JSON_SCHEMA,
        .text =
            STR("{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\","
                "\"pattern\":\"^[a-k]{2,9}$\",\"maxLength\":5},\"b\":{\"enum\":[1,\"x\",null]}}}")};
    struct rng rng;
    struct vocabulary *v;
    uint32_t n_refused = 0;

    (void)state;
    rng_seed(&rng, support_seed());
    v = fixture_vocabulary(&rng, 200, TEXT_LETTERS);
    for (uint64_t n = 1; n < 80; n++) {
        struct grammar *g = NULL;
        struct error err = {0};
        enum status st;

        mem_fail_at(n);
        st = grammar_compile(&g, &spec, v, &err);
        mem_fail_at(0);
        n_refused += st != ST_OK;
        assert_int_equal(st == ST_OK, g != NULL);
        if (st != ST_OK) {
            assert_true(err.message[0] != '\0');
            continue;
        }
        assert_true(grammar_accepts(g, STR("{\"a\":\"abc\",\"b\":1}")));
        assert_false(grammar_accepts(g, STR("{\"a\":\"a\"}")));
        grammar_check(g);
        grammar_unref(g);
    }
    assert_in_range(n_refused, 10, 70);
    vocabulary_destroy(v);
}

/* A token may end a string and begin what follows, if both fit. */
static void a_token_may_span_lexemes(void **state) {
    struct vocabulary_source source = {
        .n_tokens = 256 + N_PIECES, .bytes = piece_bytes, .is_special = no_piece_is_special};
    struct vocabulary *v = vocabulary_create(&source);
    struct grammar *g = fixture_grammar(
        GRAMMAR_JSON_SCHEMA, "{\"type\":\"object\",\"properties\":{\"city\":{}}}", false, v);
    struct grammar_matcher m;
    const uint32_t *mask;
    bool is_new;

    (void)state;
    grammar_matcher_init(&m, g);
    assert_int_equal(grammar_take(&m, '{'), ST_OK);
    assert_int_equal(grammar_take(&m, '"'), ST_OK);
    assert_int_equal(grammar_take(&m, 256 + 3), ST_OK); /* city */
    assert_int_equal(grammar_mask(&m, &mask, &is_new), ST_OK);
    assert_true(mask[(256 + 8) / 32] >> (256 + 8) % 32 & 1); /* ": */
    assert_int_equal(grammar_take(&m, 256 + 8), ST_OK);
    assert_int_equal(grammar_take(&m, 256 + 9), ST_INVALID); /* no value begins with a colon */
    grammar_matcher_fini(&m);
    grammar_unref(g);
    vocabulary_destroy(v);
}

/* A pattern with a million states, read for a long time: memory stays within the limit, and what is
 * forgotten is made again. */
static void memory_is_bounded_while_answers_run(void **state) {
    struct rng rng;
    struct vocabulary *v;
    struct grammar *g;
    struct grammar_matcher m;
    uint64_t n_collected;

    (void)state;
    rng_seed(&rng, support_seed());
    v = fixture_vocabulary(&rng, 2000, "ab");
    g = fixture_grammar(GRAMMAR_REGEX, "(a|b)*a(a|b){20}", false, v);
    grammar_matcher_init(&m, g);
    n_collected = grammar_collections(g);
    for (uint32_t i = 0; i < 3000 && grammar_collections(g) < n_collected + 3; i++) {
        const uint32_t *mask;
        bool is_new;

        assert_int_equal(grammar_mask(&m, &mask, &is_new), ST_OK);
        assert_int_equal(grammar_take(&m, draw_allowed(&rng, mask, v->n_words)), ST_OK);
        assert_true(grammar_bytes(g) <= GRAMMAR_MAX_BYTES);
    }
    assert_true(grammar_collections(g) >= n_collected + 3);
    grammar_check(g);
    grammar_matcher_fini(&m);
    grammar_unref(g);
    vocabulary_destroy(v);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_mask_is_each_token_by_itself),
        cmocka_unit_test(a_slice_is_what_its_tokens_are),
        cmocka_unit_test(tokens_can_be_taken_back),
        cmocka_unit_test(special_tokens_spell_nothing),
        cmocka_unit_test(bytes_compose_characters),
        cmocka_unit_test(forced_text_has_the_tokenizers_spelling),
        cmocka_unit_test(other_kinds_accept_their_texts),
        cmocka_unit_test(broken_grammars_are_refused_with_their_line),
        cmocka_unit_test(bombs_are_refused_and_large_schemas_are_not),
        cmocka_unit_test(members_do_not_look_at_all_that_wait),
        cmocka_unit_test(classes_that_lead_to_the_same_are_looked_at_once),
        cmocka_unit_test(what_is_too_much_is_named),
        cmocka_unit_test(counters_are_not_unrolled),
        cmocka_unit_test(refused_memory_is_an_error),
        cmocka_unit_test(a_token_may_span_lexemes),
        cmocka_unit_test(memory_is_bounded_while_answers_run),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
