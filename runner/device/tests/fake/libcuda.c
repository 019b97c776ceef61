/* A CUDA driver without a GPU, for tests. Device memory is memory of the process, streams are threads, and copies are made
 * late, so that a write to memory that is still being read is detected.
 *
 * Environment:
 *   FAKE_CUDA_DEVICES    number of devices (1)
 *   FAKE_CUDA_DELAY_US   duration of a copy in microseconds; all bytes are copied at its end (0)
 *   FAKE_CUDA_MEMORY     memory of a device in bytes (no limit)
 *   FAKE_CUDA_FAIL       CALL:N      the Nth call of CALL returns CUDA_ERROR_INVALID_VALUE and does nothing
 *   FAKE_CUDA_LOST       CALL:N      from the Nth call of CALL on, every call returns CUDA_ERROR_ILLEGAL_ADDRESS; the CALL
 *                                    `copying` is the copy on the device
 *   FAKE_CUDA_SKIP_WAIT  set: streams made by cuStreamCreate do not wait for events
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef unsigned Code;
typedef unsigned long long DevicePtr;

enum { SUCCESS = 0, INVALID_VALUE = 1, NO_MEMORY = 2, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_CONTEXT = 201, NOT_READY = 600, ILLEGAL_ADDRESS = 700 };

typedef struct Event {
    uint64_t recorded, done; /* numbers of recordings */
    double at_ms;
    int users, destroyed;
} Event;

typedef struct Op {
    enum { COPY, RECORD, WAIT, READ, END } kind;
    char *to;
    const char *from;
    size_t len;
    int owns_from;
    Event *event;
    uint64_t times;
    unsigned delay_us;
    uint64_t *sum;
    struct Op *next;
} Op;

typedef struct Stream {
    Op *first, *last;
    int pending, is_of_thread;
    struct Stream *next;
} Stream;

typedef struct Region {
    char *begin;
    size_t len;
    struct Region *next;
} Region;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static Stream *streams, default_stream;
static Region *device_regions, *host_regions;
static size_t device_bytes;
static long live_streams, live_events, live_contexts;
static int lost, default_runs;
static int contexts[16];
static _Thread_local int depth;
static _Thread_local Stream *own_stream;

static long setting(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text ? atol(text) : otherwise;
}

static double now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e3 + now.tv_nsec / 1e6;
}

/* Returns true for the call that the setting selects: `CALL:N`. */
static int is_meant(const char *setting, const char *call, long *count) {
    const char *wanted = getenv(setting);
    size_t len = strlen(call);
    if (!wanted || strncmp(wanted, call, len) != 0 || wanted[len] != ':') return 0;
    return ++*count == atol(wanted + len + 1);
}

/* Result that a call has to return instead of its normal work, or SUCCESS. */
static Code entered(const char *call) {
    static long failing, losing;
    pthread_mutex_lock(&lock);
    if (is_meant("FAKE_CUDA_LOST", call, &losing)) lost = 1;
    Code code = lost ? ILLEGAL_ADDRESS : is_meant("FAKE_CUDA_FAIL", call, &failing) ? INVALID_VALUE : SUCCESS;
    pthread_mutex_unlock(&lock);
    return code;
}

#define ENTER() do { Code code = entered(__func__); if (code) return code; } while (0)
#define IN_CONTEXT() do { ENTER(); if (!depth) return INVALID_CONTEXT; } while (0)

static void release_event(Event *event) {
    if (--event->users == 0 && event->destroyed) free(event);
}

static void do_op(Op *op) {
    static long copying;
    if (op->delay_us) usleep(op->delay_us);
    switch (op->kind) {
    case COPY:
        pthread_mutex_lock(&lock);
        if (is_meant("FAKE_CUDA_LOST", "copying", &copying)) lost = 1;
        int skip = lost;
        pthread_mutex_unlock(&lock);
        if (!skip) memcpy(op->to, op->from, op->len);
        if (op->owns_from) free((char *)op->from);
        break;
    case READ: {
        uint64_t sum = 0;
        for (size_t at = 0; at < op->len; at++) sum += (unsigned char)op->from[at];
        *op->sum = sum;
        break;
    }
    case RECORD:
        pthread_mutex_lock(&lock);
        op->event->done = op->times;
        op->event->at_ms = now_ms();
        release_event(op->event);
        pthread_mutex_unlock(&lock);
        break;
    case WAIT:
        pthread_mutex_lock(&lock);
        while (op->event->done < op->times && !lost) pthread_cond_wait(&changed, &lock);
        release_event(op->event);
        pthread_mutex_unlock(&lock);
        break;
    case END:
        break;
    }
}

