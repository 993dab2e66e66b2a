/* router/fleet/discovery/kube_client.h - a Kubernetes API server and the credentials for it.
 *
 * Inside a pod: KUBERNETES_SERVICE_HOST and the service account's files, which the kubelet replaces
 * before they expire. Elsewhere: --kubeconfig, or --k8s-api-server with --k8s-token-file and
 * --k8s-ca-file, which also replace single parts of the other two.
 *
 * The token's file is checked before each request and once a minute, and read again when it has
 * changed; authorities are read for each new connection. So new requests use current credentials,
 * and open ones go on.
 *
 * Its own libcurl handle, on the control loop. HTTP/1.1; http:// only to loopback (kubectl proxy).
 * Thread: control. */
#ifndef ROUTER_FLEET_DISCOVERY_KUBE_CLIENT_H
#define ROUTER_FLEET_DISCOVERY_KUBE_CLIENT_H

#include "common/base/status.h"
#include "common/http/http_client.h"

struct kube_client;
struct log;
struct loop;

/* 0: the default in brackets. */
struct kube_intervals {
    uint32_t relist_ms;  /* [600000] a full list at least so often, give or take a fifth */
    uint32_t silence_ms; /* a watch without a byte for so long is closed */
    uint32_t watch_ms;   /* [300000] the server is asked to end a watch after 1 to 2 times this */
    uint32_t backoff_ms; /* [500] the first delay is at most this, each further one twice ... */
    uint32_t
        backoff_max_ms;  /* [30000] ... up to this, and to a quarter of the time without success */
    uint32_t healthy_ms; /* [60000] a watch that lasted so long makes the next delay a first */
    uint32_t look_ms;    /* [60000] at the token's file, without a request */
};

struct kube_config { /* NULL or "": not given */
    const char *kubeconfig, *context;
    const char *api_server, *token_file, *ca_file;
    const char *namespace;
    const char *account_folder; /* a pod's service account; NULL: where the kubelet puts it */
    struct kube_intervals intervals;
};

/* On ST_INVALID, ST_NOT_FOUND and ST_UNSUPPORTED err names what is missing and the option that
 * gives it. */
MUST_USE enum status kube_client_create(struct kube_client **out, struct loop *loop,
                                        struct log *log, const struct kube_config *config,
                                        struct error *err);

/* After its watches. Cancels calls in flight without callbacks. NULL is fine. */
void kube_client_destroy(struct kube_client *c);

/* The namespace: of the option, the kubeconfig's context or the pod, else "default". */
const char *kube_client_namespace(const struct kube_client *c);
const char *kube_client_server(const struct kube_client *c); /* "https://10.0.0.1:443" */

/* A single call, PATCH or GET; headers for JSON and authorization are added. See http_client_start.
 * `path` begins with '/' and may have a query, encoded (kube_client_encode). */
MUST_USE enum status kube_client_call(struct kube_client *c, const char *method, const char *path,
                                      const char *content_type, struct str body, http_client_fn *fn,
                                      void *arg, struct http_call **call, struct error *err);

/* A GET whose answer is delivered in pieces, whatever its code; ST_TIMEOUT after silence_ms. */
MUST_USE enum status kube_client_stream(struct kube_client *c, const char *path,
                                        uint32_t silence_ms, http_client_data_fn *on_data,
                                        http_client_fn *fn, void *arg, struct http_call **call,
                                        struct error *err);

/* After a 401: reads the token again even if its file seems unchanged. */
void kube_client_refused(struct kube_client *c);

/* Appends `s` as part of a query: all but letters, digits and "-._~" as %XX. */
void kube_client_encode(struct buf *out, struct str s);

/* For watches. Intervals have their defaults in. */
const struct kube_intervals *kube_client_intervals(const struct kube_client *c);
struct loop *kube_client_loop(const struct kube_client *c);
struct log *kube_client_log(const struct kube_client *c);

#endif
