/* worker/api/events/request_log.c - see the header.
 *
 * Offsets count bytes since creation and never wrap; modulo the size they index `data`. The kept
 * events are [tail, head). */
#include "worker/api/events/request_log.h"

#include <assert.h>
#include <endian.h>

#include "common/base/mem.h"

#define STRIDE     16u /* events from one offset that is kept to the next: reading walks half of it */
#define FRAME_MIN  (REQUEST_EVENT_HEAD + 3u) /* an array of a kind and a time */
#define FIRST      1u
#define N_INDEX(n) ((n) / FRAME_MIN / STRIDE + 2)

struct request_log {
    char *data;
    uint64_t size;
    uint64_t head, tail;   /* places: of the event to come, of the oldest */
    uint64_t next, oldest; /* their numbers */
    uint64_t *index;       /* of numbers that STRIDE divides: (n_index), by number / STRIDE */
    uint64_t n_index;
    uint64_t n_appended;
    struct buf frame; /* the one being encoded */
};

enum status request_log_create(struct request_log **out, uint64_t bytes, struct error *err) {
    struct request_log *log = mem_zalloc(sizeof(*log));

    log->size = MAX(bytes, (uint64_t)REQUEST_LOG_BYTES_MIN);
    log->n_index = N_INDEX(log->size);
    log->next = log->oldest = FIRST;
    buf_init(&log->frame, 0);
    log->data = mem_try(log->size);
    log->index = mem_try(log->n_index * sizeof(*log->index));
    if (!log->data || !log->index) {
        request_log_destroy(log);
        return error_set(err, ST_NOMEM,
                         "out of memory for %llu MiB of request events: lower "
                         "--request-events-buffer-bytes",
                         (unsigned long long)(bytes >> 20));
    }
    *out = log;
    return ST_OK;
}

void request_log_destroy(struct request_log *log) {
    if (!log) return;
    buf_fini(&log->frame);
    mem_free(log->index);
    mem_free(log->data);
    mem_free(log);
}

/* --- bytes around the end of the memory ------------------------------------------------------- */

static void copy_in(struct request_log *log, uint64_t offset, struct str bytes) {
    size_t at = (size_t)(offset % log->size), n = (size_t)MIN(log->size - at, bytes.len);

    memcpy(log->data + at, bytes.ptr, n);
    memcpy(log->data, bytes.ptr + n, bytes.len - n);
}

static void copy_out(const struct request_log *log, uint64_t offset, char *to, size_t len) {
    size_t at = (size_t)(offset % log->size), n = (size_t)MIN(log->size - at, len);

    memcpy(to, log->data + at, n);
    memcpy(to + n, log->data, len - n);
}

static uint64_t frame_bytes(const struct request_log *log, uint64_t offset) {
    uint32_t n_bytes;

    copy_out(log, offset, (char *)&n_bytes, sizeof(n_bytes));
    return REQUEST_EVENT_HEAD + (uint64_t)be32toh(n_bytes);
}

/* --- writing ---------------------------------------------------------------------------------- */

static void drop_oldest(struct request_log *log) {
    log->tail += frame_bytes(log, log->tail);
    log->oldest++;
}

static void drop_all(struct request_log *log) {
    log->tail = log->head;
    log->oldest = ++log->next;
}

void request_log_append(struct request_log *log, const struct request_event *e) {
    struct str frame;

    buf_clear(&log->frame);
    request_event_put(&log->frame, log->next, e);
    frame = buf_str(&log->frame);
    log->n_appended++;
    if (buf_status(&log->frame) != ST_OK || frame.len > log->size) {
        drop_all(log);
        return;
    }
    while (log->head + frame.len - log->tail > log->size)
        drop_oldest(log);
    copy_in(log, log->head, frame);
    if (log->next % STRIDE == 0) log->index[log->next / STRIDE % log->n_index] = log->head;
    log->head += frame.len;
    log->next++;
}

/* --- reading ---------------------------------------------------------------------------------- */

/* Of an event that is kept. */
static uint64_t offset_of(const struct request_log *log, uint64_t number) {
    uint64_t at = number - number % STRIDE, offset;

    if (at >= log->oldest) {
        offset = log->index[at / STRIDE % log->n_index];
    } else {
        at = log->oldest;
        offset = log->tail;
    }
    for (; at < number; at++)
        offset += frame_bytes(log, offset);
    return offset;
}

enum status request_log_read(const struct request_log *log, uint64_t from, size_t max_bytes,
                             struct buf *out, uint64_t *next) {
    uint64_t begin, end;
    char *to;

    if (from == log->next) return ST_AGAIN;
    if (from < log->oldest || from > log->next) {
        *next = log->oldest;
        return ST_NOT_FOUND;
    }
    begin = end = offset_of(log, from);
    do {
        end += frame_bytes(log, end);
        from++;
    } while (from < log->next && end + frame_bytes(log, end) - begin <= max_bytes);
    to = buf_reserve(out, (size_t)(end - begin));
    if (!to) return ST_NOMEM;
    copy_out(log, begin, to, (size_t)(end - begin));
    buf_commit(out, (size_t)(end - begin));
    *next = from;
    return ST_OK;
}

struct request_log_stats request_log_stats(const struct request_log *log) {
    return (struct request_log_stats){.next = log->next,
                                      .oldest = log->oldest,
                                      .bytes = log->head - log->tail,
                                      .n_appended = log->n_appended};
}

void request_log_check(const struct request_log *log) {
    uint64_t offset = log->tail;

    assert(log->tail <= log->head && log->head - log->tail <= log->size);
    for (uint64_t number = log->oldest; number < log->next; number++) {
        uint64_t in_frame;

        assert(offset + FRAME_MIN <= log->head);
        copy_out(log, offset + 4, (char *)&in_frame, sizeof(in_frame));
        assert(be64toh(in_frame) == number);
        assert(number % STRIDE || log->index[number / STRIDE % log->n_index] == offset);
        offset += frame_bytes(log, offset);
    }
    assert(offset == log->head);
}
