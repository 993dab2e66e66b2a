/* tests/support/file_tier_fixture.h - a file tier in a folder of its own, and blocks to put there.
 *
 * The hook counts system calls of each kind and fails those that a test asks for. */
#ifndef TESTS_SUPPORT_FILE_TIER_FIXTURE_H
#define TESTS_SUPPORT_FILE_TIER_FIXTURE_H

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"
#include "tests/support/unit_fixture.h"
#include "worker/kv/tiers/file.h"
#include "worker/kv/tiers/file_segment.h"

#define FILE_DESK_BLOCK (8192 - UNIT_HEADER_BYTES - 64) /* with its head: two pages */

struct file_desk {
    char dir[64];
    struct unit_codec_config codec;
    struct tier_file_config config;
    struct file_hook hook;
    struct mailbox *box;
    struct tier *tier;
    /* The fault: calls of `op` from the n-th (1) on, `times` of them. */
    atomic_uint op, n, times;
    struct file_fault fault;
    atomic_uint seen[FILE_UNLINK + 1];
    bool is_cut;          /* the second of the calls fails with EIO */
    atomic_uint delay_us; /* of each call */
    atomic_bool is_held;  /* no call goes on */
    int log_fd;           /* of tests that read the log; 0: none */
};

static inline void file_desk_before(void *arg, enum file_op op, uint64_t at, size_t n,
                                    struct file_fault *fault) {
    struct file_desk *d = arg;
    unsigned seen = atomic_fetch_add(&d->seen[op], 1) + 1, from = atomic_load(&d->n);

    (void)at;
    if (atomic_load(&d->delay_us)) usleep(atomic_load(&d->delay_us));
    while (atomic_load(&d->is_held))
        usleep(100);
    if (from == 0 || op != atomic_load(&d->op) || seen < from ||
        seen - from >= atomic_load(&d->times))
        return;
    *fault = d->fault;
    if (d->is_cut && seen > from) fault->error = EIO;
    if (fault->flip_at >= n) fault->flip_at = 0;
}

/* The next `times` calls of op get the fault. */
static inline void file_desk_fail(struct file_desk *d, enum file_op op, unsigned times,
                                  struct file_fault fault) {
    atomic_store(&d->n, 0);
    d->fault = fault;
    atomic_store(&d->op, op);
    atomic_store(&d->times, times);
    atomic_store(&d->n, atomic_load(&d->seen[op]) + 1);
}

static inline void file_desk_open(struct file_desk *d) {
    struct error err;

    error_init(&err);
    if (tier_file_open(&d->tier, &d->config, &err) != ST_OK) fail_msg("%s", err.message);
}

static inline void file_desk_close(struct file_desk *d) {
    if (d->tier) d->tier->ops->destroy(d->tier);
    d->tier = NULL;
}

static inline void file_desk_reopen(struct file_desk *d) {
    file_desk_close(d);
    file_desk_open(d);
}

/* 16 segments of 15 units, and a scan that a test asks for by opening again. */
static inline void file_desk_init(struct file_desk *d, const char *dir) {
    memset(d, 0, sizeof(*d));
    if (dir) {
        snprintf(d->dir, sizeof(d->dir), "%s", dir);
    } else {
        strcpy(d->dir, "/tmp/incipit-file-XXXXXX");
        assert_non_null(mkdtemp(d->dir));
    }
    d->codec = (struct unit_codec_config){
        .fingerprint = {1}, .block_tokens = UNIT_TEST_TOKENS, .block_bytes = FILE_DESK_BLOCK};
    d->hook = (struct file_hook){file_desk_before, d};
    d->config = (struct tier_file_config){.dir = d->dir,
                                          .max_bytes = 16 * 128 * 1024,
                                          .segment_bytes = 128 * 1024,
                                          .codec = &d->codec,
                                          .n_threads = 2,
                                          .scan_us = 3600000000u,
                                          .hook = &d->hook};
    d->box = mailbox_open_waiting();
}

static inline void file_desk_fini(struct file_desk *d, bool must_remove) {
    char command[128];

    file_desk_close(d);
    mailbox_close(d->box);
    if (d->log_fd > 0) close(d->log_fd);
    if (!must_remove) return;
    snprintf(command, sizeof(command), "rm -rf %s", d->dir);
    assert_int_equal(system(command), 0);
}

/* A job with the blocks [from, from + n) of a chain and room for their payloads. */
struct file_batch {
    struct tier_job job;
    uint64_t chain;
    uint32_t from, n;
    size_t block_bytes;
    struct unit_block blocks[TIER_JOB_UNITS];
    uint8_t payloads[TIER_JOB_UNITS][FILE_DESK_BLOCK];
};

