/* worker/api/truncation.c - see truncation.h. What a prompt is rendered from is constant, so the
 * text thread renders it; the loop reads the rest only before the job is submitted and when it is
 * back. */
#include "worker/api/truncation.h"

#include <assert.h>

#include "common/base/map.h"
#include "common/base/mem.h"
#include "common/text/json.h"
#include "worker/api/body.h"
#include "worker/api/call.h"
#include "worker/api/wires/members.h"
#include "worker/api/wires/responses_request.h"

#define RENDERED_MAX   (64u << 20) /* bytes of a rendered conversation */
#define ANSWER_SHARE   8u          /* of the context, where a request does not say */
#define LEAST_OF_STEPS 8u          /* cuts that may be tried, if there are as many */

struct attempt {
    struct buf text;
    struct token_list tokens;
    uint32_t n_calls;
};

struct truncation {
    struct call *call;
    struct text_job *job;
    struct json *earlier;
    uint32_t most_tokens, target_tokens; /* of the whole prompt; of a shorter one */
    const struct json **item;            /* (n_items) */
    bool *is_dropped;                    /* (n_items) */
    size_t *cut;                         /* (n_cuts) */
    size_t n_items, n_cuts;
    size_t base, step;      /* cuts that leave too much; from one that may be tried to the next */
    uint32_t n_tried;       /* those that may be tried; the last is the last of all */
    uint32_t low, high, at; /* of them, from 1: too long; fits; being tried */
    size_t place;           /* the cut being tried, from 1 */
    struct attempt now, best;
    bool has_best, is_rounded;
};

/* --- items ------------------------------------------------------------------------------------ */

static bool is_message_of(const struct json *item, const char *role) {
    struct str type = member_text(item, "type");

    return (!type.ptr || str_eq(type, STR("message"))) && member_is(item, "role", role);
}

static bool is_user(const struct json *item) {
    return is_message_of(item, "user");
}

/* Of no turn: it is never left out. */
static bool is_of_all(const struct json *item) {
    return is_message_of(item, "system") || is_message_of(item, "developer") ||
           member_is(item, "type", "additional_tools");
}

static bool is_output(const struct json *item) {
    return str_ends(member_text(item, "type"), STR("_call_output"));
}

/* What follows begins with the user's word, what is of no turn aside. */
static bool begins_with_user(const struct json *const *item, size_t n, size_t i) {
    while (i < n && is_of_all(item[i]))
        i++;
    return i < n && is_user(item[i]);
}

/* The place of the last output of each call, + 1. */
static void map_outputs(const struct json *const *item, size_t n, struct strmap *out) {
    strmap_init(out, 0);
    for (size_t i = 0; i < n; i++) {
        struct str id = member_text(item[i], "call_id");

        if (id.ptr && is_output(item[i])) strmap_insert(out, id, (void *)(uintptr_t)(i + 1));
    }
}

size_t truncation_find_cuts(const struct json *const *item, size_t n, size_t *cut) {
    struct strmap outputs;
    size_t n_cuts = 0, open_until = 0;

    map_outputs(item, n, &outputs);
    for (size_t i = 1; i < n; i++) {
        const struct json *before = item[i - 1];
        struct str id = member_text(before, "call_id");
        size_t output = id.ptr && !is_output(before) ? (uintptr_t)strmap_find(&outputs, id) : 0;

        if (output > i) open_until = MAX(open_until, output); /* behind it: place + 1 */
        if (i < open_until || is_output(item[i]) || member_is(before, "type", "reasoning"))
            continue;
        if (is_of_all(before)) continue; /* that leaves no less */
        if (is_user(before) && !begins_with_user(item, n, i)) continue;
        cut[n_cuts++] = i;
    }
    strmap_fini(&outputs);
    return n_cuts;
}

void truncation_drop(const struct json *const *item, size_t n, size_t cut, bool *is_dropped) {
    bool has_user = begins_with_user(item, n, cut);

    for (size_t i = n; i-- > 0;) {
        bool opens = i < cut && !has_user && is_user(item[i]);

        is_dropped[i] = i < cut && !opens && !is_of_all(item[i]);
        has_user = has_user || opens;
    }
}

static size_t count_items(const struct json *items) {
    return json_type(items) == JSON_ARRAY ? json_count(items) : 0;
}

static void list_items(struct truncation *x) {
    const struct json *asked = x->call->asked, *input = json_get(asked, "input");
    const struct json *const lists[] = {x->earlier, input};
    size_t n = count_items(x->earlier) + count_items(input);

    x->item = mem_calloc(n + 1, sizeof(const struct json *));
    x->is_dropped = mem_calloc(n + 1, sizeof(*x->is_dropped));
    x->cut = mem_calloc(n + 1, sizeof(*x->cut));
    for (size_t l = 0; l < ARRAY_LEN(lists); l++) {
        if (json_type(lists[l]) != JSON_ARRAY) continue;
        JSON_FOR_EACH(it, lists[l]) x->item[x->n_items++] = it;
    }
    x->n_cuts = truncation_find_cuts(x->item, x->n_items, x->cut);
}

/* --- which cut -------------------------------------------------------------------------------- */

/* Those that may be tried behind the first `base`. */
static void set_step(struct truncation *x, size_t base) {
    size_t n = x->n_cuts - base;

    x->base = base;
    x->step = 1;
    while (2 * x->step * LEAST_OF_STEPS <= n)
        x->step *= 2;
    x->n_tried = (uint32_t)(n / x->step);
    x->low = 0;
    x->high = x->n_tried + 1;
    assert(x->n_tried <= TRUNCATION_MAX_CUTS);
}

/* How many cuts there are up to that one, with it. */
static size_t place_of(const struct truncation *x, uint32_t at) {
    return at < x->n_tried ? x->base + at * x->step : x->n_cuts;
}

