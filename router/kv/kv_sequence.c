/* router/kv/kv_sequence.c - see the header. */
#include "router/kv/kv_sequence.h"

#include <assert.h>

#include "common/base/hash.h"

const char *const kv_reset_names[KV_RESET_COUNT] = {
    [KV_RESET_BEGIN] = "begin",
    [KV_RESET_LATE] = "begun_late",
    [KV_RESET_LOST] = "batches_lost",
    [KV_RESET_RESTART] = "restart",
    [KV_RESET_RESTART_LATE] = "restart_begun_late",
};

struct waiting_head {
    uint64_t number, n;
};

void kv_sequence_init(struct kv_sequence *s, bool has_replay, const struct kv_sequence_ops *ops,
                      void *arg) {
    *s = (struct kv_sequence){.ops = ops, .arg = arg, .has_replay = has_replay, .is_first = true};
    buf_init(&s->waiting, KV_SEQUENCE_WAITING_BYTES);
}

void kv_sequence_fini(struct kv_sequence *s) {
    buf_fini(&s->waiting);
}

/* --- in order --------------------------------------------------------------------------------- */

static void apply(struct kv_sequence *s, struct str batch) {
    s->next++;
    s->is_verified = true;
    s->last_hash = hash_64(batch.ptr, batch.len, 0);
    s->ops->apply(batch, s->arg);
}

/* Begins with batch `number`: what was known is dropped. */
static void begin_at(struct kv_sequence *s, uint64_t number) {
    enum kv_reset why = number == 0 ? KV_RESET_BEGIN : KV_RESET_LATE;

    if (s->was_restarted) why = number == 0 ? KV_RESET_RESTART : KV_RESET_RESTART_LATE;
    s->has_place = true;
    s->was_restarted = false;
    s->began_at = 0; /* the connection may bring any number */
    s->next = number;
    s->ops->reset(why, s->arg);
}

/* The batches up to `number` are not to be had. */
static void skip_to(struct kv_sequence *s, uint64_t number) {
    s->n_lost++;
    s->next = number;
    s->ops->reset(KV_RESET_LOST, s->arg);
}

/* A batch after which no earlier one will come. */
static void apply_at(struct kv_sequence *s, uint64_t number, struct str batch) {
    if (!s->has_place) begin_at(s, number);
    if (number < s->next) return;
    if (number > s->next) skip_to(s, number);
    apply(s, batch);
}

/* --- batches that wait for others ------------------------------------------------------------- */

static void drop_waiting(struct kv_sequence *s) {
    buf_release(&s->waiting);
    s->n_waiting = 0;
}

static bool keep(struct kv_sequence *s, uint64_t number, struct str batch) {
    struct waiting_head head = {number, batch.len};

    if (s->n_waiting == KV_SEQUENCE_WAITING_MAX ||
        sizeof(head) + batch.len > KV_SEQUENCE_WAITING_BYTES - buf_len(&s->waiting)) {
        return false;
    }
    if (!buf_reserve(&s->waiting, sizeof(head) + batch.len)) {
        drop_waiting(s);
        return false;
    }
    buf_append(&s->waiting, &head, sizeof(head));
    buf_append_str(&s->waiting, batch);
    s->n_waiting++;
    return true;
}

static void apply_waiting(struct kv_sequence *s) {
    while (s->n_waiting > 0) {
        struct waiting_head head;

        memcpy(&head, buf_ptr(&s->waiting), sizeof(head));
        buf_consume(&s->waiting, sizeof(head));
        apply_at(s, head.number, (struct str){buf_ptr(&s->waiting), head.n});
        buf_consume(&s->waiting, head.n);
        s->n_waiting--;
    }
    drop_waiting(s);
}

/* --- replays ---------------------------------------------------------------------------------- */

static void ask(struct kv_sequence *s, uint64_t now_us) {
    s->checks_last = s->has_place && s->next > 0 && !s->is_verified;
    s->is_replaying = true;
    s->wants_check = false;
    s->asked_us = s->answered_us = now_us;
    s->ops->ask(s->has_place ? s->next - s->checks_last : 0, s->arg);
}

static bool has_given_up(const struct kv_sequence *s, uint64_t now_us) {
    return !s->has_replay || now_us < s->not_before_us;
}

static bool is_early(const struct kv_sequence *s, uint64_t now_us) {
    return s->asked_us && now_us < s->asked_us + KV_SEQUENCE_ASK_US;
}

void kv_sequence_replay_failed(struct kv_sequence *s, uint64_t now_us) {
    if (!s->is_replaying) return;
    s->is_replaying = s->checks_last = false;
    s->not_before_us = now_us + KV_SEQUENCE_FAILED_US;
    apply_waiting(s);
}

