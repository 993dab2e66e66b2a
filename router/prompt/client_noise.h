/* router/prompt/client_noise.h - finds what clients write into the system prompt differently in
 * each request, which would defeat every prefix cache.
 *
 *   billing header   Claude Code: "x-anthropic-billing-header: ... cch=<nonce>;", the first block
 *                    of `system`, or the first line of its text
 *   total tokens     "<total_tokens>N tokens left</total_tokens>" at the end of the system prompt
 *
 * The system prompt is the top-level `system` (a string, or an array of blocks) and the first of
 * `messages` if its role is system or developer. Text of other roles is never touched, nor is any
 * other place in the system prompt. A text may be written with escapes; one that is split over
 * blocks is not found. What is ambiguous (a key twice, a block of another type) is left alone.
 *
 * A whole text block is cut with its comma; a text that has no other block beside it becomes "".
 * What remains of a well-formed body is well-formed. One pass over the system prompt, bounded by
 * its length; no recursion. Pure, allocates nothing; any thread. */
#ifndef ROUTER_PROMPT_CLIENT_NOISE_H
#define ROUTER_PROMPT_CLIENT_NOISE_H

#include "router/prompt/body_scan.h"

enum client_noise_kind { NOISE_BILLING_HEADER, NOISE_TOTAL_TOKENS, NOISE_KIND_COUNT };

#define CLIENT_NOISE_CUTS_MAX (2 * NOISE_KIND_COUNT) /* of `system`, and of the first message */

/* --strip-client-noise */
enum client_noise_rule { NOISE_KEPT, NOISE_CUT_FROM_MESSAGES, NOISE_CUT_FROM_ALL };

struct client_noise {
    uint32_t n;
    struct str cuts[CLIENT_NOISE_CUTS_MAX]; /* of the body, in its order, disjoint, not empty */
    uint32_t found[NOISE_KIND_COUNT];       /* how often */
};

/* `scan` is that of a well-formed body. */
void client_noise_find(const struct body_scan *scan, struct client_noise *out);

/* Bytes of all cuts. */
size_t client_noise_len(const struct client_noise *noise);

#endif
