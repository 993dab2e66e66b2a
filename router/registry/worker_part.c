/* router/registry/worker_part.c - labels first, then the engine, then its defaults. */
#include "router/registry/worker_part.h"

const char *const worker_role_names[WORKER_N_ROLES] = {
    [WORKER_BOTH] = "both", [WORKER_PREFILL] = "prefill", [WORKER_DECODE] = "decode"};

bool worker_role_read(struct str text, uint8_t *role) {
    for (uint8_t i = 0; i < WORKER_N_ROLES; i++) {
        if (!str_eq(text, str_of(worker_role_names[i]))) continue;
        *role = i;
        return true;
    }
    return false;
}

/* The value of the first label with this name; STR_NULL: none. */
static struct str label(const char *labels, struct str name) {
    for (const char *p = labels; *p; p += *p == ' ') {
        struct str word = {p, strcspn(p, " ")};

        p += word.len;
        if (word.len <= name.len || word.ptr[name.len] != '=' || !str_starts(word, name)) continue;
        return (struct str){word.ptr + name.len + 1, word.len - name.len - 1};
    }
    return STR_NULL;
}

/* `published`: by a worker of ours. */
static uint8_t default_handover(enum worker_kind kind, uint8_t role, uint8_t published,
                                uint8_t vllm) {
    if (role == WORKER_BOTH) return HANDOVER_NONE;
    switch (kind) {
    case WORKER_OURS: return published;
    case WORKER_VLLM: return vllm;
    case WORKER_SGLANG: return HANDOVER_BOOTSTRAP;
    default: return HANDOVER_NONE;
    }
}

struct worker_part worker_part_published(const struct wire_server_info *info) {
    struct worker_part part = {.bootstrap_port = WORKER_BOOTSTRAP_PORT};

    if (!worker_role_read(str_of(info->role), &part.role)) return (struct worker_part){0};
    if (info->kv_peer.fingerprint[0]) part.handover = HANDOVER_PEER;
    return part;
}

/* Of a vLLM worker. */
static uint8_t handover_of(struct str connector) {
    if (str_eq(connector, STR("NixlConnector"))) return HANDOVER_NIXL;
    return str_eq(connector, STR("MooncakeConnector")) ? HANDOVER_MOONCAKE : HANDOVER_NONE;
}

struct worker_part worker_part_of(enum worker_kind kind, const char *labels,
                                  const struct worker_part *published, uint8_t vllm) {
    struct worker_part part = {.bootstrap_port = WORKER_BOOTSTRAP_PORT};
    struct str connector = label(labels, STR("kv_connector"));
    uint64_t port;

    if (published->bootstrap_port) part = *published;
    (void)worker_role_read(label(labels, STR("role")), &part.role);
    part.handover = default_handover(kind, part.role, part.handover, vllm);
    if (connector.ptr && kind == WORKER_VLLM) part.handover = handover_of(connector);
    if (str_eq(connector, STR("none"))) part.handover = HANDOVER_NONE;
    if (str_to_u64(label(labels, STR("bootstrap_port")), &port) == ST_OK && port >= 1 &&
        port <= UINT16_MAX)
        part.bootstrap_port = (uint16_t)port;
    return part;
}
