/* worker/model/checkpoint/safetensors.h - one .safetensors file, mapped.
 *
 *      [ 8 bytes: n, little endian ][ n bytes: JSON header ][ data ... ]
 *
 * The header names each tensor, its type, its shape and its span of the data. A file is hostile
 * until checked: header size, types, shapes against spans, overflow, order, overlap, gaps and
 * duplicate names are all verified at open, so a tensor that is found lies inside the mapping.
 * Pages are read when touched; nothing is copied. The file must not shrink while it is open (no
 * mapping survives that). Any thread may read; open and close belong to one. */
#ifndef WORKER_MODEL_CHECKPOINT_SAFETENSORS_H
#define WORKER_MODEL_CHECKPOINT_SAFETENSORS_H

#include "common/base/base.h"
#include "common/base/buf.h"
#include "common/base/status.h"
#include "kernels/backend.h"

#define SAFETENSORS_MAX_HEADER (100u << 20)
#define SAFETENSORS_MAX_DIMS   4

struct safetensors;

/* Types beyond enum dtype that quantised checkpoints have; FILE_OTHER is carried, not read. */
enum file_type {
    FILE_BF16,
    FILE_F16,
    FILE_F32,
    FILE_F8_E4M3,
    FILE_F8_E8M0,
    FILE_I8,
    FILE_U8,
    FILE_I32,
    FILE_I64,
    FILE_OTHER
};

struct safetensor {
    struct str name;
    struct str type_name; /* as written: "BF16" */
    enum file_type type;
    bool is_usable; /* `dtype` and `shape` are valid: BF16, F16 or F32, of a rank we compute with */
    enum dtype dtype;
    uint32_t n_dims;
    uint64_t shape[SAFETENSORS_MAX_DIMS];
    const uint8_t *data;
    uint64_t n_bytes;
};

MUST_USE enum status safetensors_open(struct safetensors **out, const char *path,
                                      struct error *err);

/* The same over bytes that stay the caller's and must outlive it; `name` is for messages. */
MUST_USE enum status safetensors_parse(struct safetensors **out, const void *data, size_t n,
                                       const char *name, struct error *err);
void safetensors_close(struct safetensors *file); /* NULL is fine */

uint32_t safetensors_count(const struct safetensors *file);
const struct safetensor *safetensors_at(const struct safetensors *file, uint32_t i); /* by name */
const struct safetensor *safetensors_find(const struct safetensors *file, struct str name);

/* Advises the system that this tensor is not read again, so its pages may be dropped. */
void safetensors_forget(const struct safetensors *file, const struct safetensor *t);

#endif
