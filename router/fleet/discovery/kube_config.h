/* router/fleet/discovery/kube_config.h - a kubeconfig file, as far as it says how to reach one server.
 *
 *      current-context --▶ context --▶ cluster: server, authorities, TLS name
 *                              ├─────▶ user: token, tokenFile or client certificate
 *                              └─────▶ namespace
 *
 * What cannot be done is refused with what to do instead, never left out: a program that is to be run
 * for credentials, a password, a proxy, acting as somebody else. Pure. */
#ifndef ROUTER_FLEET_DISCOVERY_KUBE_CONFIG_H
#define ROUTER_FLEET_DISCOVERY_KUBE_CONFIG_H

#include "common/base/mem.h"
#include "common/base/status.h"

struct str;

/* NULL: not said. Paths are resolved against the folder of the file; PEM texts are decoded. */
struct kube_access {
    const char *server, *server_name, *namespace; /* server_name: for TLS, when not the host's */
    const char *ca_file, *ca_pem;
    const char *cert_file, *cert_pem, *key_file, *key_pem;
    const char *token, *token_file;
    bool is_insecure;
};

/* `path` names the file, in messages too; context NULL or "": the current one. wants_user false: a
 * token comes from elsewhere, so what the file says of the user is not looked at. *out is zeroed
 * before; what it points to is in `memory`. ST_INVALID, ST_NOT_FOUND, ST_UNSUPPORTED. */
MUST_USE enum status kube_config_read(struct kube_access *out, struct arena *memory,
                                      struct str text, const char *path, const char *context,
                                      bool wants_user, struct error *err);

#endif
