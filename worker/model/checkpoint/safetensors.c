/* worker/model/checkpoint/safetensors.c - the header parsed, every claim in it checked. */
#include "worker/model/checkpoint/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/text/json.h"

#define PREFIX_BYTES 8

struct safetensors {
    char *name; /* for messages */
    const uint8_t *base;
    size_t n_bytes;
    bool is_mapped;
    const uint8_t *data; /* behind the header */
    uint64_t data_bytes;
    struct arena arena;
    struct safetensor *tensors; /* by name */
    uint32_t n;
};

/* Every type the format defines. */
static const struct type {
    const char *name;
    uint32_t bits;
    enum file_type type;
} types[] = {
    {"BF16", 16, FILE_BF16},      {"F16", 16, FILE_F16},        {"F32", 32, FILE_F32},
    {"F64", 64, FILE_OTHER},      {"F8_E4M3", 8, FILE_F8_E4M3}, {"F8_E5M2", 8, FILE_OTHER},
    {"F8_E8M0", 8, FILE_F8_E8M0}, {"BOOL", 8, FILE_OTHER},      {"U8", 8, FILE_U8},
    {"I8", 8, FILE_I8},           {"U16", 16, FILE_OTHER},      {"I16", 16, FILE_OTHER},
    {"U32", 32, FILE_OTHER},      {"I32", 32, FILE_I32},        {"U64", 64, FILE_OTHER},
    {"I64", 64, FILE_I64},        {"C64", 64, FILE_OTHER},
};

static const struct type *find_type(struct str name) {
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        if (str_eq(name, str_of(types[i].name))) return &types[i];
    }
    return NULL;
}

static enum status broken(const struct safetensors *file, struct error *err, const char *tensor,
                          const char *what) {
    return error_set(err, ST_INVALID, "%s is not a valid safetensors file: tensor '%.100s' %s",
                     file->name, tensor, what);
}

/* --- one entry ---------------------------------------------------------------------------------*/
static enum status read_shape(const struct json *v, struct safetensor *t, uint64_t *n_elements) {
    *n_elements = 1;
    if (json_type(v) != JSON_ARRAY) return ST_INVALID;
    JSON_FOR_EACH(dim, v) {
        uint64_t d;

        if (json_to_u64(dim, &d) != ST_OK) return ST_INVALID;
        if (__builtin_mul_overflow(*n_elements, d, n_elements)) return ST_INVALID;
        if (t->n_dims < SAFETENSORS_MAX_DIMS) t->shape[t->n_dims] = d;
        t->n_dims++;
    }
    return ST_OK;
}

static enum status read_span(const struct json *v, uint64_t *begin, uint64_t *end) {
    const struct json *first = json_first(v), *second = first ? json_next(first) : NULL;

    if (json_type(v) != JSON_ARRAY || !second || json_next(second) ||
        json_to_u64(first, begin) != ST_OK || json_to_u64(second, end) != ST_OK) {
        return ST_INVALID;
    }
    return *begin <= *end ? ST_OK : ST_INVALID;
}

static enum status read_entry(struct safetensors *file, const struct json *v, struct safetensor *t,
                              struct error *err) {
    struct str key = json_key(v), type_name;
    uint64_t n_elements, n_bits, begin = 0, end = 0;
    const struct type *type;

    if (json_to_str(json_get(v, "dtype"), &type_name) != ST_OK || !(type = find_type(type_name))) {
        return broken(file, err, key.ptr, "has an unknown dtype");
    }
    if (read_shape(json_get(v, "shape"), t, &n_elements) != ST_OK ||
        __builtin_mul_overflow(n_elements, (uint64_t)type->bits, &n_bits)) {
        return broken(file, err, key.ptr, "has an invalid shape");
    }
    if (read_span(json_get(v, "data_offsets"), &begin, &end) != ST_OK) {
        return broken(file, err, key.ptr, "has invalid data_offsets");
    }
    if (end > file->data_bytes) {
        return broken(file, err, key.ptr,
                      "lies beyond the end of the file (is the download complete?)");
    }
    if (end - begin != n_bits / 8) {
        return broken(file, err, key.ptr, "has data_offsets that do not fit its shape and dtype");
    }
    t->name = (struct str){arena_strndup(&file->arena, key.ptr, key.len), key.len};
    t->type_name = str_of(type->name);
    t->type = t->n_dims <= SAFETENSORS_MAX_DIMS ? type->type : FILE_OTHER;
    t->is_usable = t->type <= FILE_F32;
    t->dtype = t->type == FILE_BF16 ? DTYPE_BF16 : t->type == FILE_F16 ? DTYPE_F16 : DTYPE_F32;
    t->data = file->data + begin;
    t->n_bytes = end - begin;
    return ST_OK;
}

