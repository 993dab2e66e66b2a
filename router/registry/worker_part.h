/* router/registry/worker_part.h - which part of a request a worker takes, and how its KV is handed
 * over: from an operator's labels, else from what its engine publishes.
 *
 *      label                            engine                               part
 *      role=prefill|decode|both         SGLang: disaggregation_mode          role
 *      kv_connector=NixlConnector|none  vLLM with a role: NixlConnector      handover
 *                                       SGLang with a role: bootstrap
 *      bootstrap_port=8998              SGLang: disaggregation_bootstrap_port
 *
 * Unknown words of `role` are labels like any other: Kubernetes has roles of its own. Pure. */
#ifndef ROUTER_REGISTRY_WORKER_PART_H
#define ROUTER_REGISTRY_WORKER_PART_H

#include "common/base/buf.h"
#include "router/pairing/worker_role.h"
#include "router/registry/worker_kind.h"

#define WORKER_BOOTSTRAP_PORT 8998 /* SGLang's default */

struct worker_part {
    uint8_t role, handover; /* enum worker_role, worker_handover */
    uint16_t bootstrap_port;
};

extern const char *const worker_role_names[WORKER_N_ROLES];

/* False: no role. */
bool worker_role_read(struct str text, uint8_t *role);

/* `labels`: "role=prefill zone=a". `published`: by the engine; a bootstrap_port of 0: nothing. */
struct worker_part worker_part_of(enum worker_kind kind, const char *labels,
                                  const struct worker_part *published);

#endif
