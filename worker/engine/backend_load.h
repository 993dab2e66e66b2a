/* worker/engine/backend_load.h - finds the backend that the options name.
 *
 * ref, cpu and sim are part of the program. cuda is a shared object of its own, so that the program
 * runs where no driver is installed; it is opened here and stays open until the process exits. Both
 * give the same table of functions; a table of another ABI is refused.
 *
 * The object is the named one, or incipit_cuda.so: beside the program, in ../lib/incipit from there
 * (PREFIX/lib/incipit once installed), or in the system loader's path. The first one found is used,
 * even if it does not load. */
#ifndef WORKER_ENGINE_BACKEND_LOAD_H
#define WORKER_ENGINE_BACKEND_LOAD_H

#include "common/base/status.h"
#include "kernels/backend.h"

#define BACKEND_NAMES  "cpu, ref, sim, cuda" /* for help texts */
#define BACKEND_OBJECT "incipit_cuda.so"

/* `path`: the shared object of a loadable backend; NULL: looked for, as above. ST_NOT_FOUND for an
 * unknown name or an absent object, ST_UNSUPPORTED for one that cannot be used. */
MUST_USE enum status backend_load(const struct backend_ops **out, const char *name,
                                  const char *path, struct error *err);

/* The options; any of them may be NULL. */
struct backend_request {
    const char *name;    /* a backend, or "auto" */
    const char *library; /* the shared object */
    const char *device;  /* "auto"; a backend; "cuda:1", "1"; a GPU's UUID or its beginning */
};

/* Finds the backend and fills in ordinal and device_id of `config` (which may point into the
 * request). auto, without a device that only cuda has, is cuda where its object loads and probes
 * well, else cpu: then `why` is the reason against cuda. */
MUST_USE enum status backend_choose(const struct backend_ops **out, struct backend_config *config,
                                    const struct backend_request *request, struct error *why,
                                    struct error *err);

#endif
