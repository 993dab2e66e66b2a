/* router/fleet/discovery/kube_config.h - the part of a kubeconfig file that is needed to reach one
 * server.
 *
 *      current-context --▶ context --▶ cluster: server, authorities, TLS name
 *                              ├─────▶ user: token, tokenFile or client certificate
 *                              └─────▶ namespace
 *
 * Unsupported settings (a program for credentials, a password, a proxy, impersonation) are refused
 * with an alternative, never ignored. Pure. */
#ifndef ROUTER_FLEET_DISCOVERY_KUBE_CONFIG_H
#define ROUTER_FLEET_DISCOVERY_KUBE_CONFIG_H

#include "common/base/mem.h"
#include "common/base/status.h"

struct str;

/* NULL: absent. Paths are resolved against the folder of the file; PEM texts are decoded. */
struct kube_access {
    const char *server, *server_name, *namespace; /* server_name: for TLS, when not the host's */
    const char *ca_file, *ca_pem;
    const char *cert_file, *cert_pem, *key_file, *key_pem;
    const char *token, *token_file;
    bool is_insecure;
};

/* Reads the file `path`; context NULL or "": the current one. wants_user false: a token comes from
 * elsewhere, so the user is ignored. Zeroes *out first; its strings are in `memory`. ST_INVALID,
 * ST_NOT_FOUND, ST_UNSUPPORTED. */
MUST_USE enum status kube_config_read(struct kube_access *out, struct arena *memory,
                                      struct str text, const char *path, const char *context,
                                      bool wants_user, struct error *err);

#endif
