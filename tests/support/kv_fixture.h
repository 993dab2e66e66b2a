/* tests/support/kv_fixture.h - driving a kv_manager as a scheduler would, and reading its state as
 * text.
 *
 * Block ids, queues and tables are compared as strings such as "4 7 8 9 3 2": what a test expects
 * can then be read next to the table it was taken from. Ids are printed less `first_id`, so one
 * expectation serves pools with and without a null block. */
#ifndef TESTS_SUPPORT_KV_FIXTURE_H
#define TESTS_SUPPORT_KV_FIXTURE_H

#include "worker/kv/kv_manager.h"

#define KV_REQ_MAX_TOKENS 512

/* What a request is to the manager: its tokens, and how many were computed. */
struct kv_req {
    struct kv_manager *mgr;
    struct kv_seq seq;
    uint32_t tokens[KV_REQ_MAX_TOKENS];
    uint32_t n_tokens, n_computed;
    uint32_t n_hit; /* tokens, of the last admission */
};

/* Small limits, fixed seed, classic order by default. */
struct kv_manager_config kv_fixture_config(uint32_t n_blocks, uint32_t block_size);

void kv_req_init(struct kv_req *r, struct kv_manager *mgr, const struct block_extras *extras,
                 bool skip_reading);
void kv_req_text(struct kv_req *r, struct kv_manager *mgr, const char *text); /* a token a letter */
void kv_req_append(struct kv_req *r, uint32_t token);
void kv_req_append_run(struct kv_req *r, uint32_t first_token, uint32_t n); /* consecutive ids */
void kv_req_append_text(struct kv_req *r, const char *text);

/* Lookup, then room for all tokens that are not computed; statistics are recorded. */
MUST_USE enum status kv_req_admit(struct kv_req *r);
/* Room for the next n tokens of a running request. */
MUST_USE enum status kv_req_advance(struct kv_req *r, uint32_t n);
/* One generated token: appended, then computed. */
MUST_USE enum status kv_req_decode(struct kv_req *r, uint32_t token);
/* A second request over the first n_computed tokens of `parent`, all blocks shared. */
MUST_USE enum status kv_req_fork(struct kv_req *child, const struct kv_req *parent,
                                 uint32_t n_computed);
void kv_req_free(struct kv_req *r); /* as a preemption does: the tokens stay */
void kv_req_done(struct kv_req *r); /* free and fini */

/* Each returns a text that lives until four more were asked for. */
const char *kv_text_table(const struct kv_req *r, uint32_t first_id);
const char *kv_text_group(const struct kv_req *r, uint32_t group); /* that group's table */
const char *kv_text_hit(const struct kv_hit *hit, uint32_t group);
const char *kv_text_moves(struct kv_manager *mgr, uint32_t first_id); /* "1>3 2>4"; clears them */
const char *kv_text_queue(const struct kv_manager *mgr, uint32_t first_id);
const char *kv_text_cached(const struct kv_manager *mgr, uint32_t first_id); /* ids, ascending */
const char *kv_text_refs(const struct kv_req *r); /* ref counts along the table */

/* True when fn(arg), run in a child process, ends by abort(): a broken contract must not go on. */
bool kv_aborts(void (*fn)(void *arg), void *arg);

#endif
