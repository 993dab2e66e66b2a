/* router/discovery/kube_client.h - where a Kubernetes API server is, and by what right we ask it.
 *
 * Inside a pod: KUBERNETES_SERVICE_HOST and the service account's files, which the kubelet swaps
 * before they expire: they are looked at before each call and once a minute, and read again when they
 * have changed. Elsewhere: --kubeconfig, or --k8s-api-server with --k8s-token-file and --k8s-ca-file.
 * Its own libcurl handle, on the control loop. Thread: control. */
#ifndef ROUTER_DISCOVERY_KUBE_CLIENT_H
#define ROUTER_DISCOVERY_KUBE_CLIENT_H

#include "common/http_client.h"
#include "common/status.h"

struct kube_client;
struct log;
struct loop;

struct kube_config { /* NULL or "": not given */
    const char *kubeconfig, *context;
    const char *api_server, *token_file, *ca_file;
    const char *namespace;
    uint32_t relist_ms; /* a full list at least so often; 0: 10 minutes */
};

/* ST_INVALID and ST_NOT_FOUND say what is missing and which option gives it. */
MUST_USE enum status kube_client_create(struct kube_client **out, struct loop *loop,
                                        struct log *log, const struct kube_config *config,
                                        struct error *err);
void kube_client_destroy(struct kube_client *c);

/* The namespace meant: given, or of the kubeconfig's context, or the pod's own, or "default". */
const char *kube_client_namespace(const struct kube_client *c);

/* A single call, PATCH or GET; headers for JSON and authorization are added. See http_client_start. */
MUST_USE enum status kube_client_call(struct kube_client *c, const char *method, const char *path,
                                      const char *content_type, struct str body, http_client_fn *fn,
                                      void *arg, struct http_call **call, struct error *err);

#endif
