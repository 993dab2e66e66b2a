/* router/proxy/decision_log.h - a file with one JSON line per routed request, for replays and
 * post-mortems.
 *
 *      {"t":1763632943.123456,"id":"req-1","model":"m","code":200,"worker":3,"attempts":1,
 *       "prompt_bytes":3072,"blocks":24,"matched_blocks":20,"hashes":["8c1f...","0a37...",...],
 *       "candidates":8,"top":[{"worker":3,"cost_s":0.02,"wait_s":0,"mem_s":0,"u_s":0.006,"L":2,
 *       "matched_tokens":640},...],"predicted_cached_tokens":640,"prompt_tokens":770,
 *       "cached_tokens":656,"output_tokens":64,"ttft_s":0.021,"duration_s":0.9}
 *
 * `t` is the arrival of the request. Fields that the worker did not report are left out. A prompt
 * appears only as the chain of its block hashes, keyed by a secret of the installation: equal
 * openings have equal hashes, and a guessed text can be looked up only with both secrets (this one
 * and --prefix-hash-seed). The router loop composes a line, a thread writes it (common/line_sink);
 * when the disk is too slow, lines are dropped and counted. Any thread. */
#ifndef ROUTER_PROXY_DECISION_LOG_H
#define ROUTER_PROXY_DECISION_LOG_H

#include "common/base/buf.h"
#include "common/base/status.h"
#include "router/registry/explain.h"

struct decision_log;

#define DECISION_HASHES_MAX 4096 /* per line; longer chains are truncated */

/* `secret_file` NULL: random, so that hashes of two runs do not compare. Appends to `path`. */
MUST_USE enum status decision_log_open(struct decision_log **out, const char *path,
                                       const char *secret_file, struct error *err);
void decision_log_close(struct decision_log *d); /* NULL is fine */

/* Opens the path again, after the file was moved. On failure the old file stays open. */
MUST_USE enum status decision_log_reopen(struct decision_log *d, struct error *err);

struct decision {
    struct str id, model;
    uint64_t arrived_wall_us;
    int code;
    uint32_t worker, n_attempts;
    int64_t prefill_worker;        /* that computed its prompt; -1: `worker` */
    const struct pair_price *pair; /* together and apart; NULL: there was no choice */
    const struct route_request *rq;
    const struct route_ticket *ticket;
    const struct explanation *why;
    struct route_feedback feedback;
    int64_t output_tokens;
    double ttft_s, duration_s; /* ttft_s 0: no token */
};

/* `line`: a buffer of the caller, overwritten. */
void decision_log_put(struct decision_log *d, const struct decision *decision, struct buf *line);

uint64_t decision_log_n_dropped(struct decision_log *d); /* NULL: 0 */

#endif
