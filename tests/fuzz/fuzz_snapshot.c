/* tests/fuzz/fuzz_snapshot.c - snapshots of an index: whatever comes is refused or can be entered.
 *
 * Checksums would keep every change out; so the input is the sections' contents, which are framed
 * here. */
#include <stdlib.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "router/registry/registry.h"
#include "router/upgrade/snapshot.h"
#include "tests/support/routing_defaults.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void append_u64(struct buf *out, uint64_t v) {
    buf_append(out, &v, sizeof(v));
}

/* [kind, bytes of meta, items] and then those, again and again. */
static void frame(struct buf *out, const uint8_t *data, size_t size) {
    uint32_t n_sections = 0;

    buf_append(out, "INCPSNAP", 8);
    append_u64(out, 1);
    append_u64(out, 7);
    append_u64(out, 0);
    append_u64(out, hash_64(buf_ptr(out), buf_len(out), 0));
    while (size >= 3) {
        uint64_t kind = data[0] % 3, n_meta = data[1], n_items = data[2] % 16;
        size_t payload = (size_t)(n_meta + n_items * 8);

        data += 3;
        size -= 3;
        if (payload > size) break;
        append_u64(out, kind | n_meta << 32);
        append_u64(out, n_items);
        append_u64(out, hash_64(data, payload, kind));
        buf_append(out, data, payload);
        data += payload;
        size -= payload;
        n_sections++;
    }
    append_u64(out, 0);
    append_u64(out, n_sections);
    append_u64(out, hash_64(NULL, 0, 0));
    buf_append(out, data, size);
}

static void use(const struct snapshot *s) {
    static struct routing *r;
    uint64_t items[16];

    if (!r) {
        struct routing_options o;

        routing_options_default(&o);
        o.max_workers = 2;
        o.max_index_bytes = 1 << 20;
        if (routing_create(&r, &o, NULL) != ST_OK) abort();
    }
    routing_worker_up(r, 0, &(struct worker_spec){.block_size = 16, .n_blocks = 500});
    for (uint32_t i = 0; i < snapshot_n_workers(s); i++) {
        uint32_t n = snapshot_items(s, i, 0, items, 16);

        if (n > snapshot_n_items(s, i)) abort();
        routing_set_learned(r, 0, &snapshot_worker(s, i)->learned);
        if (routing_restore(r, 0, items, n) > n) abort();
        routing_check(r);
    }
    routing_worker_down(r, 0);
}

static void try_to_read(char *bytes, size_t n) {
    struct error err = {0};
    struct snapshot *s = NULL;

    if (snapshot_read(&s, bytes, n, 7, &err) == ST_OK) {
        use(s);
        snapshot_destroy(s);
    } else {
        if (!err.message[0]) abort();
        mem_free(bytes);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct buf framed;
    char *raw = mem_alloc(size + 1);

    memcpy(raw, data, size);
    try_to_read(raw, size);
    buf_init(&framed, 0);
    frame(&framed, data, size);
    try_to_read(buf_strdup(&framed), buf_len(&framed));
    buf_fini(&framed);
    return 0;
}
