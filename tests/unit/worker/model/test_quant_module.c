/* tests/unit/worker/model/test_quant_module.c - modules of quantised checkpoints: written by the
 * test from one line of specification, found, refused, loaded. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/mem.h"
#include "kernels/quant.h"
#include "tests/support/cm.h"
#include "tests/support/spec_checkpoint.h"
#include "worker/model/checkpoint/weights.h"
#include "worker/model/quant/module.h"

struct opened {
    char folder[64];
    struct weights *w;
    struct quant_config *c;
};

static enum status parse_config(struct quant_config **out, const char *quant, struct error *err) {
    char text[2048];

    snprintf(text, sizeof(text), "{\"quantization_config\":%s}", quant);
    return quant_config_parse(out, str_of(text), STR_NULL, err);
}

static void open_files(struct opened *o, const char *quant, const char *specs) {
    struct error err = {0};

    spec_folder(o->folder);
    spec_write(o->folder, "model.safetensors", specs);
    if (parse_config(&o->c, quant, &err) != ST_OK) fail_msg("%s", err.message);
    if (weights_open(&o->w, o->folder, &err) != ST_OK) fail_msg("%s", err.message);
}

static void close_files(struct opened *o) {
    weights_close(o->w);
    quant_config_free(o->c);
    spec_erase(o->folder);
}

/* --- what is loaded ----------------------------------------------------------------------------*/
struct loaded {
    struct opened o;
    struct quant_module m;
    struct quant_matrix_data d;
    struct backend_tensor t;
};

static void load(struct loaded *l, const char *quant, const char *specs, uint64_t n, uint64_t k) {
    struct error err = {0};
    bool is_quantised;

    open_files(&l->o, quant, specs);
    if (quant_module_find(&l->m, &is_quantised, l->o.w, l->o.c, "m", n, k, &err) != ST_OK)
        fail_msg("%s", err.message);
    assert_true(is_quantised);
    l->t = (struct backend_tensor){0};
    if (quant_module_load(&l->m, &l->d, &l->t, &err) != ST_OK) fail_msg("%s", err.message);
    if (quant_check(&l->t, "m", &err) != ST_OK) fail_msg("%s", err.message);
}

static void unload(struct loaded *l) {
    quant_matrix_fini(&l->d);
    close_files(&l->o);
}

#define FP8        "{\"quant_method\":\"fp8\",\"activation_scheme\":\"dynamic\"}"
#define FP8_STATIC "{\"quant_method\":\"fp8\",\"activation_scheme\":\"static\"}"
#define FP8_BLOCK  "{\"quant_method\":\"fp8\",\"weight_block_size\":[128,128]}"
#define AWQ        "{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":4}"
#define AWQ_PLAIN  "{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":4,\"zero_point\":false}"
#define GPTQ       "{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":4,\"desc_act\":true}"
#define GPTQ2                                                                                      \
    "{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":4,\"checkpoint_format\":\"gptq_v2\"}"
#define CT(format, weights, inputs)                                                                \
    "{\"quant_method\":\"compressed-tensors\",\"format\":\"" format "\",\"config_groups\":{"       \
    "\"group_0\":{\"targets\":[\"Linear\"],\"weights\":{" weights                                  \
    "},\"input_activations\":" inputs "}},\"ignore\":[\"lm_head\"]}"
#define CT_INT4                                                                                    \
    CT("pack-quantized",                                                                           \
       "\"num_bits\":4,\"type\":\"int\",\"strategy\":\"group\",\"group_size\":4,"                  \
       "\"symmetric\":true",                                                                       \
       "null")
#define CT_INT4_ASYM                                                                               \
    CT("pack-quantized",                                                                           \
       "\"num_bits\":4,\"type\":\"int\",\"strategy\":\"group\",\"group_size\":4,"                  \
       "\"symmetric\":false",                                                                      \
       "null")
#define CT_INT4_CHANNEL                                                                            \
    CT("pack-quantized",                                                                           \
       "\"num_bits\":4,\"type\":\"int\",\"strategy\":\"channel\",\"symmetric\":true", "null")
#define CT_INT8                                                                                    \
    CT("pack-quantized",                                                                           \
       "\"num_bits\":8,\"type\":\"int\",\"strategy\":\"group\",\"group_size\":4,"                  \
       "\"symmetric\":false",                                                                      \
       "null")
#define CT_W8A8                                                                                    \
    CT("int-quantized", "\"num_bits\":8,\"type\":\"int\",\"strategy\":\"channel\"",                \
       "{\"num_bits\":8,\"type\":\"int\",\"strategy\":\"token\",\"dynamic\":true}")
#define CT_F8                                                                                      \
    CT("float-quantized", "\"num_bits\":8,\"type\":\"float\",\"strategy\":\"channel\"",            \
       "{\"num_bits\":8,\"type\":\"float\",\"strategy\":\"token\",\"dynamic\":true}")
#define CT_F8_BLOCK                                                                                \
    CT("float-quantized",                                                                          \
       "\"num_bits\":8,\"type\":\"float\",\"strategy\":\"block\",\"block_structure\":\"128x128\"", \
       "{\"num_bits\":8,\"type\":\"float\",\"strategy\":\"group\",\"group_size\":128,"             \
       "\"dynamic\":true}")

