/* deploy/portable/arc4random.c - random bytes for libevent, from the system.
 *
 * glibc has these functions from 2.36 on, and a libevent built there calls them; machines that the
 * portable worker is carried to have 2.34 or 2.35 (Ubuntu 22.04, RHEL 9). Any thread. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>

uint32_t arc4random(void);
void arc4random_buf(void *bytes, size_t n);

void arc4random_buf(void *bytes, size_t n) {
    unsigned char *at = bytes;

    while (n) {
        ssize_t got = getrandom(at, n, 0);

        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
            perror("incipit: the system gives no random bytes (getrandom)");
            abort();
        }
        at += got;
        n -= (size_t)got;
    }
}

uint32_t arc4random(void) {
    uint32_t x;

    arc4random_buf(&x, sizeof(x));
    return x;
}