static void note_restart(struct kv_sequence *s) {
    s->was_restarted = true;
    s->has_place = s->is_replaying = s->checks_last = false;
    drop_waiting(s);
}

/* The publisher has sent all that it keeps. */
static void finish_replay(struct kv_sequence *s, uint64_t now_us) {
    uint64_t n_lost = s->n_lost;

    if (s->checks_last) { /* it knows nothing of the last batch */
        s->was_restarted = true;
        s->has_place = false;
        ask(s, now_us);
        return;
    }
    s->is_replaying = false;
    if (!s->has_place && s->n_waiting == 0) begin_at(s, 0); /* it has published nothing yet */
    apply_waiting(s);
    if (s->n_lost > n_lost) s->not_before_us = now_us + KV_SEQUENCE_FAILED_US;
}

/* True when this message of a replay has been dealt with: it was there to be compared. */
static bool compare_last(struct kv_sequence *s, uint64_t number, struct str batch,
                         uint64_t now_us) {
    if (!s->checks_last || number + 1 < s->next) return s->checks_last;
    s->checks_last = false;
    if (number + 1 > s->next) return false; /* it was overwritten */
    s->is_verified = hash_64(batch.ptr, batch.len, 0) == s->last_hash;
    if (s->is_verified) return true;
    s->was_restarted = true;
    s->has_place = false;
    ask(s, now_us);
    return true;
}

void kv_sequence_replayed(struct kv_sequence *s, uint64_t number, struct str batch,
                          uint64_t now_us) {
    if (!s->is_replaying) return;
    s->answered_us = now_us;
    if (number == KV_SEQUENCE_END) {
        finish_replay(s, now_us);
    } else if (!compare_last(s, number, batch, now_us)) {
        s->n_replayed += !s->has_place || number >= s->next;
        apply_at(s, number, batch);
    }
}

/* --- the stream ------------------------------------------------------------------------------- */

/* What waits is asked for again after the next connection, or is a gap then. */
void kv_sequence_disconnected(struct kv_sequence *s) {
    drop_waiting(s);
    s->is_replaying = s->checks_last = false;
}

void kv_sequence_connected(struct kv_sequence *s, uint64_t now_us) {
    kv_sequence_disconnected(s);
    s->is_first = true;
    s->began_at = s->has_place ? s->next : 0;
    s->is_verified = false;
    s->wants_check = true; /* an engine that is idle would not show that it is another */
    kv_sequence_tick(s, now_us);
}

static bool is_of_new_process(const struct kv_sequence *s, uint64_t number) {
    return s->is_first ? s->has_place && number < s->began_at : number <= s->last_live;
}

/* One that cannot be applied yet waits, and its elders are asked for. */
static void wait_for_elders(struct kv_sequence *s, uint64_t number, struct str batch,
                            uint64_t now_us) {
    if (!has_given_up(s, now_us) && keep(s, number, batch)) {
        if (!s->is_replaying && !is_early(s, now_us)) ask(s, now_us);
        return;
    }
    if (s->is_replaying) kv_sequence_replay_failed(s, now_us);
    apply_waiting(s);
    apply_at(s, number, batch);
}

void kv_sequence_take(struct kv_sequence *s, uint64_t number, struct str batch, uint64_t now_us) {
    if (number == KV_SEQUENCE_END) return;
    if (is_of_new_process(s, number)) note_restart(s);
    s->is_first = false;
    s->last_live = number;
    if (s->has_place && !s->is_replaying && s->n_waiting == 0 && number <= s->next) {
        if (number == s->next) apply(s, batch);
        return;
    }
    if (s->has_place && !s->is_replaying && s->n_waiting == 0) s->n_gaps++;
    wait_for_elders(s, number, batch, now_us);
}

void kv_sequence_tick(struct kv_sequence *s, uint64_t now_us) {
    if (s->is_replaying) {
        if (now_us >= s->answered_us + KV_SEQUENCE_ANSWER_US) kv_sequence_replay_failed(s, now_us);
    } else if (s->n_waiting > 0 || s->wants_check) {
        if (!has_given_up(s, now_us) && !is_early(s, now_us)) ask(s, now_us);
    }
}

void kv_sequence_check(const struct kv_sequence *s) {
    assert(s->n_waiting <= KV_SEQUENCE_WAITING_MAX);
    assert(buf_len(&s->waiting) <= KV_SEQUENCE_WAITING_BYTES);
    assert((s->n_waiting == 0) == (buf_len(&s->waiting) == 0));
    assert(!s->is_replaying || s->has_replay);
    assert(!s->checks_last || (s->is_replaying && s->has_place && s->next > 0));
}
