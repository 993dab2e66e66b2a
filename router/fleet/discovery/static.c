/* router/fleet/discovery/static.c - the workers of the command line: reported once, changed by a
 * restart. */
#include <stdio.h>
#include <string.h>

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

static bool is_port(const char *word) {
    return strcmp(word, "none") == 0 || strspn(word, "0123456789") == strlen(word);
}

/* The words that follow a URL. */
static enum status add_port(struct discovery_worker *worker, const char *word, struct error *err) {
    char setting[32];
    uint64_t port;

    if (strcmp(word, "none") == 0) return ST_OK;
    if (str_to_u64(str_of(word), &port) != ST_OK || port < 1 || port > UINT16_MAX)
        return error_set(err, ST_INVALID, "bootstrap port %.20s: use a port from 1 to 65535", word);
    snprintf(setting, sizeof(setting), "bootstrap_port=%u", (unsigned)port);
    return discovery_worker_set(worker, str_of(setting), err);
}

/* `role`: a label of each, or NULL. */
static enum status add_list(struct discovery_set *set, const struct option_list *list,
                            const char *role, struct error *err) {
    enum status st = ST_OK;

    for (uint32_t i = 0; i < list->n && st == ST_OK; i++) {
        struct discovery_worker worker = {0};

        st = address_split(str_of(list->items[i]), &worker.url, err);
        if (st == ST_OK && role) st = discovery_worker_set(&worker, str_of(role), err);
        if (st == ST_OK && role && i + 1 < list->n && is_port(list->items[i + 1]))
            st = add_port(&worker, list->items[++i], err);
        if (st == ST_OK) st = discovery_set_add(set, &worker, err);
    }
    return st;
}

enum status discovery_static_create(struct discovery **out,
                                    const struct discovery_static_lists *lists, discovery_fn *fn,
                                    void *arg, struct error *err) {
    const struct {
        const char *flag, *role;
        const struct option_list *list;
    } all[] = {{"--worker-urls", NULL, lists->urls},
               {"--prefill", "role=prefill", lists->prefill},
               {"--decode", "role=decode", lists->decode}};
    struct discovery_set set = {0};
    struct static_source *s;
    enum status st = ST_OK;

    for (size_t i = 0; i < ARRAY_LEN(all) && st == ST_OK; i++) {
        st = add_list(&set, all[i].list, all[i].role, err);
        if (st == ST_OK) continue;
        (void)error_prefix(err, "%s", all[i].flag);
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
