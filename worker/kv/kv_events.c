/* worker/kv/kv_events.c - the open batch, the ring of committed ones, the digest.
 *
 * The ring holds frames as they are sent. A frame is contiguous: one that does not fit before the
 * end of the ring begins at its start. Positions count bytes since creation, so a frame is intact
 * while its position is at most the ring's size behind the newest byte. */
#include "worker/kv/kv_events.h"

#include <assert.h>
#include <endian.h>
#include <pthread.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/text/msgpack.h"

struct frame_span {
    uint64_t at; /* position of its first byte; on from there without a break */
    uint64_t n_bytes;
};

struct kv_event_log {
    struct kv_event_config config;
    uint32_t key_bytes; /* of a hash as sent */

    /* The engine's. */
    struct buf events; /* of the open batch, one after another */
    struct buf head;   /* scratch: what a frame begins with */
    uint32_t n_open;   /* events in it */
    uint32_t n_sets;
    struct kv_event_set *sets; /* (KV_MEDIUM_COUNT, n_groups + 1) as of the open batch */

    /* Shared, under the lock. */
    pthread_mutex_t lock;
    uint8_t *ring;            /* (max_bytes) */
    struct frame_span *spans; /* (max_batches) frame s at s % max_batches */
    uint64_t oldest, next;    /* frames [oldest, next) are there */
    uint64_t end;             /* position behind the newest frame */
    struct kv_event_digest digest;
};

const char *kv_medium_name(enum kv_medium medium) {
    static const char *const names[KV_MEDIUM_COUNT] = {"GPU", "CPU"};

    return names[medium];
}

static struct kv_event_set *set_of(struct kv_event_log *log, enum kv_medium medium,
                                   uint32_t group) {
    return &log->sets[medium * (log->config.n_groups + 1) + MIN(group, log->config.n_groups)];
}

enum status kv_event_log_create(struct kv_event_log **out, const struct kv_event_config *config,
                                struct error *err) {
    struct kv_event_log *log = mem_zalloc(sizeof(*log));

    assert(config->n_groups <= KV_EVENT_GROUPS_MAX && config->max_batches >= 1);
    assert(config->hash_bytes >= 8 && config->hash_bytes <= BLOCK_HASH_BYTES);
    log->config = *config;
    log->key_bytes = config->has_number_hashes ? 8 : config->hash_bytes;
    log->n_sets = KV_MEDIUM_COUNT * (config->n_groups + 1);
    log->sets = mem_calloc(log->n_sets, sizeof(*log->sets));
    for (uint32_t i = 0; i < log->n_sets; i++) {
        log->sets[i].medium = (enum kv_medium)(i / (config->n_groups + 1));
        log->sets[i].group = i % (config->n_groups + 1);
    }
    buf_init(&log->events, config->max_bytes);
    buf_init(&log->head, 0);
    pthread_mutex_init(&log->lock, NULL);
    log->ring = mem_try(config->max_bytes);
    log->spans = mem_try(config->max_batches * sizeof(*log->spans));
    if (!log->ring || !log->spans) {
        kv_event_log_destroy(log);
        return error_set(err, ST_NOMEM,
                         "out of memory for %llu bytes and %u batches of KV events: lower "
                         "--kv-events-buffer-bytes",
                         (unsigned long long)config->max_bytes, config->max_batches);
    }
    log->digest.n_sets = log->n_sets;
    log->digest.hash_bytes = log->key_bytes;
    memcpy(log->digest.sets, log->sets, log->n_sets * sizeof(*log->sets));
    *out = log;
    return ST_OK;
}

void kv_event_log_destroy(struct kv_event_log *log) {
    if (!log) return;
    pthread_mutex_destroy(&log->lock);
    buf_fini(&log->events);
    buf_fini(&log->head);
    mem_free(log->sets);
    mem_free(log->ring);
    mem_free(log->spans);
    mem_free(log);
}

/* --- events ----------------------------------------------------------------------------------- */

/* The bytes of a hash that are sent: all of the digest, or its last eight. */
static const uint8_t *key_of(const struct kv_event_log *log, const struct block_hash *hash) {
    return hash->bytes + log->config.hash_bytes - log->key_bytes;
}

static void put_hash(const struct kv_event_log *log, struct buf *out,
                     const struct block_hash *hash) {
    uint64_t number;

    if (!log->config.has_number_hashes) {
        msgpack_put_bin(out, hash->bytes, log->config.hash_bytes);
        return;
    }
    memcpy(&number, key_of(log, hash), sizeof(number));
    msgpack_put_u64(out, be64toh(number));
}

static void put_z(struct buf *out, const char *z) {
    if (z) {
        msgpack_put_str(out, str_of(z));
    } else {
        msgpack_put_nil(out);
    }
}

