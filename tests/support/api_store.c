/* tests/support/api_store.c - versions of objects, and the changes between them. */
#include "tests/support/api_store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/mem.h"

const struct api_resource api_resources[] = {
    {"", "v1", "pods", "Pod", "pod", "po"},
    {"", "v1", "services", "Service", "service", "svc"},
    {"discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", "endpointslice", ""},
    {"inference.networking.k8s.io", "v1", "inferencepools", "InferencePool", "inferencepool",
     "infpool"},
};
const uint32_t api_n_resources = ARRAY_LEN(api_resources);
const char *const api_change_names[] = {"ADDED", "MODIFIED", "DELETED"};

/* About what a real server remembers of who wrote which field of a pod: keys that are full of
 * quotes, and nothing that a watcher wants. */
static const char managed_fields[] =
    "[{\"manager\":\"kube-controller-manager\",\"operation\":\"Update\",\"apiVersion\":\"v1\","
    "\"time\":\"2026-01-01T00:00:00Z\",\"fieldsType\":\"FieldsV1\",\"fieldsV1\":{\"f:metadata\":{"
    "\"f:labels\":{\".\":{},\"f:app\":{}},\"f:ownerReferences\":{\".\":{},"
    "\"k:{\\\"uid\\\":\\\"00000000-0000-0000-0000-000000000000\\\"}\":{}}},\"f:spec\":{"
    "\"f:containers\":{\"k:{\\\"name\\\":\\\"worker\\\"}\":{\".\":{},\"f:image\":{},"
    "\"f:imagePullPolicy\":{},\"f:name\":{},\"f:ports\":{\".\":{},\"k:{\\\"containerPort\\\":8000,"
    "\\\"protocol\\\":\\\"TCP\\\"}\":{\".\":{},\"f:containerPort\":{},\"f:protocol\":{}}},"
    "\"f:resources\":{}}},\"f:dnsPolicy\":{},\"f:restartPolicy\":{},\"f:schedulerName\":{}}}},"
    "{\"manager\":\"kubelet\",\"operation\":\"Update\",\"apiVersion\":\"v1\","
    "\"time\":\"2026-01-01T00:00:01Z\",\"fieldsType\":\"FieldsV1\",\"fieldsV1\":{\"f:status\":{"
    "\"f:conditions\":{\"k:{\\\"type\\\":\\\"ContainersReady\\\"}\":{\".\":{},"
    "\"f:lastProbeTime\":{},\"f:lastTransitionTime\":{},\"f:status\":{},\"f:type\":{}},"
    "\"k:{\\\"type\\\":\\\"Ready\\\"}\":{\".\":{},\"f:lastProbeTime\":{},"
    "\"f:lastTransitionTime\":{},\"f:status\":{},\"f:type\":{}}},\"f:containerStatuses\":{},"
    "\"f:phase\":{},\"f:podIP\":{},\"f:podIPs\":{\".\":{},"
    "\"k:{\\\"ip\\\":\\\"10.0.0.1\\\"}\":{\".\":{},\"f:ip\":{}}},\"f:startTime\":{}}},"
    "\"subresource\":\"status\"}]";

const struct api_resource *api_resource_of_kind(const char *kind) {
    for (uint32_t i = 0; i < api_n_resources; i++) {
        if (kind && strcmp(api_resources[i].kind, kind) == 0) return &api_resources[i];
    }
    return NULL;
}

const struct api_resource *api_resource_named(const char *name) {
    for (uint32_t i = 0; i < api_n_resources; i++) {
        if (name && strcmp(api_resources[i].name, name) == 0) return &api_resources[i];
    }
    return NULL;
}

/* --- versions --------------------------------------------------------------------------------- */

struct api_object *api_object_hold(struct api_object *o) {
    o->refs++;
    return o;
}

void api_object_drop(struct api_object *o) {
    if (!o || --o->refs) return;
    cJSON_Delete(o->tree);
    cJSON_free(o->json);
    mem_free(o);
}

static const char *meta_text(const cJSON *tree, const char *name) {
    const cJSON *meta = cJSON_GetObjectItemCaseSensitive(tree, "metadata");
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(meta, name));

    return text ? text : "";
}

static void put_text(cJSON *object, const char *name, const char *value) {
    cJSON_DeleteItemFromObjectCaseSensitive(object, name);
    cJSON_AddStringToObject(object, name, value);
}

