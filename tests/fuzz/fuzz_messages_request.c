/* tests/fuzz/fuzz_messages_request.c - whatever a client sends as a message: it is refused with a
 * sentence, or becomes a chat body whose messages templates can take. Linked to libFuzzer by `make
 * fuzz`, and included by the unit test, which feeds it mutations of a body. */
#include <stdlib.h>
#include <string.h>

#include "common/text/json.h"
#include "worker/api/wires/messages_request.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(x)                                                                                 \
    do {                                                                                           \
        if (!(x)) abort();                                                                         \
    } while (0)

/* Messages of roles; late ones of the system only where the template takes them. */
static void require_messages(const struct json *messages, bool late) {
    bool was_said = false;
    struct str role;

    JSON_FOR_EACH(it, messages) {
        REQUIRE(json_to_str(json_get(it, "role"), &role) == ST_OK);
        REQUIRE(late || !was_said || !str_eq(role, STR("system")));
        was_said = was_said || !str_eq(role, STR("system"));
    }
}

static void require_chat(const struct buf *out, bool late) {
    struct json_limits limits = {.max_depth = 512};
    struct json *chat;

    REQUIRE(json_parse(&chat, buf_str(out), &limits, NULL) == ST_OK);
    require_messages(json_get(chat, "messages"), late);
    json_destroy(chat);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct json *root;
    struct buf out;

    if (json_parse(&root, (struct str){(const char *)data, size}, NULL, NULL) != ST_OK) return 0;
    for (int i = 0; i < 4; i++) {
        struct messages_asked asked = {
            .takes_late_system = i & 1, .is_count = i & 2, .limits_thinking = i & 2};
        struct error err = {0};
        enum status st;

        buf_init(&out, 0);
        st = messages_to_chat(root, &asked, &out, &err);
        if (st == ST_OK) {
            require_chat(&out, asked.takes_late_system);
        } else {
            REQUIRE(st == ST_INVALID && err.message[0] && err.param[0]);
        }
        buf_fini(&out);
    }
    json_destroy(root);
    return 0;
}
