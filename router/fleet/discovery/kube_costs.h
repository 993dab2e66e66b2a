/* router/fleet/discovery/kube_costs.h - writes each pod's cost of deletion for Kubernetes.
 *
 * A ReplicaSet that scales down deletes first the pods with the smallest annotation
 *
 *      controller.kubernetes.io/pod-deletion-cost: "1234"
 *
 * The router knows what would be lost with each pod, and writes it every half minute where it has
 * changed by more than a tenth. It is a hint: a failed write does no harm, nor do several routers
 * that write similar values. Needs the right to patch pods, so it is off by default. Thread:
 * control. */
#ifndef ROUTER_FLEET_DISCOVERY_KUBE_COSTS_H
#define ROUTER_FLEET_DISCOVERY_KUBE_COSTS_H

#include "router/fleet/discovery/kube_store.h"

struct kube_client;
struct kube_costs;
struct log;
struct loop;

#define KUBE_COSTS_EVERY_US 30000000u

typedef double kube_value_fn(const char *url, void *arg); /* negative: unknown */

/* Runs every `every_us`. `store` is of pods and outlives it. */
struct kube_costs *kube_costs_create(struct loop *loop, struct log *log, struct kube_client *client,
                                     struct kube_store *store, uint64_t every_us,
                                     kube_value_fn *value, void *arg);
void kube_costs_destroy(struct kube_costs *c); /* before the client; NULL is fine */

/* True when a change from `before` to `now` is worth a write. */
bool kube_costs_differ(int32_t before, int32_t now);

#endif
