/* kernels/cuda/device/gpu_library.c - libraries that are opened when they are needed: cuBLASLt,
 * NCCL.
 *
 * They are not part of a driver, and machines have them in different places: a toolkit, PyTorch's
 * wheels, a distribution's package. The order of places: folders that a user has named; the
 * loader's own path; wheels of python3; toolkits, the newest first; the distribution. A file that
 * is there and does not load is reported when nothing else is found. */
#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cuda/device/gpu_internal.h"

#define VARIABLE "INCIPIT_CUDA_LIBRARIES" /* folders, apart by ':' */

enum { PATH_BYTES = 4096 };

struct search {
    void *library; /* once it is found */
    const char *name;
    char broken[200]; /* the first file that does not load, and why */
};

/* Folders below the root that a variable names, or below `root`; '*' and '{}' as in a shell. */
struct place {
    const char *variable, *root, *folders;
};

#define PACKAGES "lib/python3*/{site,dist}-packages/"
#define TOOLKIT  "{lib64,lib,targets/*/lib}"
static const struct place places[] = {
    {"VIRTUAL_ENV", "", PACKAGES "nvidia/cu13/lib"},
    {"VIRTUAL_ENV", "", PACKAGES "nvidia/{cublas,nccl}/lib"},
    {"VIRTUAL_ENV", "", PACKAGES "torch/lib"},
    {"HOME", "/.local", PACKAGES "nvidia/cu13/lib"},
    {"HOME", "/.local", PACKAGES "nvidia/{cublas,nccl}/lib"},
    {"HOME", "/.local", PACKAGES "torch/lib"},
    {NULL, "/usr", "{local/,}" PACKAGES "nvidia/cu13/lib"},
    {NULL, "/usr", "{local/,}" PACKAGES "nvidia/{cublas,nccl}/lib"},
    {NULL, "/usr", "{local/,}" PACKAGES "torch/lib"},
    {"CUDA_HOME", "", TOOLKIT},
    {"CUDA_PATH", "", TOOLKIT},
    {NULL, "/usr/local", "cuda*/" TOOLKIT},
    {NULL, "/usr", "{lib,local/lib}/*-linux-gnu"},
    {NULL, "/usr", "{lib64,local/lib}"},
};

static bool open_file(struct search *s, const char *path) {
    s->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!s->library && strchr(path, '/') && !s->broken[0])
        (void)snprintf(s->broken, sizeof(s->broken), "%s", dlerror());
    return s->library != NULL;
}

/* The folders of a list, apart by ':', in its order. */
static bool open_listed(struct search *s, const char *list) {
    char path[PATH_BYTES];
    size_t n;

    for (; list && *list; list += n + (list[n] == ':')) {
        n = strcspn(list, ":");
        (void)snprintf(path, sizeof(path), "%.*s/%s", (int)n, list, s->name);
        if (n && access(path, R_OK) == 0 && open_file(s, path)) return true;
    }
    return false;
}

static int newest_first(const void *a, const void *b) {
    return strverscmp(*(char *const *)b, *(char *const *)a);
}

static bool open_placed(struct search *s, const struct place *p) {
    const char *base = p->variable ? getenv(p->variable) : "";
    char pattern[PATH_BYTES];
    glob_t found;

    if (!base || (p->variable && !*base)) return false;
    (void)snprintf(pattern, sizeof(pattern), "%s%s/%s/%s", base, p->root, p->folders, s->name);
    if (glob(pattern, GLOB_BRACE | GLOB_NOSORT, NULL, &found) != 0) return false;
    qsort(found.gl_pathv, found.gl_pathc, sizeof(*found.gl_pathv), newest_first);
    for (size_t i = 0; i < found.gl_pathc && !s->library; i++)
        (void)open_file(s, found.gl_pathv[i]);
    globfree(&found);
    return s->library != NULL;
}

static bool open_somewhere(struct search *s) {
    if (open_listed(s, getenv(VARIABLE)) || open_file(s, s->name)) return true;
    for (size_t i = 0; i < ARRAY_LEN(places); i++)
        if (open_placed(s, &places[i])) return true;
    return false;
}

enum status gpu_library_open(void **out, const char *const *names, const char *what,
                             const char *remedy, struct error *err) {
    struct search s = {.library = NULL};
    const char *first = *names;

    for (; *names; names++) {
        s.name = *names;
        if (!open_somewhere(&s)) continue;
        *out = s.library;
        return ST_OK;
    }
    if (s.broken[0])
        return error_set(err, ST_UNSUPPORTED, "%s cannot be opened (%s): %s", what, s.broken,
                         remedy);
    return error_set(err, ST_UNSUPPORTED,
                     "%s cannot be opened (no %s in $" VARIABLE "%s, the loader's path, "
                     "nvidia/*/lib and torch/lib of python3's packages, $CUDA_HOME, $CUDA_PATH, "
                     "/usr/local/cuda* and /usr/lib*): %s",
                     what, first, getenv(VARIABLE) ? "" : " (unset)", remedy);
}

enum status gpu_library_find(void *library, void *function, const char *name, struct error *err) {
    void *address = dlsym(library, name);

    if (!address)
        return error_set(err, ST_UNSUPPORTED, "the library has no function %s: install a newer one",
                         name);
    memcpy(function, &address, sizeof(address)); /* a function pointer of any type */
    return ST_OK;
}