static void *run_stream(void *argument) {
    Stream *stream = argument;
    for (;;) {
        pthread_mutex_lock(&lock);
        while (!stream->first) pthread_cond_wait(&changed, &lock);
        Op *op = stream->first;
        stream->first = op->next;
        if (!stream->first) stream->last = NULL;
        pthread_mutex_unlock(&lock);
        do_op(op);
        int is_end = op->kind == END;
        free(op);
        pthread_mutex_lock(&lock);
        stream->pending--;
        if (is_end) {
            Stream **place = &streams;
            while (*place != stream) place = &(*place)->next;
            *place = stream->next;
        }
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&lock);
        if (is_end) {
            free(stream);
            return NULL;
        }
    }
}

static void start_stream(Stream *stream) {
    pthread_t thread;
    stream->next = streams;
    streams = stream;
    pthread_create(&thread, NULL, run_stream, stream);
    pthread_detach(thread);
}

/* Stream of a handle; 0 and 1 are the default stream of the context, 2 is that of the calling thread. The lock is held. */
static Stream *stream_of(void *handle) {
    if ((uintptr_t)handle > 2) return handle;
    if ((uintptr_t)handle == 2) {
        if (!own_stream) {
            own_stream = calloc(1, sizeof *own_stream);
            own_stream->is_of_thread = 1;
            start_stream(own_stream);
        }
        return own_stream;
    }
    if (!default_runs) {
        default_runs = 1;
        start_stream(&default_stream);
    }
    return &default_stream;
}

/* Adds a copy of the operation to the end of the stream. The lock is held. */
static void append(Stream *stream, Op op) {
    Op *own = malloc(sizeof *own);
    *own = op;
    own->next = NULL;
    if (op.event) op.event->users++;
    if (stream->last) stream->last->next = own;
    else stream->first = own;
    stream->last = own;
    stream->pending++;
}

/* Makes the context's default stream wait for all operations in the streams of threads. The lock is held. */
static void wait_for_threads(void) {
    for (Stream *stream = streams; stream; stream = stream->next) {
        if (!stream->is_of_thread || !stream->pending) continue;
        Event *event = calloc(1, sizeof *event);
        event->destroyed = 1; /* its last user frees it */
        append(stream, (Op){.kind = RECORD, .event = event, .times = 1});
        append(&default_stream, (Op){.kind = WAIT, .event = event, .times = 1});
    }
}

