/* tests/unit/router/sessions/test_session_table.c - which session a prompt continues, what is
 * counted once; random steps against plain arrays, and a million turns of clients that rewrite what
 * they sent. */
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "router/sessions/session_table.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"

#define TOKENS_PER_BLOCK 64
#define CHAIN_MAX        600

/* A prompt as a list of blocks; the hash chain follows from it. */
struct text {
    uint64_t blocks[CHAIN_MAX], chain[CHAIN_MAX];
    uint32_t n;
};

static void append(struct text *t, uint64_t block) {
    uint64_t before = t->n ? t->chain[t->n - 1] : 0;

    if (t->n == CHAIN_MAX) return;
    t->blocks[t->n] = block;
    t->chain[t->n++] = rng_mix(before ^ rng_mix(block)) & ~UINT64_C(0xFFFF);
}

static void append_some(struct text *t, uint64_t seed, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        append(t, rng_at(seed, i));
}

static struct text text_of(uint64_t opening, uint32_t n_opening, uint64_t own, uint32_t n_own) {
    struct text t = {.n = 0};

    append_some(&t, opening, n_opening);
    append_some(&t, own, n_own);
    return t;
}

static uint32_t n_common(const struct text *a, const struct text *b) {
    uint32_t n = 0;

    while (n < a->n && n < b->n && a->chain[n] == b->chain[n])
        n++;
    return n;
}

static struct session_prompt prompt_of(const struct text *t, uint32_t n_known) {
    return (struct session_prompt){.chain = t->chain,
                                   .n_blocks = t->n,
                                   .n_known = n_known,
                                   .tokens_per_block = TOKENS_PER_BLOCK};
}

static struct session_table *table_of(uint32_t n_max) {
    struct session_table *t = mem_zalloc(sizeof(*t));

    assert_true(session_table_init(t, n_max));
    return t;
}

static void table_free(struct session_table *t) {
    session_table_check(t);
    session_table_fini(t);
    mem_free(t);
}

static uint32_t begin(struct session_table *t, const struct session_prompt *p) {
    struct session_match match = session_table_find(t, p);
    uint32_t s;

    assert_int_equal(match.session, SESSION_NONE);
    s = session_table_begin(t, p, &match);
    assert_int_not_equal(s, SESSION_NONE);
    session_table_resize(t, s, (uint64_t)p->n_blocks * TOKENS_PER_BLOCK);
    return s;
}

static void a_prompt_that_extends_the_last_one_is_joined_by_its_end(void **state) {
    struct session_table *t = table_of(100);
    struct text a = text_of(1, 40, 10, 12), b = text_of(1, 40, 11, 12), longer;
    struct session_prompt p = prompt_of(&a, 40);
    struct session_match match;
    uint32_t s = begin(t, &p);

    (void)state;
    p = prompt_of(&b, 40);
    assert_int_not_equal(begin(t, &p), s);
    longer = a;
    append_some(&longer, 99, 30);
    p = prompt_of(&longer, 52);
    match = session_table_find(t, &p);
    assert_int_equal(match.session, s);
    assert_int_equal(match.how, SESSION_BY_END);
    p.n_known = 52 + SESSION_LOOK - 1; /* another holds more of it */
    assert_int_equal(session_table_find(t, &p).how, SESSION_BY_END);
    p.n_known = 52 + SESSION_LOOK;
    assert_int_equal(session_table_find(t, &p).how, SESSION_BY_ANCHOR);
    table_free(t);
}

