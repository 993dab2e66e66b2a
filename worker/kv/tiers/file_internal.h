/* worker/kv/tiers/file_internal.h - what the files of the file tier share.
 *
 * Three locks, in this order, none held while taking an earlier one:
 *      the writer's turn   (is_writing): the segment being written
 *      the space           (space_lock, evict.lock): what removes, adopts or counts files
 *      lock                index, segments, queue, counts: short, no system call under it */
#ifndef WORKER_KV_TIERS_FILE_INTERNAL_H
#define WORKER_KV_TIERS_FILE_INTERNAL_H

#include <pthread.h>

#include "common/base/map.h"
#include "worker/kv/tiers/file.h"
#include "worker/kv/tiers/file_index.h"
#include "worker/kv/tiers/file_segment.h"

#define FILE_NAME_MAX 300

/* A segment that is known, in a slot of the table. */
struct file_segment {
    struct segment_id id;
    bool is_used;   /* the slot is taken */
    bool is_gone;   /* its file is removed: entries of the index are dead until the next sweep */
    bool is_sealed; /* complete; only such are evicted */
    bool is_orphan; /* its process is dead */
    uint64_t bytes; /* of disk */
    uint64_t n_live, n_held; /* units that are found; of them held ones */
    bool is_locked;          /* other processes see that units of it are held */
    bool is_held_elsewhere;  /* another process holds units of it, as of the last look */
    double heat;             /* loads and writes of its units, halved each half_life segments */
    uint64_t heat_tick, begun_tick;
    uint64_t seen_scan; /* the scan that saw the file last */
};

struct file_thread {
    struct file_tier *f;
    pthread_t thread;
    bool is_started;
    struct unit_codec *codec;
    uint8_t *staging; /* of staging_bytes, page-aligned */
};

/* Units of evicted segments that lead the next one. */
struct file_hot {
    struct segment_row *rows;
    uint32_t n;
    uint8_t *units; /* n of a step each */
};

/* The segment being written; of the thread whose turn it is. */
struct file_writer {
    int fd; /* -1: none */
    uint32_t slot;
    uint32_t n;       /* units in it */
    uint64_t end;     /* where the next write goes: a page */
    uint32_t next_id; /* of the next segment */
    uint64_t owner;   /* of this one */
    struct segment_row *rows;
    struct file_hot hot;
};

struct file_tier {
    struct tier tier; /* first */

    /* Constant after open. */
    char *dir;
    uint64_t max_bytes, segment_bytes, scan_us;
    size_t unit_bytes, step; /* from one unit to the next of one write */
    size_t staging_bytes;
    uint32_t chunk_units; /* of one write */
    uint32_t n_places;    /* more units than that are in no segment */
    uint32_t max_jobs, n_threads;
    bool is_buffered;
    char fingerprint[17]; /* of the folder */
    struct log *log;
    const struct file_hook *hook;
    struct file_thread threads[TIER_FILE_MAX_THREADS];
    pthread_t keeper;
    bool is_keeper_started;
    struct unit_codec *keeper_codec;

    atomic_bool is_direct;

    /* The space: under space_lock, and evict.lock for other processes. */
    pthread_mutex_t space_lock;
    int root_fd, dir_fd; /* DIR, and the fingerprint's folder; -1: not there */
    int evict_fd, held_fd;
    _Atomic uint64_t owner; /* 0: not yet an owner, so nothing is written */
    int owner_fd;
    uint64_t n_scans;
    uint64_t foreign_bytes;               /* of other fingerprints, as of the last scan */
    uint64_t unsealed_bytes;              /* of others' segments that are being written */
    uint32_t n_live_owners;               /* this one included */
    uint32_t n_refused, n_refused_before; /* files of the last scan and the one before */

    struct file_writer writer;

    pthread_mutex_t lock;
    pthread_cond_t work, keep;
    struct list loads, stores;
    uint32_t n_jobs, n_loads_in_turn;
    bool is_writing, is_stopping;
    struct file_index *index;
    struct file_segment *segments;
    uint32_t n_segments;
    struct map slots; /* hash of the id to slot + 1 */
    uint64_t tick;    /* segments begun */
    uint64_t known_bytes, n_live, n_gone;
    struct map held;           /* keys, by their first bytes, to how many holds they have */
    uint64_t n_held, max_held; /* held units that are there; most that should be held */
    uint64_t other_bytes;      /* foreign and unsealed, for stats */
    uint64_t no_write_before_us;
    bool is_read_only;
    uint64_t eio_us[3];
    uint64_t loaded_bytes, stored_bytes, n_dropped;
};

