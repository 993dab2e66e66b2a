/* tests/unit/router/fleet/test_kube_client.c - where the server is, and what is shown to it: every
 * form of credentials against a server that looks at them. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/mem.h"
#include "common/http/http_server.h"
#include "common/net/loop.h"
#include "common/net/tls.h"
#include "router/fleet/discovery/kube_auth.h"
#include "router/fleet/discovery/kube_client.h"
#include "router/fleet/discovery/kube_config.h"
#include "tests/support/certs.h"
#include "tests/support/cm.h"

/* A folder with certificates, and files written by the test. */
struct fixture {
    struct certs certs;
    struct loop *loop;
    struct http_server *server;
    struct tls *tls;
    char target[300], token[300], type[100], body[100], method[16];
    int code; /* of the last answer; 0: none, -1: no answer came */
    char message[300];
};

static void on_request(struct http_request *req, void *arg) {
    struct fixture *fx = arg;

    snprintf(fx->target, sizeof(fx->target), STR_FMT, STR_ARG(req->target));
    snprintf(fx->method, sizeof(fx->method), STR_FMT, STR_ARG(req->method_name));
    snprintf(fx->body, sizeof(fx->body), STR_FMT, STR_ARG(req->body));
    snprintf(fx->token, sizeof(fx->token), STR_FMT,
             STR_ARG(http_request_header(req, STR("authorization"))));
    snprintf(fx->type, sizeof(fx->type), STR_FMT,
             STR_ARG(http_request_header(req, STR("content-type"))));
    http_reply(req, 200, "application/json", STR("{}"));
}

static const struct http_server_events events = {.on_request = on_request};

static void init(struct fixture *fx, bool wants_client_cert) {
    struct tls_config config = {.is_server = true};
    char cert[160], key[160], ca[160];

    memset(fx, 0, sizeof(*fx));
    certs_init(&fx->certs);
    certs_make(&fx->certs,
               &(struct certs_spec){.name = "a", .host = "kube.test", .address = "127.0.0.1"});
    certs_make(&fx->certs, &(struct certs_spec){.name = "other", .is_self_signed = true});
    certs_write(&fx->certs, "token", " abc.def\n");
    assert_int_equal(loop_create(&fx->loop, NULL), ST_OK);
    fx->server = http_server_create(fx->loop, NULL, &events, fx);
    snprintf(cert, sizeof(cert), "%s", certs_path(&fx->certs, "a.pem"));
    snprintf(key, sizeof(key), "%s", certs_path(&fx->certs, "a.key"));
    snprintf(ca, sizeof(ca), "%s", certs_path(&fx->certs, "ca.pem"));
    config.cert = cert;
    config.key = key;
    if (wants_client_cert) config.ca = ca;
    assert_int_equal(tls_create(&fx->tls, &config, NULL), ST_OK);
    assert_int_equal(http_server_listen_tls(fx->server, fx->tls, "127.0.0.1", 0, false, NULL),
                     ST_OK);
}

static void finish(struct fixture *fx) {
    http_server_destroy(fx->server);
    tls_destroy(fx->tls);
    loop_destroy(fx->loop);
    certs_fini(&fx->certs);
}

static void on_answer(const struct http_client_response *r, void *arg) {
    struct fixture *fx = arg;

    fx->code = r->status == ST_OK ? r->code : -1;
    snprintf(fx->message, sizeof(fx->message), "%s", r->message);
}

static int call(struct fixture *fx, struct kube_client *c) {
    uint64_t until_us = clock_now_us() + 10000000u;

    fx->code = 0;
    assert_int_equal(
        kube_client_call(c, "GET", "/version?a=b", NULL, STR_NULL, on_answer, fx, NULL, NULL),
        ST_OK);
    while (fx->code == 0) {
        loop_turn(fx->loop, 10000);
        assert_true(clock_now_us() < until_us);
    }
    return fx->code;
}