static void one_of_the_last_four_ends_suffices(void **state) {
    struct session_table *t = table_of(100);
    struct text a = text_of(1, 40, 10, 12), prompts[6];
    struct session_prompt p = prompt_of(&a, 0); /* nothing known: the anchor is the first block */
    struct session_match match;
    uint32_t s = begin(t, &p);

    (void)state;
    prompts[0] = a;
    for (uint64_t i = 1; i < 6; i++) {
        append_some(&a, 100 + i, 3);
        prompts[i] = a;
        p = prompt_of(&a, prompts[i - 1].n);
        assert_true(session_table_continue(t, s, &p, 1));
    }
    for (uint32_t i = 1; i < 6; i++) {
        struct text fork = prompts[i];

        append_some(&fork, 1000 + i, 10);
        p = prompt_of(&fork, prompts[i].n);
        match = session_table_find(t, &p);
        assert_int_equal(match.session, s);
        assert_int_equal(match.how, i >= 2 ? SESSION_BY_END : SESSION_BY_ANCHOR);
    }
    table_free(t);
}

static void an_evicted_session_is_found_by_its_anchor(void **state) {
    struct session_table *t = table_of(100);
    struct text a = text_of(1, 40, 10, 12);
    struct session_prompt p = prompt_of(&a, 40);
    struct session_match match;
    uint32_t s = begin(t, &p);

    (void)state;
    append_some(&a, 5, 20);
    p = prompt_of(&a, 40); /* the opening alone is held still */
    match = session_table_find(t, &p);
    assert_int_equal(match.session, s);
    assert_int_equal(match.how, SESSION_BY_ANCHOR);
    p.n_known = 0; /* nor that; its end proves that it is the one */
    assert_int_equal(session_table_find(t, &p).session, s);
    table_free(t);
}

static void the_system_prompt_is_not_an_anchor_before_anything_is_known(void **state) {
    struct session_table *t = table_of(100);
    struct text a = text_of(1, 40, 10, 12), b = text_of(1, 40, 11, 12);
    struct session_prompt p = prompt_of(&a, 0);
    uint32_t s = begin(t, &p);

    (void)state;
    for (uint32_t known = 0; known <= 40; known++) {
        p = prompt_of(&b, known);
        assert_int_equal(session_table_find(t, &p).session, SESSION_NONE);
    }
    assert_int_not_equal(begin(t, &p), s);
    table_free(t);
}

static void a_second_prompt_beside_one_in_flight_is_another_session(void **state) {
    struct session_table *t = table_of(100);
    struct text a = text_of(1, 40, 10, 12);
    struct session_prompt p = prompt_of(&a, 40);
    uint32_t s = begin(t, &p), twin;

    (void)state;
    session_at(t, s)->n_open = 1;
    p = prompt_of(&a, 52);
    twin = begin(t, &p);
    assert_int_equal(session_at(t, twin)->parent, session_at(t, s)->number);
    session_table_activate(t, s, true);
    session_table_activate(t, twin, true);
    assert_int_equal(t->used_tokens, 52 * TOKENS_PER_BLOCK); /* all in common: counted once */
    session_table_check(t);
    session_at(t, s)->n_open = 0; /* idle: a fork of it is joined */
    append_some(&a, 7, 3);
    p = prompt_of(&a, 52);
    session_at(t, twin)->n_open = 1;
    assert_int_equal(session_table_find(t, &p).session, s);
    table_free(t);
}

static void of_two_with_one_end_the_one_that_has_not_gone_on_is_taken(void **state) {
    struct session_table *t = table_of(100);
    struct text a = text_of(1, 40, 10, 12), longer = a, other = a;
    struct session_prompt p = prompt_of(&a, 40);
    uint32_t s = begin(t, &p), twin;

    (void)state;
    session_at(t, s)->n_open = 1;
    p = prompt_of(&a, 52);
    twin = begin(t, &p);
    session_at(t, s)->n_open = 0;
    append_some(&longer, 8, 4);
    p = prompt_of(&longer, 52);
    assert_true(session_table_continue(t, s, &p, 1));
    session_at(t, twin)->last_ms = 1; /* idle for less long, but its last prompt it is */
    append_some(&other, 9, 4);
    p = prompt_of(&other, 52);
    assert_int_equal(session_table_find(t, &p).session, twin);
    table_free(t);
}

