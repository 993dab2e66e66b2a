/* worker/engine/backend_load.h - a backend by its name.
 *
 * ref, cpu and sim are part of the program. cuda is a shared object of its own, so that the program
 * runs where no driver is installed; it is opened here and stays open as long as the process lives.
 * Both ways end in the same table of functions, and a table of another ABI is refused. */
#ifndef WORKER_ENGINE_BACKEND_LOAD_H
#define WORKER_ENGINE_BACKEND_LOAD_H

#include "common/status.h"
#include "kernels/backend.h"

#define BACKEND_NAMES "cpu, ref, sim, cuda" /* for help texts */

/* `path`: the shared object of a loadable backend; NULL: the installed one, by the system's search.
 * ST_NOT_FOUND for an unknown name or an absent object, ST_UNSUPPORTED for another ABI. */
MUST_USE enum status backend_load(const struct backend_ops **out, const char *name,
                                  const char *path, struct error *err);

#endif
