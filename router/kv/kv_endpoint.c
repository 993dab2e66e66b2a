/* router/kv/kv_endpoint.c - see the header. Labels were checked when the worker was configured
 * (discovery.c); what is out of range here comes from elsewhere, and is ignored. */
#include "router/kv/kv_endpoint.h"

#include <string.h>

#include "common/text/json.h"

static uint16_t number_of(struct str text, uint64_t max) {
    uint64_t n;

    return str_to_u64(text, &n) == ST_OK && n <= max ? (uint16_t)n : 0;
}

/* The value of "key=value"; STR_NULL: not that key. */
static struct str value_of(struct str setting, struct str key) {
    if (!str_starts(setting, key) || setting.len == key.len || setting.ptr[key.len] != '=')
        return STR_NULL;
    return (struct str){setting.ptr + key.len + 1, setting.len - key.len - 1};
}

/* The last rank's port must be one too. */
static bool is_valid(struct kv_endpoint *e) {
    uint16_t last = UINT16_MAX - KV_RANKS_MAX;

    e->n_ranks = MAX(e->n_ranks, 1);
    if (e->replay_port > last) e->replay_port = 0;
    return e->port > 0 && e->port <= last;
}

bool kv_endpoint_of_labels(struct kv_endpoint *out, const char *labels) {
    struct kv_endpoint e = {0};

    while (*labels) {
        struct str setting = {labels, strcspn(labels, " ")}, value;

        if ((value = value_of(setting, STR("kv_events"))).len) e.port = number_of(value, 65535);
        if ((value = value_of(setting, STR("kv_events_replay"))).len)
            e.replay_port = number_of(value, 65535);
        if ((value = value_of(setting, STR("kv_events_ranks"))).len)
            e.n_ranks = number_of(value, KV_RANKS_MAX);
        labels += setting.len + (labels[setting.len] == ' ');
    }
    if (!is_valid(&e)) return false;
    *out = e;
    return true;
}

/* "tcp://0.0.0.0:5557": 5557. */
static uint16_t port_of(const struct json *endpoint) {
    struct str text = STR_NULL;
    size_t n = 0;

    if (json_to_str(endpoint, &text) != ST_OK || !str_starts(text, STR("tcp://"))) return 0;
    while (n < text.len && text.ptr[text.len - 1 - n] != ':')
        n++;
    return number_of((struct str){text.ptr + text.len - n, n}, 65535);
}

static bool is_zmq(const struct json *config) {
    struct str publisher = STR_NULL;

    return json_to_str(json_get(config, "publisher"), &publisher) == ST_OK &&
           str_eq(publisher, STR("zmq"));
}

/* The page has it as a string with JSON, as it is given on SGLang's command line. */
static void read_config(struct kv_endpoint *e, const struct json *text) {
    struct json *config = NULL;
    struct str json = STR_NULL;

    if (json_to_str(text, &json) != ST_OK || json_parse(&config, json, NULL, NULL) != ST_OK) return;
    if (is_zmq(config)) {
        e->port =
            json_get(config, "endpoint") ? port_of(json_get(config, "endpoint")) : KV_PORT_USUAL;
        e->replay_port = port_of(json_get(config, "replay_endpoint"));
    }
    json_destroy(config);
}

static uint16_t ranks_of(const struct json *info) {
    uint64_t n = 1;

    if (json_to_u64(json_get(info, "dp_size"), &n) != ST_OK || n == 0) n = 1;
    return (uint16_t)MIN(n, KV_RANKS_MAX);
}

bool kv_endpoint_of_info(struct kv_endpoint *out, struct str text) {
    struct kv_endpoint e = {0};
    struct json *info = NULL;

    if (json_parse(&info, text, NULL, NULL) != ST_OK) return false;
    read_config(&e, json_get(info, "kv_events_config"));
    e.n_ranks = ranks_of(info);
    json_destroy(info);
    if (!is_valid(&e)) return false;
    *out = e;
    return true;
}
