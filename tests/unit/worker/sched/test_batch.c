/* tests/unit/worker/sched/test_batch.c - the arrays of a step, seen by a backend that only keeps
 * them. The sampler's part is tested here too: it completes the same arrays. */
#include <string.h>

#include "tests/support/sched_fixture.h"
#include "worker/engine/sampler.h"
#include "worker/sched/batch.h"

#define ROOM 512 /* of every array */

/* A backend of arrays. */
struct backend_model {
    int32_t token[ROOM], out_token[ROOM], out_top_token[ROOM * 2];
    uint32_t position[ROOM], out_rank[ROOM], out_flags[ROOM];
    int64_t kv_slot[ROOM];
    struct backend_row row[ROOM];
    struct backend_table_update update[ROOM];
    struct backend_output output[ROOM];
    struct backend_bias bias[ROOM];
    uint32_t mask[4 * CEIL_DIV(FIXTURE_VOCAB, 32)];
    float out_logprob[ROOM], out_top_logprob[ROOM * 2];
    uint32_t n_bound, n_freed, bound_prompt[ROOM], bound_output[ROOM];
};
static struct backend_model device;

static void keep_stage(struct backend_model *m, uint32_t slot, struct backend_stage *out) {
    (void)slot;
    *out = (struct backend_stage){.token = m->token,
                                  .position = m->position,
                                  .kv_slot = m->kv_slot,
                                  .row = m->row,
                                  .update = m->update,
                                  .output = m->output,
                                  .bias = m->bias,
                                  .mask = m->mask,
                                  .out_token = m->out_token,
                                  .out_logprob = m->out_logprob,
                                  .out_rank = m->out_rank,
                                  .out_top_token = m->out_top_token,
                                  .out_top_logprob = m->out_top_logprob,
                                  .out_flags = m->out_flags};
}

static enum status keep_row(struct backend_model *m, uint32_t row, const uint32_t *prompt,
                            uint32_t n_prompt, const uint32_t *output, uint32_t n_output) {
    (void)prompt;
    (void)output;
    m->n_bound++;
    m->bound_prompt[row] = n_prompt;
    m->bound_output[row] = n_output;
    return ST_OK;
}

static void free_row(struct backend_model *m, uint32_t row) {
    (void)row;
    m->n_freed++;
}

static const struct backend_ops keeper = {
    .name = "keeper", .stage = keep_stage, .row_bind = keep_row, .row_free = free_row};

struct setup {
    struct sched_fixture f;
    struct batch b;
};

static void setup_open(struct setup *s, uint32_t n_blocks) {
    struct fixture_options o = fixture_defaults();

    memset(&device, 0, sizeof(device));
    o.n_blocks = n_blocks;
    o.scheduler.max_num_batched_tokens = 100;
    fixture_open(&s->f, &o);
    batch_init(&s->b, &keeper, &device, o.scheduler.max_num_seqs, o.block_size);
}

static void setup_close(struct setup *s) {
    batch_fini(&s->b);
    assert_int_equal(device.n_bound, device.n_freed);
    fixture_close(&s->f);
}

static void lay_out(struct setup *s) {
    static const uint32_t eos[] = {FIXTURE_EOS};
    struct masks masks = {.ends = {eos, 1}, .vocab = FIXTURE_VOCAB};

    fixture_step(&s->f);
    assert_int_equal(batch_lay_out(&s->b, &s->f.step, 0), ST_OK);
    sampler_fill(&s->b.slot[0], &masks);
}

