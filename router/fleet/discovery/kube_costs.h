/* router/fleet/discovery/kube_costs.h - telling Kubernetes which pod is missed least.
 *
 * When a ReplicaSet shall have fewer pods, those with the smallest annotation
 *
 *      controller.kubernetes.io/pod-deletion-cost: "1234"
 *
 * go first. The router knows what would be lost with each, so every half minute it writes that down
 * where it has changed by more than a tenth. It is a hint: one that cannot be written is not missed, and
 * several routers that write much the same do no harm. Takes the right to patch pods, which is why it is
 * off unless asked for. Thread: control. */
#ifndef ROUTER_FLEET_DISCOVERY_KUBE_COSTS_H
#define ROUTER_FLEET_DISCOVERY_KUBE_COSTS_H

#include "router/fleet/discovery/kube_store.h"

struct kube_client;
struct kube_costs;
struct log;
struct loop;

#define KUBE_COSTS_EVERY_US 30000000u

typedef double kube_value_fn(const char *url, void *arg); /* negative: nobody knows */

/* Looks every `every_us`. `store` is of pods and outlives it. */
struct kube_costs *kube_costs_create(struct loop *loop, struct log *log, struct kube_client *client,
                                     struct kube_store *store, uint64_t every_us,
                                     kube_value_fn *value, void *arg);
void kube_costs_destroy(struct kube_costs *c); /* before the client; NULL is fine */

/* Whether it is worth a write that a cost was `before` and is `now`. */
bool kube_costs_differ(int32_t before, int32_t now);

#endif
