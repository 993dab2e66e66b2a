/* router/fleet/discovery/kube_config.c - lookups by name in a YAML tree. */
#include "router/fleet/discovery/kube_config.h"

#include "common/base/buf.h"
#include "common/text/yaml_tree.h"

struct reader {
    struct yaml_tree *tree;
    struct arena *memory;
    const char *path;
    struct error *err;
};

/* --- parts ------------------------------------------------------------------------------------ */

/* NULL when it is absent, null or "". */
static const char *text_at(struct reader *r, int mapping, const char *key) {
    struct str s = yaml_tree_str(r->tree, yaml_tree_get(r->tree, mapping, key));

    return s.len ? arena_strndup(r->memory, s.ptr, s.len) : NULL;
}

/* Resolves paths against the file's folder. */
static const char *path_at(struct reader *r, int mapping, const char *key) {
    const char *name = text_at(r, mapping, key), *slash = strrchr(r->path, '/');
    size_t n_folder = slash ? (size_t)(slash - r->path) + 1 : 0, n;
    char *path;

    if (!name || name[0] == '/' || n_folder == 0) return name;
    n = n_folder + strlen(name) + 1;
    path = arena_alloc(r->memory, n);
    memcpy(path, r->path, n_folder);
    memcpy(path + n_folder, name, strlen(name) + 1);
    return path;
}

