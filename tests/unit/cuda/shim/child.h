/* tests/unit/cuda/shim/child.h - runs what must end its process in a process of its own. */
#ifndef TESTS_UNIT_CUDA_SHIM_CHILD_H
#define TESTS_UNIT_CUDA_SHIM_CHILD_H

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/base.h"

/* Runs fn(arg) in a child. Did it end badly? What it wrote to stderr is in `output`. */
static inline bool child_run(void (*fn)(void *), void *arg, char *output, size_t size) {
    int ends[2], status;
    size_t n = 0;
    ssize_t got;
    pid_t pid;

    if (pipe(ends)) abort();
    pid = fork();
    if (pid == 0) {
        for (int i = 1; i < NSIG; i++)
            signal(i, SIG_DFL); /* cmocka's, which would make it a failed test */
        dup2(ends[1], STDERR_FILENO);
        fn(arg);
        _exit(0);
    }
    close(ends[1]);
    while ((got = read(ends[0], output + n, size - 1 - n)) > 0)
        n += (size_t)got;
    output[n] = '\0';
    close(ends[0]);
    if (waitpid(pid, &status, 0) != pid) abort();
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}
static inline bool child_prints(void (*fn)(void *), void *arg, const char *sentence) {
    char output[4096];

    return child_run(fn, arg, output, sizeof(output)) && strstr(output, sentence);
}
static inline bool child_dies(void (*fn)(void *), void *arg) {
    char output[4096];

    return child_run(fn, arg, output, sizeof(output));
}

#endif
