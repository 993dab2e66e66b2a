/* router/sessions/repeats.h - how much of what prompts bring is repeated, and so could be lost.
 *
 * Of each turn that goes, the tokens beside what sessions have in common; repeated are those that
 * its session's last turn had too, if that ended a short while before. When the workers lose the
 * contexts of all sessions, what they compute grows by 1 / (1 - share): for a recorded trace of
 * chats (share 0.02 to 0.31 at every load) to 1.4 times at most, for agents (0.64 to 0.93) to six
 * times and more. Waiting saves no more than that. So whole sessions wait from REPEATS_WORTH on;
 * with 0.7 a fleet of agents whose sessions are all new to the router takes longer to begin (at 3
 * times the memory 0.90 instead of 0.98 of the turns a second, when the first share is 0).
 *
 * Tokens are counted in memories: 1 is as many as the workers hold. The sums are halved at
 * REPEATS_MOST, so that they follow the traffic within a few turnovers of the caches. They begin
 * with REPEATS_FIRST that are repeated: chats need the first turnover to fill the memory, so none
 * of them waits for that, and agents that all come at once, as after a restart of the router, are
 * not let in all together. */
#ifndef ROUTER_SESSIONS_REPEATS_H
#define ROUTER_SESSIONS_REPEATS_H

#include "common/base/base.h"

#define REPEATS_WORTH 0.5
#define REPEATS_FIRST 2.0
#define REPEATS_MOST  4.0

struct repeats {
    double all, repeated; /* in memories */
};

void repeats_init(struct repeats *r);
void repeats_add(struct repeats *r, double all, double repeated); /* repeated <= all */
double repeats_share(const struct repeats *r);

#endif
