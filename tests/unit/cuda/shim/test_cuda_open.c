/* tests/unit/cuda/shim/test_cuda_open.c - devices, what is refused, and what refused memory leaves
 * behind. */
#include "tests/support/quant_matrix.h"
#include "tests/unit/cuda/shim/cuda_fixture.h"

static const struct cuda_fixture_setup setup = {
    .max_rows = 4, .max_step_tokens = 32, .n_host_blocks = 3};

static void devices_are_found_by_number_and_by_uuid(void **state) {
    struct backend_info info, other;
    struct backend_config config = {0};
    struct error err = {0};
    char beginning[48] = "";

    (void)state;
    shim_set_devices(3);
    assert_int_equal(backend_cuda.probe(&config, &info, &err), ST_OK);
    assert_int_equal(info.n_devices, 3);
    assert_memory_equal(info.uuid, "GPU-", 4);
    assert_true(info.flags & BACKEND_OWN_MEMORY);
    assert_true(info.memory_total >= info.memory_free && info.memory_free > 0);
    config.ordinal = 2;
    assert_int_equal(backend_cuda.probe(&config, &info, &err), ST_OK);
    config = (struct backend_config){.device_id = info.uuid};
    assert_int_equal(backend_cuda.probe(&config, &other, &err), ST_OK);
    assert_string_equal(other.uuid, info.uuid);
    memcpy(beginning, info.uuid + 4, sizeof(info.uuid) - 5); /* without its GPU- */
    config.device_id = beginning;
    assert_int_equal(backend_cuda.probe(&config, &other, &err), ST_OK);
    assert_string_equal(other.uuid, info.uuid);
    shim_set_devices(1);
}

static void a_device_that_is_not_there_is_a_sentence(void **state) {
    struct backend_info info;
    struct error err = {0};

    (void)state;
    assert_int_equal(backend_cuda.probe(&(struct backend_config){.ordinal = 4}, &info, &err),
                     ST_NOT_FOUND);
    assert_string_equal(err.message, "no GPU 4: there are 1, counted from 0");
    assert_int_equal(
        backend_cuda.probe(&(struct backend_config){.device_id = "GPU-fefefe"}, &info, &err),
        ST_NOT_FOUND);
    assert_non_null(strstr(err.message, "GPU-fefefe"));
    shim_set_devices(2);
    assert_int_equal(backend_cuda.probe(&(struct backend_config){.device_id = "GPU-"}, &info, &err),
                     ST_INVALID);
    assert_non_null(strstr(err.message, "2 GPUs"));
    shim_set_sm(75);
    assert_int_equal(backend_cuda.probe(&(struct backend_config){0}, &info, &err), ST_UNSUPPORTED);
    assert_non_null(strstr(err.message, "has compute capability 7.5: the cuda backend needs 8.0"));
    shim_set_sm(90);
    shim_set_devices(0);
    assert_int_equal(backend_cuda.probe(&(struct backend_config){0}, &info, &err), ST_UNSUPPORTED);
    assert_true(err.message[0] != '\0');
    shim_set_devices(1);
}

/* Geometry and limits that the backend lacks, one at a time. */
/* Of a card of any size this much: what does not fit must not depend on the card. */
static const struct backend_config small = {.memory_bytes = 256 << 20};

static void check_refused(const struct geometry *g, const struct backend_limits *l,
                          enum status want, const char *word) {
    struct backend_device *dev;
    struct backend_model *m = NULL;
    struct error err = {0};
    enum status st;

    assert_int_equal(backend_cuda.open(&dev, &small, &err), ST_OK);
    st = backend_cuda.load_begin(dev, &m, g, l, &err);
    if (want != ST_NOMEM) { /* memory apart, a check reports it beforehand */
        struct error checked = {0};

        assert_int_equal(backend_cuda.check(&small, g, l, &checked), st);
        assert_string_equal(checked.message, err.message);
    }
    if (st != want || !strstr(err.message, word))
        fail_msg("%s: %s, wanted %s with %s", status_name(st), err.message, status_name(want),
                 word);
    assert_null(m);
    backend_cuda.close(dev);
}

static void unsupported_features_are_refused_by_name(void **state) {
    float inv_freq[128];
    uint8_t kind[64];
    const struct geometry good = tiny_geometry(&cuda_fixture_llama, inv_freq, kind);
    const struct backend_limits limits = cuda_fixture_limits(&setup, &cuda_fixture_llama);
    struct geometry g;
    struct backend_limits l;

    (void)state;
    g = good, g.d_model = 60;
    check_refused(&g, &limits, ST_UNSUPPORTED, "d_model 60");
    g = good, g.d_ff = 100;
    check_refused(&g, &limits, ST_UNSUPPORTED, "d_ff 100");
    g = good, g.head_dim = 80;
    check_refused(&g, &limits, ST_UNSUPPORTED, "head_dim 80");
    g = good, g.kv_dtype = DTYPE_F32;
    check_refused(&g, &limits, ST_UNSUPPORTED, "KV type float32");
    g = good, g.weight_dtype = DTYPE_I8;
    check_refused(&g, &limits, ST_UNSUPPORTED, "weight type i8");
    g = good, g.n_heads = 17;
    check_refused(&g, &limits, ST_UNSUPPORTED, "17");
    l = limits, l.block_size = 32;
    check_refused(&good, &l, ST_UNSUPPORTED, "block size 32");
    l = limits, l.max_rows = 0;
    check_refused(&good, &l, ST_INVALID, "max_rows");
}