static void one_scale_or_one_for_each_row_of_fp8(void **state) {
    static const char *const single[] = {"-", "1", "1,1"}, *const rows[] = {"4", "4,1"};
    static const char *const types[] = {"F32", "F16", "BF16"};
    char specs[256];
    struct loaded l;

    (void)state;
    for (int i = 0; i < 15; i++) {
        const char *shape = i % 5 < 3 ? single[i % 5] : rows[i % 5 - 3];

        snprintf(specs, sizeof(specs), "m.weight:F8_E4M3:4,6:r m.weight_scale:%s:%s:s",
                 types[i / 5], shape);
        load(&l, i % 2 ? FP8 : CT_F8, specs, 4, 6);
        assert_int_equal(l.t.dtype, DTYPE_F8E4M3);
        assert_int_equal(l.d.quant.group_n, 1);
        assert_int_equal(l.d.quant.group_k, 6);
        assert_int_equal(l.d.quant.inputs, QUANT_INPUTS_F8);
        assert_ptr_equal(l.t.data, l.m.codes->data); /* not copied */
        for (int n = 0; n < 4; n++)
            assert_true(l.d.quant.scale[n] == (i % 5 < 3 ? 1 : (float)(n + 1)));
        assert_int_equal(quant_module_bytes(&l.m), 4 * 6 + 4 * 4);
        unload(&l);
    }
    load(&l, FP8_STATIC, "m.weight:F8_E4M3:4,6:r m.weight_scale:F32:-:1 m.input_scale:F32:-:1", 4,
         6);
    assert_int_equal(l.d.quant.inputs, QUANT_INPUTS_F8_STATIC);
    assert_true(l.d.quant.input_scale == 1);
    unload(&l);
}

/* 576 x 1600 is 4.5 x 12.5 blocks: those at the edges are cut. */
static void blocks_of_fp8_with_ragged_edges(void **state) {
    static const struct {
        const char *config, *scale;
    } cases[] = {{FP8_BLOCK, "m.weight_scale_inv:F32:5,13:s"},
                 {FP8_BLOCK, "m.weight_scale_inv:F8_E8M0:5,13:e"},
                 {FP8_BLOCK, "m.weight_scale:BF16:5,13:s"},
                 {CT_F8_BLOCK, "m.weight_scale:F32:5,13:s"}};
    char specs[256];
    struct loaded l;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        snprintf(specs, sizeof(specs), "m.weight:F8_E4M3:576,1600:r %s", cases[i].scale);
        load(&l, cases[i].config, specs, 576, 1600);
        assert_int_equal(l.d.quant.group_n, 128);
        assert_int_equal(l.d.quant.group_k, 128);
        assert_int_equal(l.d.quant.inputs, QUANT_INPUTS_F8_GROUPS);
        assert_true(quant_scale(&l.d.quant, 13, 575, 12) == (i == 1 ? 1 << 64 % 4 : 65));
        assert_true(quant_scale(&l.d.quant, 13, 128, 1) == (i == 1 ? 1 << 14 % 4 : 15));
        unload(&l);
    }
}

static void packed_formats_of_compressed_tensors(void **state) {
    struct loaded l;
    const uint8_t *code;

    (void)state;
    load(&l, CT_INT4, "m.weight_packed:I32:3,2:r m.weight_scale:BF16:3,4:s", 3, 16);
    assert_ptr_equal(l.t.data, l.m.codes->data);
    assert_null(l.d.quant.zero);
    assert_true(l.d.quant.scale[4 * 2 + 3] == 12);
    unload(&l);
    load(&l, CT_INT4_CHANNEL, "m.weight_packed:I32:3,13:r m.weight_scale:F16:3,1:s", 3, 100);
    assert_ptr_not_equal(l.t.data, l.m.codes->data); /* rows of the file are padded */
    assert_int_equal(l.d.quant.group_k, 100);
    assert_memory_equal(l.t.data, l.m.codes->data, 50);
    assert_memory_equal((char *)l.t.data + 50, l.m.codes->data + 52, 50);
    unload(&l);
    load(&l, CT_INT4_ASYM,
         "m.weight_packed:I32:12,1:r m.weight_scale:BF16:12,2:1 m.weight_zero_point:I32:2,2:r", 12,
         8);
    code = l.m.zero->data; /* 12 rows are one and a half words, group by group */
    assert_int_equal(l.d.quant.zero[0], code[0] & 15);
    assert_int_equal(l.d.quant.zero[1], code[4] & 15);
    assert_int_equal(l.d.quant.zero[2 * 11 + 1], code[8 + 4 + 1] >> 4);
    unload(&l);
    load(&l, CT_INT8,
         "m.weight_packed:I32:4,2:r m.weight_scale:F16:4,2:1 m.weight_zero_point:I32:1,2:r", 4, 8);
    assert_int_equal(l.t.dtype, DTYPE_I8);
    assert_int_equal(((int8_t *)l.t.data)[9], (int)l.m.codes->data[9] - 128);
    assert_int_equal(l.d.quant.zero[2 * 3 + 1], (int)l.m.zero->data[4 + 3] - 128);
    unload(&l);
    load(&l, CT_INT8,
         "m.weight_packed:I32:4,2:r m.weight_scale:F16:4,2:1 m.weight_zero_point:I32:1,2:h", 4, 8);
    assert_null(l.d.quant.zero); /* all are the middle */
    unload(&l);
    load(&l, CT_INT8,
         "m.weight_packed:I32:4,2:r m.weight_scale:F16:4,2:1 m.weight_zero_point:I32:1,2:i", 4, 8);
    assert_int_equal(l.d.quant.zero[0], 1);
    unload(&l);
}

static void groups_of_compressed_tensors(void **state) {
    struct loaded l;

    (void)state;
    load(&l, CT_INT4, "m.weight_packed:I32:1,2:r m.weight_scale:F16:1,4:1 m.weight_g_idx:I32:16:n",
         1, 16);
    assert_int_equal(l.d.quant.order[0], 12);
    assert_int_equal(l.d.quant.order[15], 3);
    assert_int_equal(((uint8_t *)l.t.data)[0] & 15, l.m.codes->data[6] & 15);
    unload(&l);
    load(&l, CT_INT4, "m.weight_packed:I32:1,2:r m.weight_scale:F16:1,4:1 m.weight_g_idx:I32:16:g",
         1, 16);
    assert_null(l.d.quant.order);
    unload(&l);
    load(&l, CT_INT4, "m.weight_packed:I32:1,2:r m.weight_scale:F16:1,4:1 m.weight_g_idx:I32:16:m",
         1, 16);
    assert_null(l.d.quant.order); /* never assigned */
    unload(&l);
}

