/* tests/support/api_lists.c - bodies of the scripted API server: statuses, lists in pages, watches.
 *
 * Statuses and sentences are those of kube-apiserver; so are its habits: a list from the cache
 * (resourceVersion=0) knows no limit, a list of pages stays at the version of its first page, a
 * watch whose missed changes are compacted gets a 200 and an ERROR in it. */
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "tests/support/api_server_internal.h"

#define DEFAULT_TIMEOUT_S 1800

/* --- bodies ----------------------------------------------------------------------------------- */

void api_chunk(struct api_conn *c, struct str bytes) {
    while (bytes.len) {
        size_t n = MIN(bytes.len, (size_t)c->server->knobs.chunk_bytes);

        if (c->is_chunked) buf_appendf(&c->out, "%zx\r\n", n);
        buf_append(&c->out, bytes.ptr, n);
        if (c->is_chunked) buf_append_str(&c->out, STR("\r\n"));
        bytes = (struct str){bytes.ptr + n, bytes.len - n};
    }
}

static void head(struct api_conn *c, int code, const char *headers) {
    buf_appendf(&c->out,
                "HTTP/1.1 %d %s\r\nAudit-Id: 7d1f0a4e-0000-4000-8000-000000000000\r\n"
                "Cache-Control: no-cache, private\r\nContent-Type: application/json\r\n%s",
                code, code == 200 ? "OK" : "Status", headers);
    if (c->is_chunked) buf_append_str(&c->out, STR("Transfer-Encoding: chunked\r\n\r\n"));
}

/* As Go's server has it: short bodies have a length, long ones are chunks. */
void api_body(struct api_conn *c, int code, const char *headers, struct str body) {
    c->is_chunked = body.len > 2048;
    head(c, code, headers);
    if (!c->is_chunked) buf_appendf(&c->out, "Content-Length: %zu\r\n\r\n", body.len);
    api_chunk(c, body);
    if (c->is_chunked) buf_append_str(&c->out, STR("0\r\n\r\n"));
    c->is_chunked = false;
}

static cJSON *status_of(int code, const char *reason, const char *message, const char *cause,
                        int retry_after_s) {
    cJSON *s = cJSON_CreateObject(), *details;

    cJSON_AddStringToObject(s, "kind", "Status");
    cJSON_AddStringToObject(s, "apiVersion", "v1");
    cJSON_AddObjectToObject(s, "metadata");
    cJSON_AddStringToObject(s, "status", code < 400 ? "Success" : "Failure");
    cJSON_AddStringToObject(s, "message", message);
    cJSON_AddStringToObject(s, "reason", reason);
    if (cause || retry_after_s) details = cJSON_AddObjectToObject(s, "details");
    if (cause) {
        cJSON *causes = cJSON_AddArrayToObject(details, "causes"), *one = cJSON_CreateObject();

        cJSON_AddStringToObject(one, "reason", cause);
        cJSON_AddStringToObject(one, "message", message);
        cJSON_AddItemToArray(causes, one);
    }
    if (retry_after_s) cJSON_AddNumberToObject(details, "retryAfterSeconds", retry_after_s);
    cJSON_AddNumberToObject(s, "code", code);
    return s;
}

void api_answer_status(struct api_conn *c, int code, const char *reason, const char *message,
                       const char *cause, int retry_after_s) {
    cJSON *s = status_of(code, reason, message, cause, retry_after_s);
    char *text = cJSON_PrintUnformatted(s), headers[64] = "";

    if (retry_after_s) snprintf(headers, sizeof(headers), "Retry-After: %d\r\n", retry_after_s);
    api_body(c, code, headers, str_of(text));
    cJSON_free(text);
    cJSON_Delete(s);
}

/* --- watches ---------------------------------------------------------------------------------- */

void api_event(struct api_conn *c, const char *type, struct str object) {
    struct buf line;

    buf_init(&line, 0);
    buf_appendf(&line, "{\"type\":\"%s\",\"object\":" STR_FMT "}\n", type, STR_ARG(object));
    api_chunk(c, buf_str(&line));
    buf_fini(&line);
    c->server->stats.events++;
}

