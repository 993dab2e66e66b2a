/* tests/shim/rooms.c - which memory a kernel may be handed.
 *
 * A GPU cannot follow a pointer to the host's stack, heap or static data. Here a thread of a kernel
 * could, so each launch is looked over: a word of its arguments that is the address of mapped
 * memory must lie in memory of a device (gpu_alloc, gpu_alloc_pinned), or, when the stream is NULL,
 * in memory from tests/gpu/on_device.h, which on a GPU is mapped host memory. Where arguments have
 * padding, words with a small number in the lower half are left out: with what an address left in
 * the padding for the upper half they look like addresses, of AddressSanitizer's heap above all,
 * whose lower halves begin at 16. Pointers behind pointers are not looked at. Any thread. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/gpu/on_device.h"
#include "tests/shim/gpu_shim_internal.h"
#include "tests/shim/internal.h"
#include "tests/shim/shim_control.h"

#undef malloc
#undef free

enum { ALIGNMENT = 256, PAGE_BYTES = 4096, SMALL_NUMBER = 65536 };
/* A word below it is a number: programs lie higher, and AddressSanitizer's own tables lower. */
#define LEAST_ADDRESS (UINT64_C(1) << 45)

struct room {
    uintptr_t start;
    size_t n_bytes;
};

static pthread_mutex_t lock_ = PTHREAD_MUTEX_INITIALIZER;
static struct room *rooms_; /* by rising start, apart from each other */
static size_t n_rooms_, n_places_;
static bool is_host_allowed_;

void shim_allow_host_memory(bool is_allowed) {
    is_host_allowed_ = is_allowed;
}

/* The first room that ends at or behind `at`. */
static size_t first_behind(uintptr_t at) {
    size_t low = 0, high = n_rooms_;

    while (low < high) {
        size_t middle = (low + high) / 2;

        if (rooms_[middle].start + rooms_[middle].n_bytes < at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool is_in_room(uintptr_t at) {
    size_t i;
    bool is_in;

    pthread_mutex_lock(&lock_);
    i = first_behind(at);
    is_in = i < n_rooms_ && rooms_[i].start <= at;
    pthread_mutex_unlock(&lock_);
    return is_in;
}

static void remove_room(size_t i) {
    memmove(rooms_ + i, rooms_ + i + 1, (--n_rooms_ - i) * sizeof(*rooms_));
}

static void add_room(uintptr_t start, size_t n_bytes) {
    size_t i;

    pthread_mutex_lock(&lock_);
    /* What lies there already was freed by other code than the test's. */
    while ((i = first_behind(start)) < n_rooms_ && rooms_[i].start <= start + n_bytes)
        remove_room(i);
    if (n_rooms_ == n_places_) {
        n_places_ = n_places_ ? 2 * n_places_ : 64;
        rooms_ = realloc(rooms_, n_places_ * sizeof(*rooms_));
        if (!rooms_) abort();
    }
    memmove(rooms_ + i + 1, rooms_ + i, (n_rooms_++ - i) * sizeof(*rooms_));
    rooms_[i] = (struct room){start, n_bytes};
    pthread_mutex_unlock(&lock_);
}

void *device_room(size_t n_bytes) {
    void *p = NULL;

    if (posix_memalign(&p, ALIGNMENT, n_bytes ? n_bytes : 1)) abort();
    memset(p, 0, n_bytes);
    add_room((uintptr_t)p, n_bytes);
    return p;
}

void device_release(void *p) {
    uintptr_t at = (uintptr_t)p;
    size_t i;

    if (!p) return;
    pthread_mutex_lock(&lock_);
    i = first_behind(at);
    if (i < n_rooms_ && rooms_[i].start == at) remove_room(i);
    pthread_mutex_unlock(&lock_);
    free(p);
}

static bool is_mapped(uintptr_t at) {
    unsigned char is_resident;

    return mincore((void *)(at / PAGE_BYTES * PAGE_BYTES), 1, &is_resident) == 0;
}

static struct gpu_kernel *kernels_; /* complete before main */

void gpu_list_kernel(struct gpu_kernel *kernel) {
    kernel->next = kernels_;
    kernels_ = kernel;
}
static bool is_listed(void (*kernel)(void)) {
    const struct gpu_kernel *k = kernels_;

    while (k && k->address != (const void *)(uintptr_t)kernel)
        k = k->next;
    return k;
}

void shim_check_launch(struct gpu_stream *s, const struct shim_launch *launch) {
    if (!is_listed(launch->kernel))
        shim_fault("kernel %s was not loaded when its device was opened: LAUNCH lists what is",
                   launch->name);
    if (!s && is_host_allowed_) return;
    for (size_t i = 0; i + sizeof(uintptr_t) <= launch->args_bytes; i += sizeof(uintptr_t)) {
        uintptr_t at;

        memcpy(&at, (const unsigned char *)launch->args + i, sizeof(at));
        if (at < LEAST_ADDRESS || (launch->has_padding && (uint32_t)at < SMALL_NUMBER) ||
            shim_is_device_address((const void *)at))
            continue;
        if ((!s && is_in_room(at)) || !is_mapped(at)) continue;
        shim_fault("kernel %s: byte %zu of its arguments points to %p, which is the host's stack, "
                   "heap or static data: a GPU cannot read it, so allocate it%s",
                   launch->name, i, (void *)at, s ? " on the device" : "");
    }
}
