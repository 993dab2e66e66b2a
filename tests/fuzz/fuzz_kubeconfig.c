/* tests/fuzz/fuzz_kubeconfig.c - any file is read or refused with a reason, and what is read is
 * text. */
#include <stdlib.h>

#include "common/base/buf.h"
#include "router/fleet/discovery/kube_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static size_t length(const char *s) {
    return s ? strlen(s) : 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct str text = {(const char *)data, size};
    struct kube_access access = {0};
    struct arena memory;
    struct error err = {0};
    enum status st;

    arena_init(&memory, 0);
    st = kube_config_read(&access, &memory, text, "folder/config", "", true, &err);
    if (st != ST_OK && !err.message[0]) abort();
    if (length(access.server) + length(access.server_name) + length(access.namespace) +
            length(access.ca_file) + length(access.ca_pem) + length(access.cert_file) +
            length(access.cert_pem) + length(access.key_file) + length(access.key_pem) +
            length(access.token) + length(access.token_file) >
        3 * size + 100) {
        abort();
    }
    arena_fini(&memory);
    return 0;
}
