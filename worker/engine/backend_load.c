/* worker/engine/backend_load.c - what is linked in, what is looked for on disk, and which it is to
 * be. */
#include "worker/engine/backend_load.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct backend_ops *const linked[] = {&backend_cpu, &backend_ref, &backend_sim};

static const char loadable[] = "cuda";

/* From the folder of the program. */
static const char *const places[] = {BACKEND_OBJECT, "../lib/incipit/" BACKEND_OBJECT};

/* --- one object ------------------------------------------------------------------------------- */

static enum status check_abi(const struct backend_ops *ops, const char *origin, struct error *err) {
    if (ops->abi == BACKEND_ABI && ops->struct_size == sizeof(*ops)) return ST_OK;
    return error_set(err, ST_UNSUPPORTED,
                     "backend %s has ABI %u (%u bytes) and this program needs ABI %u (%zu bytes): "
                     "build both from one version",
                     origin, ops->abi, ops->struct_size, BACKEND_ABI, sizeof(*ops));
}

static enum status open_object(const struct backend_ops **out, const char *path,
                               struct error *err) {
    const struct backend_ops *(*entry)(void);
    const struct backend_ops *ops;
    void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    enum status st;

    if (!object)
        return error_set(err, ST_NOT_FOUND,
                         "cannot load backend %s: %s; build it with make cuda, name it with "
                         "--backend-library, or choose --backend cpu",
                         loadable, dlerror());
    *(void **)&entry = dlsym(object, "incipit_backend"); /* the cast that POSIX documents */
    if (!entry) {
        dlclose(object);
        return error_set(err, ST_UNSUPPORTED, "%s is not a backend: it exports no incipit_backend",
                         path);
    }
    ops = entry();
    st = check_abi(ops, path, err);
    if (st != ST_OK) {
        dlclose(object);
        return st;
    }
    *out = ops;
    return ST_OK;
}

/* The object's path, where a file is in one of the places; else the name alone, for the loader. */
static void find_object(char path[PATH_MAX]) {
    char program[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", program, sizeof(program) - 1);
    char *slash;

    if (n > 0) {
        program[n] = '\0';
        slash = strrchr(program, '/');
        for (size_t i = 0; slash && i < ARRAY_LEN(places); i++) {
            int folder = (int)(slash - program);

            if (snprintf(path, PATH_MAX, "%.*s/%s", folder, program, places[i]) < PATH_MAX &&
                access(path, F_OK) == 0)
                return;
        }
    }
    snprintf(path, PATH_MAX, "%s", BACKEND_OBJECT);
}

enum status backend_load(const struct backend_ops **out, const char *name, const char *path,
                         struct error *err) {
    char found[PATH_MAX];
    enum status st;

    for (size_t i = 0; i < ARRAY_LEN(linked); i++) {
        if (strcmp(linked[i]->name, name) != 0) continue;
        st = check_abi(linked[i], name, err);
        if (st == ST_OK) *out = linked[i];
        return st;
    }
    if (strcmp(loadable, name) != 0)
        return error_set_param(err, ST_NOT_FOUND, "backend", "unknown backend '%s': use one of %s",
                               name, BACKEND_NAMES);
    if (!path) find_object(found);
    return open_object(out, path ? path : found, err);
}

/* --- the choice ------------------------------------------------------------------------------- */

static bool is_auto(const char *name) {
    return !name || strcmp(name, "auto") == 0;
}

static bool is_backend(const char *name) {
    for (size_t i = 0; i < ARRAY_LEN(linked); i++)
        if (strcmp(linked[i]->name, name) == 0) return true;
    return strcmp(loadable, name) == 0;
}

/* "3". False for anything else. */
static bool read_ordinal(const char *text, uint32_t *ordinal) {
    unsigned long n;
    char *end;

    if (*text < '0' || *text > '9') return false;
    n = strtoul(text, &end, 10);
    if (*end != '\0' || n > 1023) return false;
    *ordinal = (uint32_t)n;
    return true;
}

/* The backend that a device belongs to; NULL: any. */
static enum status read_device(const char *device, const char **backend,
                               struct backend_config *config, struct error *err) {
    *backend = NULL;
    if (is_auto(device)) return ST_OK;
    *backend = loadable;
    if (is_backend(device)) {
        *backend = device;
    } else if (strchr(device, ',')) { /* of ranks: kernels/tp/tp.h */
        config->device_id = device;
    } else if (strncmp(device, "GPU-", 4) == 0 && device[4] != '\0') {
        config->device_id = device;
    } else if (!read_ordinal(strncmp(device, "cuda:", 5) == 0 ? device + 5 : device,
                             &config->ordinal)) {
        return error_set_param(
            err, ST_INVALID, "device",
            "--device %s is not a device: use auto, cpu, cuda, cuda:0, a number, or a UUID "
            "(GPU-...) that `incipit-worker devices` lists; separate several with commas",
            device);
    }
    return ST_OK;
}

enum status backend_choose(const struct backend_ops **out, struct backend_config *config,
                           const struct backend_request *request, struct error *why,
                           struct error *err) {
    const char *name = request->name, *wanted;
    const struct backend_ops *ops;
    struct backend_info info;
    enum status st = read_device(request->device, &wanted, config, err);

    if (st != ST_OK) return st;
    if (wanted && !is_auto(name) && strcmp(wanted, name) != 0)
        return error_set_param(
            err, ST_INVALID, "device",
            "--device %s belongs to the %s backend, not to --backend %s: leave one of the two out",
            request->device, wanted, name);
    if (wanted) name = wanted;
    if (!is_auto(name)) return backend_load(out, name, request->library, err);
    st = backend_load(&ops, loadable, request->library, why);
    if (st != ST_OK && request->library) return error_set(err, st, "%s", why->message);
    if (st == ST_OK) st = ops->probe(config, &info, why);
    *out = st == ST_OK ? ops : &backend_cpu;
    return ST_OK;
}