static void one_token_rows_come_first_and_slots_follow_the_table(void **state) {
    struct setup s;
    struct request *old, *new;

    (void)state;
    setup_open(&s, 100);
    old = fixture_add(&s.f, 20, 1, NULL);
    lay_out(&s);
    assert_int_equal(s.b.slot[0].counts.n_updates, 2);
    assert_int_equal(s.b.slot[0].counts.n_tokens, 20);
    fixture_take(&s.f, 9);
    new = fixture_add(&s.f, 40, 2, NULL);
    lay_out(&s);
    assert_int_equal(s.b.slot[0].counts.n_rows, 2);
    assert_int_equal(s.b.slot[0].counts.n_tokens, 41);
    assert_int_equal(s.b.slot[0].counts.n_outputs, 2);
    assert_int_equal(s.b.slot[0].counts.n_updates, 3); /* the new one's: the old one's are there */
    assert_int_equal(device.row[0].row, old->row);
    assert_int_equal(device.row[0].n_tokens, 1);
    assert_int_equal(device.row[0].context_len, 21);
    assert_int_equal(device.row[1].row, new->row);
    assert_int_equal(device.row[1].first_token, 1);
    assert_int_equal(device.row[1].context_len, 40);
    assert_int_equal(device.token[0], 9);
    assert_int_equal(device.position[0], 20);
    assert_int_equal(device.kv_slot[0], old->kv.table[0].ids[1] * 16 + 4);
    for (uint32_t i = 0; i < 40; i++) {
        assert_int_equal(device.token[1 + i], 2);
        assert_int_equal(device.position[1 + i], i);
        assert_int_equal(device.kv_slot[1 + i], new->kv.table[0].ids[i / 16] * 16 + i % 16);
    }
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(device.update[i].row, new->row);
        assert_int_equal(device.update[i].index, i);
        assert_int_equal(device.update[i].block, new->kv.table[0].ids[i]);
    }
    assert_int_equal(device.output[0].row, old->row);
    assert_int_equal(device.output[0].token_index, 0);
    assert_int_equal(device.output[0].position, 21);
    assert_int_equal(device.output[1].token_index, 40);
    assert_int_equal(device.output[1].position, 40);
    fixture_take(&s.f, 9);
    setup_close(&s);
    request_unref(old);
    request_unref(new);
}

static void a_chunk_without_its_end_has_no_output(void **state) {
    struct setup s;
    struct request *r;

    (void)state;
    setup_open(&s, 100);
    r = fixture_add(&s.f, 150, 1, NULL);
    lay_out(&s);
    assert_int_equal(s.b.slot[0].counts.n_tokens, 100);
    assert_int_equal(s.b.slot[0].counts.n_outputs, 0);
    fixture_take(&s.f, 9);
    lay_out(&s);
    assert_int_equal(s.b.slot[0].counts.n_tokens, 50);
    assert_int_equal(s.b.slot[0].counts.n_outputs, 1);
    assert_int_equal(device.position[0], 100);
    assert_int_equal(s.b.slot[0].counts.n_updates, 3);
    assert_int_equal(device.update[0].index, 7);
    fixture_take(&s.f, 9);
    setup_close(&s);
    request_unref(r);
}

static void a_resumed_request_is_bound_again_with_its_output(void **state) {
    struct setup s;
    struct request *r[2];

    (void)state;
    setup_open(&s, 6);
    r[0] = fixture_add(&s.f, 31, 1, NULL);
    r[1] = fixture_add(&s.f, 62, 2, NULL);
    for (int i = 0; i < 3; i++) { /* the first needs a third block at its second token */
        lay_out(&s);
        fixture_take(&s.f, 9);
    }
    assert_int_equal(r[1]->state, REQUEST_WAITING);
    assert_int_equal(device.n_bound, 2);
    scheduler_end(s.f.s, r[0], FINISH_ABORT, 1);
    lay_out(&s);
    assert_int_equal(r[1]->state, REQUEST_RUNNING);
    assert_int_equal(device.n_bound, 3);
    assert_int_equal(device.n_freed, 1);
    assert_int_equal(device.bound_prompt[r[1]->row], 62);
    assert_int_equal(device.bound_output[r[1]->row], 2);
    assert_int_equal(s.b.slot[0].counts.n_updates, r[1]->kv.table[0].n_blocks);
    fixture_take(&s.f, 9);
    setup_close(&s);
    request_unref(r[0]);
    request_unref(r[1]);
}

static void prompt_positions_are_scored(void **state) {
    struct request_params p = request_params_default;
    struct setup s;
    struct request *r;
    uint32_t token;

    (void)state;
    setup_open(&s, 100);
    p.prompt_logprobs = 2;
    p.n_logprobs = 1;
    r = fixture_add(&s.f, 5, 3, &p);
    lay_out(&s);
    assert_int_equal(s.b.slot[0].counts.n_outputs, 5);
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(device.output[i].want, WANT_SCORE);
        assert_int_equal(device.output[i].token_index, i);
        assert_int_equal(device.output[i].score_token, 3);
        assert_int_equal(device.output[i].n_logprobs, 2);
        device.out_logprob[i] = -(float)i;
        device.out_top_token[2 * i] = (int32_t)i;
        device.out_top_token[2 * i + 1] = 100;
    }
    assert_int_equal(device.output[4].want, WANT_SAMPLE);
    assert_int_equal(device.output[4].n_logprobs, 1);
    device.out_token[4] = 77;
    device.out_logprob[4] = -9;
    device.out_rank[4] = 3;
    device.out_top_token[8] = 55;
    assert_int_equal(sampler_take(&s.b.slot[0], &s.b.slot[0].row[0], 2, &token), ST_OK);
    assert_int_equal(token, 77);
    assert_true(r->prompt_logprob[1] == 0.0f && r->prompt_logprob[4] == -3.0f);
    assert_int_equal(r->prompt_top_token[4 * 2], 3);
    assert_int_equal(r->prompt_top_token[4 * 2 + 1], 100);
    assert_true(r->logprob[0] == -9.0f);
    assert_int_equal(r->rank[0], 3);
    assert_int_equal(r->top_token[0], 55);
    device.out_flags[2] = OUT_NOT_FINITE;
    assert_int_equal(sampler_take(&s.b.slot[0], &s.b.slot[0].row[0], 2, &token), ST_INTERNAL);
    fixture_take(&s.f, 77);
    setup_close(&s);
    request_unref(r);
}

