/* worker/kv/tiers/file_write.c - appending: one thread at a time has the writer's turn.
 *
 *      job ──▶ sealed into staging, up to 1 MiB ──▶ pwrite at the end ──▶ index, results
 *                                  segment full: rows with hits, trailer, truncate, fdatasync
 *                                  next one: room is made first; the hot units of what went lead */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "worker/kv/tiers/file_internal.h"

#define HOT_PART  4 /* a quarter of a segment at most is written again: amplification <= 1.33 */
#define HELD_HITS (1u << 16)

/* --- sealing ---------------------------------------------------------------------------------- */

/* What was loaded lately is worth knowing after a restart. */
static void note_hits(struct file_tier *f, struct file_writer *w) {
    for (uint32_t i = 0; i < w->n; i++) {
        struct file_entry *e;

        if (i % 256 == 0) pthread_mutex_lock(&f->lock);
        e = file_index_find(f->index, &w->rows[i].key);
        if (e && e->segment - 1 == w->slot && e->place == w->rows[i].place)
            w->rows[i].hits = e->hits;
        if (i % 256 == 255 || i + 1 == w->n) pthread_mutex_unlock(&f->lock);
    }
}

static void give_up(struct file_tier *f) {
    struct file_writer *w = &f->writer;

    if (w->fd < 0) return;
    close(w->fd);
    w->fd = -1;
    pthread_mutex_lock(&f->lock);
    f->segments[w->slot].is_sealed = true;
    file_set_gone(f, w->slot);
    pthread_mutex_unlock(&f->lock);
}

/* Complete or not, nothing more is appended: what was written stays readable to this process, and
 * the process that adopts it can make the summary again. */
static void seal_segment(struct file_tier *f) {
    struct file_writer *w = &f->writer;
    uint64_t at = w->end, bytes = at + segment_summary_bytes(w->n);
    int error;

    note_hits(f, w);
    segment_finish(w->rows, w->n, at);
    error = file_io_write(f->hook, w->fd, w->rows, segment_summary_bytes(w->n), at);
    if (error == 0 && ftruncate(w->fd, (off_t)bytes) != 0) error = errno;
    if (error == 0) error = file_io_sync(f->hook, w->fd);
    if (error != 0) file_note_error(f, "seal", error, true);
    /* The page cache is for others: the units were in host memory. */
    if (!f->is_buffered && !atomic_load(&f->is_direct))
        posix_fadvise(w->fd, 0, 0, POSIX_FADV_DONTNEED);
    close(w->fd);
    w->fd = -1;
    pthread_mutex_lock(&f->lock);
    f->segments[w->slot].is_sealed = true;
    if (error == 0) {
        f->known_bytes -= f->segments[w->slot].bytes - bytes;
        f->segments[w->slot].bytes = bytes;
    }
    pthread_mutex_unlock(&f->lock);
}

/* --- appending -------------------------------------------------------------------------------- */

/* n units' bytes when they are written at once. */
static size_t pages_of(const struct file_tier *f, uint32_t n) {
    return ALIGN_UP(n * f->step, FILE_PAGE);
}

/* Do n more units fit, which take so many bytes, and their rows? */
static bool has_room(const struct file_tier *f, uint32_t n, size_t bytes) {
    return f->writer.end + bytes + segment_summary_bytes(f->writer.n + n) <= f->segment_bytes;
}

/* Writes n sealed units, a step each, of rows[].key, behind what there is; they fit. Then they are
 * found. `units` is a page's, and its last page is filled up here. */
static int append(struct file_tier *f, uint8_t *units, const struct segment_row *rows, uint32_t n) {
    struct file_writer *w = &f->writer;
    size_t used = n * f->step, bytes = pages_of(f, n);
    int error;

    memset(units + used, 0, bytes - used);
    error = file_io_write(f->hook, w->fd, units, bytes, w->end);
    if (error != 0) return error;
    pthread_mutex_lock(&f->lock);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t place = (uint32_t)((w->end + i * f->step) / SEGMENT_STEP);

        w->rows[w->n++] = (struct segment_row){rows[i].key, place, rows[i].hits};
        file_enter(f, &rows[i].key, w->slot, place, rows[i].hits);
    }
    f->stored_bytes += n * f->unit_bytes;
    pthread_mutex_unlock(&f->lock);
    w->end += bytes;
    return 0;
}

static int create_segment(struct file_tier *f) {
    struct file_writer *w = &f->writer;
    struct segment_id id = {f->owner, w->next_id++};
    char name[SEGMENT_NAME_MAX];
    int fd, error;

    segment_name(id, name);
    error = file_io_create(f->hook, f->dir_fd, name, file_flags(f), &fd);
    if (error != 0) return error;
    error = file_io_allocate(f->hook, fd, f->segment_bytes);
    if (error != 0) {
        close(fd);
        unlinkat(f->dir_fd, name, 0);
        return error;
    }
    w->fd = fd;
    w->n = 0;
    w->end = 0;
    w->owner = id.owner;
    pthread_mutex_lock(&f->lock);
    w->slot = file_add_segment(f, id, f->segment_bytes);
    f->tick++;
    pthread_mutex_unlock(&f->lock);
    return 0;
}

