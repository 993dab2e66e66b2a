/* tests/bench/bench_request_events.c - what it costs to publish a request to every router.
 *
 * Of prompts of several lengths: the chain header written (router) and read (worker), the accepted
 * event written (worker) and read (every other router), and what a worker's ring takes for the
 * three events of a request, and to hand a follower's copy of them out. Medians; a bar where the
 * goal names one: a chain of 1,024 blocks in a few microseconds. */
#include <stdio.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/rng.h"
#include "worker/api/events/request_log.h"

#define ROUNDS   51
#define REPEATS  200
#define LOG_SIZE (16u << 20)
#define BAR_US   5.0

static uint64_t blocks[CHAIN_BLOCKS_MAX], blocks_read[CHAIN_BLOCKS_MAX];

struct bench {
    struct request_chain chain, chain_read;
    struct request_event event, event_read;
    struct request_log *log;
    char *text;
    size_t text_len;
    struct buf frame, out;
    uint64_t from;
};

static void must(enum status st) {
    if (st != ST_OK) abort();
}

static void put_header(struct bench *b) {
    b->text_len = (size_t)(request_chain_put(b->text, &b->chain, &b->event.mark) - b->text);
}

static void read_header(struct bench *b) {
    must(request_chain_parse((struct str){b->text, b->text_len}, blocks_read, &b->chain_read,
                             &b->event_read.mark));
}

static void put_event(struct bench *b) {
    buf_clear(&b->frame);
    request_event_put(&b->frame, 1, &b->event);
}

static void read_event(struct bench *b) {
    uint64_t sequence;
    size_t used;

    must(request_event_read(buf_str(&b->frame), blocks_read, &b->event_read, &sequence, &used,
                            NULL));
}

static void log_request(struct bench *b) {
    uint64_t request = request_log_stats(b->log).next;
    struct request_event first = {.kind = REQUEST_FIRST, .request = request},
                         ended = {.kind = REQUEST_ENDED, .request = request};

    b->event.request = request;
    request_log_append(b->log, &b->event);
    request_log_append(b->log, &first);
    request_log_append(b->log, &ended);
    b->from = request;
}

static void read_log(struct bench *b) {
    uint64_t next;

    buf_clear(&b->out);
    must(request_log_read(b->log, b->from, LOG_SIZE, &b->out, &next));
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median_us(struct bench *b, void (*fn)(struct bench *b)) {
    double us[ROUNDS];

    for (int r = 0; r < ROUNDS; r++) {
        uint64_t t0 = clock_now_us();

        for (int i = 0; i < REPEATS; i++)
            fn(b);
        us[r] = (double)(clock_now_us() - t0) / REPEATS;
    }
    qsort(us, ROUNDS, sizeof(*us), by_value);
    return us[ROUNDS / 2];
}

static void row(struct bench *b, uint32_t n_blocks) {
    static void (*const steps[])(struct bench * b) = {put_header, read_header, put_event,
                                                      read_event, log_request, read_log};

    b->chain = (struct request_chain){rng_mix(1), rng_mix(2), 128ull * n_blocks, n_blocks, blocks};
    b->event = (struct request_event){
        .kind = REQUEST_ACCEPTED,
        .t_us = clock_now_us(),
        .chain = b->chain,
        .mark = {.tenant = rng_mix(3), .session = rng_mix(4), .is_turn = true}};
    printf("%6u", n_blocks);
    for (size_t i = 0; i < ARRAY_LEN(steps); i++) /* each reads what the one before wrote */
        printf("%s%7.2f", i % 2 ? "" : "   ", median_us(b, steps[i]));
    printf("\n");
}

int main(void) {
    struct bench b = {.text = malloc(request_chain_text_max(CHAIN_BLOCKS_MAX))};

    for (uint32_t i = 0; i < CHAIN_BLOCKS_MAX; i++)
        blocks[i] = rng_mix(i) & ~UINT64_C(0xffff);
    buf_init(&b.frame, 0);
    buf_init(&b.out, 0);
    must(request_log_create(&b.log, LOG_SIZE, NULL));
    printf("us; bar %.0f for each at 1,024 blocks\n", BAR_US);
    printf("blocks   header put, read   event put, read   a request's events logged, read\n");
    row(&b, 0);
    row(&b, 40);
    row(&b, 256);
    row(&b, 1024);
    request_log_destroy(b.log);
    buf_fini(&b.frame);
    buf_fini(&b.out);
    free(b.text);
    return 0;
}
