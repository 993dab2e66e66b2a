/* worker/kv/tiers/store/store_config.c - what the options of a store name: URLs, a password, files
 * of TLS. Read before anything is opened, so that what is wrong is found before a model is loaded.
 */
#include <string.h>

#include "common/base/file.h"
#include "common/base/mem.h"
#include "common/net/cipher.h"
#include "worker/kv/tiers/store/store_internal.h"

#define SECRET_BYTES 4096u /* of a password file */

static enum status read_password(const char *path, char out[STORE_SECRET_MAX], struct error *err) {
    char *text;
    size_t n;
    enum status st = file_read(path, SECRET_BYTES, &text, &n, err);

    if (st != ST_OK) return st;
    while (n && (text[n - 1] == '\n' || text[n - 1] == '\r'))
        n--;
    if (n == 0 || n >= STORE_SECRET_MAX || memchr(text, '\0', n)) {
        st = error_set(err, ST_INVALID, "the password in %s has %zu bytes: 1 to %d are possible",
                       path, n, STORE_SECRET_MAX - 1);
    } else {
        memcpy(out, text, n);
        out[n] = '\0';
    }
    cipher_erase(text, n);
    mem_free(text);
    return st;
}

static bool is_between(char c) {
    return c == ',' || c == ' ' || c == '\t' || c == '\n';
}

/* The next of the list, at *at; empty at its end. */
static struct str next_url(const char **at) {
    struct str text;

    while (is_between(**at))
        ++*at;
    for (text = (struct str){*at, 0}; **at && !is_between(**at); ++*at)
        text.len++;
    return text;
}

enum status store_urls_read(struct store_urls *out, const struct tier_store_config *c,
                            struct error *err) {
    const char *at = c->urls ? c->urls : "";
    char password[STORE_SECRET_MAX] = "";
    enum status st = c->password_file ? read_password(c->password_file, password, err) : ST_OK;
    struct str text;

    out->n = 0;
    out->has_tls = false;
    while (st == ST_OK && (text = next_url(&at)).len > 0) {
        struct store_url *url = &out->url[out->n];

        if (out->n == STORE_URLS_MAX)
            return error_set(err, ST_INVALID, "more than %d URLs of a store", STORE_URLS_MAX);
        st = store_url_parse(text, url, err);
        if (st != ST_OK) break;
        if (password[0]) memcpy(url->password, password, sizeof(password));
        out->has_tls |= url->is_tls;
        out->n++;
    }
    cipher_erase(password, sizeof(password));
    if (st == ST_OK && out->n == 0)
        return error_set(err, ST_INVALID, "no URL of a store: use redis://HOST:PORT");
    return st;
}

enum status store_tls_open(struct tls **out, const struct tier_store_config *c, struct error *err) {
    const struct tls_config config = {.cert = c->tls_cert,
                                      .key = c->tls_key,
                                      .ca = c->tls_ca,
                                      .handshake_timeout_ms = c->silence_ms,
                                      .is_insecure = c->tls_is_insecure};

    return tls_create(out, &config, err);
}

enum status tier_store_check(const struct tier_store_config *config, struct error *err) {
    struct store_urls *urls = mem_zalloc(sizeof(*urls));
    struct tls *tls = NULL;
    enum status st = store_urls_read(urls, config, err);

    if (st == ST_OK && urls->has_tls) st = store_tls_open(&tls, config, err);
    tls_destroy(tls);
    cipher_erase(urls, sizeof(*urls));
    mem_free(urls);
    return st;
}
