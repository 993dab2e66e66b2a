/* worker/api/wires/members.c - see members.h. */
#include "worker/api/wires/members.h"

#include <stdio.h>

enum status place_refuse(const struct place *at, const char *what) {
    char param[ERROR_PARAM_MAX];

    snprintf(param, sizeof(param), "%s[%zu]%s", at->list, at->i, at->member);
    return error_set_param(at->err, ST_INVALID, param, "%s: %s", param, what);
}

enum status append_content(const struct json *content, append_part_fn *append_part,
                           const struct place *at, struct buf *to) {
    struct str text;
    enum status st = ST_OK;

    if (json_to_str(content, &text) == ST_OK) append_line(to, text);
    JSON_FOR_EACH(it, content) {
        if (st == ST_OK) st = append_part(it, at, to);
    }
    return st == ST_OK ? buf_status(to) : st;
}

void members_copy(struct json_writer *w, const struct json *body) {
    static const char *const names[] = {"temperature",
                                        "top_p",
                                        "top_k",
                                        "stream",
                                        "cache_explain",
                                        "cache_salt",
                                        "ignore_eos",
                                        "min_p",
                                        "min_tokens",
                                        "priority",
                                        "repetition_penalty",
                                        "request_id",
                                        "seed",
                                        "structured_outputs"};

    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        const struct json *v = json_get(body, names[i]);

        if (json_is_null(v)) continue;
        json_put_key(w, names[i]);
        json_put_tree(w, v);
    }
}

void members_put_choice(struct json_writer *w, struct str function) {
    json_put_key(w, "tool_choice");
    json_begin_object(w);
    json_field_z(w, "type", "function");
    json_put_key(w, "function");
    json_begin_object(w);
    json_field_str(w, "name", function);
    json_end_object(w);
    json_end_object(w);
}
