/* router/poison/poison.h - requests that seem to kill the workers that answer them.
 *
 * A request on which two workers were lost, one after the other, is not sent to a third. Clients
 * send failed requests again, so (client, body) is remembered by hash for --poison-memory and
 * refused meanwhile. An innocent request that was twice in the wrong place is refused too: hence
 * the memory is short, and bound to the client. Other clients that send this body are answered, but
 * may lose one worker, not two.
 *
 *      (client, body) known          POISON_SUSPECT         refused
 *      body known of other clients   POISON_SEEN_ELSEWHERE  tried; one lost worker ends it
 *      else                          POISON_UNKNOWN         tried; two lost workers end it
 *
 * When a whole fleet is lost at once, its requests lose two workers as well and are not the cause:
 * poison_forgive removes what was entered around that time.
 *
 * One table of fixed size for all router loops; the oldest entry is overwritten first. While it is
 * empty, the usual case, a query costs one load from memory and no lock. Any thread. */
#ifndef ROUTER_PROXY_POISON_H
#define ROUTER_PROXY_POISON_H

#include "common/base/base.h"
#include "common/base/buf.h"

#define POISON_MAX  256
#define POISON_LOST 2 /* workers that a request may lose */

/* To the client whose request is refused for that. */
#define POISON_MESSAGE                                                                             \
    "Workers were lost while they computed this request: it is not retried, and is refused for "   \
    "--poison-memory. Change the request, or check the workers' logs."

struct poison;

enum poison_verdict { POISON_UNKNOWN, POISON_SEEN_ELSEWHERE, POISON_SUSPECT };

struct poison *poison_create(uint64_t memory_us);             /* 0: remembers nothing */
void poison_set_memory(struct poison *p, uint64_t memory_us); /* also of what is in it */
void poison_destroy(struct poison *p);                        /* NULL is fine */

/* `client`: a tenant or an address. p NULL: nothing is known. */
void poison_add(struct poison *p, struct str client, struct str body, uint64_t now_us);
enum poison_verdict poison_judge(struct poison *p, struct str client, struct str body,
                                 uint64_t now_us);

/* Removes what was entered at or after since_us. */
void poison_forgive(struct poison *p, uint64_t since_us);

/* Cheap: callers then need not compute the client's name. */
bool poison_is_empty(const struct poison *p);

#endif
