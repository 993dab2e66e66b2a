/* tests/fuzz/fuzz_weights_index.c - any index of shards: refused with an error, or
 * every file that it names is one of the folder, and fit for a URL once the hub's rule took it. */
#include <stdlib.h>
#include <string.h>

#include "worker/model/checkpoint/weights.h"
#include "worker/model/hub_cache.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(x)                                                                                 \
    do {                                                                                           \
        if (!(x)) abort();                                                                         \
    } while (0)

static enum status on_entry(void *arg, struct str tensor, const char *file, struct error *err) {
    (void)arg, (void)err;
    REQUIRE(tensor.ptr && file[0] && file[0] != '.' && !strchr(file, '/') && strlen(file) < 256);
    if (hub_is_file_name(str_of(file))) REQUIRE(!strpbrk(file, "%?#& \"\\") && !strstr(file, ".."));
    return ST_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct error err = {0};
    char text[512];

    if (weights_index_read((struct str){(const char *)data, size}, on_entry, NULL, &err) != ST_OK)
        REQUIRE(err.message[0]);
    if (size >= sizeof(text)) return 0;
    memcpy(text, data, size); /* the same bytes as names */
    text[size] = '\0';
    if (hub_is_model_name(text)) REQUIRE(text[0] != '.' && text[0] != '/' && !strstr(text, ".."));
    if (hub_is_revision(text)) REQUIRE(text[0] != '/' && !strstr(text, "..") && !strchr(text, '%'));
    if (hub_is_commit(text)) REQUIRE(strlen(text) == 40);
    return 0;
}
