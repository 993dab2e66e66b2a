/* router/proxy/handover/peer.c - our own workers, which exchange KV blocks anyhow.
 *
 *      router ─▶ P   the request, with x-incipit-prefill
 *      P ─▶ router   the tokens of its prompt; the blocks stay in P's cache
 *      router ─▶ D   the request, with x-incipit-kv-source: P
 *      D ─▶ P        asks for the blocks, and computes what it does not get
 *
 * Both bodies are the client's. Nothing is held at P for D: what P has evicted meanwhile, or what
 * does not come in time, D computes. D computes the last block and samples the first token, so
 * tools, grammars and log probabilities of the answer need nothing of P. What D computes without
 * reading its cache stays together: log probabilities of the prompt, and several samples of it.
 *
 * LIMITS. Workers give each other no blocks of a prompt with a salt: those of a client's own, and
 * with --isolate-by all, stay together. */
#include "common/protocol/api.h"
#include "common/protocol/wire.h"
#include "router/proxy/handover/handover.h"

/* A text, or the tokens of one. */
static bool is_one_prompt(struct str prompt) {
    size_t i = 1;

    if (!prompt.len || prompt.ptr[0] != '[') return prompt.len > 0 && prompt.ptr[0] == '"';
    while (i < prompt.len && (uint8_t)prompt.ptr[i] <= ' ')
        i++;
    return i < prompt.len && prompt.ptr[i] >= '0' && prompt.ptr[i] <= '9';
}

static bool fits(struct str path, struct str body) {
    if (str_eq(path, STR("/v1/completions"))) {
        if (!is_one_prompt(handover_member(body, "prompt"))) return false;
    } else if (!str_eq(path, STR("/v1/chat/completions")) &&
               !str_eq(path, STR(API_MESSAGES_PATH)) && !str_eq(path, STR(API_RESPONSES_PATH))) {
        return false;
    }
    return handover_is_at_most_one(handover_member(body, "n")) &&
           handover_is_at_most_one(handover_member(body, "best_of")) &&
           handover_is_absent(handover_member(body, "use_beam_search")) &&
           handover_is_absent(handover_member(body, "prompt_logprobs")) &&
           handover_is_absent(handover_member(body, "echo")) &&
           handover_is_absent(handover_member(body, "cache_salt"));
}

const struct handover_ops handover_peer = {
    .name = "peer", .is_unsalted = true, .first_head = WIRE_PREFILL ": 1\r\n", .fits = fits};