static void an_id_is_found_before_all_else_and_one_prompt_of_two_tenants_is_two(void **state) {
    struct session_table *t = table_of(100);
    struct text a = text_of(1, 40, 10, 12), b = text_of(2, 3, 20, 2);
    struct session_prompt p = prompt_of(&a, 0), q;
    struct session_match match;
    uint32_t s;

    (void)state;
    p.id = 0x123456789;
    s = begin(t, &p);
    q = prompt_of(&b, 0);
    q.id = p.id;
    match = session_table_find(t, &q);
    assert_int_equal(match.session, s);
    assert_int_equal(match.how, SESSION_BY_ID);
    q.id = 0x223456789;
    q.parent_id = p.id;
    assert_int_equal(session_at(t, begin(t, &q))->parent, session_at(t, s)->number);
    p = prompt_of(&a, a.n);
    p.tenant = 5;
    assert_int_equal(session_table_find(t, &p).session, SESSION_NONE);
    table_free(t);
}

static void a_small_prompt_beside_a_named_session_changes_nothing_once(void **state) {
    struct session_table *t = table_of(100);
    struct text a = text_of(1, 40, 10, 12), title = text_of(2, 3, 20, 2);
    struct session_prompt p = prompt_of(&a, 0), q = prompt_of(&title, 0);
    uint32_t s;

    (void)state;
    p.id = q.id = 0x123456789;
    s = begin(t, &p);
    assert_false(session_table_continue(t, s, &q, 5 * TOKENS_PER_BLOCK));
    append_some(&a, 3, 3);
    p = prompt_of(&a, 0);
    assert_true(session_table_continue(t, s, &p, 1));
    assert_false(session_table_continue(t, s, &q, 5 * TOKENS_PER_BLOCK));
    assert_true(session_table_continue(t, s, &q, 5 * TOKENS_PER_BLOCK)); /* twice: it is that now */
    table_free(t);
}

static void a_named_session_without_anything_of_its_own_may_shrink(void **state) {
    struct session_table *t = table_of(100);
    struct text a = text_of(1, 40, 10, 0);
    struct session_prompt p = prompt_of(&a, 40); /* known as a whole: no anchor */
    uint32_t s;

    (void)state;
    p.id = UINT64_C(7) << 20;
    s = begin(t, &p);
    for (uint32_t n = 39; n > 0; n -= 13) {
        p.n_blocks = p.n_known = n;
        (void)session_table_continue(t, s, &p, n * TOKENS_PER_BLOCK);
        session_table_check(t);
    }
    table_free(t);
}

static void a_lost_worker_takes_the_tokens_and_not_the_sessions(void **state) {
    struct session_table *t = table_of(100);
    struct text a = text_of(1, 40, 10, 12), b = text_of(1, 40, 11, 20);
    struct session_prompt p = prompt_of(&a, 40), q = prompt_of(&b, 40);
    uint32_t s = begin(t, &p), other = begin(t, &q);

    (void)state;
    session_table_activate(t, s, true);
    session_table_activate(t, other, true);
    session_table_move(t, s, 3);
    session_table_move(t, other, 4);
    assert_int_equal(t->used_tokens, (40 + 12 + 20) * TOKENS_PER_BLOCK);
    session_table_worker_lost(t, 3);
    assert_int_equal(t->used_tokens, (40 + 20) * TOKENS_PER_BLOCK);
    assert_int_equal(session_table_tokens(t, s), 40 * TOKENS_PER_BLOCK);
    session_table_check(t);
    append_some(&a, 3, 3);
    p = prompt_of(&a, 40);
    assert_int_equal(session_table_find(t, &p).session, s);
    session_table_resize(t, s, 55 * TOKENS_PER_BLOCK);
    session_table_move(t, s, 4);
    assert_int_equal(t->used_tokens, (40 + 15 + 20) * TOKENS_PER_BLOCK);
    table_free(t);
}

