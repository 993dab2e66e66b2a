/* router/fleet/discovery.c - sets of workers, and code shared by all sources. */
#include "router/fleet/discovery.h"

#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"

void discovery_reload(struct discovery *d) {
    if (d && d->ops->reload) d->ops->reload(d);
}

void discovery_destroy(struct discovery *d) {
    if (d) d->ops->destroy(d);
}

void discovery_stats(struct discovery *d, struct discovery_stats *out) {
    *out = (struct discovery_stats){.is_synced = true};
    if (d->ops->stats) d->ops->stats(d, out);
}

void discovery_set_fini(struct discovery_set *set) {
    mem_free(set->workers);
    strmap_fini(&set->by_url);
    *set = (struct discovery_set){0};
}

const struct discovery_worker *discovery_set_find(const struct discovery_set *set,
                                                  const char *url) {
    uintptr_t place = (uintptr_t)strmap_find(&set->by_url, str_of(url));

    return place ? &set->workers[place - 1] : NULL;
}

enum status discovery_set_add(struct discovery_set *set, const struct discovery_worker *worker,
                              struct error *err) {
    if (discovery_set_find(set, worker->url.url))
        return error_set(err, ST_EXISTS, "worker %s is listed twice: remove one", worker->url.url);
    if (set->n == DISCOVERY_MAX_WORKERS) {
        return error_set(err, ST_TOO_LARGE, "more than %d workers: list fewer",
                         DISCOVERY_MAX_WORKERS);
    }
    if (set->n == set->cap) {
        set->cap = set->cap ? set->cap * 2 : 16;
        set->workers = mem_realloc(set->workers, set->cap * sizeof(*set->workers));
    }
    set->workers[set->n++] = *worker;
    strmap_insert(&set->by_url, str_of(worker->url.url), (void *)(uintptr_t)set->n);
    return ST_OK;
}

/* --- settings ----------------------------------------------------------------------------------*/

static bool is_label_byte(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           strchr("-_./:", c) != NULL;
}

static bool is_label_text(struct str s) {
    for (size_t i = 0; i < s.len; i++) {
        if (s.ptr[i] == '\0' || !is_label_byte(s.ptr[i])) return false;
    }
    return s.len > 0;
}

static enum status set_max_in_flight(struct discovery_worker *worker, struct str value,
                                     struct error *err) {
    uint64_t n;

    if (str_to_u64(value, &n) != ST_OK || n > 1000000) {
        return error_set_param(err, ST_INVALID, "max_in_flight",
                               "max_in_flight=%.*s: use a number from 0 (no limit) to 1000000",
                               (int)MIN(value.len, 40), value.ptr);
    }
    worker->max_in_flight = (uint32_t)n;
    return ST_OK;
}

/* Where the engine publishes its KV events (kv_endpoint.h): kept as labels, checked here. */
static enum status check_kv_setting(struct str key, struct str value, struct error *err) {
    bool is_ranks = str_eq(key, STR("kv_events_ranks"));
    uint64_t n, max = is_ranks ? 16 : 65519;

    if (!is_ranks && !str_eq(key, STR("kv_events")) && !str_eq(key, STR("kv_events_replay")))
        return ST_OK;
    if (str_to_u64(value, &n) == ST_OK && n >= 1 && n <= max) return ST_OK;
    return error_set_param(err, ST_INVALID, "labels", "%.*s=%.*s: use a %s from 1 to %u",
                           STR_ARG(key), (int)MIN(value.len, 40), value.ptr,
                           is_ranks ? "number of ranks" : "port at the worker's address",
                           (unsigned)max);
}

enum status discovery_worker_set(struct discovery_worker *worker, struct str setting,
                                 struct error *err) {
    const char *eq = setting.len ? memchr(setting.ptr, '=', setting.len) : NULL;
    struct str key = setting, value;
    size_t n = strlen(worker->labels);

    if (eq) key.len = (size_t)(eq - setting.ptr);
    value = eq ? (struct str){eq + 1, setting.len - key.len - 1} : STR("");
    if (!is_label_text(key) || !is_label_text(value)) {
        return error_set_param(err, ST_INVALID, "labels",
                               "\"%.*s\" is not key=value of letters, digits and - _ . / :",
                               (int)MIN(setting.len, 80), setting.len ? setting.ptr : "");
    }
    if (str_eq(key, STR("max_in_flight"))) return set_max_in_flight(worker, value, err);
    if (check_kv_setting(key, value, err) != ST_OK) return ST_INVALID;
    if (n + (n > 0) + setting.len >= sizeof(worker->labels)) {
        return error_set_param(err, ST_TOO_LARGE, "labels",
                               "the labels of a worker have room for %d bytes: \"%.*s\" has none",
                               DISCOVERY_LABELS_MAX, (int)MIN(setting.len, 80), setting.ptr);
    }
    snprintf(worker->labels + n, sizeof(worker->labels) - n, "%s%.*s", n ? " " : "",
             (int)setting.len, setting.ptr);
    return ST_OK;
}
