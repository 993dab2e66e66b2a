/* router/upgrade/snapshot.c - the format, written from the registry and read without trusting a
 * byte. */
#include "router/upgrade/snapshot.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/text/json.h"
#include "router/registry/registry_view.h"
#include "router/sharing/follow.h"

#define FORMAT_VERSION 1u
#define HEAD_BYTES     40u
#define SECTION_BYTES  24u
#define META_BYTES_MAX 8192u
#define SECTIONS_MAX   4096u

enum { SECTION_END = 0, SECTION_WORKER = 1 };

static const char magic[8] = "INCPSNAP";

static uint64_t little(uint64_t v) {
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    return __builtin_bswap64(v);
#else
    return v;
#endif
}

static void put_u64(struct buf *out, uint64_t v) {
    v = little(v);
    buf_append(out, &v, sizeof(v));
}

/* Two numbers of 32 bits, the first one lower. */
static void put_pair(struct buf *out, uint32_t a, uint32_t b) {
    put_u64(out, a | (uint64_t)b << 32);
}

static uint64_t get_u64(const char *from) {
    uint64_t v;

    memcpy(&v, from, sizeof(v));
    return little(v);
}

/* --- writing ---------------------------------------------------------------------------------- */

struct snapshot_writer {
    struct registry *registry;
    const struct follow *follow;
    int fd;
    bool is_amid; /* `of` and `walk` are of worker `id` */
    uint32_t id, n_sections;
    uint64_t n_items;
    struct registry_memory of;
    struct prefix_walk walk;
    struct buf out;   /* what goes to the file next */
    struct buf items; /* of the current worker */
};

struct snapshot_writer *snapshot_writer_create(const struct snapshot_source *source, int fd) {
    struct snapshot_writer *w = mem_zalloc(sizeof(*w));

    w->registry = source->registry;
    w->follow = source->follow;
    w->fd = fd;
    buf_init(&w->out, 0);
    buf_init(&w->items, SNAPSHOT_BYTES_MAX);
    buf_append(&w->out, magic, sizeof(magic));
    put_pair(&w->out, FORMAT_VERSION, 0);
    put_u64(&w->out, source->scheme);
    put_u64(&w->out, clock_wall_us() / 1000000);
    put_u64(&w->out, hash_64(buf_ptr(&w->out), buf_len(&w->out), 0));
    return w;
}

void snapshot_writer_destroy(struct snapshot_writer *w) {
    if (!w) return;
    buf_fini(&w->out);
    buf_fini(&w->items);
    mem_free(w);
}

uint64_t snapshot_writer_n_items(const struct snapshot_writer *w) {
    return w->n_items;
}

static enum status write_all(struct snapshot_writer *w, struct error *err) {
    struct str left = buf_str(&w->out);

    if (buf_status(&w->out) != ST_OK) return error_set(err, ST_NOMEM, "out of memory");
    while (left.len) {
        ssize_t n = write(w->fd, left.ptr, left.len);

        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return error_set(err, ST_IO, "cannot write it: %s", strerror(errno));
        left.ptr += n;
        left.len -= (size_t)n;
    }
    buf_clear(&w->out);
    return ST_OK;
}

static void put_meta(struct buf *out, const struct registry_memory *of) {
    struct json_writer json;

    json_writer_init(&json, out);
    json_begin_object(&json);
    json_field_z(&json, "url", of->url);
    json_field_z(&json, "model", of->model);
    json_field_z(&json, "generation", of->generation);
    json_field_f64(&json, "prompt_bytes", of->learned.prompt_bytes);
    json_field_f64(&json, "prompt_tokens", of->learned.prompt_tokens);
    json_field_f64(&json, "capacity_factor", of->learned.capacity_factor);
    json_field_f64(&json, "below_factor", of->learned.below_factor);
    json_field_f64(&json, "speed_work_s", of->learned.speed_work_s);
    json_field_f64(&json, "speed_busy_s", of->learned.speed_busy_s);
    if (of->events_next) json_field_u64(&json, "events_next", of->events_next);
    json_end_object(&json);
}

/* Writes the section of the completed worker. */
static void put_worker(struct snapshot_writer *w) {
    size_t at = buf_len(&w->out), meta_at = at + SECTION_BYTES, meta_bytes;
    uint64_t checksum;

    buf_reserve(&w->out, SECTION_BYTES);
    buf_commit(&w->out, SECTION_BYTES);
    put_meta(&w->out, &w->of);
    meta_bytes = buf_len(&w->out) - meta_at;
    buf_append_str(&w->out, buf_str(&w->items));
    if (buf_status(&w->out) != ST_OK) return;
    checksum = hash_64(buf_ptr(&w->out) + meta_at, buf_len(&w->out) - meta_at, SECTION_WORKER);
    for (uint32_t i = 0; i < 3; i++) {
        uint64_t v = little((const uint64_t[]){SECTION_WORKER | (uint64_t)meta_bytes << 32,
                                               buf_len(&w->items) / sizeof(uint64_t), checksum}[i]);

        memcpy(buf_ptr(&w->out) + at + i * sizeof(v), &v, sizeof(v));
    }
    w->n_sections++;
}

