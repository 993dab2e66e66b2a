/* router/fleet/discovery/kube_role.h - the log event for a forbidden request: the missing Role as
 * YAML for kubectl, and the command that binds it. Pure except the log. */
#ifndef ROUTER_FLEET_DISCOVERY_KUBE_ROLE_H
#define ROUTER_FLEET_DISCOVERY_KUBE_ROLE_H

struct log;

struct kube_role {
    const char *path;             /* the requested path: "/api/v1/namespaces/prod/pods" */
    const char *resource, *group; /* "pods", "" */
    const char *older_group;      /* group of older clusters; "": none */
    const char *verbs;            /* all needed verbs: "list, watch" */
};

/* Logs one line, kube_forbidden, for a `verb` refused with this message; for a ClusterRole without
 * a namespace in the path. */
void kube_role_log(struct log *log, const struct kube_role *role, const char *verb,
                   const char *message);

#endif
