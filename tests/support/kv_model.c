/* tests/support/kv_model.c - see the header. Slow and plain on purpose. */
#include "tests/support/kv_model.h"

#include <assert.h>
#include <string.h>

void model_init(struct model *m, const struct kv_manager_config *config) {
    *m = (struct model){.config = *config};
    assert(config->n_groups >= 1 && config->n_blocks <= MODEL_MAX_BLOCKS);
    for (block_id id = config->no_null ? 0 : 1; id < config->n_blocks; id++)
        m->queue[m->n_queue++] = id;
}

/* --- the queue ------------------------------------------------------------------------------- */

static void queue_insert(struct model *m, uint32_t at, block_id id) {
    memmove(m->queue + at + 1, m->queue + at, (m->n_queue - at) * sizeof(*m->queue));
    m->queue[at] = id;
    m->n_queue++;
}

static void queue_remove(struct model *m, block_id id) {
    uint32_t at = 0;

    while (m->queue[at] != id)
        at++;
    m->n_queue--;
    memmove(m->queue + at, m->queue + at + 1, (m->n_queue - at) * sizeof(*m->queue));
}

static bool is_null(const struct model *m, block_id id) {
    return id == BLOCK_NULL && !m->config.no_null;
}

static void take(struct model *m, block_id id) {
    if (!is_null(m, id) && m->blocks[id].ref_cnt++ == 0) queue_remove(m, id);
}

static block_id take_new(struct model *m) {
    block_id id = m->queue[0];

    assert(m->n_queue > 0);
    m->blocks[id].n_prefix = 0;
    take(m, id);
    return id;
}

/* Last block of the list first; blanks, in that order, come before what was at the head. */
static void release(struct model *m, const block_id *ids, uint32_t n) {
    uint32_t n_front = 0;

    for (uint32_t i = n; i-- > 0;) {
        struct model_block *b = &m->blocks[ids[i]];

        if (is_null(m, ids[i]) || --b->ref_cnt > 0) continue;
        if (m->config.order == FREE_ORDER_FRESH_FIRST && b->n_prefix == 0)
            queue_insert(m, n_front++, ids[i]);
        else
            queue_insert(m, m->n_queue, ids[i]);
    }
}

/* --- who sees what --------------------------------------------------------------------------- */

/* Does the token at `position` look at the one at t < position? */
static bool sees(const struct kv_group_config *g, uint32_t n_prompt, uint32_t position,
                 uint32_t t) {
    switch (g->kind) {
    case KV_FULL: return true;
    case KV_SLIDING: return t + g->window > position;
    case KV_CHUNKED: return t / g->window == position / g->window;
    case KV_REFERENCE: return n_prompt == 0 || t < n_prompt || t + g->window >= position;
    }
    return false;
}

/* Is block i, with tokens before `position`, looked at from there? What is not seen from one
 * position is not seen from any later one. */
static bool is_needed(const struct model *m, uint32_t g, uint32_t n_prompt, uint32_t position,
                      uint32_t i) {
    uint32_t bs = m->config.block_size;

    for (uint32_t t = i * bs; t < (i + 1) * bs; t++) {
        if (t >= position || sees(&m->config.group[g], n_prompt, position, t)) return true;
    }
    return false;
}

/* --- lookup ---------------------------------------------------------------------------------- */

/* The oldest block of the group that holds exactly the first n tokens of this sequence. */
static block_id find(const struct model *m, const struct model_seq *s, uint32_t g, uint32_t n) {
    block_id found = BLOCK_NONE;

    for (block_id id = 0; id < m->config.n_blocks; id++) {
        const struct model_block *b = &m->blocks[id];

        if (b->n_prefix != n || b->salt != s->salt || b->group != g) continue;
        if (memcmp(b->prefix, s->tokens, n * sizeof(*s->tokens)) != 0) continue;
        if (found == BLOCK_NONE || b->published_at < m->blocks[found].published_at) found = id;
    }
    return found;
}

static bool has_hit(const struct model *m, const struct model_seq *s, uint32_t n_blocks,
                    block_id ids[KV_GROUPS_MAX][MODEL_MAX_LEN]) {
    uint32_t bs = m->config.block_size;

    for (uint32_t g = 0; g < m->config.n_groups; g++) {
        for (uint32_t i = 0; i < n_blocks; i++) {
            /* A prompt that is kept must be there: its length does not bound the hit's. */
            bool is_skipped =
                m->config.group[g].kind != KV_REFERENCE && !is_needed(m, g, 0, n_blocks * bs, i);

            ids[g][i] = is_skipped ? BLOCK_NULL : find(m, s, g, (i + 1) * bs);
            if (ids[g][i] == BLOCK_NONE) return false;
        }
    }
    return true;
}

