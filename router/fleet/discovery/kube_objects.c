/* router/fleet/discovery/kube_objects.c - see kube_objects.h. */
#include "router/fleet/discovery/kube_objects.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/text/json.h"
#include "router/fleet/discovery/kube_json.h"
#include "router/fleet/discovery/kube_stream.h"

static const struct json_limits limits = {.max_bytes = KUBE_OBJECT_MAX_BYTES, .max_values = 200000};

/* Roles of pods that compute images for others. */
static const char *const left_out[] = {"encode", "encoder", "encode-prefill"};

/* Words of llm-d for a worker that does all. */
static const char *const does_both[] = {"prefill-decode", "encode-prefill-decode"};

/* STR_NULL when it is absent or no text. */
static struct str text_at(const struct json *object, const char *name) {
    struct str s;

    return json_to_str(json_get(object, name), &s) == ST_OK ? s : STR_NULL;
}

static bool is_text(const struct json *object, const char *name, struct str what) {
    struct str s = text_at(object, name);

    return s.ptr && str_eq(s, what);
}

static bool is_true(const struct json *object, const char *name, bool otherwise) {
    bool value;

    return json_to_bool(json_get(object, name), &value) == ST_OK ? value : otherwise;
}

/* A value too long for its field is ignored. */
static void copy_text(char *out, size_t cap, struct str s) {
    if (!s.ptr || s.len >= cap) s = STR("");
    memcpy(out, s.ptr, s.len);
    out[s.len] = '\0';
}

static bool to_port(struct str s, uint16_t *out) {
    uint64_t n;

    if (!s.ptr || str_to_u64(str_trim(s), &n) != ST_OK || n == 0 || n > UINT16_MAX) return false;
    *out = (uint16_t)n;
    return true;
}

static bool get_port(const struct json *object, const char *name, uint16_t *out) {
    uint64_t n;

    if (json_to_u64(json_get(object, name), &n) != ST_OK || n == 0 || n > UINT16_MAX) return false;
    *out = (uint16_t)n;
    return true;
}

/* --- what is looked at ------------------------------------------------------------------------ */

/* Parses the requested members alone: most of a pod is managedFields, mounts and commands, and
 * parsing all of it takes five times as long. */
struct part {
    const char *name;
    const char *const *members; /* NULL: all members; else these, NULL at the end */
};

static bool is_listed(const char *const *names, struct str key) {
    for (; *names; names++)
        if (str_eq(key, str_of(*names))) return true;
    return false;
}

static void put_member(struct buf *out, struct str key, struct str value) {
    const char *last = buf_ptr(out) + buf_len(out) - 1;

    if (*last != '{') buf_append_char(out, ',');
    buf_append_char(out, '"');
    buf_append_str(out, key);
    buf_append_str(out, STR("\":"));
    buf_append_str(out, value);
}

/* False: `object` is not an object. */
static bool put_members(struct buf *out, struct str object, const char *const *names) {
    struct kube_members m = {.rest = object};
    struct str key, value;

    buf_append_char(out, '{');
    while (kube_members_next(&m, &key, &value))
        if (is_listed(names, key)) put_member(out, key, value);
    buf_append_char(out, '}');
    return !m.is_bad;
}

static bool put_parts(struct buf *out, struct str object, const struct part *parts) {
    struct kube_members m = {.rest = object};
    struct str key, value;
    bool is_good = true;

    buf_append_char(out, '{');
    while (kube_members_next(&m, &key, &value)) {
        const struct part *part = parts;

        while (part->name && !str_eq(key, str_of(part->name)))
            part++;
        if (!part->name) continue;
        put_member(out, key, part->members ? STR("") : value);
        if (part->members) is_good &= put_members(out, value, part->members);
    }
    buf_append_char(out, '}');
    return is_good && !m.is_bad;
}

static const char *const meta_members[] = {"uid",
                                           "name",
                                           "namespace",
                                           "resourceVersion",
                                           "creationTimestamp",
                                           "deletionTimestamp",
                                           "labels",
                                           "annotations",
                                           NULL};
static const char *const pod_spec_members[] = {"nodeName", "containers", NULL};
static const char *const pod_status_members[] = {"podIP", "phase", "conditions", NULL};

static const struct part identity_parts[] = {{"metadata", meta_members}, {NULL, NULL}};
static const struct part pod_parts[] = {{"kind", NULL},
                                        {"metadata", meta_members},
                                        {"spec", pod_spec_members},
                                        {"status", pod_status_members},
                                        {NULL, NULL}};
static const struct part slice_parts[] = {
    {"kind", NULL}, {"metadata", meta_members}, {"endpoints", NULL}, {"ports", NULL}, {NULL, NULL}};
