/* tests/bench/bench_index.c - the prefix index alone: nanoseconds per lookup, bytes per entry.
 *
 * A table filled to its last record at 1 and 10 million entries, of 64 and of 1,000 workers, then
 *
 *     lookup   independent blocks, each asked for sixteen ahead, as the walk of a chain does
 *     cold     the same one after the other: each waits for memory
 *     insert   into a table that is being filled; replace: into a full one, after a removal
 *     floor    one random cache line read per step from memory of the same size and kind of
 *              pages, asked for sixteen ahead: what no table with a line per block can beat
 *
 * Best of seven rounds, one thread; on a machine whose other cores are busy the best still varies,
 * which is what the floor is there to show. */
#include <stdio.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "router/routing/prefix_index.h"

#define N_ROUNDS 7
#define N_PROBES 1000000u
#define AHEAD    PREFIX_ASK_EARLY

static double ns_since(uint64_t began_us, uint32_t n) {
    return (double)(clock_now_us() - began_us) * 1e3 / n;
}

static uint64_t hash_of(uint64_t i) {
    return rng_mix(i);
}

static double floor_ns(uint64_t n_bytes, uint64_t *sum) {
    uint64_t n_lines = n_bytes / CACHE_LINE;
    char *memory = mem_try_pages(n_bytes);
    double best = 1e9;

    if (!memory) abort();
    for (uint64_t i = 0; i < n_lines; i++)
        memory[i * CACHE_LINE] = 1;
    for (int round = 0; round < N_ROUNDS; round++) {
        uint64_t began = clock_now_us();

        for (uint32_t i = 0; i < N_PROBES; i++) {
            uint64_t ahead = (uint64_t)(((unsigned __int128)hash_of(i + AHEAD) * n_lines) >> 64);
            uint64_t now = (uint64_t)(((unsigned __int128)hash_of(i) * n_lines) >> 64);

            __builtin_prefetch(memory + ahead * CACHE_LINE);
            *sum += (uint64_t)memory[now * CACHE_LINE];
        }
        best = MIN(best, ns_since(began, N_PROBES));
    }
    mem_free_pages(memory, n_bytes);
    return best;
}

static void link_to_itself(struct prefix_index *x, uint32_t number) {
    struct prefix_record *r = prefix_index_at(x, number);

    r->prev = r->next = number; /* a ring of one; moves keep it right */
}

static void insert(struct prefix_index *x, uint64_t i, uint32_t n_workers) {
    uint32_t n = prefix_index_insert(x, hash_of(i), (uint32_t)(i % n_workers));

    if (n == PREFIX_NONE) abort();
    link_to_itself(x, n);
}

static void bench(uint32_t n_entries, uint32_t n_workers) {
    struct prefix_index *x = prefix_index_create(n_entries, n_workers);
    uint64_t bytes = prefix_index_bytes(n_entries, n_workers), sum = 0, began = clock_now_us();
    double insert_ns, floor, lookup = 1e9, cold = 1e9, replace = 1e9;
    uint32_t *probes = mem_calloc(N_PROBES + AHEAD, sizeof(*probes));
    uint64_t *hashes =
        mem_calloc(N_PROBES + AHEAD, sizeof(*hashes)); /* as of a chain: made before */
    struct rng rng;

    if (!x) abort();
    for (uint64_t i = 0; i < n_entries; i++)
        insert(x, i, n_workers);
    insert_ns = ns_since(began, n_entries);
    rng_seed(&rng, n_workers);
    for (int round = 0; round < N_ROUNDS; round++) {
        for (uint32_t i = 0; i < N_PROBES + AHEAD; i++)
            hashes[i] = hash_of(probes[i] = (uint32_t)rng_below(&rng, n_entries));
        began = clock_now_us();
        for (uint32_t i = 0; i < N_PROBES; i++) {
            prefix_index_ask_early(x, hashes[i + PREFIX_ASK_EARLY]);
            prefix_index_ask_late(x, hashes[i + PREFIX_ASK_LATE], WORKER_NONE);
            sum += prefix_index_has(x, hashes[i], probes[i] % n_workers);
        }
        lookup = MIN(lookup, ns_since(began, N_PROBES));
    }
    if (sum != (uint64_t)N_ROUNDS * N_PROBES) abort();
    for (int round = 0; round < N_ROUNDS; round++) {
        uint64_t last = 0; /* the next place depends on this one's answer */

        began = clock_now_us();
        for (uint32_t i = 0; i < N_PROBES / 4; i++) {
            uint64_t at = probes[i] ^ last;

            last = !prefix_index_has(x, hash_of(at), (uint32_t)(at % n_workers));
        }
        cold = MIN(cold, ns_since(began, N_PROBES / 4));
        sum += last;
    }
    for (uint32_t round = 0; round < N_ROUNDS; round++) {
        uint64_t first = (uint64_t)round * (N_PROBES / 8);

        began = clock_now_us();
        for (uint64_t i = first; i < first + N_PROBES / 8; i++) {
            prefix_index_ask_early(x, hash_of(i + PREFIX_ASK_EARLY));
            prefix_index_ask_early(x, hash_of(n_entries + i + PREFIX_ASK_EARLY));
            prefix_index_ask_late(x, hash_of(i + PREFIX_ASK_LATE), WORKER_NONE);
            prefix_index_ask_late(x, hash_of(n_entries + i + PREFIX_ASK_LATE), WORKER_NONE);
            prefix_index_remove(x, prefix_index_find(x, hash_of(i), (uint32_t)(i % n_workers)));
            insert(x, n_entries + i, n_workers);
        }
        replace = MIN(replace, ns_since(began, N_PROBES / 8));
    }
    floor = floor_ns(bytes, &sum);
    printf(
        "%3u M entries, %4u workers: lookup %.0f ns (floor %.0f), cold %.0f, insert %.0f, replace "
        "%.0f; %.1f bytes per entry%s\n",
        n_entries / 1000000, n_workers, lookup, floor, cold, insert_ns, replace,
        (double)bytes / n_entries, sum == 1 ? "." : "");
    prefix_index_destroy(x);
    mem_free(hashes);
    mem_free(probes);
}

int main(void) {
    static const uint32_t fleets[] = {64, 1000};

    for (size_t i = 0; i < ARRAY_LEN(fleets); i++) {
        bench(1000000, fleets[i]);
        bench(10000000, fleets[i]);
    }
    return 0;
}
