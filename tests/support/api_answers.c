/* tests/support/api_answers.c - reading a request, and finding who answers it.
 *
 * First what the test wants instead (rules), then who may (tokens, certificates, forbidden verbs),
 * then the answer. Single objects are here, the rest in api_lists.c and api_discovery.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/api_server_internal.h"

/* --- single objects --------------------------------------------------------------------------- */

static void answer_not_found(struct api_conn *c, const struct api_request *r) {
    char message[400];

    snprintf(message, sizeof(message), "%s \"%s\" not found",
             r->selection.resource ? r->selection.resource->name : "the requested resource",
             r->name);
    api_answer_status(c, 404, "NotFound", message, NULL, 0);
}

static void answer_object(struct api_conn *c, const struct api_request *r) {
    struct api_store *s = &c->server->store;
    const struct api_selection *sel = &r->selection;
    struct api_object *o = api_store_find(s, sel->resource, sel->namespace, r->name);
    cJSON *patch;

    if (!o) {
        answer_not_found(c, r);
        return;
    }
    if (strcmp(r->verb, "patch") == 0) {
        patch = cJSON_ParseWithLength(r->body.ptr, r->body.len);
        if (!patch) {
            api_answer_status(c, 400, "BadRequest", "the patch is not JSON", NULL, 0);
            return;
        }
        o = api_store_patch(s, o, patch);
        cJSON_Delete(patch);
    }
    api_object_hold(o);
    api_body(c, 200, "", str_of(o->json));
    if (strcmp(r->verb, "delete") == 0) {
        if (c->server->knobs.serves_deletes_at_once || o->resource != &api_resources[0]) {
            api_store_forget(s, o);
        } else {
            api_store_delete(s, o, 30);
        }
    }
    api_object_drop(o);
    api_notify_all(c->server);
}

static void answer_create(struct api_conn *c, const struct api_request *r) {
    struct error err = {.message = ""};
    cJSON *tree = cJSON_ParseWithLength(r->body.ptr, r->body.len);
    char *text = tree ? cJSON_PrintUnformatted(tree) : NULL;

    if (!tree || !api_store_put(&c->server->store, tree, &err)) {
        api_answer_status(c, 400, "BadRequest", tree ? err.message : "not JSON", NULL, 0);
    } else {
        api_body(c, 201, "", str_of(text));
        api_notify_all(c->server);
    }
    cJSON_free(text);
}

/* --- reading a request ------------------------------------------------------------------------ */

static struct str next_part(struct str *path) {
    struct str rest = {path->ptr + 1, path->len ? path->len - 1 : 0}, part;
    const char *slash;

    if (path->len == 0) return STR_NULL;
    slash = memchr(rest.ptr, '/', rest.len);
    part = (struct str){rest.ptr, slash ? (size_t)(slash - rest.ptr) : rest.len};
    *path = (struct str){rest.ptr + part.len, rest.len - part.len};
    return part;
}

/* A cluster of before v1 of the InferencePool has it in another group, and that alone. */
static bool is_at(const struct api_server *a, const struct api_resource *r, struct str group,
                  struct str version) {
    if (a->knobs.serves_old_pools_only && strcmp(r->name, "inferencepools") == 0) {
        return str_eq(group, STR("inference.networking.x-k8s.io")) &&
               str_eq(version, STR("v1alpha2"));
    }
    return str_eq(group, str_of(r->group)) && str_eq(version, str_of(r->version));
}

static const struct api_resource *resource_at(const struct api_server *a, struct str group,
                                              struct str version, struct str name) {
    for (uint32_t i = 0; i < api_n_resources; i++) {
        const struct api_resource *r = &api_resources[i];

        if (is_at(a, r, group, version) && str_eq(name, str_of(r->name))) return r;
    }
    return NULL;
}

/* "/api/v1/namespaces/N/pods/X", "/apis/G/V/pods": the selection's resource stays NULL for
 * others. */
static void read_path(const struct api_server *a, struct api_request *r) {
    struct str path = r->path, first = next_part(&path);
    struct str group = str_eq(first, STR("apis")) ? next_part(&path) : STR("");
    struct str version = next_part(&path), part = next_part(&path);

    if (str_eq(part, STR("namespaces"))) {
        part = next_part(&path);
        snprintf(r->selection.namespace, sizeof(r->selection.namespace), STR_FMT, STR_ARG(part));
        part = next_part(&path);
    }
    r->selection.resource = resource_at(a, group, version, part);
    part = next_part(&path);
    snprintf(r->name, sizeof(r->name), STR_FMT, STR_ARG(part));
    part = next_part(&path);
    snprintf(r->sub, sizeof(r->sub), STR_FMT, STR_ARG(part));
}

