/* tests/fuzz/fuzz_messages_request.c - whatever a client sends as a message: it is refused with a
 * sentence, or becomes a chat body whose messages templates can take. Linked to libFuzzer by `make
 * fuzz`, and included by the unit test, which feeds it mutations of a body. */
#include <stdlib.h>
#include <string.h>

#include "common/text/json.h"
#include "worker/api/fields/cache_control.h"
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

/* It is refused with a reason, or no mark contains another one of its time. */
static void require_marks(const struct json *root) {
    struct cache_control marks[CACHE_CONTROL_MAX];
    size_t n_messages = json_count(json_get(root, "messages"));
    struct error err = {0};
    uint32_t n = 0;

    if (cache_control_read(root, marks, &n, &err) != ST_OK) {
        REQUIRE(err.message[0] && err.param[0]);
        return;
    }
    REQUIRE(n <= CACHE_CONTROL_MAX);
    for (uint32_t i = 0; i < n; i++) {
        REQUIRE(marks[i].n_messages == CACHE_CONTROL_ALL || marks[i].n_messages <= n_messages);
        if (i == 0) continue;
        REQUIRE(marks[i].n_messages <= marks[i - 1].n_messages);
        REQUIRE(marks[i].ttl_s > marks[i - 1].ttl_s);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct json *root;
    struct buf out;

    if (json_parse(&root, (struct str){(const char *)data, size}, NULL, NULL) != ST_OK) return 0;
    require_marks(root);
    for (int i = 0; i < 6; i++) {
        struct messages_asked asked = {.takes_late_system = i & 1,
                                       .is_count = i & 2,
                                       .limits_thinking = i & 2,
                                       .is_beginning = i > 3,
                                       .n_messages = (size_t)i - 4};
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
