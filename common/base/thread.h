/* common/base/thread.h - threads that get no signals, which are for the main thread. */
#ifndef COMMON_BASE_THREAD_H
#define COMMON_BASE_THREAD_H

#include <pthread.h>
#include <signal.h>

/* Starts a thread that runs `run` with all signals blocked. Returns 0, or pthread_create's error
 * number. The caller joins or detaches it. */
static inline int thread_start(pthread_t *out, void *(*run)(void *), void *arg) {
    sigset_t all, before;
    int error;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(out, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

#endif
