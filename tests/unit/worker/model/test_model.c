/* tests/unit/worker/model/test_model.c - whole folders, written by the test into a temporary
 * one. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/mem.h"
#include "kernels/dtype.h"
#include "tests/support/cm.h"
#include "worker/model/checkpoint/weights.h"
#include "worker/model/model.h"

/* --- a folder ----------------------------------------------------------------------------------*/
struct folder {
    char path[64];
};

static void write_file(const struct folder *f, const char *name, struct str bytes) {
    char path[512];
    FILE *out;

    snprintf(path, sizeof(path), "%s/%s", f->path, name);
    out = fopen(path, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(bytes.ptr, 1, bytes.len, out), bytes.len);
    fclose(out);
}

static void erase_file(const struct folder *f, const char *name) {
    char path[512];

    snprintf(path, sizeof(path), "%s/%s", f->path, name);
    unlink(path);
}

static void folder_make(struct folder *f) {
    snprintf(f->path, sizeof(f->path), "/tmp/incipit-model-XXXXXX");
    assert_non_null(mkdtemp(f->path));
}

static void folder_erase(struct folder *f) {
    DIR *dir = opendir(f->path);
    struct dirent *e;

    while ((e = readdir(dir)) != NULL) {
        if (e->d_name[0] != '.') erase_file(f, e->d_name);
    }
    closedir(dir);
    rmdir(f->path);
}

/* --- a checkpoint ------------------------------------------------------------------------------*/
/* Two layers, d_model 8, 2 heads of 4, 1 KV head, d_ff 16, vocab 32. Every element of a tensor is
 * its place in the table below, so that a fake backend can identify it. */
struct shape {
    const char *name;
    uint32_t rows, cols;
};

static const struct shape per_layer[] = {
    {"input_layernorm.weight", 8, 0},
    {"self_attn.q_proj.weight", 8, 8},
    {"self_attn.q_proj.bias", 8, 0},
    {"self_attn.k_proj.weight", 4, 8},
    {"self_attn.k_proj.bias", 4, 0},
    {"self_attn.v_proj.weight", 4, 8},
    {"self_attn.v_proj.bias", 4, 0},
    {"self_attn.o_proj.weight", 8, 8},
    {"post_attention_layernorm.weight", 8, 0},
    {"mlp.gate_proj.weight", 16, 8},
    {"mlp.up_proj.weight", 16, 8},
    {"mlp.down_proj.weight", 8, 16},
};

struct checkpoint {
    struct buf header, data;
    bool has_bias;
    enum dtype vectors, matrices; /* as they are written */
    const char *without;          /* leave out the tensor of this name */
};

static void add_tensor(struct checkpoint *c, const char *name, uint32_t rows, uint32_t cols,
                       float value) {
    size_t begin = buf_len(&c->data), n = (size_t)rows * (cols ? cols : 1);
    enum dtype dtype = cols ? c->matrices : c->vectors;
    uint32_t bits;

    if (c->without && strcmp(c->without, name) == 0) return;
    dtype_put(dtype, &bits, 0, value);
    for (size_t i = 0; i < n; i++)
        buf_append(&c->data, &bits, dtype_bytes(dtype));
    buf_appendf(&c->header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%u",
                buf_len(&c->header) > 1 ? "," : "", name,
                dtype == DTYPE_F32   ? "F32"
                : dtype == DTYPE_F16 ? "F16"
                                     : "BF16",
                rows);
    if (cols) buf_appendf(&c->header, ",%u", cols);
    buf_appendf(&c->header, "],\"data_offsets\":[%zu,%zu]}", begin, buf_len(&c->data));
}

static void add_layer(struct checkpoint *c, uint32_t layer) {
    for (uint32_t i = 0; i < ARRAY_LEN(per_layer); i++) {
        char name[128];

        snprintf(name, sizeof(name), "model.layers.%u.%s", layer, per_layer[i].name);
        if (!c->has_bias && strstr(name, ".bias")) continue;
        add_tensor(c, name, per_layer[i].rows, per_layer[i].cols, (float)(layer * 64 + i + 2));
    }
}

