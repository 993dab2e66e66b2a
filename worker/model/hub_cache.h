/* worker/model/hub_cache.h - the folder where Hugging Face's tools keep models, shared with them.
 *
 *      ROOT/models--org--name/refs/main                      the commit that "main" was
 *                             snapshots/COMMIT/config.json   -> ../../blobs/ETAG
 *                             blobs/ETAG                     the content, named by its hash
 *                             blobs/ETAG.incomplete          what has come of it so far
 *      ROOT/.locks/models--org--name/ETAG.lock               flock: held while fetching
 *
 * A blob appears by rename when it is whole and verified, a link and a ref by rename too, and the
 * ref last: a ref always names a whole snapshot, even after a kill. Names that become paths are
 * checked here. Blocks on the disk; start-up only. */
#ifndef WORKER_MODEL_HUB_CACHE_H
#define WORKER_MODEL_HUB_CACHE_H

#include "common/base/buf.h"
#include "common/base/status.h"

#define HUB_PATH_MAX 4096

struct hub_cache {
    char root[HUB_PATH_MAX];
    char repo[256]; /* "models--org--name" */
};

/* Is it "org/name", as the hub names models? A folder of that name is for the caller to prefer. */
bool hub_is_model_name(const char *text);

/* "main", a tag, a commit: no path that leads out. */
bool hub_is_revision(const char *text);
bool hub_is_commit(const char *text);   /* 40 hexadecimal digits */
bool hub_is_file_name(struct str name); /* one that may lie in a snapshot */
bool hub_is_etag(struct str etag);

/* Where the cache is: `folder` if given, else HF_HUB_CACHE, HF_HOME/hub, XDG_CACHE_HOME or
 * ~/.cache/huggingface/hub. `name` is a model's. */
MUST_USE enum status hub_cache_init(struct hub_cache *c, const char *folder, const char *name,
                                    struct error *err);

/* *path gets the snapshot of this revision, when it is there with all that a model needs;
 * ST_NOT_FOUND names what is missing. */
MUST_USE enum status hub_cache_find(const struct hub_cache *c, const char *revision,
                                    char path[HUB_PATH_MAX], struct error *err);

/* Makes the folders. ST_IO names the one that cannot be made. */
MUST_USE enum status hub_cache_prepare(const struct hub_cache *c, const char *commit,
                                       struct error *err);

/* Bytes free for new blobs; UINT64_MAX when unknown. */
uint64_t hub_cache_free_bytes(const struct hub_cache *c);

void hub_cache_blob_path(const struct hub_cache *c, const char *etag, const char *suffix,
                         char path[HUB_PATH_MAX]);

/* Waits until no other process fetches this blob. The caller closes *fd. `on_wait` is called before
 * a wait. */
MUST_USE enum status hub_cache_lock(const struct hub_cache *c, const char *etag,
                                    void (*on_wait)(void *arg), void *arg, int *fd,
                                    struct error *err);

MUST_USE enum status hub_cache_link(const struct hub_cache *c, const char *commit,
                                    const char *file_name, const char *etag, struct error *err);
MUST_USE enum status hub_cache_set_ref(const struct hub_cache *c, const char *revision,
                                       const char *commit, struct error *err);

#endif
