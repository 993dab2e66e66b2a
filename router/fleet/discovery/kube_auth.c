/* router/fleet/discovery/kube_auth.c - three sources into one set of credentials, and the token's
 * file. */
#include "router/fleet/discovery/kube_auth.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/file.h"
#include "common/base/mem.h"
#include "common/http/http_fetch.h"
#include "common/net/tls.h"
#include "common/telemetry/log.h"
#include "router/fleet/discovery/kube_client.h"
#include "router/fleet/discovery/kube_config.h"

#define MAX_TOKEN_BYTES     (64u << 10)
#define MAX_CONFIG_BYTES    (1u << 20)
#define MAX_NAMESPACE_BYTES 63u /* of a label in DNS */

#define BEARER "Authorization: Bearer "

struct kube_auth {
    struct log *log;
    struct arena memory;
    struct kube_access access;
    char *server, *connect_to;
    char *header;     /* with the token */
    struct stat seen; /* state of the token's file when it was read */
};

static bool is_given(const char *s) {
    return s && s[0];
}

static const char *folder_file(struct kube_auth *a, const char *folder, const char *name) {
    size_t n = strlen(folder) + 1 + strlen(name) + 1;
    char *path = arena_alloc(&a->memory, n);

    snprintf(path, n, "%s/%s", folder, name);
    return path;
}

/* --- the token's file ------------------------------------------------------------------------- */

/* It goes into a header line. */
static bool is_token(struct str s) {
    for (size_t i = 0; i < s.len; i++) {
        if (s.ptr[i] <= ' ' || s.ptr[i] > '~') return false;
    }
    return s.len > 0;
}

static struct str trim_lines(struct str s) {
    while (s.len && memchr(" \t\r\n", s.ptr[s.len - 1], 4))
        s.len--;
    while (s.len && memchr(" \t\r\n", s.ptr[0], 4)) {
        s.ptr++;
        s.len--;
    }
    return s;
}

static enum status take_token(struct kube_auth *a, struct str token, const char *from,
                              struct error *err) {
    size_t n = sizeof(BEARER) + token.len;
    char *header;

    if (!is_token(token)) {
        return error_set(err, ST_INVALID,
                         "invalid token file %s, which holds %s: write one token into it", from,
                         token.len ? "bytes that no token has" : "nothing");
    }
    header = mem_alloc(n);
    snprintf(header, n, BEARER STR_FMT, STR_ARG(token));
    if (a->header && strcmp(a->header, header) != 0) {
        log_event(a->log, LOG_INFO, "kube_token_read", log_z("from", from));
    }
    mem_free(a->header);
    a->header = header;
    return ST_OK;
}

static enum status read_token(struct kube_auth *a, struct error *err) {
    const char *path = a->access.token_file;
    struct stat now = {0};
    char *text = NULL;
    enum status st;
    size_t n;

    if (stat(path, &now) != 0)
        now = (struct stat){0}; /* before reading: a later change is seen next time */
    st = file_read(path, MAX_TOKEN_BYTES, &text, &n, err);
    if (st == ST_OK) st = take_token(a, trim_lines((struct str){text, n}), path, err);
    mem_free(text);
    a->seen = now;
    return st;
}

