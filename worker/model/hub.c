/* worker/model/hub.c - see hub.h: which files, and in which order. */
#include "worker/model/hub.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/text/json.h"
#include "worker/model/checkpoint/weights.h"
#include "worker/model/hub_internal.h"

#define MAX_LISTING_BYTES ((size_t)32 << 20)
#define MAX_FILES         (WEIGHTS_MAX_SHARDS + 24) /* and what lies beside them */
#define SPARE_BYTES       ((uint64_t)64 << 20)      /* left on the disk for others */
#define GIB               (1024.0 * 1024.0 * 1024.0)

static const char single[] = "model.safetensors", sharded[] = "model.safetensors.index.json";

/* What a worker reads besides the weights, where a repository has it. */
static const char *const small_files[] = {"config.json",           "generation_config.json",
                                          "hf_quant_config.json",  "tokenizer.json",
                                          "tokenizer_config.json", "chat_template.jinja",
                                          "chat_template.json",    "special_tokens_map.json"};

/* --- settings --------------------------------------------------------------------------------- */
static bool env_is_true(const char *name) {
    static const char *const yes[] = {"1", "true", "yes", "on"};
    const char *value = getenv(name);

    for (size_t i = 0; value && i < ARRAY_LEN(yes); i++) {
        if (str_eq_nocase(str_of(value), str_of(yes[i]))) return true;
    }
    return false;
}

static void take_token(struct hub *h, struct str text) {
    text.len = strcspn(text.ptr, "\r\n \t");
    if (text.len < sizeof(h->token)) snprintf(h->token, sizeof(h->token), STR_FMT, STR_ARG(text));
}

/* HF_TOKEN, or the file that other tools keep it in. */
static void find_token(struct hub *h) {
    const char *value = getenv("HF_TOKEN"), *home = getenv("HF_HOME");
    char path[HUB_PATH_MAX], *text = NULL;
    size_t n;

    if (value) {
        take_token(h, str_of(value));
        return;
    }
    if ((value = getenv("HF_TOKEN_PATH"))) {
        snprintf(path, sizeof(path), "%s", value);
    } else if (home) {
        snprintf(path, sizeof(path), "%s/token", home);
    } else {
        home = getenv("HOME");
        snprintf(path, sizeof(path), "%s/.cache/huggingface/token", home ? home : "");
    }
    if (file_read(path, sizeof(h->token), &text, &n, NULL) == ST_OK) take_token(h, str_of(text));
    mem_free(text);
}

static enum status find_endpoint(struct hub *h, struct error *err) {
    const char *value = getenv("HF_ENDPOINT");
    size_t n;
    enum status st;

    if (!value || !value[0]) value = "https://huggingface.co";
    n = strlen(value);
    while (n > 0 && value[n - 1] == '/')
        n--;
    if (n >= sizeof(h->endpoint))
        return error_set(err, ST_INVALID, "HF_ENDPOINT is too long: use a shorter URL");
    snprintf(h->endpoint, sizeof(h->endpoint), "%.*s", (int)n, value);
    st = http_origin_of(&h->origin, h->endpoint, err);
    if (st != ST_OK) return error_prefix(err, "HF_ENDPOINT"), st;
    if (h->origin.is_https || h->origin.is_loopback) return ST_OK;
    return error_set(
        err, ST_INVALID,
        "HF_ENDPOINT %.100s is not https: use https, which protects the token and the model",
        h->endpoint);
}

/* --- what to fetch ---------------------------------------------------------------------------- */
static struct hub_file *add_file(struct hub *h, const char *name) {
    struct hub_file *f;

    for (uint32_t i = 0; i < h->n_files; i++) {
        if (strcmp(h->files[i].name, name) == 0) return &h->files[i];
    }
    if (h->n_files == MAX_FILES) return NULL;
    h->files = mem_realloc(h->files, (h->n_files + 1) * sizeof(*h->files));
    f = &h->files[h->n_files++];
    *f = (struct hub_file){.n_bytes = 0};
    snprintf(f->name, sizeof(f->name), "%s", name);
    return f;
}

static enum status add_shard(void *arg, struct str tensor, const char *file, struct error *err) {
    (void)tensor;
    if (!hub_is_file_name(str_of(file)))
        return error_set(err, ST_INVALID,
                         "the index names '%.100s', which is not a valid file name", file);
    if (add_file(arg, file)) return ST_OK;
    return error_set(err, ST_TOO_LARGE, "the index names more than %d files", WEIGHTS_MAX_SHARDS);
}