/* One call with this configuration. */
static int call_once(struct fixture *fx, const struct kube_config *config) {
    struct kube_client *c = NULL;
    struct error err = {0};
    int code;

    if (kube_client_create(&c, fx->loop, NULL, config, &err) != ST_OK) fail_msg("%s", err.message);
    code = call(fx, c);
    kube_client_destroy(c);
    return code;
}

/* --- kubeconfig ------------------------------------------------------------------------------- */

static char *base64_of(const struct fixture *fx, const char *name) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char *text, *out, *to;
    size_t n;

    assert_int_equal(file_read(certs_path(&fx->certs, name), 100000, &text, &n, NULL), ST_OK);
    to = out = mem_alloc((n + 2) / 3 * 4 + 1);
    for (size_t i = 0; i < n; i += 3) {
        uint32_t v = (uint32_t)(unsigned char)text[i] << 16 |
                     (i + 1 < n ? (uint32_t)(unsigned char)text[i + 1] << 8 : 0) |
                     (i + 2 < n ? (unsigned char)text[i + 2] : 0);

        *to++ = digits[v >> 18];
        *to++ = digits[v >> 12 & 63];
        *to++ = i + 1 < n ? digits[v >> 6 & 63] : '=';
        *to++ = i + 2 < n ? digits[v & 63] : '=';
    }
    *to = '\0';
    mem_free(text);
    return out;
}

/* Writes a kubeconfig whose cluster and user have these lines; returns its path. */
static const char *write_config(struct fixture *fx, const char *cluster, const char *user) {
    static char text[40000];

    snprintf(text, sizeof(text),
             "apiVersion: v1\nkind: Config\ncurrent-context: here\n"
             "contexts:\n- name: there\n  context: {cluster: none, user: none}\n"
             "- name: here\n  context:\n    cluster: c1\n    user: u1\n    namespace: team-a\n"
             "clusters:\n- name: c1\n  cluster:\n    server: https://127.0.0.1:%u\n%s"
             "users:\n- name: u1\n  user:\n    unknown-thing: {a: b}\n%s",
             http_server_port(fx->server), cluster, user);
    certs_write(&fx->certs, "config", text);
    return certs_path(&fx->certs, "config");
}

static void a_kubeconfig_may_name_files_or_hold_them(void **state) {
    struct fixture fx;
    char ca_line[8000], user_lines[16000], config[160];
    char *ca, *cert, *key;

    (void)state;
    init(&fx, true);
    ca = base64_of(&fx, "ca.pem");
    cert = base64_of(&fx, "a.pem");
    key = base64_of(&fx, "a.key");
    snprintf(ca_line, sizeof(ca_line), "    certificate-authority-data: %s\n", ca);
    snprintf(user_lines, sizeof(user_lines),
             "    client-certificate-data: %s\n    client-key-data: %s\n", cert, key);
    snprintf(config, sizeof(config), "%s", write_config(&fx, ca_line, user_lines));
    assert_int_equal(call_once(&fx, &(struct kube_config){.kubeconfig = config}), 200);
    assert_string_equal(fx.target, "/version?a=b");
    assert_string_equal(fx.token, "");

    /* Beside the file, so without a folder; text stands before a file. */
    (void)write_config(&fx, "    certificate-authority: ca.pem\n",
                       "    client-certificate: a.pem\n    client-key: a.key\n    token: t1\n");
    assert_int_equal(call_once(&fx, &(struct kube_config){.kubeconfig = config}), 200);
    assert_string_equal(fx.token, "Bearer t1");
    snprintf(ca_line, sizeof(ca_line),
             "    certificate-authority: other.pem\n    certificate-authority-data: %s\n", ca);
    (void)write_config(
        &fx, ca_line,
        "    client-certificate: a.pem\n    client-key: a.key\n    tokenFile: token\n");
    assert_int_equal(call_once(&fx, &(struct kube_config){.kubeconfig = config}), 200);
    assert_string_equal(fx.token, "Bearer abc.def");

    (void)write_config(&fx, "    certificate-authority: ca.pem\n", "    token: t1\n");
    assert_int_equal(call_once(&fx, &(struct kube_config){.kubeconfig = config}), -1);
    mem_free(ca);
    mem_free(cert);
    mem_free(key);
    finish(&fx);
}