static void int8_with_inputs_in_int8(void **state) {
    struct loaded l;

    (void)state;
    load(&l, CT_W8A8, "m.weight:I8:4,6:r m.weight_scale:BF16:4,1:s", 4, 6);
    assert_int_equal(l.d.quant.inputs, QUANT_INPUTS_I8);
    assert_ptr_equal(l.t.data, l.m.codes->data);
    unload(&l);
    load(&l, CT_W8A8,
         "m.weight:I8:4,6:r m.weight_scale:F32:1:s m.weight_zero_point:I8:4,1:0 "
         "m.input_scale:F32:1:1 m.input_zero_point:I8:1:0",
         4, 6);
    assert_null(l.d.quant.zero);
    assert_int_equal(l.m.n_all, 5);
    unload(&l);
}

static void awq_and_gptq(void **state) {
    struct loaded l;

    (void)state;
    load(&l, AWQ, "m.qweight:I32:8,2:r m.qzeros:I32:2,2:r m.scales:F16:2,16:s", 16, 8);
    assert_int_equal(l.t.dtype, DTYPE_U4);
    assert_true(quant_scale(&l.d.quant, 2, 3, 1) == 16 + 3 + 1);
    assert_non_null(l.d.quant.zero);
    unload(&l);
    load(&l, AWQ_PLAIN, "m.qweight:I32:8,2:r m.scales:F16:2,16:s", 16, 8);
    assert_null(l.d.quant.zero);
    unload(&l);
    load(&l, GPTQ,
         "m.qweight:I32:1,8:r m.qzeros:I32:2,1:f m.scales:F16:2,8:s m.g_idx:I32:8:n m.bias:F16:8:0",
         8, 8);
    assert_int_equal(l.d.n_wrapped, 16);
    assert_int_equal(l.d.quant.zero[3], 0);
    assert_int_equal(l.d.quant.order[0], 4);
    assert_int_equal(l.m.n_all, 5); /* a bias of zeros, which writers add */
    unload(&l);
    load(&l, GPTQ2, "m.qweight:I32:1,8:r m.qzeros:I32:2,1:f m.scales:F16:2,8:s m.g_idx:I32:8:g", 8,
         8);
    assert_int_equal(l.d.n_wrapped, 0);
    assert_int_equal(l.d.quant.zero[3], 15);
    assert_null(l.d.quant.order);
    unload(&l);
}

/* Inputs of a permuted matrix and the matrix in order multiply alike, group by group. */
static void desc_act_is_the_same_matrix(void **state) {
    struct loaded a;
    const uint8_t *file;

    (void)state;
    load(&a, GPTQ2, "m.qweight:I32:2,8:r m.qzeros:I32:4,1:r m.scales:F16:4,8:s m.g_idx:I32:16:n", 8,
         16);
    file = a.m.codes->data;
    for (uint64_t n = 0; n < 8; n++) {
        for (uint64_t i = 0; i < 16; i++) {
            uint64_t k = a.d.quant.order[i];
            uint8_t code = (uint8_t)(file[(k / 8 * 8 + n) * 4 + k % 8 / 2] >> k % 2 * 4 & 15);

            assert_true(quant_code(DTYPE_U4, (uint8_t *)a.t.data + n * 8, i) == code);
            assert_int_equal(i / 4, (15 - k) / 4); /* the group that the file gives input k */
        }
    }
    unload(&a);
}

