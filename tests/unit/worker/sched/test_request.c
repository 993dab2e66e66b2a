/* tests/unit/worker/sched/test_request.c - what a request refuses, what it copies, and how its
 * progress are taken. */
#include <math.h>
#include <string.h>

#include "common/base/mem.h"
#include "tests/support/cm.h"
#include "worker/sched/request.h"

struct fixture {
    struct kv_manager *kv;
    struct request_limits limits;
};

static const uint32_t prompt[] = {1, 2, 3, 4};

static int open_fixture(void **state) {
    struct fixture *f = mem_zalloc(sizeof(*f));

    f->kv = kv_manager_create(
        &(struct kv_manager_config){.n_blocks = 20, .block_size = 4, .max_model_len = 40});
    f->limits =
        (struct request_limits){.vocab = 100, .max_model_len = 40, .max_logprobs = 5, .kv = f->kv};
    *state = f;
    return 0;
}

static int close_fixture(void **state) {
    struct fixture *f = *state;

    kv_manager_destroy(f->kv);
    mem_free(f);
    return 0;
}

static struct request_params good(void) {
    struct request_params p = request_params_default;

    p.prompt = prompt;
    p.n_prompt = 4;
    return p;
}

static void assert_refused(const struct fixture *f, const struct request_params *p,
                           const char *param) {
    struct error err = {0};
    struct request *r = NULL;

    assert_int_equal(request_create(&r, p, &f->limits, &err), ST_INVALID);
    assert_string_equal(err.param, param);
    assert_non_null(strstr(err.message, param));
    assert_null(r);
}

static void each_parameter_out_of_range_is_named(void **state) {
    const struct fixture *f = *state;
    const uint32_t big[] = {1, 100};
    const struct token_bias bias[] = {{100, 0}}, strong[] = {{1, 101}};
    struct request_params p;

#define REFUSES(name, ...)                                                                         \
    do {                                                                                           \
        p = good();                                                                                \
        __VA_ARGS__;                                                                               \
        assert_refused(f, &p, name);                                                               \
    } while (0)
    REFUSES("prompt", p.n_prompt = 0);
    REFUSES("prompt", p.prompt = big, p.n_prompt = 2);
    REFUSES("max_tokens", p.max_tokens = 37);
    REFUSES("max_tokens", p.max_tokens = UINT32_MAX);
    REFUSES("min_tokens", p.min_tokens = 17);
    REFUSES("min_tokens", p.max_tokens = 0, p.min_tokens = 37);
    REFUSES("temperature", p.temperature = -0.1f);
    REFUSES("temperature", p.temperature = NAN);
    REFUSES("temperature", p.temperature = INFINITY);
    REFUSES("top_p", p.top_p = 0);
    REFUSES("top_p", p.top_p = 1.01f);
    REFUSES("min_p", p.min_p = NAN);
    REFUSES("repetition_penalty", p.repetition_penalty = 0);
    REFUSES("frequency_penalty", p.frequency_penalty = 2.1f);
    REFUSES("presence_penalty", p.presence_penalty = -2.1f);
    REFUSES("logprobs", p.n_logprobs = 6);
    REFUSES("logprobs", p.n_logprobs = -2);
    REFUSES("prompt_logprobs", p.prompt_logprobs = 6);
    REFUSES("stop_token_ids", p.stop_ids = big, p.n_stop_ids = 2);
    REFUSES("stop_token_ids", p.n_stop_ids = REQUEST_STOP_IDS_MAX + 1);
    REFUSES("logit_bias", p.bias = bias, p.n_bias = 1);
    REFUSES("logit_bias", p.bias = strong, p.n_bias = 1);
    REFUSES("logit_bias", p.n_bias = REQUEST_BIAS_MAX + 1);
    REFUSES("cache_salt", p.cache_salt_len = REQUEST_SALT_MAX + 1);
#undef REFUSES
}

