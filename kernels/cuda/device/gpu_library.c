/* kernels/cuda/device/gpu_library.c - libraries that are opened when they are needed: cuBLASLt,
 * NCCL. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "kernels/cuda/device/gpu_internal.h"

/* Where the toolkit puts its libraries when the loader's own list does not have them. */
static const char *const folders[] = {"", "/usr/local/cuda/lib64/",
                                      "/usr/local/cuda/targets/x86_64-linux/lib/",
                                      "/usr/local/cuda/targets/sbsa-linux/lib/"};

enum status gpu_library_open(void **out, const char *const *names, const char *what,
                             const char *remedy, struct error *err) {
    char path[256];
    size_t i;

    for (; *names; names++)
        for (i = 0; i < ARRAY_LEN(folders); i++) {
            (void)snprintf(path, sizeof(path), "%s%s", folders[i], *names);
            *out = dlopen(path, RTLD_NOW | RTLD_LOCAL);
            if (*out) return ST_OK;
        }
    return error_set(err, ST_UNSUPPORTED, "%s cannot be opened (%.200s): %s", what, dlerror(),
                     remedy);
}

enum status gpu_library_find(void *library, void *function, const char *name, struct error *err) {
    void *address = dlsym(library, name);

    if (!address)
        return error_set(err, ST_UNSUPPORTED, "the library has no function %s: install a newer one",
                         name);
    memcpy(function, &address, sizeof(address)); /* a function pointer of any type */
    return ST_OK;
}