static void the_server_must_be_verified(void **state) {
    struct fixture fx;
    char config[160], ca[160], server[64], line[8000], *other;

    (void)state;
    init(&fx, false);
    snprintf(ca, sizeof(ca), "%s", certs_path(&fx.certs, "ca.pem"));
    snprintf(config, sizeof(config), "%s",
             write_config(&fx, "    certificate-authority: other.pem\n", "    token: t\n"));
    assert_int_equal(call_once(&fx, &(struct kube_config){.kubeconfig = config}), -1);
    assert_true(fx.message[0]);
    assert_int_equal(call_once(&fx, &(struct kube_config){.kubeconfig = config, .ca_file = ca}),
                     200); /* an option replaces a part */
    other = base64_of(&fx, "other.pem");
    snprintf(line, sizeof(line), "    certificate-authority-data: %s\n", other);
    (void)write_config(&fx, line, "    token: t\n");
    assert_int_equal(call_once(&fx, &(struct kube_config){.kubeconfig = config, .ca_file = ca}),
                     200);
    mem_free(other);
    (void)write_config(&fx, "", "    token: t\n");
    assert_int_equal(call_once(&fx, &(struct kube_config){.kubeconfig = config}), -1);
    (void)write_config(&fx, "    insecure-skip-tls-verify: true\n", "    token: t\n");
    assert_int_equal(call_once(&fx, &(struct kube_config){.kubeconfig = config}), 200);

    /* Another name in the certificate than in the URL. */
    (void)write_config(&fx, "    certificate-authority: ca.pem\n    tls-server-name: kube.test\n",
                       "    token: t\n");
    assert_int_equal(call_once(&fx, &(struct kube_config){.kubeconfig = config}), 200);
    (void)write_config(&fx, "    certificate-authority: ca.pem\n    tls-server-name: bad.test\n",
                       "    token: t\n");
    assert_int_equal(call_once(&fx, &(struct kube_config){.kubeconfig = config}), -1);
    snprintf(server, sizeof(server), "https://127.0.0.2:%u", http_server_port(fx.server));
    assert_int_equal(call_once(&fx, &(struct kube_config){.api_server = server, .ca_file = ca}),
                     -1);
    finish(&fx);
}

static void authorities_are_read_for_each_new_connection(void **state) {
    struct fixture fx;
    char ca[160], server[64];
    struct kube_client *c;

    (void)state;
    init(&fx, false);
    certs_copy(&fx.certs, "other.pem", "rotated.pem");
    snprintf(ca, sizeof(ca), "%s", certs_path(&fx.certs, "rotated.pem"));
    snprintf(server, sizeof(server), "https://127.0.0.1:%u", http_server_port(fx.server));
    assert_int_equal(kube_client_create(&c, fx.loop, NULL,
                                        &(struct kube_config){.api_server = server, .ca_file = ca},
                                        NULL),
                     ST_OK);
    assert_int_equal(call(&fx, c), -1);
    certs_copy(&fx.certs, "ca.pem", "rotated.pem");
    assert_int_equal(call(&fx, c), 200);
    kube_client_destroy(c);
    finish(&fx);
}

