/* common/base/file.c - reading a file whole, with a limit. */
#include "common/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/mem.h"

static enum status open_regular(const char *path, size_t max_bytes, int *fd, size_t *size,
                                struct error *err) {
    struct stat sb;
    enum status st;

    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not hang us */
    if (*fd < 0) {
        return error_set(err, errno == ENOENT || errno == ENOTDIR ? ST_NOT_FOUND : ST_IO,
                         "cannot open %s: %s", path, strerror(errno));
    }
    if (fstat(*fd, &sb) != 0) {
        st = error_set(err, ST_IO, "cannot stat %s: %s", path, strerror(errno));
    } else if (!S_ISREG(sb.st_mode)) {
        st = error_set(err, ST_IO, "%s is not a regular file", path);
    } else if ((uint64_t)sb.st_size > max_bytes) {
        st = error_set(err, ST_TOO_LARGE, "%s has %lld bytes: at most %zu are read", path,
                       (long long)sb.st_size, max_bytes);
    } else {
        *size = (size_t)sb.st_size;
        return ST_OK;
    }
    close(*fd);
    return st;
}

enum status file_read(const char *path, size_t max_bytes, char **out, size_t *n,
                      struct error *err) {
    size_t size = 0, done = 0;
    enum status st;
    char *data;
    int fd;

    st = open_regular(path, max_bytes, &fd, &size, err);
    if (st != ST_OK) return st;
    data = mem_try(size + 1);
    if (!data) {
        close(fd);
        return error_set(err, ST_NOMEM, "no memory for the %zu bytes of %s", size, path);
    }
    while (done < size) {
        ssize_t got = read(fd, data + done, size - done);

        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
            st = error_set(err, ST_IO, "cannot read %s: %s", path,
                           got < 0 ? strerror(errno) : "it was truncated meanwhile");
            close(fd);
            mem_free(data);
            return st;
        }
        done += (size_t)got;
    }
    close(fd);
    data[size] = '\0';
    *out = data;
    *n = size;
    return ST_OK;
}

bool file_exists(const char *path) {
    struct stat sb;

    return stat(path, &sb) == 0 && S_ISREG(sb.st_mode);
}