static void checkpoint_begin(struct checkpoint *c, bool has_bias) {
    *c = (struct checkpoint){.has_bias = has_bias, .vectors = DTYPE_BF16, .matrices = DTYPE_BF16};
    buf_init(&c->header, 0);
    buf_init(&c->data, 0);
    buf_append_char(&c->header, '{');
}

static void checkpoint_end(struct checkpoint *c, const struct folder *f, const char *name) {
    struct buf file;
    uint64_t n;

    buf_append_char(&c->header, '}');
    buf_init(&file, 0);
    n = buf_len(&c->header);
    buf_append(&file, &n, 8); /* the tests run on little-endian machines */
    buf_append_str(&file, buf_str(&c->header));
    buf_append_str(&file, buf_str(&c->data));
    write_file(f, name, buf_str(&file));
    buf_fini(&file);
    buf_fini(&c->header);
    buf_fini(&c->data);
}

static void add_all(struct checkpoint *c) {
    add_tensor(c, "model.embed_tokens.weight", 32, 8, 1);
    add_layer(c, 0);
    add_layer(c, 1);
    add_tensor(c, "model.norm.weight", 8, 0, 200);
    add_tensor(c, "lm_head.weight", 32, 8, 201);
}

#define CONFIG(architecture)                                                                       \
    "{\"architectures\":[\"" architecture "\"],\"num_hidden_layers\":2,\"hidden_size\":8,"         \
    "\"intermediate_size\":16,\"num_attention_heads\":2,\"num_key_value_heads\":1,"                \
    "\"vocab_size\":32,\"max_position_embeddings\":64,\"eos_token_id\":3}"

static void write_model(const struct folder *f, const char *config, bool has_bias,
                        const char *without) {
    struct checkpoint c;

    write_file(f, "config.json", str_of(config));
    write_file(f, "tokenizer.json", STR("{}"));
    checkpoint_begin(&c, has_bias);
    c.without = without;
    add_all(&c);
    checkpoint_end(&c, f, "model.safetensors");
}

/* --- a backend that remembers ------------------------------------------------------------------*/
struct backend_model {
    uint32_t n_loaded;
    float value[ROLE_COUNT][2];
    bool is_ended, is_unloaded;
    uint32_t fail_at;
};

static struct backend_model fake;

static enum status fake_begin(struct backend_device *dev, struct backend_model **out,
                              const struct geometry *g, const struct backend_limits *limits,
                              struct error *err) {
    (void)dev, (void)g, (void)limits, (void)err;
    *out = &fake;
    return ST_OK;
}

static enum status fake_tensor(struct backend_model *m, const struct backend_tensor *t,
                               struct error *err) {
    const uint16_t *first = t->data;
    uint32_t bits;

    if (m->fail_at && m->n_loaded + 1 == m->fail_at) {
        return error_set(err, ST_NOMEM, "no room for it");
    }
    bits = t->dtype == DTYPE_F32 ? *(const uint32_t *)t->data : (uint32_t)*first << 16;
    memcpy(&m->value[t->role][t->layer], &bits, 4);
    m->n_loaded++;
    return ST_OK;
}

static enum status fake_end(struct backend_model *m, struct error *err) {
    (void)err;
    m->is_ended = true;
    return ST_OK;
}

static void fake_unload(struct backend_model *m) {
    m->is_unloaded = true;
}

static const struct backend_ops fake_ops = {.load_begin = fake_begin,
                                            .load_tensor = fake_tensor,
                                            .load_end = fake_end,
                                            .unload = fake_unload};

static void on_progress(void *arg, uint64_t done, uint64_t total) {
    uint64_t *last = arg;

    assert_true(done > *last && done <= total);
    *last = done;
}

static enum status load(const struct model *m, uint32_t fail_at, struct error *err) {
    struct backend_limits limits = {.max_rows = 1};
    struct backend_model *out = NULL;
    struct geometry g;
    uint64_t last = 0;

    memset(&fake, 0, sizeof(fake));
    fake.fail_at = fail_at;
    model_geometry(m, &g);
    return model_load(m, &fake_ops, NULL, &g, &limits, on_progress, &last, NULL, &out, err);
}

/* --- tests -------------------------------------------------------------------------------------*/
static struct model *must_open(const struct folder *f) {
    struct model *m = NULL;
    struct error err = {0};

