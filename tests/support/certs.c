/* tests/support/certs.c - a small certificate authority. */
#include "tests/support/certs.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/ec.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>
#include <openssl/x509v3.h>

#include "tests/support/cm.h"

#define DAY_S 86400L

const char *certs_path(const struct certs *certs, const char *name) {
    static char paths[8][160];
    static unsigned at;
    char *path = paths[at++ % 8];

    snprintf(path, 160, "%s/%s", certs->folder, name);
    return path;
}

static FILE *open_to_write(const struct certs *certs, const char *name, const char *ending) {
    char full[96];
    FILE *f;

    snprintf(full, sizeof(full), "%s%s", name, ending);
    f = fopen(certs_path(certs, full), "w");
    assert_non_null(f);
    return f;
}

static void add_extension(X509 *cert, X509 *issuer, int nid, const char *value) {
    X509V3_CTX ctx;
    X509_EXTENSION *ext;

    X509V3_set_ctx(&ctx, issuer, cert, NULL, NULL, 0);
    ext = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
    assert_non_null(ext);
    X509_add_ext(cert, ext, -1);
    X509_EXTENSION_free(ext);
}

static X509 *new_cert(const char *subject, EVP_PKEY *key, X509 *issuer, long from_s, long to_s) {
    static long serial = 1;
    X509 *cert = X509_new();
    X509_NAME *name = X509_get_subject_name(cert);

    X509_set_version(cert, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(cert), serial++);
    X509_gmtime_adj(X509_getm_notBefore(cert), from_s);
    X509_gmtime_adj(X509_getm_notAfter(cert), to_s);
    X509_set_pubkey(cert, key);
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *)subject, -1, -1, 0);
    X509_set_issuer_name(cert, issuer ? X509_get_subject_name(issuer) : name);
    return cert;
}

static void write_pair(const struct certs *certs, const char *name, X509 *cert, EVP_PKEY *key) {
    FILE *f = open_to_write(certs, name, ".pem");

    PEM_write_X509(f, cert);
    fclose(f);
    f = open_to_write(certs, name, ".key");
    PEM_write_PrivateKey(f, key, NULL, NULL, 0, NULL, NULL);
    fclose(f);
}

void certs_init(struct certs *certs) {
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *ca = new_cert("test authority", key, NULL, -DAY_S, 365 * DAY_S);

    snprintf(certs->folder, sizeof(certs->folder), "/tmp/incipit-certs-XXXXXX");
    assert_non_null(mkdtemp(certs->folder));
    add_extension(ca, ca, NID_basic_constraints, "critical,CA:TRUE");
    add_extension(ca, ca, NID_subject_key_identifier, "hash");
    assert_true(X509_sign(ca, key, EVP_sha256()) > 0);
    write_pair(certs, "ca", ca, key);
    certs->ca = ca;
    certs->ca_key = key;
}

static void remove_all(const char *folder) {
    DIR *dir = opendir(folder);
    struct dirent *e;
    char path[512];

    while (dir && (e = readdir(dir)) != NULL) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        snprintf(path, sizeof(path), "%s/%s", folder, e->d_name);
        if (e->d_type == DT_DIR) {
            remove_all(path);
        } else {
            unlink(path);
        }
    }
    if (dir) closedir(dir);
    rmdir(folder);
}

void certs_fini(struct certs *certs) {
    remove_all(certs->folder);
    X509_free(certs->ca);
    EVP_PKEY_free(certs->ca_key);
}

static void make(const struct certs *certs, const struct certs_spec *spec, EVP_PKEY *key) {
    long from_s = spec->from_days ? spec->from_days * DAY_S : -60;
    long to_s = (spec->from_days + (spec->days ? spec->days : 30)) * DAY_S;
    X509 *issuer = spec->is_self_signed ? NULL : certs->ca;
    X509 *cert = new_cert(spec->name, key, issuer, from_s, to_s);
    char names[256];

    snprintf(names, sizeof(names), "%s%s%s%s%s", spec->host ? "DNS:" : "",
             spec->host ? spec->host : "", spec->host && spec->address ? "," : "",
             spec->address ? "IP:" : "", spec->address ? spec->address : "");
    if (issuer) add_extension(cert, issuer, NID_authority_key_identifier, "keyid");
    if (names[0]) add_extension(cert, issuer ? issuer : cert, NID_subject_alt_name, names);
    assert_true(X509_sign(cert, issuer ? certs->ca_key : key, EVP_sha256()) > 0);
    write_pair(certs, spec->name, cert, key);
    X509_free(cert);
    EVP_PKEY_free(key);
}

void certs_make(struct certs *certs, const struct certs_spec *spec) {
    make(certs, spec, EVP_EC_gen("P-256"));
}

void certs_small_key(const struct certs *certs, const char *name) {
    make(certs, &(struct certs_spec){.name = name, .host = "localhost"}, EVP_RSA_gen(1024));
}

void certs_write(const struct certs *certs, const char *name, const char *text) {
    FILE *f = open_to_write(certs, name, "");

    fputs(text, f);
    fclose(f);
}

void certs_copy(const struct certs *certs, const char *from, const char *to) {
    static char text[65536];
    FILE *f = fopen(certs_path(certs, from), "r");
    size_t n;

    assert_non_null(f);
    n = fread(text, 1, sizeof(text) - 1, f);
    text[n] = '\0';
    fclose(f);
    certs_write(certs, to, text);
}

void certs_encrypt_key(const struct certs *certs, const char *from, const char *to) {
    FILE *f = fopen(certs_path(certs, from), "r");
    EVP_PKEY *key = PEM_read_PrivateKey(f, NULL, NULL, NULL);

    fclose(f);
    assert_non_null(key);
    f = open_to_write(certs, to, "");
    PEM_write_PrivateKey(f, key, EVP_aes_128_cbc(), (const unsigned char *)"secret", 6, NULL, NULL);
    fclose(f);
    EVP_PKEY_free(key);
}

void certs_hashed_folder(const struct certs *certs, const char *name) {
    char file[128];

    assert_int_equal(mkdir(certs_path(certs, name), 0700), 0);
    snprintf(file, sizeof(file), "%s/%08lx.0", name, X509_subject_name_hash(certs->ca));
    certs_copy(certs, "ca.pem", file);
}
