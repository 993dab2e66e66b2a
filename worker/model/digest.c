/* worker/model/digest.c - see the header. Each part goes in behind its length, so that no two
 * checkpoints give the same bytes. */
#include "worker/model/digest.h"

#include <limits.h>
#include <stdio.h>

#include "common/base/file.h"
#include "common/base/mem.h"

#define MAX_CONFIG_BYTES ((size_t)4 << 20)

static void add(struct sha256 *ctx, const void *data, size_t n) {
    uint64_t size = n;

    sha256_add(ctx, &size, sizeof(size));
    sha256_add(ctx, data, n);
}

static enum status add_file(struct sha256 *ctx, const char *folder, const char *name,
                            struct error *err) {
    char path[PATH_MAX], *text = NULL;
    size_t n = 0;
    enum status st = ST_OK;

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    if (file_exists(path)) st = file_read(path, MAX_CONFIG_BYTES, &text, &n, err);
    if (st == ST_OK) add(ctx, text, n);
    mem_free(text);
    return st;
}

static void add_tensor(struct sha256 *ctx, const struct safetensor *t) {
    add(ctx, t->name.ptr, t->name.len);
    add(ctx, t->type_name.ptr, t->type_name.len);
    add(ctx, t->shape, t->n_dims * sizeof(*t->shape));
    add(ctx, t->data, t->n_bytes);
}

enum status digest_checkpoint(const char *folder, const struct weights *w,
                              uint8_t out[SHA256_BYTES], struct error *err) {
    struct sha256 *ctx = sha256_create();
    enum status st;

    sha256_begin(ctx);
    st = add_file(ctx, folder, "config.json", err);
    if (st == ST_OK) st = add_file(ctx, folder, "hf_quant_config.json", err);
    for (uint32_t i = 0; i < weights_count(w) && st == ST_OK; i++)
        add_tensor(ctx, weights_at(w, i));
    if (st == ST_OK) sha256_end(ctx, out);
    sha256_destroy(ctx);
    return st;
}
