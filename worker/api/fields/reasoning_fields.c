/* worker/api/fields/reasoning_fields.c - see reasoning_fields.h. */
#include "worker/api/fields/reasoning_fields.h"

#include "common/text/json.h"

enum status reasoning_fields_parse(struct reasoning_fields *f, const struct json *o,
                                   struct error *err) {
    bool is_shown = true, is_separate = true;
    int64_t budget = -1; /* vLLM's word for none */
    enum status st = json_get_bool(o, "include_reasoning", &is_shown, NULL, err);

    if (st == ST_OK) st = json_get_bool(o, "separate_reasoning", &is_separate, NULL, err);
    if (st == ST_OK)
        st = json_get_i64(o, "thinking_token_budget", -1, UINT32_MAX - 1, &budget, NULL, err);
    if (st != ST_OK) return st;
    *f = (struct reasoning_fields){.is_hidden = !is_shown,
                                   .is_text = !is_separate,
                                   .has_budget = budget >= 0,
                                   .budget = budget >= 0 ? (uint32_t)budget : 0};
    return ST_OK;
}
