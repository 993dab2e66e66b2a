/* tests/fuzz/fuzz_responses_request.c - whatever a client sends for a response: it is refused with
 * a sentence, or becomes a chat body whose functions are found again. Linked to libFuzzer by `make
 * fuzz`, and included by the unit test, which feeds it mutations of a body. */
#include <stdlib.h>
#include <string.h>

#include "common/text/json.h"
#include "worker/api/wires/responses_request.h"
#include "worker/api/wires/responses_tools.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(x)                                                                                 \
    do {                                                                                           \
        if (!(x)) abort();                                                                         \
    } while (0)

/* A function's name is that of its tool again. */
static void require_tools(const struct json *tools, const struct json *body) {
    JSON_FOR_EACH(it, tools) {
        struct responses_tool tool;
        struct str type, name;
        const char *member;
        struct buf again;

        REQUIRE(json_to_str(json_get(it, "type"), &type) == ST_OK);
        REQUIRE(str_eq(type, STR("function")) || str_eq(type, STR("custom")));
        member = str_eq(type, STR("custom")) ? "custom" : "function";
        REQUIRE(json_to_str(json_get(json_get(it, member), "name"), &name) == ST_OK);
        tool = responses_tool_of(body, name);
        buf_init(&again, 0);
        responses_append_function(&again, tool.space, tool.name);
        REQUIRE(str_eq(buf_str(&again), name));
        buf_fini(&again);
    }
}

static void require_chat(const struct buf *out, const struct json *body) {
    struct json_limits limits = {.max_depth = 512};
    struct json *chat;
    struct str role;

    REQUIRE(json_parse(&chat, buf_str(out), &limits, NULL) == ST_OK);
    JSON_FOR_EACH(it, json_get(chat, "messages")) {
        REQUIRE(json_to_str(json_get(it, "role"), &role) == ST_OK);
    }
    require_tools(json_get(chat, "tools"), body);
    json_destroy(chat);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct json *root;
    struct buf out;

    if (json_parse(&root, (struct str){(const char *)data, size}, NULL, NULL) != ST_OK) return 0;
    for (int i = 0; i < 2; i++) {
        struct responses_asked asked = {.takes_late_system = i,
                                        .earlier = json_get(root, "earlier")};
        struct error err = {0};
        enum status st;

        buf_init(&out, 0);
        st = responses_to_chat(root, &asked, &out, &err);
        if (st == ST_OK) {
            require_chat(&out, root);
        } else {
            REQUIRE(st == ST_INVALID && err.message[0] && err.param[0]);
        }
        buf_fini(&out);
    }
    json_destroy(root);
    return 0;
}
