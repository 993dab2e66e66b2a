/* kernels/cpu/pool.h - the threads of the CPU backend.
 *
 * A region is a number of chunks. They are claimed from one atomic counter by the workers and by
 * the caller, who takes part and can finish every chunk alone: it never waits for a thread to
 * *start*, only for chunks that a thread has claimed. So when another process takes a
 * core away, the region takes as long as the remaining cores need, and not a scheduler slice
 * more. (Pools with a fork and a join were measured to fall to a fiftieth of their speed then.)
 * Idle workers spin for 20 us, the length of a gap between two regions of one step, and then
 * sleep on a futex.
 *
 * What a chunk computes may not depend on who computes it. The worker's number is there to find its
 * scratch memory. Thread: one caller, the engine's. */
#ifndef KERNELS_CPU_POOL_H
#define KERNELS_CPU_POOL_H

#include "common/base/base.h"
#include "common/base/status.h"

#define POOL_MAX_THREADS 256u

struct cpu_pool;

/* n_threads counts the caller; 0: as many as the process may use (affinity and cgroup quota), and
 * of those, from then on, as many as it may use at the time (cpu_pool_adapt). */
MUST_USE enum status cpu_pool_create(struct cpu_pool **out, uint32_t n_threads, struct error *err);
void cpu_pool_destroy(struct cpu_pool *pool);           /* joins; NULL is fine */
uint32_t cpu_pool_threads(const struct cpu_pool *pool); /* as created */

/* So many threads take part from the next region on, the caller among them: 1 to
 * cpu_pool_threads. */
void cpu_pool_use(struct cpu_pool *pool, uint32_t n_threads);
/* Looks once a second whether the process may use fewer or more processors than before: threads
 * beyond a quota would only make the kernel stop all of them for the rest of its period. For pools
 * created with 0; between regions. */
void cpu_pool_adapt(struct cpu_pool *pool, uint64_t now_us);

/* Calls run(arg, chunk, worker) once for each chunk in [0, n_chunks), worker in [0, n_threads), and
 * returns when all are done. `is_small`: waking others would cost more than it brings. */
void cpu_pool_run(struct cpu_pool *pool, uint32_t n_chunks, bool is_small,
                  void (*run)(void *arg, uint32_t chunk, uint32_t worker), void *arg);

#endif
