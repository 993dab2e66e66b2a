/* worker/kv/tiers/tier_source.c - see the header. */
#include "worker/kv/tiers/tier_source.h"

#include <stdio.h>
#include <string.h>

#include "common/net/address.h"

_Static_assert(TIER_SOURCE_MAX == ADDRESS_URL_MAX, "an authority fits");

#define TOKENS_MOST INT32_MAX

static enum status refuse(struct str value, struct error *err) {
    return error_set(err, ST_INVALID,
                     "the source of KV '%.*s' is not HOST:PORT;tokens=N or "
                     "HOST:PORT;tokens=N;computed=M, with N from 1 to %d and M up to N",
                     (int)MIN(value.len, 100), value.ptr, TOKENS_MOST);
}

/* What is before the next semicolon; *rest is behind it, without the spaces there. */
static struct str next_part(struct str *rest) {
    const char *end = memchr(rest->ptr, ';', rest->len);
    struct str part = {rest->ptr, end ? (size_t)(end - rest->ptr) : rest->len};
    size_t used = MIN(part.len + 1, rest->len);

    *rest = (struct str){rest->ptr + used, rest->len - used};
    while (rest->len && rest->ptr[0] == ' ')
        *rest = (struct str){rest->ptr + 1, rest->len - 1};
    return part;
}

/* False: it is this parameter, and no number. */
static bool read_count(struct str part, struct str name, uint64_t *out) {
    if (!str_starts(part, name)) return true;
    return str_to_u64((struct str){part.ptr + name.len, part.len - name.len}, out) == ST_OK;
}

enum status tier_source_parse(struct str value, struct tier_source *out, struct error *err) {
    struct str rest = value, at = next_part(&rest);
    char url[ADDRESS_URL_MAX];
    struct address_url split;
    uint64_t n = 0, n_computed = 0;

    if (at.len == 0 || at.len + sizeof("http://") > sizeof(url) || memchr(at.ptr, '/', at.len))
        return refuse(value, err);
    snprintf(url, sizeof(url), "http://%.*s", (int)at.len, at.ptr);
    if (address_split(str_of(url), &split, NULL) != ST_OK) return refuse(value, err);
    while (rest.len) {
        struct str part = next_part(&rest);

        if (!read_count(part, STR("tokens="), &n) ||
            !read_count(part, STR("computed="), &n_computed))
            return refuse(value, err);
    }
    if (n == 0 || n > TOKENS_MOST || n_computed > n) return refuse(value, err);
    snprintf(out->authority, sizeof(out->authority), "%s", split.authority);
    out->n_tokens = (uint32_t)n;
    out->n_computed = (uint32_t)n_computed;
    return ST_OK;
}
