/* tests/fuzz/fuzz_chat_template.c - any template over one conversation: text, or a refusal that
 * explains why, soon. */
#include <stdlib.h>

#include "worker/text/template/jinja.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static enum status set_message(struct jinja_run *r, struct jv list, const char *role,
                               const char *content) {
    struct jv message;
    enum status st = jv_new_dict(r, 2, &message);

    if (st == ST_OK) st = jv_add(r, message, STR("role"), jv_string(str_of(role)));
    if (st == ST_OK) st = jv_add(r, message, STR("content"), jv_string(str_of(content)));
    return st == ST_OK ? jv_push(r, list, message) : st;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const struct jinja_limits limits = {
        .max_steps = 50000, .max_output_bytes = 1 << 20, .max_memory_bytes = 16 << 20};
    struct jinja_program *p = NULL;
    struct error err = {0};
    struct jinja_run *r;
    struct jv messages;
    struct buf out;
    enum status st;

    if (jinja_compile(&p, (struct str){(const char *)data, size}, &err) != ST_OK) {
        if (!err.message[0]) abort();
        return 0;
    }
    r = jinja_run_create(p, &limits, 1700000000, &err);
    buf_init(&out, 0);
    st = jv_new_list(r, 2, &messages);
    if (st == ST_OK) st = set_message(r, messages, "user", " Hi\n\"there\" \xC3\xA9");
    if (st == ST_OK) st = set_message(r, messages, "assistant", "a,b,,c");
    if (st == ST_OK) st = jinja_run_set(r, "messages", messages);
    if (st == ST_OK) st = jinja_run_set(r, "n", jv_int(-7));
    if (st == ST_OK) st = jinja_run_render(r, &out);
    if (st != ST_OK && st != err.status) abort();
    buf_fini(&out);
    jinja_run_destroy(r);
    jinja_destroy(p);
    return 0;
}
