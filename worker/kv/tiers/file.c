/* worker/kv/tiers/file.c - the file tier as a tier: its queue, its threads, and loading.
 *
 *      load ── places from the index ──▶ runs of neighbours ──▶ one pread each ──▶ unit_open each
 *
 * A segment is opened for each run and closed again: 5 us beside the read, and no table of
 * descriptors to bound. */
#include "worker/kv/tiers/file.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "worker/kv/tiers/file_internal.h"

#define DEFAULT_SEGMENT_BYTES (64u << 20)
#define SEGMENTS_LEAST        8u  /* of the budget, so that eviction is not coarse */
#define DISK_SPARE_PART       16u /* of what the disk has, for the file system and for others */
#define DEFAULT_THREADS       4   /* reach a disk's rate at 256 KiB, as more do */
#define DEFAULT_JOBS          256
#define DEFAULT_SCAN_US       3000000
#define CHUNK_BYTES           (1u << 20) /* of one read or write: more is no faster */
#define LOADS_IN_TURN         8          /* before a store that waits has its turn */
#define SHORT_PAUSE_US        1000000    /* a full disk, a removed folder: this changes */
#define ERROR_PAUSE_US        30000000
#define EIO_WINDOW_US         60000000

static struct file_tier *tier_of(struct tier *t) {
    return (struct file_tier *)t;
}

int file_flags(struct file_tier *f) {
    return atomic_load(&f->is_direct) ? O_DIRECT : 0;
}

/* --- failures --------------------------------------------------------------------------------- */

void file_note_error(struct file_tier *f, const char *what, int error, bool is_write) {
    uint64_t now_us = clock_now_us();
    bool was_read_only, is_read_only;

    pthread_mutex_lock(&f->lock);
    was_read_only = f->is_read_only;
    if (error == EIO) {
        f->eio_us[0] = f->eio_us[1];
        f->eio_us[1] = f->eio_us[2];
        f->eio_us[2] = now_us;
        if (f->eio_us[0] != 0 && now_us - f->eio_us[0] < EIO_WINDOW_US) f->is_read_only = true;
    }
    if (is_write)
        f->no_write_before_us =
            now_us + (error == ENOSPC || error == ENOENT ? SHORT_PAUSE_US : ERROR_PAUSE_US);
    is_read_only = f->is_read_only;
    pthread_mutex_unlock(&f->lock);
    log_event(f->log, LOG_WARN, "kv_file_failed", log_z("dir", f->dir), log_z("what", what),
              log_z("why", strerror(error)));
    if (is_read_only && !was_read_only)
        log_event(f->log, LOG_ERROR, "kv_file_read_only", log_z("dir", f->dir));
}

bool file_can_write(struct file_tier *f, uint64_t now_us) {
    return !f->is_read_only && f->owner != 0 && now_us >= f->no_write_before_us;
}

/* --- loading ---------------------------------------------------------------------------------- */

/* Units of a job that lie behind one another in one segment, and the pages that have them. */
struct run {
    struct file_place at; /* of its first unit */
    uint32_t first, n;    /* of the job */
    uint32_t places[TIER_JOB_UNITS];
    uint64_t from;
    size_t bytes;
};

static uint64_t offset_of(uint32_t place) {
    return place * (uint64_t)SEGMENT_STEP;
}

/* Does the place continue the run? Between two writes lies less than a page. */
static bool continues(const struct file_tier *f, const struct run *run,
                      const struct file_place *next) {
    uint64_t end = offset_of(run->places[run->n - 1]) + f->step, at = offset_of(next->place);

    return next->slot == run->at.slot && at >= end && at < end + FILE_PAGE &&
           ALIGN_UP(at + f->step, FILE_PAGE) - run->from <= f->staging_bytes;
}

static bool next_run(struct file_tier *f, const struct tier_job *job, uint32_t first,
                     struct run *run) {
    struct file_place next;

    run->first = first;
    run->n = 0;
    pthread_mutex_lock(&f->lock);
    while (first + run->n < job->n &&
           file_find_place(f, &job->units[first + run->n].id.key, &next)) {
        if (run->n == 0) {
            run->at = next;
            run->from = offset_of(next.place) / FILE_PAGE * FILE_PAGE;
        } else if (!continues(f, run, &next)) {
            break;
        }
        run->places[run->n++] = next.place;
    }
    pthread_mutex_unlock(&f->lock);
    if (run->n == 0) return false;
    run->bytes =
        ALIGN_UP(offset_of(run->places[run->n - 1]) + f->step, FILE_PAGE) - (size_t)run->from;
    return true;
}

