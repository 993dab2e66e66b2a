/* worker/kv/tiers/tier_source.c - see the header. */
#include "worker/kv/tiers/tier_source.h"

#include <stdio.h>
#include <string.h>

#include "common/net/address.h"

_Static_assert(TIER_SOURCE_MAX == ADDRESS_URL_MAX, "an authority fits");

#define TOKENS_MOST INT32_MAX

static enum status refuse(struct str value, struct error *err) {
    return error_set(err, ST_INVALID,
                     "the source of KV '%.*s' is not HOST:PORT;tokens=N, with N from 1 to %d",
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

enum status tier_source_parse(struct str value, struct tier_source *out, struct error *err) {
    struct str rest = value, at = next_part(&rest);
    char url[ADDRESS_URL_MAX];
    struct address_url split;
    uint64_t n = 0;

    if (at.len == 0 || at.len + sizeof("http://") > sizeof(url) || memchr(at.ptr, '/', at.len))
        return refuse(value, err);
    snprintf(url, sizeof(url), "http://%.*s", (int)at.len, at.ptr);
    if (address_split(str_of(url), &split, NULL) != ST_OK) return refuse(value, err);
    while (rest.len) {
        struct str part = next_part(&rest);

        if (!str_starts(part, STR("tokens="))) continue;
        part = (struct str){part.ptr + 7, part.len - 7};
        if (str_to_u64(part, &n) != ST_OK) return refuse(value, err);
    }
    if (n == 0 || n > TOKENS_MOST) return refuse(value, err);
    snprintf(out->authority, sizeof(out->authority), "%s", split.authority);
    out->n_tokens = (uint32_t)n;
    return ST_OK;
}
