/* worker/api/cache_explain.h - telling a client why its prompt was not found in the cache.
 *
 * Two ways: `"cache_explain": true` in a completion or chat request puts an object beside
 * cached_tokens in `usage`; POST /cache/explain takes the same bodies, computes nothing, and
 * answers with one for each prompt.
 *
 *      {"cause": "differs", "prompt_tokens": 812, "cached_tokens": 32, "host_tokens": 0,
 *       "block_size": 16, "block": 2, "token": 37, "text_offset": 151, "text": " Tuesday, the ",
 *       "message": "..."}
 *
 * It compares with blocks under the request's own salt alone, its own being the one that its body or
 * its router gave it: the answer is what it would be if no other salt's prompts existed. A request
 * without a salt shares its blocks with all others without one, so that its explanation speaks of
 * their prompts: such requests are refused unless the operator says otherwise (--cache-explain).
 * Thread: worker loop. */
#ifndef WORKER_API_CACHE_EXPLAIN_H
#define WORKER_API_CACHE_EXPLAIN_H

#include "common/base/status.h"

struct call;
struct choice;
struct json_writer;

/* The member "cache_explain" of an object that is being written: of one prompt an object, of
 * several an array. Prompts whose first token is not there yet are null. */
void cache_explain_put(struct json_writer *w, const struct call *c);

/* ST_INVALID when the call asks for it and may not. After the router's salt was taken. */
MUST_USE enum status cache_explain_check(const struct call *c, struct error *err);

#endif
