/* tests/bench/load/traffic.c - bodies of requests, from a seed. */
#include "tests/bench/load/traffic.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/heap.h"
#include "common/base/mem.h"
#include "common/base/rng.h"

#define SIZE_SPREAD    1.0 /* sigma of the log-normal sizes */
#define MAX_TIMES_MEAN 20  /* a size is cut here */
#define HISTORY_MAX    (256u << 10)
#define ZIPF_EXPONENT  1.1

const char *const traffic_shape_names[] = {"fixed", "shared-prefix", "conversation", NULL};

struct session {
    struct heap_link due; /* in traffic->sessions, while it pauses */
    uint64_t due_us;
    uint32_t id, turn;
    struct buf history; /* messages so far, without the enclosing brackets */
};

struct traffic {
    struct traffic_config config;
    struct rng rng;
    struct buf *bodies; /* fixed */
    uint32_t n_made;    /* requests, or sessions */
    struct heap sessions;
    struct buf body;
};

/* Words that look like prose to a tokenizer and never repeat in the same order. */
static void append_words(struct buf *out, uint64_t key, size_t n) {
    static const char *const words[] = {
        "the",    "of",      "and",     "to",    "a",     "in",    "that",    "is",     "was",
        "he",     "for",     "it",      "with",  "as",    "his",   "on",      "be",     "at",
        "by",     "had",     "not",     "are",   "but",   "from",  "or",      "have",   "an",
        "they",   "which",   "one",     "you",   "were",  "all",   "her",     "she",    "there",
        "would",  "their",   "we",      "him",   "been",  "has",   "when",    "who",    "will",
        "no",     "more",    "if",      "out",   "so",    "up",    "said",    "what",   "its",
        "about",  "than",    "into",    "them",  "can",   "only",  "other",   "time",   "new",
        "some",   "could",   "these",   "two",   "may",   "first", "then",    "do",     "any",
        "like",   "my",      "now",     "over",  "such",  "our",   "man",     "me",     "even",
        "most",   "made",    "after",   "also",  "did",   "many",  "off",     "before", "must",
        "well",   "back",    "through", "years", "where", "much",  "your",    "way",    "down",
        "should", "because", "long",    "each",  "just",  "state", "those",   "people", "too",
        "mister", "how",     "little",  "good",  "world", "make",  "very",    "year",   "still",
        "see",    "work",    "life",    "men",   "day",   "both",  "between", "under",  "never",
        "being",  "same"};
    struct rng rng;
    size_t end = buf_len(out) + n;

    rng_seed(&rng, key);
    while (buf_len(out) < end) {
        const char *word = words[rng_below(&rng, ARRAY_LEN(words))];
        size_t left = end - buf_len(out), len = strlen(word);

        buf_append(out, word, MIN(left, len));
        if (buf_len(out) < end) buf_append_char(out, rng_below(&rng, 12) ? ' ' : '.');
    }
}

static void append_message(struct buf *out, const char *role, uint64_t key, size_t n) {
    if (buf_len(out)) buf_append_char(out, ',');
    buf_appendf(out, "{\"role\":\"%s\",\"content\":\"", role);
    append_words(out, key, n);
    buf_append_str(out, STR("\"}"));
}

static void append_body(struct buf *out, const struct traffic_config *c, struct str messages,
                        uint32_t max_tokens) {
    buf_appendf(out, "{\"model\":\"%s\",\"messages\":[", c->model);
    buf_append_str(out, messages);
    buf_appendf(out, "],\"max_tokens\":%u,\"ignore_eos\":true,\"temperature\":0%s}", max_tokens,
                c->is_stream ? ",\"stream\":true,\"stream_options\":{\"include_usage\":true}" : "");
}

/* --- chance ----------------------------------------------------------------------------------- */

static double exponential(struct rng *r, double mean) {
    return -log(1 - rng_f64(r)) * mean;
}

static double normal(struct rng *r) {
    double u = 1 - rng_f64(r), v = rng_f64(r);

    return sqrt(-2 * log(u)) * cos(2 * M_PI * v);
}

static uint32_t lognormal(struct rng *r, uint32_t mean) {
    double v = mean * exp(SIZE_SPREAD * normal(r) - SIZE_SPREAD * SIZE_SPREAD / 2);

    return (uint32_t)MIN(MAX(v, 1), (double)mean * MAX_TIMES_MEAN);
}

static uint32_t zipf(struct rng *r, uint32_t n) {
    double total = 0, at;

    for (uint32_t i = 0; i < n; i++)
        total += pow(i + 1, -ZIPF_EXPONENT);
    at = rng_f64(r) * total;
    for (uint32_t i = 0; i < n; i++) {
        at -= pow(i + 1, -ZIPF_EXPONENT);
        if (at < 0) return i;
    }
    return n - 1;
}

/* --- fixed ------------------------------------------------------------------------------------ */

/* The i-th body, with `n` bytes of text. */
static void make_body(struct traffic *t, uint32_t i, size_t n) {
    const struct traffic_config *c = &t->config;
    struct buf messages;

    buf_init(&messages, 0);
    append_message(&messages, "system", rng_at(c->seed, i % c->families), n / 2);
    append_message(&messages, "user", rng_at(~c->seed, i), n - n / 2);
    buf_clear(&t->bodies[i]);
    append_body(&t->bodies[i], c, buf_str(&messages), c->max_tokens);
    buf_fini(&messages);
}

