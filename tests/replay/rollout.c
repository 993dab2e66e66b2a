/* tests/replay/rollout.c - a child for each choice, and a pipe from each. */
#include "tests/replay/rollout.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct future {
    pid_t pid;
    int fd;
};

static void fail(const char *what) {
    fprintf(stderr, "replay: rollout: %s: %s; try fewer workers at once\n", what, strerror(errno));
    exit(1);
}

static struct future begin(double (*cost)(void *ctx, uint32_t choice), void *ctx, uint32_t choice) {
    struct future f;
    int ends[2];

    if (pipe(ends) != 0) fail("pipe");
    f = (struct future){fork(), ends[0]};
    if (f.pid < 0) fail("fork");
    if (f.pid == 0) {
        double x = cost(ctx, choice);

        _exit(write(ends[1], &x, sizeof(x)) == (ssize_t)sizeof(x) ? 0 : 1);
    }
    close(ends[1]);
    return f;
}

static double end(struct future f) {
    double cost;

    if (read(f.fd, &cost, sizeof(cost)) != (ssize_t)sizeof(cost)) fail("a child without an answer");
    close(f.fd);
    if (waitpid(f.pid, NULL, 0) != f.pid) fail("waitpid");
    return cost;
}

void rollout_costs(uint32_t n, double (*cost)(void *ctx, uint32_t choice), void *ctx,
                   double costs[]) {
    struct future futures[ROLLOUT_MAX];

    assert(n && n <= ROLLOUT_MAX);
    for (uint32_t i = 0; i < n; i++)
        futures[i] = begin(cost, ctx, i);
    for (uint32_t i = 0; i < n; i++)
        costs[i] = end(futures[i]);
}

uint32_t rollout_least(uint32_t n, double (*cost)(void *ctx, uint32_t choice), void *ctx) {
    double costs[ROLLOUT_MAX];
    uint32_t best = 0;

    rollout_costs(n, cost, ctx, costs);
    for (uint32_t i = 1; i < n; i++)
        best = costs[i] < costs[best] ? i : best;
    return best;
}
