/* tests/fuzz/fuzz_json.c - what the reader accepts, the writer writes, and the reader reads again
 * to the same bytes. Linked to libFuzzer by `make fuzz`, and included by the unit test, which feeds
 * it mutations of the same seeds. */
#include <stdlib.h>

#include "common/text/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool write_again(struct str text, struct buf *out) {
    struct error err = {0};
    struct json *root = NULL;
    struct json_writer w;

    if (json_parse(&root, text, NULL, &err) != ST_OK) {
        if (!err.message[0]) abort(); /* every refusal has a reason */
        return false;
    }
    json_writer_init(&w, out);
    json_put_tree(&w, root);
    if (!json_writer_is_done(&w)) abort();
    json_destroy(root);
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct str text = {(const char *)data, size};
    struct buf once, twice;

    buf_init(&once, 0);
    buf_init(&twice, 0);
    if (write_again(text, &once)) {
        if (!str_is_utf8(text) || !str_is_utf8(buf_str(&once))) abort();
        if (!write_again(buf_str(&once), &twice)) abort();
        if (!str_eq(buf_str(&once), buf_str(&twice))) abort();
    }
    buf_fini(&once);
    buf_fini(&twice);
    return 0;
}