uint32_t model_lookup(const struct model *m, const struct model_seq *s,
                      block_id ids[KV_GROUPS_MAX][MODEL_MAX_LEN]) {
    uint32_t n = (s->n_tokens - 1) / m->config.block_size;

    while (n > 0 && !has_hit(m, s, n, ids))
        n--;
    return n;
}

/* --- allocate -------------------------------------------------------------------------------- */

void model_publish(struct model *m, struct model_seq *s, uint32_t n_ready) {
    uint32_t bs = m->config.block_size;

    for (; (s->n_published + 1) * bs <= MIN(n_ready, s->n_tokens); s->n_published++) {
        for (uint32_t g = 0; g < m->config.n_groups; g++) {
            uint32_t n = (s->n_published + 1) * bs;
            block_id *id = &s->table[g][s->n_published], other = find(m, s, g, n);
            struct model_block *b = &m->blocks[*id];

            if (is_null(m, *id)) continue;
            if (b->n_prefix > 0) {
                assert(b->n_prefix == n && b->group == g && b->salt == s->salt);
                assert(memcmp(b->prefix, s->tokens, n * sizeof(*s->tokens)) == 0);
                continue;
            }
            if (m->config.dedup && other != BLOCK_NONE && b->ref_cnt == 1) {
                take(m, other);
                release(m, id, 1);
                *id = other;
                m->n_switched++;
                continue;
            }
            b->n_prefix = n;
            b->salt = s->salt;
            b->group = g;
            b->published_at = ++m->clock;
            memcpy(b->prefix, s->tokens, n * sizeof(*s->tokens));
        }
    }
}

static void drop_unseen(struct model *m, struct model_seq *s, uint32_t g, uint32_t position) {
    block_id gone[MODEL_MAX_LEN];
    uint32_t n = 0, bs = m->config.block_size;

    for (uint32_t i = 0; i < s->n_table && (i + 1) * bs <= position; i++) {
        if (is_null(m, s->table[g][i]) || is_needed(m, g, s->n_prompt, position, i)) continue;
        gone[n++] = s->table[g][i];
        s->table[g][i] = BLOCK_NULL;
    }
    release(m, gone, n);
}

static bool must_copy(const struct model *m, block_id id) {
    return m->blocks[id].ref_cnt > 1 || m->blocks[id].n_prefix > 0;
}

/* What the table of a group would be with n_slots slots: entry by entry a hit, the null block, or
 * BLOCK_NONE for a new one. Those of the first n_table that must be copied are BLOCK_NONE too. */
static uint32_t lay_out(const struct model *m, const struct model_seq *s, const struct kv_alloc *a,
                        uint32_t g, uint32_t n_before, uint32_t n_slots, block_id *out) {
    uint32_t bs = m->config.block_size, n = CEIL_DIV(n_slots, bs);

    n = MAX(n, s->n_table + a->hit.n_blocks);
    for (uint32_t i = 0; i < n; i++) {
        bool is_written = i >= n_before / bs && i < CEIL_DIV(n_slots, bs);
        /* Of a prompt that is kept all is attached first and the gap given back later. */
        bool is_skipped = m->config.group[g].kind != KV_REFERENCE && (i + 1) * bs <= n_before &&
                          !is_needed(m, g, 0, n_before, i);

        if (i < s->n_table)
            out[i] = is_written && must_copy(m, s->table[g][i]) ? BLOCK_NONE : s->table[g][i];
        else if (is_skipped)
            out[i] = BLOCK_NULL;
        else
            out[i] = i < a->hit.n_blocks ? a->hit.ids[g][i] : BLOCK_NONE;
    }
    return n;
}

/* Blocks that leave the queue for this table, new and revived. At most `n_most` are held. */
static uint32_t count_taken(const struct model *m, const struct model_seq *s, const block_id *table,
                            uint32_t n, uint32_t n_most) {
    uint32_t n_new = 0, n_copies = 0, n_revived = 0, n_had = 0;

    for (uint32_t i = 0; i < n; i++) {
        if (table[i] == BLOCK_NONE)
            i < s->n_table ? n_copies++ : n_new++;
        else if (i >= s->n_table && !is_null(m, table[i]))
            n_revived += m->blocks[table[i]].ref_cnt == 0;
        n_had += table[i] != BLOCK_NONE && !is_null(m, table[i]);
    }
    n_had += n_copies;
    n_new = MIN(n_new, n_most - MIN(n_most, n_had));
    return n_new + n_copies + n_revived;
}

static uint32_t most_held(const struct model *m, uint32_t g, uint32_t n_tokens) {
    uint32_t bs = m->config.block_size, window = m->config.group[g].window;

    if (m->config.group[g].kind == KV_FULL || m->config.group[g].kind == KV_REFERENCE)
        return CEIL_DIV(n_tokens, bs);
    return MIN(CEIL_DIV(n_tokens, bs), CEIL_DIV(window - 1 + m->config.max_step_tokens, bs) + 1);
}

