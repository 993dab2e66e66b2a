/* worker/sched/beam_scheduling.c - the beams of a search among the other requests.
 *
 *      outputs of all live beams have come:  choose ──▶ finished ones copied and kept
 *                                                   ──▶ beams with several heirs forked
 *                                                   ──▶ beams without heirs dropped
 *
 * A fork takes the place of a dropped beam: its row too, if it has one. While its parent holds its
 * blocks they are shared at once; if the parent was preempted meanwhile, or no row is free, the
 * fork waits like a new sample of the same prompt. A waiting beam holds nothing. */
#include <assert.h>
#include <string.h>

#include "worker/sched/beam_group.h"
#include "worker/sched/scheduler_internal.h"

/* Blocks that all beams of a search need at once, if they share no more than the prompt's full
 * blocks. That they find again even after all were preempted: by the cache, if there is one. */
static uint64_t most_blocks(const struct scheduler *s, const struct beam_group *g) {
    const struct request *r = g->beam[0];
    uint64_t each = kv_manager_most_blocks(s->kv, r->n_max), shared = 0;

    if (kv_manager_shares_prefixes(s->kv)) shared = r->n_prompt / kv_manager_block_size(s->kv);
    return g->width * (each - MIN(shared, each)) + MIN(shared, each);
}

static uint32_t answer_number(const struct request *r) {
    return r->beam & ~BEAM_ANSWER;
}

enum status scheduler_add_answer(struct scheduler *s, struct request *r, struct error *err) {
    struct beam_group *g = r->group;
    uint32_t n_usable = block_pool_n_usable(kv_manager_pool(s->kv));

    if (most_blocks(s, g) > n_usable || g->width > s->options.max_num_seqs)
        return error_set(err, ST_TOO_LARGE,
                         "a beam search of width %u over up to %u tokens needs %llu KV blocks, but "
                         "the worker has %u: lower n, shorten the prompt or lower max_tokens",
                         g->width, r->n_max, (unsigned long long)most_blocks(s, g), n_usable);
    r->seq = s->n_added++;
    r->n_ahead = s->n_waiting + s->n_swapped;
    r->n_started_before = s->n_started;
    scheduler_enter_searching(s, r);
    g->answer[answer_number(r)] = r;
    g->n_open++;
    if (++g->n_added < g->n_answers) return ST_OK;
    for (uint32_t i = 0; i < g->width; i++) {
        g->beam[i]->seq = s->n_added++;
        g->beam[i]->arrival_us = r->arrival_us;
        g->beam[i]->n_started_before = s->n_started;
    }
    scheduler_enter_waiting(s, g->beam[0]);
    return ST_OK;
}

void scheduler_start_search(struct schedule *sched, struct request *leader, uint32_t n_hit_tokens,
                            uint64_t now_us) {
    struct beam_group *g = leader->group;

    for (uint32_t i = 0; i < g->n_answers; i++) {
        struct request *r = g->answer[i];

        if (!r) continue;
        r->n_admissions = 1;
        r->cached_tokens = n_hit_tokens;
        r->host_tokens = leader->host_tokens;
        r->explanation = leader->explanation; /* zeros unless requested */
        r->scheduled_us = now_us;
        r->n_went_before = leader->n_went_before;
        sched->n_started++;
    }
}

/* --- the end ---------------------------------------------------------------------------------- */

static void end_beams(struct scheduler *s, struct beam_group *g, uint64_t now_us) {
    for (uint32_t i = 0; i < g->width; i++)
        scheduler_enter_done(s, g->beam[i], now_us);
}

static void end_answer(struct scheduler *s, struct request *r, uint64_t now_us) {
    scheduler_enter_done(s, r, now_us);
    r->group->answer[answer_number(r)] = NULL;
    r->group->n_open--;
}

/* All answers that have not ended, by the reason already in them. */
static void end_search(struct scheduler *s, struct beam_group *g, uint64_t now_us) {
    end_beams(s, g, now_us);
    for (uint32_t i = 0; i < g->n_answers; i++) {
        struct request *r = g->answer[i];

        if (!r) continue;
        end_answer(s, r, now_us);
        list_push_back(&s->ended, &r->link);
    }
}

void scheduler_drop_answer(struct scheduler *s, struct request *r, uint64_t now_us) {
    struct beam_group *g = r->group;

    if (!request_is_beam(r)) {
        if (g->answer[answer_number(r)] != r) { /* never added */
            scheduler_enter_done(s, r, now_us);
            return;
        }
        end_answer(s, r, now_us);
        if (g->n_open == 0 && g->n_added == g->n_answers) end_beams(s, g, now_us);
        return;
    }
    for (uint32_t i = 0; i < g->n_answers; i++) {
        if (!g->answer[i]) continue;
        g->answer[i]->finish = r->finish;
        g->answer[i]->error = r->error;
    }
    end_search(s, g, now_us);
}

