/* router/proxy/forward.c - the lists: calls per kind of worker, fields that are refused. */
#include "router/proxy/forward.h"

#include <string.h>

#include "common/protocol/api.h"

#define OURS   WORKER_KIND_BIT(WORKER_OURS)
#define VLLM   WORKER_KIND_BIT(WORKER_VLLM)
#define SGLANG WORKER_KIND_BIT(WORKER_SGLANG)
#define OTHER  WORKER_KIND_BIT(WORKER_OTHER)
#define ALL    (OURS | VLLM | SGLANG | OTHER)
#define OTHERS (VLLM | SGLANG | OTHER)

/* The most frequent first. Only calls that compute an answer and change nothing for other
 * clients. */
static const struct {
    struct str path;
    uint32_t kinds;
    enum forward_work work;
} calls[] = {
    {STR("/v1/chat/completions"), ALL, WORK_PROMPT},
    {STR("/v1/completions"), ALL, WORK_PROMPT},
    {STR("/generate"), ALL, WORK_PROMPT},
    {STR("/tokenize"), ALL, WORK_TOKENS},
    {STR("/detokenize"), ALL, WORK_TOKENS},
    {STR(API_RESPONSES_PATH), ALL, WORK_PROMPT},
    {STR(API_MESSAGES_PATH), ALL, WORK_PROMPT},
    {STR(API_COUNT_TOKENS_PATH), ALL, WORK_TOKENS},
    {STR("/v1/embeddings"), OTHERS, WORK_PROMPT},
    {STR("/v1/rerank"), OTHERS, WORK_PROMPT},
    {STR("/rerank"), OTHERS, WORK_PROMPT},
    {STR("/v2/rerank"), VLLM | OTHER, WORK_PROMPT},
    {STR("/v1/score"), VLLM | SGLANG, WORK_PROMPT},
    {STR("/score"), VLLM, WORK_PROMPT},
    {STR("/v1/classify"), SGLANG, WORK_PROMPT},
    {STR("/classify"), VLLM | SGLANG, WORK_PROMPT},
    {STR("/pooling"), VLLM, WORK_PROMPT},
    {STR("/encode"), SGLANG, WORK_PROMPT},
    {STR("/v1/moderations"), OTHER, WORK_PROMPT},
    {STR("/v1/tokenize"), SGLANG, WORK_TOKENS},
    {STR("/v1/detokenize"), SGLANG, WORK_TOKENS},
    {STR("/v1/audio/speech"), VLLM | OTHER, WORK_OTHER},
    {STR("/v1/audio/transcriptions"), OTHERS, WORK_OTHER},
    {STR("/v1/audio/translations"), VLLM | OTHER, WORK_OTHER},
    {STR("/v1/images/generations"), OTHER, WORK_OTHER},
};

static const struct {
    enum body_key key;
    const char *name, *why;
} fields[] = {
    {BODY_KV_TRANSFER_PARAMS, "kv_transfer_params",
     "it makes a worker fetch KV blocks from a host that the client names"},
    {BODY_EC_TRANSFER_PARAMS, "ec_transfer_params",
     "it makes a worker fetch encoder outputs from a host that the client names"},
    {BODY_BOOTSTRAP_HOST, "bootstrap_host",
     "it makes a worker connect to a host that the client names"},
    {BODY_SESSION_PARAMS, "session_params",
     "it continues a session, which may be another client's"},
    {BODY_CUSTOM_LOGIT_PROCESSOR, "custom_logit_processor",
     "it makes a worker run code that the client sends"},
};

/* --- paths ------------------------------------------------------------------------------------ */

static bool is_glob(struct str pattern) {
    return pattern.len > 1 && pattern.ptr[pattern.len - 1] == '*';
}

/* No byte that a worker could decode to another path. */
static bool is_verbatim(struct str s) {
    return !memchr(s.ptr, '%', s.len) && !memchr(s.ptr, '\\', s.len);
}

static bool matches(struct str pattern, struct str path) {
    if (!is_glob(pattern)) return str_eq(pattern, path);
    pattern.len--;
    if (path.len <= pattern.len || !str_starts(path, pattern)) return false;
    path.ptr += pattern.len;
    path.len -= pattern.len;
    return is_verbatim(path);
}

struct forward_call forward_find(const struct forward *f, struct str path) {
    struct forward_call call = {.work = WORK_PROMPT}; /* an unknown call may compute one */

