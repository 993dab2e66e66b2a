/* tests/fuzz/fuzz_quant.c - any quantization_config beside any tensors of a module: refused with a
 * sentence, or a matrix that passes the kernels' checks and lies in its memory.
 *
 * Input: n, k (a byte each), the object up to a NUL, then tensors: a byte each for the name, the
 * type, the number of sizes, the sizes, and the content. The container is always valid, since
 * fuzz_safetensors has those that are not. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "kernels/quant.h"
#include "worker/model/quant/module.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(x)                                                                                 \
    do {                                                                                           \
        if (!(x)) abort();                                                                         \
    } while (0)
#define MAX_BYTES (1u << 16)

static const char *const names[] = {"weight",
                                    "weight_scale",
                                    "weight_scale_inv",
                                    "weight_packed",
                                    "weight_shape",
                                    "weight_zero_point",
                                    "weight_g_idx",
                                    "qweight",
                                    "qzeros",
                                    "scales",
                                    "g_idx",
                                    "bias",
                                    "input_scale",
                                    "input_zero_point",
                                    "weight_scale_2",
                                    "weight_global_scale"};
static const struct {
    const char *name;
    uint32_t bytes;
} types[] = {{"BF16", 2}, {"F16", 2}, {"F32", 4}, {"F8_E4M3", 1}, {"F8_E8M0", 1},
             {"I8", 1},   {"U8", 1},  {"I32", 4}, {"I64", 8},     {"F8_E5M2", 1}};

static char folder[64];

/* Content 0 is all zero; other bytes are the first of a row of varied ones. */
static void put_content(struct buf *to, uint64_t n, uint8_t first) {
    for (uint64_t i = 0; i < n; i++)
        buf_append_char(to, (char)(first ? first + i * (first & 3u) : 0));
}

/* One tensor; returns the bytes that described it, 0 at the end. */
static size_t put_tensor(struct buf *header, struct buf *content, const uint8_t *p, size_t size,
                         uint32_t *used) {
    size_t n_dims = size > 2 ? p[2] % 5u : 0, begin = buf_len(content);
    uint64_t n = 1;

    if (size < 4 + n_dims) return 0;
    for (size_t i = 0; i < n_dims; i++)
        n *= p[3 + i];
    n *= types[p[1] % ARRAY_LEN(types)].bytes;
    if (*used & 1u << p[0] % 16 || n > MAX_BYTES) return 4 + n_dims;
    *used |= 1u << p[0] % 16;
    put_content(content, n, p[3 + n_dims]);
    buf_appendf(header, "%s\"m.%s\":{\"dtype\":\"%s\",\"shape\":[", buf_len(header) > 1 ? "," : "",
                names[p[0] % 16], types[p[1] % ARRAY_LEN(types)].name);
    for (size_t i = 0; i < n_dims; i++)
        buf_appendf(header, "%s%u", i ? "," : "", p[3 + i]);
    buf_appendf(header, "],\"data_offsets\":[%zu,%zu]}", begin, buf_len(content));
    return 4 + n_dims;
}

static void write_file(const uint8_t *p, size_t size) {
    struct buf header, content;
    uint32_t used = 0;
    char path[96];
    FILE *f;
    uint64_t n;

    buf_init(&header, 0);
    buf_init(&content, 0);
    buf_append_char(&header, '{');
    for (size_t step; (step = put_tensor(&header, &content, p, size, &used)) > 0; size -= step)
        p += step;
    buf_append_char(&header, '}');
    n = buf_len(&header);
    if (!folder[0]) {
        snprintf(folder, sizeof(folder), "/dev/shm/fuzz-quant-XXXXXX");
        REQUIRE(mkdtemp(folder));
    }
    snprintf(path, sizeof(path), "%s/model.safetensors", folder);
    f = fopen(path, "wb");
    REQUIRE(f && fwrite(&n, 8, 1, f) == 1 && fwrite(buf_str(&header).ptr, n, 1, f) == 1);
    if (buf_len(&content)) REQUIRE(fwrite(buf_str(&content).ptr, buf_len(&content), 1, f) == 1);
    fclose(f);
    buf_fini(&header);
    buf_fini(&content);
}

static void require_sound(const struct backend_tensor *t) {
    struct error err;
    float sum = 0;

    REQUIRE(quant_check(t, "m", &err) == ST_OK);
    for (uint64_t n = 0; n < t->shape[0]; n++) {
        for (uint64_t k = 0; k < t->shape[1]; k++)
            sum += quant_code(
                t->dtype, (const uint8_t *)t->data + n * dtype_row_bytes(t->dtype, t->shape[1]), k);
    }
    REQUIRE(sum == sum); /* no NaN among the codes */
}

static void try_module(const struct quant_config *c, uint64_t n, uint64_t k) {
    struct weights *w = NULL;
    struct quant_module m;
    struct quant_matrix_data d;
    struct backend_tensor t = {.role = ROLE_UP};
    struct error err = {0};
    bool is_quantised = false;
    enum status st = weights_open(&w, folder, &err);

    if (st == ST_OK) st = quant_module_find(&m, &is_quantised, w, c, "m", n, k, &err);
    if (st == ST_OK && is_quantised) {
        REQUIRE(quant_module_bytes(&m) > 0 && m.n_all <= QUANT_MODULE_TENSORS);
        st = quant_module_load(&m, &d, &t, &err);
        if (st == ST_OK) {
            require_sound(&t);
            quant_matrix_fini(&d);
        }
    }
    REQUIRE(st == ST_OK || err.message[0]); /* every refusal has a reason */
    weights_close(w);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const uint8_t *nul = size > 2 ? memchr(data + 2, 0, size - 2) : NULL;
    struct quant_config *c = NULL;
    struct error err = {0};
    struct buf text;

    if (!nul || !data[0] || !data[1]) return 0;
    buf_init(&text, 0);
    buf_append(&text, "{\"quantization_config\":", 23);
    buf_append(&text, data + 2, (size_t)(nul - data) - 2);
    buf_append_char(&text, '}');
    if (quant_config_parse(&c, buf_str(&text), STR_NULL, &err) == ST_OK) {
        write_file(nul + 1, (size_t)(data + size - nul) - 1);
        try_module(c, data[0], data[1]);
        quant_config_free(c);
    } else {
        REQUIRE(err.message[0]);
    }
    buf_fini(&text);
    return 0;
}
