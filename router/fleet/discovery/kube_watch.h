/* router/fleet/discovery/kube_watch.h - keeping a copy of some objects of a Kubernetes API server.
 *
 * One watch follows one collection, say the pods of a namespace that have a label:
 *
 *      LIST (pages) ──▶ WATCH ──▶ cut, over: WATCH from where it was
 *        ▲                │
 *        └── 410, blind, every ten minutes or so
 *
 * Level-triggered: what is told is what the collection holds, never what must be done. A list tells
 * everything between begin and end; whoever listens forgets at `end` what was not named since `begin`,
 * so an event that was lost, doubled or late does no harm, and while the server cannot be reached
 * nothing is told at all (fail static).
 *
 * Follows the behaviour of client-go's reflector; every row of what API servers really do on the wire
 * is a scene of tests/integration/test_kubernetes.py. Thread: control. */
#ifndef ROUTER_FLEET_DISCOVERY_KUBE_WATCH_H
#define ROUTER_FLEET_DISCOVERY_KUBE_WATCH_H

#include "common/base/buf.h"
#include "common/base/status.h"

struct kube_client; /* kube_client.h: server, credentials, TLS */
struct kube_watch;
struct log;

struct kube_watch_events {
    /* A list begins to be told. One that fails half-way never ends: the next begins anew. */
    void (*begin)(void *arg);
    /* An object as JSON, of a list or ADDED or MODIFIED. Valid during the call. */
    void (*object)(struct str json, void *arg);
    void (*gone)(struct str json, void *arg); /* DELETED, as it was last */
    void (*end)(void *arg);                   /* the list is whole */
    void (*change)(void *arg); /* after one or more of the above: look again; may be NULL */
    /* The list was answered with 404: there is no such collection here. True: keep trying; false: the
     * watch rests, and may be destroyed at once, inside this call. NULL: keep trying. */
    bool (*missing)(void *arg);
    /* No list was whole yet, and it was answered with 403 twice in a row: as `missing`. */
    bool (*forbidden)(void *arg);
};

struct kube_watch_config {
    const char *path;             /* "/api/v1/namespaces/default/pods" */
    const char *selector;         /* labelSelector, not yet encoded; "" for all */
    const char *field_selector;   /* likewise; "" */
    const char *what;             /* "pods in namespace default", for messages */
    const char *resource, *group; /* "pods", "": for the Role that a 403 asks for */
    const char *older_group;      /* the Role is of this group too; NULL: there is none */
    const struct kube_watch_events *events;
    void *arg;
};

/* Begins at once; nothing is told before this returns. Paths and texts are copied. */
MUST_USE enum status kube_watch_create(struct kube_watch **out, struct kube_client *client,
                                       const struct kube_watch_config *config, struct error *err);
/* Not from inside its callbacks, but for `missing`: defer it. NULL is fine. */
void kube_watch_destroy(struct kube_watch *w);

/* Seconds since the copy was last known to be right; 0 while a watch is healthy. */
double kube_watch_stale_s(const struct kube_watch *w);
bool kube_watch_is_synced(const struct kube_watch *w); /* a first list has been told */

#endif
