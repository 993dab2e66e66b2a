/* worker/text/tokenizer/post_processor.c - the post-processor: special tokens around a text. */
#include "common/text/json.h"
#include "worker/text/tokenizer/tokenizer_internal.h"
#include "worker/text/tokenizer/tokenizer_json.h"

/* The ids of one special token of the template: those it lists, else the token's own. */
static enum status add_ids(const struct tokenizer *t, const struct json *listed, struct str name,
                           uint32_t *ids, uint32_t *n, struct error *err) {
    uint32_t id;

    JSON_FOR_EACH(v, listed) {
        uint64_t listed_id = 0;

        if (*n == TOKENIZER_MAX_AROUND || json_to_u64(v, &listed_id) != ST_OK ||
            listed_id >= t->n_tokens) {
            return error_set(err, ST_INVALID,
                             "the post-processor's token '%.40s' has an invalid id", name.ptr);
        }
        ids[(*n)++] = (uint32_t)listed_id;
    }
    if (listed && json_first(listed)) return ST_OK;
    if (*n == TOKENIZER_MAX_AROUND || !tokenizer_find(t, name, &id)) {
        return error_set(
            err, ST_INVALID,
            "the post-processor's template names the token '%.40s', which is not in the vocabulary",
            name.ptr);
    }
    ids[(*n)++] = id;
    return ST_OK;
}

/* TemplateProcessing's `single`: special tokens around one sequence. */
static enum status load_template(struct tokenizer *t, const struct json *v, struct error *err) {
    const struct json *tokens = json_get(v, "special_tokens");
    bool has_sequence = false;

    if (t->n_before || t->n_after) {
        return error_set(err, ST_UNSUPPORTED,
                         "unsupported post-processor: it has more than one TemplateProcessing");
    }
    JSON_FOR_EACH(part, json_get(v, "single")) {
        const struct json *special = json_get(part, "SpecialToken");
        struct str name = STR("");
        enum status st;

        if (!special) {
            has_sequence = true;
            continue;
        }
        if (json_to_str(json_get(special, "id"), &name) != ST_OK) name = STR("");
        st = add_ids(t, json_get(json_get(tokens, name.ptr), "ids"), name,
                     has_sequence ? t->after : t->before, has_sequence ? &t->n_after : &t->n_before,
                     err);
        if (st != ST_OK) return st;
    }
    return ST_OK;
}

enum status tokenizer_post_processor_load(struct tokenizer *t, const struct json *v,
                                          struct error *err) {
    if (json_is_null(v) || tokenizer_json_is(v, "ByteLevel")) return ST_OK;
    if (tokenizer_json_is(v, "TemplateProcessing")) return load_template(t, v, err);
    if (tokenizer_json_is(v, "Sequence")) {
        JSON_FOR_EACH(part, json_get(v, "processors")) {
            enum status st = tokenizer_post_processor_load(t, part, err);

            if (st != ST_OK) return st;
        }
        return ST_OK;
    }
    return error_set(err, ST_UNSUPPORTED,
                     "unsupported post-processor '%.40s': supported are TemplateProcessing, "
                     "ByteLevel and Sequence",
                     tokenizer_json_type(v));
}