static void put(void *handle, Op op) {
    pthread_mutex_lock(&lock);
    Stream *stream = stream_of(handle);
    if (stream == &default_stream) wait_for_threads();
    append(stream, op);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

/* Waits for all operations in all streams. The lock is held. */
static void wait_for_all(void) {
    for (;;) {
        int pending = 0;
        for (Stream *stream = streams; stream; stream = stream->next) pending += stream->pending;
        if (!pending) return;
        pthread_cond_wait(&changed, &lock);
    }
}

static int is_within(Region *regions, const char *begin, size_t len) {
    for (; regions; regions = regions->next)
        if (begin >= regions->begin && begin + len <= regions->begin + regions->len) return 1;
    return 0;
}

static char *add_region(Region **regions, size_t len) {
    Region *region = malloc(sizeof *region);
    *region = (Region){aligned_alloc(4096, (len + 4095) / 4096 * 4096), len, *regions};
    memset(region->begin, 0xEE, len);
    *regions = region;
    return region->begin;
}

static size_t take_region(Region **regions, const char *begin) {
    for (; *regions; regions = &(*regions)->next)
        if ((*regions)->begin == begin) {
            Region *region = *regions;
            size_t len = region->len;
            *regions = region->next;
            memset(region->begin, 0xDD, len);
            free(region->begin);
            free(region);
            return len;
        }
    return 0;
}

/* Functions for tests. */

static long regions_in(Region *regions) {
    long count = 0;
    for (; regions; regions = regions->next) count++;
    return count;
}

static long bytes_in(Region *regions) {
    long bytes = 0;
    for (; regions; regions = regions->next) bytes += (long)regions->len;
    return bytes;
}

/* Writes the numbers of device regions, host regions, streams, events and contexts not freed, and the bytes of the host regions. */
void fake_cuda_counts(long *counts) {
    pthread_mutex_lock(&lock);
    counts[0] = regions_in(device_regions);
    counts[1] = regions_in(host_regions);
    counts[2] = live_streams;
    counts[3] = live_events;
    counts[4] = live_contexts;
    counts[5] = bytes_in(host_regions);
    pthread_mutex_unlock(&lock);
}

/* A kernel that reads bytes late and adds them up. */
void fake_cuda_read_later(void *stream, DevicePtr from, size_t len, unsigned delay_us, uint64_t *sum) {
    put(stream, (Op){.kind = READ, .from = (char *)(uintptr_t)from, .len = len, .delay_us = delay_us, .sum = sum});
}

void fake_cuda_finish(void) {
    pthread_mutex_lock(&lock);
    wait_for_all();
    pthread_mutex_unlock(&lock);
}

/* Functions of the driver. */

Code cuInit(unsigned flags) {
    (void)flags;
    ENTER();
    return setting("FAKE_CUDA_DEVICES", 1) ? SUCCESS : NO_DEVICE;
}

Code cuGetErrorName(Code code, const char **name) {
    switch (code) {
    case INVALID_VALUE: *name = "CUDA_ERROR_INVALID_VALUE"; return SUCCESS;
    case NO_MEMORY: *name = "CUDA_ERROR_OUT_OF_MEMORY"; return SUCCESS;
    case INVALID_CONTEXT: *name = "CUDA_ERROR_INVALID_CONTEXT"; return SUCCESS;
    case ILLEGAL_ADDRESS: *name = "CUDA_ERROR_ILLEGAL_ADDRESS"; return SUCCESS;
    default: *name = NULL; return INVALID_VALUE;
    }
}

Code cuGetErrorString(Code code, const char **text) {
    switch (code) {
    case INVALID_VALUE: *text = "invalid argument"; return SUCCESS;
    case NO_MEMORY: *text = "out of memory"; return SUCCESS;
    case INVALID_CONTEXT: *text = "invalid device context"; return SUCCESS;
    case ILLEGAL_ADDRESS: *text = "an illegal memory access was encountered"; return SUCCESS;
    default: *text = NULL; return INVALID_VALUE;
    }
}

Code cuDeviceGetCount(int *count) {
    ENTER();
    *count = (int)setting("FAKE_CUDA_DEVICES", 1);
    return SUCCESS;
}

Code cuDeviceGet(int *device, int number) {
    ENTER();
    if (number < 0 || number >= setting("FAKE_CUDA_DEVICES", 1)) return INVALID_DEVICE;
    *device = number;
    return SUCCESS;
}

Code cuDeviceGetName(char *name, int len, int device) {
    ENTER();
    snprintf(name, len, "Fake GPU %d", device);
    return SUCCESS;
}

Code cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
    ENTER();
    for (int at = 0; at < 16; at++) uuid[at] = (unsigned char)(device * 16 + at);
    return SUCCESS;
}

Code cuDevicePrimaryCtxRetain(void **context, int device) {
    ENTER();
    pthread_mutex_lock(&lock);
    live_contexts++;
    pthread_mutex_unlock(&lock);
    *context = &contexts[device];
    return SUCCESS;
}

