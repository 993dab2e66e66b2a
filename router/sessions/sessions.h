/* router/sessions/sessions.h - whole sessions wait, so that those that run keep their caches.
 *
 * When the contexts of live sessions exceed what the workers' caches hold, each turn finds its own
 * evicted by the others' and computes it again: in a simulated fleet throughput falls to less than
 * half between 1 and 1.5 times the memory, whatever the routing. So sessions are admitted as a
 * whole, up to SESSION_KV_SHARE of the device memory and a part of host memory:
 *
 *     0. None waits while less than half of what prompts bring is repeated (repeats.h): computing
 *        all of it again costs less than waiting does.
 *     1. A turn of an active session goes on at once, unless the active ones exceed the memory by
 *        SESSION_EXCESS. So does the first turn of a session when its prompt has less than
 *        SESSION_SINGLE_TOKENS; that one is counted from its second turn.
 *     2. A turn of another session makes it active if none waits and there is room; else it waits.
 *     3. While one waits, active sessions without a turn that have been idle for long (gaps.h) are
 *        put to rest, the longest idle first, as far as the first that waits needs room. While
 *        none waits, none is put to rest.
 *        All are, when no turn has been in flight for SESSION_STILL_S: without work none waits.
 *     4. A session idle for SESSION_TTL_S is no longer active, and one that has sent its last turn
 *        at once.
 *     5. The session goes first that has waited longest; of all routers', as far as they report.
 *
 *                    room           ┌──────turn──────┐
 *     turn ──▶ begun ────▶ in flight ──ended──▶ idle ┘
 *                │             ▲                 │ long idle, and one waits; or SESSION_TTL_S
 *                └──▶ waiting ─┘◀──turn── resting ◀
 *
 * Several routers each know all sessions: turns that others have sent are entered too
 * (sessions_arrive_remote), and the same rules applied to the same turns give each router nearly
 * the same active sessions. So their sum keeps to the memory, except for what several admit to one
 * room before they hear of each other.
 *
 * A session that gives up waiting and returns within SESSION_GRACE_S, as clients with a timeout do,
 * keeps its place. A session larger than all the memory goes when it is alone. The rest of a
 * session is remembered for SESSION_AGE_S; when the table is full, the one at rest longest is
 * forgotten.
 *
 * Footprints are of the last prompt and answer, with what sessions have in common counted once
 * (session_table.h). A pure library: no clock, no lock; it allocates at creation. Follows: working
 * set admission (Denning 1968), by conversation. */
#ifndef ROUTER_SESSIONS_SESSIONS_H
#define ROUTER_SESSIONS_SESSIONS_H

#include "common/base/base.h"
#include "router/sessions/session_table.h"

#define SESSION_KV_SHARE   0.9 /* of the device's memory */
#define SESSION_HOST_SHARE 0.6 /* of host memory: it has copies of what the device has */
/* Of a first prompt. With 8,000, single chats of 8,000 to 30,000 tokens wait as long as sessions do
 * (mean of all single ones 0.2 -> 11 s at twice the memory), and turns per second are equal. */
#define SESSION_SINGLE_TOKENS 32000
/* Active ones become so many when a worker is lost, or when sessions begin to repeat what they
 * send. If each goes on, the excess lasts: none is idle for long, because each turn takes long. In
 * the modelled fleet, when sessions of 3 times the memory have become active, turns per second are
 * 0.26 of what they are at once the memory; with bounds of 1.1, 1.2, 1.3 and 1.5 they are 0.97,
 * 0.98, 0.97 and 0.93. */
#define SESSION_EXCESS  1.2
#define SESSION_TTL_S   120
#define SESSION_STILL_S 5
#define SESSION_GRACE_S 60
#define SESSION_AGE_S   3600
#define SESSIONS_RESTED 256 /* at a time at most */
/* Routers report with each request how long their first session has waited. Where another's is
 * older by SESSION_OLDER_S, ours lets it go first: else the large wait while the others' small ones
 * take the room that they need. For SESSION_HEARD_S after a report, and SESSION_DEFER_S at most. */
