/* worker/api/cache_explain.h - explains to a client why its prompt missed the cache.
 *
 * Two ways: `"cache_explain": true` in a completion or chat request puts an object beside
 * cached_tokens in `usage`; POST /cache/explain takes the same bodies, computes nothing, and
 * answers with one for each prompt.
 *
 *      {"cause": "differs", "prompt_tokens": 812, "cached_tokens": 32, "host_tokens": 0,
 *       "block_size": 16, "block": 2, "token": 37, "text_offset": 151, "text": " Tuesday, the ",
 *       "message": "..."}
 *
 * It compares only with blocks under the request's salt, from its body or its router: prompts of
 * other salts do not influence it. Requests without a salt share their blocks, so an explanation
 * would reveal prompts of other clients: such requests are refused unless --cache-explain allows
 * them. Thread: worker loop. */
#ifndef WORKER_API_CACHE_EXPLAIN_H
#define WORKER_API_CACHE_EXPLAIN_H

#include "common/base/status.h"

struct call;
struct choice;
struct json_writer;

/* The member "cache_explain" of an object that is being written: of one prompt an object, of
 * several an array. Prompts whose first token is not there yet are null. */
void cache_explain_put(struct json_writer *w, const struct call *c);

/* ST_INVALID when the call requests an explanation that is not allowed. Call it after the router's
 * salt is applied. */
MUST_USE enum status cache_explain_check(const struct call *c, struct error *err);

#endif
