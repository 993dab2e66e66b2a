/* router/fleet/discovery/kube_stream.h - reads the stream of an API server in pieces.
 *
 *      WATCH   {"type":"ADDED","object":{...}}\n{"type":"BOOKMARK",...}\n     one event a line
 *      LIST    {"kind":"PodList","metadata":{...},"items":[{...},{...}]}     one value, of any size
 *
 * Pieces may end anywhere; the result is the same for every split. A line or an item is kept until
 * complete and then delivered as text, so that a list of a hundred megabytes is never in memory.
 * Pure. */
#ifndef ROUTER_FLEET_DISCOVERY_KUBE_STREAM_H
#define ROUTER_FLEET_DISCOVERY_KUBE_STREAM_H

#include "router/fleet/discovery/kube_json.h"

/* etcd takes objects of 1.5 MiB. */
#define KUBE_OBJECT_MAX_BYTES (2u << 20)
#define KUBE_VERSION_MAX      128  /* of resourceVersion, which only the server understands */
#define KUBE_CONTINUE_MAX     4096 /* of metadata.continue */
#define KUBE_STATUS_MAX_BYTES (64u << 10)

/* --- lines ------------------------------------------------------------------------------------ */

struct kube_lines {
    struct buf part;  /* incomplete line */
    bool is_returned; /* `part` has been returned */
};

void kube_lines_init(struct kube_lines *l);
void kube_lines_fini(struct kube_lines *l);
void kube_lines_clear(struct kube_lines *l); /* before another stream */

/* Takes the next line, without blanks around it, from *piece. ST_OK: *line, never empty, is valid
 * until the next call, or as long as the piece; ST_AGAIN: *piece is used up; ST_TOO_LARGE. */
MUST_USE enum status kube_lines_next(struct kube_lines *l, struct str *piece, struct str *line);

/* --- events ----------------------------------------------------------------------------------- */

/* A Status: the body of an error, or the object of an ERROR event. */
struct kube_status {
    int code;          /* 410; 0: absent */
    char reason[64];   /* "Expired" */
    char message[300]; /* for people */
    uint32_t retry_after_s;
    bool is_version_too_large; /* asked for a resourceVersion of the future */
};

/* Reads any text; unreadable parts are left out. */
void kube_status_read(struct kube_status *s, struct str text);

/* Gone or Expired: the version is no longer kept, list again. */
bool kube_status_is_expired(const struct kube_status *s);

enum kube_event_type { KUBE_ADDED, KUBE_MODIFIED, KUBE_DELETED, KUBE_BOOKMARK, KUBE_ERROR };

struct kube_event { /* parts of the line */
    enum kube_event_type type;
    struct str object;
    struct str version; /* all but ERROR */
};

/* ST_INVALID: not an event, of unknown type, or without resourceVersion. */
MUST_USE enum status kube_event_read(struct kube_event *e, struct str line, struct error *err);

/* --- lists ------------------------------------------------------------------------------------ */

typedef void kube_list_fn(struct str item, void *arg);

/* One page. Embedded; init and fini. */
struct kube_list {
    kube_list_fn *fn;
    void *arg;
    uint8_t at;     /* kube_stream.c: where in the text */
    uint8_t member; /* which one is being read */
    struct kube_scan scan;
    struct buf value; /* key, metadata or item, as far as it has come */
    uint32_t n_items;
    char version[KUBE_VERSION_MAX]; /* metadata.resourceVersion */
    char next[KUBE_CONTINUE_MAX];   /* metadata.continue; "": the last page */
};

void kube_list_init(struct kube_list *l, kube_list_fn *fn, void *arg);
void kube_list_fini(struct kube_list *l);
void kube_list_clear(struct kube_list *l); /* before another page */

/* Delivers complete items. After ST_INVALID and ST_TOO_LARGE call only clear and fini. */
MUST_USE enum status kube_list_feed(struct kube_list *l, struct str piece, struct error *err);

/* The end of the page. ST_INVALID: incomplete. */
MUST_USE enum status kube_list_end(const struct kube_list *l, struct error *err);

#endif
