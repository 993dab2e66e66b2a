/* router/proxy/poison.h - requests that seem to kill the workers that answer them.
 *
 * A request on which two workers were lost, one after the other, is not given a third. Its client
 * will send it again, because that is what clients do; so its body is remembered for a while, by hash
 * and by who sent it, and refused at the door meanwhile. An innocent request that was twice in the
 * wrong place is refused as well, for as long: that is why the while is short, and why it is the
 * client's own. Others may well send the same body in good faith. They are answered, but with one
 * worker put at risk, not two, so that a body which does kill costs less each time it comes round.
 *
 *      (client, body) known        POISON_SUSPECT   refused
 *      body known of others alone  POISON_SEEN_ELSEWHERE  tried; the first loss is the last
 *      else                        POISON_UNKNOWN   tried; the second is
 *
 * When a whole fleet goes at once, each of its requests loses two workers as well, and none is the reason:
 * one alone is given no third. What was entered around that time is forgiven.
 *
 * One table for all router loops, of a fixed size, the oldest forgotten first. While it is empty, which
 * is nearly always, asking costs one load from memory and no lock. Any thread. */
#ifndef ROUTER_PROXY_POISON_H
#define ROUTER_PROXY_POISON_H

#include "common/base/base.h"
#include "common/base/buf.h"

#define POISON_MAX  256
#define POISON_LOST 2 /* workers that a request may lose */

struct poison;

enum poison_verdict { POISON_UNKNOWN, POISON_SEEN_ELSEWHERE, POISON_SUSPECT };

struct poison *poison_create(uint64_t memory_us);             /* 0: remembers nothing */
void poison_set_memory(struct poison *p, uint64_t memory_us); /* also of what is in it */
void poison_destroy(struct poison *p);                        /* NULL is fine */

/* `client` is any name that tells clients apart: a tenant, an address. p NULL: nothing is known. */
void poison_add(struct poison *p, struct str client, struct str body, uint64_t now_us);
enum poison_verdict poison_judge(struct poison *p, struct str client, struct str body,
                                 uint64_t now_us);

/* Forgets what was entered since then. */
void poison_forgive(struct poison *p, uint64_t since_us);

/* Whether anything may be remembered: else who asks need not find out the client's name. */
bool poison_is_empty(const struct poison *p);

#endif
