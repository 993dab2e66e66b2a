/* router/fleet/discovery.h - sources of workers: one vtable, one file per source in discovery/.
 *
 * A source reports the whole set of workers that it wants whenever the set may have changed, never
 * a difference; the fleet compares it with the present one. So a lost, doubled or late event does
 * no harm, and a source that fails reports nothing and leaves everything as it is.
 *
 *      static   --worker-urls: reported once
 *      file     --worker-file: reported at start and when the file has changed
 *      kube     --service-discovery: pods or endpoint slices of a Kubernetes cluster
 *      dns      --worker-dns: the addresses behind a name
 *
 * Thread: control. */
#ifndef ROUTER_FLEET_DISCOVERY_H
#define ROUTER_FLEET_DISCOVERY_H

#include "common/base/map.h"
#include "common/net/address.h"

struct discovery;
struct log;
struct loop;
struct option_list;

#define DISCOVERY_LABELS_MAX  256 /* bytes of "zone=a rack=7" */
#define DISCOVERY_UID_MAX     64
#define DISCOVERY_MAX_WORKERS 1024 /* of one source */

struct discovery_worker {
    struct address_url url;
    uint32_t max_in_flight;            /* limit of requests in flight; 0: none */
    char labels[DISCOVERY_LABELS_MAX]; /* "zone=a rack=7", shown in GET /workers */
    char uid[DISCOVERY_UID_MAX];       /* a new uid behind a URL is a new worker; or "" */
    bool is_draining;                  /* gets no new requests; open ones may finish */
};

struct discovery_set {
    struct discovery_worker *workers; /* no URL twice */
    uint32_t n, cap;
    struct strmap by_url; /* index + 1 */
};

/* Functions of a set; a zeroed one is empty. Add copies. ST_EXISTS: the URL is there; ST_TOO_LARGE:
 * full. */
void discovery_set_fini(struct discovery_set *set);
MUST_USE enum status discovery_set_add(struct discovery_set *set,
                                       const struct discovery_worker *worker, struct error *err);

/* NULL: no worker has this URL. */
const struct discovery_worker *discovery_set_find(const struct discovery_set *set, const char *url);

/* Parses "key=value", a setting of a worker or a label. ST_INVALID names it. */
MUST_USE enum status discovery_worker_set(struct discovery_worker *worker, struct str setting,
                                          struct error *err);

/* Called with the whole set, which the source owns. */
typedef void discovery_fn(const struct discovery_set *set, void *arg);

struct discovery_stats {
    bool is_synced;                          /* a set has been reported */
    double stale_s;                          /* age of the set's last confirmation; 0: current */
    uint32_t n_used, n_draining, n_left_out; /* of the last set: usable, draining, ignored */
    uint64_t n_updates, n_refused;           /* sets reported; objects or answers rejected */
};

struct discovery_ops {
    const char *name;
    void (*reload)(struct discovery *d); /* SIGHUP; NULL: nothing to do */
    void (*stats)(struct discovery *d, struct discovery_stats *out); /* NULL: always in sync */
    void (*destroy)(struct discovery *d);
};

struct discovery { /* begins each source's own struct */
    const struct discovery_ops *ops;
};

void discovery_reload(struct discovery *d);  /* NULL is fine */
void discovery_destroy(struct discovery *d); /* NULL is fine */
void discovery_stats(struct discovery *d, struct discovery_stats *out);

/* Both report their first set before they return; an invalid set fails the start. */
struct discovery_static_lists {
    const struct option_list *urls;             /* --worker-urls */
    const struct option_list *prefill, *decode; /* of these roles; a number behind a URL is its
                                                 * bootstrap port, "none" is not */
};
MUST_USE enum status discovery_static_create(struct discovery **out,
                                             const struct discovery_static_lists *lists,
                                             discovery_fn *fn, void *arg, struct error *err);

/* One worker a line: its URL, then settings; '#' begins a comment.
 *
 *      http://10.0.0.7:8000  max_in_flight=64 zone=a     # two GPUs
 *      http://10.0.0.8:8000
 *
 * Read again on SIGHUP, and once a changed file has stayed the same for a second. A file that
 * cannot be read, or a line that is wrong, changes nothing; the log names the line and the
 * remedy. Better than writing into it: write another and rename it. */
MUST_USE enum status discovery_file_create(struct discovery **out, const char *path,
                                           struct loop *loop, struct log *log, discovery_fn *fn,
                                           void *arg, struct error *err);

/* The format itself; `name` is what messages call it. *out is zeroed before. */
MUST_USE enum status discovery_file_parse(struct str text, const char *name,
                                          struct discovery_set *out, struct error *err);

/* --- found, not named: their first set comes later, and until then nothing -------------------- */

#define DISCOVERY_DNS_POLL_US 5000000u

/* All addresses of "NAME:PORT", resolved every `poll_us` on a thread of its own. The last answer
 * stays until the next: a name server that is down, and a name that is not found, change nothing.
 * ST_INVALID: not NAME:PORT. */
MUST_USE enum status discovery_dns_create(struct discovery **out, const char *name_and_port,
                                          uint32_t max_workers, uint64_t poll_us, struct loop *loop,
                                          struct log *log, discovery_fn *fn, void *arg,
                                          struct error *err);

struct kube_config; /* discovery/kube_client.h */

struct discovery_kube_config { /* "" or NULL: not given; copied */
    const struct kube_config *server;
    int resource;                   /* enum kube_resource */
    const char *selector, *service; /* of pods; of endpoint slices */
    const char *pool;               /* InferencePool that selects the pods instead */
    const char *role_label;
    bool is_everywhere; /* in all namespaces */
    uint16_t port;      /* of pods that name none */
    uint32_t max_workers;
    /* Cost of losing a worker, >= 0, negative when unknown: written to its pod as
     * pod-deletion-cost. NULL: none is written. */
    double (*value)(const char *url, void *arg);
};

/* Fails for an invalid configuration, never because the server is unreachable. */
MUST_USE enum status discovery_kube_create(struct discovery **out,
                                           const struct discovery_kube_config *config,
                                           struct loop *loop, struct log *log, discovery_fn *fn,
                                           void *arg, struct error *err);

#endif