static void put_name(struct buf *out, struct str name) {
    if (name.len > 0) {
        msgpack_put_str(out, name);
    } else {
        msgpack_put_nil(out);
    }
}

static bool overlaps(const struct block_mm_item *item, uint64_t start, uint64_t end) {
    return item->offset < end && (uint64_t)item->offset + item->n_tokens > start;
}

/* What the hash of block `index` depends on besides tokens, in the order it is hashed in; nil when
 * there is nothing. */
static void put_extra_keys(const struct kv_event_log *log, struct buf *out,
                           const struct block_extras *x, uint32_t index) {
    uint64_t start = (uint64_t)index * log->config.block_size;
    uint64_t end = start + log->config.block_size;
    bool has_salt = index == 0 && x->cache_salt.len > 0;
    uint32_t n = (x->lora.len > 0) + has_salt;

    for (uint32_t i = 0; i < x->n_items; i++)
        n += overlaps(&x->items[i], start, end);
    if (n == 0) {
        msgpack_put_nil(out);
        return;
    }
    msgpack_begin_array(out, n);
    if (x->lora.len > 0) msgpack_put_str(out, x->lora);
    for (uint32_t i = 0; i < x->n_items; i++) {
        if (!overlaps(&x->items[i], start, end)) continue;
        msgpack_begin_array(out, 2);
        msgpack_put_str(out, x->items[i].id);
        msgpack_put_i64(out, (int64_t)x->items[i].offset - (int64_t)start);
    }
    if (has_salt) msgpack_put_str(out, x->cache_salt);
}

/* Fields that end a BlockStored; trailing empty ones are left out. */
static uint32_t count_tail(const struct kv_event_log *log, const struct kv_event_stored *e) {
    if (e->group < log->config.n_groups) return log->config.groups[e->group].window > 0 ? 4 : 3;
    return block_extras_is_empty(e->extras) ? 0 : 1;
}

static void put_tail(const struct kv_event_log *log, struct buf *out,
                     const struct kv_event_stored *e, uint32_t n_fields) {
    if (n_fields == 0) return;
    if (block_extras_is_empty(e->extras)) {
        msgpack_put_nil(out);
    } else {
        msgpack_begin_array(out, e->n_blocks);
        for (uint32_t i = 0; i < e->n_blocks; i++)
            put_extra_keys(log, out, e->extras, e->first_block + i);
    }
    if (n_fields < 3) return;
    msgpack_put_u64(out, e->group);
    put_z(out, log->config.groups[e->group].kind);
    if (n_fields == 4) msgpack_put_u64(out, log->config.groups[e->group].window);
}

void kv_event_log_stored(struct kv_event_log *log, const struct kv_event_stored *e) {
    uint32_t n_tail = count_tail(log, e), n_tokens = e->n_blocks * log->config.block_size;
    struct buf *out = &log->events;

    if (e->n_blocks == 0) return;
    msgpack_begin_array(out, 8 + n_tail);
    put_z(out, "BlockStored");
    msgpack_begin_array(out, e->n_blocks);
    for (uint32_t i = 0; i < e->n_blocks; i++)
        put_hash(log, out, &e->hashes[i]);
    if (e->parent) {
        put_hash(log, out, e->parent);
    } else {
        msgpack_put_nil(out);
    }
    msgpack_put_u32_array(out, e->tokens, e->tokens ? n_tokens : 0);
    msgpack_put_u64(out, log->config.block_size);
    if (e->lora_id >= 0) {
        msgpack_put_i64(out, e->lora_id);
    } else {
        msgpack_put_nil(out);
    }
    put_z(out, kv_medium_name(e->medium));
    put_name(out, e->extras ? e->extras->lora : STR_NULL);
    put_tail(log, out, e, n_tail);
    log->n_open++;
}

static void digest_xor(const struct kv_event_log *log, struct kv_event_set *set,
                       const struct block_hash *hash) {
    const uint8_t *key = key_of(log, hash);

    for (uint32_t i = 0; i < log->key_bytes; i++)
        set->xor_of.bytes[i] ^= key[i];
}

void kv_event_log_count(struct kv_event_log *log, enum kv_medium medium, uint32_t group,
                        const struct block_hash *hash) {
    struct kv_event_set *set = set_of(log, medium, group);

    digest_xor(log, set, hash);
    set->n_keys++;
}

void kv_event_log_removed(struct kv_event_log *log, enum kv_medium medium, uint32_t group,
                          const struct block_hash *hash) {
    struct kv_event_set *set = set_of(log, medium, group);
    bool has_group = group < log->config.n_groups;

    assert(set->n_keys > 0);
    digest_xor(log, set, hash);
    set->n_keys--;
    msgpack_begin_array(&log->events, has_group ? 4 : 3);
    put_z(&log->events, "BlockRemoved");
    msgpack_begin_array(&log->events, 1);
    put_hash(log, &log->events, hash);
    put_z(&log->events, kv_medium_name(medium));
    if (has_group) msgpack_put_u64(&log->events, group);
    log->n_open++;
}