static void now_text(char out[32]) {
    time_t now = time(NULL);
    struct tm tm;

    gmtime_r(&now, &tm);
    strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", &tm);
}

/* A version that holds the tree, not yet in the store. */
static struct api_object *new_version(const struct api_resource *resource, cJSON *tree,
                                      uint64_t rv) {
    struct api_object *o = mem_zalloc(sizeof(*o));
    char text[STR_U64_MAX + 1];

    snprintf(text, sizeof(text), "%llu", (unsigned long long)rv);
    put_text(cJSON_GetObjectItemCaseSensitive(tree, "metadata"), "resourceVersion", text);
    o->refs = 1;
    o->rv = rv;
    o->resource = resource;
    o->tree = tree;
    o->namespace = meta_text(tree, "namespace");
    o->name = meta_text(tree, "name");
    o->json = cJSON_PrintUnformatted(tree);
    return o;
}

/* --- the ordered array ------------------------------------------------------------------------ */

static int order(const struct api_resource *resource, const char *namespace, const char *name,
                 const struct api_object *o) {
    int by;

    if (resource != o->resource) return resource < o->resource ? -1 : 1;
    by = strcmp(namespace, o->namespace);
    return by ? by : strcmp(name, o->name);
}

/* Where it is, or would be. */
static uint32_t place(const struct api_store *s, const struct api_resource *resource,
                      const char *namespace, const char *name, bool *is_there) {
    uint32_t low = 0, high = s->n_objects;

    *is_there = false;
    while (low < high) {
        uint32_t mid = (low + high) / 2;
        int by = order(resource, namespace, name, s->objects[mid]);

        if (by == 0) {
            *is_there = true;
            return mid;
        }
        if (by < 0) {
            high = mid;
        } else {
            low = mid + 1;
        }
    }
    return low;
}

struct api_object *api_store_find(const struct api_store *s, const struct api_resource *resource,
                                  const char *namespace, const char *name) {
    bool is_there;
    uint32_t at = place(s, resource, namespace, name, &is_there);

    return is_there ? s->objects[at] : NULL;
}

static void remember(struct api_store *s, enum api_change_kind kind, struct api_object *before,
                     struct api_object *after) {
    if (s->n_changes == s->cap_changes) {
        s->cap_changes = s->cap_changes ? 2 * s->cap_changes : 1024;
        s->changes = mem_realloc(s->changes, s->cap_changes * sizeof(*s->changes));
    }
    s->changes[s->n_changes++] =
        (struct api_change){.rv = after->rv,
                            .kind = kind,
                            .before = before ? api_object_hold(before) : NULL,
                            .after = api_object_hold(after)};
}

/* Stores the version and notifies watches. */
static void enter(struct api_store *s, struct api_object *o) {
    bool is_there;
    uint32_t at = place(s, o->resource, o->namespace, o->name, &is_there);

    if (is_there) {
        remember(s, API_MODIFIED, s->objects[at], o);
        api_object_drop(s->objects[at]);
    } else {
        if (s->n_objects == s->cap_objects) {
            s->cap_objects = s->cap_objects ? 2 * s->cap_objects : 256;
            s->objects = mem_realloc(s->objects, s->cap_objects * sizeof(struct api_object *));
        }
        memmove(s->objects + at + 1, s->objects + at,
                (s->n_objects - at) * sizeof(struct api_object *));
        s->n_objects++;
        remember(s, API_ADDED, NULL, o);
    }
    s->objects[at] = o;
}

void api_store_init(struct api_store *s) {
    *s = (struct api_store){.rv = 1000, .compacted_rv = 1000};
}

void api_store_fini(struct api_store *s) {
    for (uint32_t i = 0; i < s->n_objects; i++)
        api_object_drop(s->objects[i]);
    api_store_compact(s);
    mem_free(s->objects);
    mem_free(s->changes);
}

/* --- changes ---------------------------------------------------------------------------------- */