static void make_bodies(struct traffic *t) {
    const struct traffic_config *c = &t->config;
    size_t frame;

    t->bodies = mem_calloc(c->bodies, sizeof(*t->bodies));
    for (uint32_t i = 0; i < c->bodies; i++) {
        buf_init(&t->bodies[i], 0);
        make_body(t, i, 0);
        frame = buf_len(&t->bodies[i]);
        make_body(t, i, c->body_bytes > frame ? c->body_bytes - frame : 1);
    }
}

static void next_fixed(struct traffic *t, struct traffic_item *out) {
    uint32_t i = t->n_made++ % t->config.bodies;

    *out = (struct traffic_item){.body = buf_str(&t->bodies[i]),
                                 .session = i % t->config.families,
                                 .max_tokens = t->config.max_tokens};
}

/* --- shared prefix ---------------------------------------------------------------------------- */

static void next_shared_prefix(struct traffic *t, struct traffic_item *out) {
    const struct traffic_config *c = &t->config;
    uint32_t group = (uint32_t)rng_below(&t->rng, c->groups);
    struct buf messages;

    buf_init(&messages, 0);
    append_message(&messages, "system", rng_at(c->seed, group), c->prefix_bytes);
    append_message(&messages, "user", rng_at(~c->seed, t->n_made++), c->question_bytes);
    buf_clear(&t->body);
    append_body(&t->body, c, buf_str(&messages), c->max_tokens);
    buf_fini(&messages);
    *out = (struct traffic_item){
        .body = buf_str(&t->body), .session = group, .max_tokens = c->max_tokens};
}

/* --- conversation ----------------------------------------------------------------------------- */

static bool is_due_before(const struct heap_link *a, const struct heap_link *b) {
    const struct session *x = HEAP_ENTRY_CONST(a, struct session, due);
    const struct session *y = HEAP_ENTRY_CONST(b, struct session, due);

    return x->due_us != y->due_us ? x->due_us < y->due_us : x->id < y->id;
}

static void session_destroy(struct session *s) {
    if (!s) return;
    buf_fini(&s->history);
    mem_free(s);
}

static struct session *begin_session(struct traffic *t) {
    const struct traffic_config *c = &t->config;
    struct session *s = mem_zalloc(sizeof(*s));
    uint32_t prompt = zipf(&t->rng, c->system_prompts);

    s->id = t->n_made++;
    buf_init(&s->history, 0);
    append_message(&s->history, "system", rng_at(c->seed, prompt), c->system_bytes);
    return s;
}

/* The session whose pause is over first, or a new one. */
static struct session *choose_session(struct traffic *t, uint64_t now_us) {
    struct heap_link *first = heap_first(&t->sessions);

    if (first && HEAP_ENTRY(first, struct session, due)->due_us <= now_us) {
        return HEAP_ENTRY(heap_pop(&t->sessions), struct session, due);
    }
    return begin_session(t);
}

static void next_turn(struct traffic *t, uint64_t now_us, struct traffic_item *out) {
    const struct traffic_config *c = &t->config;
    struct session *s = choose_session(t, now_us);
    uint32_t n = lognormal(&t->rng, s->turn ? c->turn_bytes : c->first_turn_bytes);
    uint32_t max_tokens = lognormal(&t->rng, c->max_tokens);
    uint64_t key = rng_at(~c->seed, s->id);
    bool goes_on;

    append_message(&s->history, "user", rng_at(key, 2 * s->turn), n);
    buf_clear(&t->body);
    append_body(&t->body, c, buf_str(&s->history), max_tokens);
    *out = (struct traffic_item){
        .body = buf_str(&t->body), .session = s->id, .turn = s->turn, .max_tokens = max_tokens};
    append_message(&s->history, "assistant", rng_at(key, 2 * s->turn + 1), max_tokens);
    s->turn++;
    s->due_us = now_us + (uint64_t)exponential(&t->rng, c->pause_ms * 1e3);
    goes_on = rng_f64(&t->rng) * c->turns >= 1 && buf_len(&s->history) < HISTORY_MAX;
    if (goes_on) {
        heap_push(&t->sessions, &s->due);
    } else {
        session_destroy(s);
    }
}

/* --- the whole -------------------------------------------------------------------------------- */

struct traffic *traffic_create(const struct traffic_config *config) {
    struct traffic *t = mem_zalloc(sizeof(*t));

    t->config = *config;
    rng_seed(&t->rng, config->seed);
    buf_init(&t->body, 0);
    heap_init(&t->sessions, is_due_before);
    if (config->shape == TRAFFIC_FIXED) make_bodies(t);
    return t;
}

void traffic_destroy(struct traffic *t) {
    struct heap_link *link;

    if (!t) return;
    for (uint32_t i = 0; t->bodies && i < t->config.bodies; i++)
        buf_fini(&t->bodies[i]);
    while ((link = heap_pop(&t->sessions)))
        session_destroy(HEAP_ENTRY(link, struct session, due));
    heap_fini(&t->sessions);
    mem_free(t->bodies);
    buf_fini(&t->body);
    mem_free(t);
}

void traffic_next(struct traffic *t, uint64_t now_us, struct traffic_item *out) {
    switch ((enum traffic_shape)t->config.shape) {
    case TRAFFIC_FIXED: next_fixed(t, out); break;
    case TRAFFIC_SHARED_PREFIX: next_shared_prefix(t, out); break;
    case TRAFFIC_CONVERSATION: next_turn(t, now_us, out); break;
    }
}