static const struct part pool_parts[] = {
    {"kind", NULL}, {"metadata", meta_members}, {"spec", NULL}, {NULL, NULL}};

static enum status parse(struct json **root, struct str json, const struct part *parts,
                         const char *what, struct error *err) {
    struct buf slim;
    enum status st;

    buf_init(&slim, KUBE_OBJECT_MAX_BYTES);
    if (put_parts(&slim, json, parts) && !slim.has_failed) {
        st = json_parse(root, buf_str(&slim), &limits, err);
    } else {
        st = error_set(err, ST_INVALID, "not a JSON object, or too large");
    }
    buf_fini(&slim);
    if (st != ST_OK) (void)error_prefix(err, "%s", what);
    return st;
}

/* --- what all objects have -------------------------------------------------------------------- */

static enum status read_identity(struct kube_object *out, const struct json *root,
                                 struct error *err) {
    const struct json *meta = json_get(root, "metadata");
    struct str uid = text_at(meta, "uid"), name = text_at(meta, "name");
    struct str namespace = text_at(meta, "namespace"), version = text_at(meta, "resourceVersion");

    if (uid.ptr && uid.len > 0 && uid.len < sizeof(out->key)) {
        copy_text(out->key, sizeof(out->key), uid);
    } else if (name.ptr && name.len > 0 && name.len < KUBE_NAME_MAX &&
               namespace.len < KUBE_NAMESPACE_MAX) {
        snprintf(out->key, sizeof(out->key), "%.*s/%.*s", (int)namespace.len,
                 namespace.ptr ? namespace.ptr : "", STR_ARG(name));
    } else {
        return error_set(err, ST_INVALID, "an object has neither metadata.uid nor metadata.name");
    }
    if (!version.ptr || str_to_u64(version, &out->version) != ST_OK) out->version = 0;
    return ST_OK;
}

enum status kube_identity_read(struct kube_object *out, struct str json, struct error *err) {
    struct json *root = NULL;
    enum status st = parse(&root, json, identity_parts, "an object", err);

    *out = (struct kube_object){0};
    if (st == ST_OK) st = read_identity(out, root, err);
    json_destroy(root);
    return st;
}

void kube_object_fini(struct kube_object *o) {
    for (uint32_t i = 0; i < o->n_pods; i++)
        mem_free(o->pods[i].ports);
    mem_free(o->pods);
    o->pods = NULL;
    o->n_pods = 0;
}

/* Stores a valid address. */
static bool take_host(struct kube_pod *pod, struct str host) {
    struct in6_addr any;

    copy_text(pod->host, sizeof(pod->host), host);
    if (inet_pton(AF_INET, pod->host, &any) == 1 || inet_pton(AF_INET6, pod->host, &any) == 1)
        return true;
    pod->host[0] = '\0';
    return false;
}

/* Labels for display; those that do not fit, or are invalid, are left out. */
static void put_label(struct discovery_worker *words, const char *key, struct str value) {
    char text[DISCOVERY_LABELS_MAX];

    if (!value.ptr || value.len == 0 || value.len > sizeof(text) - 32) return;
    snprintf(text, sizeof(text), "%s=%.*s", key, STR_ARG(value));
    if (discovery_worker_set(words, str_of(text), NULL) != ST_OK) return;
}

/* --- pods ------------------------------------------------------------------------------------- */

/* Parses "8000, 8001"; false: invalid. Duplicates count once. */
static bool take_ports(struct kube_pod *pod, struct str list) {
    uint16_t ports[KUBE_PORTS_MAX];
    uint32_t n = 0;

    while (list.len) {
        const char *comma = memchr(list.ptr, ',', list.len);
        size_t len = comma ? (size_t)(comma - list.ptr) : list.len, step = len + (comma != NULL);
        bool is_known = false;
        uint16_t port;

        if (n == KUBE_PORTS_MAX || !to_port((struct str){list.ptr, len}, &port)) return false;
        for (uint32_t i = 0; i < n; i++)
            is_known |= ports[i] == port;
        if (!is_known) ports[n++] = port;
        list = (struct str){list.ptr + step, list.len - step};
    }
    if (n == 0) return false;
    pod->ports = mem_calloc(n, sizeof(*ports));
    memcpy(pod->ports, ports, n * sizeof(*ports));
    pod->n_ports = n;
    return true;
}