/* --- file_table.c: segments and entries; the caller has `lock` -------------------------------- */

struct file_place {
    struct segment_id id;
    uint32_t slot, place;
};

/* The place of a key, or false. */
bool file_find_place(struct file_tier *f, const struct unit_key *key, struct file_place *out);
void file_note_use(struct file_tier *f, const struct unit_key *key); /* loaded, or stored again */
/* Forgets the key if it still points there: the unit failed. */
void file_forget(struct file_tier *f, const struct unit_key *key, const struct file_place *at);
/* Enters the unit unless another segment has it. False: it has, or there was no memory. */
bool file_enter(struct file_tier *f, const struct unit_key *key, uint32_t slot, uint32_t place,
                uint32_t hits);

/* The slot of a new segment. */
uint32_t file_add_segment(struct file_tier *f, struct segment_id id, uint64_t bytes);
struct file_segment *file_segment_of(struct file_tier *f, struct segment_id id); /* or NULL */
void file_set_gone(struct file_tier *f, uint32_t slot);
/* The segment to evict, or UINT32_MAX. of_others: of other live processes. One with more than
 * max_held held units stays, and one that another process holds, unless it is UINT64_MAX. */
uint32_t file_coldest(struct file_tier *f, bool of_others, uint64_t max_held);
void file_table_check(struct file_tier *f);

/* Takes dead entries out, a shard at a time, and frees the slots of segments that are gone. Takes
 * `lock` itself. */
void file_sweep(struct file_tier *f);

/* --- file_space.c: the folder; the caller has the space, except where noted ------------------- */

/* Takes space_lock and evict.lock, waiting at most wait_us. False: another process has it. */
bool file_space_enter(struct file_tier *f, uint64_t wait_us);
void file_space_leave(struct file_tier *f);

/* Opens or creates the folders, tries direct I/O, and becomes an owner; what fails is tried again
 * at the next scan. */
enum status file_space_open(struct file_tier *f, struct error *err);
/* What the disk has free, and what the folder has of it already; without the space. */
uint64_t file_space_room(const struct file_tier *f);
void file_space_close(struct file_tier *f); /* without the space; the owner's lock goes */

/* Sees what is in the folder: new segments are read, orphans sealed, missing ones forgotten. */
void file_space_scan(struct file_tier *f);
/* Removes one segment. `t` has the writer's turn: what is hot or held in it is kept in writer.hot.
 * NULL: no thread has, so only a segment without held units goes. False: none can be removed. */
bool file_space_evict(struct file_tier *f, struct file_thread *t);
uint64_t file_space_bytes(struct file_tier *f); /* of the whole folder, as far as it is known */

/* --- file_write.c: the writer's turn ---------------------------------------------------------- */

/* Adds to writer.hot what is held in the segment in `slot`, or what was loaded from it, the hottest
 * first, up to a quarter. */
void file_hot_read(struct file_thread *t, uint32_t slot);

void file_store(struct file_thread *t, struct tier_job *job);
void file_writer_close(struct file_tier *f); /* seals what there is; after the threads ended */

/* --- file_hold.c ------------------------------------------------------------------------------ */

/* The caller has `lock`. */
bool file_is_held(const struct file_tier *f, const struct unit_key *key);
/* A unit of the segment is found from now on (1), or no more (-1). */
void file_count_held(struct file_tier *f, uint32_t slot, const struct unit_key *key, int by);

void file_hold(struct file_tier *f, const struct unit_key *keys, uint32_t n, bool is_held);
/* The most held units that a segment may have whose turn it is to go. */
uint32_t file_hold_room(const struct file_tier *f);

/* The caller has the space: what this process holds, others see from now on. */
void file_hold_scan(struct file_tier *f);
bool file_is_held_elsewhere(struct file_tier *f, struct segment_id id);

/* --- file.c ----------------------------------------------------------------------------------- */

/* Notes a failed call and decides how long nothing is written. Takes `lock`. */
void file_note_error(struct file_tier *f, const char *what, int error, bool is_write);
bool file_can_write(struct file_tier *f, uint64_t now_us); /* the caller has `lock` */
int file_flags(struct file_tier *f);                       /* O_DIRECT or 0 */

#endif
