/* worker/api/access.h - the keys that requests must have, where the worker has any.
 *
 * Kept are digests, all of one length, and a key is compared with every one of them in a time that
 * does not depend on where it differs. Probes, metrics and a router's discovery calls stay open;
 * calls that compute, or that reveal other clients' requests, need a key.
 *
 * Thread: the worker loop. */
#ifndef WORKER_API_ACCESS_H
#define WORKER_API_ACCESS_H

#include "common/base/status.h"
#include "common/options/options.h"

struct access;
struct http_request;

/* Keys from `given` and from `file` (NULL: none), one a line, '#' begins a comment. *out is NULL
 * when both are without keys and there is no file: then everything is open. ST_INVALID for an empty
 * key, a key with a character that no header can hold, or a file without keys. */
MUST_USE enum status access_create(struct access **out, const struct option_list *given,
                                   const char *file, struct error *err);
void access_destroy(struct access *a); /* NULL is fine */

/* Reads the file again. On failure the keys stay as they were. */
MUST_USE enum status access_reload(struct access *a, struct error *err);

/* The key that a request has, behind "Bearer " in `authorization`, or in `x-api-key`; else
 * empty. */
struct str access_key_of(const struct http_request *req);

/* Is the request authorized for that path? ST_DENIED with what to send. `a` NULL: always. */
MUST_USE enum status access_check(const struct access *a, const struct http_request *req,
                                  struct str path, struct error *err);

#endif
