/* router/fleet/discovery/kube_objects.h - what objects of a Kubernetes API server say of workers.
 *
 * Three kinds are read: a Pod, which says all there is to know of itself; an EndpointSlice, which says
 * of up to a thousand endpoints where they are and whether they are ready, for those who may not see
 * pods; and an InferencePool, which says which pods, and at which ports.
 *
 *      Pod            deletionTimestamp                       drains
 *                     no podIP, or phase Failed, Succeeded    no worker
 *                     condition Ready is True                 used
 *                     all else                                drains
 *      EndpointSlice  terminating: serving                    drains
 *                     ready, or nothing is said of it         used
 *                     all else                                no worker
 *
 * "Drains" is told of pods that were never used too: whoever listens does not begin with one. So a pod
 * that is not ready yet is not wanted yet, and one that no longer is finishes what it has.
 *
 * Labels (l) and annotations (a) that are understood, in this order where they say the same:
 *
 *      ports     incipit.dev/ports (a), smg.ai/worker-ports (a): "8000,8001", each a worker of its own;
 *                model.aibrix.ai/port (l), model-pod-port (a) of KubeAI
 *      weight    incipit.dev/weight (a): 0 drains; all other numbers are the same: what a worker can do
 *                is learned, not declared
 *      role      --k8s-role-label (l), llm-d.ai/role (l), role-name (l) of an AIBrix StormService: who
 *                computes only prompts, or only answers, or only images, is left out
 *      asleep    sleeping=true (l), of production-stack: drains
 *      model     incipit.dev/model (a), model.aibrix.ai/name (l): shown, not used
 *
 * Pure; any thread. What is read here was written by whoever may create pods: sizes and numbers are
 * checked, an address is a number, never a name. */
#ifndef ROUTER_FLEET_DISCOVERY_KUBE_OBJECTS_H
#define ROUTER_FLEET_DISCOVERY_KUBE_OBJECTS_H

#include "common/base/buf.h"
#include "common/base/status.h"
#include "router/fleet/discovery.h"

#include <netinet/in.h>

#define KUBE_NAME_MAX      254 /* a DNS name, and a NUL */
#define KUBE_NAMESPACE_MAX 64
#define KUBE_ROLE_MAX      32
#define KUBE_PORTS_MAX     64   /* of one pod: forty engines in a pod have been seen */
#define KUBE_TARGETS_MAX   8    /* of an InferencePool: its schema's limit */
#define KUBE_ENDPOINTS_MAX 1000 /* of a slice: likewise */
#define KUBE_SELECTOR_MAX  1024

enum kube_use { KUBE_UNUSED, KUBE_DRAIN, KUBE_USE }; /* later ones win where two say it of one */

struct kube_pod {
    char uid[DISCOVERY_UID_MAX]; /* or "" */
    char name[KUBE_NAME_MAX], namespace[KUBE_NAMESPACE_MAX];
    char host[INET6_ADDRSTRLEN];
    char created[24]; /* "2026-11-21T01:02:03Z": compares as text */
    char labels[DISCOVERY_LABELS_MAX];
    char left_out_as[KUBE_ROLE_MAX]; /* a role that is not routed to: no worker; or "" */
    enum kube_use use;
    uint16_t *ports; /* its own; none: whoever asks knows */
    uint32_t n_ports;
    bool is_misread;     /* it names ports in a way that means nothing: as if it did not */
    uint16_t usual_port; /* the one called http, or its first; 0: none is named */
};

struct kube_object {
    char key[KUBE_NAME_MAX + KUBE_NAMESPACE_MAX]; /* its uid, or else its name */
    uint64_t version;                             /* 0: does not compare */
    struct kube_pod *pods;
    uint32_t n_pods;
};

/* ST_INVALID says what it is not. A pod that is no worker, and why not, is ST_OK. */
MUST_USE enum status kube_pod_read(struct kube_object *out, struct str json, const char *role_label,
                                   struct error *err);
MUST_USE enum status kube_slice_read(struct kube_object *out, struct str json, struct error *err);

/* Key and version alone: of something that is gone. */
MUST_USE enum status kube_identity_read(struct kube_object *out, struct str json,
                                        struct error *err);
void kube_object_fini(struct kube_object *o); /* a zeroed one is fine */

struct kube_pool {
    char selector[KUBE_SELECTOR_MAX]; /* "app=vllm,tier=gpu": never empty */
    uint16_t ports[KUBE_TARGETS_MAX];
    uint32_t n_ports;
};

/* inference.networking.k8s.io/v1, or v1alpha2, which had one targetPortNumber. */
MUST_USE enum status kube_pool_read(struct kube_pool *out, struct str json, struct error *err);

#endif