static void steps_that_do_not_fit_are_refused(void) {
    float inv_freq[128];
    uint8_t kind[64];
    const struct geometry g = tiny_geometry(&cuda_fixture_llama, inv_freq, kind);
    struct backend_limits l = cuda_fixture_limits(&setup, &cuda_fixture_llama);

    l.max_step_tokens = 1u << 20;
    check_refused(&g, &l, ST_NOMEM, "activations of steps of up to 1048576 tokens");
}
static void the_memory_limit_refuses_large_steps(void **state) {
    (void)state;
    steps_that_do_not_fit_are_refused();
}
static void the_memory_limit_holds_on_a_large_device(void **state) {
    (void)state;
    shim_set_memory(UINT64_C(8) << 30);
    steps_that_do_not_fit_are_refused();
    shim_set_memory(256 << 20);
}

static void open_shape(struct cuda_fixture_side *side, const struct tiny_shape *shape,
                       uint64_t memory_bytes) {
    float inv_freq[128];
    uint8_t kind[64];
    struct geometry g = tiny_geometry(shape, inv_freq, kind);
    struct backend_limits limits = cuda_fixture_limits(&setup, shape);
    struct backend_config config = {.memory_bytes = memory_bytes};
    struct error err = {0};

    side->ops = &backend_cuda;
    cuda_fixture_must(backend_cuda.open(&side->dev, &config, &err), &err, "open");
    cuda_fixture_must(backend_cuda.load_begin(side->dev, &side->model, &g, &limits, &err), &err,
                      "load_begin");
    cuda_fixture_must(tiny_load(&backend_cuda, side->model, shape, 1, ROLE_COUNT, &err), &err,
                      "load_tensor");
    cuda_fixture_must(backend_cuda.load_end(side->model, &err), &err, "load_end");
}

static void open_with(struct cuda_fixture_side *side, uint64_t memory_bytes) {
    open_shape(side, &cuda_fixture_llama, memory_bytes);
}

/* A model that fits without the memory of cuBLASLt's e4m3 products starts: own kernels serve. */
static void memory_for_the_library_is_optional(void **state) {
    struct tiny_shape shape = cuda_fixture_llama;
    struct cuda_fixture_side side;
    struct backend_info info;
    uint64_t n_bytes;

    (void)state;
    shape.quant = &quant_kinds[1];
    shape.d_ff = 1024;
    shim_set_product_us(1);
    shim_set_kernel_us("quant_tile_kernel", 1000);
    open_shape(&side, &shape, 0);
    backend_cuda.info(side.dev, &info);
    assert_string_equal(info.path, "sm_90+f8");
    n_bytes = side.dev->bytes;
    cuda_fixture_close_side(&side);
    open_shape(&side, &shape, n_bytes - 1);
    backend_cuda.info(side.dev, &info);
    assert_string_equal(info.path, "sm_90");
    assert_non_null(strstr(info.note, "panels of e4m3 weights, rounded inputs: "));
    cuda_fixture_close_side(&side);
    shim_set_kernel_us(NULL, 0);
    shim_set_product_us(0);
}

/* The free memory of info after load_end can be allocated, and a block more cannot. */
static void the_pool_may_take_all_free_memory(void **state) {
    struct cuda_fixture_side side;
    struct backend_info info;
    struct backend_kv_info kv;
    struct error err = {0};
    uint64_t block_bytes;
    uint32_t n;

    (void)state;
    open_with(&side, 16 << 20);
    backend_cuda.info(side.dev, &info);
    assert_true(info.prefill_tokens_per_s > 0 && info.attn_context > 0);
    block_bytes = backend_cuda.kv_block_bytes(side.model);
    assert_int_equal(block_bytes, 2 * 2 * 16 * 64 * 2);
    n = (uint32_t)(info.memory_free / block_bytes);
    assert_int_equal(backend_cuda.kv_alloc(side.model, n + 1, 0, &kv, &err), ST_NOMEM);
    assert_non_null(strstr(err.message, "blocks would fit"));
    assert_int_equal(backend_cuda.kv_alloc(side.model, 0, 0, &kv, &err), ST_INVALID);
    n -= (uint32_t)CEIL_DIV(16384u, block_bytes); /* lists of pairs */
    cuda_fixture_must(backend_cuda.kv_alloc(side.model, n, 2, &kv, &err), &err, "kv_alloc");
    assert_int_equal(kv.n_blocks, n);
    assert_int_equal(backend_cuda.kv_alloc(side.model, 1, 0, &kv, &err), ST_EXISTS);
    cuda_fixture_close_side(&side);
}

