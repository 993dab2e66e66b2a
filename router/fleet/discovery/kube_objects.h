/* router/fleet/discovery/kube_objects.h - workers from objects of a Kubernetes API server.
 *
 * Three kinds are read: a Pod, which is complete in itself; an EndpointSlice, which has addresses
 * and readiness of up to a thousand endpoints, for routers without the right to read pods; and an
 * InferencePool, which selects pods and ports.
 *
 *      Pod            deletionTimestamp                       drains
 *                     no podIP, or phase Failed, Succeeded    no worker
 *                     condition Ready is True                 used
 *                     all else                                drains
 *      EndpointSlice  terminating: serving                    drains
 *                     ready, or readiness is absent           used
 *                     all else                                no worker
 *
 * "Drains" applies to pods that were never used too: the fleet does not add a draining worker. So a
 * pod that is not ready yet is not used yet, and one that is no longer ready finishes its requests.
 *
 * Labels (l) and annotations (a), in this order of precedence:
 *
 *      ports     incipit.dev/ports (a), smg.ai/worker-ports (a): "8000,8001", each a worker of its own;
 *                model.aibrix.ai/port (l), model-pod-port (a) of KubeAI
 *      weight    incipit.dev/weight (a): 0 drains; other numbers are equal, since capacity is learned
 *      role      --k8s-role-label (l), llm-d.ai/role (l), role-name (l) of an AIBrix StormService: prefill,
 *                decode or both (worker_part.h); pods that compute only images are not used
 *      handover  incipit.dev/kv-connector (l); incipit.dev/bootstrap-port (a), sglang.ai/bootstrap-port (a)
 *      asleep    sleeping=true (l), of production-stack: drains
 *      events    incipit.dev/kv-events, -replay, -ranks (a): ports and ranks of KV events;
 *                model.aibrix.ai/kv-events-enabled=true (l): port 5557
 *      model     incipit.dev/model (a), model.aibrix.ai/name (l): shown, not used
 *
 * Pure; any thread. Objects are outside input: sizes and numbers are checked, an address is a
 * number, never a name. */
#ifndef ROUTER_FLEET_DISCOVERY_KUBE_OBJECTS_H
#define ROUTER_FLEET_DISCOVERY_KUBE_OBJECTS_H

#include <netinet/in.h>

#include "common/base/buf.h"
#include "common/base/status.h"
#include "router/fleet/discovery.h"

#define KUBE_NAME_MAX      254 /* a DNS name, and a NUL */
#define KUBE_NAMESPACE_MAX 64
#define KUBE_ROLE_MAX      32
#define KUBE_PORTS_MAX     64   /* of one pod; pods with forty engines exist */
#define KUBE_TARGETS_MAX   8    /* of an InferencePool: its schema's limit */
#define KUBE_ENDPOINTS_MAX 1000 /* of a slice: its schema's limit */
#define KUBE_SELECTOR_MAX  1024

enum kube_use { KUBE_UNUSED, KUBE_DRAIN, KUBE_USE }; /* the larger value wins between two objects */

struct kube_pod {
    char uid[DISCOVERY_UID_MAX]; /* or "" */
    char name[KUBE_NAME_MAX], namespace[KUBE_NAMESPACE_MAX];
    char host[INET6_ADDRSTRLEN];
    char created[24]; /* "2026-11-21T01:02:03Z": compares as text */
    char labels[DISCOVERY_LABELS_MAX];
    char left_out_as[KUBE_ROLE_MAX]; /* an unusable role: no worker; or "" */
    enum kube_use use;
    uint16_t *ports; /* its own; none: the store's default */
    uint32_t n_ports;
    bool is_misread;     /* its ports are invalid and ignored */
    uint16_t usual_port; /* the port named http, or the first; 0: none */
};

struct kube_object {
    char key[KUBE_NAME_MAX + KUBE_NAMESPACE_MAX]; /* its uid, or else its name */
    uint64_t version;                             /* 0: does not compare */
    struct kube_pod *pods;
    uint32_t n_pods;
};

/* ST_INVALID: not such an object. A pod that is no worker, with the reason, is ST_OK. */
MUST_USE enum status kube_pod_read(struct kube_object *out, struct str json, const char *role_label,
                                   struct error *err);
MUST_USE enum status kube_slice_read(struct kube_object *out, struct str json, struct error *err);

/* Key and version alone, of a deleted object. */
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