static void fill_in(struct api_store *s, cJSON *meta, const struct api_object *old) {
    char text[64];

    if (!cJSON_HasObjectItem(meta, "uid")) {
        snprintf(text, sizeof(text), "00000000-0000-4000-8000-%012llu",
                 (unsigned long long)(old ? 0 : ++s->n_uids));
        put_text(meta, "uid", old ? meta_text(old->tree, "uid") : text);
    }
    if (!cJSON_HasObjectItem(meta, "creationTimestamp")) {
        now_text(text);
        put_text(meta, "creationTimestamp", text);
    }
    if (!cJSON_HasObjectItem(meta, "managedFields")) {
        cJSON_AddItemToObject(meta, "managedFields", cJSON_Parse(managed_fields));
    }
}

bool api_store_put(struct api_store *s, cJSON *tree, struct error *err) {
    const char *kind = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(tree, "kind"));
    const struct api_resource *resource = api_resource_of_kind(kind);
    cJSON *meta = cJSON_GetObjectItemCaseSensitive(tree, "metadata");
    char version[64];

    if (!resource || !meta_text(tree, "name")[0]) {
        (void)error_set(err, ST_INVALID, "an object of kind %s without a known kind or a name",
                        kind ? kind : "(none)");
        cJSON_Delete(tree);
        return false;
    }
    snprintf(version, sizeof(version), "%s%s%s", resource->group, resource->group[0] ? "/" : "",
             resource->version);
    put_text(tree, "apiVersion", version);
    if (!cJSON_HasObjectItem(meta, "namespace")) put_text(meta, "namespace", "default");
    fill_in(s, meta,
            api_store_find(s, resource, meta_text(tree, "namespace"), meta_text(tree, "name")));
    enter(s, new_version(resource, tree, ++s->rv));
    return true;
}

static void merge(cJSON *target, const cJSON *patch) {
    const cJSON *item;

    cJSON_ArrayForEach(item, patch) {
        cJSON *old = cJSON_GetObjectItemCaseSensitive(target, item->string);

        if (cJSON_IsObject(item)) {
            if (!cJSON_IsObject(old)) {
                cJSON_DeleteItemFromObjectCaseSensitive(target, item->string);
                old = cJSON_AddObjectToObject(target, item->string);
            }
            merge(old, item);
            continue;
        }
        cJSON_DeleteItemFromObjectCaseSensitive(target, item->string);
        if (!cJSON_IsNull(item)) {
            cJSON_AddItemToObject(target, item->string, cJSON_Duplicate(item, true));
        }
    }
}

struct api_object *api_store_patch(struct api_store *s, const struct api_object *old,
                                   const cJSON *patch) {
    struct api_object *o;
    cJSON *tree = cJSON_Duplicate(old->tree, true);

    merge(tree, patch);
    o = new_version(old->resource, tree, ++s->rv);
    enter(s, o);
    return o;
}

void api_store_delete(struct api_store *s, struct api_object *o, uint32_t grace_s) {
    cJSON *tree = cJSON_Duplicate(o->tree, true);
    cJSON *meta = cJSON_GetObjectItemCaseSensitive(tree, "metadata");
    char text[32];

    now_text(text);
    put_text(meta, "deletionTimestamp", text);
    cJSON_DeleteItemFromObjectCaseSensitive(meta, "deletionGracePeriodSeconds");
    cJSON_AddNumberToObject(meta, "deletionGracePeriodSeconds", grace_s);
    enter(s, new_version(o->resource, tree, ++s->rv));
}

void api_store_forget(struct api_store *s, struct api_object *o) {
    bool is_there;
    uint32_t at = place(s, o->resource, o->namespace, o->name, &is_there);
    struct api_object *last = new_version(o->resource, cJSON_Duplicate(o->tree, true), ++s->rv);

    remember(s, API_DELETED, o, last);
    s->n_objects--;
    memmove(s->objects + at, s->objects + at + 1,
            (s->n_objects - at) * sizeof(struct api_object *));
    api_object_drop(last);
    api_object_drop(o);
}

void api_store_force(struct api_store *s, struct api_object *o) {
    const struct api_resource *resource = o->resource;
    char namespace[64], name[256];

    snprintf(namespace, sizeof(namespace), "%s", o->namespace);
    snprintf(name, sizeof(name), "%s", o->name);
    api_store_delete(s, o, 0);
    api_store_forget(s, api_store_find(s, resource, namespace, name));
}

void api_store_compact(struct api_store *s) {
    for (uint32_t i = 0; i < s->n_changes; i++) {
        api_object_drop(s->changes[i].before);
        api_object_drop(s->changes[i].after);
    }
    s->n_changes = 0;
    s->compacted_rv = s->rv;
}

