/* router/pairing/worker_role.h - what a worker does of a request: its prefill, its decode, or both.
 *
 * A worker of role prefill computes prompts whose KV another worker then takes; a worker of role
 * decode prefers to take it. The role is a preference of price where an engine can answer alone
 * (ours, vLLM), and a wall where it cannot (SGLang in disaggregation mode): handover_is_required.
 *
 *      role       answers clients                          computes prompts for others
 *      both       yes                                      if its engine has a handover
 *      decode     yes; with a required handover only        no
 *                 while some worker prefills for it
 *      prefill    only while no other worker can; ours,     yes
 *                 while it gets few prompts of others too
 *                 (load_note_leg); never with a required
 *                 handover
 *
 * Two workers make a pair when they have the same handover, and for HANDOVER_PEER blocks that the
 * other can use (fetch.h). */
#ifndef ROUTER_PAIRING_WORKER_ROLE_H
#define ROUTER_PAIRING_WORKER_ROLE_H

#include <stdbool.h>
#include <stdint.h>

enum worker_role { WORKER_BOTH, WORKER_PREFILL, WORKER_DECODE, WORKER_N_ROLES };

/* How KV is handed from the worker that prefills to the one that decodes. */
enum worker_handover {
    HANDOVER_NONE,
    HANDOVER_NIXL,      /* vLLM's NixlConnector: kv_transfer_params, one leg after the other */
    HANDOVER_BOOTSTRAP, /* SGLang: bootstrap_host, _port and _room, both legs at once */
    HANDOVER_MOONCAKE,  /* vLLM's MooncakeConnector: kv_transfer_params, both legs at once */
    HANDOVER_PEER,      /* ours: x-incipit-prefill, then x-incipit-kv-source */
    HANDOVER_COUNT
};

static inline bool handover_is_required(uint8_t handover) {
    return handover == HANDOVER_BOOTSTRAP;
}

#endif
