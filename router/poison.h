/* router/poison.h - requests that seem to kill the workers that answer them.
 *
 * A request on which two workers were lost, one after the other, is not given a third. Its client
 * will send it again, because that is what clients do; so its body is remembered for ten minutes, by
 * hash, and refused at the door meanwhile. An innocent request that was twice in the wrong place is
 * refused as well, for as long.
 *
 * One table for all router loops, of a fixed size, the oldest forgotten first. While it is empty, which
 * is nearly always, asking costs one load from memory and no lock. Any thread. */
#ifndef ROUTER_POISON_H
#define ROUTER_POISON_H

#include "common/base.h"
#include "common/buf.h"

#define POISON_MEMORY_US UINT64_C(600000000)
#define POISON_MAX       256

struct poison;

struct poison *poison_create(void);
void poison_destroy(struct poison *p); /* NULL is fine */

void poison_add(struct poison *p, struct str body, uint64_t now_us); /* p NULL: nothing */
bool poison_is_suspect(struct poison *p, struct str body, uint64_t now_us);

#endif
