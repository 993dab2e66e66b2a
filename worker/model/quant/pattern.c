/* worker/model/quant/pattern.c - see pattern.h. */
#include "worker/model/quant/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>

#include "common/base/mem.h"

#define MATCH_LIMIT 20000u /* steps back; names have a hundred bytes */

struct pattern {
    pcre2_code *code;
    pcre2_match_data *data;
    pcre2_match_context *context;
    char *source;
};

static enum status out_of_memory(const char *source, struct error *err) {
    return error_set(err, ST_NOMEM,
                     "out of memory for the expression '%.100s' of config.json: free memory, or "
                     "raise the limit of the container",
                     source);
}

enum status pattern_compile(struct pattern **out, struct str source, struct error *err) {
    struct pattern *p = mem_zalloc(sizeof(*p));
    PCRE2_SIZE at;
    PCRE2_UCHAR why[128];
    int code;

    p->source = mem_strndup(source.ptr, source.len);
    p->code = pcre2_compile((PCRE2_SPTR)source.ptr, source.len, PCRE2_ANCHORED, &code, &at, NULL);
    if (!p->code && code == PCRE2_ERROR_HEAP_FAILED) {
        pattern_free(p);
        return out_of_memory(source.ptr, err);
    }
    if (!p->code) {
        pcre2_get_error_message(code, why, sizeof(why));
        pattern_free(p);
        return error_set(err, ST_INVALID, "the expression '%.100s' is not valid at byte %zu: %s",
                         source.ptr, (size_t)at, (const char *)why);
    }
    p->data = pcre2_match_data_create(1, NULL);
    p->context = pcre2_match_context_create(NULL);
    if (!p->data || !p->context) {
        pattern_free(p);
        return out_of_memory(source.ptr, err);
    }
    pcre2_set_match_limit(p->context, MATCH_LIMIT);
    *out = p;
    return ST_OK;
}

void pattern_free(struct pattern *p) {
    if (!p) return;
    pcre2_match_context_free(p->context);
    pcre2_match_data_free(p->data);
    pcre2_code_free(p->code);
    mem_free(p->source);
    mem_free(p);
}

size_t pattern_bytes(const struct pattern *p) {
    size_t n_bytes = 0;

    (void)pcre2_pattern_info(p->code, PCRE2_INFO_SIZE, &n_bytes);
    return n_bytes;
}

enum status pattern_match(const struct pattern *p, struct str name, bool *is_match,
                          struct error *err) {
    int n = pcre2_match(p->code, (PCRE2_SPTR)name.ptr, name.len, 0, 0, p->data, p->context);

    if (n == PCRE2_ERROR_NOMEMORY) return out_of_memory(p->source, err);
    if (n < 0 && n != PCRE2_ERROR_NOMATCH)
        return error_set(err, ST_INVALID,
                         "the expression '%.100s' exceeds its limit on the name '%.100s' (pcre2: "
                         "%d)",
                         p->source, name.ptr, n);
    *is_match = n >= 0;
    return ST_OK;
}

bool name_has_part(struct str name, struct str part) {
    for (size_t i = 0; part.len && i + part.len <= name.len; i++) {
        size_t end = i + part.len;

        if (memcmp(name.ptr + i, part.ptr, part.len) != 0) continue;
        if ((i == 0 || name.ptr[i - 1] == '.') && (end == name.len || name.ptr[end] == '.'))
            return true;
    }
    return false;
}
