/* router/proxy/leg.h - the first leg of a request whose prompt one worker computes for another.
 *
 *      proxy_attempt ──proxy_pair──▶ together: as ever
 *                         │
 *                         ├─ in turn ─▶ OPEN ──answer──▶ HANDED, the attempt goes on with members
 *                         │               └──any failure──▶ FAILED, the attempt goes on without
 *                         └─ at once ─▶ OPEN, HANDED, the attempt goes on beside it
 *                                         └──a failure──▶ both end, and it is retried
 *
 * The exchange keeps its own ticket at the worker that decodes (registry_pair.h), and stays SENDING
 * while it waits. Until the second leg's first byte the client has nothing, so every failure falls
 * back. A leg is made when an exchange first needs one and is freed when that is recycled. Thread:
 * the router loop. */
#ifndef ROUTER_PROXY_LEG_H
#define ROUTER_PROXY_LEG_H

#include "common/http/http_parse.h"
#include "common/net/loop.h"
#include "router/proxy/answers/sse_usage.h"
#include "router/proxy/handover/handover.h"
#include "router/registry/registry_pair.h"

#define LEG_ANSWER_MAX (1u << 20) /* 32k tokens in blocks of 16 are 2,048 block ids: 20 KB */

enum leg_result { LEG_NONE, LEG_HANDED, LEG_FAILED };

struct leg {
    const struct handover_ops *ops;
    struct handover h;
    struct route_ticket ticket; /* at the worker that prefills; open while is_open */
    struct registry_target target;
    struct worker_engine engine; /* of it, where ops->needs_engine */
    struct upstream *up;         /* NULL: none */
    struct loop_task send;
    struct loop_timer grace;            /* until a partner that may fail alike is given up */
    struct loop_timer bound;            /* until D computes the prompt itself, where it can */
    struct str cuts[HANDOVER_CUTS_MAX]; /* of the client's body, for the first leg's */
    uint32_t n_cuts;
    struct buf out, answer;   /* head of the first leg; in turn: its answer */
    struct buf first_members; /* for the first leg's body */
    struct buf members;       /* for the second leg's body; read while result is LEG_HANDED */
    struct http_head head;
    struct http_body parse;
    struct sse_usage usage;
    struct route_feedback feedback; /* of its head */
    uint64_t began_us;
    uint64_t handed_us; /* P was done; 0: not yet, or D cannot compute the prompt itself */
    uint32_t n_interim;
    enum leg_result result;
    bool is_open, has_head, is_fresh;
};

#endif
