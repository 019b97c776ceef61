// Preloaded library that injects system failures into a program: jumps of the wall clock, and failures to create threads.
// Controlled by environment variables; without them, it changes nothing.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

// TROUBLE_CLOCK_S=N: the wall clock jumps N seconds ahead and back, every 100 ms of the monotonic clock.
int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, now);
    const char *jump_s = getenv("TROUBLE_CLOCK_S");
    if (failed || !jump_s || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)) return failed;
    struct timespec ticks;
    real(CLOCK_MONOTONIC, &ticks);
    long tenth = ticks.tv_nsec / 100000000;
    now->tv_sec += tenth % 2 ? atol(jump_s) : -atol(jump_s);
    return 0;
}

// TROUBLE_THREADS=FILE: while FILE exists, no thread can be created.
int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument) {
    static int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    if (!real) real = (int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))dlsym(RTLD_NEXT, "pthread_create");
    const char *file = getenv("TROUBLE_THREADS");
    if (file && access(file, F_OK) == 0) return EAGAIN;
    return real(thread, attributes, start, argument);
}
