/* tests/replay/event_ring.h - a simulated worker's log of requests, in the frames of the real one.
 *
 * What is put in is encoded, kept while the ring holds it, and decoded by each reader for itself:
 * modelled routers exchange exactly what common/protocol/request_events.h can encode. */
#ifndef TESTS_REPLAY_EVENT_RING_H
#define TESTS_REPLAY_EVENT_RING_H

#include "common/protocol/request_events.h"

struct event_ring;

struct event_ring *event_ring_create(size_t max_bytes); /* what it holds of frames */
void event_ring_destroy(struct event_ring *ring);

void event_ring_put(struct event_ring *ring, const struct request_event *e);
uint64_t event_ring_oldest(const struct event_ring *ring);

/* Up to which sequence, from `from` on, all has been sent by now: the worker waits so long after an
 * accepted request, and after anything else, and then sends all that there is. */
uint64_t event_ring_sent(const struct event_ring *ring, uint64_t from, uint64_t now_us,
                         uint64_t accepted_us, uint64_t other_us);

/* The event *sequence, or the oldest after it; *sequence is then the next. False when that is not
 * before `end`. `blocks` has room for CHAIN_BLOCKS_MAX. */
bool event_ring_next(const struct event_ring *ring, uint64_t *sequence, uint64_t end,
                     uint64_t *blocks, struct request_event *e);

#endif