static int read_at(struct file_tier *f, const struct run *run, int flags, void *to, size_t *got) {
    char name[SEGMENT_NAME_MAX];
    int fd, error;

    segment_name(run->at.id, name);
    error = file_io_open(f->hook, f->dir_fd, name, O_RDONLY | flags, &fd);
    if (error != 0) return error;
    error = file_io_read(f->hook, fd, to, run->bytes, run->from, got);
    close(fd);
    return error;
}

static int read_run(struct file_tier *f, const struct run *run, void *to, size_t *got) {
    int flags = file_flags(f), error = read_at(f, run, flags, to, got);

    return error == EINVAL && flags ? read_at(f, run, 0, to, got) : error;
}

/* The segment is removed, or is no file of ours: all its units are absent. */
static bool is_lost(int error) {
    return error == ENOENT || error == ELOOP || error == EPERM;
}

static enum tier_result fail_run(struct file_tier *f, const struct tier_job *job,
                                 const struct run *run, int error) {
    struct file_place at = run->at;
    struct file_segment *s;

    pthread_mutex_lock(&f->lock);
    s = file_segment_of(f, run->at.id);
    if (is_lost(error) && s && s->is_sealed) file_set_gone(f, run->at.slot);
    for (uint32_t i = 0; (is_lost(error) || error == EIO) && i < run->n; i++) {
        at.place = run->places[i];
        file_forget(f, &job->units[run->first + i].id.key, &at);
    }
    pthread_mutex_unlock(&f->lock);
    if (error == ENOENT) return TIER_ABSENT; /* evicted, perhaps by another process */
    file_note_error(f, "read", error, false);
    return is_lost(error) ? TIER_ABSENT : TIER_IO;
}

/* Opens the units of a run that came; true: all are what they should be. */
static bool open_run(struct file_thread *t, struct tier_job *job, const struct run *run,
                     size_t got) {
    struct file_tier *f = t->f;
    struct file_place at = run->at;
    uint32_t n_fine = 0;

    while (n_fine < run->n) {
        struct tier_unit *u = &job->units[run->first + n_fine];
        size_t from = (size_t)(offset_of(run->places[n_fine]) - run->from);
        size_t n = from < got ? MIN(got - from, f->step) : 0;

        u->cause = unit_open(t->codec, &u->id, t->staging + from, n, u->payload);
        u->result = u->cause == UNIT_FINE ? TIER_OK : TIER_REJECTED;
        if (u->result != TIER_OK) break;
        n_fine++;
    }
    pthread_mutex_lock(&f->lock);
    for (uint32_t i = 0; i < n_fine; i++)
        file_note_use(f, &job->units[run->first + i].id.key);
    f->loaded_bytes += n_fine * f->unit_bytes;
    if (n_fine < run->n) {
        at.place = run->places[n_fine];
        file_forget(f, &job->units[run->first + n_fine].id.key, &at);
    }
    pthread_mutex_unlock(&f->lock);
    return n_fine == run->n;
}

static void load(struct file_thread *t, struct tier_job *job) {
    struct run run;
    size_t got;

    for (uint32_t i = 0; i < job->n && !atomic_load(&job->is_cancelled); i += run.n) {
        int error;

        if (!next_run(t->f, job, i, &run)) {
            job->units[i].result = TIER_ABSENT;
            return;
        }
        error = read_run(t->f, &run, t->staging, &got);
        if (error != 0) {
            job->units[i].result = fail_run(t->f, job, &run, error);
            return;
        }
        if (!open_run(t, job, &run, got)) return;
    }
}

/* --- threads ---------------------------------------------------------------------------------- */

static void set_results(struct tier_job *job, enum tier_result result) {
    for (uint32_t i = 0; i < job->n; i++) {
        job->units[i].result = result;
        job->units[i].cause = UNIT_FINE;
    }
}

static void end(struct tier_job *job) {
    job->ended_us = clock_now_us();
    mailbox_push(job->home, &job->mail);
}

/* What failed since the job was taken makes it wait no longer. */
static bool is_paused(struct file_tier *f, uint64_t now_us) {
    bool can_write;

    pthread_mutex_lock(&f->lock);
    can_write = file_can_write(f, now_us);
    pthread_mutex_unlock(&f->lock);
    return !can_write;
}

static void run_job(struct file_thread *t, struct tier_job *job) {
    job->began_us = clock_now_us();
    set_results(job, TIER_SKIPPED);
    if (atomic_load(&job->is_cancelled)) return;
    if (job->began_us >= job->deadline_us)
        set_results(job, TIER_LATE);
    else if (job->op == TIER_STORE && is_paused(t->f, job->began_us))
        set_results(job, TIER_BUSY);
    else if (job->op == TIER_LOAD)
        load(t, job);
    else
        file_store(t, job);
}

