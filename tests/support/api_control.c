/* tests/support/api_control.c - the test's commands to the scripted API server. */
#include <stdio.h>
#include <string.h>

#include "tests/support/api_server_internal.h"

static const char *text_of(const cJSON *command, const char *name, const char *fallback) {
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(command, name));

    return text ? text : fallback;
}

static uint64_t number_of(const cJSON *command, const char *name, uint64_t fallback) {
    const cJSON *n = cJSON_GetObjectItemCaseSensitive(command, name);

    return cJSON_IsNumber(n) ? (uint64_t)n->valuedouble : fallback;
}

static bool flag_of(const cJSON *command, const char *name, bool fallback) {
    const cJSON *flag = cJSON_GetObjectItemCaseSensitive(command, name);

    return cJSON_IsBool(flag) ? cJSON_IsTrue(flag) : fallback;
}

/* --- what it holds ---------------------------------------------------------------------------- */

static bool do_put(struct api_server *a, const cJSON *command, struct error *err) {
    const cJSON *one = cJSON_GetObjectItemCaseSensitive(command, "object"), *each;

    if (one) return api_store_put(&a->store, cJSON_Duplicate(one, true), err);
    cJSON_ArrayForEach(each, cJSON_GetObjectItemCaseSensitive(command, "objects")) {
        if (!api_store_put(&a->store, cJSON_Duplicate(each, true), err)) return false;
    }
    return true;
}

static bool do_to_object(struct api_server *a, const char *verb, const cJSON *command,
                         struct error *err) {
    const struct api_resource *r = api_resource_named(text_of(command, "resource", "pods"));
    const char *name = text_of(command, "name", "");
    struct api_object *o =
        r ? api_store_find(&a->store, r, text_of(command, "namespace", "default"), name) : NULL;

    if (!o) {
        (void)error_set(err, ST_NOT_FOUND, "there is no object %s", name);
        return false;
    }
    if (strcmp(verb, "patch") == 0) {
        (void)api_store_patch(&a->store, o, cJSON_GetObjectItemCaseSensitive(command, "patch"));
    } else if (strcmp(verb, "delete") == 0) {
        api_store_delete(&a->store, o, (uint32_t)number_of(command, "grace", 30));
    } else if (strcmp(verb, "forget") == 0) {
        api_store_forget(&a->store, o);
    } else {
        api_store_force(&a->store, o);
    }
    return true;
}

static bool do_show(struct api_server *a, const cJSON *command, cJSON *answer, struct error *err) {
    struct api_selection sel = {.resource = api_resource_named(text_of(command, "resource", ""))};
    cJSON *names;

    if (!sel.resource) {
        (void)error_set(err, ST_NOT_FOUND, "there is no resource %s",
                        text_of(command, "resource", ""));
        return false;
    }
    snprintf(sel.labels, sizeof(sel.labels), "%s", text_of(command, "labels", ""));
    snprintf(sel.namespace, sizeof(sel.namespace), "%s", text_of(command, "namespace", ""));
    names = cJSON_AddArrayToObject(answer, "names");
    for (uint32_t i = 0; i < a->store.n_objects; i++) {
        if (!api_selection_has(&sel, a->store.objects[i])) continue;
        cJSON_AddItemToArray(names, cJSON_CreateString(a->store.objects[i]->name));
    }
    return true;
}

/* --- how it is on the wire -------------------------------------------------------------------- */

static void do_set(struct api_server *a, const cJSON *command) {
    struct api_knobs *k = &a->knobs;

    k->chunk_bytes = (uint32_t)number_of(command, "chunk_bytes", k->chunk_bytes);
    k->record_bytes = (uint32_t)number_of(command, "record_bytes", k->record_bytes);
    k->is_ragged = flag_of(command, "is_ragged", k->is_ragged);
    k->drip_us = (uint32_t)number_of(command, "drip_us", k->drip_us);
    k->bookmark_ms = (uint32_t)number_of(command, "bookmark_ms", k->bookmark_ms);
    k->bookmark_before_end_ms =
        (uint32_t)number_of(command, "bookmark_before_end_ms", k->bookmark_before_end_ms);
    k->max_watch_ms = (uint32_t)number_of(command, "max_watch_ms", k->max_watch_ms);
    k->limits_cached_lists = flag_of(command, "limits_cached_lists", k->limits_cached_lists);
    k->serves_deletes_at_once =
        flag_of(command, "serves_deletes_at_once", k->serves_deletes_at_once);
    k->serves_old_pools_only = flag_of(command, "serves_old_pools_only", k->serves_old_pools_only);
}

static bool do_accept(struct api_server *a, const cJSON *command, struct error *err) {
    static const char *const names[] = {"serve", "reset", "stall", "close"};
    const char *how = text_of(command, "how", "");

    for (uint32_t i = 0; i < ARRAY_LEN(names); i++) {
        if (strcmp(how, names[i]) != 0) continue;
        a->accept = (enum api_accept)i;
        return true;
    }
    (void)error_set(err, ST_INVALID, "accept how: '%s'?", how);
    return false;
}