    if (model_open(&m, f->path, &err) != ST_OK) fail_msg("%s", err.message);
    return m;
}

static void every_tensor_reaches_its_role(void **state) {
    struct folder f;
    struct model *m;
    struct geometry g;
    struct error err = {0};

    (void)state;
    folder_make(&f);
    write_model(&f, CONFIG("LlamaForCausalLM"), false, NULL);
    m = must_open(&f);
    assert_string_equal(model_name(m), strrchr(f.path, '/') + 1);
    model_geometry(m, &g);
    assert_int_equal(g.head_dim, 4);
    assert_false(g.has_qkv_bias || g.has_o_bias || g.is_tied);
    assert_int_equal(model_config(m)->n_eos, 1);
    assert_int_equal(load(m, 0, &err), ST_OK);
    assert_int_equal(fake.n_loaded, 3 + 2 * 9);
    assert_true(fake.is_ended && !fake.is_unloaded);
    assert_true(fake.value[ROLE_EMBED][0] == 1 && fake.value[ROLE_LM_HEAD][0] == 201);
    assert_true(fake.value[ROLE_Q][1] == 64 + 1 + 2 && fake.value[ROLE_DOWN][0] == 11 + 2);
    assert_int_equal(model_kv_bytes_per_token(m, DTYPE_BF16), 2 * 2 * 1 * 4 * 2);
    assert_int_equal(model_weight_bytes(m, DTYPE_BF16),
                     2 * (2 * 32 * 8 + 2 * (64 + 32 + 32 + 64 + 3 * 128)) + 4 * (5 * 8));
    model_close(m);
    folder_erase(&f);
}

static void qwen2_brings_its_biases(void **state) {
    struct folder f;
    struct model *m;
    struct geometry g;
    struct error err = {0};

    (void)state;
    folder_make(&f);
    write_model(&f, CONFIG("Qwen2ForCausalLM"), true, NULL);
    m = must_open(&f);
    model_geometry(m, &g);
    assert_true(g.has_qkv_bias && !g.has_o_bias);
    assert_int_equal(load(m, 0, &err), ST_OK);
    assert_true(fake.value[ROLE_V_BIAS][1] == 64 + 6 + 2);
    model_close(m);
    folder_erase(&f);
}

/* A checkpoint whose matrices hold `value`, except the first of the head. */
static struct model *typed_model(struct folder *f, const char *config, enum dtype vectors,
                                 enum dtype matrices, float value) {
    struct checkpoint c;

    folder_make(f);
    write_file(f, "config.json", str_of(config));
    write_file(f, "tokenizer.json", STR("{}"));
    checkpoint_begin(&c, false);
    c.vectors = vectors;
    c.matrices = matrices;
    c.without = "lm_head.weight";
    add_all(&c);
    c.without = NULL;
    add_tensor(&c, "lm_head.weight", 32, 8, value);
    checkpoint_end(&c, f, "model.safetensors");
    return must_open(f);
}

/* The matrices decide, and not config.json. */
static void the_type_is_that_of_the_matrices(void **state) {
    static const enum dtype types[] = {DTYPE_BF16, DTYPE_F16, DTYPE_F32};
    struct geometry g;
    struct folder f;

    (void)state;
    for (size_t i = 0; i < 9; i++) {
        struct model *m =
            typed_model(&f, CONFIG("LlamaForCausalLM"), types[i / 3], types[i % 3], 1);

        model_geometry(m, &g);
        assert_int_equal(model_dtype(m), types[i % 3]);
        assert_int_equal(g.weight_dtype, types[i % 3]);
        assert_int_equal(g.kv_dtype, types[i % 3]);
        model_close(m);
        folder_erase(&f);
    }
}

static enum status load_as(const struct model *m, enum dtype dtype, struct model_rounding *rounding,
                           struct error *err) {
    struct backend_limits limits = {.max_rows = 1};
    struct backend_model *out = NULL;
    struct geometry g;

    memset(&fake, 0, sizeof(fake));
    model_geometry(m, &g);
    g.weight_dtype = dtype;
    return model_load(m, &fake_ops, NULL, &g, &limits, NULL, NULL, rounding, &out, err);
}