/* Loads first, but a store that waits is not left behind for ever. */
static struct tier_job *take(struct file_tier *f) {
    bool may_store = !f->is_writing && !list_is_empty(&f->stores);
    struct list *link;

    if (may_store && (list_is_empty(&f->loads) || f->n_loads_in_turn >= LOADS_IN_TURN)) {
        link = list_pop_front(&f->stores);
        f->is_writing = true;
        f->n_loads_in_turn = 0;
    } else {
        link = list_pop_front(&f->loads);
        if (may_store) f->n_loads_in_turn++;
    }
    if (!link) return NULL;
    f->n_jobs--;
    return LIST_ENTRY(link, struct tier_job, link);
}

static void *io_thread(void *arg) {
    struct file_thread *t = arg;
    struct file_tier *f = t->f;

    pthread_mutex_lock(&f->lock);
    while (!f->is_stopping) {
        struct tier_job *job = take(f);
        bool is_store = job && job->op == TIER_STORE;

        if (!job) {
            pthread_cond_wait(&f->work, &f->lock);
            continue;
        }
        pthread_mutex_unlock(&f->lock);
        run_job(t, job);
        pthread_mutex_lock(&f->lock);
        if (is_store) {
            f->is_writing = false;
            if (!list_is_empty(&f->stores)) pthread_cond_signal(&f->work);
        }
        pthread_mutex_unlock(&f->lock);
        end(job);
        pthread_mutex_lock(&f->lock);
    }
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

static void *keeper_thread(void *arg) {
    struct file_tier *f = arg;
    struct timespec at;
    bool is_stopping = false;

    while (!is_stopping) {
        clock_gettime(CLOCK_MONOTONIC, &at);
        at.tv_sec += (time_t)(f->scan_us / 1000000);
        at.tv_nsec += (long)(f->scan_us % 1000000) * 1000;
        if (at.tv_nsec >= 1000000000) at.tv_sec++, at.tv_nsec -= 1000000000;
        pthread_mutex_lock(&f->lock);
        while (!f->is_stopping && pthread_cond_timedwait(&f->keep, &f->lock, &at) != ETIMEDOUT)
            continue;
        is_stopping = f->is_stopping;
        pthread_mutex_unlock(&f->lock);
        if (is_stopping) break;
        if (file_space_enter(f, 100000)) {
            file_space_scan(f);
            file_space_leave(f);
        }
        file_sweep(f);
    }
    return NULL;
}

/* --- the tier --------------------------------------------------------------------------------- */

static uint32_t find(struct tier *t, const struct unit_key *keys, uint32_t n) {
    struct file_tier *f = tier_of(t);
    struct file_place place;
    uint32_t i = 0;

    pthread_mutex_lock(&f->lock);
    while (i < n && file_find_place(f, &keys[i], &place))
        i++;
    pthread_mutex_unlock(&f->lock);
    return i;
}

static void submit(struct tier *t, struct tier_job *job) {
    struct file_tier *f = tier_of(t);
    bool is_taken;

    assert(job->n >= 1 && job->n <= TIER_JOB_UNITS);
    pthread_mutex_lock(&f->lock);
    is_taken =
        f->n_jobs < f->max_jobs && (job->op == TIER_LOAD || file_can_write(f, job->submitted_us));
    if (is_taken) {
        f->n_jobs++;
        list_push_back(job->op == TIER_LOAD ? &f->loads : &f->stores, &job->link);
        pthread_cond_signal(&f->work);
    }
    pthread_mutex_unlock(&f->lock);
    if (is_taken) return;
    job->began_us = job->submitted_us;
    set_results(job, TIER_BUSY);
    end(job);
}

static void hold(struct tier *t, const struct unit_key *keys, uint32_t n, bool is_held) {
    file_hold(tier_of(t), keys, n, is_held);
}

static void stats(struct tier *t, struct tier_stats *out) {
    struct file_tier *f = tier_of(t);
    uint64_t now_us = clock_now_us();

    pthread_mutex_lock(&f->lock);
    *out = (struct tier_stats){
        .bytes = f->known_bytes + f->other_bytes,
        .max_bytes = f->max_bytes,
        .n_units = f->n_live,
        .loaded_bytes = f->loaded_bytes,
        .stored_bytes = f->stored_bytes,
        .n_dropped = f->n_dropped,
        .n_held = f->n_held,
        .max_held = f->max_held,
        .can_write = file_can_write(f, now_us),
        .is_open = true,
    };
    pthread_mutex_unlock(&f->lock);
}

static void stop_threads(struct file_tier *f) {
    pthread_mutex_lock(&f->lock);
    f->is_stopping = true;
    pthread_cond_broadcast(&f->work);
    pthread_cond_broadcast(&f->keep);
    pthread_mutex_unlock(&f->lock);
    for (uint32_t i = 0; i < f->n_threads; i++)
        if (f->threads[i].is_started) pthread_join(f->threads[i].thread, NULL);
    if (f->is_keeper_started) pthread_join(f->keeper, NULL);
}

static void end_waiting(struct list *jobs) {
    LIST_FOR_EACH(it, jobs) {
        struct tier_job *job = LIST_ENTRY(it, struct tier_job, link);

        list_remove(it);
        job->began_us = clock_now_us();
        set_results(job, TIER_SKIPPED);
        end(job);
    }
}

static void destroy(struct tier *t) {
    struct file_tier *f = tier_of(t);

    if (!f) return;
    stop_threads(f);
    end_waiting(&f->loads);
    end_waiting(&f->stores);
    file_writer_close(f);
    file_space_close(f);
    for (uint32_t i = 0; i < f->n_threads; i++) {
        unit_codec_destroy(f->threads[i].codec);
        mem_free(f->threads[i].staging);
    }
    unit_codec_destroy(f->keeper_codec);
    file_index_destroy(f->index);
    map_fini(&f->slots);
    map_fini(&f->held);
    mem_free(f->segments);
    mem_free(f->writer.rows);
    pthread_mutex_destroy(&f->lock);
    pthread_mutex_destroy(&f->space_lock);
    pthread_cond_destroy(&f->work);
    pthread_cond_destroy(&f->keep);
    mem_free(f->dir);
    mem_free(f);
}

static const struct tier_ops ops = {.name = "file",
                                    .find = find,
                                    .hold = hold,
                                    .submit = submit,
                                    .stats = stats,
                                    .destroy = destroy};

/* --- opening ---------------------------------------------------------------------------------- */

static struct file_tier *make(const struct tier_file_config *c) {
    struct file_tier *f = mem_zalloc(sizeof(*f));
    pthread_condattr_t monotonic;

    f->tier.ops = &ops;
    f->dir = mem_strdup(c->dir);
    f->max_bytes = c->max_bytes;
    f->scan_us = c->scan_us ? c->scan_us : DEFAULT_SCAN_US;
    f->max_jobs = c->max_jobs ? c->max_jobs : DEFAULT_JOBS;
    f->n_threads = c->n_threads ? c->n_threads : DEFAULT_THREADS;
    f->is_buffered = c->is_buffered;
    f->log = c->log;
    f->hook = c->hook;
    for (int i = 0; i < 8; i++)
        snprintf(f->fingerprint + 2 * i, 3, "%02x", c->codec->fingerprint[i]);
    f->root_fd = f->dir_fd = f->evict_fd = f->held_fd = f->owner_fd = f->writer.fd = -1;
    f->tick = 1ull << 32; /* what is found at the start was begun long before */
    f->index = file_index_create();
    map_init(&f->slots, 0); /* its keys are random numbers already */
    map_init(&f->held, 0);
    list_init(&f->loads);
    list_init(&f->stores);
    pthread_mutex_init(&f->lock, NULL);
    pthread_mutex_init(&f->space_lock, NULL);
    pthread_cond_init(&f->work, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&f->keep, &monotonic);
    pthread_condattr_destroy(&monotonic);
    return f;
}

/* The budget is what was asked for, or most of what the disk has: a segment larger than that would
 * never be written. A disk that has no room now may have it later, so that is no error. */
static void set_budget(struct file_tier *f, uint64_t room_bytes, uint64_t least) {
    uint64_t most = MAX(room_bytes - room_bytes / DISK_SPARE_PART, SEGMENTS_LEAST * least);

    if (f->max_bytes <= most) return;
    log_event(f->log, LOG_WARN, "kv_file_limited", log_z("dir", f->dir),
              log_u64("asked_bytes", f->max_bytes), log_u64("room_bytes", room_bytes),
              log_u64("max_bytes", most));
    f->max_bytes = most;
}

static enum status set_sizes(struct file_tier *f, const struct tier_file_config *c,
                             struct error *err) {
    size_t least;

    f->unit_bytes = unit_bytes(f->keeper_codec);
    f->step = ALIGN_UP(f->unit_bytes, SEGMENT_STEP);
    f->chunk_units = (uint32_t)MIN(MAX(1, CHUNK_BYTES / f->step), TIER_JOB_UNITS);
    f->staging_bytes = ALIGN_UP(f->chunk_units * f->step, FILE_PAGE) + 2 * FILE_PAGE;
    least = ALIGN_UP(f->step, FILE_PAGE) + segment_summary_bytes(1);
    set_budget(f, c->room_bytes ? c->room_bytes : file_space_room(f), least);
    f->segment_bytes = c->segment_bytes ? c->segment_bytes
                                        : MIN(DEFAULT_SEGMENT_BYTES, f->max_bytes / SEGMENTS_LEAST);
    f->segment_bytes -= f->segment_bytes % FILE_PAGE;
    f->n_places = (uint32_t)MIN(f->segment_bytes / f->step, FILE_INDEX_MAX_PLACE);
    if (f->segment_bytes < least || f->max_bytes < 2 * f->segment_bytes)
        return error_set(err, ST_INVALID,
                         "%llu bytes are too few for a file tier with KV blocks of %zu bytes: at "
                         "least %zu",
                         (unsigned long long)f->max_bytes, f->unit_bytes, SEGMENTS_LEAST * least);
    if (f->segment_bytes / SEGMENT_STEP > FILE_INDEX_MAX_PLACE)
        return error_set(err, ST_INVALID, "segments of %llu bytes are too long: 1 GiB at most",
                         (unsigned long long)f->segment_bytes);
    f->writer.rows = file_io_buffer(segment_summary_bytes(f->n_places));
    return f->writer.rows ? ST_OK : error_set(err, ST_NOMEM, "no memory for the file tier");
}

static enum status prepare_thread(struct file_tier *f, struct file_thread *t,
                                  const struct unit_codec_config *codec, struct error *err) {
    enum status st = unit_codec_create(&t->codec, codec, err);

    t->f = f;
    if (st != ST_OK) return st;
    t->staging = file_io_buffer(f->staging_bytes);
    return t->staging ? ST_OK : error_set(err, ST_NOMEM, "no memory for the file tier");
}

static enum status start(struct file_tier *f, struct error *err) {
    for (uint32_t i = 0; i < f->n_threads; i++) {
        struct file_thread *t = &f->threads[i];

        t->is_started = pthread_create(&t->thread, NULL, io_thread, t) == 0;
        if (!t->is_started) return error_set(err, ST_NOMEM, "cannot start a thread");
    }
    f->is_keeper_started = pthread_create(&f->keeper, NULL, keeper_thread, f) == 0;
    return f->is_keeper_started ? ST_OK : error_set(err, ST_NOMEM, "cannot start a thread");
}

static void log_opened(struct file_tier *f, uint64_t took_us) {
    struct tier_stats s;

    stats(&f->tier, &s);
    log_event(f->log, LOG_INFO, "kv_file_opened", log_z("dir", f->dir), log_u64("units", s.n_units),
              log_u64("bytes", s.bytes), log_u64("max_bytes", s.max_bytes),
              log_bool("direct", atomic_load(&f->is_direct)), log_u64("ms", took_us / 1000));
}

enum status tier_file_open(struct tier **out, const struct tier_file_config *c, struct error *err) {
    uint64_t began_us = clock_now_us();
    struct file_tier *f = make(c);
    enum status st = ST_OK;

    if (f->n_threads < 2 || f->n_threads > TIER_FILE_MAX_THREADS) {
        st = error_set(err, ST_INVALID, "%u threads for the file tier: 2 to %d", f->n_threads,
                       TIER_FILE_MAX_THREADS);
        f->n_threads = 0;
    }
    if (st == ST_OK) st = unit_codec_create(&f->keeper_codec, c->codec, err);
    if (st == ST_OK) st = tier_file_make_dir(f->dir, err);
    if (st == ST_OK) st = set_sizes(f, c, err);
    for (uint32_t i = 0; st == ST_OK && i < f->n_threads; i++)
        st = prepare_thread(f, &f->threads[i], c->codec, err);
    if (st == ST_OK) st = file_space_open(f, err);
    if (st == ST_OK) st = start(f, err);
    if (st != ST_OK) {
        destroy(&f->tier);
        return st;
    }
    log_opened(f, clock_now_us() - began_us);
    *out = &f->tier;
    return ST_OK;
}

void tier_file_check(struct tier *t) {
    struct file_tier *f = tier_of(t);

    pthread_mutex_lock(&f->lock);
    file_table_check(f);
    pthread_mutex_unlock(&f->lock);
}
