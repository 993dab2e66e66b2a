/* tests/support/api_store.h - what a Kubernetes API server remembers, as far as watching goes.
 *
 * Objects in versions that never change, and the list of changes that led here. Each change gives
 * its object the next resourceVersion, which is one number for the whole store. A watch from
 * version V is sent the changes after V; one whose V is older than the last compaction gets 410,
 * one whose V is from a future that a restored backup has forgotten receives nothing.
 *
 *      put, patch, delete ──▶ objects (by resource, namespace, name)
 *              └───────────▶ changes: rv 7 ADDED, rv 8 MODIFIED (before, after) ...
 *
 * cJSON's trees, since objects are changed here: tests/support alone may see them. */
#ifndef TESTS_SUPPORT_API_STORE_H
#define TESTS_SUPPORT_API_STORE_H

#include <cjson/cJSON.h>

#include "common/base/buf.h"

struct api_resource {
    const char *group, *version, *name, *kind; /* group "" for the core */
    const char *singular, *short_name;
};

extern const struct api_resource api_resources[];
extern const uint32_t api_n_resources;
const struct api_resource *api_resource_of_kind(const char *kind);
const struct api_resource *api_resource_named(const char *name); /* "pods" */

struct api_object { /* one version */
    uint32_t refs;
    uint64_t rv;
    const struct api_resource *resource;
    const char *namespace, *name; /* in the tree */
    cJSON *tree;
    char *json;
};

enum api_change_kind { API_ADDED, API_MODIFIED, API_DELETED };
extern const char *const api_change_names[]; /* "ADDED" */

struct api_change {
    uint64_t rv;
    enum api_change_kind kind;
    struct api_object *before, *after; /* either may be NULL; DELETED: after is as it was last */
};

struct api_store {
    struct api_object **objects; /* ordered by resource, namespace, name */
    uint32_t n_objects, cap_objects;
    struct api_change *changes;
    uint32_t n_changes, cap_changes;
    uint64_t rv, compacted_rv; /* changes up to it are forgotten */
    uint64_t n_uids;
};

void api_store_init(struct api_store *s);
void api_store_fini(struct api_store *s);

/* Takes the tree. False, and why: what it lacks. uid, creationTimestamp, resourceVersion and
 * managedFields are filled in. One of the same name is replaced and keeps its uid, unless the new
 * one brings another. */
bool api_store_put(struct api_store *s, cJSON *tree, struct error *err);

/* A merge patch (RFC 7386). NULL when there is no such object. */
struct api_object *api_store_patch(struct api_store *s, const struct api_object *old,
                                   const cJSON *patch);

/* As asked by a user: a pod that runs gets a deletionTimestamp, MODIFIED; the kubelet's word that
 * it has ended, or force, DELETED. Force does both in one go. */
void api_store_delete(struct api_store *s, struct api_object *o, uint32_t grace_s);
void api_store_force(struct api_store *s, struct api_object *o);
void api_store_forget(struct api_store *s, struct api_object *o);

struct api_object *api_store_find(const struct api_store *s, const struct api_resource *resource,
                                  const char *namespace, const char *name);

void api_store_compact(struct api_store *s);             /* forgets all changes so far */
void api_store_rewind(struct api_store *s, uint64_t rv); /* a backup: this is the version now */

struct api_object *api_object_hold(struct api_object *o);
void api_object_drop(struct api_object *o); /* NULL is fine */

/* --- which objects are meant ------------------------------------------------------------------ */

#define API_SELECTOR_MAX 1024

struct api_selection {
    const struct api_resource *resource;
    char namespace[64];            /* "" for all */
    char labels[API_SELECTOR_MAX]; /* "a=b,c!=d,e in (f,g),h,!i" */
    char fields[256];              /* "metadata.name=x" */
};

bool api_selection_is_valid(const struct api_selection *sel);
bool api_selection_has(const struct api_selection *sel, const struct api_object *o);

/* What a watch of these receives of the change: an object that stops matching is DELETED for it,
 * one that begins to match ADDED. False: nothing. */
bool api_selection_sees(const struct api_selection *sel, const struct api_change *change,
                        enum api_change_kind *kind, struct api_object **object);

#endif
