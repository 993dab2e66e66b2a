/* tests/unit/cuda/shim/test_cuda_checkpoint.c - files of e4m3 weights, as they come to the library:
 * which scales they have there, whole and divided among ranks. */
#include <stdio.h>

#include "common/base/mem.h"
#include "kernels/cuda/products/quant_library.h"
#include "kernels/host/host.h"
#include "tests/support/cm.h"
#include "tests/support/spec_checkpoint.h"
#include "worker/model/checkpoint/weights.h"
#include "worker/model/quant/module.h"

#define FP8 "{\"quant_method\":\"fp8\",\"activation_scheme\":\"dynamic\"}"

static void load(struct quant_matrix_data *d, struct backend_tensor *t, struct weights *w) {
    struct error err = {0};
    struct quant_config *c;
    struct quant_module m;
    bool is_quantised;

    if (quant_config_parse(&c, str_of("{\"quantization_config\":" FP8 "}"), STR_NULL, &err) !=
        ST_OK)
        fail_msg("%s", err.message);
    if (quant_module_find(&m, &is_quantised, w, c, "m", 64, 32, &err) != ST_OK)
        fail_msg("%s", err.message);
    assert_true(is_quantised);
    *t = (struct backend_tensor){.role = ROLE_GATE};
    if (quant_module_load(&m, d, t, &err) != ST_OK) fail_msg("%s", err.message);
    quant_config_free(c);
}

/* Of the whole matrix, and of both ranks. */
static void assert_grain(const struct backend_tensor *t, enum quant_grain want) {
    assert_int_equal(quant_grain_of(t->quant, t->dtype, 64, 32), want);
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct host_model h = {
            .shard = {.rank = rank, .size = 2, .d_ff = 32, .first_ff = 32 * rank}};
        struct backend_tensor part;
        void *scratch;

        assert_int_equal(host_rank_part(&h, t, &part, &scratch, NULL), ST_OK);
        assert_int_equal(quant_grain_of(part.quant, part.dtype, (uint32_t)part.shape[0],
                                        (uint32_t)part.shape[1]),
                         want);
        mem_free(scratch);
    }
}

/* One scale a file is one scale of the matrix, and of each rank's part of it. */
static void a_file_with_one_scale_has_one_scale(void **state) {
    static const struct {
        const char *scale;
        enum quant_grain want;
    } cases[] = {{"-:1", QUANT_GRAIN_MATRIX},
                 {"1:1", QUANT_GRAIN_MATRIX},
                 {"64:1", QUANT_GRAIN_MATRIX}, /* equal, however many */
                 {"64:s", QUANT_GRAIN_ROW},
                 {"64,1:s", QUANT_GRAIN_ROW}};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char folder[SPEC_FOLDER], specs[128];
        struct quant_matrix_data d;
        struct backend_tensor t;
        struct error err = {0};
        struct weights *w;

        snprintf(specs, sizeof(specs), "m.weight:F8_E4M3:64,32:r m.weight_scale:F32:%s",
                 cases[i].scale);
        spec_folder(folder);
        spec_write(folder, "model.safetensors", specs);
        if (weights_open(&w, folder, &err) != ST_OK) fail_msg("%s", err.message);
        load(&d, &t, w);
        assert_grain(&t, cases[i].want);
        quant_matrix_fini(&d);
        weights_close(w);
        spec_erase(folder);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_with_one_scale_has_one_scale),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
