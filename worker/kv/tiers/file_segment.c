/* worker/kv/tiers/file_segment.c - names, summaries, and the walk without one. */
#include "worker/kv/tiers/file_segment.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/mem.h"

#define VERSION 1

struct trailer {
    char magic[8];
    uint32_t version, n_rows;
    uint64_t at; /* of the summary */
    uint64_t zeros[3];
    struct hash128 sum; /* of the rows; its seed is the hash of what is before */
};
_Static_assert(sizeof(struct trailer) == SEGMENT_TRAILER_BYTES, "the drawing in the header");
_Static_assert(sizeof(struct segment_row) == 24, "rows are stored as they are");

static const char magic[8] = "ICPTSEG";

void segment_name(struct segment_id id, char out[SEGMENT_NAME_MAX]) {
    snprintf(out, SEGMENT_NAME_MAX, "seg-%016" PRIx64 "-%08" PRIx32 ".kv", id.owner, id.n);
}

bool segment_name_parse(const char *name, struct segment_id *out) {
    char again[SEGMENT_NAME_MAX];
    struct segment_id id;

    if (sscanf(name, "seg-%16" SCNx64 "-%8" SCNx32 ".kv", &id.owner, &id.n) != 2) return false;
    segment_name(id, again);
    if (strcmp(name, again) != 0) return false;
    *out = id;
    return true;
}

size_t segment_summary_bytes(uint32_t n) {
    return ALIGN_UP(n * sizeof(struct segment_row) + SEGMENT_TRAILER_BYTES, FILE_PAGE);
}

static struct hash128 sum_of(const struct trailer *t, const struct segment_row *rows) {
    return hash_128_seeded(rows, t->n_rows * sizeof(*rows),
                           hash_64(t, offsetof(struct trailer, sum), 0));
}

void segment_finish(void *summary, uint32_t n, uint64_t at) {
    struct trailer t = {.version = VERSION, .n_rows = n, .at = at};
    size_t used = n * sizeof(struct segment_row), all = segment_summary_bytes(n);

    memcpy(t.magic, magic, sizeof(magic));
    t.sum = sum_of(&t, summary);
    memset((char *)summary + used, 0, all - used);
    memcpy((char *)summary + all - sizeof(t), &t, sizeof(t));
}

/* The file is as long as its trailer has it: rows never take more memory than it has bytes. */
static bool fits(const struct trailer *t, uint64_t bytes) {
    return memcmp(t->magic, magic, sizeof(magic)) == 0 && t->version == VERSION && t->at < bytes &&
           t->n_rows <= bytes / sizeof(struct segment_row) &&
           t->at + segment_summary_bytes(t->n_rows) == bytes;
}

enum status segment_read(const struct file_hook *hook, int fd, uint64_t bytes,
                         struct segment_row **rows, uint32_t *n) {
    struct segment_row *read;
    struct trailer t;
    struct hash128 sum;
    size_t got, wanted;

    if (bytes < FILE_PAGE) return ST_NOT_FOUND;
    if (file_io_read(hook, fd, &t, sizeof(t), bytes - sizeof(t), &got) != 0) return ST_IO;
    if (got < sizeof(t) || !fits(&t, bytes)) return ST_NOT_FOUND;

    wanted = t.n_rows * sizeof(*read);
    read = mem_try(wanted + 1);
    if (!read) return ST_NOMEM;
    if (file_io_read(hook, fd, read, wanted, t.at, &got) != 0) {
        mem_free(read);
        return ST_IO;
    }
    sum = sum_of(&t, read);
    if (got < wanted || memcmp(&sum, &t.sum, sizeof(sum)) != 0) {
        mem_free(read);
        return ST_NOT_FOUND;
    }
    *rows = read;
    *n = t.n_rows;
    return ST_OK;
}

enum status segment_walk(const struct file_hook *hook, int fd, uint64_t bytes,
                         const struct unit_codec *codec, struct segment_row **rows, uint32_t *n) {
    size_t head_bytes = unit_payload_at(codec), step = ALIGN_UP(unit_bytes(codec), SEGMENT_STEP);
    struct segment_row *read = mem_try((bytes / step + 1) * sizeof(*read));
    void *head = mem_try(head_bytes);
    enum status st = read && head ? ST_OK : ST_NOMEM;
    struct unit_summary unit;
    uint32_t n_read = 0;
    uint64_t at = 0;
    size_t got;

    while (st == ST_OK && at + step <= bytes) {
        if (file_io_read(hook, fd, head, head_bytes, at, &got) != 0) {
            st = ST_IO;
        } else if (unit_peek(codec, head, got, &unit)) {
            read[n_read++] = (struct segment_row){unit.key, (uint32_t)(at / SEGMENT_STEP), 0};
            at += step;
        } else if (at % FILE_PAGE != 0) {
            at = ALIGN_UP(at, FILE_PAGE); /* the end of a write */
        } else {
            break;
        }
    }
    mem_free(head);
    if (st != ST_OK) {
        mem_free(read);
        return st;
    }
    *rows = read;
    *n = n_read;
    return ST_OK;
}
