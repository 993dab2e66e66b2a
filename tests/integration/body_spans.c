/* tests/integration/body_spans.c - what the body scan makes of documents, for comparison with
 * another reader (test_body_scan.py).
 *
 * Reads documents from standard input, each after its length (decimal, a line of its own), and
 * writes a line for each: "no" and why, or "ok" and the spans that were found, "key=offset:length",
 * and last whether the strict JSON reader of the control plane takes the document too. All
 * instruction paths of this machine are asked and must agree. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/text/json.h"
#include "router/prompt/body_scan_internal.h"

static const char *const names[BODY_KEY_COUNT] = {
    [BODY_MODEL] = "model",
    [BODY_MESSAGES] = "messages",
    [BODY_SYSTEM] = "system",
    [BODY_PROMPT] = "prompt",
    [BODY_TEXT] = "text",
    [BODY_INPUT_IDS] = "input_ids",
    [BODY_TOOLS] = "tools",
    [BODY_CACHE_SALT] = "cache_salt",
    [BODY_LORA_PATH] = "lora_path",
    [BODY_ADAPTER] = "adapter",
    [BODY_STREAM] = "stream",
    [BODY_MAX_TOKENS] = "max_tokens",
    [BODY_MAX_COMPLETION_TOKENS] = "max_completion_tokens",
    [BODY_SAMPLING_PARAMS] = "sampling_params",
    [BODY_PROMPT_CACHE_KEY] = "prompt_cache_key",
    [BODY_SESSION_ID] = "session_id",
    [BODY_USER] = "user",
    [BODY_EXTRA_KEY] = "extra_key",
    [BODY_PRIORITY] = "priority",
};

static enum status scan_on_all_paths(struct str body, struct body_scan *out, struct error *err) {
    enum status st = body_scan_with(body, out, string_scan_at(0), err);

    for (uint32_t i = 1; string_scan_at(i); i++) {
        struct error other_err = {0};
        struct body_scan other;

        if (body_scan_with(body, &other, string_scan_at(i), &other_err) != st ||
            strcmp(err->message, other_err.message) != 0 ||
            (st == ST_OK && memcmp(out->spans, other.spans, sizeof(other.spans)) != 0)) {
            fprintf(stderr, "%s and %s disagree\n", string_scan_at(0)->name,
                    string_scan_at(i)->name);
            exit(1);
        }
    }
    return st;
}

static void judge(struct str body) {
    struct error err = {0};
    struct json *root = NULL;
    struct body_scan scan;

    if (scan_on_all_paths(body, &scan, &err) != ST_OK) {
        printf("no %s", err.message);
    } else {
        printf("ok");
        for (int i = 0; i < BODY_KEY_COUNT; i++) {
            if (!scan.spans[i].ptr) continue;
            printf(" %s=%zu:%zu", names[i], (size_t)(scan.spans[i].ptr - body.ptr),
                   scan.spans[i].len);
        }
    }
    printf(json_parse(&root, body, NULL, NULL) == ST_OK ? " json\n" : " -\n");
    json_destroy(root);
}

int main(void) {
    size_t n;

    while (scanf("%zu", &n) == 1 && getchar() == '\n') {
        char *body = malloc(n + !n); /* of exactly its size: a sanitizer sees a byte read too far */

        if (!body || fread(body, 1, n, stdin) != n) return 1;
        judge((struct str){body, n});
        free(body);
    }
    return 0;
}
