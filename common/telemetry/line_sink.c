/* common/telemetry/line_sink.c - two halves of a buffer that take turns. */
#include "common/telemetry/line_sink.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/base/thread.h"

#define GATHER_NS      5000000 /* for more lines, before some are written */
#define PIECE_BYTES    4096    /* PIPE_BUF: what a pipe does not cut */
#define DESTROY_WAIT_S 1

struct half {
    char *bytes;
    size_t len;
};

struct line_sink {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a first line; the end; the thread has ended */
    pthread_t thread;
    struct half filling, flushing;
    size_t cap;      /* of each half */
    int fd, next_fd; /* next: -1 unless it was reopened */
    uint64_t n_dropped;
    bool owns_fd, is_ending, has_ended;
    bool is_torn; /* the thread's: a line was cut, the file ends amid it */
};

/* Does the file end amid a line, of a life before this one, when the disk was full? It may not be
 * readable by this descriptor, but by its owner it is. */
static bool ends_torn(int fd) {
    char path[32], last = '\n';
    struct stat st;
    int file;

    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size == 0) return false;
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    if (pread(file, &last, 1, st.st_size - 1) != 1) last = '\n';
    close(file);
    return last != '\n';
}

/* The rest of a line that cannot be written is dropped. */
static struct str write_all(int fd, struct str s) {
    while (s.len > 0) {
        ssize_t n = write(fd, s.ptr, s.len);

        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        s.ptr += n;
        s.len -= (size_t)n;
    }
    return s;
}

static uint64_t count_lines(struct str s) {
    uint64_t n = 0;

    for (size_t i = 0; i < s.len; i++)
        n += s.ptr[i] == '\n';
    return n;
}

/* Whole lines, as many as fit into a piece; at least one. */
static size_t first_piece(struct str s) {
    const char *end;

    if (s.len <= PIECE_BYTES) return s.len;
    end = memrchr(s.ptr, '\n', PIECE_BYTES);
    if (!end) end = memchr(s.ptr, '\n', s.len);
    return end ? (size_t)(end + 1 - s.ptr) : s.len;
}

/* Returns how many lines were lost. */
static uint64_t write_pieces(struct line_sink *s, int fd, struct str text) {
    uint64_t n_lost = 0;

    while (text.len > 0) {
        size_t n = first_piece(text);
        struct str rest = {text.ptr, n};

        if (!s->is_torn || write_all(fd, STR("\n")).len == 0) {
            rest = write_all(fd, rest);
            s->is_torn = rest.len > 0 && rest.len < n && rest.ptr[-1] != '\n';
        }
        n_lost += count_lines(rest);
        text.ptr += n;
        text.len -= n;
    }
    return n_lost;
}

/* Under the lock. */
static void take_next_fd(struct line_sink *s) {
    if (s->next_fd < 0) return;
    if (s->owns_fd) close(s->fd);
    s->fd = s->next_fd;
    s->next_fd = -1;
    s->owns_fd = true;
    s->is_torn = ends_torn(s->fd);
}

static void gather(struct line_sink *s) {
    const struct timespec moment = {.tv_nsec = GATHER_NS};

    if (s->is_ending || s->next_fd >= 0) return;
    pthread_mutex_unlock(&s->lock);
    nanosleep(&moment, NULL);
    pthread_mutex_lock(&s->lock);
}

static void *run(void *arg) {
    struct line_sink *s = arg;
    struct half full;
    uint64_t n_lost;
    int fd;

    pthread_mutex_lock(&s->lock);
    for (;;) {
        take_next_fd(s);
        while (s->filling.len == 0 && !s->is_ending && s->next_fd < 0)
            pthread_cond_wait(&s->changed, &s->lock);
        if (s->filling.len == 0 && s->next_fd >= 0) continue;
        if (s->filling.len == 0) break;
        gather(s);
        take_next_fd(s); /* reopened meanwhile: not a line more to the old one */
        full = s->filling;
        s->filling = s->flushing;
        s->flushing = full;
        fd = s->fd;
        pthread_mutex_unlock(&s->lock);
        n_lost = write_pieces(s, fd, (struct str){full.bytes, full.len});
        pthread_mutex_lock(&s->lock);
        s->flushing.len = 0;
        s->n_dropped += n_lost;
    }
    s->has_ended = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static void sink_free(struct line_sink *s) {
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    mem_free(s->filling.bytes);
    mem_free(s->flushing.bytes);
    mem_free(s);
}

struct line_sink *line_sink_create(int fd, bool owns_fd, size_t buffer_bytes) {
    struct line_sink *s = mem_zalloc(sizeof(*s));

    s->fd = fd;
    s->next_fd = -1;
    s->owns_fd = owns_fd;
    s->is_torn = ends_torn(fd);
    s->cap = buffer_bytes / 2;
    s->filling.bytes = mem_alloc(s->cap);
    s->flushing.bytes = mem_alloc(s->cap);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    if (thread_start(&s->thread, run, s) == 0) return s;
    sink_free(s);
    return NULL;
}

void line_sink_destroy(struct line_sink *s) {
    struct timespec until;
    bool has_ended;

    if (!s) return;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += DESTROY_WAIT_S;
    pthread_mutex_lock(&s->lock);
    s->is_ending = true;
    pthread_cond_broadcast(&s->changed);
    while (!s->has_ended && pthread_cond_timedwait(&s->changed, &s->lock, &until) != ETIMEDOUT)
        continue;
    has_ended = s->has_ended;
    pthread_mutex_unlock(&s->lock);
    if (!has_ended) { /* it hangs in write(2) and still needs its buffer */
        pthread_detach(s->thread);
        return;
    }
    pthread_join(s->thread, NULL);
    if (s->next_fd >= 0) close(s->next_fd);
    if (s->owns_fd) close(s->fd);
    sink_free(s);
}

bool line_sink_put(struct line_sink *s, struct str line) {
    bool has_room;

    pthread_mutex_lock(&s->lock);
    has_room = line.len <= s->cap - s->filling.len;
    if (has_room) {
        memcpy(s->filling.bytes + s->filling.len, line.ptr, line.len);
        if (s->filling.len == 0) pthread_cond_signal(&s->changed);
        s->filling.len += line.len;
    } else {
        s->n_dropped++;
    }
    pthread_mutex_unlock(&s->lock);
    return has_room;
}

void line_sink_reopen(struct line_sink *s, int fd) {
    pthread_mutex_lock(&s->lock);
    if (s->next_fd >= 0) close(s->next_fd);
    s->next_fd = fd;
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

uint64_t line_sink_n_dropped(struct line_sink *s) {
    uint64_t n;

    pthread_mutex_lock(&s->lock);
    n = s->n_dropped;
    pthread_mutex_unlock(&s->lock);
    return n;
}
