/* router/fleet/discovery/kube_role.c - a Role on one line, in YAML's flow style, without line
 * breaks that a log would escape. Each resource has a Role of its own name, so that applying one
 * keeps the other. */
#include "router/fleet/discovery/kube_role.h"

#include "common/base/buf.h"
#include "common/telemetry/log.h"

/* The part of `text` between `mark` and the first of `ends`; STR_NULL: no `mark`. */
static struct str part_after(const char *text, const char *mark, const char *ends) {
    const char *at = strstr(text, mark);

    if (!at) return STR_NULL;
    at += strlen(mark);
    return (struct str){at, strcspn(at, ends)};
}

static void write_role(const struct kube_role *r, struct str namespace, struct buf *out) {
    buf_appendf(out,
                "{apiVersion: rbac.authorization.k8s.io/v1, kind: %s, metadata: {name: "
                "incipit-router-%s",
                namespace.ptr ? "Role" : "ClusterRole", r->resource);
    if (namespace.ptr) buf_appendf(out, ", namespace: " STR_FMT, STR_ARG(namespace));
    buf_appendf(out, "}, rules: [{apiGroups: ['%s'", r->group);
    if (r->older_group[0]) buf_appendf(out, ", '%s'", r->older_group);
    buf_appendf(out, "], resources: [%s], verbs: [%s]}]}", r->resource, r->verbs);
}

/* Of 'User "system:serviceaccount:prod:router" cannot list ...': prod:router. */
static void write_binding(const struct kube_role *r, struct str namespace, const char *message,
                          struct buf *out) {
    struct str account = part_after(message, "User \"system:serviceaccount:", "\"");
    const char *kind = namespace.ptr ? "role" : "clusterrole";

    if (!account.ptr) account = STR("NAMESPACE:ACCOUNT");
    buf_appendf(out,
                "kubectl create %sbinding incipit-router-%s --%s=incipit-router-%s "
                "--serviceaccount=" STR_FMT,
                kind, r->resource, kind, r->resource, STR_ARG(account));
    if (namespace.ptr) buf_appendf(out, " -n " STR_FMT, STR_ARG(namespace));
}

void kube_role_log(struct log *log, const struct kube_role *role, const char *verb,
                   const char *message) {
    struct str namespace = part_after(role->path, "/namespaces/", "/");
    struct buf yaml, binding;

    buf_init(&yaml, 0);
    buf_init(&binding, 0);
    write_role(role, namespace, &yaml);
    write_binding(role, namespace, message, &binding);
    log_event(log, LOG_ERROR, "kube_forbidden", log_z("verb", verb),
              log_z("resource", role->resource),
              log_str("namespace", namespace.ptr ? namespace : STR("all")), log_z("why", message),
              log_str("role", buf_str(&yaml)), log_str("binding", buf_str(&binding)),
              log_z("remedy", "kubectl apply the role, then create the binding; the list is tried "
                              "again by itself, at least every 30 s"));
    buf_fini(&yaml);
    buf_fini(&binding);
}
