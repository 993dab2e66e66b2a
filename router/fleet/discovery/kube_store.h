/* router/fleet/discovery/kube_store.h - a copy of a collection, and the workers that follow from
 * it.
 *
 *      watch: begin, object ..., end, gone        store: every object by uid
 *                                                          |
 *                         discovery_set  <-- workers: one per port, merged, in order
 *
 * Mark and sweep: objects missing between begin and end are removed, so that the next list corrects
 * a missed delete. Nothing else is removed: while the server is unreachable the copy stays.
 *
 * Events may be late. The versions of one object's events grow, so an event that is not newer is
 * ignored; the version of a deleted object is kept until the next list, so that a late event does
 * not restore it. A list replaces all versions, which begin again when a cluster is restored.
 *
 * Where two objects have one endpoint (slices being rewritten, two addresses of one pod, an address
 * that moved from an old pod to a new one) the one in use wins, then IPv4, then the younger.
 *
 * Pure; no clock. One thread. */
#ifndef ROUTER_FLEET_DISCOVERY_KUBE_STORE_H
#define ROUTER_FLEET_DISCOVERY_KUBE_STORE_H

#include "router/fleet/discovery/kube_objects.h"

enum kube_resource { KUBE_PODS, KUBE_ENDPOINTSLICES };

#define KUBE_STORE_MAX 65536 /* objects, deleted ones included, and endpoints: 60 MB */

struct kube_store;

struct kube_store *kube_store_create(enum kube_resource resource, const char *role_label);
void kube_store_destroy(struct kube_store *s); /* NULL is fine */

/* The ports of pods without ports of their own: `targets` of an InferencePool (each a worker), else
 * `port`, else the port named http of the pod or slice, else its first. */
void kube_store_set_ports(struct kube_store *s, uint16_t port, const uint16_t *targets,
                          uint32_t n_targets);

void kube_store_begin(struct kube_store *s);
MUST_USE enum status kube_store_object(struct kube_store *s, struct str json, struct error *err);
MUST_USE enum status kube_store_gone(struct kube_store *s, struct str json, struct error *err);
void kube_store_end(struct kube_store *s);

/* Counts of the last conversion to workers. */
struct kube_store_stats {
    uint32_t n_objects, n_used, n_draining;
    uint32_t n_left_out;                                  /* pods of an unusable role */
    uint32_t n_portless;                                  /* pods without a known port */
    uint32_t n_misread;                                   /* pods with invalid ports */
    uint32_t n_too_many;                                  /* usable workers beyond `max` */
    const struct kube_pod *left_out, *portless, *misread; /* an example of each, or NULL */
};

/* Fills the empty set: workers in use first, older before younger, at most `max`. */
void kube_store_workers(struct kube_store *s, uint32_t max, struct discovery_set *out,
                        struct kube_store_stats *stats);

/* The pod of this uid, of a store of pods; or NULL. Valid until the store changes. */
const struct kube_pod *kube_store_find(const struct kube_store *s, const char *uid);

void kube_store_check(const struct kube_store *s); /* asserts the invariants */

#endif