#define SESSION_PEERS   16
#define SESSION_OLDER_S 2
#define SESSION_HEARD_S 3
#define SESSION_DEFER_S 30

struct sessions;

struct session_arrival {
    struct session_prompt prompt;
    double prompt_tokens, answer_tokens; /* predicted */
    bool is_final;                       /* no other turn follows, by the client */
    uint64_t now_us;
    /* Of a remote one: its router, whose first session that waits has waited so long (0: none
     * does), and how long its own did. */
    uint64_t origin;
    uint32_t waits_s, held_s;
};

/* Embedded in the caller's; zero before its first use. */
struct session_turn {
    struct session_turn *prev, *next; /* held turns of its session */
    uint32_t session;                 /* SESSION_NONE: none is known for it */
    uint64_t n_tokens;                /* prompt and answer */
    double own_tokens;                /* of the prompt, beside its session's opening */
    double repeated_tokens;           /* of them, that its session's last turn had, a while ago */
    enum session_joined how;
    bool is_held, is_open;
    bool is_aside; /* its prompt is not the session's */
    bool is_final;
};

/* n_max: sessions that are remembered. NULL: memory is refused. */
struct sessions *sessions_create(uint32_t n_max) MUST_USE;
void sessions_destroy(struct sessions *s); /* NULL is fine; no turn may be held */

/* What the workers' caches hold; both 0: unknown, and then no session waits. */
void sessions_set_capacity(struct sessions *s, double device_tokens, double host_tokens);

/* True: the turn goes. False: it is held, until sessions_next returns it, or sessions_leave. */
MUST_USE bool sessions_arrive(struct sessions *s, const struct session_arrival *arrival,
                              struct session_turn *t);

/* A turn that another router has sent to a worker. It goes, and makes its session active even
 * without room; then those that have been idle for long are put to rest as far as it needs room, as
 * they were there. Turns of it that are held here go next. *t is a turn that goes. */
void sessions_arrive_remote(struct sessions *s, const struct session_arrival *arrival,
                            struct session_turn *t);

/* Is there a session with this id? Then a prompt's n_known is not looked at. */
bool sessions_has(const struct sessions *s, uint64_t id);

/* A held turn that goes now, or NULL. To be called until it is NULL when a turn has ended or left,
 * and every now and then while one is held: time lets sessions go. */
struct session_turn *sessions_next(struct sessions *s, uint64_t now_us);

/* A held turn gives up. */
void sessions_leave(struct sessions *s, struct session_turn *t, uint64_t now_us);

/* A turn that goes was sent to a worker; it has ended, with so many tokens in prompt and answer, 0:
 * as predicted. Each turn that goes is ended once. */
void sessions_sent(struct sessions *s, const struct session_turn *t, uint32_t worker);
void sessions_ended(struct sessions *s, struct session_turn *t, uint64_t n_tokens, uint64_t now_us);

void sessions_worker_lost(struct sessions *s, uint32_t worker); /* its cache is empty */

struct sessions_stats {
    uint32_t n_active, n_waiting, n_resting; /* sessions */
    uint32_t n_held;                         /* turns */
    uint64_t used_tokens, capacity_tokens;   /* capacity 0: unknown */
    /* Turns from here by how they found their session. */
    uint64_t n_joined[SESSION_N_JOINED], n_unknown;
    uint64_t n_rested, n_expired, n_final, n_excess; /* sessions that ceased to be active */
    double repeated_share;                           /* of what prompts bring */
    double long_s;                                   /* idle for longer: may be put to rest */
};
void sessions_stats(const struct sessions *s, struct sessions_stats *stats);
uint32_t sessions_n_held(const struct sessions *s);
/* How long the first that waits has waited, at least 1; 0: none waits. For other routers. */
uint32_t sessions_wait_s(const struct sessions *s, uint64_t now_us);
void sessions_check(const struct sessions *s); /* asserts the invariants; O(n) */

#endif
