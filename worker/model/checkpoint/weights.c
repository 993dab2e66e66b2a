/* worker/model/checkpoint/weights.c - one table of tensors over one or more files. */
#include "worker/model/checkpoint/weights.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/file.h"
#include "common/base/mem.h"
#include "common/text/json.h"

#define PATH_BYTES 4096

struct entry {
    const struct safetensor *tensor;
    uint32_t shard;
};

struct weights {
    struct safetensors **shards;
    char **shard_names;
    uint32_t n_shards;
    struct entry *entries; /* by name */
    uint32_t n_entries;
    uint64_t n_bytes;
};

/* --- which files -------------------------------------------------------------------------------*/
static enum status add_shard(struct weights *w, const char *folder, const char *name,
                             struct error *err) {
    char path[PATH_BYTES];
    enum status st;

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    w->shards = mem_realloc(w->shards, (w->n_shards + 1) * sizeof(*w->shards));
    w->shard_names = mem_realloc(w->shard_names, (w->n_shards + 1) * sizeof(*w->shard_names));
    st = safetensors_open(&w->shards[w->n_shards], path, err);
    if (st == ST_OK) w->shard_names[w->n_shards++] = mem_strdup(name);
    return st;
}

static bool find_shard(const struct weights *w, struct str name, uint32_t *i) {
    for (*i = 0; *i < w->n_shards; ++*i) {
        if (str_eq(str_of(w->shard_names[*i]), name)) return true;
    }
    return false;
}

/* A shard is a file of this folder: no path leads out of it. */
static bool is_plain_name(struct str name) {
    return name.len && name.len < 256 && name.ptr[0] != '.' && !memchr(name.ptr, '/', name.len);
}

enum status weights_index_read(struct str text,
                               enum status (*on_entry)(void *arg, struct str tensor,
                                                       const char *file, struct error *err),
                               void *arg, struct error *err) {
    static const struct json_limits limits = {.max_bytes = WEIGHTS_MAX_INDEX_BYTES, .max_depth = 8};
    struct json *root = NULL;
    const struct json *map;
    struct str file;
    enum status st = json_parse(&root, text, &limits, err);

    map = json_get(root, "weight_map");
    if (st == ST_OK && json_type(map) != JSON_OBJECT)
        st = error_set(err, ST_INVALID, "the index has no object 'weight_map'");
    for (const struct json *v = json_first(map); v && st == ST_OK; v = json_next(v)) {
        if (json_to_str(v, &file) == ST_OK && is_plain_name(file)) {
            st = on_entry(arg, json_key(v), file.ptr, err);
        } else {
            st = error_set(err, ST_INVALID, "the index names no valid file for '%.100s'",
                           json_key(v).ptr);
        }
    }
    json_destroy(root);
    if (st != ST_OK) error_prefix(err, "model.safetensors.index.json");
    return st;
}

struct opening {
    struct weights *w;
    const char *folder;
};

static enum status open_named(void *arg, struct str tensor, const char *file, struct error *err) {
    struct opening *o = arg;
    uint32_t i;

    (void)tensor;
    if (find_shard(o->w, str_of(file), &i)) return ST_OK;
    if (o->w->n_shards == WEIGHTS_MAX_SHARDS)
        return error_set(err, ST_INVALID, "the index names more than %d files", WEIGHTS_MAX_SHARDS);
    return add_shard(o->w, o->folder, file, err);
}

static enum status check_promise(void *arg, struct str tensor, const char *file,
                                 struct error *err) {
    const struct opening *o = arg;
    uint32_t i;

    if (find_shard(o->w, str_of(file), &i) && safetensors_find(o->w->shards[i], tensor))
        return ST_OK;
    return error_set(err, ST_INVALID,
                     "the index places the tensor '%.100s' in %.100s, which does not contain it: "
                     "download the model again",
                     tensor.ptr, file);
}

static enum status open_shards(struct weights *w, const char *folder, const char *index_path,
                               struct error *err) {
    struct opening o = {w, folder};
    char *text = NULL;
    size_t n = 0;
    enum status st = file_read(index_path, WEIGHTS_MAX_INDEX_BYTES, &text, &n, err);

    if (st == ST_OK) st = weights_index_read((struct str){text, n}, open_named, &o, err);
    if (st == ST_OK) st = weights_index_read((struct str){text, n}, check_promise, &o, err);
    mem_free(text);
    return st;
}

/* --- what a folder holds instead ---------------------------------------------------------------*/
static bool has_file_like(const char *folder, struct str suffix, char name[256]) {
    DIR *dir = opendir(folder);
    struct dirent *e;
    bool found = false;

    while (dir && !found && (e = readdir(dir)) != NULL) {
        found = str_ends(str_of(e->d_name), suffix);
        if (found) snprintf(name, 256, "%s", e->d_name);
    }
    if (dir) closedir(dir);
    return found;
}

/* In a cache of links the content may be gone, or a link may lead in a circle. */
static bool is_dead_link(const char *folder, const char *name, char why[64]) {
    char path[PATH_BYTES];
    struct stat sb;

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    if (lstat(path, &sb) != 0 || !S_ISLNK(sb.st_mode) || stat(path, &sb) == 0) return false;
    snprintf(why, 64, "%s", strerror(errno));
    return true;
}