static enum status walk_worker(struct snapshot_writer *w, struct error *err) {
    uint64_t items[SNAPSHOT_PIECE];
    uint32_t n = registry_memory_walk(w->registry, w->id, &w->of, &w->walk, items, SNAPSHOT_PIECE);

    for (uint32_t i = 0; i < n; i++)
        put_u64(&w->items, items[i]);
    w->n_items += n;
    if (buf_status(&w->items) != ST_OK) return error_set(err, ST_NOMEM, "out of memory");
    if (n) return ST_AGAIN;
    put_worker(w);
    buf_clear(&w->items);
    w->is_amid = false;
    w->id++;
    return write_all(w, err);
}

enum status snapshot_writer_step(struct snapshot_writer *w, struct error *err) {
    enum status st;

    if (w->is_amid) {
        st = walk_worker(w, err);
        return st == ST_OK ? ST_AGAIN : st;
    }
    for (uint32_t n = registry_n_ids(w->registry); w->id < n; w->id++) {
        if (!registry_memory_get(w->registry, w->id, &w->of)) continue;
        w->of.events_next = follow_next(w->follow, w->id, w->of.generation);
        w->walk = (struct prefix_walk){0};
        w->is_amid = true;
        return ST_AGAIN;
    }
    put_pair(&w->out, SECTION_END, 0);
    put_u64(&w->out, w->n_sections);
    put_u64(&w->out, hash_64(NULL, 0, SECTION_END));
    return write_all(w, err);
}

/* --- reading ---------------------------------------------------------------------------------- */

struct part {
    struct registry_memory of;
    const char *items;
    uint64_t n_items;
};

struct snapshot {
    char *bytes;
    size_t n_bytes;
    uint64_t saved_wall_s;
    struct part *parts;
    uint32_t n_parts;
};

static enum status damaged(struct error *err, size_t at) {
    return error_set(err, ST_INVALID, "damaged or truncated at byte %zu", at);
}

static enum status get_name(const struct json *meta, const char *name, char *out, size_t max,
                            struct error *err) {
    struct str value = STR_NULL;
    enum status st = json_get_str(meta, name, max - 1, &value, NULL, err);

    if (st != ST_OK) return st;
    if (memchr(value.ptr ? value.ptr : "", '\0', value.len)) return ST_INVALID;
    if (value.len) memcpy(out, value.ptr, value.len);
    out[value.len] = '\0';
    return ST_OK;
}

static enum status read_meta(struct str text, struct registry_memory *of, struct error *err) {
    struct json *meta = NULL;
    enum status st = json_parse(&meta, text, NULL, err);

    *of = (struct registry_memory){.learned.capacity_factor = 1};
    if (st == ST_OK) st = get_name(meta, "url", of->url, sizeof(of->url), err);
    if (st == ST_OK) st = get_name(meta, "model", of->model, sizeof(of->model), err);
    if (st == ST_OK) st = get_name(meta, "generation", of->generation, sizeof(of->generation), err);
    if (st == ST_OK)
        st = json_get_f64(meta, "prompt_bytes", 0, 1e12, &of->learned.prompt_bytes, NULL, err);
    if (st == ST_OK)
        st = json_get_f64(meta, "prompt_tokens", 0, 1e12, &of->learned.prompt_tokens, NULL, err);
    if (st == ST_OK)
        st = json_get_f64(meta, "capacity_factor", 0, 1e6, &of->learned.capacity_factor, NULL, err);
    if (st == ST_OK)
        st = json_get_f64(meta, "below_factor", 0, 1e6, &of->learned.below_factor, NULL, err);
    if (st == ST_OK)
        st = json_get_f64(meta, "speed_work_s", 0, 1e12, &of->learned.speed_work_s, NULL, err);
    if (st == ST_OK)
        st = json_get_f64(meta, "speed_busy_s", 0, 1e12, &of->learned.speed_busy_s, NULL, err);
    if (st == ST_OK)
        st = json_get_u64(meta, "events_next", 0, UINT64_MAX - 1, &of->events_next, NULL, err);
    json_destroy(meta);
    return st;
}

