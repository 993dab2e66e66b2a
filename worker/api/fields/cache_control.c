/* worker/api/fields/cache_control.c - a walk over the body, in the order of the prompt. */
#include "worker/api/fields/cache_control.h"

#include <stdio.h>
#include <string.h>

#include "common/text/json.h"

#define PATH_MAX_CHARS 96 /* of the longest below, with three numbers */

struct walk {
    struct cache_control found[CACHE_CONTROL_MAX];
    uint32_t n;
    struct error *err;
};

static enum status refuse(const struct walk *w, const char *path, const char *what) {
    return error_set_param(w->err, ST_INVALID, "cache_control", "%scache_control%s", path, what);
}

static bool is_text(const struct json *v, const char *text) {
    struct str s;

    return json_to_str(v, &s) == ST_OK && str_eq(s, str_of(text));
}

/* `owner` may have the member; `path` names it, with a dot. */
static enum status read_one(struct walk *w, const struct json *owner, const char *path,
                            size_t n_messages) {
    const struct json *control = json_get(owner, "cache_control"), *ttl;
    struct cache_control c = {.n_messages = n_messages, .ttl_s = 300};

    if (json_is_null(control)) return ST_OK;
    if (!is_text(json_get(control, "type"), "ephemeral"))
        return refuse(w, path,
                      " must be an object of the type \"ephemeral\": set its type, or "
                      "leave it out");
    ttl = json_get(control, "ttl");
    if (is_text(ttl, "1h")) {
        c.ttl_s = 3600;
    } else if (!json_is_null(ttl) && !is_text(ttl, "5m")) {
        struct str text = STR_NULL;

        (void)!json_to_str(ttl, &text);
        return error_set_param(w->err, ST_INVALID, "cache_control",
                               "%scache_control.ttl is %s%.*s%s: send \"5m\" or \"1h\"", path,
                               text.ptr ? "\"" : "", text.ptr ? (int)MIN(text.len, 32) : 20,
                               text.ptr ? text.ptr : json_type_name(ttl), text.ptr ? "\"" : "");
    }
    if (w->n == CACHE_CONTROL_MAX)
        return error_set_param(w->err, ST_INVALID, "cache_control",
                               "cache_control is set in more than %d places, at %scache_control "
                               "too: set it in at most %d",
                               CACHE_CONTROL_MAX, path, CACHE_CONTROL_MAX);
    w->found[w->n++] = c;
    return ST_OK;
}

/* Each element of an array, and the elements of its own content. */
static enum status read_list(struct walk *w, const struct json *list, const char *name,
                             size_t n_messages) {
    enum status st = ST_OK;
    size_t i = 0;

    if (json_type(list) != JSON_ARRAY) return ST_OK;
    JSON_FOR_EACH(it, list) {
        char path[PATH_MAX_CHARS];

        snprintf(path, sizeof(path), "%s[%zu].", name, i++);
        if (st == ST_OK) st = read_one(w, it, path, n_messages);
        if (st != ST_OK || json_type(json_get(it, "content")) != JSON_ARRAY) continue;
        snprintf(path + strlen(path), sizeof(path) - strlen(path), "content");
        st = read_list(w, json_get(it, "content"), path, n_messages);
    }
    return st;
}

static enum status read_messages(struct walk *w, const struct json *messages) {
    size_t n = json_count(messages), i = 0;
    enum status st = ST_OK;

    JSON_FOR_EACH(it, messages) {
        char path[PATH_MAX_CHARS];

        snprintf(path, sizeof(path), "messages[%zu].content", i++);
        if (st == ST_OK)
            st = read_list(w, json_get(it, "content"), path, i == n ? CACHE_CONTROL_ALL : i);
    }
    return st;
}

/* From the end, what lives longer than all that contains it. */
static void keep_longest(const struct walk *w, struct cache_control *out, uint32_t *n) {
    uint32_t ttl_s = 0;

    *n = 0;
    for (uint32_t i = w->n; i-- > 0;) {
        if (w->found[i].ttl_s <= ttl_s) continue;
        ttl_s = w->found[i].ttl_s;
        out[(*n)++] = w->found[i];
    }
}

enum status cache_control_read(const struct json *o, struct cache_control out[CACHE_CONTROL_MAX],
                               uint32_t *n, struct error *err) {
    struct walk w = {.err = err};
    enum status st = read_list(&w, json_get(o, "tools"), "tools", 0);

    if (st == ST_OK) st = read_list(&w, json_get(o, "system"), "system", 0);
    if (st == ST_OK) st = read_messages(&w, json_get(o, "messages"));
    if (st == ST_OK) st = read_one(&w, o, "", CACHE_CONTROL_ALL);
    if (st == ST_OK) keep_longest(&w, out, n);
    return st;
}

/* --- one time for all of the prompt ----------------------------------------------------------- */

static bool find_time(struct str text, uint32_t *ttl_s) {
    static const struct {
        const char *text;
        uint32_t ttl_s;
    } times[] = {{"5m", 300}, {"30m", 1800}, {"1h", 3600}, {"12h", 43200}, {"24h", 86400}};

    for (size_t i = 0; i < ARRAY_LEN(times); i++) {
        if (!str_eq(text, str_of(times[i].text))) continue;
        *ttl_s = times[i].ttl_s;
        return true;
    }
    return false;
}

static enum status refuse_time(const char *field, struct str value, const char *values,
                               struct error *err) {
    return error_set_param(err, ST_INVALID, field, "%s is \"%.*s\": send %s, or leave it out",
                           field, (int)MIN(value.len, 32), value.ptr, values);
}

enum status cache_control_read_ttl(const struct json *o, uint32_t *ttl_s, struct error *err) {
    struct str ttl = STR_NULL, retention = STR_NULL;
    const struct json *options;
    uint32_t s = 0;
    enum status st = json_get_object(o, "prompt_cache_options", &options, err);

    if (st == ST_OK) {
        st = json_get_str(options, "ttl", 256, &ttl, NULL, err);
        st = error_within(err, st, "prompt_cache_options");
    }
    if (st == ST_OK) st = json_get_str(o, "prompt_cache_retention", 256, &retention, NULL, err);
    if (st != ST_OK) return st;
    if (str_eq(ttl, STR("30m")) || str_eq(ttl, STR("12h"))) {
        (void)find_time(ttl, &s);
    } else if (ttl.ptr) {
        return refuse_time("prompt_cache_options.ttl", ttl, "\"30m\" or \"12h\"", err);
    }
    if (str_eq(retention, STR("24h"))) {
        (void)find_time(retention, &s);
    } else if (retention.ptr && !str_eq(retention, STR("in_memory")) &&
               !str_eq(retention, STR("in-memory"))) { /* as OpenAI's clients spelt it first */
        return refuse_time("prompt_cache_retention", retention, "\"24h\" or \"in_memory\"", err);
    }
    *ttl_s = s;
    return ST_OK;
}

enum status cache_control_read_time(const struct json *o, uint32_t *ttl_s, struct error *err) {
    struct str ttl = STR_NULL;
    enum status st = json_get_str(o, "ttl", 256, &ttl, NULL, err);

    if (st != ST_OK || !ttl.ptr || find_time(ttl, ttl_s)) return st;
    return refuse_time("ttl", ttl, "\"5m\", \"30m\", \"1h\", \"12h\" or \"24h\"", err);
}