void api_store_rewind(struct api_store *s, uint64_t rv) {
    api_store_compact(s);
    s->rv = s->compacted_rv = rv;
}

/* --- selections ------------------------------------------------------------------------------- */

static const char *label_of(const struct api_object *o, struct str key) {
    const cJSON *meta = cJSON_GetObjectItemCaseSensitive(o->tree, "metadata");
    const cJSON *item;

    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(meta, "labels")) {
        if (str_eq(str_of(item->string), key)) return cJSON_GetStringValue(item);
    }
    return NULL;
}

/* The term that begins `s`, up to a comma outside of brackets. */
static struct str first_term(struct str *s) {
    size_t depth = 0, n = 0;
    struct str term;

    for (; n < s->len && (depth || s->ptr[n] != ','); n++)
        depth += (s->ptr[n] == '(') - (s->ptr[n] == ')');
    term = str_trim((struct str){s->ptr, n});
    n += n < s->len;
    *s = (struct str){s->ptr + n, s->len - n};
    return term;
}

static bool is_one_of(struct str list, struct str value) {
    while (list.len) {
        struct str item = first_term(&list);

        if (str_eq(item, value)) return true;
    }
    return false;
}

/* "key in (a,b)": -1 when the word is not there. */
static int in_list(const struct api_object *o, struct str term, struct str word) {
    ptrdiff_t at = str_find(term, word);
    struct str key, list;
    const char *value;

    if (at < 0 || term.ptr[term.len - 1] != ')') return -1;
    key = str_trim((struct str){term.ptr, (size_t)at});
    list = (struct str){term.ptr + at + word.len, term.len - (size_t)at - word.len - 1};
    value = label_of(o, key);
    return value && is_one_of(list, str_of(value));
}

static bool term_holds(const struct api_object *o, struct str term) {
    ptrdiff_t at;
    int is_in;
    const char *value;
    struct str key, wanted;
    bool is_not;

    if (term.len == 0) return true;
    if ((is_in = in_list(o, term, STR(" notin ("))) >= 0) return !is_in;
    if ((is_in = in_list(o, term, STR(" in ("))) >= 0) return is_in;
    if ((at = str_find(term, STR("="))) < 0) {
        if (term.ptr[0] == '!') return !label_of(o, (struct str){term.ptr + 1, term.len - 1});
        return label_of(o, term) != NULL;
    }
    is_not = at > 0 && term.ptr[at - 1] == '!';
    key = str_trim((struct str){term.ptr, (size_t)at - is_not});
    wanted = (struct str){term.ptr + at + 1, term.len - (size_t)at - 1};
    if (str_starts(wanted, STR("="))) wanted = (struct str){wanted.ptr + 1, wanted.len - 1};
    value = label_of(o, key);
    return (value && str_eq(str_of(value), str_trim(wanted))) != is_not;
}

static bool field_holds(const struct api_object *o, struct str term) {
    if (str_starts(term, STR("metadata.name="))) {
        return str_eq((struct str){term.ptr + 14, term.len - 14}, str_of(o->name));
    }
    if (str_starts(term, STR("metadata.namespace="))) {
        return str_eq((struct str){term.ptr + 19, term.len - 19}, str_of(o->namespace));
    }
    return true;
}

bool api_selection_is_valid(const struct api_selection *sel) {
    return !strpbrk(sel->labels, "\"'{}%&");
}

bool api_selection_has(const struct api_selection *sel, const struct api_object *o) {
    struct str labels = str_of(sel->labels), fields = str_of(sel->fields);

    if (o->resource != sel->resource) return false;
    if (sel->namespace[0] && strcmp(sel->namespace, o->namespace) != 0) return false;
    while (labels.len) {
        if (!term_holds(o, first_term(&labels))) return false;
    }
    while (fields.len) {
        if (!field_holds(o, first_term(&fields))) return false;
    }
    return true;
}

bool api_selection_sees(const struct api_selection *sel, const struct api_change *change,
                        enum api_change_kind *kind, struct api_object **object) {
    bool was = change->before && api_selection_has(sel, change->before);
    bool is = change->kind != API_DELETED && api_selection_has(sel, change->after);

    if (!was && !is) return false;
    *kind = was && is ? API_MODIFIED : is ? API_ADDED : API_DELETED;
    *object = change->after;
    return true;
}