static void missing_weights_are_named(void **state) {
    struct cuda_fixture_side side = {.ops = &backend_cuda};
    float inv_freq[128];
    uint8_t kind[64];
    struct geometry g = tiny_geometry(&cuda_fixture_llama, inv_freq, kind);
    struct backend_limits limits = cuda_fixture_limits(&setup, &cuda_fixture_llama);
    struct error err = {0};

    (void)state;
    assert_int_equal(backend_cuda.open(&side.dev, &(struct backend_config){0}, &err), ST_OK);
    assert_int_equal(backend_cuda.load_begin(side.dev, &side.model, &g, &limits, &err), ST_OK);
    assert_int_equal(tiny_load(&backend_cuda, side.model, &cuda_fixture_llama, 1, ROLE_K, &err),
                     ST_OK);
    assert_int_equal(backend_cuda.load_end(side.model, &err), ST_INVALID);
    assert_string_equal(err.message, "weight k, layer 0 is missing from the model");
    cuda_fixture_close_side(&side);
}

/* Everything from open to the pool; the status of the first refusal. */
static enum status whole_start(struct error *err) {
    struct backend_device *dev = NULL;
    struct backend_model *m = NULL;
    float inv_freq[128];
    uint8_t kind[64];
    struct geometry g = tiny_geometry(&cuda_fixture_llama, inv_freq, kind);
    struct backend_limits limits = cuda_fixture_limits(&setup, &cuda_fixture_llama);
    struct backend_kv_info kv;
    enum status st = backend_cuda.open(&dev, &(struct backend_config){0}, err);

    if (st == ST_OK) st = backend_cuda.load_begin(dev, &m, &g, &limits, err);
    if (st == ST_OK) st = tiny_load(&backend_cuda, m, &cuda_fixture_llama, 1, ROLE_COUNT, err);
    if (st == ST_OK) st = backend_cuda.load_end(m, err);
    if (st == ST_OK) st = backend_cuda.kv_alloc(m, 9, 3, &kv, err);
    backend_cuda.unload(m);
    if (dev) backend_cuda.close(dev);
    return st;
}

static void every_refusal_on_the_way_is_survived(void **state) {
    uint64_t n = 0;

    (void)state;
    for (;;) {
        struct error err = {0};
        enum status st;

        shim_fail_call(++n);
        st = whole_start(&err);
        shim_fail_call(0);
        if (st == ST_OK) break;
        if (st != ST_NOMEM || !err.message[0])
            fail_msg("refusal %u: %s: %s", (unsigned)n, status_name(st), err.message);
    }
    assert_true(n > 100); /* events, streams, buffers, graphs */
}

/* Nothing of a pool that was refused half-way is left: a smaller one may be asked for. */
static void a_pool_that_failed_may_be_asked_for_again(void **state) {
    struct cuda_fixture_side side;
    struct backend_kv_info kv;
    struct backend_info info;
    struct error err = {0};
    uint64_t n_free, n = 0;
    enum status st;

    (void)state;
    open_with(&side, 16 << 20);
    backend_cuda.info(side.dev, &info);
    n_free = info.memory_free;
    for (;;) {
        shim_fail_call(++n);
        st = backend_cuda.kv_alloc(side.model, 20, 3, &kv, &err);
        shim_fail_call(0);
        if (st == ST_OK) break;
        assert_int_equal(st, ST_NOMEM);
        for (uint32_t i = 0; i < side.model->n_buckets; i++)
            assert_null(side.model->graph[i]);
        backend_cuda.info(side.dev, &info);
        assert_int_equal(info.memory_free, n_free);
    }
    assert_true(n > 64); /* events of both lanes, graphs */
    cuda_fixture_close_side(&side);
}

/* A graph of few rows has kernels that no larger step runs: a device must not load them while it
 * records. */
static void a_graph_holds_kernels_that_have_run_before(void **state) {
    struct cuda_fixture_setup twelve = {.max_rows = 12, .max_step_tokens = 32};
    struct cuda_fixture *s;
    struct shim_stats products, parts;

    (void)state;
    shim_stats_clear();
    s = cuda_fixture_open_alone(&cuda_fixture_llama, &twelve, 3);
    shim_stats("gemv_tiles_kernel", &products); /* the head's, and four of each layer */
    shim_stats("decode_kernel", &parts);
    assert_true(products.n_launches > 4 * cuda_fixture_llama.n_layers);
    assert_true(parts.n_launches > cuda_fixture_llama.n_layers);
    cuda_fixture_close(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(devices_are_found_by_number_and_by_uuid),
        cmocka_unit_test(a_device_that_is_not_there_is_a_sentence),
        cmocka_unit_test(unsupported_features_are_refused_by_name),
        cmocka_unit_test(the_memory_limit_refuses_large_steps),
        cmocka_unit_test(the_memory_limit_holds_on_a_large_device),
        cmocka_unit_test(memory_for_the_library_is_optional),
        cmocka_unit_test(the_pool_may_take_all_free_memory),
        cmocka_unit_test(missing_weights_are_named),
        cmocka_unit_test(every_refusal_on_the_way_is_survived),
        cmocka_unit_test(a_pool_that_failed_may_be_asked_for_again),
        cmocka_unit_test(a_graph_holds_kernels_that_have_run_before),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
