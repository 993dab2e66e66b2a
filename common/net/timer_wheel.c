/* common/net/timer_wheel.c - rows of slots, and the one digit that decides.
 *
 * Invariant: a running timer that is not due lies in the row of the highest digit in which its tick
 * differs from now, and that digit is greater than now's. So in every row the slots in use lie
 * ahead of now, those of a row come before those of the rows above, and the next one is the lowest
 * bit of the lowest row. Now may be moved up to that slot's beginning without touching any
 * timer. */
#include "common/net/timer_wheel.h"

#include <assert.h>

#define DIGIT_BITS 6u
#define LOOK_MAX   4 /* timers of a slot that are looked at to spare a wake-up */
#define MAX_TICK   ((UINT64_C(1) << (DIGIT_BITS * TIMER_WHEEL_LEVELS)) - 1)

_Static_assert(TIMER_WHEEL_SLOTS == 1u << DIGIT_BITS, "a row has a slot for each value of a digit");

static unsigned level_of(uint64_t due_tick, uint64_t now_tick) {
    return (63 - (unsigned)__builtin_clzll((due_tick ^ now_tick) | 1)) / DIGIT_BITS;
}

static unsigned digit(uint64_t tick, unsigned level) {
    return (unsigned)(tick >> (DIGIT_BITS * level)) % TIMER_WHEEL_SLOTS;
}

void timer_wheel_init(struct timer_wheel *wheel, uint64_t now_us) {
    wheel->now_tick = now_us / TIMER_WHEEL_TICK_US;
    list_init(&wheel->due);
    for (int level = 0; level < TIMER_WHEEL_LEVELS; level++) {
        wheel->occupied[level] = 0;
        for (int slot = 0; slot < TIMER_WHEEL_SLOTS; slot++)
            list_init(&wheel->slots[level][slot]);
    }
}

/* Where it belongs as seen from now. */
static void place(struct timer_wheel *wheel, struct timer_wheel_entry *e) {
    unsigned level, slot;

    if (e->due_tick <= wheel->now_tick) {
        list_push_back(&wheel->due, &e->link);
        return;
    }
    level = level_of(e->due_tick, wheel->now_tick);
    slot = digit(e->due_tick, level);
    wheel->occupied[level] |= UINT64_C(1) << slot;
    list_push_back(&wheel->slots[level][slot], &e->link);
}

void timer_wheel_start(struct timer_wheel *wheel, struct timer_wheel_entry *e, uint64_t due_us) {
    uint64_t due_tick = due_us / TIMER_WHEEL_TICK_US + (due_us % TIMER_WHEEL_TICK_US != 0);

    timer_wheel_stop(e);
    e->due_tick = MIN(MAX(due_tick, wheel->now_tick + 1), MAX_TICK);
    place(wheel, e);
}

void timer_wheel_stop(struct timer_wheel_entry *e) {
    if (list_is_linked(&e->link)) list_remove(&e->link);
}

/* The next slot with a timer in it, or NULL; bits of slots that were emptied by stops go on the
 * way. */
static struct list *next_slot(struct timer_wheel *wheel, uint64_t *begins_tick) {
    for (unsigned level = 0; level < TIMER_WHEEL_LEVELS; level++) {
        while (wheel->occupied[level]) {
            unsigned slot = (unsigned)__builtin_ctzll(wheel->occupied[level]);
            uint64_t above = wheel->now_tick >> (DIGIT_BITS * (level + 1));

            if (!list_is_empty(&wheel->slots[level][slot])) {
                *begins_tick = (above << DIGIT_BITS | slot) << (DIGIT_BITS * level);
                return &wheel->slots[level][slot];
            }
            wheel->occupied[level] &= wheel->occupied[level] - 1;
        }
    }
    return NULL;
}

/* When the first timer of a slot is due, or when the slot begins if finding that takes long. */
static uint64_t first_tick(const struct list *slot, uint64_t begins_tick) {
    uint64_t first = MAX_TICK;
    int n = 0;

    LIST_FOR_EACH(it, slot) {
        if (n++ == LOOK_MAX) return begins_tick;
        first = MIN(first, LIST_ENTRY(it, struct timer_wheel_entry, link)->due_tick);
    }
    return first;
}

uint64_t timer_wheel_next_us(struct timer_wheel *wheel) {
    uint64_t begins_tick = wheel->now_tick;
    const struct list *slot;

    if (!list_is_empty(&wheel->due)) return begins_tick * TIMER_WHEEL_TICK_US;
    slot = next_slot(wheel, &begins_tick);
    return slot ? first_tick(slot, begins_tick) * TIMER_WHEEL_TICK_US : TIMER_WHEEL_NEVER;
}

struct timer_wheel_entry *timer_wheel_pop(struct timer_wheel *wheel, uint64_t now_us) {
    uint64_t now_tick = MAX(now_us / TIMER_WHEEL_TICK_US, wheel->now_tick), begins_tick;
    struct list *slot, *link;

    while (list_is_empty(&wheel->due) && (slot = next_slot(wheel, &begins_tick)) &&
           begins_tick <= now_tick) {
        struct list batch;

        list_init(&batch);
        list_splice_back(&batch, slot);
        wheel->now_tick = begins_tick;
        while ((link = list_pop_front(&batch)))
            place(wheel, LIST_ENTRY(link, struct timer_wheel_entry, link));
    }
    link = list_pop_front(&wheel->due);
    if (link) return LIST_ENTRY(link, struct timer_wheel_entry, link);
    wheel->now_tick = now_tick;
    return NULL;
}

void timer_wheel_check(const struct timer_wheel *wheel) {
    LIST_FOR_EACH(it, &wheel->due) {
        assert(LIST_ENTRY(it, struct timer_wheel_entry, link)->due_tick <= wheel->now_tick);
    }
    for (unsigned level = 0; level < TIMER_WHEEL_LEVELS; level++) {
        for (unsigned slot = 0; slot < TIMER_WHEEL_SLOTS; slot++) {
            LIST_FOR_EACH(it, &wheel->slots[level][slot]) {
                uint64_t due_tick = LIST_ENTRY(it, struct timer_wheel_entry, link)->due_tick;

                assert(due_tick > wheel->now_tick);
                assert(level_of(due_tick, wheel->now_tick) == level);
                assert(digit(due_tick, level) == slot);
                assert(wheel->occupied[level] >> slot & 1);
            }
        }
    }
}
