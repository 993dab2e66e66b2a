/* router/fleet/discovery/kube_auth.h - credentials for an API server, and the authorities it is
 * verified by.
 *
 *      given by option          kubeconfig                  a pod's service account
 *      --k8s-api-server    or   cluster.server         or   KUBERNETES_SERVICE_HOST, _PORT
 *      --k8s-ca-file       or   certificate-authority  or   ca.crt
 *      --k8s-token-file    or   token, client-cert     or   token
 *      --k8s-namespace     or   context.namespace      or   namespace
 *
 * The left column wins, part by part; of the others the first that is complete. An account's token
 * is sent to the account's own server only: --k8s-api-server without a kubeconfig uses its
 * namespace alone.
 *
 * The kubelet replaces a token's file at four fifths of the token's life. A check costs a stat(2);
 * while a file is unreadable the old token stays. Thread: control. */
#ifndef ROUTER_FLEET_DISCOVERY_KUBE_AUTH_H
#define ROUTER_FLEET_DISCOVERY_KUBE_AUTH_H

#include "common/http/http_client.h"

#define KUBE_ACCOUNT_FOLDER "/var/run/secrets/kubernetes.io/serviceaccount"

struct kube_auth;
struct kube_config;
struct log;

/* Each error names the option that helps. */
MUST_USE enum status kube_auth_create(struct kube_auth **out, const struct kube_config *config,
                                      struct log *log, struct error *err);
void kube_auth_destroy(struct kube_auth *a); /* NULL is fine */

const char *kube_auth_server(const struct kube_auth *a);     /* "https://10.0.0.1:443/base" */
const char *kube_auth_connect_to(const struct kube_auth *a); /* see http_client_request; or NULL */
const char *kube_auth_namespace(const struct kube_auth *a);
struct http_client_trust kube_auth_trust(const struct kube_auth *a); /* lives with `a` */

/* Reads the token again when its file has changed, or always with must_read. */
void kube_auth_look(struct kube_auth *a, bool must);

/* "Authorization: Bearer ..."; NULL: no token. Valid until the token is read again. */
const char *kube_auth_header(const struct kube_auth *a);

#endif