/* The others of the head's values are small whole numbers, which all types have. */
static void weights_that_are_rounded_are_counted(void **state) {
    static const struct {
        enum dtype file, kept;
        float value;
        bool is_rounded;
    } cases[] = {
        {DTYPE_F32, DTYPE_F32, 0.1f, false},      {DTYPE_F32, DTYPE_F16, 0.1f, true},
        {DTYPE_F32, DTYPE_BF16, 0.1f, true},      {DTYPE_F16, DTYPE_F16, 0.1f, false},
        {DTYPE_F16, DTYPE_BF16, 0.1f, true},      {DTYPE_F16, DTYPE_F32, 0.1f, false},
        {DTYPE_BF16, DTYPE_BF16, 0.1f, false},    {DTYPE_BF16, DTYPE_F32, 0.1f, false},
        {DTYPE_BF16, DTYPE_F16, 0.1f, false},     {DTYPE_BF16, DTYPE_F16, 1e-12f, true},
        {DTYPE_F32, DTYPE_BF16, 65536.0f, false},
    };
    struct error err = {0};
    struct folder f;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct model *m =
            typed_model(&f, CONFIG("LlamaForCausalLM"), DTYPE_F32, cases[i].file, cases[i].value);
        struct model_rounding rounding = {0};

        assert_int_equal(load_as(m, cases[i].kept, &rounding, &err), ST_OK);
        assert_int_equal(rounding.n_weights, 2 * 32 * 8 + 2 * (64 + 32 + 32 + 64 + 3 * 128));
        assert_int_equal(rounding.n_rounded, cases[i].is_rounded ? 32 * 8 : 0);
        model_close(m);
        folder_erase(&f);
    }
}

static void a_weight_beyond_the_type_is_refused(void **state) {
    struct error err = {0};
    struct folder f;
    struct model *m = typed_model(&f, CONFIG("LlamaForCausalLM"), DTYPE_F32, DTYPE_F32, 1e5f);

    (void)state;
    assert_int_equal(load_as(m, DTYPE_F16, NULL, &err), ST_INVALID);
    assert_string_equal(err.message,
                        "256 weights of lm_head.weight exceed the range of float16: use "
                        "--dtype float32 or bfloat16");
    assert_true(fake.is_unloaded);
    assert_int_equal(load_as(m, DTYPE_F32, NULL, &err), ST_OK);
    model_close(m);
    folder_erase(&f);
}

static void shards_are_one_checkpoint(void **state) {
    static const char index[] =
        "{\"metadata\":{},\"weight_map\":{\"model.norm.weight\":\"b.safetensors\","
        "\"model.embed_tokens.weight\":\"a.safetensors\"}}";
    struct folder f;
    struct checkpoint c;
    struct model *m = NULL;
    struct error err = {0};

    (void)state;
    folder_make(&f);
    write_file(&f, "config.json", STR(CONFIG("LlamaForCausalLM")));
    write_file(&f, "tokenizer.json", STR("{}"));
    checkpoint_begin(&c, false);
    c.vectors = c.matrices = DTYPE_F32;
    add_tensor(&c, "model.embed_tokens.weight", 32, 8, 1);
    add_layer(&c, 0);
    checkpoint_end(&c, &f, "a.safetensors");
    checkpoint_begin(&c, false);
    add_layer(&c, 1);
    add_tensor(&c, "model.norm.weight", 8, 0, 200);
    add_tensor(&c, "lm_head.weight", 32, 8, 201);
    checkpoint_end(&c, &f, "b.safetensors");
    write_file(&f, "model.safetensors.index.json", str_of(index));
    m = must_open(&f);
    assert_int_equal(load(m, 0, &err), ST_OK);
    assert_true(fake.value[ROLE_Q][0] == 3 && fake.value[ROLE_Q][1] == 67);
    assert_int_equal(model_dtype(m), DTYPE_F32); /* of one shard */
    model_close(m);

    write_file(&f, "model.safetensors.index.json",
               STR("{\"weight_map\":{\"model.norm.weight\":\"a.safetensors\"}}"));
    assert_int_equal(model_open(&m, f.path, &err), ST_INVALID);
    assert_non_null(strstr(
        err.message,
        "places the tensor 'model.norm.weight' in a.safetensors, which does not contain it"));
    write_file(&f, "model.safetensors.index.json",
               STR("{\"weight_map\":{\"model.norm.weight\":\"../a.safetensors\"}}"));
    assert_int_equal(model_open(&m, f.path, &err), ST_INVALID);
    checkpoint_begin(&c, false);
    add_layer(&c, 1);
    checkpoint_end(&c, &f, "a.safetensors");
    write_file(&f, "model.safetensors.index.json",
               STR("{\"weight_map\":{\"model.norm.weight\":\"b.safetensors\","
                   "\"model.layers.1.input_layernorm.weight\":\"a.safetensors\"}}"));
    assert_int_equal(model_open(&m, f.path, &err), ST_INVALID);
    assert_non_null(strstr(err.message, "is in both"));
    folder_erase(&f);
}

