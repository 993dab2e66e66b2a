/* worker/model/hub_internal.h - what hub.c (what to fetch) and hub_http.c (fetching) share. */
#ifndef WORKER_MODEL_HUB_INTERNAL_H
#define WORKER_MODEL_HUB_INTERNAL_H

#include "common/http/http_fetch.h"
#include "worker/model/hub.h"

struct sha256;

struct hub_file {
    char name[204];
    char etag[132];
    uint64_t n_bytes;
    bool is_sha256; /* etag is the SHA-256 of the content */
    bool is_known;  /* etag and n_bytes are there */
};

struct hub {
    const struct hub_config *config;
    const char *name; /* "org/name" */
    struct hub_cache cache;
    char commit[41];
    char endpoint[256]; /* without a slash at its end */
    struct http_origin origin;
    char token[512]; /* "" when there is none */
    struct http_fetch *http;
    struct sha256 *sha;
    struct hub_file *files;
    uint32_t n_files;
    uint64_t total_bytes, done_bytes;
};

/* A small answer, into `out`, whose limit it must not exceed. Tries again when the connection is
 * cut; a code that is not 200 becomes a sentence about `what`. */
MUST_USE enum status hub_http_get(struct hub *h, const char *url, const char *what, struct buf *out,
                                  struct error *err);

/* Fills in etag and n_bytes. */
MUST_USE enum status hub_http_describe(struct hub *h, struct hub_file *file, struct error *err);

/* Brings the content of a described file into its blob, unless it is there. */
MUST_USE enum status hub_http_download(struct hub *h, const struct hub_file *file,
                                       struct error *err);

#endif