void kv_event_log_cleared(struct kv_event_log *log) {
    for (uint32_t i = 0; i < log->n_sets; i++) {
        log->sets[i].n_keys = 0;
        log->sets[i].xor_of = (struct block_hash){0};
    }
    msgpack_begin_array(&log->events, 1);
    put_z(&log->events, "AllBlocksCleared");
    log->n_open++;
}

/* --- the ring --------------------------------------------------------------------------------- */

static void put_big_endian(uint8_t *out, uint64_t value, int n_bytes) {
    for (int i = n_bytes - 1; i >= 0; i--, value >>= 8)
        out[i] = (uint8_t)value;
}

/* Frame head, and the payload up to its events. */
static void write_head(struct kv_event_log *log, uint64_t wall_us) {
    uint8_t zeros[KV_EVENT_HEAD_BYTES] = {0};

    buf_clear(&log->head);
    buf_append(&log->head, zeros, sizeof(zeros)); /* filled in when the sum is known */
    msgpack_begin_array(&log->head, 3);
    msgpack_put_f64(&log->head, (double)wall_us * 1e-6);
    msgpack_begin_array(&log->head, log->n_open);
}

/* Contiguous room for a frame of n bytes; overwrites older ones. */
static uint8_t *ring_take(struct kv_event_log *log, uint64_t n) {
    uint64_t size = log->config.max_bytes, at = log->end;

    if (at % size + n > size) at += size - at % size;
    log->end = at + n;
    while (log->oldest < log->next &&
           (log->next - log->oldest >= log->config.max_batches ||
            log->spans[log->oldest % log->config.max_batches].at + size < log->end)) {
        log->oldest++;
    }
    log->spans[log->next % log->config.max_batches] = (struct frame_span){at, n};
    return log->ring + at % size;
}

/* The open batch becomes frame `next`. One that is larger than the ring consumes its number and
 * clears the ring, so every reader has to start over. */
static void ring_push(struct kv_event_log *log) {
    uint64_t n_head = buf_len(&log->head), n_events = buf_len(&log->events), n = n_head + n_events;
    uint8_t *to;

    if (log->events.has_failed || n > log->config.max_bytes || n > UINT32_MAX) {
        log->digest.n_lost_batches++;
        log->oldest = ++log->next;
        return;
    }
    to = ring_take(log, n);
    memcpy(to, buf_ptr(&log->head), n_head);
    memcpy(to + n_head, buf_ptr(&log->events), n_events);
    put_big_endian(to, n - KV_EVENT_HEAD_BYTES, 4);
    put_big_endian(to + 4, log->next, 8);
    log->next++;
}

bool kv_event_log_commit(struct kv_event_log *log, uint64_t wall_us, bool may_wait) {
    if (log->n_open == 0) return false;
    if (may_wait) {
        pthread_mutex_lock(&log->lock);
    } else if (pthread_mutex_trylock(&log->lock) != 0) {
        return false;
    }
    write_head(log, wall_us);
    msgpack_put_u64(&log->events, log->config.rank);
    ring_push(log);
    log->digest.sequence = log->next - 1;
    log->digest.n_events += log->n_open;
    memcpy(log->digest.sets, log->sets, log->n_sets * sizeof(*log->sets));
    pthread_mutex_unlock(&log->lock);
    buf_clear(&log->events);
    log->n_open = 0;
    return true;
}

/* --- readers ---------------------------------------------------------------------------------- */

static enum status read_locked(const struct kv_event_log *log, uint64_t from, size_t max_bytes,
                               struct buf *out, uint64_t *next) {
    uint64_t at = from;

    *next = log->next;
    if (from == log->next) return ST_AGAIN;
    if (from < log->oldest || from > log->next) return ST_NOT_FOUND;
    do {
        const struct frame_span *p = &log->spans[at % log->config.max_batches];

        if (at > from && buf_len(out) + p->n_bytes > max_bytes) break;
        buf_append(out, log->ring + p->at % log->config.max_bytes, p->n_bytes);
    } while (++at < log->next);
    *next = at;
    return ST_OK;
}

enum status kv_event_log_read(struct kv_event_log *log, uint64_t from, size_t max_bytes,
                              struct buf *out, uint64_t *next) {
    enum status st;

    pthread_mutex_lock(&log->lock);
    st = read_locked(log, from, max_bytes, out, next);
    pthread_mutex_unlock(&log->lock);
    return st;
}

void kv_event_log_digest(struct kv_event_log *log, struct kv_event_digest *out) {
    pthread_mutex_lock(&log->lock);
    *out = log->digest;
    out->next = log->next;
    out->oldest = log->oldest;
    pthread_mutex_unlock(&log->lock);
}
