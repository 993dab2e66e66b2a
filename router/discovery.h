/* router/discovery.h - where workers are named: one vtable, one file per source in discovery/.
 *
 * A source tells the whole set of workers that it wants, whenever that may have changed, never a
 * difference: whoever listens compares it with what there is. So an event that is lost, doubled or
 * late does no harm, and a source that fails says nothing and leaves everything as it is.
 *
 *      static   --worker-urls: told once
 *      file     --worker-file: told at start and when the file has changed
 *      kube     --service-discovery: pods or endpoint slices of a Kubernetes cluster
 *      dns      --worker-dns: the addresses behind a name
 *
 * Thread: control. */
#ifndef ROUTER_DISCOVERY_H
#define ROUTER_DISCOVERY_H

#include "router/address.h"

struct discovery;
struct log;
struct loop;
struct option_list;

#define DISCOVERY_LABELS_MAX  256 /* bytes of "zone=a rack=7" */
#define DISCOVERY_UID_MAX     64
#define DISCOVERY_MAX_WORKERS 1024 /* of one source */

struct discovery_worker {
    struct address_url url;
    uint32_t max_in_flight;            /* requests it is given at once; 0: no limit */
    char labels[DISCOVERY_LABELS_MAX]; /* "zone=a rack=7": for people, and in GET /workers */
    char uid[DISCOVERY_UID_MAX]; /* another one behind the same URL is another worker; or "" */
    bool is_draining;            /* it is going: nothing new, what is open may finish */
};

struct discovery_set {
    struct discovery_worker *workers; /* no URL twice */
    uint32_t n, cap;
};

/* Parts of a set: init and fini; add copies. ST_EXISTS: the URL is there; ST_TOO_LARGE: no more. */
void discovery_set_fini(struct discovery_set *set); /* a zeroed one is fine */
MUST_USE enum status discovery_set_add(struct discovery_set *set,
                                       const struct discovery_worker *worker, struct error *err);

/* "key=value", one of a worker's settings or a label. ST_INVALID names it. */
MUST_USE enum status discovery_worker_set(struct discovery_worker *worker, struct str setting,
                                          struct error *err);

/* All of them; the set is the source's own. */
typedef void discovery_fn(const struct discovery_set *set, void *arg);

struct discovery_ops {
    const char *name;
    void (*reload)(struct discovery *d); /* the operator asks (SIGHUP); NULL: nothing to do */
    void (*destroy)(struct discovery *d);
};

struct discovery { /* begins each source's own struct */
    const struct discovery_ops *ops;
};

void discovery_reload(struct discovery *d);  /* NULL is fine */
void discovery_destroy(struct discovery *d); /* NULL is fine */

/* Both tell their first set before they return; what is wrong with it is an error of the start. */
MUST_USE enum status discovery_static_create(struct discovery **out, const struct option_list *urls,
                                             discovery_fn *fn, void *arg, struct error *err);

/* One worker a line: its URL, then settings; '#' begins a comment.
 *
 *      http://10.0.0.7:8000  max_in_flight=64 zone=a     # two GPUs
 *      http://10.0.0.8:8000
 *
 * Read again on SIGHUP, and once a changed file has stayed the same for a second. A file that cannot
 * be read, or a line that is wrong, changes nothing; the log names the line and says what to do.
 * Better than writing into it: write another and rename it. */
MUST_USE enum status discovery_file_create(struct discovery **out, const char *path,
                                           struct loop *loop, struct log *log, discovery_fn *fn,
                                           void *arg, struct error *err);

/* The format itself; `name` is what messages call it. *out is zeroed before. */
MUST_USE enum status discovery_file_parse(struct str text, const char *name,
                                          struct discovery_set *out, struct error *err);

#endif
