/* router/registry/worker_part.h - which part of a request a worker takes, and how its KV is handed
 * over: from an operator's labels, else from what its engine publishes.
 *
 *      label                            engine                               part
 *      role=prefill|decode|both         ours: --role in /server_info         role
 *                                       SGLang: disaggregation_mode
 *      kv_connector=NixlConnector       vLLM with a role: --kv-connector     handover
 *        |MooncakeConnector|none        SGLang with a role: bootstrap
 *                                       ours with a role and --kv-peers: peer
 *      bootstrap_port=8998              SGLang: disaggregation_bootstrap_port
 *
 * Unknown words of `role` are labels like any other: Kubernetes has roles of its own. Pure. */
#ifndef ROUTER_REGISTRY_WORKER_PART_H
#define ROUTER_REGISTRY_WORKER_PART_H

#include "common/base/buf.h"
#include "common/protocol/wire.h"
#include "router/pairing/worker_role.h"
#include "router/registry/worker_kind.h"

#define WORKER_BOOTSTRAP_PORT 8998 /* SGLang's default, and of vLLM's MooncakeConnector */
#define WORKER_ENGINES_MAX    16   /* data-parallel ranks behind one port */
#define WORKER_ENGINE_ID_MAX  80   /* with its NUL; "<uuid>_dp15" is 41 characters */

struct worker_part {
    uint8_t role, handover; /* enum worker_role, worker_handover */
    uint16_t bootstrap_port;
};

/* Engines behind a bootstrap server, by which a worker that decodes finds the one that prefills. */
struct worker_engine {
    char id[WORKER_ENGINE_ID_MAX]; /* letters, digits and - _ . : */
    uint32_t rank;                 /* data-parallel */
};
struct worker_engines {
    uint32_t n; /* 0: unknown */
    struct worker_engine engines[WORKER_ENGINES_MAX];
};

extern const char *const worker_role_names[WORKER_N_ROLES];

/* False: no role. */
bool worker_role_read(struct str text, uint8_t *role);

/* What a worker of ours publishes. */
struct worker_part worker_part_published(const struct wire_server_info *info);

/* `labels`: "role=prefill zone=a". `published`: by the engine; a bootstrap_port of 0: nothing.
 * `vllm`: handover of vLLM workers with a role and without a kv_connector. */
struct worker_part worker_part_of(enum worker_kind kind, const char *labels,
                                  const struct worker_part *published, uint8_t vllm);

#endif
