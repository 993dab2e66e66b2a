/* worker/api/fields/cache_control.h - what a client asks to keep in the cache, and for how long.
 *
 * Messages marks beginnings of the prompt:
 *
 *      tools[i].cache_control     tools, system    "cache_control": {"type": "ephemeral",
 *      system[i]                  tools, system                      "ttl": "5m" or "1h"}
 *      messages[i].content[j]     and the messages up to and with this one
 *      of the body itself         all of the prompt
 *
 * Hits do not depend on it. The system's prompt and the tools count as one, since templates write
 * them in either order, and so does each message: a mark inside counts for the whole.
 *
 * Chat and Responses name a time for all of the prompt, in "prompt_cache_options": {"ttl": "30m" or
 * "12h"} and "prompt_cache_retention": "24h" or "in_memory", which asks for nothing. Pure. */
#ifndef WORKER_API_FIELDS_CACHE_CONTROL_H
#define WORKER_API_FIELDS_CACHE_CONTROL_H

#include "common/base/base.h"
#include "common/base/status.h"

struct json;

#define CACHE_CONTROL_MAX 4        /* in one request, as Anthropic has it */
#define CACHE_CONTROL_ALL SIZE_MAX /* the whole prompt */

struct cache_control {
    size_t n_messages; /* the first ones, behind system and tools; or CACHE_CONTROL_ALL */
    uint32_t ttl_s;
};

/* The marks, the largest beginning first; those within a larger one of an equal or longer time are
 * left out. ST_INVALID names the field. */
MUST_USE enum status cache_control_read(const struct json *o,
                                        struct cache_control out[CACHE_CONTROL_MAX], uint32_t *n,
                                        struct error *err);

/* The longer time of the two fields; 0: none is asked for. ST_INVALID names the field. */
MUST_USE enum status cache_control_read_ttl(const struct json *o, uint32_t *ttl_s,
                                            struct error *err);

/* "ttl": "5m", "30m", "1h", "12h" or "24h"; absent: *ttl_s stays. ST_INVALID names the field. */
MUST_USE enum status cache_control_read_time(const struct json *o, uint32_t *ttl_s,
                                             struct error *err);

#endif