/* --- what is refused ---------------------------------------------------------------------------*/
static void wrong_modules_are_named(void **state) {
    static const struct {
        const char *config, *specs;
        uint64_t n, k;
        const char *message;
    } cases[] = {
        {FP8, "m.weight:BF16:4,6:1", 4, 6,
         "module m has the tensor m.weight of BF16, but config.json has the module quantised"},
        {AWQ, "m.weight:F8_E4M3:4,6:r m.weight_scale:F32:1:1", 4, 6, "has it of another kind"},
        {FP8, "m.qweight:I32:8,2:r", 16, 8, "has it of another kind"},
        {FP8, "m.weight:F8_E4M3:4,6:r", 4, 6, "has no tensor m.weight_scale: download"},
        {FP8, "m.weight:F8_E4M3:4,5:r m.weight_scale:F32:1:1", 4, 6,
         "tensor m.weight is (4, 5) of F8_E4M3: the geometry and fp8 want (4, 6) of F8_E4M3"},
        {FP8, "m.weight:F8_E4M3:4,6:r m.weight_scale:F32:3:1", 4, 6,
         "tensor m.weight_scale is (3) of F32: the geometry and fp8 want (4, 1)"},
        {FP8, "m.weight:F8_E4M3:4,6:r m.weight_scale:I32:4:1", 4, 6, "(4) of I32"},
        {FP8_BLOCK, "m.weight:F8_E4M3:4,6:r m.weight_scale_inv:F32:2,1:1", 4, 6, "want (1, 1)"},
        {FP8_STATIC, "m.weight:F8_E4M3:4,6:r m.weight_scale:F32:1:1", 4, 6,
         "has no tensor m.input_scale"},
        {FP8, "m.weight:F8_E5M2:4,6:r m.weight_scale:F32:1:1", 4, 6,
         "unsupported weights of module m: F8_E5M2; supported are e4m3, int8 and int4"},
        {FP8, "m.weight:U8:4,6:r m.weight_scale:F32:1:1", 4, 6, "module m: U8; supported"},
        {CT_INT4,
         "m.weight_packed:I32:3,2:r m.weight_scale:F16:3,4:1 m.weight_global_scale:F32:1:1", 3, 16,
         "unsupported weights of module m: NVFP4"},
        {CT_INT4, "m.weight_packed:I32:3,2:r m.weight_scale:F16:3,4:1 m.weight_shape:I64:2:s", 3,
         16, "tensor m.weight_shape is (1, 2): config.json implies (3, 16)"},
        {CT_INT4, "m.weight_packed:I32:3,2:r m.weight_scale:F16:3,3:1", 3, 16, "want (3, 4)"},
        {CT_INT4, "m.weight_packed:U8:3,8:r m.weight_scale:F16:3,4:1", 3, 16, "want (3, 2) of I32"},
        {CT_INT4, "m.weight_packed:I32:3,2:r m.weight_scale:F16:3,4:1", 3, 14,
         "module m has 14 inputs, which do not divide into groups of group_size 4"},
        {CT_INT4_ASYM, "m.weight_packed:I32:3,2:r m.weight_scale:F16:3,4:1", 3, 16,
         "has no tensor m.weight_zero_point"},
        {CT_INT4,
         "m.weight_packed:I32:3,2:r m.weight_scale:F16:3,4:1 m.weight_zero_point:I32:1,4:s", 3, 16,
         "tensor m.weight_zero_point is not zero, and config.json has symmetric weights"},
        {CT_INT4, "m.weight_packed:I32:1,2:r m.weight_scale:F16:1,4:1 m.weight_g_idx:I32:15:n", 1,
         16, "tensor m.weight_g_idx is (15) of I32"},
        {AWQ, "m.qweight:I32:8,2:r m.scales:F16:2,16:s", 16, 8, "has no tensor m.qzeros"},
        {AWQ, "m.qweight:I32:8,2:r m.qzeros:I32:2,1:r m.scales:F16:2,16:s", 16, 8, "want (2, 2)"},
        {AWQ, "m.qweight:I32:8,2:r m.qzeros:I32:2,2:r m.scales:F16:16,2:s", 16, 8, "want (2, 16)"},
        {AWQ, "m.qweight:I32:8,2:r m.qzeros:I32:2,2:r m.scales:F16:3,16:s", 16, 8, "want (2, 16)"},
        {AWQ, "m.qweight:I32:7,2:r m.qzeros:I32:2,2:r m.scales:F16:2,16:s", 16, 8, "want (8, 2)"},
        {AWQ, "m.qweight:I32:8,1:r m.qzeros:I32:2,1:r m.scales:F16:2,12:s", 12, 8,
         "module m has 12 outputs, which do not fill words of 8 codes"},
        {GPTQ, "m.qweight:I32:1,8:r m.qzeros:I32:2,1:f m.scales:F16:2,8:s m.g_idx:I32:7:n", 8, 8,
         "tensor m.g_idx is (7) of I32"},
        {GPTQ, "m.qweight:I32:1,8:r m.qzeros:I32:2,1:f m.scales:F16:2,8:s", 8, 12,
         "module m has 12 inputs, which do not fill words of 8 codes"},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct opened o;
        struct quant_module m;
        struct error err = {0};
        bool is_quantised;

        open_files(&o, cases[i].config, cases[i].specs);
        if (quant_module_find(&m, &is_quantised, o.w, o.c, "m", cases[i].n, cases[i].k, &err) ==
            ST_OK)
            fail_msg("case %zu was accepted: %s", i, cases[i].message);
        if (!strstr(err.message, cases[i].message))
            fail_msg("case %zu: %s; wanted %s", i, err.message, cases[i].message);
        close_files(&o);
    }
}

static void values_that_make_no_weights_are_named(void **state) {
    static const struct {
        const char *config, *specs, *message;
    } cases[] = {
        {FP8, "m.weight:F8_E4M3:8,8:f m.weight_scale:F32:1:1",
         "element 0 of m.weight is NaN (code ff)"},
        {FP8, "m.weight:F8_E4M3:8,8:r m.weight_scale:F32:8:0",
         "element 0 of m.weight_scale is 0: scales are finite and not 0"},
        {FP8, "m.weight:F8_E4M3:8,8:r m.weight_scale:F32:8:f", "nan: scales"},
        {FP8_BLOCK, "m.weight:F8_E4M3:8,8:r m.weight_scale_inv:F8_E8M0:1,1:f", "nan: scales"},
        {FP8_STATIC, "m.weight:F8_E4M3:8,8:r m.weight_scale:F32:1:1 m.input_scale:F32:1:0",
         "element 0 of m.input_scale is 0"},
        {FP8_STATIC, "m.weight:F8_E4M3:8,8:r m.weight_scale:F32:1:1 m.input_scale:F32:1:m",
         "element 0 of m.input_scale is -1: scales are positive and finite"},
        {GPTQ, "m.qweight:I32:1,8:r m.qzeros:I32:2,1:f m.scales:F16:2,8:s m.g_idx:I32:8:p",
         "m.g_idx: input 2 is in group 2: there are 2 groups of 4 inputs"},
        {GPTQ, "m.qweight:I32:1,8:r m.qzeros:I32:2,1:f m.scales:F16:2,8:s m.g_idx:I32:8:0",
         "m.g_idx: input 4 is in group 0"},
        {GPTQ, "m.qweight:I32:1,8:r m.qzeros:I32:2,1:f m.scales:F16:2,8:s m.g_idx:I32:8:m",
         "m.g_idx: input 0 is in group -1"},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct opened o;
        struct quant_module m;
        struct quant_matrix_data d;
        struct backend_tensor t = {0};
        struct error err = {0};
        bool is_quantised;

        open_files(&o, cases[i].config, cases[i].specs);
        if (quant_module_find(&m, &is_quantised, o.w, o.c, "m", 8, 8, &err) != ST_OK)
            fail_msg("case %zu: %s", i, err.message);
        if (quant_module_load(&m, &d, &t, &err) == ST_OK) fail_msg("case %zu was accepted", i);
        if (!strstr(err.message, cases[i].message))
            fail_msg("case %zu: %s; wanted %s", i, err.message, cases[i].message);
        close_files(&o);
    }
}

