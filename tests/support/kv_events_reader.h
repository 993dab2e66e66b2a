/* tests/support/kv_events_reader.h - a subscriber of KV events: decodes batches, keeps the picture
 * they describe, and compares it with the digest. */
#ifndef TESTS_SUPPORT_KV_EVENTS_READER_H
#define TESTS_SUPPORT_KV_EVENTS_READER_H

#include "common/base/buf.h"
#include "worker/kv/kv_events.h"

/* All events of the batches from a sequence on, one text each. */
#define KV_EVENTS_READ_MAX 64
struct kv_events_read {
    struct buf frames;
    uint64_t next;
    uint32_t n_batches, n_events;
    struct buf text[KV_EVENTS_READ_MAX];
};
void kv_events_read_all(struct kv_event_log *log, uint64_t from, struct kv_events_read *out);
void kv_events_read_fini(struct kv_events_read *r);
const char *kv_events_text(struct kv_events_read *r, uint32_t event);

/* The sets of hashes that follow from the events alone. */
struct kv_events_picture {
    struct kv_events_entry *entries;
    uint32_t n_entries, capacity;
    uint64_t next; /* sequence to read on from */
};
void kv_events_picture_init(struct kv_events_picture *p);
void kv_events_picture_fini(struct kv_events_picture *p);
void kv_events_picture_clear(struct kv_events_picture *p);
void kv_events_picture_add(struct kv_events_picture *p, enum kv_medium medium, uint32_t group,
                           const struct block_hash *hash);

/* Reads on to the newest batch. True when some were overwritten: the picture is then invalid,
 * and reading goes on behind the newest. */
bool kv_events_follow(struct kv_event_log *log, struct kv_events_picture *p);

/* cmocka assertion: the picture equals the digest. Hashes must be binary, of 32 bytes or of
 * hash_bytes with zeros behind. */
void kv_events_assert_digest(struct kv_event_log *log, const struct kv_events_picture *p);

#endif
