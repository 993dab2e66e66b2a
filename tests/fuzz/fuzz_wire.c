/* tests/fuzz/fuzz_wire.c - what a worker reports of itself: /server_info and headers of answers.
 *
 * The first byte selects one. What is accepted keeps to the limits that readers trust, and reads
 * back as itself after it is written again; what is rejected leaves the result untouched. */
#include <stdlib.h>
#include <string.h>

#include "common/protocol/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool is_true) {
    if (!is_true) abort();
}

static void check_limits(const struct wire_server_info *info) {
    const char *cursor = info->other_names;
    uint64_t n_blocks = wire_tier_blocks(info);
    double speed = wire_restore_tokens_per_s(info);
    struct str name;

    check(info->wire >= 1 && info->n_tiers <= WIRE_TIERS_MAX);
    check(n_blocks <= WIRE_TIERS_MAX * (UINT64_C(1) << 40));
    check(speed >= 0 && speed <= 1e15 * 1.001);
    while ((name = wire_names_next(&cursor)).len)
        check(name.len < WIRE_MODEL_MAX);
    check(cursor <= info->other_names + WIRE_NAMES_MAX - 1);
    for (uint32_t i = 0; i < info->n_tiers; i++)
        check(memchr(info->tiers[i].name, '\0', WIRE_TIER_NAME_MAX) != NULL);
    check(memchr(info->model, '\0', WIRE_MODEL_MAX) && memchr(info->uuid, '\0', WIRE_UUID_MAX));
}

static void fuzz_info(struct str json) {
    struct wire_server_info info = {.n_tiers = 99}, again;
    struct error err = {0};
    struct buf a, b;

    if (wire_parse_server_info(json, &info, &err) != ST_OK) {
        check(info.n_tiers == 99 && err.message[0]);
        return;
    }
    check_limits(&info);
    buf_init(&a, 0);
    buf_init(&b, 0);
    wire_append_server_info(&a, &info);
    check(wire_parse_server_info(buf_str(&a), &again, &err) == ST_OK);
    wire_append_server_info(&b, &again);
    check(str_eq(buf_str(&a), buf_str(&b)));
    buf_fini(&a);
    buf_fini(&b);
}

/* A sum of tokens is no less than any of its parts: each is read alone as well. */
static void fuzz_tiers(struct str value) {
    uint32_t sum = 7, part;
    uint64_t total = 0;

    if (wire_parse_tiers(value, &sum) != ST_OK) {
        check(sum == 7);
        return;
    }
    check(sum <= INT32_MAX);
    while (value.len) {
        const char *end = memchr(value.ptr, ' ', value.len);
        size_t n = end ? (size_t)(end - value.ptr) : value.len;

        check(wire_parse_tiers((struct str){value.ptr, n}, &part) == ST_OK);
        total += part;
        n = MIN(n + 1, value.len);
        value = (struct str){value.ptr + n, value.len - n};
    }
    check(total == sum);
}

static void fuzz_load(struct str value) {
    struct wire_load load, again;
    char text[WIRE_LOAD_MAX];
    uint32_t n_tokens;

    if (wire_parse_tokens(value, &n_tokens) == ST_OK) check(n_tokens <= INT32_MAX);
    if (wire_parse_load(value, &load) != ST_OK) return;
    check(load.kv_free <= load.kv_total);
    check(wire_format_load(&load, text) == strlen(text));
    check(wire_parse_load(str_of(text), &again) == ST_OK);
    check(load.running == again.running && load.waiting == again.waiting);
    check(load.queued_tokens == again.queued_tokens && load.draining == again.draining);
    check(load.kv_free == again.kv_free && load.kv_total == again.kv_total);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *copy; /* as long as the input, so that reading behind it is seen */
    struct str rest;

    if (size == 0) return 0;
    copy = malloc(size);
    memcpy(copy, data + 1, size - 1);
    rest = (struct str){copy, size - 1};
    switch (data[0] % 3) {
    case 0: fuzz_info(rest); break;
    case 1: fuzz_tiers(rest); break;
    case 2: fuzz_load(rest); break;
    }
    free(copy);
    return 0;
}
