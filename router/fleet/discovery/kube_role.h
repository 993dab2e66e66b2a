/* router/fleet/discovery/kube_role.h - what to say when an API server forbids something: the Role that is
 * missing, as YAML that kubectl takes, and the command that binds it to who asked. Pure but for the
 * log. */
#ifndef ROUTER_FLEET_DISCOVERY_KUBE_ROLE_H
#define ROUTER_FLEET_DISCOVERY_KUBE_ROLE_H

struct log;

struct kube_role {
    const char *path;             /* what was asked for: "/api/v1/namespaces/prod/pods" */
    const char *resource, *group; /* "pods", "" */
    const char *older_group;      /* where clusters may have only that; "": there is none */
    const char *verbs;            /* all that are needed: "list, watch" */
};

/* `verb` was refused with this message. One line, kube_forbidden; without a namespace in the path, of a
 * ClusterRole. */
void kube_role_log(struct log *log, const struct kube_role *role, const char *verb,
                   const char *message);

#endif