static void a_tied_head_is_not_loaded(void **state) {
    static const char config[] =
        "{\"architectures\":[\"LlamaForCausalLM\"],\"num_hidden_layers\":2,\"hidden_size\":8,"
        "\"intermediate_size\":16,\"num_attention_heads\":2,\"num_key_value_heads\":1,"
        "\"vocab_size\":32,\"max_position_embeddings\":64,\"tie_word_embeddings\":true}";
    struct folder f;
    struct model *m;
    struct error err = {0};

    (void)state;
    folder_make(&f);
    write_model(&f, config, false, NULL);
    m = must_open(&f);
    assert_int_equal(load(m, 0, &err), ST_OK);
    assert_int_equal(fake.n_loaded, 2 + 2 * 9);
    model_close(m);
    folder_erase(&f);
}

static void a_backend_that_refuses_is_unloaded(void **state) {
    struct folder f;
    struct model *m;
    struct error err = {0};

    (void)state;
    folder_make(&f);
    write_model(&f, CONFIG("LlamaForCausalLM"), false, NULL);
    m = must_open(&f);
    assert_int_equal(load(m, 5, &err), ST_NOMEM);
    assert_true(fake.is_unloaded && !fake.is_ended);
    assert_non_null(strstr(err.message, "model.layers.0"));
    model_close(m);
    folder_erase(&f);
}

/* One mistake each; the error must contain `message`. */
static void expect_refusal(struct folder *f, const char *path, enum status st,
                           const char *message) {
    struct model *m = NULL;
    struct error err = {0};
    enum status got = model_open(&m, path ? path : f->path, &err);

    if (got != st || !strstr(err.message, message)) {
        fail_msg("want %s '%s', got %s: %s", status_name(st), message, status_name(got),
                 err.message);
    }
}

static void first_mistakes_get_a_sentence(void **state) {
    struct folder f;
    struct checkpoint c;
    char path[128];

    (void)state;
    folder_make(&f);
    expect_refusal(&f, "/nonexistent/model", ST_NOT_FOUND, "cannot open the model folder");
    expect_refusal(&f, NULL, ST_NOT_FOUND, "has no config.json");
    write_file(&f, "config.json", STR(CONFIG("LlamaForCausalLM")));
    snprintf(path, sizeof(path), "%s/config.json", f.path);
    expect_refusal(&f, path, ST_INVALID, "is a file");
    expect_refusal(&f, NULL, ST_NOT_FOUND, "has no tokenizer.json");
    write_file(&f, "tokenizer.json", STR("{}"));
    expect_refusal(&f, NULL, ST_NOT_FOUND, "neither model.safetensors");
    write_file(&f, "x.gguf", STR("x"));
    expect_refusal(&f, NULL, ST_NOT_FOUND, "GGUF");
    write_file(&f, "pytorch_model.bin", STR("x"));
    expect_refusal(&f, NULL, ST_NOT_FOUND, "python3 -c");
    write_model(&f, CONFIG("GPT2LMHeadModel"), false, NULL);
    expect_refusal(&f, NULL, ST_UNSUPPORTED, "architecture 'GPT2LMHeadModel'");
    write_model(&f, CONFIG("LlamaForCausalLM"), false, "model.layers.1.mlp.up_proj.weight");
    expect_refusal(&f, NULL, ST_INVALID, "no tensor model.layers.1.mlp.up_proj.weight");
    write_model(&f, CONFIG("LlamaForCausalLM"), true, NULL);
    expect_refusal(&f, NULL, ST_UNSUPPORTED, "unsupported tensor");
    write_model(&f, CONFIG("Qwen2ForCausalLM"), false, NULL);
    expect_refusal(&f, NULL, ST_INVALID, "no tensor model.layers.0.self_attn.q_proj.bias");
    checkpoint_begin(&c, false);
    c.without = "lm_head.weight";
    add_all(&c);
    c.without = NULL;
    add_tensor(&c, "lm_head.weight", 8, 32, 1);
    checkpoint_end(&c, &f, "model.safetensors");
    write_file(&f, "config.json", STR(CONFIG("LlamaForCausalLM")));
    expect_refusal(&f, NULL, ST_INVALID, "the shape of tensor lm_head.weight is not 32 x 8");
    write_file(&f, "model.safetensors", STR("<html>not found</html>"));
    expect_refusal(&f, NULL, ST_INVALID, "not a safetensors file");
    folder_erase(&f);
}

