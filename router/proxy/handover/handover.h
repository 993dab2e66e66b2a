/* router/proxy/handover/handover.h - the bodies of a request that two workers serve.
 *
 * The first leg goes to the worker that prefills, the second to the one that decodes and answers
 * the client. Both carry the client's body with a few members of their own. A protocol is a table
 * of functions:
 *
 *      in turn    first_members ──▶ P ──answer──▶ second_members ──▶ D      kv_transfer_params
 *                                                                           (vLLM)
 *      in turn    first_head ─────▶ P ──tokens──▶ x-incipit-kv-source ─▶ D  ours
 *      at once    first_members ──▶ P                                       bootstrap_* (SGLang),
 *                 second_members ────────────────────────────────▶ D        Mooncake (vLLM)
 *
 * A body is not copied for it: what changes is what is cut from the client's, and what is added at
 * its end.
 *
 * The client's body was scanned (body_scan.h): its structure is sound and no top-level key stands
 * twice. The answer of P is outside input: it is parsed before any of it is used. Pure. */
#ifndef ROUTER_PROXY_HANDOVER_HANDOVER_H
#define ROUTER_PROXY_HANDOVER_HANDOVER_H

#include "common/base/buf.h"
#include "common/base/status.h"
#include "router/pairing/worker_role.h"

#define HANDOVER_RID_CHARS 40
#define HANDOVER_CUTS_MAX  6

/* What the functions of a protocol read. */
struct handover {
    struct str body;                  /* the client's */
    struct str host;                  /* of P, without a port */
    uint16_t bootstrap_port;          /* of P */
    uint64_t room;                    /* random, below 2^63 */
    struct str engine;                /* id of P's engine, where `needs_engine` */
    char rid[HANDOVER_RID_CHARS + 1]; /* a request id of the router's own */
};

struct handover_ops {
    const char *name;
    bool is_at_once;        /* the legs are sent together; else the second follows from the first */
    bool is_unsalted;       /* prompts of an isolated tenant cannot be handed over */
    bool needs_engine;      /* registry_next_engine */
    bool holds_kv;          /* P keeps the KV until D has taken it, or until its own timeout */
    const char *first_head; /* a header of the first leg's, with its line end; NULL: none */
    /* Whether a body may be split at all. */
    bool (*fits)(struct str path, struct str body);
    /* Members that the first leg's body has not (NULL at the end; at most HANDOVER_CUTS_MAX), and
     * those that it has of its own, each behind a comma. NULL: none. */
    const char *const *first_dropped;
    void (*first_members)(const struct handover *h, struct buf *out);
    /* Members of the second leg's body, each behind a comma. `answer`: of the first leg; at once:
     * STR_NULL. ST_NOT_FOUND: the answer hands nothing over. ST_INVALID: it is no JSON. NULL: the
     * second leg has the client's body, and the first one's worker as its source of KV. */
    enum status (*second_members)(const struct handover *h, struct str answer, struct buf *out);
    /* The body of a call that ends the request on a worker where its connection alone may not, and
     * its path; or NULL, NULL. */
    const char *abort_path;
    void (*abort_body)(const struct handover *h, struct buf *out);
};

extern const struct handover_ops handover_nixl, handover_bootstrap, handover_peer,
    handover_mooncake;

/* NULL: none. */
const struct handover_ops *handover_ops_of(uint8_t handover);

/* --- shared by the protocols ------------------------------------------------------------------ */

/* The value of a top-level member; STR_NULL. */
struct str handover_member(struct str body, const char *name);

bool handover_is_absent(struct str value); /* of a member: or null, or false */
bool handover_is_at_most_one(struct str value);

/* What to cut from a body that has other members too, to be without those of these names: in its
 * order, disjoint. Returns how many cuts. */
uint32_t handover_cuts(struct str body, const char *const *dropped,
                       struct str cuts[HANDOVER_CUTS_MAX]);

/* Bytes of a scanned body up to the brace that closes it. */
size_t handover_open_len(struct str body);

/* --- vllm.c: what connectors of vLLM share ---------------------------------------------------- */

#define HANDOVER_PARAMS "kv_transfer_params"

bool handover_vllm_fits(struct str path, struct str body);

/* Of the first leg: one token, no stream, and `params`, an object. */
extern const char *const handover_vllm_dropped[];
void handover_vllm_first_members(struct str body, struct str params, struct buf *out);

#endif
