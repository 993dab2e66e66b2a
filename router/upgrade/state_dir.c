/* router/upgrade/state_dir.c - creates the seed once, and replaces the snapshot atomically. */
#include "router/upgrade/state_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/base/mem.h"

#define SEED_DIGITS 16

struct path {
    char text[PATH_MAX];
};

static struct path path_in(const char *dir, const char *name) {
    struct path p;

    snprintf(p.text, sizeof(p.text), "%s/%s", dir, name);
    return p;
}

/* --- the seed --------------------------------------------------------------------------------- */

static enum status parse_seed(const char *path, struct str text, uint64_t *seed,
                              struct error *err) {
    uint64_t v = 0;

    text = str_trim(text);
    if (text.len && text.ptr[text.len - 1] == '\n') text.len--;
    for (size_t i = 0; i < text.len && text.len == SEED_DIGITS; i++) {
        int digit = str_hex_value((unsigned char)text.ptr[i]);

        if (digit < 0) text.len = 0;
        v = v << 4 | (uint64_t)(digit & 15);
    }
    if (text.len != SEED_DIGITS) {
        return error_set(
            err, ST_INVALID,
            "%s does not hold %d hexadecimal digits: remove the file to create a new seed", path,
            SEED_DIGITS);
    }
    *seed = v;
    return ST_OK;
}

static enum status make_seed(const char *path, uint64_t *seed, struct error *err) {
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    char text[SEED_DIGITS + 2];
    bool is_written;

    if (fd < 0) return error_set(err, ST_IO, "cannot create %s: %s", path, strerror(errno));
    hash_random(seed, sizeof(*seed));
    snprintf(text, sizeof(text), "%016llx\n", (unsigned long long)*seed);
    is_written = write(fd, text, SEED_DIGITS + 1) == SEED_DIGITS + 1 && fsync(fd) == 0;
    if (close(fd) == 0 && is_written) return ST_OK;
    unlink(path);
    return error_set(err, ST_IO, "cannot write %s: %s", path, strerror(errno));
}

enum status state_dir_seed(const char *dir, uint64_t *seed, struct error *err) {
    struct path path = path_in(dir, "prefix-hash-seed");
    char *text = NULL;
    size_t n = 0;
    enum status st = file_read(path.text, 256, &text, &n, err);

    if (st == ST_NOT_FOUND) return make_seed(path.text, seed, err);
    if (st == ST_OK) st = parse_seed(path.text, (struct str){text, n}, seed, err);
    mem_free(text);
    return st;
}

/* --- the snapshot ----------------------------------------------------------------------------- */

static enum status write_snapshot(int fd, const struct snapshot_source *source, uint64_t *n_blocks,
                                  struct error *err) {
    struct snapshot_writer *w = snapshot_writer_create(source, fd);
    enum status st;

    while ((st = snapshot_writer_step(w, err)) == ST_AGAIN) {
    }
    *n_blocks = snapshot_writer_n_items(w);
    snapshot_writer_destroy(w);
    if (st == ST_OK && fsync(fd) != 0) st = error_set(err, ST_IO, "fsync: %s", strerror(errno));
    return st;
}

enum status state_dir_save(const char *dir, const struct snapshot_source *source,
                           uint64_t *n_blocks, struct error *err) {
    struct path path = path_in(dir, "index.snapshot"), fresh = path_in(dir, "index.snapshot.new");
    int fd = open(fresh.text, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    enum status st;

    if (fd < 0) return error_set(err, ST_IO, "cannot create %s: %s", fresh.text, strerror(errno));
    st = write_snapshot(fd, source, n_blocks, err);
    if (close(fd) != 0 && st == ST_OK) st = error_set(err, ST_IO, "%s", strerror(errno));
    if (st == ST_OK && rename(fresh.text, path.text) != 0)
        st = error_set(err, ST_IO, "cannot rename the file: %s", strerror(errno));
    if (st == ST_OK) return st;
    unlink(fresh.text);
    (void)error_prefix(err, "%s", path.text);
    return st;
}

enum status state_dir_load(const char *dir, uint64_t scheme, struct snapshot **out,
                           struct error *err) {
    struct path path = path_in(dir, "index.snapshot");
    int fd = open(path.text, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    enum status st;

    if (fd < 0) {
        return error_set(err, errno == ENOENT ? ST_NOT_FOUND : ST_IO, "cannot open %s: %s",
                         path.text, strerror(errno));
    }
    st = snapshot_read_fd(out, fd, scheme, err);
    close(fd);
    if (st == ST_OK) (void)!unlink(path.text); /* a crash must not restore it a second time */
    if (st != ST_OK) (void)error_prefix(err, "%s", path.text);
    return st;
}