static uint16_t usual_port_of(const struct json *spec) {
    uint16_t first = 0, port;

    JSON_FOR_EACH(container, json_get(spec, "containers")) {
        JSON_FOR_EACH(p, json_get(container, "ports")) {
            struct str protocol = text_at(p, "protocol");

            if (protocol.ptr && !str_eq(protocol, STR("TCP"))) continue;
            if (!get_port(p, "containerPort", &port)) continue;
            if (is_text(p, "name", STR("http"))) return port;
            if (!first) first = port;
        }
    }
    return first;
}

static void read_ports(struct kube_pod *pod, const struct json *root, const struct json *labels,
                       const struct json *annotations) {
    const struct str port_texts[] = {
        text_at(annotations, "incipit.dev/ports"), text_at(annotations, "smg.ai/worker-ports"),
        text_at(labels, "model.aibrix.ai/port"), text_at(annotations, "model-pod-port")};

    pod->usual_port = usual_port_of(json_get(root, "spec"));
    for (size_t i = 0; i < ARRAY_LEN(port_texts); i++) {
        if (port_texts[i].ptr && take_ports(pod, port_texts[i])) return;
        pod->is_misread |= port_texts[i].ptr != NULL;
    }
}

/* STR_NULL: none. */
static struct str role_of(const struct json *labels, const char *role_label) {
    struct str role = text_at(labels, role_label);

    if (!role.ptr) role = text_at(labels, "llm-d.ai/role");
    if (!role.ptr && text_at(labels, "storm-service-name").ptr) role = text_at(labels, "role-name");
    for (size_t i = 0; role.ptr && i < ARRAY_LEN(does_both); i++) {
        if (str_eq(role, str_of(does_both[i]))) return STR("both");
    }
    return role;
}

static void note_left_out(struct kube_pod *pod, struct str role) {
    for (size_t i = 0; role.ptr && i < ARRAY_LEN(left_out); i++) {
        if (!str_eq(role, str_of(left_out[i]))) continue;
        copy_text(pod->left_out_as, sizeof(pod->left_out_as), role);
        pod->use = KUBE_UNUSED;
    }
}

/* Which part of a request it takes (worker_part.h). */
static void put_part(struct discovery_worker *words, struct str role, const struct json *labels,
                     const struct json *annotations) {
    static const char *const port_names[] = {"incipit.dev/bootstrap-port",
                                             "sglang.ai/bootstrap-port"};
    char digits[8];
    uint16_t port;

    put_label(words, "role", role);
    put_label(words, "kv_connector", text_at(labels, "incipit.dev/kv-connector"));
    for (size_t i = 0; i < ARRAY_LEN(port_names); i++) {
        if (!to_port(text_at(annotations, port_names[i]), &port)) continue;
        snprintf(digits, sizeof(digits), "%u", (unsigned)port);
        put_label(words, "bootstrap_port", str_of(digits));
        return;
    }
}

static void put_kv_events(struct discovery_worker *words, const struct json *labels,
                          const struct json *annotations) {
    struct str port = text_at(annotations, "incipit.dev/kv-events");

    if (!port.ptr && str_eq(text_at(labels, "model.aibrix.ai/kv-events-enabled"), STR("true")))
        port = STR("5557");
    put_label(words, "kv_events", port);
    put_label(words, "kv_events_replay", text_at(annotations, "incipit.dev/kv-events-replay"));
    put_label(words, "kv_events_ranks", text_at(annotations, "incipit.dev/kv-events-ranks"));
}

static void read_labels(struct kube_pod *pod, const struct json *root, const struct json *labels,
                        const struct json *annotations, struct str role) {
    struct discovery_worker words = {0};
    struct str model = text_at(annotations, "incipit.dev/model");

    if (!model.ptr) model = text_at(labels, "model.aibrix.ai/name");
    put_part(&words, role, labels, annotations); /* first: these are used */
    put_kv_events(&words, labels, annotations);
    put_label(&words, "pod", str_of(pod->name));
    put_label(&words, "namespace", str_of(pod->namespace));
    put_label(&words, "node", text_at(json_get(root, "spec"), "nodeName"));
    put_label(&words, "model", model);
    memcpy(pod->labels, words.labels, sizeof(pod->labels));
}

static bool is_ready(const struct json *status) {
    JSON_FOR_EACH(c, json_get(status, "conditions")) {
        if (is_text(c, "type", STR("Ready"))) return is_text(c, "status", STR("True"));
    }
    return false;
}

static bool has_no_weight(const struct json *annotations) {
    struct str weight = text_at(annotations, "incipit.dev/weight");
    uint64_t n;

    return weight.ptr && str_to_u64(str_trim(weight), &n) == ST_OK && n == 0;
}

