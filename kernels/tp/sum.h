/* kernels/tp/sum.h - a product's sum over the ranks of one host, to the bit the sum of one rank.
 *
 * o and down are split by inputs, so each rank has a part of every output's sum. Adding those parts
 * would round in another order than one rank does. An output is one chain of fp32 operations along
 * K (kernels/cpu/path.h), and a chain can be passed on: rank 0 runs it over its inputs, rank 1 goes
 * on from where rank 0 stopped, and what the last rank leaves is the sum for all.
 *
 *      rank 0   | product |               read |
 *      rank 1             | product |     read |
 *      rank 2                       | pro.| read |
 *
 * THE PRICE. In these two products the ranks take turns, so their time is that of one rank for all
 * of K, where everything else of a layer is divided. On one socket ranks gain nothing over as many
 * threads of one rank; they are the proof that the sharding is right, and useful only where each
 * runs on memory of its own.
 *
 * The running sums are rank 0's memory, written in place. There are two sets in alternation: who
 * writes a set again has since met everyone who read it. Thread: each rank's own. */
#ifndef KERNELS_TP_SUM_H
#define KERNELS_TP_SUM_H

#include "kernels/tp/group.h"

struct tp_sum {
    struct tp_group *group;
    uint32_t rank, size;
    uint32_t next;  /* which set is next */
    float *sums[2]; /* rank 0's */
};

/* All ranks call; rank 0 brings its memory, others NULL. */
MUST_USE enum status tp_sum_join(struct tp_sum *s, struct tp_group *group, uint32_t rank,
                                 float *const sums[2]);

/* Waits for this rank's turn. The sums so far, to be continued in place; at rank 0 to be begun.
 * NULL when the group was stopped. */
MUST_USE float *tp_sum_begin(struct tp_sum *s);
/* Passes the turn on. The sums of all ranks, once the last has had its turn, until this rank's next
 * tp_sum_begin; NULL when the group was stopped. */
MUST_USE const float *tp_sum_end(struct tp_sum *s);

#endif