static int base64_value(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Terminated; NULL when it is not base64. Line breaks are passed over. */
static const char *decode_base64(struct arena *memory, const char *s) {
    char *out = arena_alloc(memory, strlen(s) / 4 * 3 + 4), *to = out;
    uint32_t bits = 0, n_bits = 0;

    for (; *s && *s != '='; s++) {
        int v = base64_value(*s);

        if (*s == '\n' || *s == '\r' || *s == ' ') continue;
        if (v < 0) return NULL;
        bits = (bits << 6 | (uint32_t)v) & 0xFFFFFF;
        n_bits += 6;
        if (n_bits < 8) continue;
        n_bits -= 8;
        *to++ = (char)(bits >> n_bits & 0xFF);
    }
    return s[strspn(s, "=\r\n ")] ? NULL : out;
}

static enum status pem_at(struct reader *r, int mapping, const char *key, const char **out) {
    const char *text = text_at(r, mapping, key);

    if (!text) return ST_OK;
    *out = decode_base64(r->memory, text);
    if (*out && strstr(*out, "-----BEGIN ")) return ST_OK;
    return error_set(
        r->err, ST_INVALID,
        "%s: %s is not PEM text in base64: encode the file with base64 -w0, or name it "
        "without -data",
        r->path, key);
}

/* The entry of this name in the list `clusters`, `users` or `contexts`: its part `inner`. */
static enum status find_entry(struct reader *r, const char *list, const char *inner,
                              const char *name, int *out) {
    int root = yaml_tree_root(r->tree), entries = yaml_tree_get(r->tree, root, list), entry;

    for (uint32_t i = 0; (entry = yaml_tree_item(r->tree, entries, i)) != 0; i++) {
        struct str is = yaml_tree_str(r->tree, yaml_tree_get(r->tree, entry, "name"));

        if (!str_eq(is, str_of(name))) continue;
        *out = yaml_tree_get(r->tree, entry, inner);
        return ST_OK;
    }
    return error_set(r->err, ST_NOT_FOUND,
                     "%s: '%s' is missing among its %s: add it, or give another name", r->path,
                     name, list);
}

/* --- cluster, user, context ------------------------------------------------------------------- */

static enum status read_cluster(struct reader *r, int cluster, struct kube_access *out) {
    struct str skip =
        yaml_tree_str(r->tree, yaml_tree_get(r->tree, cluster, "insecure-skip-tls-verify"));

    if (text_at(r, cluster, "proxy-url")) {
        return error_set(
            r->err, ST_UNSUPPORTED,
            "%s: its cluster has a proxy-url, which is unsupported: run where the server is "
            "reachable directly, or give kubectl proxy with --k8s-api-server http://127.0.0.1:8001",
            r->path);
    }
    out->server = text_at(r, cluster, "server");
    out->server_name = text_at(r, cluster, "tls-server-name");
    out->ca_file = path_at(r, cluster, "certificate-authority");
    out->is_insecure = str_eq_nocase(skip, STR("true"));
    return pem_at(r, cluster, "certificate-authority-data", &out->ca_pem);
}

static enum status refuse_program(struct reader *r, const char *name, const char *program) {
    return error_set(
        r->err, ST_UNSUPPORTED,
        "%s: the credentials of user '%s' come from a program (%s), which is unsupported: create a "
        "token with kubectl create token NAME --duration 24h > FILE and give --k8s-token-file FILE",
        r->path, name, program);
}

static enum status refuse_user(struct reader *r, const char *name, const char *what) {
    return error_set(r->err, ST_UNSUPPORTED,
                     "%s: user '%s' has %s, which is unsupported: use a token or a client "
                     "certificate, or give --k8s-token-file",
                     r->path, name, what);
}

/* Unsupported credentials, unless there are others beside them. */
static enum status check_user(struct reader *r, int user, const char *name,
                              const struct kube_access *out) {
    static const char *const others[] = {"as", "as-uid", "as-groups", "as-user-extra"};
    int exec = yaml_tree_get(r->tree, user, "exec");
    int provider = yaml_tree_get(r->tree, user, "auth-provider");
    const char *program;

    for (size_t i = 0; i < ARRAY_LEN(others); i++) {
        if (yaml_tree_get(r->tree, user, others[i])) return refuse_user(r, name, others[i]);
    }
    if (out->token || out->token_file) return ST_OK;
    if (exec) {
        program = text_at(r, exec, "command");
        return refuse_program(r, name, program ? program : "exec");
    }
    if (provider) {
        program = text_at(r, provider, "name");
        return refuse_program(r, name, program ? program : "auth-provider");
    }
    if (out->cert_file || out->cert_pem) return ST_OK;
    if (yaml_tree_get(r->tree, user, "username")) return refuse_user(r, name, "a password");
    return ST_OK;
}

static enum status read_user(struct reader *r, int user, const char *name,
                             struct kube_access *out) {
    enum status st;

    out->token = text_at(r, user, "token");
    out->token_file = path_at(r, user, "tokenFile");
    out->cert_file = path_at(r, user, "client-certificate");
    out->key_file = path_at(r, user, "client-key");
    st = pem_at(r, user, "client-certificate-data", &out->cert_pem);
    if (st == ST_OK) st = pem_at(r, user, "client-key-data", &out->key_pem);
    if (st == ST_OK) st = check_user(r, user, name, out);
    if (st == ST_OK && !(out->cert_file || out->cert_pem) != !(out->key_file || out->key_pem)) {
        st = error_set(r->err, ST_INVALID,
                       "%s: user '%s' has only one of client certificate and key: give both, "
                       "client-certificate(-data) and client-key(-data)",
                       r->path, name);
    }
    return st;
}

static enum status read_context(struct reader *r, const char *context, bool wants_user,
                                struct kube_access *out) {
    const char *cluster, *user;
    enum status st;
    int node = 0;

    if (!context) {
        return error_set(r->err, ST_INVALID,
                         "%s has no current-context: give one with --kube-context", r->path);
    }
    st = find_entry(r, "contexts", "context", context, &node);
    if (st != ST_OK) return st;
    cluster = text_at(r, node, "cluster");
    user = text_at(r, node, "user");
    out->namespace = text_at(r, node, "namespace");
    if (!cluster) {
        return error_set(r->err, ST_INVALID,
                         "%s: context '%s' has no cluster: add one, or give another --kube-context",
                         r->path, context);
    }
    st = find_entry(r, "clusters", "cluster", cluster, &node);
    if (st == ST_OK) st = read_cluster(r, node, out);
    if (st != ST_OK || !user || !wants_user) return st;
    st = find_entry(r, "users", "user", user, &node);
    return st == ST_OK ? read_user(r, node, user, out) : st;
}

enum status kube_config_read(struct kube_access *out, struct arena *memory, struct str text,
                             const char *path, const char *context, bool wants_user,
                             struct error *err) {
    struct reader r = {.memory = memory, .path = path, .err = err};
    enum status st = yaml_tree_parse(&r.tree, text, err);

    if (st != ST_OK) {
        (void)error_prefix(err, "%s", path);
        return st;
    }
    if (!context || !context[0]) {
        context = text_at(&r, yaml_tree_root(r.tree), "current-context");
    }
    st = read_context(&r, context, wants_user, out);
    yaml_tree_destroy(r.tree);
    return st;
}