static enum kube_use use_of_pod(struct kube_pod *pod, const struct json *root,
                                const struct json *meta) {
    const struct json *status = json_get(root, "status");

    if (!take_host(pod, text_at(status, "podIP"))) return KUBE_UNUSED;
    if (is_text(status, "phase", STR("Failed")) || is_text(status, "phase", STR("Succeeded")))
        return KUBE_UNUSED;
    if (!json_is_null(json_get(meta, "deletionTimestamp"))) return KUBE_DRAIN;
    if (is_text(json_get(meta, "labels"), "sleeping", STR("true"))) return KUBE_DRAIN;
    if (has_no_weight(json_get(meta, "annotations"))) return KUBE_DRAIN;
    return is_ready(status) ? KUBE_USE : KUBE_DRAIN;
}

static void read_pod(struct kube_pod *pod, const struct json *root, const char *role_label) {
    const struct json *meta = json_get(root, "metadata"), *labels = json_get(meta, "labels");
    const struct json *annotations = json_get(meta, "annotations");
    struct str role = role_of(labels, role_label);

    copy_text(pod->uid, sizeof(pod->uid), text_at(meta, "uid"));
    copy_text(pod->name, sizeof(pod->name), text_at(meta, "name"));
    copy_text(pod->namespace, sizeof(pod->namespace), text_at(meta, "namespace"));
    copy_text(pod->created, sizeof(pod->created), text_at(meta, "creationTimestamp"));
    pod->use = use_of_pod(pod, root, meta);
    read_ports(pod, root, labels, annotations);
    note_left_out(pod, role);
    read_labels(pod, root, labels, annotations, role);
}

/* A list has its items without their kind. */
static enum status check_kind(const struct json *root, struct str kind, struct error *err) {
    struct str s = text_at(root, "kind");

    if (!s.ptr || str_eq(s, kind)) return ST_OK;
    return error_set(err, ST_INVALID, "an object of kind %.*s instead of %.*s", (int)MIN(s.len, 64),
                     s.ptr, STR_ARG(kind));
}

enum status kube_pod_read(struct kube_object *out, struct str json, const char *role_label,
                          struct error *err) {
    struct json *root = NULL;
    enum status st = parse(&root, json, pod_parts, "a pod", err);

    *out = (struct kube_object){0};
    if (st == ST_OK) st = check_kind(root, STR("Pod"), err);
    if (st == ST_OK) st = read_identity(out, root, err);
    if (st == ST_OK) {
        out->pods = mem_zalloc(sizeof(*out->pods));
        out->n_pods = 1;
        read_pod(out->pods, root, role_label);
    }
    json_destroy(root);
    return st;
}

/* --- slices ----------------------------------------------------------------------------------- */

static enum kube_use use_of_endpoint(const struct json *conditions) {
    bool is_ready_now = is_true(conditions, "ready", true);

    if (is_true(conditions, "terminating", false))
        return is_true(conditions, "serving", is_ready_now) ? KUBE_DRAIN : KUBE_UNUSED;
    return is_ready_now ? KUBE_USE : KUBE_UNUSED;
}

static uint16_t usual_port_of_slice(const struct json *ports) {
    uint16_t first = 0, port;

    JSON_FOR_EACH(p, ports) {
        struct str protocol = text_at(p, "protocol");

        if (protocol.ptr && !str_eq(protocol, STR("TCP"))) continue;
        if (!get_port(p, "port", &port)) continue;
        if (is_text(p, "name", STR("http"))) return port;
        if (!first) first = port;
    }
    return first;
}

/* All addresses are one endpoint: the first is used, as in other implementations. */
static void read_endpoint(struct kube_pod *pod, const struct json *endpoint,
                          const struct json *slice) {
    const struct json *target = json_get(endpoint, "targetRef"),
                      *meta = json_get(slice, "metadata");
    struct str namespace = text_at(target, "namespace"), node = text_at(endpoint, "nodeName"), host;
    struct discovery_worker words = {0};

    if (!namespace.ptr) namespace = text_at(meta, "namespace");
    if (!node.ptr) node = text_at(json_get(endpoint, "topology"), "kubernetes.io/hostname");
    copy_text(pod->uid, sizeof(pod->uid), text_at(target, "uid"));
    copy_text(pod->name, sizeof(pod->name), text_at(target, "name"));
    copy_text(pod->namespace, sizeof(pod->namespace), namespace);
    copy_text(pod->created, sizeof(pod->created), text_at(meta, "creationTimestamp"));
    if (json_to_str(json_first(json_get(endpoint, "addresses")), &host) != ST_OK) host = STR_NULL;
    if (take_host(pod, host)) pod->use = use_of_endpoint(json_get(endpoint, "conditions"));
    put_label(&words, "pod", str_of(pod->name));
    put_label(&words, "namespace", namespace);
    put_label(&words, "node", node);
    put_label(&words, "zone", text_at(endpoint, "zone"));
    memcpy(pod->labels, words.labels, sizeof(pod->labels));
}

