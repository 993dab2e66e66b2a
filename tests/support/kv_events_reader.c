/* tests/support/kv_events_reader.c - see the header. */
#include "tests/support/kv_events_reader.h"

#include <endian.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/text/msgpack.h"
#include "tests/support/cm.h"

struct kv_events_entry {
    enum kv_medium medium;
    uint32_t group;
    struct block_hash hash;
};

/* --- text ------------------------------------------------------------------------------------- */

static void value_text(struct msgpack_reader *r, struct buf *out) {
    struct msgpack_value v;

    assert_int_equal(msgpack_next(r, &v), ST_OK);
    switch (v.type) {
    case MSGPACK_NIL: buf_append_str(out, STR("nil")); return;
    case MSGPACK_BOOL: buf_append_str(out, v.boolean ? STR("true") : STR("false")); return;
    case MSGPACK_U64: buf_append_u64(out, v.u64); return;
    case MSGPACK_I64: buf_appendf(out, "%lld", (long long)v.i64); return;
    case MSGPACK_F64: buf_append_f64(out, v.f64); return;
    case MSGPACK_STR: buf_append_str(out, v.bytes); return;
    case MSGPACK_BIN:
        for (size_t i = 0; i < v.bytes.len; i++)
            buf_appendf(out, "%02x", (uint8_t)v.bytes.ptr[i]);
        return;
    case MSGPACK_ARRAY:
    case MSGPACK_MAP: break;
    }
    buf_append_char(out, '[');
    for (uint32_t i = 0; i < (v.type == MSGPACK_MAP ? 2 : 1) * v.n; i++) {
        if (i > 0) buf_append_char(out, ' ');
        value_text(r, out);
    }
    buf_append_char(out, ']');
}

/* One frame off the front: its events are left to be read. */
static uint32_t open_frame(struct str *frames, uint64_t *sequence, struct msgpack_reader *r) {
    struct msgpack_value v;
    uint32_t n_bytes;
    uint64_t number;

    assert_true(frames->len >= KV_EVENT_HEAD_BYTES);
    memcpy(&n_bytes, frames->ptr, sizeof(n_bytes));
    memcpy(&number, frames->ptr + 4, sizeof(number));
    n_bytes = be32toh(n_bytes);
    *sequence = be64toh(number);
    assert_true(n_bytes <= frames->len - KV_EVENT_HEAD_BYTES);
    *r = msgpack_reader_of((struct str){frames->ptr + KV_EVENT_HEAD_BYTES, n_bytes});
    frames->ptr += KV_EVENT_HEAD_BYTES + n_bytes;
    frames->len -= KV_EVENT_HEAD_BYTES + n_bytes;
    assert_int_equal(msgpack_expect(r, MSGPACK_ARRAY, &v), ST_OK);
    assert_int_equal(v.n, 3);
    assert_int_equal(msgpack_expect(r, MSGPACK_F64, &v), ST_OK);
    assert_int_equal(msgpack_expect(r, MSGPACK_ARRAY, &v), ST_OK);
    return v.n;
}

static void close_frame(struct msgpack_reader *r) {
    struct msgpack_value v;

    assert_int_equal(msgpack_expect(r, MSGPACK_U64, &v), ST_OK); /* rank */
    assert_ptr_equal(r->at, r->end);
}

void kv_events_read_all(struct kv_event_log *log, uint64_t from, struct kv_events_read *out) {
    struct str frames;
    enum status st;

    *out = (struct kv_events_read){0};
    buf_init(&out->frames, 0);
    st = kv_event_log_read(log, from, SIZE_MAX, &out->frames, &out->next);
    assert_true(st == ST_OK || st == ST_AGAIN);
    frames = buf_str(&out->frames);
    for (uint64_t sequence = from; frames.len > 0; sequence++) {
        struct msgpack_reader r;
        uint64_t read;
        uint32_t n = open_frame(&frames, &read, &r);

        assert_int_equal(read, sequence);
        out->n_batches++;
        while (n-- > 0) {
            struct buf *text = &out->text[out->n_events++];
            struct msgpack_value v;

            assert_true(out->n_events <= KV_EVENTS_READ_MAX);
            buf_init(text, 0);
            assert_int_equal(msgpack_expect(&r, MSGPACK_ARRAY, &v), ST_OK);
            for (uint32_t i = 0; i < v.n; i++) {
                if (i > 0) buf_append_char(text, ' ');
                value_text(&r, text);
            }
            buf_append_char(text, '\0');
        }
        close_frame(&r);
    }
}

void kv_events_read_fini(struct kv_events_read *r) {
    buf_fini(&r->frames);
    for (uint32_t i = 0; i < r->n_events; i++)
        buf_fini(&r->text[i]);
}

const char *kv_events_text(struct kv_events_read *r, uint32_t event) {
    return event < r->n_events ? buf_ptr(&r->text[event]) : "(no event)";
}

/* --- the picture ------------------------------------------------------------------------------ */

void kv_events_picture_init(struct kv_events_picture *p) {
    *p = (struct kv_events_picture){0};
}

void kv_events_picture_fini(struct kv_events_picture *p) {
    mem_free(p->entries);
    *p = (struct kv_events_picture){0};
}

void kv_events_picture_clear(struct kv_events_picture *p) {
    p->n_entries = 0;
}

static uint32_t place_of(const struct kv_events_picture *p, const struct kv_events_entry *e) {
    uint32_t i = 0;

    while (i < p->n_entries &&
           (p->entries[i].medium != e->medium || p->entries[i].group != e->group ||
            memcmp(&p->entries[i].hash, &e->hash, sizeof(e->hash)) != 0)) {
        i++;
    }
    return i;
}

