/* tests/fuzz/fuzz_kube_watch.c - a watch and a page of a list, whole and in pieces: one result. The
 * first byte sets the length of the pieces. */
#include <stdlib.h>

#include "common/base/mem.h"
#include "router/fleet/discovery/kube_stream.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What a reader makes of it, in words. Each piece is a copy of its own, so that the sanitizer sees
 * its ends. */
typedef void read_fn(struct str piece, void *reader, struct buf *out);

static void feed(struct str all, size_t piece, read_fn *fn, void *reader, struct buf *out) {
    for (size_t at = 0; at < all.len; at += piece) {
        size_t n = MIN(piece, all.len - at);
        char *copy = mem_alloc(n);

        memcpy(copy, all.ptr + at, n);
        fn((struct str){copy, n}, reader, out);
        mem_free(copy);
    }
}

static void is_inside(struct str part, struct str whole) {
    if (part.len && (part.ptr < whole.ptr || part.ptr + part.len > whole.ptr + whole.len)) abort();
}

static void note_event(struct str line, struct buf *out) {
    struct error err = {0};
    struct kube_event e;

    if (line.len == 0) abort();
    if (kube_event_read(&e, line, &err) != ST_OK) {
        if (!err.message[0]) abort();
        buf_appendf(out, "bad %zu;", line.len);
        return;
    }
    is_inside(e.object, line);
    is_inside(e.version, line);
    buf_appendf(out, "%d ", (int)e.type);
    buf_append_str(out, e.version);
    if (e.type == KUBE_ERROR) {
        struct kube_status s;

        kube_status_read(&s, e.object);
        buf_appendf(out, "%d %s %d", s.code, s.reason, kube_status_is_expired(&s));
    }
}

static void read_lines(struct str piece, void *reader, struct buf *out) {
    struct str line;

    while (kube_lines_next(reader, &piece, &line) == ST_OK)
        note_event(line, out);
    if (piece.len) abort(); /* nothing here is too large */
}

struct page {
    struct kube_list list;
    enum status st;
};

static void note_item(struct str item, void *arg) {
    if (item.len == 0) abort();
    buf_append_str(arg, item);
    buf_append_char(arg, '|');
}

static void read_page(struct str piece, void *reader, struct buf *out) {
    struct page *page = reader;

    (void)out;
    if (page->st == ST_OK) page->st = kube_list_feed(&page->list, piece, NULL);
}

static void whole_and_cut(struct str all, size_t piece, struct buf *out) {
    struct kube_lines lines;
    struct page page = {.st = ST_OK};

    kube_lines_init(&lines);
    feed(all, piece, read_lines, &lines, out);
    kube_lines_fini(&lines);
    kube_list_init(&page.list, note_item, out);
    feed(all, piece, read_page, &page, out);
    if (page.st == ST_OK) page.st = kube_list_end(&page.list, NULL);
    buf_appendf(out, " %d", (int)page.st);
    if (page.st == ST_OK) buf_appendf(out, "%s %s", page.list.version, page.list.next);
    kube_list_fini(&page.list);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct buf whole, pieces;
    struct str all;

    if (size < 2) return 0;
    all = (struct str){(const char *)data + 1, size - 1};
    buf_init(&whole, 0);
    buf_init(&pieces, 0);
    whole_and_cut(all, all.len, &whole);
    whole_and_cut(all, 1 + data[0] % 50, &pieces);
    if (!str_eq(buf_str(&whole), buf_str(&pieces))) abort();
    buf_fini(&whole);
    buf_fini(&pieces);
    return 0;
}