/* Less than two steps fit: smaller ones in the last, to leave more. */
static void refine(struct truncation *x) {
    size_t fits = place_of(x, x->high);

    if (!x->has_best || x->step == 1 || x->high < x->n_tried) return;
    set_step(x, place_of(x, x->low));
    x->high = fits == x->n_cuts ? x->n_tried : (uint32_t)((fits - x->base) / x->step);
}

/* To the next multiple of a power of two, the largest that fits twice: the turns to come are cut
 * there too. False: that is where it is. */
static bool round_up(struct truncation *x) {
    size_t fits = place_of(x, x->high), left = x->n_cuts - place_of(x, x->low), step = x->step;

    if (!x->has_best) return false;
    while (4 * step <= left)
        step *= 2;
    x->is_rounded = true;
    x->place = (fits + step - 1) / step * step;
    return x->place != fits;
}

/* False: there is none left to try. */
static bool choose(struct truncation *x) {
    if (x->is_rounded) return false;
    if (x->low + 1 >= x->high) refine(x);
    if (x->low + 1 >= x->high) return round_up(x);
    x->at = (x->low + x->high) / 2;
    x->place = place_of(x, x->at);
    return true;
}

/* --- on the text thread ----------------------------------------------------------------------- */

static enum status render(struct truncation *x, struct error *err) {
    const struct api *api = x->call->api;
    struct responses_asked asked = {.takes_late_system = api->takes_late_system,
                                    .earlier = x->earlier,
                                    .is_dropped = x->is_dropped};
    struct json *chat = NULL;
    struct buf body;
    enum status st;

    truncation_drop(x->item, x->n_items, x->cut[x->place - 1], x->is_dropped);
    buf_init(&body, 0);
    buf_clear(&x->now.text);
    st = responses_to_chat(x->call->asked, &asked, &body, err);
    if (st == ST_OK) st = body_translated(&chat, &body, err);
    buf_fini(&body);
    if (st == ST_OK) st = body_render_chat(api, chat, &x->now.text, err);
    if (st == ST_OK && buf_status(&x->now.text) != ST_OK)
        st = error_set(err, ST_NOMEM, "out of memory for the rendered conversation");
    x->now.n_calls = body_count_calls(chat);
    json_destroy(chat);
    return st;
}

static void attempt_fini(struct attempt *a) {
    buf_fini(&a->text);
    token_list_fini(&a->tokens);
}

/* The prompt that was tried fits. */
static void keep(struct truncation *x) {
    attempt_fini(&x->best);
    x->best = x->now;
    x->best.tokens = x->job->tokens;
    x->job->tokens = (struct token_list){0};
    x->now = (struct attempt){0};
    buf_init(&x->now.text, RENDERED_MAX);
    x->has_best = true;
    x->high = x->at;
}

/* The job becomes that of the best prompt; if all are too long, it stays refused. */
static bool end(struct truncation *x) {
    struct text_job *job = x->job;

    if (!x->has_best) return false;
    token_list_fini(&job->tokens);
    job->tokens = x->best.tokens;
    x->best.tokens = (struct token_list){0};
    job->text = buf_str(&x->best.text);
    job->has_too_many = false;
    job->status = ST_OK;
    return false;
}

static bool try_next(struct text_job *job) {
    struct truncation *x = CONTAINER_OF(job, struct prompt, job)->call->truncation;

    if (x->at == 0 && job->has_too_many) {
        list_items(x);
        set_step(x, 0);
        job->max_tokens = x->target_tokens;
    } else if (x->at > 0 && job->has_too_many) {
        x->low = x->at;
    } else if (x->at > 0 && job->status == ST_OK) {
        keep(x);
    } else {
        return false;
    }
    if (!choose(x)) return end(x);
    job->status = render(x, &job->err);
    job->has_too_many = false;
    job->text = buf_str(&x->now.text);
    return job->status == ST_OK;
}

/* --- on the loop ------------------------------------------------------------------------------ */

/* max_output_tokens that leave no room are refused with the prompt's length. */
static void set_limits(struct truncation *x, uint32_t max_model_len) {
    const struct call_params *params = &x->call->params;
    uint32_t wanted = params->request.max_tokens;

    x->most_tokens = max_model_len - 1;
    x->target_tokens = max_model_len - MAX(max_model_len / ANSWER_SHARE, 1u);
    if (params->has_max_tokens && wanted < max_model_len)
        x->most_tokens = x->target_tokens = max_model_len - wanted;
}

struct truncation *truncation_create(struct call *c, struct json *earlier) {
    struct truncation *x = mem_zalloc(sizeof(*x));

    x->call = c;
    x->job = &c->prompts[0].job;
    x->earlier = earlier;
    buf_init(&x->now.text, RENDERED_MAX);
    buf_init(&x->best.text, 0);
    set_limits(x, engine_info(c->api->engine)->max_model_len);
    x->job->next = try_next;
    return x;
}

void truncation_destroy(struct truncation *x) {
    if (!x) return;
    attempt_fini(&x->now);
    attempt_fini(&x->best);
    mem_free(x->item);
    mem_free(x->is_dropped);
    mem_free(x->cut);
    json_destroy(x->earlier);
    mem_free(x);
}

uint32_t truncation_most_tokens(const struct truncation *x) {
    return x->most_tokens;
}

void truncation_finish(struct truncation *x) {
    struct prompt *p = &x->call->prompts[0];

    if (!x->has_best || p->job.status != ST_OK) return;
    buf_fini(&p->text);
    p->text = x->best.text;
    buf_init(&x->best.text, 0);
    p->job.text = buf_str(&p->text);
    x->call->output.n_earlier_calls = x->best.n_calls;
}
