/* worker/grammar/grammar_thread.h - grammars are compiled here, so that neither the loop nor the
 * tokenizers wait.
 *
 *      loop: submit ──▶ known? ─ yes ──────────────────────────────▶ on_done, at once
 *                          │ no: under way? join it
 *                          ▼
 *                       threads: compile, first mask ──▶ [mailbox] ──▶ loop: cache, on_done of each
 *
 * A job is embedded in the caller's object and comes back once on the caller's loop, unless it is
 * cancelled before; a compilation that no job waits for any more is stopped. The text of its spec
 * is copied. The vocabulary is built by the first thread when it starts, and jobs wait for it. A
 * grammar that has come back is used by no thread of these again. */
#ifndef WORKER_GRAMMAR_GRAMMAR_THREAD_H
#define WORKER_GRAMMAR_GRAMMAR_THREAD_H

#include "common/base/list.h"
#include "common/base/status.h"
#include "worker/grammar/core/vocabulary.h"
#include "worker/grammar/grammar.h"

#define GRAMMAR_THREADS         2u                  /* one schema of 50 ms delays no other */
#define GRAMMAR_CACHE_MAX_BYTES ((size_t)256 << 20) /* hundreds of tools, with their masks */
#define GRAMMAR_MAX_WAITING     256u                /* compilations that may wait */
/* Of requests and cache. Beyond it none is compiled, and none grows (grammar.h). */
#define GRAMMAR_HELD_MAX_BYTES ((size_t)2 << 30)

struct compilation;
struct grammar_thread;
struct loop;

struct grammar_job {
    struct list link; /* with the compilation that it waits for; not linked: it has come
                               * back, or was never submitted */
    struct compilation *compilation;
    struct grammar *grammar; /* the result: a reference of the caller, or NULL */
    enum status status;
    struct error err;
    void (*on_done)(struct grammar_job *job); /* on the loop */
};

/* `source` must outlive the threads. */
MUST_USE enum status grammar_thread_start(struct grammar_thread **out, struct loop *loop,
                                          const struct vocabulary_source *source,
                                          struct error *err);

/* Jobs under way come back with ST_UNAVAILABLE first. Grammars, which hold on to the vocabulary,
 * must be gone. NULL is fine. */
void grammar_thread_stop(struct grammar_thread *t);

/* ST_INVALID has what is wrong with the spec; ST_BUSY: GRAMMAR_MAX_WAITING wait, or
 * those that requests hold take GRAMMAR_HELD_MAX_BYTES. */
void grammar_thread_submit(struct grammar_thread *t, struct grammar_job *job,
                           const struct grammar_spec *spec);

/* False, and nothing happens, if the job has come back already. */
bool grammar_thread_cancel(struct grammar_job *job);

/* The loop's thread. */
struct grammar_thread_stats {
    uint64_t n_compiled, n_refused, n_hits; /* n_hits: known, or joined one that was under way */
    uint64_t compile_us;                    /* of all, on a thread */
    uint64_t cached_bytes, n_cached;        /* now */
    uint64_t held_bytes; /* of all that are not freed, by requests or the cache */
};
void grammar_thread_stats(const struct grammar_thread *t, struct grammar_thread_stats *out);

/* Another GRAMMAR_HELD_MAX_BYTES; for tests. */
void grammar_thread_set_held_max(struct grammar_thread *t, size_t max_bytes);

#endif
