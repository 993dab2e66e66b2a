/* router/fleet/discovery/kube_watch.h - follows one collection of objects of a Kubernetes API
 * server.
 *
 * One watch follows one collection, such as the pods of a namespace with a label:
 *
 *      LIST (pages) ──▶ WATCH ──▶ cut, over: WATCH from where it was
 *        ▲                │
 *        └── 410, blind, every ten minutes or so
 *
 * Level-triggered: it reports what the collection holds. A list delivers everything between begin
 * and end; the listener drops at `end` what was missing since `begin`, so a lost, doubled or late
 * event does no harm, and while the server is unreachable nothing is reported (fail static).
 *
 * Follows client-go's reflector; tests/integration/test_kubernetes.py replays what API servers do
 * on the wire. Thread: control. */
#ifndef ROUTER_FLEET_DISCOVERY_KUBE_WATCH_H
#define ROUTER_FLEET_DISCOVERY_KUBE_WATCH_H

#include "common/base/buf.h"
#include "common/base/status.h"

struct kube_client; /* kube_client.h: server, credentials, TLS */
struct kube_watch;
struct log;

struct kube_watch_events {
    /* A list begins. A list that fails has no `end`; the next begins again. */
    void (*begin)(void *arg);
    /* An object as JSON, of a list or ADDED or MODIFIED. Valid during the call. */
    void (*object)(struct str json, void *arg);
    void (*gone)(struct str json, void *arg); /* DELETED, in its last state */
    void (*end)(void *arg);                   /* the list is complete */
    void (*change)(void *arg);                /* after one or more of the above; may be NULL */
    /* The list returned 404: no such collection. True: keep trying; false: the watch stops, and may
     * be destroyed inside this call. NULL: keep trying. */
    bool (*missing)(void *arg);
    /* The first list returned 403 twice in a row: as `missing`. */
    bool (*forbidden)(void *arg);
};

struct kube_watch_config {
    const char *path;             /* "/api/v1/namespaces/default/pods" */
    const char *selector;         /* labelSelector, not yet encoded; "" for all */
    const char *field_selector;   /* not encoded; "" for all */
    const char *what;             /* "pods in namespace default", for messages */
    const char *resource, *group; /* "pods", "": for the Role that a 403 asks for */
    const char *older_group;      /* second group of that Role; NULL: none */
    const struct kube_watch_events *events;
    void *arg;
};

/* Starts at once; no callback before this returns. Copies paths and texts. */
MUST_USE enum status kube_watch_create(struct kube_watch **out, struct kube_client *client,
                                       const struct kube_watch_config *config, struct error *err);
/* Not from inside its callbacks except `missing`: defer it. NULL is fine. */
void kube_watch_destroy(struct kube_watch *w);

/* Seconds since the copy was last confirmed; 0 while a watch is healthy. */
double kube_watch_stale_s(const struct kube_watch *w);
bool kube_watch_is_synced(const struct kube_watch *w); /* a first list is complete */

#endif