static bool is_true(const char *value) {
    return strcmp(value, "true") == 0 || strcmp(value, "True") == 0 || strcmp(value, "1") == 0;
}

static void read_parameter(struct api_request *r, const char *name, const char *value) {
    if (strcmp(name, "watch") == 0) r->is_watch = is_true(value);
    if (strcmp(name, "allowWatchBookmarks") == 0) r->wants_bookmarks = is_true(value);
    if (strcmp(name, "sendInitialEvents") == 0) r->wants_initial_events = is_true(value);
    if (strcmp(name, "limit") == 0) r->limit = (uint32_t)strtoul(value, NULL, 10);
    if (strcmp(name, "timeoutSeconds") == 0) r->timeout_s = (uint32_t)strtoul(value, NULL, 10);
    if (strcmp(name, "resourceVersion") == 0) snprintf(r->rv, sizeof(r->rv), "%.31s", value);
    if (strcmp(name, "continue") == 0) {
        snprintf(r->continues, sizeof(r->continues), "%.63s", value);
    }
    if (strcmp(name, "labelSelector") == 0) {
        snprintf(r->selection.labels, sizeof(r->selection.labels), "%.1023s", value);
    }
    if (strcmp(name, "fieldSelector") == 0) {
        snprintf(r->selection.fields, sizeof(r->selection.fields), "%.255s", value);
    }
}

static bool read_query(struct api_request *r) {
    struct str query = r->query;
    char text[API_SELECTOR_MAX], *value;

    while (query.len) {
        const char *end = memchr(query.ptr, '&', query.len);
        size_t n = end ? (size_t)(end - query.ptr) : query.len;

        if (str_percent_decode((struct str){query.ptr, n}, text, sizeof(text)) != ST_OK) {
            return false;
        }
        value = strchr(text, '=');
        if (value) *value++ = '\0';
        for (char *p = value; p && *p; p++)
            if (*p == '+') *p = ' ';
        read_parameter(r, text, value ? value : "");
        n += end != NULL;
        query = (struct str){query.ptr + n, query.len - n};
    }
    return api_selection_is_valid(&r->selection);
}

static const char *verb_of(const struct api_request *r) {
    if (str_eq(r->method, STR("PATCH"))) return "patch";
    if (str_eq(r->method, STR("DELETE"))) return "delete";
    if (str_eq(r->method, STR("POST"))) return "create";
    if (r->name[0]) return "get";
    return r->is_watch ? "watch" : "list";
}

/* --- who may, and what the test wants instead ------------------------------------------------- */

static bool is_known(const struct api_conn *c, struct str token) {
    const cJSON *one;

    if (cJSON_GetArraySize(c->server->tokens) == 0) return true;
    if (c->ssl && SSL_get0_peer_certificate(c->ssl)) return true; /* it was verified */
    cJSON_ArrayForEach(one, c->server->tokens) {
        if (str_eq(token, str_of(cJSON_GetStringValue(one)))) return true;
    }
    return false;
}

static bool is_forbidden(const struct api_conn *c, const struct api_request *r) {
    const cJSON *one;
    char text[96];

    snprintf(text, sizeof(text), "%s %s", r->verb, r->selection.resource->name);
    cJSON_ArrayForEach(one, c->server->forbidden) {
        if (strcmp(cJSON_GetStringValue(one), text) == 0) return true;
    }
    return false;
}

static void answer_forbidden(struct api_conn *c, const struct api_request *r) {
    char message[512];

    snprintf(message, sizeof(message),
             "%s is forbidden: User \"system:serviceaccount:default:incipit-router\" cannot %s "
             "resource \"%s\" in API group \"%s\" in the namespace \"%s\"",
             r->selection.resource->name, r->verb, r->selection.resource->name,
             r->selection.resource->group, r->selection.namespace);
    api_answer_status(c, 403, "Forbidden", message, NULL, 0);
}

static const char *rule_text(const cJSON *rule, const char *name, const char *fallback) {
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(rule, name));

    return text ? text : fallback;
}