static void unsupported_kubeconfig_entries_are_refused(void **state) {
    static const struct {
        const char *cluster, *user, *why;
    } cases[] = {
        {"", "    exec: {command: gke-gcloud-auth-plugin}\n", "gke-gcloud-auth-plugin"},
        {"", "    exec: {command: aws}\n", "kubectl create token"},
        {"", "    auth-provider: {name: oidc}\n", "oidc"},
        {"", "    username: u\n    password: p\n", "a password"},
        {"", "    token: t\n    as: system:admin\n", "has as"},
        {"", "    client-certificate: a.pem\n", "has only one of client certificate and key"},
        {"", "    client-certificate: /none.pem\n    client-key: a.key\n", "/none.pem"},
        {"", "    client-certificate-data: '####'\n", "base64"},
        {"", "    client-certificate-data: aGVsbG8=\n", "PEM"},
        {"", "    token: 'two words'\n", "bytes that no token has"},
        {"", "    tokenFile: none\n", "none"},
        {"    certificate-authority: none.pem\n", "    token: t\n", "none.pem"},
        {"    certificate-authority: token\n", "    token: t\n", "use a file of PEM"},
        {"", "    client-certificate: a.pem\n    client-key: other.key\n", "does not belong to"},
        {"    proxy-url: http://proxy:3128\n", "    token: t\n", "proxy-url"},
        {"    server: ''\n", "    token: t\n", NULL}, /* the second one does not count */
    };
    struct fixture fx;

    (void)state;
    init(&fx, false);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct kube_client *c = NULL;
        struct error err = {0};
        char config[160];

        snprintf(config, sizeof(config), "%s", write_config(&fx, cases[i].cluster, cases[i].user));
        if (!cases[i].why) {
            assert_int_equal(kube_client_create(&c, fx.loop, NULL,
                                                &(struct kube_config){.kubeconfig = config}, &err),
                             ST_OK);
            kube_client_destroy(c);
            continue;
        }
        assert_int_not_equal(kube_client_create(&c, fx.loop, NULL,
                                                &(struct kube_config){.kubeconfig = config}, &err),
                             ST_OK);
        if (!strstr(err.message, cases[i].why)) fail_msg("%s: %s", cases[i].why, err.message);
    }
    finish(&fx);
}

static void a_token_of_its_own_needs_no_user(void **state) {
    struct fixture fx;
    char config[160], token[160];

    (void)state;
    init(&fx, false);
    snprintf(token, sizeof(token), "%s", certs_path(&fx.certs, "token"));
    snprintf(
        config, sizeof(config), "%s",
        write_config(&fx, "    certificate-authority: ca.pem\n", "    exec: {command: aws}\n"));
    assert_int_equal(
        call_once(&fx, &(struct kube_config){.kubeconfig = config, .token_file = token}), 200);
    assert_string_equal(fx.token, "Bearer abc.def");
    finish(&fx);
}

static void contexts_are_chosen_by_name(void **state) {
    static const char *const no_namespaces[] = {
        "team a", "../kube-system", "a/pods?",
        "one-that-is-longer-than-a-label-in-the-domain-name-system-may-be"};
    struct fixture fx;
    struct kube_client *c = NULL;
    struct error err = {0};
    char config[160];

    (void)state;
    init(&fx, false);
    snprintf(config, sizeof(config), "%s", write_config(&fx, "", "    token: t\n"));
    assert_int_equal(
        kube_client_create(&c, fx.loop, NULL, &(struct kube_config){.kubeconfig = config}, &err),
        ST_OK);
    assert_string_equal(kube_client_namespace(c), "team-a");
    kube_client_destroy(c);
    assert_int_equal(
        kube_client_create(&c, fx.loop, NULL,
                           &(struct kube_config){.kubeconfig = config, .namespace = "mine"}, &err),
        ST_OK);
    assert_string_equal(kube_client_namespace(c), "mine");
    kube_client_destroy(c);
    for (size_t i = 0; i < ARRAY_LEN(no_namespaces); i++) {
        assert_int_equal(kube_client_create(&c, fx.loop, NULL,
                                            &(struct kube_config){.kubeconfig = config,
                                                                  .namespace = no_namespaces[i]},
                                            &err),
                         ST_INVALID);
        assert_non_null(strstr(err.message, "--k8s-namespace"));
    }
    assert_int_equal(
        kube_client_create(&c, fx.loop, NULL,
                           &(struct kube_config){.kubeconfig = config, .context = "there"}, &err),
        ST_NOT_FOUND);
    assert_non_null(strstr(err.message, "'none' is missing among its clusters"));
    assert_int_equal(
        kube_client_create(&c, fx.loop, NULL,
                           &(struct kube_config){.kubeconfig = config, .context = "where"}, &err),
        ST_NOT_FOUND);
    certs_write(&fx.certs, "config", "apiVersion: v1\n");
    assert_int_equal(
        kube_client_create(&c, fx.loop, NULL, &(struct kube_config){.kubeconfig = config}, &err),
        ST_INVALID);
    assert_non_null(strstr(err.message, "--kube-context"));
    certs_write(&fx.certs, "config", "a: [\n");
    assert_int_equal(
        kube_client_create(&c, fx.loop, NULL, &(struct kube_config){.kubeconfig = config}, &err),
        ST_INVALID);
    finish(&fx);
}