/* --- all of them -------------------------------------------------------------------------------*/
static int by_place(const void *a, const void *b) {
    const struct safetensor *x = a, *y = b;

    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    return (x->n_bytes > y->n_bytes) - (x->n_bytes < y->n_bytes);
}

static int compare_names(struct str x, struct str y) {
    int c = memcmp(x.ptr, y.ptr, MIN(x.len, y.len));

    return c ? c : (x.len > y.len) - (x.len < y.len);
}

static int by_name(const void *a, const void *b) {
    return compare_names(((const struct safetensor *)a)->name,
                         ((const struct safetensor *)b)->name);
}

/* The format leaves no byte of the data to two tensors, nor to none. */
static enum status check_places(struct safetensors *file, struct error *err) {
    const uint8_t *at = file->data;

    qsort(file->tensors, file->n, sizeof(*file->tensors), by_place);
    for (uint32_t i = 0; i < file->n; i++) {
        struct safetensor *t = &file->tensors[i];

        if (t->data < at) return broken(file, err, t->name.ptr, "overlaps another tensor");
        if (t->data > at) return broken(file, err, t->name.ptr, "has a gap before it");
        at += t->n_bytes;
    }
    if (at != file->data + file->data_bytes) {
        return error_set(err, ST_INVALID,
                         "%s is not a valid safetensors file: %llu bytes follow the last tensor",
                         file->name, (unsigned long long)(file->data + file->data_bytes - at));
    }
    return ST_OK;
}

static enum status check_names(struct safetensors *file, struct error *err) {
    qsort(file->tensors, file->n, sizeof(*file->tensors), by_name);
    for (uint32_t i = 1; i < file->n; i++) {
        if (str_eq(file->tensors[i - 1].name, file->tensors[i].name)) {
            return broken(file, err, file->tensors[i].name.ptr, "appears twice");
        }
    }
    return ST_OK;
}

static enum status read_header(struct safetensors *file, struct str header, struct error *err) {
    static const struct json_limits limits = {.max_bytes = SAFETENSORS_MAX_HEADER, .max_depth = 8};
    struct json *root = NULL;
    size_t n;
    enum status st = json_parse(&root, header, &limits, err);

    if (st != ST_OK) return error_prefix(err, "the header of %s", file->name), st;
    if (json_type(root) != JSON_OBJECT) {
        st = error_set(err, ST_INVALID, "the header of %s is not a JSON object", file->name);
    }
    n = json_count(root);
    if (st == ST_OK) file->tensors = mem_try_zalloc(MAX(n, (size_t)1) * sizeof(*file->tensors));
    if (st == ST_OK && !file->tensors)
        st = error_set(err, ST_NOMEM, "out of memory for %zu tensors", n);
    for (const struct json *v = json_first(root); v && st == ST_OK; v = json_next(v)) {
        if (str_eq(json_key(v), STR("__metadata__"))) continue;
        st = read_entry(file, v, &file->tensors[file->n++], err);
    }
    json_destroy(root);
    if (st == ST_OK) st = check_places(file, err);
    if (st == ST_OK) st = check_names(file, err);
    return st;
}