static int rule_number(const cJSON *rule, const char *name) {
    const cJSON *n = cJSON_GetObjectItemCaseSensitive(rule, name);

    return cJSON_IsNumber(n) ? n->valueint : 0;
}

/* The rule for this call, with one use spent; to be freed. */
static cJSON *take_rule(struct api_server *a, const struct api_request *r) {
    cJSON *rule;

    cJSON_ArrayForEach(rule, a->rules) {
        const char *on = rule_text(rule, "on", "any"), *res = rule_text(rule, "resource", NULL);
        int times = rule_number(rule, "times"), skip = rule_number(rule, "skip");

        if (strcmp(on, "any") != 0 && strcmp(on, r->verb) != 0) continue;
        if (res && (!r->selection.resource || strcmp(res, r->selection.resource->name) != 0)) {
            continue;
        }
        if (skip) {
            cJSON_SetNumberValue(cJSON_GetObjectItemCaseSensitive(rule, "skip"), skip - 1);
            continue;
        }
        if (times <= 1) return cJSON_DetachItemViaPointer(a->rules, rule);
        cJSON_SetNumberValue(cJSON_GetObjectItemCaseSensitive(rule, "times"), times - 1);
        return cJSON_Duplicate(rule, true);
    }
    return NULL;
}

static void answer_rule(struct api_conn *c, const cJSON *rule) {
    const char *raw = rule_text(rule, "raw", NULL), *then = rule_text(rule, "then", "keep");
    int after_ms = rule_number(rule, "after_ms");

    if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(rule, "stall"))) {
        c->is_stalled = true;
        return;
    }
    if (after_ms) {
        c->is_answering = c->is_held = true;
        loop_timer_start(&c->late, (uint64_t)after_ms * 1000);
    }
    if (raw) {
        buf_append_str(&c->out, str_of(raw));
    } else if (rule_number(rule, "status")) {
        api_answer_status(c, rule_number(rule, "status"), rule_text(rule, "reason", ""),
                          rule_text(rule, "message", ""), rule_text(rule, "cause", NULL),
                          rule_number(rule, "retry_after"));
    }
    if (strcmp(then, "close") == 0) c->then = API_THEN_CLOSE;
    if (strcmp(then, "reset") == 0) c->then = API_THEN_RESET;
}

static void record(struct api_server *a, const struct api_request *r) {
    cJSON *call = cJSON_CreateObject();
    char text[2048];

    snprintf(text, sizeof(text), STR_FMT "%s" STR_FMT, STR_ARG(r->path), r->query.len ? "?" : "",
             STR_ARG(r->query));
    cJSON_AddStringToObject(call, "verb", r->verb);
    cJSON_AddStringToObject(call, "target", text);
    snprintf(text, sizeof(text), STR_FMT, STR_ARG(r->token));
    cJSON_AddStringToObject(call, "token", text);
    cJSON_AddItemToArray(a->calls, call);
    if (cJSON_GetArraySize(a->calls) > API_MAX_CALLS) cJSON_DeleteItemFromArray(a->calls, 0);
}

/* A call of a resource that we have, by an authorized client. */
static void answer_verb(struct api_conn *c, const struct api_request *r) {
    if (strcmp(r->verb, "watch") == 0) {
        api_answer_watch(c, r);
    } else if (strcmp(r->verb, "list") == 0) {
        api_answer_list(c, r);
    } else if (strcmp(r->verb, "create") == 0) {
        answer_create(c, r);
    } else {
        answer_object(c, r);
    }
}

void api_answer(struct api_conn *c, struct api_request *r) {
    cJSON *rule;
    bool is_read;

    read_path(c->server, r);
    is_read = read_query(r);
    r->verb = verb_of(r);
    record(c->server, r);
    rule = take_rule(c->server, r);
    if (rule) {
        answer_rule(c, rule);
        cJSON_Delete(rule);
    } else if (!is_known(c, r->token)) {
        c->server->stats.unauthorized++;
        api_answer_status(c, 401, "Unauthorized", "Unauthorized", NULL, 0);
    } else if (!is_read) {
        api_answer_status(c, 400, "BadRequest", "unable to parse the query", NULL, 0);
    } else if (!r->selection.resource) {
        api_answer_other(c, r);
    } else if (is_forbidden(c, r)) {
        answer_forbidden(c, r);
    } else {
        answer_verb(c, r);
    }
}