/* The first n are written, or given up. */
static void drop_hot(struct file_tier *f, uint32_t n) {
    struct file_hot *hot = &f->writer.hot;

    hot->n -= n;
    if (hot->n > 0) {
        memmove(hot->rows, hot->rows + n, hot->n * sizeof(*hot->rows));
        memmove(hot->units, hot->units + n * f->step, hot->n * f->step);
        return;
    }
    mem_free(hot->rows);
    mem_free(hot->units);
    *hot = (struct file_hot){0};
}

/* What no write took, or has no room, is there for the next segment. */
static int append_hot(struct file_thread *t) {
    struct file_tier *f = t->f;
    struct file_hot *hot = &f->writer.hot;

    while (hot->n > 0) {
        uint32_t n = MIN(f->chunk_units, hot->n);
        int error;

        /* One is to follow. */
        while (n > 0 && !has_room(f, n + 1, pages_of(f, n) + pages_of(f, 1)))
            n--;
        if (n == 0) return 0;
        memcpy(t->staging, hot->units, n * f->step);
        error = append(f, t->staging, hot->rows, n);
        if (error != 0) return error;
        drop_hot(f, n);
    }
    return 0;
}

/* Room, a file, and in it first what was hot or held in what went. EBUSY: no room, or no turn. */
static int begin_segment(struct file_thread *t) {
    struct file_tier *f = t->f;
    int error = 0;

    if (!file_space_enter(f, 1000000)) return EBUSY;
    while (error == 0 && file_space_bytes(f) + f->segment_bytes > f->max_bytes)
        if (!file_space_evict(f, t)) error = EBUSY;
    if (error == 0 && f->owner == 0) error = EBUSY;
    if (error == 0) error = create_segment(f);
    file_space_leave(f);
    return error ? error : append_hot(t);
}

/* A segment with a place free. */
static int prepare(struct file_thread *t) {
    struct file_tier *f = t->f;
    struct file_writer *w = &f->writer;
    struct stat st;

    /* Removed under it; or no longer of a living owner, so that another process may adopt it. */
    if (w->fd >= 0 && (fstat(w->fd, &st) != 0 || st.st_nlink == 0 || w->owner != f->owner))
        give_up(f);
    if (w->fd >= 0 && !has_room(f, 1, pages_of(f, 1))) seal_segment(f);
    return w->fd >= 0 ? 0 : begin_segment(t);
}

/* A full disk has room again when something goes: the budget was larger than the disk. A folder
 * that is gone is the next scan's to make again; until then no store tries, for each try that fails
 * would also put the scan's off. */
static void after_failure(struct file_thread *t, int error) {
    struct file_tier *f = t->f;

    if (error == ENOENT) f->owner = 0;
    file_note_error(f, "write", error, true);
    if (error != ENOSPC || !file_space_enter(f, 0)) return;
    file_space_evict(f, t);
    file_space_leave(f);
}

/* What is there is stored, and used once more. */
static bool is_there(struct file_tier *f, struct tier_unit *u) {
    struct file_place place;
    bool is_found;

    pthread_mutex_lock(&f->lock);
    is_found = file_find_place(f, &u->id.key, &place);
    if (is_found) file_note_use(f, &u->id.key);
    pthread_mutex_unlock(&f->lock);
    if (is_found) u->result = TIER_OK;
    return is_found;
}

/* Seals the units from *i on that are not there yet, as many as one write and the segment take. */
static uint32_t fill(struct file_thread *t, struct tier_job *job, uint32_t *i,
                     struct segment_row *rows, uint32_t *of) {
    struct file_tier *f = t->f;
    uint32_t n = 0;

    for (; *i < job->n && n < f->chunk_units && has_room(f, n + 1, pages_of(f, n + 1)); (*i)++) {
        struct tier_unit *u = &job->units[*i];
        uint8_t *to = t->staging + n * f->step;

        if (is_there(f, u)) continue;
        u->result = TIER_OK;
        if (unit_seal(t->codec, &u->id, u->payload, to) != ST_OK) {
            u->result = TIER_REJECTED;
            u->cause = UNIT_SIZE;
            continue;
        }
        memset(to + f->unit_bytes, 0, f->step - f->unit_bytes);
        rows[n] = (struct segment_row){.key = u->id.key};
        of[n++] = *i;
    }
    return n;
}