static void the_prompt_must_leave_room(void **state) {
    const struct fixture *f = *state;
    uint32_t long_prompt[40] = {0};
    struct request_params p = good();
    struct request *r;

    p.prompt = long_prompt;
    p.n_prompt = 40;
    p.max_tokens = 0;
    assert_refused(f, &p, "prompt");
    p.n_prompt = 39;
    assert_int_equal(request_create(&r, &p, &f->limits, NULL), ST_OK);
    assert_int_equal(r->params.max_tokens, 1);
    request_unref(r);
}

static void everything_is_copied(void **state) {
    const struct fixture *f = *state;
    uint32_t tokens[] = {5, 6, 7}, stop[] = {9};
    struct token_bias bias[] = {{8, 1.5f}};
    char salt[] = "pepper", lora[] = "adapter";
    struct request_params p = good();
    struct request *r;

    p.prompt = tokens;
    p.n_prompt = 3;
    p.stop_ids = stop;
    p.n_stop_ids = 1;
    p.bias = bias;
    p.n_bias = 1;
    p.cache_salt = salt;
    p.cache_salt_len = 6;
    p.lora_name = lora;
    assert_int_equal(request_create(&r, &p, &f->limits, NULL), ST_OK);
    memset(tokens, 0, sizeof(tokens));
    memset(stop, 0, sizeof(stop));
    memset(bias, 0, sizeof(bias));
    memset(salt, 0, sizeof(salt));
    memset(lora, 0, sizeof(lora));
    assert_int_equal(r->tokens[2], 7);
    assert_int_equal(r->params.stop_ids[0], 9);
    assert_int_equal(r->params.bias[0].token, 8);
    assert_true(str_eq(r->extras.cache_salt, STR("pepper")));
    assert_true(str_eq(r->extras.lora, STR("adapter")));
    assert_int_equal(r->n_max, 19);
    request_unref(r);
}

static void events_come_once(void **state) {
    const struct fixture *f = *state;
    struct request_params p = good();
    struct request_progress progress;
    struct request *r;

    assert_int_equal(request_create(&r, &p, &f->limits, NULL), ST_OK);
    assert_false(request_take_progress(r, &progress));
    request_append(r, 11);
    request_append(r, 12);
    assert_false(request_take_progress(r, &progress)); /* not published */
    request_publish(r);
    assert_true(request_take_progress(r, &progress));
    assert_true(progress.first == 0 && progress.n == 2 && progress.is_first &&
                !progress.is_finished);
    assert_false(request_take_progress(r, &progress));
    request_append(r, 13);
    request_publish(r);
    assert_true(request_take_progress(r, &progress));
    assert_true(progress.first == 2 && progress.n == 1 && !progress.is_first &&
                !progress.is_finished);
    assert_int_equal(request_output(r)[progress.first], 13);
    r->finish = FINISH_ABORT;
    request_publish(r);
    assert_true(request_take_progress(r, &progress));
    assert_true(progress.n == 0 && progress.is_finished);
    assert_false(request_take_progress(r, &progress));
    request_unref(r);
}

static void refused_memory_leaves_nothing(void **state) {
    const struct fixture *f = *state;
    struct request_params p = good();
    enum status st = ST_NOMEM;
    struct request *r;

    p.n_logprobs = 5;
    p.prompt_logprobs = 5;
    p.cache_salt = "salt";
    p.cache_salt_len = 4;
    for (uint64_t n = 1; st != ST_OK; n++) { /* fail the 1st, 2nd, 3rd allocation, ... */
        assert_true(n < 20);
        mem_fail_at(n);
        st = request_create(&r, &p, &f->limits, NULL);
        mem_fail_at(0);
        assert_true(st == ST_OK || st == ST_NOMEM);
    }
    request_unref(r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_parameter_out_of_range_is_named),
        cmocka_unit_test(the_prompt_must_leave_room),
        cmocka_unit_test(everything_is_copied),
        cmocka_unit_test(events_come_once),
        cmocka_unit_test(refused_memory_leaves_nothing),
    };

    return cmocka_run_group_tests(tests, open_fixture, close_fixture);
}
