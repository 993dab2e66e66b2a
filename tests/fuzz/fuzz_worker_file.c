/* tests/fuzz/fuzz_worker_file.c - lists of workers: what is accepted reads back as what it is. */
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "router/fleet/discovery.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct discovery_set set = {0};
    struct error err = {0};
    char *copy = mem_alloc(size + 1);

    memcpy(copy, data, size);
    if (discovery_file_parse((struct str){copy, size}, "file", &set, &err) == ST_OK) {
        for (uint32_t i = 0; i < set.n; i++) {
            const struct address_url *u = &set.workers[i].url;
            struct address_url again;

            if (address_split(str_of(u->url), &again, NULL) != ST_OK) abort();
            if (strcmp(again.url, u->url) != 0 || strcmp(again.host, u->host) != 0) abort();
            if (again.port != u->port || again.is_https != u->is_https || u->port == 0) abort();
            if (strpbrk(u->url, "\r\n @?#%")) abort();
        }
    } else if (!err.message[0] || set.n) {
        abort();
    }
    discovery_set_fini(&set);
    mem_free(copy);
    return 0;
}
