/* worker/kv/tiers/peer/peer.h - the sink: the tier of other workers' host memory.
 *
 *      engine thread                      the tier's thread              the source (peer_server.h)
 *      submit(job, its source) ────▶ a connection of the source's
 *                                    WANT ──────────────────────────▶
 *                                         ◀───────────────── UNITs ──
 *                                    unit_open into the host blocks
                                         ◀─── PLACES, from one of the host
                                    copied from its memory, which is mapped to be read
 *      mailbox ◀──────── job->mail ── END
 *
 * It holds no list of who has what: a request names a worker that has its prompt (tier_source.h),
 * and a load finds out. A wrong name costs one question. Nothing is written: stores are TIER_IO.
 *
 * Away means absent. A source that cannot be connected to in time, refuses, breaks the protocol,
 * lets two PINGs go unanswered, or answers these and ends no run until seconds behind its deadline,
 * loses all its jobs at once (TIER_IO); after three such failures in a row, or one REFUSE, it is
 * not asked for a while that grows up to half a minute, and then by one job. One source's failures
 * are no other's.
 *
 * A source of the same host and user that shares its memory (peer_pass.h) sends no bytes of blocks,
 * and pins them no longer than it takes to send their places. Here they are copied under their
 * number and compared with their sum, which the source made once. One that was reused meanwhile, or
 * differs, is asked for again as a unit, with all behind it: it comes over TCP, or is computed.
 *
 * LIMITS. PEER_SOURCES_MAX sources at a time: jobs of another are TIER_BUSY until one of them has
 * none. One connection to each. Of two fleet keys only the first is proved, so both workers must
 * have the same first one. Frames between proof and end of a connection are not authenticated:
 * who can alter them on their way can end a transfer, not change a block that is encrypted. */
#ifndef WORKER_KV_TIERS_PEER_PEER_H
#define WORKER_KV_TIERS_PEER_PEER_H

#include <sys/types.h>

#include "common/telemetry/log.h"
#include "worker/kv/tiers/peer/peer_frame.h"

#define PEER_SOURCES_MAX 16
#define PEER_JOBS_MAX    32

struct tier_peer_config {
    const struct unit_codec_config
        *codec;          /* read by tier_peer_open alone; fleet_keys NULL: plain */
    uint64_t generation; /* of this process, as its peer_server has it */
    struct log *log;     /* may be NULL */
    uint32_t connect_ms; /* 0: 250 */
    uint32_t greet_ms;   /* from connected to proved; 0: 1,000 */
    uint32_t ping_ms;    /* silence before a PING, and between two; 0: 350 */
    bool can_share;      /* memory of sources that share theirs is mapped */
    uint32_t share_ms;   /* from proved to mapped; 0: 50. Then it goes over TCP */
    uid_t share_uid;     /* with can_share: the only user whose memory is mapped */
};

MUST_USE enum status tier_peer_open(struct tier **out, const struct tier_peer_config *config,
                                    struct error *err);

struct tier_peer_stats {
    uint64_t n_connections; /* that were proved */
    uint64_t n_lost;        /* of these and of those to be, that failed */
    uint64_t n_shared;      /* of the first, sources whose memory was mapped */
    uint64_t shared_units;  /* that were copied from there */
    uint64_t n_slipped;     /* blocks that were reused before they had been copied */
    uint64_t n_differing;   /* blocks of another sum than their source had */
    uint64_t n_refused;     /* of the latter, by a REFUSE, or by us for the source's HELLO */
};
void tier_peer_stats(struct tier *t, struct tier_peer_stats *out); /* any thread */

#endif