static void parameters_reach_the_device(void **state) {
    struct request_params p = {.max_tokens = 4,
                               .temperature = 0.5f,
                               .top_p = 0.9f,
                               .min_p = 0.1f,
                               .top_k = 7,
                               .repetition_penalty = 1.1f,
                               .frequency_penalty = 0.2f,
                               .presence_penalty = 0.3f,
                               .seed = 12345,
                               .n_logprobs = -1,
                               .prompt_logprobs = -1,
                               .min_tokens = 1};
    const struct token_bias bias[] = {{60, 2.0f}};
    const uint32_t stop[] = {61};
    struct setup s;
    struct request *r;

    (void)state;
    setup_open(&s, 100);
    p.bias = bias;
    p.n_bias = 1;
    p.stop_ids = stop;
    p.n_stop_ids = 1;
    r = fixture_add(&s.f, 5, 3, &p);
    lay_out(&s);
    assert_true(device.output[0].temperature == 0.5f && device.output[0].top_p == 0.9f);
    assert_true(device.output[0].min_p == 0.1f && device.output[0].top_k == 7);
    assert_true(device.output[0].repetition_penalty == 1.1f);
    assert_true(device.output[0].frequency_penalty == 0.2f);
    assert_true(device.output[0].presence_penalty == 0.3f);
    assert_int_equal(device.output[0].seed, 12345);
    assert_int_equal(device.output[0].mask, BACKEND_NO_MASK);
    assert_int_equal(s.b.slot[0].counts.n_bias,
                     3); /* its own, and until min_tokens EOS and the stop id */
    assert_int_equal(device.bias[0].token, 60);
    assert_int_equal(device.bias[1].token, FIXTURE_EOS);
    assert_int_equal(device.bias[2].token, 61);
    assert_true(device.bias[1].bias < -1e20f);
    fixture_take(&s.f, 9);
    lay_out(&s);
    assert_int_equal(s.b.slot[0].counts.n_bias, 1);
    fixture_take(&s.f, 9);
    setup_close(&s);
    request_unref(r);
}

/* Each mask is copied to the device: rows with equal sets of tokens share one. */
static void equal_masks_are_one(void **state) {
    static uint32_t some[CEIL_DIV(FIXTURE_VOCAB, 32)], others[CEIL_DIV(FIXTURE_VOCAB, 32)];
    struct request_params p = request_params_default;
    struct setup s;
    struct request *r[4];

    (void)state;
    setup_open(&s, 100);
    some[3] = 5;
    others[3] = 6;
    for (uint32_t i = 0; i < 4; i++) {
        p.allowed = i == 2 ? others : i == 3 ? NULL : some;
        r[i] = fixture_add(&s.f, 5, 3 + i, &p);
    }
    lay_out(&s);
    assert_int_equal(s.b.slot[0].counts.n_masks, 2);
    assert_int_equal(device.output[0].mask, 0);
    assert_int_equal(device.output[1].mask, 0);
    assert_int_equal(device.output[2].mask, 1);
    assert_int_equal(device.output[3].mask, BACKEND_NO_MASK);
    assert_int_equal(device.mask[3], 5);
    assert_int_equal(device.mask[CEIL_DIV(FIXTURE_VOCAB, 32) + 3], 6);
    fixture_take(&s.f, 9);
    setup_close(&s);
    for (uint32_t i = 0; i < 4; i++)
        request_unref(r[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_token_rows_come_first_and_slots_follow_the_table),
        cmocka_unit_test(a_chunk_without_its_end_has_no_output),
        cmocka_unit_test(a_resumed_request_is_bound_again_with_its_output),
        cmocka_unit_test(prompt_positions_are_scored),
        cmocka_unit_test(parameters_reach_the_device),
        cmocka_unit_test(equal_masks_are_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