    for (size_t i = 0; i < ARRAY_LEN(calls); i++) {
        if (!str_eq(path, calls[i].path)) continue;
        call = (struct forward_call){calls[i].kinds, 0, true, calls[i].work};
        break;
    }
    if (str_eq(path, STR(API_MESSAGES_PATH))) call.kinds_unsalted = VLLM | SGLANG;
    for (uint32_t i = 0; i < f->paths.n && call.kinds != ALL; i++) {
        if (!matches(str_of(f->paths.items[i]), path)) continue;
        call.kinds = ALL;
        call.kinds_unsalted = 0; /* the operator allowed it */
    }
    return call;
}

struct str forward_stored_id(enum http_method method, struct str path) {
    struct str above = STR(API_RESPONSES_PATH "/"), tail = STR("/input_items"), id = path;

    if ((method != HTTP_GET && method != HTTP_DELETE) || !str_starts(path, above)) return STR_NULL;
    id.ptr += above.len;
    id.len -= above.len;
    if (method == HTTP_GET && str_ends(id, tail)) id.len -= tail.len;
    if (id.len == 0 || memchr(id.ptr, '/', id.len) || !is_verbatim(id)) return STR_NULL;
    return id;
}

#define SHOWN(s) (int)MIN((s).len, 100), (s).ptr

enum status forward_refuse_path(struct str path, struct error *err) {
    return error_set(err, ST_NOT_FOUND,
                     "POST %.*s is not forwarded to workers: the router serves /v1/completions, "
                     "/v1/chat/completions and other calls of its list; --forward-path adds one",
                     SHOWN(path));
}

enum status forward_refuse_kind(struct str path, enum worker_kind kind, struct error *err) {
    static const char *const names[WORKER_KIND_COUNT] = {"incipit-worker", "vLLM", "SGLang",
                                                         "an OpenAI-compatible server"};

    return error_set(err, ST_NOT_FOUND,
                     "POST %.*s is not forwarded to this model's worker, which is %s: use another "
                     "call, or start the router with --forward-path %.*s",
                     SHOWN(path), names[kind], SHOWN(path));
}

enum status forward_refuse_unsalted(struct str path, struct error *err) {
    return error_set(
        err, ST_FORBIDDEN,
        "POST %.*s is not forwarded while tenants are isolated, because the engine reads no "
        "cache_salt in this call: use /v1/chat/completions, or start the router with "
        "--forward-path %.*s, which lets tenants share what this call caches",
        SHOWN(path), SHOWN(path));
}

enum status forward_refuse_unsalted_stored(struct error *err) {
    return error_set(err, ST_FORBIDDEN,
                     "stored responses are not forwarded while tenants are isolated, because this "
                     "worker keeps those of all tenants together: start it with --trust-router, or "
                     "send the whole input");
}

/* --- fields ----------------------------------------------------------------------------------- */

static bool is_allowed(const struct forward *f, const char *name) {
    for (uint32_t i = 0; i < f->fields.n; i++) {
        if (strcmp(f->fields.items[i], name) == 0) return true;
    }
    return false;
}

enum status forward_check_fields(const struct forward *f, const struct body_scan *scan,
                                 struct error *err) {
    for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
        struct str value = scan->spans[fields[i].key];

        if (!value.ptr || str_eq(value, STR("null")) || is_allowed(f, fields[i].name)) continue;
        return error_set_param(err, ST_FORBIDDEN, fields[i].name,
                               "%s is not forwarded to workers, because %s: leave it out, or start "
                               "the router with --forward-field %s",
                               fields[i].name, fields[i].why, fields[i].name);
    }
    return ST_OK;
}

/* --- options ---------------------------------------------------------------------------------- */

static bool is_field(const char *name) {
    for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
        if (strcmp(fields[i].name, name) == 0) return true;
    }
    return false;
}

enum status forward_check_options(const struct forward *f, struct error *err) {
    for (uint32_t i = 0; i < f->paths.n; i++) {
        const char *path = f->paths.items[i], *star = strchr(path, '*');

        if (path[0] == '/' && !strpbrk(path, "%\\?#") &&
            (!star || (star[1] == '\0' && star[-1] == '/')))
            continue;
        return error_set(
            err, ST_INVALID,
            "--forward-path '%.100s' is not a path: begin with '/', write no escapes and no "
            "query, and end with '/*' for all paths below",
            path);
    }
    for (uint32_t i = 0; i < f->fields.n; i++) {
        if (is_field(f->fields.items[i])) continue;
        return error_set(
            err, ST_INVALID,
            "--forward-field '%.60s' is no field that is refused by default: use one of "
            "kv_transfer_params, ec_transfer_params, bootstrap_host, session_params and "
            "custom_logit_processor",
            f->fields.items[i]);
    }
    return ST_OK;
}
