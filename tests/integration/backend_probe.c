/* tests/integration/backend_probe.c - loads a backend's object and asks whether it can run here.
 *
 *      backend_probe FILE
 *
 * Prints the status, the microseconds that loading and that asking took, and the sentence. */
#include <dlfcn.h>
#include <stdio.h>
#include <time.h>

#include "kernels/backend.h"

static double now_us(void) {
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

int main(int argc, char **argv) {
    const struct backend_ops *(*entry)(void);
    struct backend_config config = {0};
    struct backend_info info;
    struct error err = {.message = ""};
    double start_us = now_us(), loaded_us, asked_us;
    enum status st;
    void *object = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;

    if (!object) {
        fprintf(stderr, "backend_probe: %s\n", argc == 2 ? dlerror() : "name an object");
        return 1;
    }
    *(void **)&entry = dlsym(object, "incipit_backend");
    if (!entry || entry()->abi != BACKEND_ABI) return 1;
    loaded_us = now_us();
    st = entry()->probe(&config, &info, &err);
    asked_us = now_us();
    printf("%s %.0f %.0f %s\n", status_name(st), loaded_us - start_us, asked_us - loaded_us,
           err.message);
    return 0;
}
