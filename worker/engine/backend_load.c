/* worker/engine/backend_load.c - two tables: what is linked in, and what is looked for on disk. */
#include "worker/engine/backend_load.h"

#include <dlfcn.h>
#include <string.h>

static const struct backend_ops *const linked[] = {&backend_cpu, &backend_ref, &backend_sim};

static const struct { const char *name, *object; } loadable[] = {{"cuda", "libincipit-cuda.so"}};

static enum status check_abi(const struct backend_ops *ops, const char *origin, struct error *err) {
    if (ops->abi == BACKEND_ABI && ops->struct_size == sizeof(*ops)) return ST_OK;
    return error_set(err, ST_UNSUPPORTED,
                     "backend %s has ABI %u (%u bytes), this program needs %u (%zu bytes): build "
                     "both from the same version",
                     origin, ops->abi, ops->struct_size, BACKEND_ABI, sizeof(*ops));
}

static enum status open_object(const struct backend_ops **out, const char *name, const char *path,
                               struct error *err) {
    const struct backend_ops *(*entry)(void);
    const struct backend_ops *ops;
    void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    enum status st;

    if (!object)
        return error_set(err, ST_NOT_FOUND,
                         "backend %s is not here: %s; install it, or choose --backend cpu", name,
                         dlerror());
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

enum status backend_load(const struct backend_ops **out, const char *name, const char *path,
                         struct error *err) {
    for (size_t i = 0; i < ARRAY_LEN(linked); i++) {
        enum status st;

        if (strcmp(linked[i]->name, name) != 0) continue;
        st = check_abi(linked[i], name, err);
        if (st == ST_OK) *out = linked[i];
        return st;
    }
    for (size_t i = 0; i < ARRAY_LEN(loadable); i++)
        if (strcmp(loadable[i].name, name) == 0)
            return open_object(out, name, path ? path : loadable[i].object, err);
    return error_set_param(err, ST_NOT_FOUND, "backend", "there is no backend '%s': use one of %s",
                           name, BACKEND_NAMES);
}