Code cuDevicePrimaryCtxRelease_v2(int device) {
    (void)device;
    ENTER();
    pthread_mutex_lock(&lock);
    live_contexts--;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

Code cuCtxPushCurrent_v2(void *context) {
    ENTER();
    if (!context) return INVALID_CONTEXT;
    depth++;
    return SUCCESS;
}

Code cuCtxPopCurrent_v2(void **context) {
    ENTER();
    if (!depth) return INVALID_CONTEXT;
    depth--;
    *context = NULL;
    return SUCCESS;
}

Code cuMemAlloc_v2(DevicePtr *begin, size_t len) {
    IN_CONTEXT();
    pthread_mutex_lock(&lock);
    long memory = setting("FAKE_CUDA_MEMORY", 0);
    int has_room = !memory || device_bytes + len <= (size_t)memory;
    if (has_room) {
        device_bytes += len;
        *begin = (uintptr_t)add_region(&device_regions, len);
    }
    pthread_mutex_unlock(&lock);
    return has_room ? SUCCESS : NO_MEMORY;
}

Code cuMemFree_v2(DevicePtr begin) {
    IN_CONTEXT();
    pthread_mutex_lock(&lock);
    wait_for_all();
    size_t len = take_region(&device_regions, (char *)(uintptr_t)begin);
    device_bytes -= len;
    pthread_mutex_unlock(&lock);
    return len ? SUCCESS : INVALID_VALUE;
}

Code cuMemHostAlloc(void **begin, size_t len, unsigned flags) {
    (void)flags;
    IN_CONTEXT();
    pthread_mutex_lock(&lock);
    *begin = add_region(&host_regions, len);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

Code cuMemFreeHost(void *begin) {
    IN_CONTEXT();
    pthread_mutex_lock(&lock);
    wait_for_all();
    size_t len = take_region(&host_regions, begin);
    pthread_mutex_unlock(&lock);
    return len ? SUCCESS : INVALID_VALUE;
}

/* Pinned memory is read late; other memory at once. */
Code cuMemcpyHtoDAsync_v2(DevicePtr to, const void *from, size_t len, void *stream) {
    IN_CONTEXT();
    pthread_mutex_lock(&lock);
    int is_pinned = is_within(host_regions, from, len);
    int has_room = is_within(device_regions, (char *)(uintptr_t)to, len);
    pthread_mutex_unlock(&lock);
    if (!has_room) return INVALID_VALUE;
    const char *source = from;
    if (!is_pinned) source = memcpy(malloc(len), from, len);
    put(stream, (Op){.kind = COPY, .to = (char *)(uintptr_t)to, .from = source, .len = len, .owns_from = !is_pinned,
                     .delay_us = (unsigned)setting("FAKE_CUDA_DELAY_US", 0)});
    return SUCCESS;
}

Code cuStreamCreate(void **stream, unsigned flags) {
    (void)flags;
    IN_CONTEXT();
    Stream *made = calloc(1, sizeof *made);
    pthread_mutex_lock(&lock);
    live_streams++;
    start_stream(made);
    pthread_mutex_unlock(&lock);
    *stream = made;
    return SUCCESS;
}

Code cuStreamDestroy_v2(void *stream) {
    IN_CONTEXT();
    pthread_mutex_lock(&lock);
    live_streams--;
    pthread_mutex_unlock(&lock);
    put(stream, (Op){.kind = END});
    return SUCCESS;
}

Code cuStreamQuery(void *stream) {
    IN_CONTEXT();
    pthread_mutex_lock(&lock);
    int pending = stream_of(stream)->pending;
    pthread_mutex_unlock(&lock);
    return pending ? NOT_READY : SUCCESS;
}

Code cuStreamWaitEvent(void *stream, Event *event, unsigned flags) {
    (void)flags;
    IN_CONTEXT();
    if ((uintptr_t)stream > 2 && getenv("FAKE_CUDA_SKIP_WAIT")) return SUCCESS;
    pthread_mutex_lock(&lock);
    uint64_t times = event->recorded;
    pthread_mutex_unlock(&lock);
    put(stream, (Op){.kind = WAIT, .event = event, .times = times});
    return SUCCESS;
}

Code cuEventCreate(Event **event, unsigned flags) {
    (void)flags;
    IN_CONTEXT();
    pthread_mutex_lock(&lock);
    live_events++;
    pthread_mutex_unlock(&lock);
    *event = calloc(1, sizeof **event);
    return SUCCESS;
}

Code cuEventDestroy_v2(Event *event) {
    IN_CONTEXT();
    pthread_mutex_lock(&lock);
    live_events--;
    event->destroyed = 1;
    if (!event->users) free(event);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

Code cuEventRecord(Event *event, void *stream) {
    IN_CONTEXT();
    pthread_mutex_lock(&lock);
    uint64_t times = ++event->recorded;
    pthread_mutex_unlock(&lock);
    put(stream, (Op){.kind = RECORD, .event = event, .times = times});
    return SUCCESS;
}

Code cuEventQuery(Event *event) {
    IN_CONTEXT();
    pthread_mutex_lock(&lock);
    int is_done = event->done >= event->recorded;
    pthread_mutex_unlock(&lock);
    return is_done ? SUCCESS : NOT_READY;
}

Code cuEventElapsedTime(float *ms, Event *begin, Event *end) {
    IN_CONTEXT();
    pthread_mutex_lock(&lock);
    *ms = (float)(end->at_ms - begin->at_ms);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}
