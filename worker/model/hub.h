/* worker/model/hub.h - a model by its name on the Hugging Face hub: found in the cache, or fetched.
 *
 *      GET  /api/models/NAME/revision/REV        the commit, and which files there are
 *      HEAD /NAME/resolve/COMMIT/FILE            its size and its hash (x-linked-etag, etag)
 *      GET  the same, with Range: after a cut    redirected to where large files lie
 *
 * Only what a worker reads is fetched: configuration, tokenizer, templates, safetensors. A file is
 * resumed where it was cut, by this process or an earlier one; large ones are verified against the
 * SHA-256 that the hub has for them. Several processes may start at once: one fetches a file, the
 * others wait for it. The token goes to the endpoint alone, never to where it redirects.
 *
 * LIMITS. Small files, which the hub names by a hash that covers more than their bytes, are checked
 * by their length only. https only, unless the endpoint itself is http on loopback. Blocks, for
 * minutes; start-up only. */
#ifndef WORKER_MODEL_HUB_H
#define WORKER_MODEL_HUB_H

#include "common/base/status.h"
#include "worker/model/hub_cache.h"

/* Progress callbacks, on the calling thread. */
struct hub_events {
    void (*on_begin)(void *arg, const char *name, uint64_t total_bytes, uint64_t present_bytes);
    void (*on_bytes)(void *arg, const char *file, uint64_t done_bytes, uint64_t total_bytes);
    void (*on_trouble)(void *arg, const char *why, const char *instead);
    void *arg;
};

struct hub_config {
    const char *cache_folder; /* NULL: by the environment, see hub_cache.h */
    const char *revision;     /* branch, tag or commit */
    bool is_offline;          /* also by HF_HUB_OFFLINE */
    struct hub_events events; /* any may be NULL */
};

/* *folder gets where the model lies. Messages name the remedy: the token for a gated model, the
 * missing disk space, the files that an offline cache lacks. Reads HF_ENDPOINT, HF_TOKEN (or the
 * file HF_TOKEN_PATH, HF_HOME/token) and HF_HUB_OFFLINE. */
MUST_USE enum status hub_open(const char *name, const struct hub_config *config,
                              char folder[HUB_PATH_MAX], struct error *err);

#endif
