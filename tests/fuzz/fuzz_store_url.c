/* tests/fuzz/fuzz_store_url.c - any bytes as the URL of a store: what is taken has a name that
 * leads to the same place. */
#include <stdlib.h>
#include <string.h>

#include "worker/kv/tiers/store/store_url.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct store_url url, again;
    struct error err = {0};

    if (store_url_parse((struct str){(const char *)data, size}, &url, &err) != ST_OK) {
        if (!err.message[0]) abort();
        return 0;
    }
    if (url.path[0]) return 0; /* may hold what begins a query */
    if (store_url_parse(str_of(store_url_name(&url)), &again, &err) != ST_OK) abort();
    if (strcmp(store_url_name(&url), store_url_name(&again)) != 0) abort();
    if (strcmp(url.at.host, again.at.host) != 0 || url.at.port != again.at.port) abort();
    return 0;
}