static void equal_prompts_without_end_fill_no_bucket(void **state) {
    struct session_table *t = table_of(3000);
    struct text a = text_of(1, 40, 10, 12);
    uint32_t sessions[2000];

    (void)state;
    for (uint32_t i = 0; i < ARRAY_LEN(sessions); i++) {
        struct session_prompt p = prompt_of(&a, i ? 52 : 40);
        struct session_match match = session_table_find(t, &p);

        sessions[i] = match.session ? match.session : session_table_begin(t, &p, &match);
        session_at(t, sessions[i])->n_open++;
    }
    session_table_check(t); /* of each bucket: SESSION_ALIKE at most */
    assert_int_equal(t->n, ARRAY_LEN(sessions));
    for (uint32_t i = 0; i < ARRAY_LEN(sessions); i++)
        session_table_erase(t, sessions[i]);
    assert_int_equal(t->openings.n, 0);
    table_free(t);
}

static void a_session_takes_at_most_200_bytes(void **state) {
    (void)state;
    assert_true(session_table_bytes(1000000) <= UINT64_C(200) * 1000000);
    assert_true(session_table_bytes(100000) <= UINT64_C(200) * 100000);
}

/* --- a million turns ------------------------------------------------------------------------- */

enum client { KEEPS_ALL, DROPS_REASONING, REMINDS, DATES, N_CLIENTS };

struct speaker { /* a client's session */
    enum client client;
    uint32_t date;
    struct text history; /* what stays of it, without what the client rewrites */
    struct text sent;    /* the last prompt */
    uint32_t session, n_turns;
    uint64_t seed;
    uint32_t opening;
};

#define SPEAKERS 300
#define OPENINGS 12

static void next_prompt(struct speaker *k, struct text *out, struct rng *rng) {
    uint32_t n_least = k->n_turns++ ? 4 : 16; /* of the user's first message, of later ones */

    append_some(&k->history, rng_u64(rng), n_least + (uint32_t)rng_below(rng, 3 * n_least));
    *out = k->history;
    /* Reasoning since the user's last turn is sent, and dropped at the next. */
    if (k->client == DROPS_REASONING && rng_below(rng, 8) && k->n_turns > 1)
        append_some(out, rng_u64(rng), 1 + (uint32_t)rng_below(rng, 20));
    if (k->client == REMINDS) append_some(out, rng_u64(rng), 1 + (uint32_t)rng_below(rng, 4));
}

static void start(struct speaker *k, struct rng *rng) {
    *k = (struct speaker){.client = (enum client)rng_below(rng, N_CLIENTS),
                          .seed = rng_u64(rng),
                          .opening = (uint32_t)rng_below(rng, OPENINGS)};
    append_some(&k->history, 77 + k->opening, 20 + 3 * k->opening);
    /* A date behind the system prompt: one of few, so that it is shared as well. */
    k->date = (uint32_t)rng_below(rng, 3);
    if (k->client == DATES) append(&k->history, 1000 + k->date);
}

/* Blocks that some worker holds: what was sent before, or less when caches were full. */
static uint32_t n_held(const struct speaker *k, const struct text *prompt, struct rng *rng) {
    static bool is_seen[OPENINGS][3];
    uint32_t n_shared = 20 + 3 * k->opening, n;

    if (k->client == DATES) n_shared += is_seen[k->opening][k->date];
    if (k->client == DATES) is_seen[k->opening][k->date] = true;
    n = k->n_turns > 1 ? n_common(&k->sent, prompt) : n_shared;
    if (rng_below(rng, 20) == 0) n = n_shared; /* its own are evicted */
    if (rng_below(rng, 200) == 0) n = (uint32_t)rng_below(rng, n_shared + 1); /* and others' */
    return n;
}

