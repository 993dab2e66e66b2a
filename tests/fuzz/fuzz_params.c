/* tests/fuzz/fuzz_params.c - whatever fields a body has: they are refused with a sentence, or what
 * was read is within the limits that the engine relies on. Linked to libFuzzer by `make fuzz`, and
 * included by the unit test, which feeds it mutations of the same seeds. */
#include <stdlib.h>

#include "common/base/rng.h"
#include "common/text/json.h"
#include "worker/api/fields/params.h"
#include "worker/api/fields/reasoning_fields.h"
#include "worker/api/fields/tool_fields.h"
#include "worker/model/config.h"
#include "worker/text/tokenizer/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(x)                                                                                 \
    do {                                                                                           \
        if (!(x)) abort();                                                                         \
    } while (0)

static const struct request_limits fuzz_limits = {
    .vocab = 512, .max_model_len = 4096, .max_logprobs = 20};

static const struct tokenizer *fuzz_tokenizer(void) {
    static struct tokenizer *bytes; /* one for all inputs: it never changes */

    if (!bytes) bytes = tokenizer_create_bytes();
    return bytes;
}

static void require_bad_words(const struct request_params *r) {
    uint32_t at = 0;

    REQUIRE(r->n_bad_words <= REQUEST_BAD_WORDS_MAX);
    while (at < r->n_bad_words) {
        uint32_t n = r->bad_words[at++];

        REQUIRE(n > 0 && n <= r->n_bad_words - at);
        for (; n > 0; n--)
            REQUIRE(r->bad_words[at++] < fuzz_limits.vocab);
    }
}

static void require_in_range(const struct call_params *p) {
    const struct request_params *r = &p->request;

    REQUIRE(p->n >= 1 && p->n <= PARAMS_MAX_N);
    REQUIRE(r->temperature >= 0 && r->top_p <= 1 && r->min_p >= 0 && r->min_p <= 1);
    REQUIRE(r->max_tokens >= 1 && (!p->is_echo_only || r->max_tokens == 1));
    REQUIRE(r->n_stop_ids <= REQUEST_STOP_IDS_MAX && r->n_bias <= REQUEST_BIAS_MAX);
    for (uint32_t i = 0; i < r->n_stop_ids; i++)
        REQUIRE(r->stop_ids[i] < fuzz_limits.vocab);
    for (uint32_t i = 0; i < r->n_bias; i++)
        REQUIRE(r->bias[i].token < fuzz_limits.vocab);
    REQUIRE(!r->cache_salt || (r->cache_salt_len > 0 && r->cache_salt_len <= REQUEST_SALT_MAX));
    require_bad_words(r);
    REQUIRE(p->prompt_logprobs >= -1 && p->prompt_logprobs <= 20);
    REQUIRE(p->stream || (!p->include_usage && !p->continuous_usage));
}

static void check(struct call_params *p, enum status st, const struct error *err) {
    if (st == ST_OK) {
        require_in_range(p);
        call_params_fini(p);
    } else {
        REQUIRE(st == ST_INVALID && err->message[0] && err->param[0]);
    }
}

static void check_tools(const struct json *root) {
    struct reasoning_fields reasoning = {0};
    struct tool_fields f = {0};
    struct error err = {0};
    enum status st = tool_fields_parse(&f, root, &err);

    if (st == ST_OK) {
        REQUIRE((f.choice == TOOLS_NONE) || json_first(f.callable));
        REQUIRE(f.choice != TOOLS_NAMED || (f.is_single && json_count(f.callable) == 1));
        REQUIRE(json_count(f.tools) <= TOOLS_MAX);
    } else {
        REQUIRE(st == ST_INVALID && err.message[0] && err.param[0]);
    }
    tool_fields_fini(&f);
    err = (struct error){0};
    st = reasoning_fields_parse(&reasoning, root, &err);
    REQUIRE(st == ST_OK || (st == ST_INVALID && err.param[0]));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const struct generation_config defaults = {.has_top_p = true, .top_p = 0.9};
    struct params_context ctx = {.defaults = &defaults, .limits = &fuzz_limits};
    struct call_params p;
    struct json *root;
    struct rng rng;
    struct error err = {0};
    enum status st;

    if (json_parse(&root, (struct str){(const char *)data, size}, NULL, &err) != ST_OK) return 0;
    rng_seed(&rng, size);
    ctx.seeds = &rng;
    ctx.tokenizer = fuzz_tokenizer();
    st = call_params_parse(&p, root, &ctx, &err);
    check(&p, st, &err);
    err = (struct error){0};
    st = call_params_parse_sglang(&p, root, json_get(root, "sampling_params"), &ctx, &err);
    check(&p, st, &err);
    check_tools(root);
    json_destroy(root);
    return 0;
}