/* --- hostile folders -------------------------------------------------------------------------- */
#define INDEX(file)                                                                                \
    "{\"weight_map\":{\"model.norm.weight\":\"" file "\",\"lm_head.weight\":\"" file "\"}}"

static void a_false_index_is_refused(void **state) {
    static const struct {
        const char *index, *message;
        enum status st;
    } cases[] = {
        {INDEX("gone.safetensors"), "cannot open", ST_IO},
        {INDEX("../model.safetensors"), "no valid file for 'model.norm.weight'", ST_INVALID},
        {INDEX("/etc/passwd"), "no valid file", ST_INVALID},
        {INDEX(".."), "no valid file", ST_INVALID},
        {INDEX(""), "no valid file", ST_INVALID},
        {INDEX("circle.safetensors"), "cannot open", ST_IO},
        {INDEX("fifo.safetensors"), "not a regular file", ST_INVALID},
        {INDEX("folder.safetensors"), "not a regular file", ST_INVALID},
        {INDEX("empty.safetensors"), "is empty", ST_INVALID},
        {INDEX("short.safetensors"), "too few", ST_INVALID},
        {INDEX("huge.safetensors"), "declares a header of 1099511627776 bytes", ST_INVALID},
        {INDEX("config.json"), "not a safetensors file", ST_INVALID},
        {"{\"weight_map\":{\"x\":7}}", "no valid file", ST_INVALID},
        {"{\"weight_map\":[]}", "'weight_map'", ST_INVALID},
        {"{\"weight_map\":{\"x\":\"a\",\"x\":\"b\"}}", "model.safetensors.index.json", ST_INVALID},
        {"{}", "'weight_map'", ST_INVALID},
        {"{\"weight_map\":{", "model.safetensors.index.json", ST_INVALID},
    };
    struct folder f;
    char path[128];

    (void)state;
    folder_make(&f);
    write_model(&f, CONFIG("LlamaForCausalLM"), false, NULL);
    erase_file(&f, "model.safetensors");
    write_file(&f, "empty.safetensors", STR(""));
    write_file(&f, "short.safetensors", STR("1234"));
    write_file(&f, "huge.safetensors", STR("\0\0\0\0\0\1\0\0{}"));
    snprintf(path, sizeof(path), "%s/circle.safetensors", f.path);
    assert_int_equal(symlink("circle.safetensors", path), 0);
    snprintf(path, sizeof(path), "%s/fifo.safetensors", f.path);
    assert_int_equal(mkfifo(path, 0600), 0);
    snprintf(path, sizeof(path), "%s/folder.safetensors", f.path);
    assert_int_equal(mkdir(path, 0700), 0);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        write_file(&f, "model.safetensors.index.json", str_of(cases[i].index));
        expect_refusal(&f, NULL, cases[i].st, cases[i].message);
    }
    rmdir(path);
    folder_erase(&f);
}

