/* worker/kv/tiers/file_space.c - the folder that several processes share: owners, scans, budget,
 * eviction.
 *
 * A process is alive while it holds the flock of its owner file, which the kernel releases with the
 * process. Owner files are made and tested under evict.lock alone, so a new owner is never taken
 * for a dead one. Readers need no lock: a segment is opened by its name, which is never used twice,
 * and a removed one stays readable until it is closed. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/mem.h"
#include "worker/kv/tiers/file_internal.h"

#define EVICT_LOCK "evict.lock"

/* --- the space's two locks -------------------------------------------------------------------- */

/* Without it (a folder that is read-only and never was written) there is nothing to protect. */
static void open_evict_lock(struct file_tier *f) {
    struct stat st;

    if (f->evict_fd >= 0 && fstat(f->evict_fd, &st) == 0 && st.st_nlink > 0) return;
    if (f->evict_fd >= 0) close(f->evict_fd);
    f->evict_fd = openat(f->root_fd, EVICT_LOCK, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (f->evict_fd < 0)
        f->evict_fd = openat(f->root_fd, EVICT_LOCK, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
}

bool file_space_enter(struct file_tier *f, uint64_t wait_us) {
    uint64_t end_us = clock_now_us() + wait_us;

    pthread_mutex_lock(&f->space_lock);
    open_evict_lock(f);
    while (f->evict_fd >= 0 && flock(f->evict_fd, LOCK_EX | LOCK_NB) != 0) {
        if (clock_now_us() >= end_us) {
            pthread_mutex_unlock(&f->space_lock);
            return false;
        }
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return true;
}

void file_space_leave(struct file_tier *f) {
    if (f->evict_fd >= 0) flock(f->evict_fd, LOCK_UN);
    pthread_mutex_unlock(&f->space_lock);
}

/* --- folders and owners ----------------------------------------------------------------------- */

/* The folder `name` of this user, made if it is not there; no link. */
static int open_folder(int at, const char *name, int flags, int *fd) {
    struct stat st;

    if (mkdirat(at, name, 0700) != 0 && errno != EEXIST && errno != EROFS) return errno;
    *fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | flags);
    if (*fd < 0) return errno;
    if (flags & O_NOFOLLOW && (fstat(*fd, &st) != 0 || st.st_uid != geteuid())) {
        close(*fd);
        *fd = -1;
        return EPERM;
    }
    return 0;
}

/* Opens both folders again; io threads see the new ones under the old numbers. */
static int open_folders(struct file_tier *f) {
    int root = -1, dir = -1, error = open_folder(AT_FDCWD, f->dir, 0, &root);

    if (error == 0) error = open_folder(root, f->fingerprint, O_NOFOLLOW, &dir);
    if (error == 0 && f->root_fd < 0) {
        f->root_fd = root;
        f->dir_fd = dir;
        return 0;
    }
    if (error == 0 &&
        (dup3(root, f->root_fd, O_CLOEXEC) < 0 || dup3(dir, f->dir_fd, O_CLOEXEC) < 0))
        error = errno;
    if (root >= 0) close(root);
    if (dir >= 0) close(dir);
    return error;
}

static void owner_name(uint64_t owner, char out[SEGMENT_NAME_MAX]) {
    snprintf(out, SEGMENT_NAME_MAX, "owner-%016" PRIx64 ".lock", owner);
}

static bool owner_name_parse(const char *name, uint64_t *owner) {
    char again[SEGMENT_NAME_MAX];

    if (sscanf(name, "owner-%16" SCNx64 ".lock", owner) != 1) return false;
    owner_name(*owner, again);
    return strcmp(name, again) == 0;
}

static void probe_direct(struct file_tier *f) {
    bool can = !f->is_buffered && file_io_probe_direct(f->hook, f->dir_fd, "probe");

    if (!can && !f->is_buffered)
        log_event(f->log, LOG_WARN, "kv_file_buffered", log_z("dir", f->dir));
    atomic_store(&f->is_direct, can);
}

static void become_owner(struct file_tier *f) {
    char name[SEGMENT_NAME_MAX];
    uint64_t owner;
    int error;

    hash_random(&owner, sizeof(owner));
    owner |= 1;
    owner_name(owner, name);
    error = file_io_create(f->hook, f->dir_fd, name, 0, &f->owner_fd);
    if (error == 0 && flock(f->owner_fd, LOCK_EX | LOCK_NB) != 0) {
        error = errno;
        unlinkat(f->dir_fd, name, 0);
        close(f->owner_fd);
    }
    if (error == 0) {
        f->owner = owner;
        probe_direct(f);
        return;
    }
    f->owner_fd = -1;
    file_note_error(f, "owner", error, true);
}

static void keep_folders(struct file_tier *f) {
    struct stat st;
    int error;

    if (fstat(f->dir_fd, &st) == 0 && st.st_nlink > 0) {
        if (f->owner != 0 && fstat(f->owner_fd, &st) == 0 && st.st_nlink > 0) return;
        /* An owner without its file would be taken for dead. */
    } else if ((error = open_folders(f)) != 0) {
        file_note_error(f, "folder", error, true);
        return;
    } else {
        open_evict_lock(f);
        if (f->evict_fd >= 0 && flock(f->evict_fd, LOCK_EX | LOCK_NB) != 0) {
            close(f->evict_fd); /* another process was faster: no owner before the next scan */
            f->evict_fd = -1;
        }
    }
    if (f->owner_fd >= 0) close(f->owner_fd);
    f->owner_fd = -1;
    f->owner = 0;
}

/* Under evict.lock no process is between making an owner file and locking it. */
static bool is_owner_alive(struct file_tier *f, int dir_fd, uint64_t owner) {
    char name[SEGMENT_NAME_MAX];
    int fd, error;
    bool is_alive;

    if (owner == f->owner) return true;
    owner_name(owner, name);
    error = file_io_open(NULL, dir_fd, name, O_RDONLY, &fd);
    if (error != 0) return error != ENOENT;
    is_alive = flock(fd, LOCK_EX | LOCK_NB) != 0;
    if (!is_alive) unlinkat(dir_fd, name, 0);
    close(fd);
    return is_alive;
}

/* --- scanning --------------------------------------------------------------------------------- */

/* Calls visit for each name; false when the folder cannot be read. */
static bool each_name(int dir_fd, void (*visit)(void *arg, int dir_fd, const char *name),
                      void *arg) {
    int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    struct dirent *e;

    if (!dir && fd >= 0) close(fd);
    if (!dir) return false;
    while ((e = readdir(dir)))
        visit(arg, dir_fd, e->d_name);
    closedir(dir);
    return true;
}

static void enter_rows(struct file_tier *f, struct segment_id id, uint64_t bytes, bool is_orphan,
                       const struct segment_row *rows, uint32_t n) {
    uint32_t slot;

    pthread_mutex_lock(&f->lock);
    slot = file_add_segment(f, id, bytes);
    f->segments[slot].is_sealed = true;
    f->segments[slot].is_orphan = is_orphan;
    f->segments[slot].begun_tick = 0; /* not young */
    for (uint32_t i = 0; i < n; i++) {
        if (rows[i].place <= FILE_INDEX_MAX_PLACE &&
            rows[i].place * (uint64_t)SEGMENT_STEP + f->unit_bytes <= bytes)
            file_enter(f, &rows[i].key, slot, rows[i].place, rows[i].hits);
        if (i % 256 == 255) { /* others want the lock */
            pthread_mutex_unlock(&f->lock);
            pthread_mutex_lock(&f->lock);
        }
    }
    pthread_mutex_unlock(&f->lock);
}

/* Writes the summary that the dead writer did not. Where that fails the next start walks again. */
static void seal_orphan(struct file_tier *f, const char *name, const struct segment_row *rows,
                        uint32_t n, uint64_t *bytes) {
    size_t size = segment_summary_bytes(n);
    void *summary = file_io_buffer(size);
    uint64_t end = rows[n - 1].place * (uint64_t)SEGMENT_STEP + f->step;
    uint64_t at = ALIGN_UP(end, FILE_PAGE);
    int fd = -1, error = summary ? file_io_open(f->hook, f->dir_fd, name, O_RDWR, &fd) : ENOMEM;

    if (error == 0) {
        memcpy(summary, rows, n * sizeof(*rows));
        segment_finish(summary, n, at);
        error = file_io_write(f->hook, fd, summary, size, at);
    }
    if (error == 0 && ftruncate(fd, (off_t)(at + size)) == 0) *bytes = at + size;
    if (fd >= 0) close(fd);
    mem_free(summary);
    if (error != 0) file_note_error(f, "adopt", error, true);
}

/* Logged when there are more of them than at the last scan. */
static void refuse(struct file_tier *f, const char *name) {
    if (++f->n_refused > f->n_refused_before)
        log_event(f->log, LOG_WARN, "kv_file_refused", log_z("dir", f->dir), log_z("name", name));
}

/* A segment that is not known yet. */
static void read_segment(struct file_tier *f, struct segment_id id, const char *name) {
    bool is_orphan = !is_owner_alive(f, f->dir_fd, id.owner) || id.owner == f->owner;
    struct segment_row *rows = NULL;
    struct stat st = {0};
    enum status status = ST_IO;
    uint64_t bytes;
    uint32_t n = 0;
    int fd, error = file_io_open(f->hook, f->dir_fd, name, O_RDONLY, &fd);

    if (error == ELOOP || error == EPERM) {
        refuse(f, name);
        return;
    }
    if (error != 0) {
        if (error != ENOENT) file_note_error(f, "open", error, false);
        return;
    }
    if (fstat(fd, &st) == 0) status = segment_read(f->hook, fd, (uint64_t)st.st_size, &rows, &n);
    bytes = (uint64_t)st.st_blocks * 512;
    if (status == ST_NOT_FOUND && is_orphan) {
        status = segment_walk(f->hook, fd, (uint64_t)st.st_size, f->keeper_codec, &rows, &n);
        if (status == ST_OK && n > 0 && f->owner != 0) seal_orphan(f, name, rows, n, &bytes);
    }
    close(fd);
    if (status == ST_OK) {
        enter_rows(f, id, MAX(bytes, (uint64_t)st.st_size * (n > 0)), is_orphan, rows, n);
    } else {
        if (status == ST_IO) file_note_error(f, "summary", EIO, false);
        f->unsealed_bytes += bytes;
    }
    mem_free(rows);
}

static void visit_own(void *arg, int dir_fd, const char *name) {
    struct file_tier *f = arg;
    struct file_segment *s;
    struct segment_id id;
    uint64_t owner;

    if (owner_name_parse(name, &owner)) f->n_live_owners += is_owner_alive(f, dir_fd, owner);
    if (!segment_name_parse(name, &id)) return;
    pthread_mutex_lock(&f->lock);
    s = file_segment_of(f, id);
    if (s) s->seen_scan = f->n_scans;
    pthread_mutex_unlock(&f->lock);
    if (!s) read_segment(f, id, name);
}

static bool is_fingerprint(const struct file_tier *f, const char *name) {
    return strlen(name) == 16 && strspn(name, "0123456789abcdef") == 16 &&
           strcmp(name, f->fingerprint) != 0;
}

static void add_bytes(void *arg, int dir_fd, const char *name) {
    struct segment_id id;
    struct stat st;

    if (segment_name_parse(name, &id) && fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
        S_ISREG(st.st_mode))
        *(uint64_t *)arg += (uint64_t)st.st_blocks * 512;
}

static void visit_foreign(void *arg, int root_fd, const char *name) {
    struct file_tier *f = arg;
    int fd;

    if (!is_fingerprint(f, name)) return;
    fd = openat(root_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return;
    each_name(fd, add_bytes, &f->foreign_bytes);
    close(fd);
}

/* Orphans by their owners, and what the folder no longer has; the segment being written is its
 * writer's to give up. */
static void settle(struct file_tier *f) {
    for (uint32_t i = 0; i < f->n_segments; i++) {
        struct file_segment s;

        pthread_mutex_lock(&f->lock);
        s = f->segments[i];
        if (s.is_used && s.is_sealed && s.seen_scan != f->n_scans) file_set_gone(f, i);
        pthread_mutex_unlock(&f->lock);
        if (!s.is_used || s.is_gone || s.is_orphan || s.id.owner == f->owner) continue;
        if (is_owner_alive(f, f->dir_fd, s.id.owner)) continue;
        pthread_mutex_lock(&f->lock);
        f->segments[i].is_orphan = true;
        pthread_mutex_unlock(&f->lock);
    }
}

/* After a failure not at each scan. */
static bool may_try(struct file_tier *f) {
    bool may;

    pthread_mutex_lock(&f->lock);
    may = clock_now_us() >= f->no_write_before_us;
    pthread_mutex_unlock(&f->lock);
    return may;
}

void file_space_scan(struct file_tier *f) {
    if (may_try(f)) {
        keep_folders(f);
        if (f->owner == 0 && f->evict_fd >= 0) become_owner(f);
    }
    f->n_scans++;
    f->n_refused_before = f->n_refused;
    f->n_refused = 0;
    f->foreign_bytes = f->unsealed_bytes = 0;
    f->n_live_owners = 0;
    each_name(f->root_fd, visit_foreign, f);
    if (!each_name(f->dir_fd, visit_own, f)) return;
    settle(f);
    pthread_mutex_lock(&f->lock);
    f->other_bytes = f->foreign_bytes + f->unsealed_bytes;
    pthread_mutex_unlock(&f->lock);
    file_hold_scan(f);
    while (file_space_bytes(f) > f->max_bytes && file_space_evict(f, NULL))
        continue;
}

uint64_t file_space_bytes(struct file_tier *f) {
    uint64_t bytes;

    pthread_mutex_lock(&f->lock);
    bytes = f->known_bytes + f->foreign_bytes + f->unsealed_bytes;
    pthread_mutex_unlock(&f->lock);
    return bytes;
}

/* --- eviction --------------------------------------------------------------------------------- */

/* The oldest segment of a model that no process runs. */
struct oldest {
    struct file_tier *f;
    char folder[17], name[SEGMENT_NAME_MAX];
    const char *at; /* the folder that is visited */
    struct timespec written;
    uint64_t bytes;
};

static bool is_before(const struct timespec *a, const struct timespec *b) {
    return a->tv_sec != b->tv_sec ? a->tv_sec < b->tv_sec : a->tv_nsec < b->tv_nsec;
}

static void visit_old(void *arg, int dir_fd, const char *name) {
    struct oldest *o = arg;
    struct segment_id id;
    struct stat st;

    if (!segment_name_parse(name, &id) || fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) != 0 ||
        !S_ISREG(st.st_mode) || st.st_uid != geteuid() ||
        (o->name[0] && !is_before(&st.st_mtim, &o->written)) ||
        is_owner_alive(o->f, dir_fd, id.owner))
        return;
    segment_name(id, o->name);
    snprintf(o->folder, sizeof(o->folder), "%s", o->at);
    o->written = st.st_mtim;
    o->bytes = (uint64_t)st.st_blocks * 512;
}

static void visit_old_folder(void *arg, int root_fd, const char *name) {
    struct oldest *o = arg;
    int fd;

    if (!is_fingerprint(o->f, name)) return;
    fd = openat(root_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return;
    o->at = name;
    each_name(fd, visit_old, o);
    close(fd);
}

static bool evict_foreign(struct file_tier *f) {
    struct oldest o = {.f = f};
    char path[sizeof(o.folder) + sizeof(o.name)];

    each_name(f->root_fd, visit_old_folder, &o);
    if (!o.name[0]) return false;
    snprintf(path, sizeof(path), "%s/%s", o.folder, o.name);
    if (file_io_unlink(f->hook, f->root_fd, path) != 0) return false;
    unlinkat(f->root_fd, o.folder, AT_REMOVEDIR); /* when that was its last file */
    o.bytes = MIN(f->foreign_bytes, o.bytes);
    f->foreign_bytes -= o.bytes;
    pthread_mutex_lock(&f->lock);
    f->other_bytes -= MIN(f->other_bytes, o.bytes);
    pthread_mutex_unlock(&f->lock);
    return true;
}

/* From others only while this process has less than its share; what dead ones left is its own. */
static uint32_t choose(struct file_tier *f, uint64_t max_held) {
    uint64_t mine = 0, share = f->max_bytes / MAX(1, f->n_live_owners);
    uint32_t slot;
    bool of_others;

    for (uint32_t i = 0; i < f->n_segments; i++)
        if (f->segments[i].is_used && !f->segments[i].is_gone &&
            (f->segments[i].id.owner == f->owner || f->segments[i].is_orphan))
            mine += f->segments[i].bytes;
    of_others = mine < share;
    slot = file_coldest(f, of_others, max_held);
    return slot != UINT32_MAX ? slot : file_coldest(f, !of_others, max_held);
}

/* One that no other process holds, unless max_held is UINT64_MAX. */
static uint32_t choose_free(struct file_tier *f, uint64_t max_held, struct segment_id *id) {
    uint32_t slot;
    bool is_free;

    do {
        pthread_mutex_lock(&f->lock);
        slot = choose(f, max_held);
        if (slot != UINT32_MAX) *id = f->segments[slot].id;
        pthread_mutex_unlock(&f->lock);
        is_free = slot == UINT32_MAX || max_held == UINT64_MAX || !file_is_held_elsewhere(f, *id);
        if (is_free) break;
        pthread_mutex_lock(&f->lock);
        f->segments[slot].is_held_elsewhere = true;
        pthread_mutex_unlock(&f->lock);
    } while (true);
    return slot;
}

bool file_space_evict(struct file_tier *f, struct file_thread *t) {
    uint32_t slot;
    char name[SEGMENT_NAME_MAX];
    struct segment_id id;
    int error;

    if (f->evict_fd < 0) return false;
    if (f->foreign_bytes > 0 && evict_foreign(f)) return true;
    slot = choose_free(f, t ? file_hold_room(f) : 0, &id);
    /* More is held than may be: what is written comes before it. */
    if (slot == UINT32_MAX && t) slot = choose_free(f, UINT64_MAX, &id);
    if (slot == UINT32_MAX) return false;
    segment_name(id, name);
    if (t) file_hot_read(t, slot);
    error = file_io_unlink(f->hook, f->dir_fd, name);
    if (error != 0 && error != ENOENT) {
        file_note_error(f, "remove", error, true);
        return false;
    }
    pthread_mutex_lock(&f->lock);
    file_set_gone(f, slot);
    pthread_mutex_unlock(&f->lock);
    return true;
}

/* --- from start to end ------------------------------------------------------------------------ */

enum status tier_file_make_dir(const char *dir, struct error *err) {
    int fd = -1, error = open_folder(AT_FDCWD, dir, 0, &fd);

    if (fd >= 0) close(fd);
    if (error == 0) return ST_OK;
    return error_set(err, ST_IO, "cannot use the folder '%s': %s%s", dir, strerror(error),
                     error == ENOENT    ? ": make the folder that it is to be in"
                     : error == ENOTDIR ? ": name a folder, not a file"
                                        : "");
}

static void add_folder(void *arg, int root_fd, const char *name) {
    int fd;

    if (name[0] == '.') return;
    fd = openat(root_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return;
    each_name(fd, add_bytes, arg);
    close(fd);
}

uint64_t file_space_room(const struct file_tier *f) {
    int fd = open(f->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    uint64_t bytes = 0;
    struct statvfs s;

    if (fd < 0) return UINT64_MAX;
    each_name(fd, add_folder, &bytes);
    bytes = fstatvfs(fd, &s) == 0 ? bytes + (uint64_t)s.f_bavail * s.f_frsize : UINT64_MAX;
    close(fd);
    return bytes;
}

enum status file_space_open(struct file_tier *f, struct error *err) {
    enum status st = tier_file_make_dir(f->dir, err);
    int error;

    if (st != ST_OK) return st;
    error = open_folders(f);
    if (error != 0)
        return error_set(err, ST_IO, "cannot use %s/%s: %s", f->dir, f->fingerprint,
                         error == EPERM || error == ELOOP || error == ENOTDIR
                             ? "it must be a folder of this user, not a link"
                             : strerror(error));
    if (!file_space_enter(f, 5000000)) return ST_OK; /* the keeper tries again */
    file_space_scan(f);
    file_space_leave(f);
    return ST_OK;
}

void file_space_close(struct file_tier *f) {
    char name[SEGMENT_NAME_MAX];

    if (f->owner != 0) {
        owner_name(f->owner, name);
        unlinkat(f->dir_fd, name, 0);
        close(f->owner_fd);
    }
    if (f->evict_fd >= 0) close(f->evict_fd);
    if (f->held_fd >= 0) close(f->held_fd);
    if (f->dir_fd >= 0) close(f->dir_fd);
    if (f->root_fd >= 0) close(f->root_fd);
}