static void in_a_million_turns_none_joins_another_session(void **state) {
    struct session_table *t = table_of(SPEAKERS * 4);
    struct speaker *all = mem_calloc(SPEAKERS, sizeof(*all));
    uint32_t *owner = mem_calloc(SPEAKERS * 4 + 1, sizeof(*owner));
    uint64_t n_turns = 0, n_joined = 0, n_false = 0;
    struct rng rng;

    (void)state;
    rng_seed(&rng, 4);
    for (uint32_t i = 0; i < 1000000; i++) {
        uint32_t who = (uint32_t)rng_below(&rng, SPEAKERS);
        struct speaker *k = &all[who];
        struct session_match match;
        struct session_prompt p;
        struct text prompt;

        if (!k->seed || k->history.n > CHAIN_MAX - 50 || rng_below(&rng, 60) == 0) {
            if (k->session) session_table_erase(t, k->session);
            start(k, &rng);
        }
        next_prompt(k, &prompt, &rng);
        p = prompt_of(&prompt, n_held(k, &prompt, &rng));
        p.n_system = who % 2 ? 20 + 3 * k->opening : 0; /* half of the APIs show it */
        match = session_table_find(t, &p);
        if (k->n_turns > 1) {
            n_turns++;
            n_joined += match.session == k->session;
        }
        n_false += match.session && match.session != k->session;
        if (!match.session || match.session != k->session) { /* it begins again, in truth */
            if (k->session) session_table_erase(t, k->session);
            k->session = session_table_begin(t, &p, &(struct session_match){0});
            owner[k->session] = who;
        } else {
            assert_int_equal(owner[match.session], who);
            (void)session_table_continue(t, match.session, &p, UINT32_MAX);
        }
        session_at(t, k->session)->last_ms = i;
        k->sent = prompt;
    }
    assert_int_equal(n_false, 0);
    print_message("joined %.3f %% of %lu turns\n", 100.0 * (double)n_joined / (double)n_turns,
                  (unsigned long)n_turns);
    assert_true(n_joined >= n_turns - n_turns / 100);
    mem_free(owner);
    mem_free(all);
    table_free(t);
}

/* --- random steps ---------------------------------------------------------------------------- */

#define PLACES 300

struct known { /* of a session, by the model */
    struct text text;
    uint64_t n_tokens;
    uint32_t worker;
    bool is_active;
};

/* The tokens stay as they were set, but are at least those of its openings. */
static void check_one(const struct session_table *t, uint32_t s, struct known *k) {
    uint64_t n_least = openings_tokens(&t->openings, session_at(t, s)->opening);

    assert_true(session_at(t, s)->is_active == k->is_active);
    k->n_tokens = MAX(k->n_tokens, n_least);
    assert_int_equal(session_table_tokens(t, s), k->n_tokens);
}

static void begin_one(struct session_table *t, struct known *model, struct rng *rng) {
    struct text text = text_of(rng_below(rng, 5), 5 + 10 * (uint32_t)rng_below(rng, 3),
                               rng_below(rng, 50), 1 + (uint32_t)rng_below(rng, 8));
    struct session_prompt p = prompt_of(&text, (uint32_t)rng_below(rng, text.n + 3));
    struct session_match match = session_table_find(t, &p);
    uint32_t s;

    if (rng_below(rng, 3) == 0) p.id = rng_u64(rng);
    if (match.session) return;
    s = session_table_begin(t, &p, &match);
    if (!s) {
        assert_int_equal(t->n, PLACES);
        return;
    }
    model[s] = (struct known){.text = text, .worker = WORKER_NONE};
    session_at(t, s)->n_open = (uint32_t)rng_below(rng, 2);
}

