/* router/registry/worker_kind.h - the engine of a worker, which decides the calls that it
 * serves. */
#ifndef ROUTER_REGISTRY_WORKER_KIND_H
#define ROUTER_REGISTRY_WORKER_KIND_H

#include <stdbool.h>
#include <string.h>

enum worker_kind { WORKER_OURS, WORKER_VLLM, WORKER_SGLANG, WORKER_OTHER, WORKER_KIND_COUNT };
#define WORKER_KIND_BIT(kind) (1u << (kind))

/* `backend` of a third-party worker: owned_by of its models in GET /v1/models. */
static inline enum worker_kind worker_kind_of(bool is_third_party, const char *backend) {
    if (!is_third_party) return WORKER_OURS;
    if (strcmp(backend, "vllm") == 0) return WORKER_VLLM;
    return strcmp(backend, "sglang") == 0 ? WORKER_SGLANG : WORKER_OTHER;
}

#endif