void file_store(struct file_thread *t, struct tier_job *job) {
    struct file_tier *f = t->f;
    struct segment_row rows[TIER_JOB_UNITS];
    uint32_t of[TIER_JOB_UNITS], i = 0, n;

    while (i < job->n && !atomic_load(&job->is_cancelled)) {
        int error;

        if (is_there(f, &job->units[i])) {
            i++;
            continue;
        }
        error = prepare(t);
        n = error ? 0 : fill(t, job, &i, rows, of);
        if (n > 0) error = append(f, t->staging, rows, n);
        if (error == 0) continue;
        for (uint32_t k = 0; k < n; k++)
            job->units[of[k]].result = TIER_IO;
        if (n == 0) job->units[i].result = error == EBUSY ? TIER_BUSY : TIER_IO;
        if (error != EBUSY) after_failure(t, error);
        return; /* units behind are TIER_SKIPPED */
    }
}

void file_writer_close(struct file_tier *f) {
    if (f->writer.fd >= 0) seal_segment(f);
    drop_hot(f, f->writer.hot.n);
}

/* --- what is written again -------------------------------------------------------------------- */

static int by_hits(const void *a, const void *b) {
    const struct segment_row *x = a, *y = b;

    if (x->hits != y->hits) return x->hits < y->hits ? 1 : -1;
    return x->place < y->place ? -1 : 1;
}

static int by_place(const void *a, const void *b) {
    const struct segment_row *x = a, *y = b;

    return x->place < y->place ? -1 : 1;
}

/* Leaves the rows that are held, and besides these those that were loaded, up to a quarter of a
 * segment in all. Hits are halved, so that what is not loaded again goes. */
static uint32_t keep_hot(struct file_tier *f, struct segment_row *rows, uint32_t n, uint32_t slot) {
    uint32_t n_taken = f->writer.hot.n, n_hot = 0, n_held = 0;

    pthread_mutex_lock(&f->lock);
    for (uint32_t i = 0; i < n; i++) {
        struct file_entry *e = file_index_find(f->index, &rows[i].key);
        bool is_held = file_is_held(f, &rows[i].key);

        if (!e || e->segment - 1 != slot || e->place != rows[i].place) continue;
        if (e->hits == 0 && !is_held) continue;
        n_held += is_held;
        rows[n_hot++] = (struct segment_row){rows[i].key, rows[i].place,
                                             e->hits / 2u + (is_held ? HELD_HITS : 0)};
    }
    pthread_mutex_unlock(&f->lock);
    qsort(rows, n_hot, sizeof(*rows), by_hits);
    n_hot = MIN(n_hot, n_taken == 0 ? f->n_places / HOT_PART : 0);
    n_hot = MAX(n_hot, MIN(n_held, file_hold_room(f)));
    for (uint32_t i = 0; i < n_hot; i++)
        rows[i].hits %= HELD_HITS;
    qsort(rows, n_hot, sizeof(*rows), by_place);
    return n_hot;
}

/* Memory for n more, which may not be there. */
static bool widen(struct file_tier *f, struct file_hot *hot, uint32_t n) {
    uint8_t *units = n > 0 ? file_io_buffer((hot->n + n) * f->step) : NULL;

    if (!units) return false;
    if (hot->n > 0) memcpy(units, hot->units, hot->n * f->step);
    mem_free(hot->units);
    hot->units = units;
    hot->rows = mem_realloc(hot->rows, (hot->n + n) * sizeof(*hot->rows));
    return true;
}

void file_hot_read(struct file_thread *t, uint32_t slot) {
    struct file_tier *f = t->f;
    struct file_hot *hot = &f->writer.hot;
    char name[SEGMENT_NAME_MAX];
    struct segment_row *rows = NULL;
    struct unit_summary unit;
    uint32_t n = 0;
    struct stat st;
    size_t got;
    int fd;

    pthread_mutex_lock(&f->lock);
    segment_name(f->segments[slot].id, name);
    pthread_mutex_unlock(&f->lock);
    if (file_io_open(f->hook, f->dir_fd, name, O_RDONLY, &fd) != 0) return;
    if (fstat(fd, &st) == 0 && segment_read(f->hook, fd, (uint64_t)st.st_size, &rows, &n) == ST_OK)
        n = keep_hot(f, rows, n, slot);
    if (!widen(f, hot, n)) n = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint8_t *to = hot->units + hot->n * f->step;

        if (file_io_read(f->hook, fd, to, f->step, rows[i].place * (uint64_t)SEGMENT_STEP, &got) !=
                0 ||
            !unit_peek(t->codec, to, got, &unit) ||
            memcmp(&unit.key, &rows[i].key, sizeof(unit.key)) != 0)
            continue;
        hot->rows[hot->n++] = rows[i];
    }
    close(fd);
    mem_free(rows);
}
