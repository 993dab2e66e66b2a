/* worker/kv/tiers/tier_source.h - the worker that a request names as one that has the KV of its
 * prompt's beginning.
 *
 *      x-incipit-kv-source: 10.0.0.7:31000;tokens=4096;computed=4000
 *
 * A router that has seen the prompt sent there names it; the tier of peers asks it. Where the
 * source has computed a part for this very request, `computed` has its length: bringing it is no
 * hit. Parameters that are not known are passed over. Pure. */
#ifndef WORKER_KV_TIERS_TIER_SOURCE_H
#define WORKER_KV_TIERS_TIER_SOURCE_H

#include "common/base/buf.h"
#include "common/base/status.h"

#define TIER_SOURCE_MAX 256 /* as an address has */

struct tier_source {
    char authority[TIER_SOURCE_MAX]; /* "10.0.0.7:31000"; "": none is named */
    uint32_t n_tokens;               /* that it has, from the prompt's first on */
    uint32_t n_computed;             /* of these, the last, computed for this request */
};

/* ST_INVALID: err has the form that is expected. */
MUST_USE enum status tier_source_parse(struct str value, struct tier_source *out,
                                       struct error *err);

#endif