static enum status parse(struct safetensors *file, struct error *err) {
    uint64_t n_header = 0;

    if (file->n_bytes < PREFIX_BYTES) {
        return error_set(err, ST_INVALID,
                         "%s has %zu bytes, too few for a safetensors file: download it again",
                         file->name, file->n_bytes);
    }
    for (int i = PREFIX_BYTES - 1; i >= 0; i--)
        n_header = n_header << 8 | file->base[i];
    if (n_header > SAFETENSORS_MAX_HEADER || n_header > file->n_bytes - PREFIX_BYTES) {
        return error_set(err, ST_INVALID,
                         "%s is not a safetensors file or is truncated: it declares a header of "
                         "%llu bytes but has %zu bytes: download it again",
                         file->name, (unsigned long long)n_header, file->n_bytes);
    }
    file->data = file->base + PREFIX_BYTES + n_header;
    file->data_bytes = file->n_bytes - PREFIX_BYTES - n_header;
    return read_header(file, (struct str){(const char *)file->base + PREFIX_BYTES, n_header}, err);
}

static struct safetensors *alloc(const char *name) {
    struct safetensors *file = mem_zalloc(sizeof(*file));

    file->name = mem_strdup(name);
    arena_init(&file->arena, 0);
    return file;
}

enum status safetensors_parse(struct safetensors **out, const void *data, size_t n,
                              const char *name, struct error *err) {
    struct safetensors *file = alloc(name);
    enum status st;

    file->base = data;
    file->n_bytes = n;
    st = parse(file, err);
    if (st != ST_OK) {
        safetensors_close(file);
        return st;
    }
    *out = file;
    return ST_OK;
}

static enum status map_file(struct safetensors *file, const char *path, struct error *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    enum status st = ST_OK;
    struct stat sb;
    void *base;

    if (fd < 0) return error_set(err, ST_IO, "cannot open %s: %s", path, strerror(errno));
    if (fstat(fd, &sb) != 0) {
        st = error_set(err, ST_IO, "cannot stat %s: %s", path, strerror(errno));
    } else if (!S_ISREG(sb.st_mode) || sb.st_size == 0) {
        st = error_set(err, ST_INVALID, "%s is empty or not a regular file: download it again",
                       path);
    } else {
        base = mmap(NULL, (size_t)sb.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (base == MAP_FAILED) {
            st = error_set(err, ST_IO, "cannot map %s: %s", path, strerror(errno));
        } else {
            file->base = base;
            file->n_bytes = (size_t)sb.st_size;
            file->is_mapped = true;
        }
    }
    close(fd);
    return st;
}

enum status safetensors_open(struct safetensors **out, const char *path, struct error *err) {
    struct safetensors *file = alloc(path);
    enum status st = map_file(file, path, err);

    if (st == ST_OK) st = parse(file, err);
    if (st != ST_OK) {
        safetensors_close(file);
        return st;
    }
    *out = file;
    return ST_OK;
}

void safetensors_close(struct safetensors *file) {
    if (!file) return;
    if (file->is_mapped) munmap((void *)(uintptr_t)file->base, file->n_bytes);
    mem_free(file->tensors);
    arena_fini(&file->arena);
    mem_free(file->name);
    mem_free(file);
}

uint32_t safetensors_count(const struct safetensors *file) {
    return file->n;
}

const struct safetensor *safetensors_at(const struct safetensors *file, uint32_t i) {
    return &file->tensors[i];
}

const struct safetensor *safetensors_find(const struct safetensors *file, struct str name) {
    struct safetensor key = {.name = name};

    return file->n ? bsearch(&key, file->tensors, file->n, sizeof(key), by_name) : NULL;
}

void safetensors_forget(const struct safetensors *file, const struct safetensor *t) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = ALIGN_UP((uintptr_t)t->data, page);
    uintptr_t end = ((uintptr_t)t->data + t->n_bytes) / page * page;

    if (file->is_mapped && begin < end) madvise((void *)begin, end - begin, MADV_DONTNEED);
}
