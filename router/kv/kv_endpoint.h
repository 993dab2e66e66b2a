/* router/kv/kv_endpoint.h - where a worker publishes its KV events: ports at the worker's address.
 *
 *      kv_events=5557 kv_events_replay=5558 kv_events_ranks=2     settings of the worker
 *      {"publisher": "zmq", "endpoint": "tcp://0.0.0.0:5557"}     kv_events_config of SGLang
 *
 * Only ports are taken, never a host: a worker's own page must not make the router connect
 * elsewhere. Rank r of a data-parallel engine publishes at port + r. Pure. */
#ifndef ROUTER_KV_KV_ENDPOINT_H
#define ROUTER_KV_KV_ENDPOINT_H

#include "common/base/buf.h"

#define KV_RANKS_MAX    16
#define KV_PORT_USUAL   5557 /* of vLLM's and SGLang's documentation */
#define KV_REPLAY_USUAL 5558

struct kv_endpoint {
    uint16_t port, replay_port; /* 0: none */
    uint16_t n_ranks;           /* at least 1 where there is a port */
};

/* From a worker's labels, "zone=a kv_events=5557". False: they name no port. */
bool kv_endpoint_of_labels(struct kv_endpoint *out, const char *labels);

/* From SGLang's /get_server_info. False: it names none, or publishes nothing. */
bool kv_endpoint_of_info(struct kv_endpoint *out, struct str json);

#endif