/* AutoRound writes some, of GPTQ and AWQ. */
static void negative_scales_are_kept(void **state) {
    static const struct {
        const char *config, *specs;
    } cases[] = {
        {FP8, "m.weight:F8_E4M3:8,8:r m.weight_scale:F32:8:m"},
        {GPTQ, "m.qweight:I32:1,8:r m.qzeros:I32:2,1:f m.scales:F16:2,8:m"},
        {AWQ, "m.qweight:I32:8,1:r m.qzeros:I32:2,1:r m.scales:F16:2,8:m"},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct opened o;
        struct quant_module m;
        struct quant_matrix_data d;
        struct backend_tensor t = {0};
        struct error err = {0};
        bool is_quantised;

        open_files(&o, cases[i].config, cases[i].specs);
        if (quant_module_find(&m, &is_quantised, o.w, o.c, "m", 8, 8, &err) != ST_OK ||
            quant_module_load(&m, &d, &t, &err) != ST_OK)
            fail_msg("case %zu: %s", i, err.message);
        for (uint64_t g = 0; g < 8 * quant_row_groups(t.quant, 8); g++)
            assert_true(t.quant->scale[g] == -1);
        if (quant_check(&t, "m", &err) != ST_OK) fail_msg("case %zu: %s", i, err.message);
        quant_matrix_fini(&d);
        close_files(&o);
    }
}

static void ranks_cut_inputs_between_groups(void **state) {
#define PACKED "m.weight_packed:I32:1,2:r m.weight_scale:F16:1,4:1 "
    static const struct {
        const char *config, *specs;
        uint64_t n, k;
        uint32_t group;
    } cases[] = {
        {FP8, "m.weight:F8_E4M3:8,8:r m.weight_scale:F32:8:1", 8, 8, 1},
        {FP8_BLOCK, "m.weight:F8_E4M3:8,8:r m.weight_scale_inv:F32:1,1:1", 8, 8, 1},
        {AWQ, "m.qweight:I32:8,1:r m.qzeros:I32:2,1:r m.scales:F16:2,8:1", 8, 8, 4},
        {CT_INT4, PACKED, 1, 16, 4},
        {CT_INT4, PACKED "m.weight_g_idx:I32:16:n", 1, 16, 16},
        {CT_INT4, PACKED "m.weight_g_idx:I32:16:g", 1, 16, 4},
        {CT_INT4, PACKED "m.weight_g_idx:I32:16:m", 1, 16, 4},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct opened o;
        struct quant_module m;
        struct error err = {0};
        bool is_quantised;

        open_files(&o, cases[i].config, cases[i].specs);
        if (quant_module_find(&m, &is_quantised, o.w, o.c, "m", cases[i].n, cases[i].k, &err) !=
            ST_OK)
            fail_msg("case %zu: %s", i, err.message);
        assert_int_equal(quant_module_input_group(&m), cases[i].group);
        close_files(&o);
    }
#undef PACKED
}