static bool lists(const struct json *listing, const char *name) {
    struct str file;

    JSON_FOR_EACH(v, json_get(listing, "siblings")) {
        if (json_to_str(json_get(v, "rfilename"), &file) == ST_OK && str_eq(file, str_of(name)))
            return true;
    }
    return false;
}

static bool lists_like(const struct json *listing, const char *suffix) {
    struct str file;

    JSON_FOR_EACH(v, json_get(listing, "siblings")) {
        if (json_to_str(json_get(v, "rfilename"), &file) == ST_OK && str_ends(file, str_of(suffix)))
            return true;
    }
    return false;
}

static enum status explain_absence(const struct hub *h, const struct json *listing,
                                   struct error *err) {
    if (lists_like(listing, ".bin"))
        return error_set(
            err, ST_UNSUPPORTED,
            "unsupported weights of %s: PyTorch (*.bin); supported are safetensors. Convert them: "
            "python3 -c \"from transformers import AutoModelForCausalLM as M, AutoTokenizer as T; "
            "d='converted'; M.from_pretrained('%s').save_pretrained(d); "
            "T.from_pretrained('%s').save_pretrained(d)\", then --model converted",
            h->name, h->name, h->name);
    if (lists_like(listing, ".gguf"))
        return error_set(
            err, ST_UNSUPPORTED,
            "unsupported weights of %s: GGUF; supported are safetensors: use the original model",
            h->name);
    return error_set(err, ST_NOT_FOUND, "%s has no weights as *.safetensors: use another model",
                     h->name);
}

/* The index is fetched at once: the shards are in it. */
static enum status add_shards(struct hub *h, struct error *err) {
    char path[HUB_PATH_MAX], *text = NULL;
    struct hub_file file = {.n_bytes = 0};
    size_t n = 0;
    enum status st;

    snprintf(file.name, sizeof(file.name), "%s", sharded);
    st = hub_http_describe(h, &file, err);
    if (st == ST_OK) st = hub_http_download(h, &file, err);
    if (st != ST_OK) return st;
    *add_file(h, sharded) = file;
    hub_cache_blob_path(&h->cache, file.etag, "", path);
    st = file_read(path, WEIGHTS_MAX_INDEX_BYTES, &text, &n, err);
    if (st == ST_OK) st = weights_index_read((struct str){text, n}, add_shard, h, err);
    mem_free(text);
    return st;
}

static enum status choose_files(struct hub *h, const struct json *listing, struct error *err) {
    if (!lists(listing, "config.json") || !lists(listing, "tokenizer.json"))
        return error_set(
            err, ST_UNSUPPORTED,
            "%s has no %s: use a model in the format of transformers with a tokenizer.json",
            h->name, lists(listing, "config.json") ? "tokenizer.json" : "config.json");
    if (!lists(listing, single) && !lists(listing, sharded))
        return explain_absence(h, listing, err);
    for (size_t i = 0; i < ARRAY_LEN(small_files); i++) {
        if (lists(listing, small_files[i])) (void)add_file(h, small_files[i]);
    }
    if (!lists(listing, single)) return add_shards(h, err);
    (void)add_file(h, single);
    return ST_OK;
}

/* The commit that the revision is now, and its files. */
static enum status ask_hub(struct hub *h, struct json **listing, struct error *err) {
    const char *revision = h->config->revision, *slash;
    struct json_limits limits = {.max_bytes = MAX_LISTING_BYTES};
    char url[1024];
    struct str commit;
    struct buf text;
    enum status st;
    int n = snprintf(url, sizeof(url), "%s/api/models/%s/revision/", h->endpoint, h->name);

    for (; (slash = strchr(revision, '/')); revision = slash + 1)
        n += snprintf(url + n, sizeof(url) - (size_t)n, "%.*s%%2F", (int)(slash - revision),
                      revision);
    snprintf(url + n, sizeof(url) - (size_t)n, "%s", revision);
    buf_init(&text, MAX_LISTING_BYTES);
    st = hub_http_get(h, url, h->name, &text, err);
    if (st == ST_OK) {
        st = json_parse(listing, buf_str(&text), &limits, err);
        if (st != ST_OK) error_prefix(err, "%.200s", url);
    }
    buf_fini(&text);
    if (st != ST_OK) return st;
    if (json_to_str(json_get(*listing, "sha"), &commit) != ST_OK || !hub_is_commit(commit.ptr))
        return error_set(err, ST_BAD_GATEWAY,
                         "the response of %.200s names no commit: check that HF_ENDPOINT is a hub",
                         url);
    snprintf(h->commit, sizeof(h->commit), "%s", commit.ptr);
    return ST_OK;
}

