/* tests/fuzz/fuzz_kube_objects.c - whatever an API server calls a pod, a slice or a pool.
 *
 * Each line is delivered to a store of pods and to one of slices: "b" and "e" begin and end a list,
 * "-" before an object marks it as deleted. After the last the stores hold together, and each
 * worker is an address that reads back as what it is. */
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "router/fleet/discovery/kube_store.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void deliver(struct kube_store *s, struct str line) {
    struct error err = {0};
    enum status st = ST_OK;

    if (str_eq(line, STR("b"))) {
        kube_store_begin(s);
    } else if (str_eq(line, STR("e"))) {
        kube_store_end(s);
    } else if (line.len && line.ptr[0] == '-') {
        st = kube_store_gone(s, (struct str){line.ptr + 1, line.len - 1}, &err);
    } else {
        st = kube_store_object(s, line, &err);
    }
    if (st != ST_OK && !err.message[0]) abort();
}

static void look(struct kube_store *s) {
    struct discovery_set set = {0};
    struct kube_store_stats stats;

    kube_store_check(s);
    kube_store_workers(s, 64, &set, &stats);
    if (set.n != stats.n_used + stats.n_draining || set.n > 64) abort();
    for (uint32_t i = 0; i < set.n; i++) {
        const struct discovery_worker *w = &set.workers[i];
        struct address_url again;
        struct address address;

        if (address_split(str_of(w->url.url), &again, NULL) != ST_OK) abort();
        if (strcmp(again.url, w->url.url) != 0 || w->url.is_https) abort();
        if (address_resolve_number(&again, NULL, &address, NULL) != ST_OK) abort();
        if (strpbrk(w->labels, "\r\n\"\\")) abort();
    }
    discovery_set_fini(&set);
}

static void read_pool(struct str text) {
    struct kube_pool pool;

    if (kube_pool_read(&pool, text, NULL) != ST_OK) return;
    if (!pool.selector[0] || pool.n_ports > KUBE_TARGETS_MAX) abort();
    if (strpbrk(pool.selector, "&?#% \r\n()!")) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct kube_store *pods = kube_store_create(KUBE_PODS, "incipit.dev/role");
    struct kube_store *slices = kube_store_create(KUBE_ENDPOINTSLICES, "incipit.dev/role");
    char *copy = mem_alloc(size + 1);
    struct str rest = {copy, size};

    memcpy(copy, data, size);
    while (rest.len) {
        const char *end = memchr(rest.ptr, '\n', rest.len);
        struct str line = {rest.ptr, end ? (size_t)(end - rest.ptr) : rest.len};

        deliver(pods, line);
        deliver(slices, line);
        read_pool(line);
        rest.ptr += line.len + (end != NULL);
        rest.len -= line.len + (end != NULL);
    }
    look(pods);
    look(slices);
    kube_store_destroy(pods);
    kube_store_destroy(slices);
    mem_free(copy);
    return 0;
}
