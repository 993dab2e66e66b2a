/* worker/kv/tiers/peer/shared_pool.c - see the header. */
#include "worker/kv/tiers/peer/shared_pool.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010 /* Linux 5.1 */
#endif

#define SEALS       (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)
#define BLOCKS_UNIT (UINT64_C(2) << 20) /* blocks begin where a huge page can */

struct head {
    char magic[8];
    uint32_t version, n_blocks;
    uint64_t block_bytes, blocks_at;
    uint8_t zeros[32];
};
_Static_assert(sizeof(struct head) == 64, "generations begin at a cache line");

static const struct head form = {.magic = "ICPTSHM", .version = 1};

static void set_parts(struct shared_pool *p, const struct head *h) {
    p->n_blocks = h->n_blocks;
    p->block_bytes = h->block_bytes;
    p->generations = (struct generation *)((uint8_t *)p->map + sizeof(*h));
    p->blocks = (uint8_t *)p->map + h->blocks_at;
}

/* --- the owner -------------------------------------------------------------------------------- */

static enum status map_new(struct shared_pool *p, struct error *err) {
    p->fd = memfd_create("incipit-kv", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (p->fd < 0 || ftruncate(p->fd, (off_t)p->map_bytes) != 0)
        return error_set(err, ST_IO, "cannot make shared memory of %llu bytes: %s",
                         (unsigned long long)p->map_bytes, strerror(errno));
    p->map = mmap(NULL, p->map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, p->fd, 0);
    if (p->map == MAP_FAILED) {
        p->map = NULL;
        return error_set(err, ST_IO, "cannot map shared memory of %llu bytes: %s",
                         (unsigned long long)p->map_bytes, strerror(errno));
    }
    if (fcntl(p->fd, F_ADD_SEALS, SEALS) != 0)
        return error_set(err, ST_UNSUPPORTED, "cannot seal shared memory: %s", strerror(errno));
    (void)madvise(p->map, p->map_bytes, MADV_HUGEPAGE); /* a wish */
    return ST_OK;
}

enum status shared_pool_create(struct shared_pool *out, uint32_t n_blocks, uint64_t block_bytes,
                               struct error *err) {
    struct head h = form;
    enum status st;

    *out = (struct shared_pool){.fd = -1};
    h.n_blocks = n_blocks;
    h.block_bytes = block_bytes;
    h.blocks_at = ALIGN_UP(sizeof(h) + n_blocks * sizeof(struct generation), BLOCKS_UNIT);
    if (n_blocks == 0 || block_bytes == 0 ||
        block_bytes > (SHARED_POOL_MAX - h.blocks_at) / n_blocks)
        return error_set(err, ST_INVALID, "%u blocks of %llu bytes are no shared memory", n_blocks,
                         (unsigned long long)block_bytes);
    out->map_bytes = ALIGN_UP(h.blocks_at + n_blocks * block_bytes, BLOCKS_UNIT);
    st = map_new(out, err);
    if (st != ST_OK) {
        shared_pool_close(out);
        return st;
    }
    memcpy(out->map, &h, sizeof(h));
    set_parts(out, &h);
    return ST_OK;
}

/* --- a reader --------------------------------------------------------------------------------- */

/* Memory that stays as large as it is, and has a page wherever it is read. */
static enum status check_file(int fd, uint64_t *n_bytes, struct error *err) {
    int seals = fcntl(fd, F_GET_SEALS);
    struct statfs fs;
    struct stat s;

    if (seals < 0 || (seals & SEALS) != SEALS)
        return error_set(err, ST_INVALID, "it is not sealed");
    if (fstatfs(fd, &fs) != 0 || fs.f_type != TMPFS_MAGIC)
        return error_set(err, ST_INVALID, "it is no file of tmpfs");
    if (fstat(fd, &s) != 0 || !S_ISREG(s.st_mode))
        return error_set(err, ST_INVALID, "it is no regular file");
    if (s.st_size < (off_t)sizeof(struct head) || (uint64_t)s.st_size > SHARED_POOL_MAX)
        return error_set(err, ST_INVALID, "it has %lld bytes", (long long)s.st_size);
    *n_bytes = (uint64_t)s.st_size;
    return ST_OK;
}

static enum status check_head(const struct head *h, uint64_t n_bytes, uint64_t block_bytes,
                              struct error *err) {
    if (memcmp(h->magic, form.magic, sizeof(h->magic)) != 0 || h->version != form.version)
        return error_set(err, ST_INVALID, "it has no head of this version");
    if (h->block_bytes != block_bytes || block_bytes == 0)
        return error_set(err, ST_INVALID, "it has blocks of %llu bytes, not %llu",
                         (unsigned long long)h->block_bytes, (unsigned long long)block_bytes);
    if (h->n_blocks == 0 || h->blocks_at % 64 != 0 || h->blocks_at > n_bytes ||
        h->blocks_at < sizeof(*h) + h->n_blocks * sizeof(struct generation) ||
        h->n_blocks > (n_bytes - h->blocks_at) / block_bytes)
        return error_set(err, ST_INVALID, "%u blocks of %llu bytes from %llu on are not in %llu",
                         h->n_blocks, (unsigned long long)block_bytes,
                         (unsigned long long)h->blocks_at, (unsigned long long)n_bytes);
    return ST_OK;
}

enum status shared_pool_open(struct shared_pool *out, int fd, uint64_t block_bytes,
                             struct error *err) {
    struct head h;
    enum status st;

    *out = (struct shared_pool){.fd = -1};
    if ((st = check_file(fd, &out->map_bytes, err)) != ST_OK) return st;
    out->map = mmap(NULL, out->map_bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (out->map == MAP_FAILED) {
        out->map = NULL;
        return error_set(err, ST_IO, "cannot map shared memory of %llu bytes: %s",
                         (unsigned long long)out->map_bytes, strerror(errno));
    }
    memcpy(&h, out->map, sizeof(h)); /* once: what is checked is what is used */
    if ((st = check_head(&h, out->map_bytes, block_bytes, err)) != ST_OK) {
        shared_pool_close(out);
        return st;
    }
    set_parts(out, &h);
    return ST_OK;
}

void shared_pool_close(struct shared_pool *pool) {
    if (pool->map) munmap(pool->map, pool->map_bytes);
    if (pool->map_bytes && pool->fd >= 0) close(pool->fd);
    *pool = (struct shared_pool){.fd = -1};
}