static bool do_listen(struct api_server *a, bool on, struct error *err) {
    if (api_server_listen(a, on)) return true;
    (void)error_set(err, ST_IO, "port %u is taken", a->port);
    return false;
}

static void do_authority(struct api_server *a, cJSON *answer) {
    if (a->has_next_certs) certs_fini(&a->next_certs);
    certs_init(&a->next_certs);
    a->has_next_certs = true;
    certs_make(&a->next_certs, &(struct certs_spec){.name = "server",
                                                    .host = "kubernetes.default.svc",
                                                    .address = "127.0.0.1"});
    cJSON_AddStringToObject(answer, "ca", certs_path(&a->next_certs, "ca.pem"));
}

static bool do_certificate(struct api_server *a, struct error *err) {
    if (!a->has_next_certs) {
        (void)error_set(err, ST_INVALID, "first an authority");
        return false;
    }
    api_server_load_certificate(a, &a->next_certs);
    return true;
}

/* --- the next calls --------------------------------------------------------------------------- */

static void do_forbid(struct api_server *a, const cJSON *command) {
    char text[96];

    snprintf(text, sizeof(text), "%s %s", text_of(command, "verb", "list"),
             text_of(command, "resource", "pods"));
    for (int i = cJSON_GetArraySize(a->forbidden) - 1; i >= 0; i--) {
        if (strcmp(cJSON_GetStringValue(cJSON_GetArrayItem(a->forbidden, i)), text) != 0) continue;
        cJSON_DeleteItemFromArray(a->forbidden, i);
    }
    if (flag_of(command, "on", true)) {
        cJSON_AddItemToArray(a->forbidden, cJSON_CreateString(text));
    }
}

/* --- the watches that are open ---------------------------------------------------------------- */

static void send_events(struct api_conn *c, const cJSON *events) {
    const cJSON *event;

    cJSON_ArrayForEach(event, events) {
        char *object = cJSON_PrintUnformatted(cJSON_GetObjectItemCaseSensitive(event, "object"));

        api_event(c, text_of(event, "type", ""), str_of(object));
        cJSON_free(object);
    }
}

static void repeat(struct api_conn *c, uint32_t n, bool is_reversed) {
    const struct api_store *s = &c->server->store;
    uint32_t first;

    n = MIN(n, s->n_changes);
    first = s->n_changes - n;
    for (uint32_t i = 0; i < n; i++) {
        const struct api_change *change = &s->changes[first + (is_reversed ? n - 1 - i : i)];
        enum api_change_kind kind;
        struct api_object *o;

        if (!api_selection_sees(&c->selection, change, &kind, &o)) continue;
        api_event(c, api_change_names[kind], str_of(o->json));
    }
}

/* Half an event and no more, whatever the peer then makes of it. */
static void break_off(struct api_conn *c) {
    buf_append_str(&c->out,
                   STR("800\r\n{\"type\":\"MODIFIED\",\"object\":{\"kind\":\"Pod\",\"meta"));
    c->then = API_THEN_CLOSE;
}

static bool act(struct api_conn *c, const char *what, const cJSON *command) {
    if (strcmp(what, "end") == 0) {
        api_watch_end(c);
    } else if (strcmp(what, "cut") == 0) {
        break_off(c);
    } else if (strcmp(what, "reset") == 0) {
        api_conn_end(c, true);
    } else if (strcmp(what, "hold") == 0 || strcmp(what, "release") == 0) {
        c->is_held = what[0] == 'h';
    } else if (strcmp(what, "bookmark") == 0) {
        api_watch_bookmark(c);
    } else if (strcmp(what, "gone") == 0) {
        api_watch_gone(c);
    } else if (strcmp(what, "raw") == 0) {
        api_chunk(c, str_of(text_of(command, "bytes", "")));
    } else if (strcmp(what, "send") == 0) {
        send_events(c, cJSON_GetObjectItemCaseSensitive(command, "events"));
    } else if (strcmp(what, "repeat") == 0) {
        repeat(c, (uint32_t)number_of(command, "n", 1), flag_of(command, "is_reversed", false));
    } else {
        return false;
    }
    api_conn_send(c);
    return true;
}

/* Of the resource named, or of all; returns how many there were. */
static bool do_watches(struct api_server *a, const cJSON *command, cJSON *answer,
                       struct error *err) {
    const char *what = text_of(command, "act", ""), *resource = text_of(command, "resource", NULL);
    uint32_t n = 0;

    LIST_FOR_EACH(link, &a->conns) {
        struct api_conn *c = LIST_ENTRY(link, struct api_conn, link);

        if (!c->is_watching) continue;
        if (resource && strcmp(resource, c->selection.resource->name) != 0) continue;
        if (!act(c, what, command)) {
            (void)error_set(err, ST_INVALID, "watches act: '%s'?", what);
            return false;
        }
        n++;
    }
    cJSON_AddNumberToObject(answer, "n", n);
    return true;
}

