/* router/fleet/engine_stats.c - a table of names, and a reader of lines. */
#include "router/fleet/engine_stats.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "common/text/json.h"

#define NUMBER_MAX_BYTES 40
#define COUNT_MAX        9007199254740992.0 /* 2^53: beyond it doubles do not count */
#define BLOCKS_MAX       1099511627776.0    /* 2^40, like that of wire.c */
#define BLOCK_SIZE_MAX   1048576.0          /* tokens; more is refused */

const char *const engine_kind_names[] = {"unknown", "vllm", "sglang"};

/* --- lines ------------------------------------------------------------------------------------ */

static struct str take_up_to(struct str *s, char end) {
    const char *at = s->len ? memchr(s->ptr, end, s->len) : NULL;
    struct str part = {s->ptr, at ? (size_t)(at - s->ptr) : s->len};
    size_t used = part.len + (at != NULL);

    s->ptr += used;
    s->len -= used;
    return part;
}

static struct str trim(struct str s) {
    while (s.len && (s.ptr[0] == ' ' || s.ptr[0] == '\t')) {
        s.ptr++;
        s.len--;
    }
    return s;
}

/* The length of a quoted string, its quotes included; 0 when it has no end. */
static size_t quoted_len(struct str s) {
    for (size_t i = 1; i < s.len; i++) {
        if (s.ptr[i] == '\\') {
            i++;
        } else if (s.ptr[i] == '"') {
            return i + 1;
        }
    }
    return 0;
}

/* Where the labels end: the first brace outside quotes. Negative when there is none. */
static ptrdiff_t labels_end(struct str s) {
    for (size_t i = 0; i < s.len;) {
        if (s.ptr[i] == '}') return (ptrdiff_t)i;
        if (s.ptr[i] == '"') {
            size_t n = quoted_len((struct str){s.ptr + i, s.len - i});

            if (n == 0) return -1;
            i += n;
        } else {
            i++;
        }
    }
    return -1;
}

struct str prom_label(struct str labels, struct str name) {
    while (labels.len) {
        struct str key = trim(take_up_to(&labels, '='));
        size_t n = labels.len && labels.ptr[0] == '"' ? quoted_len(labels) : 0;

        if (n == 0) break;
        while (key.len && (key.ptr[0] == ',' || key.ptr[0] == ' ')) {
            key.ptr++;
            key.len--;
        }
        if (str_eq(key, name)) return (struct str){labels.ptr + 1, n - 2};
        labels.ptr += n;
        labels.len -= n;
    }
    return STR_NULL;
}

static bool read_number(struct str s, double *out) {
    char text[NUMBER_MAX_BYTES + 1];
    char *end;

    if (s.len == 0 || s.len > NUMBER_MAX_BYTES) return false;
    memcpy(text, s.ptr, s.len);
    text[s.len] = '\0';
    *out = strtod(text, &end);
    return end == text + s.len && isfinite(*out);
}

/* name{labels} value [timestamp] */
static bool read_line(struct str line, struct prom_sample *out) {
    size_t n = 0;
    ptrdiff_t end;

    line = trim(line);
    if (line.len && line.ptr[line.len - 1] == '\r') line.len--;
    while (n < line.len && line.ptr[n] != '{' && line.ptr[n] != ' ')
        n++;
    if (n == 0 || n == line.len || line.ptr[0] == '#') return false;
    out->name = (struct str){line.ptr, n};
    out->labels = STR("");
    line = trim((struct str){line.ptr + n, line.len - n});
    if (line.len && line.ptr[0] == '{') {
        line = (struct str){line.ptr + 1, line.len - 1};
        end = labels_end(line);
        if (end < 0) return false;
        out->labels = (struct str){line.ptr, (size_t)end};
        line = trim((struct str){line.ptr + end + 1, line.len - (size_t)end - 1});
    }
    return read_number(take_up_to(&line, ' '), &out->value);
}

bool prom_next(struct str *page, struct prom_sample *out) {
    while (page->len) {
        if (read_line(take_up_to(page, '\n'), out)) return true;
    }
    return false;
}

/* --- names ------------------------------------------------------------------------------------ */

#define AT(member) offsetof(struct engine_stats, member)

enum how { SUM, LARGEST, BLOCKS };

