/* worker/model/hub_cache.c - see hub_cache.h. */
#include "worker/model/hub_cache.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/base/mem.h"
#include "worker/model/checkpoint/weights.h"

#define COMMIT_CHARS  40
#define MAX_NAME      96 /* of an organisation or a model; the hub's own limit */
#define MAX_REF_BYTES 256

/* --- names that become paths ------------------------------------------------------------------ */
static bool is_word(struct str s, const char *also, size_t max) {
    if (s.len == 0 || s.len > max || s.ptr[0] == '.' || s.ptr[0] == '-') return false;
    for (size_t i = 0; i < s.len; i++) {
        char c = s.ptr[i];
        bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');

        if (!is_plain && (c == '\0' || !strchr(also, c))) return false;
    }
    return str_find(s, STR("..")) < 0;
}

bool hub_is_model_name(const char *text) {
    const char *slash = strchr(text, '/');

    return slash && is_word((struct str){text, (size_t)(slash - text)}, "._-", MAX_NAME) &&
           is_word(str_of(slash + 1), "._-", MAX_NAME) && !strstr(text, "--");
}

bool hub_is_revision(const char *text) {
    return is_word(str_of(text), "._-/", 128) && text[0] != '/' && !strstr(text, "//") &&
           !strstr(text, "/.") && text[strlen(text) - 1] != '/';
}

bool hub_is_commit(const char *text) {
    return strlen(text) == COMMIT_CHARS && strspn(text, "0123456789abcdef") == COMMIT_CHARS;
}

bool hub_is_file_name(struct str name) {
    return is_word(name, "._-", 200);
}

bool hub_is_etag(struct str etag) {
    return is_word(etag, "_-", 128);
}

/* --- places ----------------------------------------------------------------------------------- */
static enum status join(char path[HUB_PATH_MAX], struct error *err, const char *fmt, ...)
    PRINTF_LIKE(3, 4);

static enum status join(char path[HUB_PATH_MAX], struct error *err, const char *fmt, ...) {
    va_list args;
    int n;

    va_start(args, fmt);
    n = vsnprintf(path, HUB_PATH_MAX, fmt, args);
    va_end(args);
    if (n >= 0 && n < HUB_PATH_MAX - 300) return ST_OK; /* what stands behind it fits as well */
    return error_set(err, ST_INVALID,
                     "the path %.100s... of the model cache is too long: name a shorter one with "
                     "--download-dir",
                     path);
}

static const char *env(const char *name) {
    const char *value = getenv(name);

    return value && value[0] ? value : NULL;
}

static enum status find_root(char root[HUB_PATH_MAX], const char *folder, struct error *err) {
    const char *from;

    if (folder && folder[0]) return join(root, err, "%s", folder);
    if ((from = env("HF_HUB_CACHE"))) return join(root, err, "%s", from);
    if ((from = env("HF_HOME"))) return join(root, err, "%s/hub", from);
    if ((from = env("XDG_CACHE_HOME"))) return join(root, err, "%s/huggingface/hub", from);
    if ((from = env("HOME"))) return join(root, err, "%s/.cache/huggingface/hub", from);
    return error_set(
        err, ST_INVALID,
        "the model cache has no folder, because HOME is not set: name one with --download-dir");
}

enum status hub_cache_init(struct hub_cache *c, const char *folder, const char *name,
                           struct error *err) {
    const char *slash = strchr(name, '/');

    snprintf(c->repo, sizeof(c->repo), "models--%.*s--%s", (int)(slash - name), name, slash + 1);
    return find_root(c->root, folder, err);
}

void hub_cache_blob_path(const struct hub_cache *c, const char *etag, const char *suffix,
                         char path[HUB_PATH_MAX]) {
    snprintf(path, HUB_PATH_MAX, "%.3500s/%s/blobs/%s%s", c->root, c->repo, etag, suffix);
}

/* --- looking ---------------------------------------------------------------------------------- */
static bool has_file(const char *snapshot, const char *name) {
    char path[HUB_PATH_MAX + 256];

    snprintf(path, sizeof(path), "%s/%s", snapshot, name);
    return file_exists(path);
}

static enum status must_have(void *arg, const char *name, struct error *err) {
    if (has_file(arg, name)) return ST_OK;
    return error_set(err, ST_NOT_FOUND, "%s is missing", name);
}

static enum status must_have_shard(void *arg, struct str tensor, const char *file,
                                   struct error *err) {
    (void)tensor;
    return must_have(arg, file, err);
}

static enum status has_weights(char *snapshot, struct error *err) {
    char path[HUB_PATH_MAX + 64], *text = NULL;
    size_t n = 0;
    enum status st;

    if (has_file(snapshot, "model.safetensors")) return ST_OK;
    if (!has_file(snapshot, "model.safetensors.index.json"))
        return must_have(snapshot, "model.safetensors", err);
    snprintf(path, sizeof(path), "%s/model.safetensors.index.json", snapshot);
    st = file_read(path, WEIGHTS_MAX_INDEX_BYTES, &text, &n, err);
    if (st == ST_OK) st = weights_index_read((struct str){text, n}, must_have_shard, snapshot, err);
    mem_free(text);
    return st;
}