static void do_die(struct api_server *a) {
    (void)api_server_listen(a, false);
    LIST_FOR_EACH(link, &a->conns) {
        struct api_conn *c = LIST_ENTRY(link, struct api_conn, link);

        c->is_held = false;
        if (c->is_watching && c->is_shaken) {
            break_off(c);
            api_conn_send(c);
        } else {
            api_conn_end(c, false);
        }
    }
}

/* --- what has happened ------------------------------------------------------------------------ */

static void do_stats(const struct api_server *a, cJSON *answer) {
    cJSON_AddNumberToObject(answer, "connections", (double)a->stats.connections);
    cJSON_AddNumberToObject(answer, "handshakes", (double)a->stats.handshakes);
    cJSON_AddNumberToObject(answer, "requests", (double)a->stats.requests);
    cJSON_AddNumberToObject(answer, "lists", (double)a->stats.lists);
    cJSON_AddNumberToObject(answer, "watches", (double)a->stats.watches);
    cJSON_AddNumberToObject(answer, "events", (double)a->stats.events);
    cJSON_AddNumberToObject(answer, "bookmarks", (double)a->stats.bookmarks);
    cJSON_AddNumberToObject(answer, "unauthorized", (double)a->stats.unauthorized);
    cJSON_AddNumberToObject(answer, "open_connections", a->stats.open_connections);
    cJSON_AddNumberToObject(answer, "open_watches", a->stats.open_watches);
}

static void do_calls(struct api_server *a, cJSON *answer) {
    cJSON_AddItemToObject(answer, "calls", a->calls);
    a->calls = cJSON_CreateArray();
}

/* --- commands --------------------------------------------------------------------------------- */

static bool is_to_object(const char *verb) {
    return strcmp(verb, "patch") == 0 || strcmp(verb, "delete") == 0 ||
           strcmp(verb, "forget") == 0 || strcmp(verb, "force") == 0;
}

static bool dispatch(struct api_server *a, const cJSON *command, cJSON *answer, struct error *err) {
    const char *verb = text_of(command, "do", "");

    if (strcmp(verb, "put") == 0) return do_put(a, command, err);
    if (is_to_object(verb)) return do_to_object(a, verb, command, err);
    if (strcmp(verb, "show") == 0) return do_show(a, command, answer, err);
    if (strcmp(verb, "accept") == 0) return do_accept(a, command, err);
    if (strcmp(verb, "listen") == 0) return do_listen(a, flag_of(command, "on", true), err);
    if (strcmp(verb, "certificate") == 0) return do_certificate(a, err);
    if (strcmp(verb, "watches") == 0) return do_watches(a, command, answer, err);
    if (strcmp(verb, "compact") == 0) {
        api_store_compact(&a->store);
        api_snapshots_forget(a);
    } else if (strcmp(verb, "rewind") == 0) {
        api_store_rewind(&a->store, number_of(command, "rv", 1));
        api_snapshots_forget(a);
    } else if (strcmp(verb, "set") == 0) {
        do_set(a, command);
    } else if (strcmp(verb, "tokens") == 0) {
        cJSON_Delete(a->tokens);
        a->tokens = cJSON_Duplicate(cJSON_GetObjectItemCaseSensitive(command, "tokens"), true);
    } else if (strcmp(verb, "authority") == 0) {
        do_authority(a, answer);
    } else if (strcmp(verb, "answer") == 0) {
        cJSON_AddItemToArray(a->rules, cJSON_Duplicate(command, true));
    } else if (strcmp(verb, "forbid") == 0) {
        do_forbid(a, command);
    } else if (strcmp(verb, "die") == 0) {
        do_die(a);
    } else if (strcmp(verb, "stats") == 0) {
        do_stats(a, answer);
    } else if (strcmp(verb, "calls") == 0) {
        do_calls(a, answer);
    } else {
        (void)error_set(err, ST_INVALID, "do what: '%s'?", verb);
        return false;
    }
    return true;
}

void api_server_do(struct api_server *a, struct str command, struct buf *out) {
    struct error err = {.message = ""};
    cJSON *tree = cJSON_ParseWithLength(command.ptr, command.len), *answer = cJSON_CreateObject();
    char *text;

    if (!tree) {
        cJSON_AddStringToObject(answer, "error", "not JSON");
    } else if (!dispatch(a, tree, answer, &err)) {
        cJSON_AddStringToObject(answer, "error", err.message);
    } else {
        cJSON_AddBoolToObject(answer, "ok", true);
        cJSON_AddNumberToObject(answer, "rv", (double)a->store.rv);
        api_notify_all(a);
    }
    text = cJSON_PrintUnformatted(answer);
    buf_append_str(out, str_of(text));
    cJSON_free(text);
    cJSON_Delete(answer);
    cJSON_Delete(tree);
}