static const struct known {
    const char *name;
    size_t field;
    int age; /* the spelling with the least wins */
    enum how how;
} known[] = {
    {"vllm:prompt_tokens_total", AT(prompt_tokens), 0, SUM},
    {"vllm:prompt_tokens", AT(prompt_tokens), 1, SUM},
    {"vllm:prefix_cache_queries_total", AT(queried_tokens), 0, SUM},
    {"vllm:prefix_cache_queries", AT(queried_tokens), 1, SUM},
    {"vllm:gpu_prefix_cache_queries_total", AT(queried_tokens), 2, SUM},
    {"vllm:gpu_prefix_cache_queries", AT(queried_tokens), 3, SUM},
    {"vllm:prefix_cache_hits_total", AT(hit_tokens), 0, SUM},
    {"vllm:prefix_cache_hits", AT(hit_tokens), 1, SUM},
    {"vllm:gpu_prefix_cache_hits_total", AT(hit_tokens), 2, SUM},
    {"vllm:gpu_prefix_cache_hits", AT(hit_tokens), 3, SUM},
    {"vllm:time_to_first_token_seconds_count", AT(first_tokens), 0, SUM},
    {"vllm:num_requests_running", AT(running), 0, SUM},
    {"vllm:num_requests_waiting", AT(waiting), 0, SUM},
    {"vllm:kv_cache_usage_perc", AT(kv_usage), 0, LARGEST},
    {"vllm:gpu_cache_usage_perc", AT(kv_usage), 1, LARGEST},
    {"vllm:cache_config_info", AT(n_blocks), 0, BLOCKS},
    {"sglang:prompt_tokens_total", AT(prompt_tokens), 0, SUM},
    {"sglang:cached_tokens_total", AT(hit_tokens), 0, SUM},
    {"sglang:time_to_first_token_seconds_count", AT(first_tokens), 0, SUM},
    {"sglang:num_running_reqs", AT(running), 0, SUM},
    {"sglang:num_queue_reqs", AT(waiting), 0, SUM},
    {"sglang:token_usage", AT(kv_usage), 0, LARGEST},
    {"sglang:max_total_num_tokens", AT(n_blocks), 0, SUM}, /* divided by the block size below */
    {"sglang:page_size", AT(block_size), 0, LARGEST},
    {"process_start_time_seconds", AT(start_s), 0, LARGEST},
};

/* Engines behind one page, each with a cache of its own: their blocks add up. */
static void add_blocks(struct engine_stats *out, struct str labels) {
    double n, size;

    if (!read_number(prom_label(labels, STR("num_gpu_blocks")), &n)) return;
    if (!read_number(prom_label(labels, STR("block_size")), &size)) return;
    if (!(n >= 1 && n <= BLOCKS_MAX && size >= 1 && size <= BLOCK_SIZE_MAX)) return;
    out->n_blocks = MIN(MAX(out->n_blocks, 0) + n, BLOCKS_MAX);
    out->block_size = size;
}

static void add_sample(struct engine_stats *out, const struct prom_sample *s, const struct known *k,
                       int *age) {
    double *field = (double *)(void *)((char *)out + k->field);
    struct str rank = prom_label(s->labels, STR("tp_rank"));

    if (rank.ptr && !str_eq(rank, STR("0"))) return;
    if (!(s->value >= 0 && s->value <= COUNT_MAX) || k->age > *age) return;
    if (k->age < *age) *field = -1;
    *age = k->age;
    switch (k->how) {
    case SUM: *field = MIN(MAX(*field, 0) + s->value, COUNT_MAX); break;
    case LARGEST: *field = MAX(*field, s->value); break;
    case BLOCKS: add_blocks(out, s->labels); break;
    }
}

static const struct engine_stats nothing = {
    .prompt_tokens = -1,
    .queried_tokens = -1,
    .hit_tokens = -1,
    .first_tokens = -1,
    .running = -1,
    .waiting = -1,
    .kv_usage = -1,
    .n_blocks = -1,
    .block_size = -1,
    .start_s = -1,
};

static enum engine_kind kind_of(struct str name) {
    return str_starts(name, STR("vllm:"))     ? ENGINE_VLLM
           : str_starts(name, STR("sglang:")) ? ENGINE_SGLANG
                                              : ENGINE_UNKNOWN;
}