void kv_events_picture_add(struct kv_events_picture *p, enum kv_medium medium, uint32_t group,
                           const struct block_hash *hash) {
    struct kv_events_entry e = {medium, group, *hash};

    if (place_of(p, &e) < p->n_entries) return;
    if (p->n_entries == p->capacity) {
        p->capacity = MAX(64, 2 * p->capacity);
        p->entries = mem_realloc(p->entries, p->capacity * sizeof(*p->entries));
    }
    p->entries[p->n_entries++] = e;
}

static void picture_remove(struct kv_events_picture *p, enum kv_medium medium, uint32_t group,
                           const struct block_hash *hash) {
    struct kv_events_entry e = {medium, group, *hash};
    uint32_t i = place_of(p, &e);

    assert_true(i < p->n_entries); /* what was never stored cannot go */
    p->entries[i] = p->entries[--p->n_entries];
}

#define EVENT_HASHES_MAX 1024
struct event {
    struct str type;
    struct block_hash hashes[EVENT_HASHES_MAX];
    uint32_t n_hashes;
    enum kv_medium medium;
    uint32_t group;
};

static void read_hashes(struct msgpack_reader *r, struct event *e) {
    struct msgpack_value v;

    assert_int_equal(msgpack_expect(r, MSGPACK_ARRAY, &v), ST_OK);
    assert_true(v.n <= EVENT_HASHES_MAX);
    e->n_hashes = v.n;
    memset(e->hashes, 0, v.n * sizeof(*e->hashes));
    for (uint32_t i = 0; i < e->n_hashes; i++) {
        assert_int_equal(msgpack_expect(r, MSGPACK_BIN, &v), ST_OK);
        assert_true(v.bytes.len <= BLOCK_HASH_BYTES);
        memcpy(e->hashes[i].bytes, v.bytes.ptr, v.bytes.len);
    }
}

/* By place, as the array form is read: BlockStored has its medium at 6 and its group at 9,
 * BlockRemoved at 2 and 3. */
static void read_event(struct msgpack_reader *r, struct event *e) {
    uint32_t n_fields, medium_at, group_at;
    struct msgpack_value v;

    assert_int_equal(msgpack_expect(r, MSGPACK_ARRAY, &v), ST_OK);
    n_fields = v.n;
    assert_int_equal(msgpack_expect(r, MSGPACK_STR, &v), ST_OK);
    e->type = v.bytes;
    e->n_hashes = e->group = 0;
    if (str_eq(e->type, STR("AllBlocksCleared"))) return;
    read_hashes(r, e);
    medium_at = str_eq(e->type, STR("BlockStored")) ? 6 : 2;
    group_at = medium_at == 6 ? 9 : 3;
    for (uint32_t i = 2; i < n_fields; i++) {
        if (i == medium_at) {
            assert_int_equal(msgpack_expect(r, MSGPACK_STR, &v), ST_OK);
            e->medium = str_eq(v.bytes, STR("CPU")) ? KV_MEDIUM_CPU : KV_MEDIUM_GPU;
        } else if (i == group_at) {
            assert_int_equal(msgpack_expect(r, MSGPACK_U64, &v), ST_OK);
            e->group = (uint32_t)v.u64;
        } else {
            assert_int_equal(msgpack_skip(r), ST_OK);
        }
    }
}

static void apply(struct kv_events_picture *p, const struct event *e) {
    if (str_eq(e->type, STR("AllBlocksCleared"))) kv_events_picture_clear(p);
    for (uint32_t i = 0; i < e->n_hashes; i++) {
        if (str_eq(e->type, STR("BlockStored"))) {
            kv_events_picture_add(p, e->medium, e->group, &e->hashes[i]);
        } else {
            picture_remove(p, e->medium, e->group, &e->hashes[i]);
        }
    }
}

bool kv_events_follow(struct kv_event_log *log, struct kv_events_picture *p) {
    static struct event e;
    struct buf out;
    enum status st;

    buf_init(&out, 0);
    while ((st = kv_event_log_read(log, p->next, 1 << 16, &out, &p->next)) == ST_OK) {
        struct str frames = buf_str(&out);

        while (frames.len > 0) {
            struct msgpack_reader r;
            uint64_t sequence;

            for (uint32_t n = open_frame(&frames, &sequence, &r); n > 0; n--) {
                read_event(&r, &e);
                apply(p, &e);
            }
            close_frame(&r);
        }
        buf_clear(&out);
    }
    buf_fini(&out);
    return st == ST_NOT_FOUND;
}

void kv_events_assert_digest(struct kv_event_log *log, const struct kv_events_picture *p) {
    struct kv_event_digest d;
    uint64_t n_counted = 0;

    kv_event_log_digest(log, &d);
    assert_int_equal(d.next, p->next);
    for (uint32_t s = 0; s < d.n_sets; s++) {
        struct block_hash xor_of = {0};
        uint64_t n = 0;

        for (uint32_t i = 0; i < p->n_entries; i++) {
            const struct kv_events_entry *e = &p->entries[i];

            if (e->medium != d.sets[s].medium || e->group != d.sets[s].group) continue;
            for (uint32_t k = 0; k < d.hash_bytes; k++)
                xor_of.bytes[k] ^= e->hash.bytes[k];
            n++;
        }
        assert_int_equal(d.sets[s].n_keys, n);
        assert_memory_equal(&d.sets[s].xor_of, &xor_of, sizeof(xor_of));
        n_counted += n;
    }
    assert_int_equal(n_counted, p->n_entries);
}