static enum status commit_of(const struct hub_cache *c, const char *revision,
                             char commit[COMMIT_CHARS + 1], struct error *err) {
    char path[HUB_PATH_MAX], *text = NULL;
    size_t n = 0;
    enum status st = ST_OK;

    if (hub_is_commit(revision)) {
        snprintf(commit, COMMIT_CHARS + 1, "%s", revision);
        return ST_OK;
    }
    st = join(path, err, "%s/%s/refs/%s", c->root, c->repo, revision);
    if (st == ST_OK) st = file_read(path, MAX_REF_BYTES, &text, &n, err);
    if (st == ST_OK) {
        while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == ' '))
            text[--n] = '\0';
        if (hub_is_commit(text)) {
            snprintf(commit, COMMIT_CHARS + 1, "%s", text);
        } else {
            st = error_set(err, ST_INVALID, "%s holds no commit: remove the file", path);
        }
    }
    mem_free(text);
    return st;
}

enum status hub_cache_find(const struct hub_cache *c, const char *revision, char path[HUB_PATH_MAX],
                           struct error *err) {
    char commit[COMMIT_CHARS + 1];
    enum status st = commit_of(c, revision, commit, err);

    if (st == ST_OK) st = join(path, err, "%s/%s/snapshots/%s", c->root, c->repo, commit);
    if (st != ST_OK) return st;
    st = must_have(path, "config.json", err);
    if (st == ST_OK) st = must_have(path, "tokenizer.json", err);
    if (st == ST_OK) st = has_weights(path, err);
    if (st != ST_OK) error_prefix(err, "%.120s", path);
    return st;
}

/* --- writing ---------------------------------------------------------------------------------- */
static enum status cannot(const char *what, const char *path, struct error *err) {
    return error_set(
        err, ST_IO,
        "cannot %s %.250s: %s; check the folder, or name another one with --download-dir", what,
        path, strerror(errno));
}

/* Makes every folder on the way to `path`, and `path` itself. */
static enum status make_folders(const char *path, struct error *err) {
    char at[HUB_PATH_MAX];

    snprintf(at, sizeof(at), "%s", path);
    for (char *from = at + 1;;) {
        char *slash = strchr(from, '/');

        if (slash) *slash = '\0';
        if (mkdir(at, 0777) != 0 && errno != EEXIST) return cannot("create the folder", at, err);
        if (!slash) return ST_OK;
        *slash = '/';
        from = slash + 1;
    }
}

enum status hub_cache_prepare(const struct hub_cache *c, const char *commit, struct error *err) {
    char path[HUB_PATH_MAX];
    enum status st = join(path, err, "%s/%s/blobs", c->root, c->repo);

    if (st == ST_OK) st = make_folders(path, err);
    if (st == ST_OK) st = join(path, err, "%s/%s/snapshots/%s", c->root, c->repo, commit);
    if (st == ST_OK) st = make_folders(path, err);
    if (st == ST_OK) st = join(path, err, "%s/.locks/%s", c->root, c->repo);
    if (st == ST_OK) st = make_folders(path, err);
    return st;
}

uint64_t hub_cache_free_bytes(const struct hub_cache *c) {
    struct statvfs fs;

    if (statvfs(c->root, &fs) != 0) return UINT64_MAX;
    return (uint64_t)fs.f_bavail * fs.f_frsize;
}

enum status hub_cache_lock(const struct hub_cache *c, const char *etag, void (*on_wait)(void *arg),
                           void *arg, int *fd, struct error *err) {
    char path[HUB_PATH_MAX];
    int rc;

    snprintf(path, sizeof(path), "%.3500s/.locks/%s/%s.lock", c->root, c->repo, etag);
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (*fd < 0) return cannot("open", path, err);
    rc = flock(*fd, LOCK_EX | LOCK_NB);
    if (rc != 0 && errno == EWOULDBLOCK) {
        on_wait(arg);
        do {
            rc = flock(*fd, LOCK_EX);
        } while (rc != 0 && errno == EINTR);
    }
    if (rc == 0) return ST_OK;
    close(*fd);
    return cannot("lock", path, err);
}

/* Puts something new at `path` in one move: made under a name of its own, then renamed. Processes
 * of several containers that share a cache may all have the id 1. */
static enum status put(const char *path, const char *target, const char *content,
                       struct error *err) {
    char fresh[HUB_PATH_MAX + 32];
    uint64_t chance;
    int fd;

    hash_random(&chance, sizeof(chance));
    snprintf(fresh, sizeof(fresh), "%s.%016" PRIx64 ".new", path, chance);
    if (target) {
        if (symlink(target, fresh) != 0) return cannot("create the link", fresh, err);
    } else {
        ssize_t n = (ssize_t)strlen(content);

        fd = open(fresh, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd < 0) return cannot("write", fresh, err);
        if (write(fd, content, (size_t)n) != n) {
            close(fd);
            unlink(fresh);
            return cannot("write", fresh, err);
        }
        close(fd);
    }
    if (rename(fresh, path) == 0) return ST_OK;
    unlink(fresh);
    return cannot("write", path, err);
}

enum status hub_cache_link(const struct hub_cache *c, const char *commit, const char *file_name,
                           const char *etag, struct error *err) {
    char path[HUB_PATH_MAX], target[256];

    snprintf(path, sizeof(path), "%.3400s/%s/snapshots/%s/%.200s", c->root, c->repo, commit,
             file_name);
    snprintf(target, sizeof(target), "../../blobs/%s", etag);
    return put(path, target, NULL, err);
}

enum status hub_cache_set_ref(const struct hub_cache *c, const char *revision, const char *commit,
                              struct error *err) {
    char path[HUB_PATH_MAX], *slash;
    enum status st;

    if (hub_is_commit(revision)) return ST_OK; /* its own name */
    snprintf(path, sizeof(path), "%.3500s/%s/refs/%.128s", c->root, c->repo, revision);
    slash = strrchr(path, '/');
    *slash = '\0';
    st = make_folders(path, err);
    *slash = '/';
    return st == ST_OK ? put(path, NULL, commit, err) : st;
}
