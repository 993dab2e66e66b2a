/* worker/api/fields/token_rules.c - see token_rules.h. */
#include "worker/api/fields/token_rules.h"

#include <string.h>

#include "common/base/mem.h"
#include "common/text/json.h"
#include "worker/api/fields/params.h"
#include "worker/text/tokenizer/tokenizer.h"

static enum status get_stop_ids(struct call_params *p, const struct json *o, uint32_t vocab,
                                struct error *err) {
    const struct json *list;
    enum status st = json_get_array(o, "stop_token_ids", &list, err);
    uint64_t id;

    if (st != ST_OK || !list) return st;
    JSON_FOR_EACH(it, list) {
        if (json_to_u64(it, &id) != ST_OK || id >= vocab) {
            return error_set_param(err, ST_INVALID, "stop_token_ids",
                                   "stop_token_ids must be token ids below %u", vocab);
        }
        if (p->request.n_stop_ids == REQUEST_STOP_IDS_MAX) {
            return error_set_param(err, ST_INVALID, "stop_token_ids",
                                   "stop_token_ids has more than %u ids: send fewer",
                                   REQUEST_STOP_IDS_MAX);
        }
        p->stop_ids[p->request.n_stop_ids++] = (uint32_t)id;
    }
    p->request.stop_ids = p->stop_ids;
    return ST_OK;
}

static enum status get_bias(struct call_params *p, const struct json *o, uint32_t vocab,
                            struct error *err) {
    const struct json *map;
    enum status st = json_get_object(o, "logit_bias", &map, err);
    uint64_t id;
    double bias;

    if (st != ST_OK || !map) return st;
    JSON_FOR_EACH(it, map) {
        if (str_to_u64(json_key(it), &id) != ST_OK || id >= vocab) {
            return error_set_param(err, ST_INVALID, "logit_bias",
                                   "logit_bias key \"%.*s\" is not a token id below %u",
                                   (int)MIN(json_key(it).len, 40), json_key(it).ptr, vocab);
        }
        if (json_to_f64(it, &bias) != ST_OK || bias < -100 || bias > 100) {
            return error_set_param(err, ST_INVALID, "logit_bias",
                                   "logit_bias of token %u must be a number from -100 to 100",
                                   (unsigned)id);
        }
        if (p->request.n_bias == REQUEST_BIAS_MAX) {
            return error_set_param(err, ST_INVALID, "logit_bias",
                                   "logit_bias has more than %u tokens: send fewer",
                                   REQUEST_BIAS_MAX);
        }
        p->bias[p->request.n_bias++] = (struct token_bias){(uint32_t)id, (float)bias};
    }
    p->request.bias = p->bias;
    return ST_OK;
}

static enum status get_allowed(struct call_params *p, const struct json *o, uint32_t vocab,
                               struct error *err) {
    const struct json *list;
    enum status st = json_get_array(o, "allowed_token_ids", &list, err);
    uint64_t id;

    if (st != ST_OK || !list) return st;
    if (!json_first(list) || json_count(list) > ALLOWED_IDS_MAX) {
        return error_set_param(err, ST_INVALID, "allowed_token_ids",
                               "allowed_token_ids must hold 1 to %u ids: leave it out to allow all",
                               ALLOWED_IDS_MAX);
    }
    p->allowed = mem_calloc(CEIL_DIV(vocab, 32), sizeof(*p->allowed));
    JSON_FOR_EACH(it, list) {
        if (json_to_u64(it, &id) != ST_OK || id >= vocab) {
            return error_set_param(err, ST_INVALID, "allowed_token_ids",
                                   "allowed_token_ids must be token ids below %u", vocab);
        }
        p->allowed[id / 32] |= 1u << (id % 32);
    }
    p->request.allowed = p->allowed;
    return ST_OK;
}

/* Appends a run, its length first. */
static enum status add_run(struct call_params *p, const struct token_list *run, struct error *err) {
    uint32_t n = p->request.n_bad_words;

    if (run->n == 0) return ST_OK; /* nothing of it is left once it is tokenized */
    if (n + 1 + run->n > REQUEST_BAD_WORDS_MAX) {
        return error_set_param(err, ST_INVALID, "bad_words",
                               "bad_words have more than %u tokens in total: send fewer",
                               REQUEST_BAD_WORDS_MAX);
    }
    p->bad_words[n] = (uint32_t)run->n;
    memcpy(p->bad_words + n + 1, run->ids, run->n * sizeof(*run->ids));
    p->request.n_bad_words += 1 + (uint32_t)run->n;
    return ST_OK;
}

static enum status add_word(struct call_params *p, struct str word, const struct tokenizer *t,
                            struct error *err) {
    struct token_list plain = {0}, spaced = {0};
    char text[1 + BAD_WORD_BYTES_MAX];
    enum status st;

    while (word.len > 0 && word.ptr[0] == ' ')
        word = (struct str){word.ptr + 1, word.len - 1};
    text[0] = ' ';
    memcpy(text + 1, word.ptr, word.len);
    st = tokenizer_encode(t, word, 0, &plain, err);
    if (st == ST_OK) {
        st = tokenizer_encode(t, (struct str){text, word.len + 1}, 0, &spaced, err);
    }
    if (st == ST_OK) st = add_run(p, &plain, err);
    if (st == ST_OK && spaced.n == plain.n && spaced.n > 0 && spaced.ids[0] != plain.ids[0]) {
        st = add_run(p, &spaced, err);
    }
    token_list_fini(&plain);
    token_list_fini(&spaced);
    return st;
}

static enum status get_bad_words(struct call_params *p, const struct json *o,
                                 const struct tokenizer *t, struct error *err) {
    const struct json *list;
    enum status st = json_get_array(o, "bad_words", &list, err);
    struct str word;

    if (st != ST_OK || !list) return st;
    if (json_count(list) > BAD_WORDS_MAX) {
        return error_set_param(err, ST_INVALID, "bad_words",
                               "bad_words has more than %u words: send fewer", BAD_WORDS_MAX);
    }
    p->bad_words = mem_calloc(REQUEST_BAD_WORDS_MAX, sizeof(*p->bad_words));
    p->request.bad_words = p->bad_words;
    JSON_FOR_EACH(it, list) {
        if (json_to_str(it, &word) != ST_OK || word.len == 0 || word.len > BAD_WORD_BYTES_MAX) {
            return error_set_param(err, ST_INVALID, "bad_words",
                                   "bad_words must be strings of 1 to %u bytes",
                                   BAD_WORD_BYTES_MAX);
        }
        st = add_word(p, word, t, err);
        if (st != ST_OK) return st;
    }
    return ST_OK;
}

enum status token_rules_parse(struct call_params *p, const struct json *o, uint32_t vocab,
                              const struct tokenizer *tokenizer, struct error *err) {
    enum status st = get_stop_ids(p, o, vocab, err);

    if (st == ST_OK) st = get_bias(p, o, vocab, err);
    if (st == ST_OK) st = get_allowed(p, o, vocab, err);
    if (st == ST_OK) st = get_bad_words(p, o, tokenizer, err);
    return st;
}