static uint32_t count_all(const struct model *m, const struct model_seq *s,
                          const struct kv_alloc *a, uint32_t n_before, uint32_t n_slots,
                          bool is_whole) {
    block_id table[MODEL_MAX_LEN];
    uint32_t n_taken = 0;

    for (uint32_t g = 0; g < m->config.n_groups; g++) {
        uint32_t n = lay_out(m, s, a, g, n_before, n_slots, table);

        n_taken += count_taken(m, s, table, n, is_whole ? most_held(m, g, s->n_tokens) : n);
    }
    return n_taken;
}

static void apply(struct model *m, struct model_seq *s, uint32_t g, const block_id *table,
                  uint32_t n) {
    block_id fresh[MODEL_MAX_LEN], replaced[MODEL_MAX_LEN];
    uint32_t n_fresh = 0, n_replaced = 0, next = 0;

    for (uint32_t i = 0; i < n; i++)
        if (table[i] == BLOCK_NONE) fresh[n_fresh++] = take_new(m);
    for (uint32_t i = 0; i < n; i++) {
        block_id old = s->table[g][i];

        s->table[g][i] = table[i] == BLOCK_NONE ? fresh[next++] : table[i];
        if (i >= s->n_table || table[i] != BLOCK_NONE) continue;
        assert(m->n_moves < MODEL_MAX_MOVES);
        m->moves[m->n_moves++] = (struct kv_move){KV_MOVE_COPY, old, s->table[g][i]};
        replaced[n_replaced++] = old;
    }
    release(m, replaced, n_replaced);
}

enum status model_allocate(struct model *m, struct model_seq *s, const struct kv_alloc *a) {
    uint32_t bs = m->config.block_size, n_keep = 0, n_groups = m->config.n_groups, n = 0;
    uint32_t n_before = MIN(a->n_computed + a->hit.n_tokens + a->n_external, MODEL_MAX_LEN);
    uint32_t n_ready = MIN(n_before + a->n_new, MODEL_MAX_LEN);
    uint32_t n_slots = MIN(n_before + a->n_new + a->n_lookahead, MODEL_MAX_LEN);
    block_id table[KV_GROUPS_MAX][MODEL_MAX_LEN];

    for (uint32_t g = 0; g < n_groups; g++)
        drop_unseen(m, s, g, a->n_computed - a->n_unsettled);
    if (a->has_scheduled && s->n_table == 0)
        n_keep = (uint32_t)(m->config.watermark * m->config.n_blocks);
    if (a->full_sequence_must_fit &&
        count_all(m, s, a, n_before, MAX(s->n_tokens, n_before), true) + n_keep > m->n_queue)
        return ST_BUSY;
    if (count_all(m, s, a, n_before, n_slots, false) + n_keep + a->reserved_blocks > m->n_queue)
        return ST_BUSY;
    for (uint32_t g = 0; g < n_groups; g++) {
        n = lay_out(m, s, a, g, n_before, n_slots, table[g]);
        for (uint32_t i = s->n_table; i < n; i++)
            if (table[g][i] != BLOCK_NONE) take(m, table[g][i]);
    }
    for (uint32_t g = 0; g < n_groups; g++)
        apply(m, s, g, table[g], n);
    s->n_table = n;
    if (a->hit.n_blocks > 0) s->n_published = a->hit.n_blocks;
    s->n_idle = n_groups * (n * bs - MIN(n_ready, n * bs));
    if (!a->delay_publish) model_publish(m, s, n_ready);
    return ST_OK;
}

void model_free(struct model *m, struct model_seq *s) {
    for (uint32_t g = 0; g < m->config.n_groups; g++)
        release(m, s->table[g], s->n_table);
    s->n_table = s->n_published = s->n_idle = 0;
}

enum status model_fork(struct model *m, struct model_seq *child, const struct model_seq *parent,
                       uint32_t n_computed) {
    uint32_t bs = m->config.block_size, n = CEIL_DIV(n_computed, bs);

    for (uint32_t g = 0; g < m->config.n_groups; g++) {
        for (uint32_t i = 0; i < n; i++) {
            if (is_null(m, parent->table[g][i]) && is_needed(m, g, parent->n_prompt, n_computed, i))
                return ST_NOT_FOUND;
        }
    }
    for (uint32_t g = 0; g < m->config.n_groups; g++) {
        for (uint32_t i = 0; i < n; i++) {
            child->table[g][i] = BLOCK_NULL;
            if (!is_needed(m, g, parent->n_prompt, n_computed, i)) continue;
            child->table[g][i] = parent->table[g][i];
            take(m, parent->table[g][i]);
        }
    }
    child->n_table = n;
    child->n_published = MIN(parent->n_published, n_computed / bs);
    child->n_idle = 0;
    return ST_OK;
}

void model_forget_cached(struct model *m) {
    for (uint32_t i = 0; i < MODEL_MAX_BLOCKS; i++)
        m->blocks[i].n_prefix = 0;
}