/* SGLang counts tokens where vLLM counts blocks, and looks up everything it computes. */
static void fit_sglang(struct engine_stats *out) {
    if (out->n_blocks > 0) {
        out->block_size = MAX(out->block_size, 1);
        out->n_blocks = floor(out->n_blocks / out->block_size);
        if (out->n_blocks > BLOCKS_MAX || out->block_size > BLOCK_SIZE_MAX) {
            out->n_blocks = out->block_size = -1;
        }
    }
    if (out->hit_tokens >= 0) out->queried_tokens = out->prompt_tokens;
}

bool engine_stats_read_page(struct engine_stats *out, struct str page) {
    int ages[sizeof(struct engine_stats) / sizeof(double) + 1];
    struct prom_sample sample;

    *out = nothing;
    for (size_t i = 0; i < ARRAY_LEN(ages); i++)
        ages[i] = INT32_MAX;
    while (prom_next(&page, &sample)) {
        enum engine_kind kind = kind_of(sample.name);

        if (kind == ENGINE_UNKNOWN && sample.name.ptr[0] != 'p') continue;
        for (size_t i = 0; i < ARRAY_LEN(known); i++) {
            if (!str_eq(sample.name, str_of(known[i].name))) continue;
            add_sample(out, &sample, &known[i], &ages[known[i].field / sizeof(double)]);
            if (kind != ENGINE_UNKNOWN) out->kind = kind;
        }
    }
    if (out->kind == ENGINE_SGLANG) fit_sglang(out);
    return out->kind != ENGINE_UNKNOWN;
}

/* "null" without disaggregation. */
static void read_part(struct engine_stats *stats, const struct json *root) {
    struct str mode;
    uint64_t port = WORKER_BOOTSTRAP_PORT;

    if (json_to_str(json_get(root, "disaggregation_mode"), &mode) != ST_OK) return;
    stats->part = (struct worker_part){.role = WORKER_BOTH};
    (void)worker_role_read(mode, &stats->part.role);
    if (json_get_u64(root, "disaggregation_bootstrap_port", 1, UINT16_MAX, &port, NULL, NULL) !=
        ST_OK)
        port = WORKER_BOOTSTRAP_PORT;
    stats->part.bootstrap_port = (uint16_t)(port ? port : WORKER_BOOTSTRAP_PORT);
}

void engine_stats_read_info(struct engine_stats *stats, struct str json) {
    uint64_t tokens = 0, page = 1;
    struct json *root;

    if (json_parse(&root, json, NULL, NULL) != ST_OK) return;
    if (json_get_u64(root, "max_total_num_tokens", 1, (uint64_t)BLOCKS_MAX, &tokens, NULL, NULL) ==
            ST_OK &&
        tokens > 0) {
        if (json_get_u64(root, "page_size", 1, (uint64_t)BLOCK_SIZE_MAX, &page, NULL, NULL) !=
                ST_OK ||
            !page) {
            page = 1;
        }
        stats->block_size = (double)page;
        stats->n_blocks = (double)(tokens / page);
    }
    read_part(stats, root);
    json_destroy(root);
}

static bool is_id_byte(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c && strchr("-_.:", c));
}

/* It is put into bodies as it is. */
static bool read_id(char out[WORKER_ENGINE_ID_MAX], const struct json *engine) {
    struct str id;

    if (json_to_str(json_get(engine, "engine_id"), &id) != ST_OK) return false;
    if (!id.len || id.len >= WORKER_ENGINE_ID_MAX) return false;
    for (size_t i = 0; i < id.len; i++) {
        if (!is_id_byte(id.ptr[i])) return false;
    }
    memcpy(out, id.ptr, id.len);
    out[id.len] = '\0';
    return true;
}

static bool read_engine(struct worker_engine *out, const struct json *engine) {
    uint64_t rank = 0;

    if (str_to_u64(json_key(engine), &rank) != ST_OK || rank > UINT16_MAX) return false;
    out->rank = (uint32_t)rank;
    return read_id(out->id, engine);
}

bool engine_stats_read_engines(struct worker_engines *out, struct str json) {
    struct json *root;
    bool is_good;

    out->n = 0;
    if (json_parse(&root, json, NULL, NULL) != ST_OK) return false;
    is_good = json_type(root) == JSON_OBJECT;
    JSON_FOR_EACH(it, root) {
        if (!is_good || out->n == WORKER_ENGINES_MAX) break;
        is_good = read_engine(&out->engines[out->n], it);
        out->n += is_good;
    }
    json_destroy(root);
    if (!is_good) out->n = 0;
    return out->n > 0;
}