static enum status explain_absence(const char *folder, struct error *err) {
    static const char *const wanted[] = {"model.safetensors", "model.safetensors.index.json"};
    char name[256], why[64];

    for (size_t i = 0; i < ARRAY_LEN(wanted); i++) {
        if (is_dead_link(folder, wanted[i], why))
            return error_set(err, ST_NOT_FOUND,
                             "%s/%s is a broken link (%s): download the model again", folder,
                             wanted[i], why);
    }
    if (has_file_like(folder, STR(".bin"), name) || has_file_like(folder, STR(".pt"), name) ||
        has_file_like(folder, STR(".pth"), name)) {
        return error_set(err, ST_NOT_FOUND,
                         "unsupported weights in %s: PyTorch (%.60s); supported are safetensors. "
                         "Convert them: python3 -c \"from transformers import AutoModelForCausalLM "
                         "as M; M.from_pretrained('%.120s').save_pretrained('%.120s')\"",
                         folder, name, folder, folder);
    }
    if (has_file_like(folder, STR(".gguf"), name)) {
        return error_set(err, ST_NOT_FOUND,
                         "unsupported weights in %s: GGUF (%.60s); supported are safetensors: use "
                         "the original model folder",
                         folder, name);
    }
    return error_set(err, ST_NOT_FOUND,
                     "%s has neither model.safetensors nor model.safetensors.index.json: name a "
                     "folder with the weights as *.safetensors beside config.json",
                     folder);
}

/* --- the table ---------------------------------------------------------------------------------*/
static int by_name(const void *a, const void *b) {
    struct str x = ((const struct entry *)a)->tensor->name;
    struct str y = ((const struct entry *)b)->tensor->name;
    int c = memcmp(x.ptr, y.ptr, MIN(x.len, y.len));

    return c ? c : (x.len > y.len) - (x.len < y.len);
}

static enum status build_table(struct weights *w, struct error *err) {
    uint32_t n = 0;

    for (uint32_t s = 0; s < w->n_shards; s++)
        n += safetensors_count(w->shards[s]);
    w->entries = mem_calloc(n, sizeof(*w->entries));
    for (uint32_t s = 0; s < w->n_shards; s++) {
        for (uint32_t i = 0; i < safetensors_count(w->shards[s]); i++) {
            const struct safetensor *t = safetensors_at(w->shards[s], i);

            w->entries[w->n_entries++] = (struct entry){t, s};
            w->n_bytes += t->n_bytes;
        }
    }
    qsort(w->entries, n, sizeof(*w->entries), by_name);
    for (uint32_t i = 1; i < n; i++) {
        const struct entry *a = &w->entries[i - 1], *b = &w->entries[i];

        if (by_name(a, b) == 0) {
            return error_set(
                err, ST_INVALID,
                "the tensor '%.100s' is in both %.100s and %.100s: download the model again",
                a->tensor->name.ptr, w->shard_names[a->shard], w->shard_names[b->shard]);
        }
    }
    return ST_OK;
}

enum status weights_open(struct weights **out, const char *folder, struct error *err) {
    struct weights *w = mem_zalloc(sizeof(*w));
    char single[PATH_BYTES], index[PATH_BYTES];
    enum status st;

    snprintf(single, sizeof(single), "%s/model.safetensors", folder);
    snprintf(index, sizeof(index), "%s/model.safetensors.index.json", folder);
    if (file_exists(single)) {
        st = add_shard(w, folder, "model.safetensors", err);
    } else if (file_exists(index)) {
        st = open_shards(w, folder, index, err);
    } else {
        st = explain_absence(folder, err);
    }
    if (st == ST_OK) st = build_table(w, err);
    if (st != ST_OK) {
        weights_close(w);
        return st;
    }
    *out = w;
    return ST_OK;
}

void weights_close(struct weights *w) {
    if (!w) return;
    for (uint32_t i = 0; i < w->n_shards; i++) {
        safetensors_close(w->shards[i]);
        mem_free(w->shard_names[i]);
    }
    mem_free(w->shards);
    mem_free(w->shard_names);
    mem_free(w->entries);
    mem_free(w);
}

static const struct entry *find(const struct weights *w, struct str name) {
    struct safetensor tensor = {.name = name};
    struct entry key = {.tensor = &tensor};

    if (!w->n_entries) return NULL;
    return bsearch(&key, w->entries, w->n_entries, sizeof(key), by_name);
}

const struct safetensor *weights_find(const struct weights *w, const char *name) {
    const struct entry *e = find(w, str_of(name));

    return e ? e->tensor : NULL;
}

void weights_forget(const struct weights *w, const struct safetensor *t) {
    const struct entry *e = find(w, t->name);

    if (e) safetensors_forget(w->shards[e->shard], t);
}

uint32_t weights_count(const struct weights *w) {
    return w->n_entries;
}

const struct safetensor *weights_at(const struct weights *w, uint32_t i) {
    return w->entries[i].tensor;
}
