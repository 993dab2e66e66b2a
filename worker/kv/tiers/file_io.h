/* worker/kv/tiers/file_io.h - the system calls of the file tier, whole or with their errno.
 *
 * Every call passes a hook, NULL outside tests, which may delay it, fail it, cut it short or flip a
 * byte of what it carries: the one seam through which tests break a disk. Blocks; any thread. */
#ifndef WORKER_KV_TIERS_FILE_IO_H
#define WORKER_KV_TIERS_FILE_IO_H

#include "common/base/base.h"

#define FILE_PAGE 4096 /* offset, length and address of direct I/O: good on every block device */

enum file_op {
    FILE_OPEN,
    FILE_CREATE,
    FILE_READ,
    FILE_WRITE,
    FILE_ALLOCATE,
    FILE_SYNC,
    FILE_UNLINK,
};

/* What becomes of one call; zeros: nothing. */
struct file_fault {
    int error;       /* errno, instead of the call */
    size_t most;     /* bytes that one system call carries; 0: all */
    bool is_flipped; /* the byte at flip_at: of what was read, or of what is written */
    size_t flip_at;  /* below n */
};

struct file_hook {
    /* Before each system call; may wait. at, n: of reads and writes. Any thread. */
    void (*before)(void *arg, enum file_op op, uint64_t at, size_t n, struct file_fault *fault);
    void *arg;
};

/* Each returns 0 or errno. */

/* A regular file of this user, with one name, and no symbolic link: else EPERM or ELOOP. flags as
 * of open(2), without O_CREAT; O_CLOEXEC is added. */
int file_io_open(const struct file_hook *hook, int dir_fd, const char *name, int flags, int *fd);
/* A file that is not there yet, 0600, for reading and writing. */
int file_io_create(const struct file_hook *hook, int dir_fd, const char *name, int flags, int *fd);
/* *got < n only at the end of the file. */
int file_io_read(const struct file_hook *hook, int fd, void *buf, size_t n, uint64_t at,
                 size_t *got);
int file_io_write(const struct file_hook *hook, int fd, const void *buf, size_t n, uint64_t at);
/* The file has n bytes, and room for them where the file system can promise that. */
int file_io_allocate(const struct file_hook *hook, int fd, uint64_t n);
int file_io_sync(const struct file_hook *hook, int fd);
int file_io_unlink(const struct file_hook *hook, int dir_fd, const char *name);

/* Does this folder take direct I/O? Writes a page to a file named `name` and removes it. */
bool file_io_probe_direct(const struct file_hook *hook, int dir_fd, const char *name);

/* Whole pages at a page's address, and memory that goes with them: mem_free. NULL: refused. */
void *file_io_buffer(size_t n) MUST_USE;

#endif
