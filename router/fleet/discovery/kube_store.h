/* router/fleet/discovery/kube_store.h - the copy of a collection, and the workers that follow from it.
 *
 *      watch: begin, object ..., end, gone        store: every object by uid
 *                                                          |
 *                         discovery_set  <-- workers: one per port, merged, in order
 *
 * Mark and sweep: what was not named between begin and end is forgotten, so that a delete that was
 * missed is made good by the next list. Nothing else is ever forgotten: while the server cannot be
 * reached the copy stays.
 *
 * An event may be late. The versions of one object's events grow, so one that is not newer than what
 * is known is passed over; of an object that is gone its version is kept until the next list, so that
 * a late event does not bring it back. A list is believed whatever its versions are: they begin anew
 * when a cluster is restored.
 *
 * Where two objects speak of one endpoint (slices that are being rewritten, two addresses of one pod,
 * an address that went from an old pod to a new one) the one in use wins, then IPv4, then the younger.
 *
 * Pure; no clock. One thread. */
#ifndef ROUTER_FLEET_DISCOVERY_KUBE_STORE_H
#define ROUTER_FLEET_DISCOVERY_KUBE_STORE_H

#include "router/fleet/discovery/kube_objects.h"

enum kube_resource { KUBE_PODS, KUBE_ENDPOINTSLICES };

#define KUBE_STORE_MAX 65536 /* objects, those that are gone included, and endpoints: 60 MB */

struct kube_store;

struct kube_store *kube_store_create(enum kube_resource resource, const char *role_label);
void kube_store_destroy(struct kube_store *s); /* NULL is fine */

/* The ports of pods that name none: `targets` of an InferencePool (each a worker), else `port`, else
 * what the pod itself or the slice calls http, else its first. */
void kube_store_set_ports(struct kube_store *s, uint16_t port, const uint16_t *targets,
                          uint32_t n_targets);

void kube_store_begin(struct kube_store *s);
MUST_USE enum status kube_store_object(struct kube_store *s, struct str json, struct error *err);
MUST_USE enum status kube_store_gone(struct kube_store *s, struct str json, struct error *err);
void kube_store_end(struct kube_store *s);

/* What became of the objects when they were last made to workers. */
struct kube_store_stats {
    uint32_t n_objects, n_used, n_draining;
    uint32_t n_left_out; /* pods of a role that is not routed to */
    uint32_t n_portless; /* pods of which no port is known */
    uint32_t n_misread;  /* pods whose own ports could not be read */
    uint32_t n_too_many; /* workers that could be used, beyond `max` */
    const struct kube_pod *left_out, *portless, *misread; /* one of those, or NULL */
};

/* Fills the set, which is empty: those in use first, older before younger, at most `max`. */
void kube_store_workers(struct kube_store *s, uint32_t max, struct discovery_set *out,
                        struct kube_store_stats *stats);

/* The pod of this uid, of a store of pods; or NULL. Valid until the store changes. */
const struct kube_pod *kube_store_find(const struct kube_store *s, const char *uid);

void kube_store_check(const struct kube_store *s); /* asserts the invariants */

#endif