/* --- configurations ----------------------------------------------------------------------------*/
static void configurations_that_are_not_read_are_named(void **state) {
    static const struct {
        const char *config, *message;
    } cases[] = {
        {"{\"quant_method\":\"bitsandbytes\"}",
         "unsupported quant_method 'bitsandbytes': supported"},
        {"{\"quant_method\":\"mxfp4\"}", "unsupported quant_method 'mxfp4'"},
        {"{\"quant_method\":7}", "'quant_method' is a number: it is a string"},
        {"{\"quant_method\":\"\"}", "unsupported quant_method ''"},
        {"{}", "it has no 'quant_method', which names the format of the weights: supported are"},
        {"{\"quant_algo\":null}", "it has no 'quant_method'"},
        {"{\"quantization\":{\"bits\":4}}", "it has no 'quant_method'"},
        {"{\"quantization\":{\"quant_algo\":\"NVFP4\"}}", "unsupported quant_algo 'NVFP4'"},
        {"{\"quant_method\":\"fp8\",\"fmt\":\"x\",\"kv_cache_quant_algo\":\"FP8\"}",
         "unsupported fmt 'x'"},
        {"[]", "it is an array, not an object"},
        {"{\"quant_method\":\"awq\",\"version\":\"gemv\"}",
         "unsupported version 'gemv' of quant_method awq: supported is gemm"},
        {"{\"quant_method\":\"awq\",\"bits\":3}", "unsupported bits 3 of quant_method awq"},
        {"{\"quant_method\":\"awq\",\"group_size\":0}", "'group_size' is 0"},
        {"{\"quant_method\":\"gptq\",\"bits\":3}", "unsupported bits 3 of quant_method gptq"},
        {"{\"quant_method\":\"gptq\",\"bits\":2}", "unsupported bits 2 of quant_method gptq"},
        {"{\"quant_method\":\"gptq\",\"checkpoint_format\":\"marlin\"}",
         "unsupported checkpoint_format 'marlin' of quant_method gptq: supported is gptq or "
         "gptq_v2"},
        {"{\"quant_method\":\"gptq\",\"is_marlin_format\":true}", "unsupported format 'marlin'"},
        {"{\"quant_method\":\"gptq\",\"pack_dtype\":\"int16\"}", "unsupported pack_dtype 'int16'"},
        {"{\"quant_method\":\"gptq\",\"dynamic\":{\"+:(\":{}}}", "the expression '(' is not valid"},
        {"{\"quant_method\":\"gptq\",\"dynamic\":{\"a\":{\"bits\":3}}}",
         "dynamic: unsupported bits"},
        {"{\"quant_method\":\"fp8\",\"fmt\":\"e4m3fnuz\"}", "unsupported fmt 'e4m3fnuz'"},
        {"{\"quant_method\":\"fp8\",\"activation_scheme\":\"none\"}", "activation_scheme 'none'"},
        {"{\"quant_method\":\"fp8\",\"weight_block_size\":[128]}",
         "'weight_block_size' is not two"},
        {"{\"quant_method\":\"fp8\",\"ignored_layers\":[7]}", "'ignored_layers' has an entry"},
        {"{\"quant_method\":\"modelopt\",\"quant_algo\":\"NVFP4\"}",
         "unsupported quant_algo 'NVFP4' of quant_method modelopt: supported is FP8"},
        {CT("nvfp4-pack-quantized", "\"num_bits\":4,\"type\":\"float\"", "null"),
         "unsupported format 'nvfp4-pack-quantized'"},
        {CT("mxfp8-quantized", "\"num_bits\":8,\"type\":\"float\"", "null"), "'mxfp8-quantized'"},
        {CT("marlin-24", "\"num_bits\":4,\"type\":\"int\"", "null"), "'marlin-24'"},
        {CT("pack-quantized", "\"num_bits\":3,\"type\":\"int\"", "null"), "unsupported num_bits 3"},
        {CT("pack-quantized", "\"num_bits\":4,\"type\":\"float\"", "null"), "'pack-quantized'"},
        {CT("int-quantized", "\"num_bits\":8,\"type\":\"int\",\"strategy\":\"block\"", "null"),
         "unsupported strategy of weights 'block'"},
        {CT("float-quantized", "\"num_bits\":8,\"type\":\"float\",\"strategy\":\"block\"", "null"),
         "strategy block without 'block_structure'"},
        {CT("pack-quantized", "\"num_bits\":4,\"type\":\"int\",\"strategy\":\"group\"", "null"),
         "group_0: strategy group without 'group_size'"},
        {CT("pack-quantized",
            "\"num_bits\":4,\"type\":\"int\",\"strategy\":\"group\",\"group_size\":-1", "null"),
         "group_0: strategy group without 'group_size', or with -1"},
        {CT("pack-quantized", "\"num_bits\":4,\"type\":\"int\"",
            "{\"num_bits\":8,\"type\":\"int\"}"),
         "unsupported input_activations of 8 bits beside weights of 4 bits"},
        {CT("int-quantized", "\"num_bits\":8,\"type\":\"int\"",
            "{\"num_bits\":8,\"type\":\"int\",\"symmetric\":false}"),
         "unsupported symmetric of input_activations 'false'"},
        {"{\"quant_method\":\"compressed-tensors\",\"format\":\"int-quantized\"}",
         "'config_groups' is missing"},
        {"{\"quant_method\":\"compressed-tensors\",\"config_groups\":{},"
         "\"transform_config\":{\"config_groups\":{\"a\":{}}}}",
         "unsupported transform_config"},
        {"{\"quant_method\":\"compressed-tensors\",\"config_groups\":{},"
         "\"sparsity_config\":{\"format\":\"sparse-24-bitmask\"}}",
         "unsupported sparsity_config format 'sparse-24-bitmask'"},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct quant_config *c = NULL;
        struct error err = {0};

        if (parse_config(&c, cases[i].config, &err) == ST_OK)
            fail_msg("case %zu was accepted: %s", i, cases[i].message);
        if (!strstr(err.message, cases[i].message))
            fail_msg("case %zu: %s; wanted %s", i, err.message, cases[i].message);
        assert_int_equal(strncmp(err.message, "config.json: quantization_config: ", 34), 0);
    }
}

static enum quant_want want_of(const char *config, const char *module,
                               struct quant_scheme *scheme) {
    struct quant_config *c = NULL;
    struct error err = {0};
    enum quant_want want;

    if (parse_config(&c, config, &err) != ST_OK) fail_msg("%s", err.message);
    if (quant_config_find(c, module, &want, scheme, &err) != ST_OK) fail_msg("%s", err.message);
    quant_config_free(c);
    return want;
}

#define CT_IGNORE(list)                                                                            \
    "{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\",\"config_groups\":{"   \
    "\"a\":{\"targets\":[\"Linear\"],\"weights\":{\"num_bits\":4,\"strategy\":\"group\","          \
    "\"group_size\":64}},\"b\":{\"targets\":[\"re:.*down_proj\"],\"weights\":{\"num_bits\":8,"     \
    "\"strategy\":\"channel\"}}},\"ignore\":[" list "]}"
#define UP "model.layers.1.mlp.up_proj"