/* --- in a pod, and by options ----------------------------------------------------------------- */

static void in_a_pod_everything_is_where_the_kubelet_puts_it(void **state) {
    struct fixture fx;
    struct kube_config config = {0};
    struct kube_client *c = NULL;
    struct error err = {0};
    char port[16];

    (void)state;
    init(&fx, false);
    config.account_folder = fx.certs.folder;
    unsetenv("KUBERNETES_SERVICE_HOST");
    assert_int_equal(kube_client_create(&c, fx.loop, NULL, &config, &err), ST_NOT_FOUND);
    assert_non_null(strstr(err.message, "--kubeconfig"));

    snprintf(port, sizeof(port), "%u", http_server_port(fx.server));
    setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1", 1);
    setenv("KUBERNETES_SERVICE_PORT", port, 1);
    assert_int_equal(kube_client_create(&c, fx.loop, NULL, &config, &err), ST_NOT_FOUND);
    assert_non_null(strstr(err.message, "ca.crt"));
    certs_copy(&fx.certs, "ca.pem", "ca.crt");
    certs_write(&fx.certs, "namespace", "prod\n");
    assert_int_equal(kube_client_create(&c, fx.loop, NULL, &config, &err), ST_OK);
    assert_string_equal(kube_client_namespace(c), "prod");
    kube_client_destroy(c);
    config.api_server = "http://127.0.0.1:8001";
    assert_int_equal(kube_client_create(&c, fx.loop, NULL, &config, &err), ST_OK);
    assert_string_equal(kube_client_namespace(c), "prod");
    kube_client_destroy(c);
    config.api_server = NULL;
    assert_int_equal(kube_client_create(&c, fx.loop, NULL, &config, &err), ST_OK);
    assert_int_equal(call(&fx, c), 200);
    assert_string_equal(fx.token, "Bearer abc.def");
    kube_client_destroy(c);

    setenv("KUBERNETES_SERVICE_HOST", "fd00::1", 1);
    unsetenv("KUBERNETES_SERVICE_PORT");
    assert_int_equal(kube_client_create(&c, fx.loop, NULL, &config, &err), ST_OK);
    assert_string_equal(kube_client_server(c), "https://[fd00::1]:443");
    kube_client_destroy(c);

    unlink(certs_path(&fx.certs, "token"));
    assert_int_equal(kube_client_create(&c, fx.loop, NULL, &config, &err), ST_NOT_FOUND);
    assert_non_null(strstr(err.message, "automountServiceAccountToken"));
    certs_write(&fx.certs, "token", "\n");
    assert_int_equal(kube_client_create(&c, fx.loop, NULL, &config, &err), ST_INVALID);
    unsetenv("KUBERNETES_SERVICE_HOST");
    finish(&fx);
}

/* A pod's token is for its own server. */
static void a_server_named_by_an_option_is_not_shown_the_pods_token(void **state) {
    struct fixture fx;
    char server[64], ca[160];

    (void)state;
    init(&fx, false);
    setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1", 1);
    snprintf(server, sizeof(server), "https://127.0.0.1:%u/k8s/clusters/c-1//",
             http_server_port(fx.server));
    snprintf(ca, sizeof(ca), "%s", certs_path(&fx.certs, "ca.pem"));
    assert_int_equal(call_once(&fx, &(struct kube_config){.api_server = server,
                                                          .ca_file = ca,
                                                          .account_folder = fx.certs.folder}),
                     200);
    assert_string_equal(fx.token, "");
    assert_string_equal(fx.target, "/k8s/clusters/c-1/version?a=b");
    unsetenv("KUBERNETES_SERVICE_HOST");
    finish(&fx);
}