static void a_file_that_was_cut_or_swapped_is_refused(void **state) {
    struct folder f;
    char path[128];

    (void)state;
    folder_make(&f);
    write_model(&f, CONFIG("LlamaForCausalLM"), false, NULL);
    snprintf(path, sizeof(path), "%s/model.safetensors", f.path);
    assert_int_equal(truncate(path, 3000), 0);
    expect_refusal(&f, NULL, ST_INVALID, "beyond the end of the file (is the download complete?)");
    assert_int_equal(truncate(path, 200), 0);
    expect_refusal(&f, NULL, ST_INVALID, "is truncated");
    erase_file(&f, "model.safetensors");
    assert_int_equal(symlink("model.safetensors", path), 0);
    expect_refusal(&f, NULL, ST_NOT_FOUND, "a broken link (Too many levels");
    erase_file(&f, "model.safetensors");
    assert_int_equal(symlink("../../blobs/gone", path), 0);
    expect_refusal(&f, NULL, ST_NOT_FOUND, "a broken link (No such file");
    folder_erase(&f);
}

static void the_pseudo_model_needs_no_files(void **state) {
    struct model *m = model_create_synthetic(0);
    struct geometry g;
    struct error err = {0};

    (void)state;
    assert_true(model_is_synthetic(m));
    model_geometry(m, &g);
    assert_int_equal(g.vocab, 512);
    assert_int_equal(g.max_context, 131072);
    assert_true(g.inv_freq[0] == 1);
    assert_int_equal(model_weight_bytes(m, DTYPE_BF16), 0);
    assert_int_equal(model_kv_bytes_per_token(m, DTYPE_BF16), 131072);
    assert_int_equal(load(m, 0, &err), ST_OK);
    assert_true(fake.is_ended);
    model_close(m);
}

static void digest_of_folder(const struct folder *f, uint8_t out[32]) {
    struct model *m = must_open(f);

    assert_int_equal(model_digest(m, out, NULL), ST_OK);
    model_close(m);
}

/* The last byte of the checkpoint, which is one of a weight. */
static void flip_last_byte(const struct folder *f) {
    char path[128];
    FILE *file;
    int byte;

    snprintf(path, sizeof(path), "%s/model.safetensors", f->path);
    file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, -1, SEEK_END), 0);
    byte = fgetc(file);
    assert_int_equal(fseek(file, -1, SEEK_END), 0);
    assert_int_equal(fputc(byte ^ 1, file), byte ^ 1);
    fclose(file);
}

static void a_digest_is_that_of_weights_and_config(void **state) {
    static const char other[] = CONFIG("LlamaForCausalLM") " ";
    uint8_t first[32], again[32], changed[32];
    struct folder f[2];

    (void)state;
    for (int i = 0; i < 2; i++) {
        folder_make(&f[i]);
        write_model(&f[i], CONFIG("LlamaForCausalLM"), false, NULL);
    }
    digest_of_folder(&f[0], first);
    digest_of_folder(&f[1], again);
    assert_memory_equal(first, again, sizeof(first)); /* wherever it lies */
    flip_last_byte(&f[0]);
    digest_of_folder(&f[0], changed);
    assert_memory_not_equal(first, changed, sizeof(first));
    write_file(&f[1], "config.json", str_of(other));
    digest_of_folder(&f[1], changed);
    assert_memory_not_equal(first, changed, sizeof(first));
    folder_erase(&f[0]);
    folder_erase(&f[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_tensor_reaches_its_role),
        cmocka_unit_test(qwen2_brings_its_biases),
        cmocka_unit_test(the_type_is_that_of_the_matrices),
        cmocka_unit_test(weights_that_are_rounded_are_counted),
        cmocka_unit_test(a_weight_beyond_the_type_is_refused),
        cmocka_unit_test(shards_are_one_checkpoint),
        cmocka_unit_test(a_tied_head_is_not_loaded),
        cmocka_unit_test(a_backend_that_refuses_is_unloaded),
        cmocka_unit_test(first_mistakes_get_a_sentence),
        cmocka_unit_test(a_false_index_is_refused),
        cmocka_unit_test(a_file_that_was_cut_or_swapped_is_refused),
        cmocka_unit_test(the_pseudo_model_needs_no_files),
        cmocka_unit_test(a_digest_is_that_of_weights_and_config),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