static void modules_are_ignored_by_their_writers_rules(void **state) {
    static const struct {
        const char *config, *module;
        enum quant_want want;
    } cases[] = {
        {CT_IGNORE("\"lm_head\""), "lm_head", QUANT_WANT_PLAIN},
        {CT_IGNORE("\"lm_head\""), UP, QUANT_WANT_SCHEME},
        {CT_IGNORE("\"" UP "\""), UP, QUANT_WANT_PLAIN},
        {CT_IGNORE("\"mlp.up_proj\""), UP, QUANT_WANT_SCHEME}, /* a name is the whole name */
        {CT_IGNORE("\"re:.*mlp\\\\.gate$\""), "model.layers.1.mlp.gate", QUANT_WANT_PLAIN},
        {CT_IGNORE("\"re:.*mlp\\\\.gate$\""), "model.layers.1.mlp.gate_proj", QUANT_WANT_SCHEME},
        {CT_IGNORE("\"re:.*up\""), UP, QUANT_WANT_PLAIN}, /* not anchored at the end */
        {CT_IGNORE("\"re:mlp\""), UP, QUANT_WANT_SCHEME}, /* anchored at the start */
        {CT_IGNORE("\"Linear\""), UP, QUANT_WANT_PLAIN},
        {CT_IGNORE("\"RMSNorm\""), UP, QUANT_WANT_SCHEME},
        {"{\"quant_method\":\"fp8\",\"modules_to_not_convert\":[\"mlp.gate\",\"lm_head\"]}",
         "model.layers.1.mlp.gate", QUANT_WANT_PLAIN},
        {"{\"quant_method\":\"fp8\",\"modules_to_not_convert\":[\"mlp.gate\",\"lm_head\"]}",
         "model.layers.1.mlp.gate_proj", QUANT_WANT_EITHER},
        {"{\"quant_method\":\"fp8\",\"modules_to_not_convert\":[\"model.layers.1\"]}",
         "model.layers.10.mlp.up_proj", QUANT_WANT_EITHER},
        {"{\"quant_method\":\"fp8\",\"ignored_layers\":[\"layers.1.mlp\"]}", UP, QUANT_WANT_PLAIN},
        {FP8, "lm_head", QUANT_WANT_EITHER},
        {FP8, UP, QUANT_WANT_SCHEME},
        {"{\"quant_method\":\"awq\",\"modules_to_not_convert\":[\"visual\"]}", UP,
         QUANT_WANT_SCHEME},
        {GPTQ, "lm_head", QUANT_WANT_PLAIN},
        {"{\"quant_method\":\"gptq\",\"lm_head\":true}", "lm_head", QUANT_WANT_SCHEME},
        {"{\"quant_method\":\"gptq\",\"dynamic\":{\"-:model\\\\.layers\\\\.1\\\\.\":{}}}", UP,
         QUANT_WANT_PLAIN},
        {"{\"quant_method\":\"gptq\",\"dynamic\":{\"-:model\\\\.layers\\\\.1\\\\.\":{}}}",
         "model.layers.11.mlp.up_proj", QUANT_WANT_SCHEME},
        {"{\"quant_method\":\"modelopt\",\"quant_algo\":\"FP8\",\"ignore\":[\"model.layers.0*\"]}",
         "model.layers.0.mlp.up_proj", QUANT_WANT_PLAIN},
        {"{\"quant_method\":\"modelopt\",\"quant_algo\":\"FP8\",\"ignore\":[\"model.layers.0*\"]}",
         "model.layers.10.mlp.up_proj", QUANT_WANT_SCHEME},
        {"{\"quant_method\":\"modelopt\",\"quant_algo\":\"FP8\",\"ignore\":[\"*mlp*\"]}", UP,
         QUANT_WANT_PLAIN},
    };
    struct quant_scheme s;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        if (want_of(cases[i].config, cases[i].module, &s) != cases[i].want)
            fail_msg("case %zu: %s", i, cases[i].module);
    }
    assert_int_equal(want_of(CT_IGNORE(""), UP, &s), QUANT_WANT_SCHEME);
    assert_int_equal(s.group_size, 64);
    assert_int_equal(want_of(CT_IGNORE(""), "model.layers.1.mlp.down_proj", &s), QUANT_WANT_SCHEME);
    assert_int_equal(s.bits, 8); /* an expression goes before a class */
    assert_int_equal(
        want_of("{\"quant_method\":\"gptq\",\"group_size\":128,\"dynamic\":{\"+:.*up\":"
                "{\"bits\":8,\"group_size\":32}}}",
                UP, &s),
        QUANT_WANT_SCHEME);
    assert_true(s.bits == 8 && s.group_size == 32 && s.is_v1);
}

static void hf_quant_config_alone_is_enough(void **state) {
    static const char hf[] =
        "{\"producer\":{\"name\":\"modelopt\"},\"quantization\":{\"quant_algo\":"
        "\"FP8\",\"kv_cache_quant_algo\":\"FP8\",\"exclude_modules\":["
        "\"lm_head\"]}}";
    struct quant_config *c = NULL;
    struct quant_scheme s;
    enum quant_want want;

    (void)state;
    assert_int_equal(quant_config_parse(&c, STR("{}"), str_of(hf), NULL), ST_OK);
    assert_string_equal(quant_config_method(c), "modelopt");
    assert_int_equal(quant_config_find(c, "lm_head", &want, &s, NULL), ST_OK);
    assert_int_equal(want, QUANT_WANT_PLAIN);
    assert_int_equal(quant_config_find(c, UP, &want, &s, NULL), ST_OK);
    assert_true(want == QUANT_WANT_SCHEME && s.inputs == QUANT_INPUTS_F8_STATIC);
    quant_config_free(c);
    c = (void *)&s;
    assert_int_equal(quant_config_parse(&c, STR("{}"), STR_NULL, NULL), ST_OK);
    assert_null(c);
}

static void hf_quant_config_is_read_only_when_it_decides(void **state) {
    static const struct {
        const char *hf, *message;
    } cases[] = {
        {"[]", "hf_quant_config.json: it is an array, not an object: download the model again"},
        {"{", "hf_quant_config.json: "},
        {"", "hf_quant_config.json: "},
        {"{\"quantization\":7}", "hf_quant_config.json: quantization: it is a number"},
        {"{\"quantization\":{}}", "hf_quant_config.json: quantization: it has no 'quant_method'"},
    };
    struct quant_config *c = NULL;
    struct error err = {0};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct str hf = str_of(cases[i].hf);

        assert_int_equal(quant_config_parse(&c, STR("{\"quantization_config\":" FP8 "}"), hf, &err),
                         ST_OK);
        assert_string_equal(quant_config_method(c), "fp8");
        quant_config_free(c);
        assert_int_equal(quant_config_parse(&c, STR("{}"), hf, &err), ST_INVALID);
        if (strncmp(err.message, cases[i].message, strlen(cases[i].message)) != 0)
            fail_msg("case %zu: %s", i, err.message);
    }
}