/* One section, at *at. ST_AGAIN: there are more. */
static enum status read_section(struct snapshot *s, size_t *at, uint32_t n_before,
                                struct error *err) {
    const char *head = s->bytes + *at;
    size_t left = s->n_bytes - *at, payload;
    uint64_t kind, meta_bytes, n_items;

    if (left < SECTION_BYTES || n_before > SECTIONS_MAX) return damaged(err, *at);
    kind = get_u64(head) & UINT32_MAX;
    meta_bytes = get_u64(head) >> 32;
    n_items = get_u64(head + 8);
    left -= SECTION_BYTES;
    if (kind == SECTION_END) {
        bool is_end = meta_bytes == 0 && n_items == n_before && left == 0 &&
                      get_u64(head + 16) == hash_64(NULL, 0, SECTION_END);

        return is_end ? ST_OK : damaged(err, *at);
    }
    if (meta_bytes > META_BYTES_MAX || meta_bytes > left ||
        n_items > (left - meta_bytes) / sizeof(uint64_t))
        return damaged(err, *at);
    payload = (size_t)(meta_bytes + n_items * sizeof(uint64_t));
    if (hash_64(head + SECTION_BYTES, payload, kind) != get_u64(head + 16))
        return damaged(err, *at);
    if (kind == SECTION_WORKER && s->n_parts < REGISTRY_MAX_WORKERS) {
        struct part *part = &s->parts[s->n_parts];

        if (read_meta((struct str){head + SECTION_BYTES, (size_t)meta_bytes}, &part->of, NULL) !=
            ST_OK)
            return damaged(err, *at);
        part->items = head + SECTION_BYTES + meta_bytes;
        part->n_items = n_items;
        s->n_parts++;
    }
    *at += SECTION_BYTES + payload;
    return ST_AGAIN;
}

static enum status read_head(struct snapshot *s, uint64_t scheme, struct error *err) {
    const char *head = s->bytes;

    if (s->n_bytes < HEAD_BYTES || memcmp(head, magic, sizeof(magic)) != 0)
        return error_set(err, ST_INVALID, "not a snapshot");
    if (hash_64(head, HEAD_BYTES - 8, 0) != get_u64(head + 32)) return damaged(err, 0);
    if ((get_u64(head + 8) & UINT32_MAX) != FORMAT_VERSION) {
        return error_set(err, ST_INVALID, "format %llu is unknown: this router reads format %u",
                         (unsigned long long)(get_u64(head + 8) & UINT32_MAX), FORMAT_VERSION);
    }
    if (get_u64(head + 16) != scheme) {
        return error_set(err, ST_INVALID,
                         "made with another --prefix-hash-seed or --prefix-block-bytes");
    }
    s->saved_wall_s = get_u64(head + 24);
    return ST_OK;
}

enum status snapshot_read(struct snapshot **out, char *bytes, size_t n, uint64_t scheme,
                          struct error *err) {
    struct snapshot *s = mem_zalloc(sizeof(*s));
    size_t at = HEAD_BYTES;
    enum status st;

    s->bytes = bytes;
    s->n_bytes = n;
    s->parts = mem_calloc(REGISTRY_MAX_WORKERS, sizeof(*s->parts));
    st = read_head(s, scheme, err);
    if (st == ST_OK) {
        for (uint32_t i = 0; (st = read_section(s, &at, i, err)) == ST_AGAIN; i++) {
        }
    }
    if (st == ST_OK) {
        *out = s;
        return ST_OK;
    }
    s->bytes = NULL; /* still owned by the caller */
    snapshot_destroy(s);
    return st;
}

enum status snapshot_read_fd(struct snapshot **out, int fd, uint64_t scheme, struct error *err) {
    struct stat sb;
    size_t done = 0;
    enum status st;
    char *bytes;

    if (fstat(fd, &sb) != 0 || !S_ISREG(sb.st_mode))
        return error_set(err, ST_INVALID, "not a regular file");
    if ((uint64_t)sb.st_size > SNAPSHOT_BYTES_MAX)
        return error_set(err, ST_TOO_LARGE, "%lld bytes exceed the largest snapshot",
                         (long long)sb.st_size);
    bytes = mem_try((size_t)sb.st_size + 1);
    if (!bytes) return error_set(err, ST_NOMEM, "out of memory");
    while (done < (size_t)sb.st_size) {
        ssize_t n = pread(fd, bytes + done, (size_t)sb.st_size - done, (off_t)done);

        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        done += (size_t)n;
    }
    st = snapshot_read(out, bytes, done, scheme, err);
    if (st != ST_OK) mem_free(bytes);
    return st;
}

void snapshot_destroy(struct snapshot *s) {
    if (!s) return;
    mem_free(s->bytes);
    mem_free(s->parts);
    mem_free(s);
}

uint32_t snapshot_n_workers(const struct snapshot *s) {
    return s->n_parts;
}

uint64_t snapshot_saved_wall_s(const struct snapshot *s) {
    return s->saved_wall_s;
}

const struct registry_memory *snapshot_worker(const struct snapshot *s, uint32_t i) {
    return &s->parts[i].of;
}

uint64_t snapshot_n_items(const struct snapshot *s, uint32_t i) {
    return s->parts[i].n_items;
}

uint32_t snapshot_items(const struct snapshot *s, uint32_t i, uint64_t from, uint64_t *items,
                        uint32_t max) {
    const struct part *p = &s->parts[i];
    uint32_t n = (uint32_t)MIN(p->n_items - MIN(from, p->n_items), (uint64_t)max);

    for (uint32_t k = 0; k < n; k++)
        items[k] = get_u64(p->items + (from + k) * sizeof(uint64_t));
    return n;
}