static inline struct file_batch *file_batch_make(struct file_desk *d, enum tier_op op,
                                                 uint64_t chain, uint32_t from, uint32_t n) {
    struct file_batch *b = mem_zalloc(sizeof(*b));

    b->chain = chain;
    b->from = from;
    b->n = n;
    b->block_bytes = d->codec.block_bytes;
    b->job.op = op;
    b->job.n = n;
    b->job.home = d->box;
    b->job.deadline_us = UINT64_MAX;
    for (uint32_t i = 0; i < n; i++) {
        if (i == 0)
            unit_block_make(&b->blocks[0], NULL, d->codec.fingerprint, chain, from);
        else
            unit_block_follow(&b->blocks[i], &b->blocks[i - 1].id.key, NULL, chain, from + i);
        b->job.units[i].id = b->blocks[i].id;
        b->job.units[i].payload = b->payloads[i];
        if (op == TIER_STORE)
            unit_block_fill(&b->blocks[i], b->payloads[i], FILE_DESK_BLOCK);
        else
            memset(b->payloads[i], 0xee, FILE_DESK_BLOCK);
    }
    return b;
}

static inline void file_desk_submit(struct file_desk *d, struct file_batch *b) {
    b->job.submitted_us = clock_now_us();
    d->tier->ops->submit(d->tier, &b->job);
}

/* The next job that is over. */
static inline struct file_batch *file_desk_take(struct file_desk *d) {
    static struct list mails = {NULL, NULL};

    if (!mails.next) list_init(&mails);
    while (list_is_empty(&mails))
        mailbox_wait(d->box, &mails, UINT64_MAX);
    return CONTAINER_OF(mail_of(list_pop_front(&mails)), struct file_batch, job.mail);
}

/* How many units, from the first on, are fine; a load's have the right bytes, every unit behind the
 * first that is not was left alone. */
static inline uint32_t file_batch_fine(const struct file_batch *b) {
    uint8_t wanted[FILE_DESK_BLOCK];
    uint32_t n = 0;

    assert_true(b->job.began_us != 0 && b->job.ended_us >= b->job.began_us);
    while (n < b->n && b->job.units[n].result == TIER_OK) {
        unit_block_fill(&b->blocks[n], wanted, FILE_DESK_BLOCK);
        assert_memory_equal(b->payloads[n], wanted, b->block_bytes);
        n++;
    }
    if (b->job.op == TIER_LOAD)
        for (uint32_t i = n + 1; i < b->n; i++)
            assert_int_not_equal(b->job.units[i].result, TIER_OK);
    return n;
}

/* Submits, waits, and returns how many were fine and what became of the next one. */
static inline uint32_t file_desk_run(struct file_desk *d, enum tier_op op, uint64_t chain,
                                     uint32_t from, uint32_t n, enum tier_result *then) {
    struct file_batch *b = file_batch_make(d, op, chain, from, n);
    uint32_t n_fine;

    file_desk_submit(d, b);
    assert_ptr_equal(file_desk_take(d), b);
    n_fine = file_batch_fine(b);
    if (then) *then = n_fine < n ? b->job.units[n_fine].result : TIER_OK;
    mem_free(b);
    return n_fine;
}

static inline uint32_t file_desk_store(struct file_desk *d, uint64_t chain, uint32_t from,
                                       uint32_t n) {
    return file_desk_run(d, TIER_STORE, chain, from, n, NULL);
}

static inline uint32_t file_desk_load(struct file_desk *d, uint64_t chain, uint32_t from,
                                      uint32_t n) {
    return file_desk_run(d, TIER_LOAD, chain, from, n, NULL);
}

static inline uint32_t file_desk_find(struct file_desk *d, uint64_t chain, uint32_t n) {
    struct unit_key keys[TIER_JOB_UNITS];
    struct unit_block b;

    for (uint32_t i = 0; i < n; i++) {
        if (i == 0)
            unit_block_make(&b, NULL, d->codec.fingerprint, chain, 0);
        else
            unit_block_follow(&b, &keys[i - 1], NULL, chain, i);
        keys[i] = b.id.key;
    }
    return d->tier->ops->find(d->tier, keys, n);
}

static inline struct tier_stats file_desk_stats(struct file_desk *d) {
    struct tier_stats s;

    d->tier->ops->stats(d->tier, &s);
    return s;
}

/* The path of the folder's k-th segment by name (if there is one, and path is not NULL); how many
 * there are. */
static inline int file_desk_segment(const struct file_desk *d, int k, char path[256]) {
    char folder[128];
    struct dirent **names;
    int n, n_segments = 0;

    snprintf(folder, sizeof(folder), "%s/0100000000000000", d->dir);
    n = scandir(folder, &names, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        if (strncmp(names[i]->d_name, "seg-", 4) == 0 && n_segments++ == k && path)
            snprintf(path, 256, "%s/%.100s", folder, names[i]->d_name);
        free(names[i]);
    }
    if (n >= 0) free(names);
    return n_segments;
}

#endif
