/* worker/api/stores/prompt_history.h - the prompts of earlier requests, to say what changed since.
 *
 * Clients of Messages and Responses name an earlier request and ask why its prefix was not reused.
 * Two facts answer that: where the tokens of the two prompts part, and which part of the body
 * differs. Of each prompt there are kept
 *
 *      a hash for each block of tokens, over all tokens up to there      8 bytes a block
 *      a hash of the system's message, of the tools, of the effort, of the template's variables
 *      a hash of the messages, over all up to the last
 *
 *      this prompt    | equal blocks                 | other tokens ...
 *      the earlier    | equal blocks                 | ...
 *      cached         | found        | missing       |
 *                                     PROMPT_EVICTED   PROMPT_SYSTEM, ... PROMPT_TEMPLATE
 *
 * It is the body of a chat that is looked at: Messages and Responses become one, and what is left
 * out of the prompt there, as a nonce, is no change. What is cached is compared with the client's
 * own earlier prompt alone, so that nothing of other clients' prompts shows.
 *
 * Bounded in bytes, in which tenants have equal shares (shares.h): of a tenant's, what was added or
 * named longest ago goes first. A request is found by its id and the owner that it was made for.
 * LIMITS: equal hashes of 64 bits are taken for equal contents; the seed is secret, and a collision
 * names a wrong reason. Pure; one thread. */
#ifndef WORKER_API_STORES_PROMPT_HISTORY_H
#define WORKER_API_STORES_PROMPT_HISTORY_H

#include "common/base/buf.h"

struct json;
struct prompt_history;

enum prompt_change {
    PROMPT_NOT_COMPARED, /* no earlier request is named */
    PROMPT_NOT_FOUND,    /* the one that is named is not remembered */
    PROMPT_REUSED,       /* no block that both prompts could share was computed again */
    PROMPT_SYSTEM,       /* the first of these that differs */
    PROMPT_TOOLS,
    PROMPT_EFFORT,
    PROMPT_SETTINGS, /* variables of the template, documents */
    PROMPT_MESSAGES, /* one that the earlier request has */
    PROMPT_TEMPLATE, /* nothing of the body: the template writes the same messages differently */
    PROMPT_EVICTED, /* the prompt continues the earlier one, whose blocks are not cached any more */
};
const char *prompt_change_name(enum prompt_change change); /* "evicted" */

struct prompt_diagnosis {
    enum prompt_change change;
    uint64_t n_equal;  /* tokens of the blocks at the beginning that both prompts have */
    uint64_t n_missed; /* tokens that were computed, and not if the earlier prompt were reused */
};

struct prompt_seen {
    const struct json *chat; /* its body, as a chat call has it */
    const uint32_t *tokens;  /* (n_tokens) */
    uint32_t n_tokens, n_cached, block_size;
    uint64_t
        tenant; /* whose share of the memory it takes: of one there are several owners, by salts */
};

struct prompt_history *prompt_history_create(size_t max_bytes, uint64_t seed);
void prompt_history_destroy(struct prompt_history *h); /* NULL is fine */

/* Compares a prompt with that of the request `earlier` (STR_NULL: none), and remembers it as `id`;
 * what that owner had under that id is forgotten. One that finds no room is not remembered. */
struct prompt_diagnosis prompt_history_add(struct prompt_history *h, struct str id,
                                           struct str earlier, uint64_t owner,
                                           const struct prompt_seen *seen);

void prompt_history_check(const struct prompt_history *h); /* asserts the invariants */

#endif
