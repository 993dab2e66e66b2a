/* router/fleet/discovery/static.c - the workers of the command line: reported once, changed by a
 * restart. */
#include "common/base/mem.h"
#include "common/options/options.h"
#include "router/fleet/discovery.h"

struct static_source {
    struct discovery discovery;
};

static void static_destroy(struct discovery *d) {
    mem_free(CONTAINER_OF(d, struct static_source, discovery));
}

static const struct discovery_ops static_ops = {.name = "static", .destroy = static_destroy};

enum status discovery_static_create(struct discovery **out, const struct option_list *urls,
                                    discovery_fn *fn, void *arg, struct error *err) {
    struct discovery_set set = {0};
    struct static_source *s;
    enum status st = ST_OK;

    for (uint32_t i = 0; i < urls->n && st == ST_OK; i++) {
        struct discovery_worker worker = {0};

        st = address_split(str_of(urls->items[i]), &worker.url, err);
        if (st == ST_OK) st = discovery_set_add(&set, &worker, err);
        if (st == ST_OK) continue;
        (void)error_prefix(err, "--worker-urls");
        st = ST_INVALID;
    }
    if (st == ST_OK) {
        s = mem_zalloc(sizeof(*s));
        s->discovery.ops = &static_ops;
        *out = &s->discovery;
        fn(&set, arg);
    }
    discovery_set_fini(&set);
    return st;
}
