/* router/registry/worker_kind.h - which engine a worker is, as far as the calls it serves go. */
#ifndef ROUTER_REGISTRY_WORKER_KIND_H
#define ROUTER_REGISTRY_WORKER_KIND_H

#include <stdbool.h>
#include <string.h>

enum worker_kind { WORKER_OURS, WORKER_VLLM, WORKER_SGLANG, WORKER_OTHER, WORKER_KIND_COUNT };
#define WORKER_KIND_BIT(kind) (1u << (kind))

/* `backend`, of a worker that is not ours: who owns its models, as GET /v1/models has it. */
static inline enum worker_kind worker_kind_of(bool is_third_party, const char *backend) {
    if (!is_third_party) return WORKER_OURS;
    if (strcmp(backend, "vllm") == 0) return WORKER_VLLM;
    return strcmp(backend, "sglang") == 0 ? WORKER_SGLANG : WORKER_OTHER;
}

#endif