static enum status read_slice(struct kube_object *out, const struct json *root, struct error *err) {
    const struct json *endpoints = json_get(root, "endpoints");
    size_t n = json_count(endpoints);
    uint16_t port = usual_port_of_slice(json_get(root, "ports"));
    uint32_t i = 0;

    if (n > KUBE_ENDPOINTS_MAX)
        return error_set(err, ST_TOO_LARGE,
                         "an EndpointSlice has %zu endpoints: at most %d are read", n,
                         KUBE_ENDPOINTS_MAX);
    if (n == 0) return ST_OK;
    out->pods = mem_calloc(n, sizeof(*out->pods));
    out->n_pods = (uint32_t)n;
    JSON_FOR_EACH(endpoint, endpoints) {
        out->pods[i].usual_port = port;
        read_endpoint(&out->pods[i++], endpoint, root);
    }
    return ST_OK;
}

enum status kube_slice_read(struct kube_object *out, struct str json, struct error *err) {
    struct json *root = NULL;
    enum status st = parse(&root, json, slice_parts, "an EndpointSlice", err);

    *out = (struct kube_object){0};
    if (st == ST_OK) st = check_kind(root, STR("EndpointSlice"), err);
    if (st == ST_OK) st = read_identity(out, root, err);
    if (st == ST_OK) st = read_slice(out, root, err);
    json_destroy(root);
    return st;
}

/* --- pools ------------------------------------------------------------------------------------ */

/* Valid characters of a label's key or value; none of them has a meaning in a selector. */
static bool is_plain(struct str s) {
    for (size_t i = 0; i < s.len; i++) {
        char c = s.ptr[i];

        if ((c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') &&
            (c == '\0' || !strchr("-_./", c)))
            return false;
    }
    return true;
}

static enum status read_selector(struct kube_pool *out, const struct json *selector,
                                 struct error *err) {
    const struct json *match = json_get(selector, "matchLabels");
    size_t n = 0;

    JSON_FOR_EACH(label, match ? match : selector) {
        struct str key = json_key(label), value;

        if (json_to_str(label, &value) != ST_OK || key.len == 0 || !is_plain(key) ||
            !is_plain(value))
            return error_set(
                err, ST_INVALID,
                "spec.selector of the InferencePool has an invalid label \"%.*s\": correct it",
                (int)MIN(key.len, 64), key.ptr ? key.ptr : "");
        if (n + key.len + value.len + 3 > sizeof(out->selector))
            return error_set(
                err, ST_TOO_LARGE,
                "spec.selector of the InferencePool is longer than %d bytes: shorten it",
                KUBE_SELECTOR_MAX);
        n += (size_t)snprintf(out->selector + n, sizeof(out->selector) - n, "%s%.*s=%.*s",
                              n ? "," : "", STR_ARG(key), STR_ARG(value));
    }
    if (n) return ST_OK;
    return error_set(
        err, ST_INVALID,
        "spec.selector.matchLabels of the InferencePool is empty: name the labels of its pods");
}

static enum status read_targets(struct kube_pool *out, const struct json *spec, struct error *err) {
    if (get_port(spec, "targetPortNumber", &out->ports[0])) out->n_ports = 1;
    JSON_FOR_EACH(target, json_get(spec, "targetPorts")) {
        if (out->n_ports == KUBE_TARGETS_MAX)
            return error_set(err, ST_TOO_LARGE,
                             "the InferencePool has more than %d targetPorts: list fewer",
                             KUBE_TARGETS_MAX);
        if (!get_port(target, "number", &out->ports[out->n_ports++]))
            return error_set(
                err, ST_INVALID,
                "a targetPort of the InferencePool has no valid number: use 1 to 65535");
    }
    return ST_OK;
}

enum status kube_pool_read(struct kube_pool *out, struct str json, struct error *err) {
    struct kube_pool pool = {0};
    struct json *root = NULL;
    enum status st = parse(&root, json, pool_parts, "an InferencePool", err);

    if (st == ST_OK) st = check_kind(root, STR("InferencePool"), err);
    if (st == ST_OK) st = read_selector(&pool, json_get(json_get(root, "spec"), "selector"), err);
    if (st == ST_OK) st = read_targets(&pool, json_get(root, "spec"), err);
    json_destroy(root);
    if (st == ST_OK) *out = pool;
    return st;
}
