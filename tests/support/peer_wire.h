/* tests/support/peer_wire.h - what lies between a sink and a source: a proxy with a rate and a
 * delay, whose frames a test alters.
 *
 *      the sink ──▶ wire->source ──▶ what the sink sends, as it comes ──────▶ the source
 *                                    ◀── the source's frames, through `alter`
 *
 * A frame of n bytes takes n / bytes_per_s behind the one before it, and delay_us more; what the
 * sink sends takes delay_us. One connection at a time, as a sink has it; the next one waits. */
#ifndef TESTS_SUPPORT_PEER_WIRE_H
#define TESTS_SUPPORT_PEER_WIRE_H

#include <pthread.h>

#include "worker/kv/tiers/peer/peer_frame.h"

struct peer_wire_frame {
    size_t n; /* may be changed: 0 drops it, and there is room for two */
    uint8_t bytes[2 * PEER_FRAME_MAX];
};

struct peer_wire {
    const struct tier_source *behind;
    double bytes_per_s; /* 0: no limit */
    uint64_t delay_us;
    /* On the wire's thread, for each frame of the source. False: the connection ends behind it.
     * NULL: as they are. */
    bool (*alter)(void *arg, struct peer_wire_frame *f);
    void *arg;

    /* The wire's. */
    struct tier_source source; /* its address, for the sink */
    pthread_t thread;
    int listener, stop[2];
};

/* With all above `source` set; they may be changed between two connections. */
void peer_wire_open(struct peer_wire *w);
void peer_wire_close(struct peer_wire *w);

#endif