/* --- fetching --------------------------------------------------------------------------------- */
/* Bytes that are not here yet; a cut file counts for the rest of it. */
static uint64_t missing_bytes(const struct hub *h) {
    uint64_t missing = 0;

    for (uint32_t i = 0; i < h->n_files; i++) {
        const struct hub_file *f = &h->files[i];
        char path[HUB_PATH_MAX];
        struct stat sb;

        hub_cache_blob_path(&h->cache, f->etag, "", path);
        if (file_exists(path)) continue;
        hub_cache_blob_path(&h->cache, f->etag, ".incomplete", path);
        missing += f->n_bytes;
        if (stat(path, &sb) == 0) missing -= MIN((uint64_t)sb.st_size, f->n_bytes);
    }
    return missing;
}

static enum status check_room(const struct hub *h, uint64_t missing, struct error *err) {
    uint64_t room = hub_cache_free_bytes(&h->cache);

    if (missing == 0 || room == UINT64_MAX || missing + SPARE_BYTES <= room) return ST_OK;
    return error_set(err, ST_IO,
                     "%s does not fit on the disk: %.2f GiB to download, but %.200s has %.2f GiB "
                     "free: free space, or name another folder with --download-dir",
                     h->name, (double)missing / GIB, h->cache.root, (double)room / GIB);
}

static enum status fetch_all(struct hub *h, struct error *err) {
    const struct hub_events *on = &h->config->events;
    enum status st = ST_OK;

    for (uint32_t i = 0; i < h->n_files && st == ST_OK; i++) {
        st = hub_http_describe(h, &h->files[i], err);
        h->total_bytes += h->files[i].n_bytes;
    }
    if (st == ST_OK) {
        uint64_t missing = missing_bytes(h);

        if (on->on_begin) on->on_begin(on->arg, h->name, h->total_bytes, h->total_bytes - missing);
        st = check_room(h, missing, err);
    }
    h->done_bytes = 0;
    for (uint32_t i = 0; i < h->n_files && st == ST_OK; i++) {
        st = hub_http_download(h, &h->files[i], err);
        if (st == ST_OK)
            st = hub_cache_link(&h->cache, h->commit, h->files[i].name, h->files[i].etag, err);
    }
    if (st == ST_OK) st = hub_cache_set_ref(&h->cache, h->config->revision, h->commit, err);
    return st;
}

static enum status fetch(struct hub *h, struct error *err) {
    struct json *listing = NULL;
    enum status st = find_endpoint(h, err);

    find_token(h);
    h->sha = sha256_create();
    if (st == ST_OK) st = http_fetch_create(&h->http, err);
    if (st == ST_OK) st = ask_hub(h, &listing, err);
    if (st == ST_OK) st = hub_cache_prepare(&h->cache, h->commit, err);
    if (st == ST_OK) st = choose_files(h, listing, err);
    if (st == ST_OK) st = fetch_all(h, err);
    json_destroy(listing);
    http_fetch_destroy(h->http);
    sha256_destroy(h->sha);
    mem_free(h->files);
    return st;
}

enum status hub_open(const char *name, const struct hub_config *config, char folder[HUB_PATH_MAX],
                     struct error *err) {
    struct hub h = {.config = config, .name = name};
    struct error missing = {0}, unread;
    enum status st;

    if (!err) err = &unread;
    if (!hub_is_revision(config->revision))
        return error_set_param(err, ST_INVALID, "revision",
                               "revision '%.100s' is not a branch, tag or commit: use main",
                               config->revision);
    if ((st = hub_cache_init(&h.cache, config->cache_folder, name, err)) != ST_OK) return st;
    if (hub_cache_find(&h.cache, config->revision, folder, &missing) == ST_OK) return ST_OK;
    if (config->is_offline || env_is_true("HF_HUB_OFFLINE"))
        return error_set(
            err, ST_NOT_FOUND,
            "%s at %s is not in the cache, and offline mode downloads nothing: start once without "
            "--offline and HF_HUB_OFFLINE, or name a folder that has the model (%.200s)",
            name, config->revision, missing.message);
    if ((st = fetch(&h, err)) != ST_OK) return st;
    st = hub_cache_find(&h.cache, h.commit, folder, err);
    return st;
}
