/* worker/kv/tiers/file_io.c - system calls until all is done. */
#include "worker/kv/tiers/file_io.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/mem.h"

static struct file_fault ask(const struct file_hook *hook, enum file_op op, uint64_t at, size_t n) {
    struct file_fault fault = {0};

    if (hook) hook->before(hook->arg, op, at, n, &fault);
    if (fault.most == 0 || fault.most > n) fault.most = n;
    return fault;
}

int file_io_open(const struct file_hook *hook, int dir_fd, const char *name, int flags, int *fd) {
    struct file_fault fault = ask(hook, FILE_OPEN, 0, 0);
    struct stat st;
    int got;

    if (fault.error) return fault.error;
    got = openat(dir_fd, name, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (got < 0) return errno;
    /* Without a name it was removed a moment ago, and is still what it was. */
    if (fstat(got, &st) != 0 || !S_ISREG(st.st_mode) || st.st_uid != geteuid() || st.st_nlink > 1) {
        close(got);
        return EPERM;
    }
    *fd = got;
    return 0;
}

int file_io_create(const struct file_hook *hook, int dir_fd, const char *name, int flags, int *fd) {
    struct file_fault fault = ask(hook, FILE_CREATE, 0, 0);
    int got;

    if (fault.error) return fault.error;
    got = openat(dir_fd, name, flags | O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (got < 0) return errno;
    *fd = got;
    return 0;
}

int file_io_read(const struct file_hook *hook, int fd, void *buf, size_t n, uint64_t at,
                 size_t *got) {
    size_t done = 0;

    while (done < n) {
        struct file_fault fault = ask(hook, FILE_READ, at + done, n - done);
        ssize_t r;

        if (fault.error) return fault.error;
        r = pread(fd, (char *)buf + done, fault.most, (off_t)(at + done));
        if (r < 0 && errno == EINTR) continue;
        if (r < 0) return errno;
        if (fault.is_flipped && fault.flip_at < (size_t)r)
            ((uint8_t *)buf)[done + fault.flip_at] ^= 0x10;
        done += (size_t)r;
        /* Direct reads go on at a page; short of one there is only the end. */
        if (r == 0 || (r % FILE_PAGE != 0 && (size_t)r < fault.most)) break;
    }
    *got = done;
    return 0;
}

static ssize_t write_flipped(int fd, const char *buf, size_t n, off_t at, size_t flip_at) {
    char *copy = file_io_buffer(n);
    ssize_t r;

    memcpy(copy, buf, n);
    copy[flip_at] ^= 0x10;
    r = pwrite(fd, copy, n, at);
    mem_free(copy);
    return r;
}

int file_io_write(const struct file_hook *hook, int fd, const void *buf, size_t n, uint64_t at) {
    size_t done = 0;

    while (done < n) {
        struct file_fault fault = ask(hook, FILE_WRITE, at + done, n - done);
        const char *from = (const char *)buf + done;
        ssize_t r;

        if (fault.error) return fault.error;
        r = fault.is_flipped
                ? write_flipped(fd, from, fault.most, (off_t)(at + done), fault.flip_at)
                : pwrite(fd, from, fault.most, (off_t)(at + done));
        if (r < 0 && errno == EINTR) continue;
        if (r < 0) return errno;
        if (r == 0) return EIO;
        done += (size_t)r;
    }
    return 0;
}

int file_io_allocate(const struct file_hook *hook, int fd, uint64_t n) {
    struct file_fault fault = ask(hook, FILE_ALLOCATE, 0, 0);

    if (fault.error) return fault.error;
    if (fallocate(fd, 0, 0, (off_t)n) == 0) return 0;
    /* Some file systems promise nothing; then writes make the file grow. */
    return errno == EOPNOTSUPP ? 0 : errno;
}

int file_io_sync(const struct file_hook *hook, int fd) {
    struct file_fault fault = ask(hook, FILE_SYNC, 0, 0);

    if (fault.error) return fault.error;
    return fdatasync(fd) == 0 ? 0 : errno;
}

int file_io_unlink(const struct file_hook *hook, int dir_fd, const char *name) {
    struct file_fault fault = ask(hook, FILE_UNLINK, 0, 0);

    if (fault.error) return fault.error;
    return unlinkat(dir_fd, name, 0) == 0 ? 0 : errno;
}

bool file_io_probe_direct(const struct file_hook *hook, int dir_fd, const char *name) {
    void *page = file_io_buffer(FILE_PAGE);
    int fd = -1;
    bool can;

    unlinkat(dir_fd, name, 0); /* of a process that was killed here */
    can = page && file_io_create(hook, dir_fd, name, O_DIRECT, &fd) == 0;

    if (can) {
        memset(page, 0, FILE_PAGE);
        can = file_io_write(hook, fd, page, FILE_PAGE, 0) == 0;
        close(fd);
    }
    unlinkat(dir_fd, name, 0);
    mem_free(page);
    return can;
}

void *file_io_buffer(size_t n) {
    return mem_try_aligned(FILE_PAGE, ALIGN_UP(n, FILE_PAGE));
}