static void modelopts_object_inside_config_json_is_read(void **state) {
    static const char *const plain[] = {
        "{\"quantization\":{\"quant_algo\":null,\"kv_cache_quant_algo\":\"FP8\"}}",
        "{\"quant_method\":\"modelopt\",\"quant_algo\":null,\"kv_cache_quant_algo\":\"FP8\"}",
    };
    struct quant_config *c = NULL;
    struct quant_scheme s;
    struct error err = {0};

    (void)state;
    assert_int_equal(want_of("{\"producer\":{\"name\":\"modelopt\"},\"quantization\":{"
                             "\"quant_algo\":\"FP8\",\"exclude_modules\":[\"lm_head\"]}}",
                             UP, &s),
                     QUANT_WANT_SCHEME);
    assert_int_equal(s.inputs, QUANT_INPUTS_F8_STATIC);
    for (size_t i = 0; i < ARRAY_LEN(plain); i++) {
        if (parse_config(&c, plain[i], &err) != ST_OK) fail_msg("%s", err.message);
        assert_null(c);
    }
}

static void compression_config_of_older_writers_is_read(void **state) {
    static const char config[] = "{\"compression_config\":" CT_IGNORE("\"lm_head\"") "}";
    static const char wrong[] = "{\"quantization_config\":null,\"compression_config\":[]}";
    struct quant_config *c = NULL;
    struct quant_scheme s;
    struct error err = {0};
    enum quant_want want;

    (void)state;
    assert_int_equal(quant_config_parse(&c, str_of(config), STR_NULL, &err), ST_OK);
    assert_string_equal(quant_config_method(c), "compressed-tensors");
    assert_int_equal(quant_config_find(c, UP, &want, &s, NULL), ST_OK);
    assert_int_equal(want, QUANT_WANT_SCHEME);
    quant_config_free(c);
    assert_int_equal(quant_config_parse(&c, str_of(wrong), STR_NULL, &err), ST_INVALID);
    assert_string_equal(err.message, "config.json: compression_config: it is an array, not an "
                                     "object");
}

static void an_expression_that_takes_for_ever_is_refused(void **state) {
    static const char config[] = "{\"quant_method\":\"gptq\",\"dynamic\":{\"-:(x+x+)+[yz]\":{}}}";
    struct quant_config *c = NULL;
    struct quant_scheme s;
    enum quant_want want;
    struct error err;

    (void)state;
    assert_int_equal(parse_config(&c, config, &err), ST_OK);
    assert_int_equal(
        quant_config_find(c, "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", &want, &s, &err),
        ST_INVALID);
    assert_non_null(strstr(err.message, "exceeds its limit on the name 'xxx"));
    quant_config_free(c);
}

/* quantization_config of GPTQ with `n` times `expression`, numbered. */
static enum status parse_many(int n, const char *expression, struct error *err) {
    struct quant_config *c = NULL;
    struct buf text;
    enum status st;

    buf_init(&text, 0);
    buf_appendf(&text, "{\"quantization_config\":{\"quant_method\":\"gptq\",\"dynamic\":{");
    for (int i = 0; i < n; i++)
        buf_appendf(&text, "%s\"-:%s%d\":{}", i ? "," : "", expression, i);
    buf_appendf(&text, "}}}");
    st = quant_config_parse(&c, buf_str(&text), STR_NULL, err);
    if (st == ST_OK) quant_config_free(c);
    buf_fini(&text);
    return st;
}

static void expressions_are_limited_in_number_and_in_size(void **state) {
    struct error err = {0};

    (void)state;
    assert_int_equal(parse_many(1000, "a", &err), ST_OK);
    assert_int_equal(parse_many(1001, "a", &err), ST_INVALID);
    assert_non_null(strstr(err.message, "dynamic: more than 1000 expressions"));
    assert_int_equal(parse_many(100, "(?:abcdefghijklmnop){1000}", &err), ST_OK);
    assert_int_equal(parse_many(900, "(?:abcdefghijklmnop){1000}", &err), ST_INVALID);
    assert_non_null(strstr(err.message, "take more than 16777216 bytes: write shorter ones"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_scale_or_one_for_each_row_of_fp8),
        cmocka_unit_test(blocks_of_fp8_with_ragged_edges),
        cmocka_unit_test(packed_formats_of_compressed_tensors),
        cmocka_unit_test(groups_of_compressed_tensors),
        cmocka_unit_test(int8_with_inputs_in_int8),
        cmocka_unit_test(awq_and_gptq),
        cmocka_unit_test(desc_act_is_the_same_matrix),
        cmocka_unit_test(wrong_modules_are_named),
        cmocka_unit_test(values_that_make_no_weights_are_named),
        cmocka_unit_test(negative_scales_are_kept),
        cmocka_unit_test(ranks_cut_inputs_between_groups),
        cmocka_unit_test(configurations_that_are_not_read_are_named),
        cmocka_unit_test(modules_are_ignored_by_their_writers_rules),
        cmocka_unit_test(hf_quant_config_alone_is_enough),
        cmocka_unit_test(hf_quant_config_is_read_only_when_it_decides),
        cmocka_unit_test(modelopts_object_inside_config_json_is_read),
        cmocka_unit_test(compression_config_of_older_writers_is_read),
        cmocka_unit_test(an_expression_that_takes_for_ever_is_refused),
        cmocka_unit_test(expressions_are_limited_in_number_and_in_size),
    };

    return cmocka_run_group_tests_name("worker/model/quant/module", tests, NULL, NULL);
}
