/* worker/kv/tiers/file_hold.c - units of the file tier that stay, because clients hold them.
 *
 * Held keys are counted, whether their units are there or yet to come; each segment knows how many
 * of its units are held. A segment that goes has them written again, first in the next one. A
 * segment stays if more than half of it is held, so that the next one always has room for other
 * units, while at most half of the folder is held.
 *
 * Processes that share the folder see each other's holds by locks of bytes of DIR/held.lock, one
 * for each segment, which the kernel takes back when their process ends. */
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/rng.h"
#include "worker/kv/tiers/file_internal.h"

#define HELD_LOCK "held.lock"
#define HELD_PART 2    /* half of a segment is written again at most: amplification <= 2 */
#define AT_ONCE   256u /* keys, before others get the lock */

/* --- keys ------------------------------------------------------------------------------------- */

/* Keys are HMACs: eight of their bytes are as good as all of them, and to hold one too many harms
 * nothing. */
static uint64_t hash_of_key(const struct unit_key *key) {
    uint64_t hash;

    memcpy(&hash, key->bytes, sizeof(hash));
    return hash;
}

bool file_is_held(const struct file_tier *f, const struct unit_key *key) {
    return f->held.n > 0 && map_find(&f->held, hash_of_key(key)) != NULL;
}

void file_count_held(struct file_tier *f, uint32_t slot, const struct unit_key *key, int by) {
    if (!file_is_held(f, key)) return;
    f->segments[slot].n_held += (uint64_t)by;
    f->n_held += (uint64_t)by;
}

static void hold_one(struct file_tier *f, const struct unit_key *key, bool is_held) {
    uint64_t hash = hash_of_key(key);
    uintptr_t n = (uintptr_t)map_find(&f->held, hash);
    struct file_place at;
    bool is_there = file_find_place(f, key, &at);

    if (is_held) {
        map_insert(&f->held, hash, (void *)(n + 1));
        if (n == 0 && is_there) file_count_held(f, at.slot, key, 1);
    } else if (n > 1) {
        map_insert(&f->held, hash, (void *)(n - 1));
    } else if (n == 1) {
        if (is_there) file_count_held(f, at.slot, key, -1);
        map_erase(&f->held, hash);
    }
}

void file_hold(struct file_tier *f, const struct unit_key *keys, uint32_t n, bool is_held) {
    for (uint32_t i = 0; i < n; i += AT_ONCE) {
        pthread_mutex_lock(&f->lock);
        for (uint32_t k = i; k < MIN(n, i + AT_ONCE); k++)
            hold_one(f, &keys[k], is_held);
        pthread_mutex_unlock(&f->lock);
    }
}

static uint32_t half_of_segment(const struct file_tier *f) {
    return (uint32_t)(f->segment_bytes / ALIGN_UP(f->step, FILE_PAGE) / HELD_PART);
}

/* One segment is being written, and eviction needs the room of another. */
static uint64_t max_held(const struct file_tier *f) {
    uint64_t n_segments = f->max_bytes / f->segment_bytes;

    return (n_segments - 2) * half_of_segment(f) / MAX(1, f->n_live_owners);
}

/* Two segments go at a time where one is smaller than the next is to be. */
uint32_t file_hold_room(const struct file_tier *f) {
    uint32_t half = half_of_segment(f);

    return MIN(half, 2 * half - MIN(2 * half, f->writer.hot.n));
}

/* --- the other processes ---------------------------------------------------------------------- */

static struct flock lock_of(struct segment_id id, short type) {
    return (struct flock){.l_type = type,
                          .l_whence = SEEK_SET,
                          .l_start = (off_t)(rng_mix(id.owner ^ rng_mix(id.n)) >> 2),
                          .l_len = 1};
}

static void open_lock(struct file_tier *f) {
    struct stat st;

    if (f->held_fd >= 0 && fstat(f->held_fd, &st) == 0 && st.st_nlink > 0) return;
    if (f->held_fd >= 0) close(f->held_fd);
    f->held_fd = openat(f->root_fd, HELD_LOCK, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    pthread_mutex_lock(&f->lock);
    for (uint32_t i = 0; i < f->n_segments; i++)
        f->segments[i].is_locked = false;
    pthread_mutex_unlock(&f->lock);
}

void file_hold_scan(struct file_tier *f) {
    open_lock(f);
    pthread_mutex_lock(&f->lock);
    f->max_held = max_held(f);
    pthread_mutex_unlock(&f->lock);
    if (f->held_fd < 0) return;
    for (uint32_t i = 0; i < f->n_segments; i++) {
        struct flock range;
        bool is_held, was_locked;

        pthread_mutex_lock(&f->lock);
        is_held = f->segments[i].is_used && !f->segments[i].is_gone && f->segments[i].n_held > 0;
        was_locked = f->segments[i].is_locked;
        f->segments[i].is_locked = is_held;
        f->segments[i].is_held_elsewhere = false; /* asked again when it is to go */
        range = lock_of(f->segments[i].id, is_held ? F_RDLCK : F_UNLCK);
        pthread_mutex_unlock(&f->lock);
        if (is_held != was_locked) (void)!fcntl(f->held_fd, F_OFD_SETLK, &range);
    }
}

bool file_is_held_elsewhere(struct file_tier *f, struct segment_id id) {
    struct flock range = lock_of(id, F_WRLCK);

    return f->held_fd >= 0 && fcntl(f->held_fd, F_OFD_GETLK, &range) == 0 &&
           range.l_type != F_UNLCK;
}
