/* tests/fuzz/fuzz_chat_messages.c - any JSON as the messages of a request: what a template gets can
 * be printed, or the request is refused with a sentence. Linked to libFuzzer by `make fuzz`. */
#include <stdlib.h>

#include "common/text/json.h"
#include "worker/text/template/chat_messages.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Asks what templates ask: parts or a string, calls and their arguments, whether a name is
 * there. */
static const char messages_template[] =
    "{% for m in messages %}{{ m.role }}:{% if m.content is none %}none{% elif m.content is string "
    "%}"
    "{{ m.content }}{% else %}{% for p in m.content %}{{ p.type }}={{ p.text }}{% endfor %}{% "
    "endif %}"
    "{% if m.tool_calls is defined %}{% for c in m.tool_calls %}{{ c.function.name }}"
    "{{ c.function.arguments | tojson }}{% endfor %}{% endif %}"
    "{% if 'reasoning_content' in m %}{{ m.reasoning_content }}{% endif %}{% endfor %}";

static const struct jinja_program *fuzz_program(void) {
    static struct jinja_program *program; /* one for all inputs: it never changes */
    struct error err = {0};

    if (!program && jinja_compile(&program, str_of(messages_template), &err) != ST_OK) abort();
    return program;
}

static void convert(const struct json *root, bool is_plain, bool copies) {
    static const struct jinja_limits limits = {
        .max_steps = 50000, .max_output_bytes = 1 << 20, .max_memory_bytes = 16 << 20};
    struct error err = {0}, run_err = {0};
    struct chat_conversion c = {.program = fuzz_program(),
                                .has_developer = is_plain,
                                .is_plain = is_plain,
                                .copies = copies,
                                .err = &err};
    struct jv messages;
    struct buf out;
    enum status st;

    c.run = jinja_run_create(fuzz_program(), &limits, 1700000000, &run_err);
    buf_init(&out, 0);
    st = chat_convert_messages(&c, root, &messages);
    if (st == ST_OK) {
        if (jinja_run_set(c.run, "messages", messages) == ST_OK)
            (void)jinja_run_render(c.run, &out);
    } else if (!err.message[0] && !run_err.message[0]) {
        abort(); /* every refusal has a reason */
    }
    buf_fini(&out);
    jinja_run_destroy(c.run);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct error err = {0};
    struct json *root;

    if (json_parse(&root, (struct str){(const char *)data, size}, NULL, &err) != ST_OK) return 0;
    convert(root, false, false);
    convert(root, true, true);
    json_destroy(root);
    return 0;
}