static void step(struct session_table *t, struct known *model, uint32_t s, struct rng *rng) {
    struct known *k = &model[s];
    struct session_prompt p;

    switch (rng_below(rng, 6)) {
    case 0:
        session_table_erase(t, s);
        *k = (struct known){0};
        return;
    case 1:
        k->is_active = !k->is_active;
        session_table_activate(t, s, k->is_active);
        return;
    case 2:
        k->n_tokens = rng_below(rng, 100000);
        session_table_resize(t, s, k->n_tokens);
        return;
    case 3:
        k->worker = rng_below(rng, 5) ? (uint32_t)rng_below(rng, 4) : WORKER_NONE;
        session_table_move(t, s, k->worker);
        return;
    case 4: session_at(t, s)->n_open ^= 1; return;
    default:
        if (rng_below(rng, 4)) {
            append_some(&k->text, rng_u64(rng), 1 + (uint32_t)rng_below(rng, 2));
        } else { /* shorter, or another */
            k->text =
                rng_below(rng, 2) ? text_of(rng_below(rng, 5), 30, rng_below(rng, 50), 8) : k->text;
            k->text.n = (uint32_t)rng_below(rng, k->text.n + 1);
        }
        if (k->text.n > CHAIN_MAX - 5) return;
        p = prompt_of(&k->text, (uint32_t)rng_below(rng, k->text.n + 3));
        (void)session_table_continue(t, s, &p, UINT32_MAX);
    }
}

static void lose(struct session_table *t, struct known *model, uint32_t w) {
    session_table_worker_lost(t, w);
    for (uint32_t s = 1; s <= PLACES; s++) {
        if (!session_at(t, s)->is_used || model[s].worker != w) continue;
        model[s].worker = WORKER_NONE;
        model[s].n_tokens = 0;
    }
}

static void random_steps_agree_with_a_plain_model(void **state) {
    struct session_table *t = table_of(PLACES);
    struct known *model = mem_calloc(PLACES + 1, sizeof(*model));
    struct rng rng;

    (void)state;
    rng_seed(&rng, 9);
    for (uint32_t i = 0; i < 1000000; i++) {
        uint32_t s = 1 + (uint32_t)rng_below(&rng, PLACES);

        if (rng_below(&rng, 500) == 0) lose(t, model, (uint32_t)rng_below(&rng, 4));
        if (session_at(t, s)->is_used) {
            check_one(t, s, &model[s]); /* another may have lengthened its opening */
            step(t, model, s, &rng);
        } else {
            begin_one(t, model, &rng);
        }
        if (session_at(t, s)->is_used) check_one(t, s, &model[s]);
        if (i % 997 == 0) session_table_check(t);
    }
    for (uint32_t s = 1; s <= PLACES; s++)
        if (session_at(t, s)->is_used) session_table_erase(t, s);
    assert_int_equal(t->used_tokens, 0);
    assert_int_equal(t->openings.n, 0);
    mem_free(model);
    table_free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_that_extends_the_last_one_is_joined_by_its_end),
        cmocka_unit_test(one_of_the_last_four_ends_suffices),
        cmocka_unit_test(an_evicted_session_is_found_by_its_anchor),
        cmocka_unit_test(the_system_prompt_is_not_an_anchor_before_anything_is_known),
        cmocka_unit_test(a_second_prompt_beside_one_in_flight_is_another_session),
        cmocka_unit_test(of_two_with_one_end_the_one_that_has_not_gone_on_is_taken),
        cmocka_unit_test(an_id_is_found_before_all_else_and_one_prompt_of_two_tenants_is_two),
        cmocka_unit_test(a_small_prompt_beside_a_named_session_changes_nothing_once),
        cmocka_unit_test(a_named_session_without_anything_of_its_own_may_shrink),
        cmocka_unit_test(a_lost_worker_takes_the_tokens_and_not_the_sessions),
        cmocka_unit_test(equal_prompts_without_end_fill_no_bucket),
        cmocka_unit_test(a_session_takes_at_most_200_bytes),
        cmocka_unit_test(in_a_million_turns_none_joins_another_session),
        cmocka_unit_test(random_steps_agree_with_a_plain_model),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