static void plain_http_is_for_loopback_alone(void **state) {
    static const struct {
        const char *server;
        bool is_good;
    } cases[] = {
        {"http://127.0.0.1:8001", true},    {"http://[::1]:8001", true},
        {"http://localhost:8001/", true},   {"http://10.0.0.1:8001", false},
        {"http://127.0.0.1.nip.io", false}, {"https://10.0.0.1", true},
        {"10.0.0.1:6443", false},           {"https://u:p@10.0.0.1", false},
        {"https://10.0.0.1/?a", false},     {"https://10.0.0.1#a", false},
        {"ftp://10.0.0.1", false},          {"https://", false},
    };
    struct fixture fx;

    (void)state;
    init(&fx, false);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct kube_client *c = NULL;
        struct error err = {0};
        enum status st = kube_client_create(
            &c, fx.loop, NULL, &(struct kube_config){.api_server = cases[i].server}, &err);

        if ((st == ST_OK) != cases[i].is_good) fail_msg("%s: %s", cases[i].server, err.message);
        assert_int_equal(err.message[0] == '\0', cases[i].is_good);
        kube_client_destroy(c);
    }
    finish(&fx);
}

static void a_patch_has_its_type_and_its_body(void **state) {
    struct fixture fx;
    struct kube_client *c = NULL;
    char server[64], ca[160];

    (void)state;
    init(&fx, false);
    snprintf(server, sizeof(server), "https://127.0.0.1:%u", http_server_port(fx.server));
    snprintf(ca, sizeof(ca), "%s", certs_path(&fx.certs, "ca.pem"));
    assert_int_equal(kube_client_create(&c, fx.loop, NULL,
                                        &(struct kube_config){.api_server = server, .ca_file = ca},
                                        NULL),
                     ST_OK);
    assert_int_equal(kube_client_call(c, "PATCH", "/api/v1/namespaces/a/pods/b",
                                      "application/merge-patch+json", STR("{\"x\":1}"), on_answer,
                                      &fx, NULL, NULL),
                     ST_OK);
    while (fx.code == 0)
        loop_turn(fx.loop, 10000);
    assert_string_equal(fx.method, "PATCH");
    assert_string_equal(fx.type, "application/merge-patch+json");
    assert_string_equal(fx.body, "{\"x\":1}");
    kube_client_destroy(c);
    finish(&fx);
}

static void queries_are_encoded(void **state) {
    struct buf out;

    (void)state;
    buf_init(&out, 0);
    kube_client_encode(&out, STR("aZ09-._~ =,&%+\xc3\xa9"));
    assert_true(str_eq(buf_str(&out), STR("aZ09-._~%20%3D%2C%26%25%2B%C3%A9")));
    buf_fini(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_kubeconfig_may_name_files_or_hold_them),
        cmocka_unit_test(the_server_must_be_verified),
        cmocka_unit_test(authorities_are_read_for_each_new_connection),
        cmocka_unit_test(unsupported_kubeconfig_entries_are_refused),
        cmocka_unit_test(a_token_of_its_own_needs_no_user),
        cmocka_unit_test(contexts_are_chosen_by_name),
        cmocka_unit_test(in_a_pod_everything_is_where_the_kubelet_puts_it),
        cmocka_unit_test(a_server_named_by_an_option_is_not_shown_the_pods_token),
        cmocka_unit_test(plain_http_is_for_loopback_alone),
        cmocka_unit_test(a_patch_has_its_type_and_its_body),
        cmocka_unit_test(queries_are_encoded),
    };

    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