static bool looks_the_same(const struct stat *a, const struct stat *b) {
    return a->st_ino == b->st_ino && a->st_dev == b->st_dev && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

void kube_auth_look(struct kube_auth *a, bool must) {
    struct error err = {0};
    struct stat now = {0};

    if (!a->access.token_file) return;
    if (stat(a->access.token_file, &now) != 0) now = (struct stat){0};
    if (!must && looks_the_same(&now, &a->seen)) return;
    if (read_token(a, &err) == ST_OK) return;
    log_event(a->log, LOG_WARN, "kube_token_unreadable", log_z("why", err.message),
              log_z("remedy",
                    "the token of before is used on: mend the file, it is read again when "
                    "it changes"));
}

const char *kube_auth_header(const struct kube_auth *a) {
    return a->header;
}

/* --- where from ------------------------------------------------------------------------------- */

static const char *account_folder(const struct kube_config *config) {
    return is_given(config->account_folder) ? config->account_folder : KUBE_ACCOUNT_FOLDER;
}

static enum status read_kubeconfig(struct kube_auth *a, const struct kube_config *config,
                                   struct error *err) {
    char *text = NULL;
    enum status st;
    size_t n;

    st = file_read(config->kubeconfig, MAX_CONFIG_BYTES, &text, &n, err);
    if (st != ST_OK) return error_prefix(err, "--kubeconfig");
    st = kube_config_read(&a->access, &a->memory, (struct str){text, n}, config->kubeconfig,
                          config->context, !is_given(config->token_file), err);
    mem_free(text);
    return st == ST_OK ? ST_OK : error_prefix(err, "--kubeconfig");
}

/* The pod's own API server, from the environment. */
static enum status read_account(struct kube_auth *a, const struct kube_config *config,
                                struct error *err) {
    const char *folder = account_folder(config);
    const char *host = getenv("KUBERNETES_SERVICE_HOST"), *port = getenv("KUBERNETES_SERVICE_PORT");
    char *server;
    size_t n;

    if (!is_given(host)) {
        return error_set(err, ST_NOT_FOUND,
                         "no Kubernetes API server is configured, and KUBERNETES_SERVICE_HOST is "
                         "unset, so this is no pod: give --kubeconfig ~/.kube/config, or "
                         "--k8s-api-server URL with --k8s-token-file and --k8s-ca-file");
    }
    n = strlen(host) + 32;
    server = arena_alloc(&a->memory, n);
    snprintf(server, n, strchr(host, ':') ? "https://[%s]:%.10s" : "https://%s:%.10s", host,
             is_given(port) ? port : "443");
    a->access.server = server;
    a->access.token_file = folder_file(a, folder, "token");
    a->access.ca_file = folder_file(a, folder, "ca.crt");
    if (is_given(config->token_file) || file_exists(a->access.token_file)) return ST_OK;
    return error_set(
        err, ST_NOT_FOUND,
        "this pod has no service account token (%s): set automountServiceAccountToken: "
        "true and a serviceAccountName, or give --k8s-token-file",
        a->access.token_file);
}

/* The pod's own namespace is valid for any server. */
static const char *own_namespace(struct kube_auth *a, const struct kube_config *config) {
    const char *path = folder_file(a, account_folder(config), "namespace"), *namespace = NULL;
    char *text = NULL;
    struct str s;
    size_t n;

    if (file_read(path, 2 * MAX_NAMESPACE_BYTES, &text, &n, NULL) != ST_OK) return NULL;
    s = trim_lines((struct str){text, n});
    namespace = arena_strndup(&a->memory, s.ptr, s.len);
    mem_free(text);
    return namespace;
}

static void apply_options(struct kube_auth *a, const struct kube_config *config) {
    struct kube_access *access = &a->access;

    if (is_given(config->api_server)) access->server = config->api_server;
    if (is_given(config->ca_file)) {
        access->ca_file = arena_strndup(&a->memory, config->ca_file, strlen(config->ca_file));
        access->ca_pem = NULL;
        access->is_insecure = false;
    }
    if (is_given(config->token_file)) {
        access->token_file =
            arena_strndup(&a->memory, config->token_file, strlen(config->token_file));
    }
    if (is_given(config->namespace)) {
        access->namespace = arena_strndup(&a->memory, config->namespace, strlen(config->namespace));
    }
    if (!is_given(access->namespace)) access->namespace = own_namespace(a, config);
    if (!is_given(access->namespace)) access->namespace = "default";
}

/* --- checks ----------------------------------------------------------------------------------- */

/* The URL without final slashes. With a separate TLS name the URL has that name, and connections go
 * to the host. */
static enum status take_server(struct kube_auth *a, struct error *err) {
    const char *url = a->access.server, *name = a->access.server_name, *host, *path;
    struct http_origin origin;
    enum status st;
    size_t n;

    if (!is_given(url)) {
        return error_set(err, ST_INVALID,
                         "the kubeconfig's cluster has no server: give --k8s-api-server");
    }
    st = http_origin_of(&origin, url, err);
    if (st != ST_OK) return error_prefix(err, "the Kubernetes API server");
    if (!origin.is_https && !origin.is_loopback) {
        return error_set(err, ST_INVALID,
                         "the Kubernetes API server %s would receive the token in plain text: use "
                         "https:// (http:// is for kubectl proxy on loopback)",
                         origin.text);
    }
    host = strstr(url, "://");
    host = host ? host + 3 : url;
    path = host + strcspn(host, "/?#");
    if (path[strcspn(path, "?#")]) {
        return error_set(err, ST_INVALID,
                         "the Kubernetes API server's URL %s has a query or a fragment: give "
                         "https://host:port or https://host/path",
                         origin.text);
    }
    n = strlen(origin.text) + (name ? strlen(name) : 0) + strlen(path) + 32;
    a->server = mem_alloc(n);
    if (name && origin.is_https) {
        const char *port = strrchr(origin.text, ':');

        a->connect_to = mem_strdup(origin.text + strlen("https://"));
        snprintf(a->server, n, "https://%s%s%s", name, port, path);
    } else {
        snprintf(a->server, n, "%s%s", origin.text, path);
    }
    for (n = strlen(a->server); n && a->server[n - 1] == '/';)
        a->server[--n] = '\0';
    return ST_OK;
}

/* It goes into paths. */
static enum status check_namespace(const char *namespace, struct error *err) {
    size_t n = strspn(namespace, "abcdefghijklmnopqrstuvwxyz0123456789-");

    if (n > 0 && n <= MAX_NAMESPACE_BYTES && !namespace[n]) return ST_OK;
    return error_set(err, ST_INVALID,
                     "invalid namespace '%.80s': give up to %u small letters, digits and hyphens "
                     "with --k8s-namespace",
                     namespace, MAX_NAMESPACE_BYTES);
}

static enum status check_file(const char *path, const char *what, const char *option,
                              struct error *err) {
    struct stat s;

    if (!path || stat(path, &s) == 0) return ST_OK;
    return error_set(err, ST_NOT_FOUND, "cannot read %s %s: give another with %s", what, path,
                     option);
}

/* Reads the files once to report errors; the client reads them for each connection. */
static enum status check_tls(const struct kube_access *access, struct error *err) {
    struct tls_config config = {.is_insecure = access->is_insecure};
    struct tls *tls = NULL;
    enum status st;

    if (!access->ca_pem) config.ca = access->ca_file;
    if (!access->cert_pem && !access->key_pem) {
        config.cert = access->cert_file;
        config.key = access->key_file;
    }
    if (!config.ca && !config.cert) return ST_OK;
    st = tls_create(&tls, &config, err);
    tls_destroy(tls);
    return st;
}

static enum status check_credentials(struct kube_auth *a, struct error *err) {
    struct kube_access *access = &a->access;
    enum status st = check_file(access->ca_file, "the file of authorities", "--k8s-ca-file", err);

    if (st == ST_OK && access->token_file) {
        st = read_token(a, err);
        if (st != ST_OK) return error_prefix(err, "--k8s-token-file");
    } else if (st == ST_OK && access->token) {
        st = take_token(a, str_of(access->token), "the user of the kubeconfig", err);
    }
    if (st == ST_OK && !access->cert_pem) {
        st = check_file(access->cert_file, "the client certificate", "--kubeconfig", err);
    }
    if (st == ST_OK && !access->key_pem) {
        st = check_file(access->key_file, "the key", "--kubeconfig", err);
    }
    return st == ST_OK ? check_tls(access, err) : st;
}

/* --- all of it -------------------------------------------------------------------------------- */

enum status kube_auth_create(struct kube_auth **out, const struct kube_config *config,
                             struct log *log, struct error *err) {
    struct kube_auth *a = mem_zalloc(sizeof(*a));
    enum status st = ST_OK;

    a->log = log;
    arena_init(&a->memory, 0);
    if (is_given(config->kubeconfig)) {
        st = read_kubeconfig(a, config, err);
    } else if (!is_given(config->api_server)) {
        st = read_account(a, config, err);
    }
    if (st != ST_OK) goto fail;
    apply_options(a, config);
    st = check_namespace(a->access.namespace, err);
    if (st == ST_OK) st = take_server(a, err);
    if (st == ST_OK) st = check_credentials(a, err);
    if (st != ST_OK) goto fail;
    if (a->access.is_insecure) {
        log_event(log, LOG_WARN, "kube_insecure", log_z("server", a->server),
                  log_z("remedy", "any host can pose as this server: put certificate-authority in "
                                  "the place of insecure-skip-tls-verify, or give --k8s-ca-file"));
    }
    *out = a;
    return ST_OK;
fail:
    kube_auth_destroy(a);
    return st;
}

void kube_auth_destroy(struct kube_auth *a) {
    if (!a) return;
    mem_free(a->server);
    mem_free(a->connect_to);
    mem_free(a->header);
    arena_fini(&a->memory);
    mem_free(a);
}

const char *kube_auth_server(const struct kube_auth *a) {
    return a->server;
}

const char *kube_auth_connect_to(const struct kube_auth *a) {
    return a->connect_to;
}

const char *kube_auth_namespace(const struct kube_auth *a) {
    return a->access.namespace;
}

/* PEM text precedes a file, as in kubectl. */
struct http_client_trust kube_auth_trust(const struct kube_auth *a) {
    const struct kube_access *access = &a->access;

    return (struct http_client_trust){.ca = access->ca_file,
                                      .cert = access->cert_file,
                                      .key = access->key_file,
                                      .ca_pem = str_of(access->ca_pem),
                                      .cert_pem = str_of(access->cert_pem),
                                      .key_pem = str_of(access->key_pem),
                                      .is_insecure = access->is_insecure};
}
