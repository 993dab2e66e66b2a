/* worker/kv/tiers/file_index.h - where the units of the file tier lie: key to segment and place.
 *
 *      key ── 2 bytes ──▶ one of 1,024 shards ── 8 bytes ──▶ home slot, or a slot after it
 *
 * Each shard is a table of 24 bytes a slot, open addressing with linear probing, at most 3/4 full,
 * that doubles alone: no insert moves more than a thousandth of all entries, and a tier of two
 * million units takes 64 to 96 MiB. Keys are HMACs, so their own bytes spread them.
 *
 * An entry is a belief. It may point to a segment that is gone: who removes a segment marks it, and
 * sweeps the shards later, one at a time, so that the lock around this is never held for long.
 * No thread of its own; the caller has the lock. */
#ifndef WORKER_KV_TIERS_FILE_INDEX_H
#define WORKER_KV_TIERS_FILE_INDEX_H

#include "worker/kv/tiers/unit.h"

#define FILE_INDEX_SHARDS    1024
#define FILE_INDEX_MAX_PLACE ((1u << 24) - 1)

struct file_entry {
    struct unit_key key;
    uint32_t segment;    /* plus 1; 0: an empty slot */
    uint32_t place : 24; /* of the unit in its segment, in steps of 64 bytes */
    uint32_t hits : 8;   /* loads since it was written, at most 255 */
};

struct file_index;

struct file_index *file_index_create(void);
void file_index_destroy(struct file_index *index); /* NULL is fine */

/* NULL: unknown. The caller may change place, segment and hits; the pointer is good until the next
 * insert, erase or sweep. */
struct file_entry *file_index_find(struct file_index *index, const struct unit_key *key);

/* Enters a key that is not there, and returns its entry to fill. NULL: no memory for it. */
struct file_entry *file_index_insert(struct file_index *index, const struct unit_key *key);
void file_index_erase(struct file_index *index, struct file_entry *entry);

/* Erases the entries of one shard whose segment (minus 1) `is_gone`. */
void file_index_sweep(struct file_index *index, uint32_t shard,
                      bool (*is_gone)(const void *arg, uint32_t segment), const void *arg);

/* Asserts the invariants and calls visit (may be NULL) for each entry; O(n). */
void file_index_check(const struct file_index *index,
                      void (*visit)(void *arg, const struct file_entry *entry), void *arg);

#endif