static void finish_search(struct scheduler *s, struct beam_group *g, uint64_t now_us) {
    for (uint32_t i = 0; i < g->n_answers; i++)
        if (g->answer[i]) beam_group_fill(g, i, now_us);
    end_search(s, g, now_us);
}

/* --- one step further ------------------------------------------------------------------------- */

/* No blocks, no row, nothing to resume. */
static void drop_beam(struct scheduler *s, struct request *r) {
    kv_manager_free(s->kv, &r->kv);
    scheduler_leave(s, r);
    request_drop_parent(r);
    r->n_computed = 0;
}

/* `r` becomes a second holder of what p has computed. False when it has to wait for it. */
static bool fork_now(struct scheduler *s, struct request *r, const struct request *p) {
    bool has_row = r->state == REQUEST_RUNNING;

    if (p->state != REQUEST_RUNNING || (!has_row && s->n_free_rows == 0)) return false;
    kv_manager_free(s->kv, &r->kv);
    kv_seq_forget_hashes(&r->kv); /* they are of the tokens it had */
    if (kv_manager_fork(s->kv, &r->kv, &p->kv, p->n_computed) != ST_OK) return false;
    r->n_computed = r->n_before = p->n_computed;
    r->step = p->step;
    if (!has_row) {
        scheduler_enter_running(s, r);
        r->n_admissions++;
    } /* else the device keeps the row's token history: only penalties read it, and beams have
       * none */
    s->counts.forks++;
    return true;
}

/* A free beam takes up the tokens of `p`, which has not got its next one yet. */
static void fork_beam(struct scheduler *s, struct request *r, struct request *p) {
    if (!fork_now(s, r, p)) {
        drop_beam(s, r);
        kv_seq_forget_hashes(&r->kv);
        r->fork_of = request_ref(p);
        r->n_fork = p->n_tokens;
    }
    request_copy_output(r, p);
    r->is_forked = p->is_forked = true;
}

/* Chooses the request that computes beam i: its parent, unless an earlier beam continues that
 * parent; else a free one. */
static void arrange_beams(struct beam_group *g) {
    const struct beam_search *b = &g->search;
    uint32_t at = 0;

    memset(g->next, 0, g->width * sizeof(struct request *));
    for (uint32_t i = 0; i < b->n_live; i++) {
        struct request **parent = &g->beam[b->live[i].beam];

        if (*parent) g->next[i] = *parent;
        *parent = NULL;
    }
    for (uint32_t i = 0; i < g->width; i++) {
        if (!g->beam[i]) continue;
        while (g->next[at])
            at++;
        g->next[at] = g->beam[i];
    }
    for (uint32_t i = 0; i < g->width; i++) {
        g->beam[i] = g->next[i];
        g->beam[i]->beam = i;
        g->beam[i]->has_offered = false;
    }
}

static void extend_beam(struct scheduler *s, struct beam_group *g, uint32_t i) {
    struct request *r = g->beam[i];

    beam_group_extend(g, r, &g->search.live[i]);
    if (r->state == REQUEST_NEW) {
        scheduler_enter_waiting(s, r);
    } else if (r->state != REQUEST_RUNNING) {
        s->waiting_tokens++; /* it is preempted, and counted without its new token */
    }
}

/* Blocks of dropped beams are freed before new ones are allocated. */
static void advance(struct scheduler *s, struct beam_group *g) {
    const struct beam_search *b = &g->search;

    arrange_beams(g);
    for (uint32_t i = b->n_live; i < g->width; i++)
        drop_beam(s, g->beam[i]);
    for (uint32_t i = 0; i < b->n_live; i++) {
        uint32_t first = 0;

        while (b->live[first].beam != b->live[i].beam)
            first++;
        if (first != i) fork_beam(s, g->beam[i], g->beam[first]);
    }
    for (uint32_t i = 0; i < b->n_live; i++)
        extend_beam(s, g, i);
}

void scheduler_take_beam(struct scheduler *s, const struct schedule_entry *e, const int32_t *token,
                         const float *logprob, uint64_t now_us) {
    struct request *r = e->request;
    struct beam_group *g = r->group;

    s->n_in_flight--;
    r->n_in_flight--;
    r->n_pending -= e->is_sampled;
    if (r->state == REQUEST_DONE || !e->is_sampled) return;
    assert(e->first + e->n_tokens == r->n_tokens && !r->has_offered);
    r->has_offered = true;
    if (!beam_group_offer(g, r, token, logprob)) return;
    if (beam_group_choose(g, s->options.eos_ids, s->options.n_eos)) {
        finish_search(s, g, now_us);
    } else {
        advance(s, g);
    }
}