void api_watch_send(struct api_conn *c) {
    const struct api_store *s = &c->server->store;
    uint32_t low = 0, high = s->n_changes;

    while (low < high) {
        uint32_t mid = (low + high) / 2;

        if (s->changes[mid].rv <= c->rv) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    for (uint32_t i = low; i < s->n_changes; i++) {
        enum api_change_kind kind;
        struct api_object *o;

        if (api_selection_sees(&c->selection, &s->changes[i], &kind, &o)) {
            api_event(c, api_change_names[kind], str_of(o->json));
        }
        c->rv = s->changes[i].rv;
    }
}

void api_notify_all(struct api_server *a) {
    LIST_FOR_EACH(link, &a->conns) {
        struct api_conn *c = LIST_ENTRY(link, struct api_conn, link);

        if (!c->is_watching) continue;
        api_watch_send(c);
        api_conn_send(c);
    }
}

void api_watch_bookmark(struct api_conn *c) {
    const struct api_resource *r = c->selection.resource;
    char text[512];

    if (!c->wants_bookmarks || c->rv > c->server->store.rv) return; /* blind: from the future */
    snprintf(
        text, sizeof(text),
        "{\"kind\":\"%s\",\"apiVersion\":\"%s%s%s\",\"metadata\":{\"resourceVersion\":\"%llu\","
        "\"creationTimestamp\":null},\"spec\":{\"containers\":null},\"status\":{}}",
        r->kind, r->group, r->group[0] ? "/" : "", r->version,
        (unsigned long long)c->server->store.rv);
    api_event(c, "BOOKMARK", str_of(text));
    c->server->stats.bookmarks++;
}

void api_watch_end(struct api_conn *c) {
    buf_append_str(&c->out, STR("0\r\n\r\n"));
    c->is_watching = c->is_chunked = false;
    c->server->stats.open_watches--;
    loop_timer_stop(&c->end);
    loop_timer_stop(&c->bookmark);
}

void api_watch_gone(struct api_conn *c) {
    char message[96], *text;
    cJSON *s;

    snprintf(message, sizeof(message), "too old resource version: %llu (%llu)",
             (unsigned long long)c->rv, (unsigned long long)c->server->store.compacted_rv + 1);
    s = status_of(410, "Expired", message, NULL, 0);
    text = cJSON_PrintUnformatted(s);
    api_event(c, "ERROR", str_of(text));
    cJSON_free(text);
    cJSON_Delete(s);
    api_watch_end(c);
}

static void start_timers(struct api_conn *c, const struct api_request *r) {
    const struct api_knobs *k = &c->server->knobs;
    uint64_t length_ms = (r->timeout_s ? r->timeout_s : DEFAULT_TIMEOUT_S) * 1000ull;
    uint64_t first_ms;

    if (k->max_watch_ms) length_ms = MIN(length_ms, (uint64_t)k->max_watch_ms);
    first_ms = length_ms > k->bookmark_before_end_ms ? length_ms - k->bookmark_before_end_ms
                                                     : length_ms / 2;
    loop_timer_start(&c->end, length_ms * 1000);
    loop_timer_start(&c->bookmark, MIN(first_ms, (uint64_t)k->bookmark_ms) * 1000);
}

void api_answer_watch(struct api_conn *c, const struct api_request *r) {
    struct api_server *a = c->server;
    uint64_t rv = 0;

    if (r->wants_initial_events) {
        api_answer_status(c, 422, "Invalid",
                          "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch "
                          "unless the WatchList feature gate is enabled",
                          NULL, 0);
        return;
    }
    if (r->rv[0] && str_to_u64(str_of(r->rv), &rv) != ST_OK) {
        api_answer_status(c, 400, "BadRequest", "resourceVersion: Invalid value", NULL, 0);
        return;
    }
    a->stats.watches++;
    a->stats.open_watches++;
    c->is_watching = c->is_chunked = true;
    c->selection = r->selection;
    c->wants_bookmarks = r->wants_bookmarks;
    head(c, 200, "");
    if (rv == 0) { /* whatever there is, first */
        for (uint32_t i = 0; i < a->store.n_objects; i++) {
            if (!api_selection_has(&c->selection, a->store.objects[i])) continue;
            api_event(c, "ADDED", str_of(a->store.objects[i]->json));
        }
        rv = a->store.rv;
    }
    c->rv = rv;
    if (rv < a->store.compacted_rv) {
        api_watch_gone(c);
        return;
    }
    start_timers(c, r);
    api_watch_send(c);
}

/* --- lists ------------------------------------------------------------------------------------ */

static void snapshot_forget(struct api_snapshot *snap) {
    for (uint32_t i = 0; i < snap->n; i++)
        api_object_drop(snap->objects[i]);
    mem_free(snap->objects);
    *snap = (struct api_snapshot){0};
}

void api_snapshots_forget(struct api_server *a) {
    for (uint32_t i = 0; i < API_MAX_SNAPSHOTS; i++)
        snapshot_forget(&a->snapshots[i]);
}

/* Everything selected, at this version; the oldest unfinished list is given up. */
static struct api_snapshot *snapshot_take(struct api_server *a, const struct api_selection *sel) {
    struct api_snapshot *snap = &a->snapshots[a->n_snapshots++ % API_MAX_SNAPSHOTS];

    snapshot_forget(snap);
    snap->id = a->n_snapshots;
    snap->rv = a->store.rv;
    snap->objects = mem_calloc(a->store.n_objects + 1, sizeof(struct api_object *));
    for (uint32_t i = 0; i < a->store.n_objects; i++) {
        if (!api_selection_has(sel, a->store.objects[i])) continue;
        snap->objects[snap->n++] = api_object_hold(a->store.objects[i]);
    }
    return snap;
}

/* "c<id>.<at>", opaque to clients. */
static struct api_snapshot *snapshot_find(struct api_server *a, const char *token) {
    unsigned long long id = 0;
    unsigned at = 0;

    if (sscanf(token, "c%llu.%u", &id, &at) != 2 || id == 0) return NULL;
    for (uint32_t i = 0; i < API_MAX_SNAPSHOTS; i++) {
        if (a->snapshots[i].id != id || at > a->snapshots[i].n) continue;
        a->snapshots[i].at = at;
        return &a->snapshots[i];
    }
    return NULL;
}

static void write_page(struct api_conn *c, const struct api_resource *res,
                       struct api_snapshot *snap, uint32_t limit) {
    uint32_t to = limit ? MIN(snap->at + limit, snap->n) : snap->n;
    struct buf body;

    buf_init(&body, 0);
    buf_appendf(&body, "{\"kind\":\"%sList\",\"apiVersion\":\"%s%s%s\",\"metadata\":{", res->kind,
                res->group, res->group[0] ? "/" : "", res->version);
    buf_appendf(&body, "\"resourceVersion\":\"%llu\"", (unsigned long long)snap->rv);
    if (to < snap->n) {
        buf_appendf(&body, ",\"continue\":\"c%llu.%u\",\"remainingItemCount\":%u",
                    (unsigned long long)snap->id, to, snap->n - to);
    }
    buf_append_str(&body, STR("},\"items\":["));
    for (uint32_t i = snap->at; i < to; i++) {
        if (i > snap->at) buf_append_char(&body, ',');
        buf_append_str(&body, str_of(snap->objects[i]->json));
    }
    buf_append_str(&body, STR("]}\n"));
    api_body(c, 200, "", buf_str(&body));
    buf_fini(&body);
    if (to == snap->n) snapshot_forget(snap);
}

void api_answer_list(struct api_conn *c, const struct api_request *r) {
    struct api_server *a = c->server;
    bool is_cached = strcmp(r->rv, "0") == 0 && !a->knobs.limits_cached_lists;
    struct api_snapshot *snap;
    uint64_t rv = 0;

    a->stats.lists++;
    if (r->continues[0]) {
        snap = snapshot_find(a, r->continues);
        if (!snap) {
            api_answer_status(c, 410, "Expired",
                              "The provided continue parameter is too old to display a consistent "
                              "list result. You must start a new list without the continue "
                              "parameter.",
                              NULL, 0);
            return;
        }
    } else {
        if (str_to_u64(str_of(r->rv), &rv) == ST_OK && rv > a->store.rv) {
            char message[96];

            snprintf(message, sizeof(message), "Too large resource version: %llu, current: %llu",
                     (unsigned long long)rv, (unsigned long long)a->store.rv);
            c->is_answering = c->is_held = true;
            loop_timer_start(&c->late, 3000000);
            api_answer_status(c, 504, "Timeout", message, "ResourceVersionTooLarge", 1);
            return;
        }
        snap = snapshot_take(a, &r->selection);
    }
    write_page(c, r->selection.resource, snap, is_cached ? 0 : r->limit);
}
