/* tests/bench/bench_route.c - what a routing decision costs, and the memory of the index.
 *
 * Prompts of 24 blocks (3 KiB): a system prompt of 8 blocks that all share, then one of
 * 20,000 conversations. The fleet is warmed with them first. Times are the best of seven rounds,
 * of one thread: `decide` is match and pick alone (a dry run), `route` is routing_route with its
 * books, `rest` is the first token and the end. Read on a quiet core. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/protocol/request_events.h"
#include "router/prompt/body_scan_internal.h"
#include "router/prompt/prompt_hash.h"
#include "router/prompt/prompt_text.h"
#include "router/routing/prefix_index.h"
#include "router/routing/prefix_lru.h"
#include "router/routing/routing.h"
#include "tests/support/routing_defaults.h"

#define N_CHATS     20000
#define N_BLOCKS    24
#define N_SHARED    8
#define N_ROUNDS    7
#define N_PER_ROUND 20000
#define BLOCK_BYTES 256

static uint64_t (*chains)[N_BLOCKS];

static void make_chains(void) {
    chains = mem_calloc(N_CHATS, sizeof(*chains));
    for (uint64_t c = 0; c < N_CHATS; c++) {
        for (uint32_t i = 0; i < N_BLOCKS; i++)
            chains[c][i] = rng_at(i < N_SHARED ? 1 : c + 2, i);
    }
}

static void finish(struct routing *r, struct route_ticket *t, uint64_t now_us) {
    struct route_feedback feedback = {N_BLOCKS * 32, (int64_t)t->cached_tokens};

    routing_first_token(r, t, &feedback, now_us);
    routing_ended(
        r, t, &(struct route_end){.output_tokens = 100, .now_us = now_us, .feedback = {-1, -1}});
}

static void route(struct routing *r, uint64_t chat, struct route_ticket *t, uint64_t now_us) {
    struct route_request rq = {.chain = chains[chat],
                               .n_blocks = N_BLOCKS,
                               .prompt_bytes = N_BLOCKS * BLOCK_BYTES,
                               .now_us = now_us};

    if (routing_route(r, &rq, t, NULL) != ST_OK) abort();
}

/* `fetches`: its workers exchange KV, eight on a host. */
static void bench_fleet(uint32_t n_workers, bool fetches) {
    struct routing_options o;
    struct routing *r;
    struct routing_stats s;
    struct policy_term *terms = mem_calloc(n_workers, sizeof(*terms));
    struct route_ticket *t = mem_calloc(N_PER_ROUND, sizeof(*t));
    double decide_us = 1e9, route_us = 1e9, rest_us = 1e9;
    struct rng rng;
    uint64_t now_us = 0, sum = 0;

    rng_seed(&rng, n_workers);
    routing_options_default(&o);
    o.max_workers = n_workers;
    o.max_index_bytes = UINT64_C(256) << 20;
    if (routing_create(&r, &o, NULL) != ST_OK) abort();
    for (uint32_t w = 0; w < n_workers; w++)
        routing_worker_up(r, w,
                          &(struct worker_spec){.identity = w, .generation = 1, .n_blocks = 40000});
    for (uint32_t w = 0; fetches && w < n_workers; w++)
        routing_set_peer(r, w, &(struct fetch_peer){1, w / 8, 131072});
    for (uint64_t i = 0; i < 10 * N_CHATS; i++) { /* up to 16 per worker in flight: all get some */
        struct route_ticket *q = &t[i % MIN(16 * n_workers, (uint32_t)N_PER_ROUND)];

        if (q->load.is_open) finish(r, q, now_us);
        route(r, rng_below(&rng, N_CHATS), q, now_us += 50);
    }
    for (uint32_t i = 0; i < N_PER_ROUND; i++) {
        if (t[i].load.is_open) finish(r, &t[i], now_us);
    }
    for (int round = 0; round < N_ROUNDS; round++) {
        uint64_t began = clock_now_us();

        for (uint32_t i = 0; i < N_PER_ROUND; i++) {
            uint64_t chat = rng_below(&rng, N_CHATS);
            struct route_request rq = {.chain = chains[chat],
                                       .n_blocks = N_BLOCKS,
                                       .prompt_bytes = N_BLOCKS * BLOCK_BYTES,
                                       .now_us = now_us};

            sum += routing_explain(r, &rq, terms);
        }
        decide_us = MIN(decide_us, (double)(clock_now_us() - began) / N_PER_ROUND);
        for (uint32_t chunk = 0; chunk < N_PER_ROUND; chunk += 1000) {
            static double chunk_route_us, chunk_rest_us;

            began = clock_now_us();
            for (uint32_t i = 0; i < 1000; i++)
                route(r, rng_below(&rng, N_CHATS), &t[i], now_us += 50);
            chunk_route_us = (double)(clock_now_us() - began) / 1000;
            began = clock_now_us();
            for (uint32_t i = 0; i < 1000; i++)
                finish(r, &t[i], now_us);
            chunk_rest_us = (double)(clock_now_us() - began) / 1000;
            route_us = MIN(route_us, chunk_route_us);
            rest_us = MIN(rest_us, chunk_rest_us);
        }
    }
    routing_stats(r, &s);
    printf(
        "%5u workers%s, %u blocks: decide %.2f us, route %.2f us, rest %.2f us; %llu entries used, "
        "%.1f bytes per (block, worker)%s\n",
        n_workers, fetches ? " that fetch" : "", N_BLOCKS, decide_us, route_us, rest_us,
        (unsigned long long)s.n_entries, (double)s.index_bytes_max / (double)s.n_entries_max,
        sum == 1 ? "." : "");
    routing_check(r);
    routing_destroy(r);
    mem_free(terms);
    mem_free(t);
}

/* Scan and hash, which come before the lock: nanoseconds per KiB of body. */
static void bench_body(size_t n_text) {
    size_t n = 0, n_iterations = (UINT64_C(64) << 20) / n_text;
    char *body = mem_alloc(n_text + 200);
    uint64_t *chain = mem_calloc(n_text / BLOCK_BYTES + 2, sizeof(*chain));
    uint64_t sum = 0;

    n += (size_t)sprintf(
        body, "{\"model\":\"m\",\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"");
    while (n < n_text)
        n += (size_t)sprintf(body + n, "%s",
                             n % 5 ? "Some words of prose, as people write. " : "A line\\n");
    n += (size_t)sprintf(body + n, "\"}],\"max_tokens\":100}");
    for (uint32_t v = 0; string_scan_at(v); v++) {
        double scan_ns = 1e18, both_ns = 1e18;

        for (int round = 0; round < N_ROUNDS; round++) {
            for (int with_hash = 0; with_hash < 2; with_hash++) {
                uint64_t began = clock_now_us();
                double ns;

                for (size_t i = 0; i < n_iterations; i++) {
                    struct body_scan s;

                    if (body_scan_with((struct str){body, n}, &s, string_scan_at(v), NULL) != ST_OK)
                        abort();
                    if (!with_hash) continue;
                    struct str prompt = body_scan_prompt(&s);
                    uint32_t n_blocks = prompt_hash_n_blocks(prompt.len, BLOCK_BYTES, 2048);
                    prompt_hash_chain(prompt, i, BLOCK_BYTES, chain, MIN(n_blocks, 2048u));
                    sum += chain[n_blocks - 1];
                }
                ns = (double)(clock_now_us() - began) * 1e3 / (double)n_iterations /
                     ((double)n / 1024);
                if (with_hash)
                    both_ns = MIN(both_ns, ns);
                else
                    scan_ns = MIN(scan_ns, ns);
            }
        }
        printf("body of %6zu bytes, %-6s: scan %.0f ns/KiB, with the hash chain %.0f ns/KiB%s\n", n,
               string_scan_at(v)->name, scan_ns, both_ns, sum == 1 ? "." : "");
    }
    mem_free(chain);
    mem_free(body);
}

/* As bench_body, of a conversation of Messages: 2 KiB each of the user, of a tool and of its
 * result. */
static void bench_messages(size_t n_text) {
    char *body = mem_alloc(n_text + 8192), text[2048];
    size_t n =
        (size_t)sprintf(body, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":"
                              "\"Hello\"}");
    uint64_t *chain = mem_calloc(n_text / BLOCK_BYTES + 40, sizeof(*chain));
    uint32_t n_iterations = (uint32_t)((UINT64_C(64) << 20) / n_text), n_max;
    static const struct client_noise none;
    double best_ns = 1e18;

    memset(text, 'w', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    while (n < n_text)
        n += (size_t)sprintf(
            body + n,
            ",{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"t\",\"name\":"
            "\"f\","
            "\"input\":{\"x\":\"%.1000s\"}}]},{\"role\":\"user\",\"content\":[{\"type\":\"tool_"
            "result\","
            "\"tool_use_id\":\"t\",\"content\":\"%s\"},{\"type\":\"text\",\"text\":\"%s\"}]}",
            text, text, text);
    n += (size_t)sprintf(body + n, "],\"max_tokens\":100}");
    n_max = (uint32_t)(n / BLOCK_BYTES + 2);
    for (int round = 0; round < N_ROUNDS; round++) {
        uint64_t began = clock_now_us();

        for (uint32_t i = 0; i < n_iterations; i++) {
            struct body_scan s;
            struct prompt_text prompt = {&s, &none, API_MESSAGES};
            struct prompt_hashed hashed;

            if (body_scan_with((struct str){body, n}, &s, string_scan_at(0), NULL) != ST_OK)
                abort();
            prompt_hash_text(&prompt, i, BLOCK_BYTES, chain, n_max, &hashed);
        }
        best_ns = MIN(best_ns,
                      (double)(clock_now_us() - began) * 1e3 / n_iterations / ((double)n / 1024));
    }
    printf("Messages of %6zu bytes: scan and hash chain %.0f ns/KiB\n", n, best_ns);
    mem_free(chain);
    mem_free(body);
}

/* What a head gains for a worker that publishes events: x-incipit-chain, written and read. */
static void bench_chain_header(uint32_t n_tokens) {
    uint32_t n_blocks = n_tokens * 4 / BLOCK_BYTES;
    uint64_t *blocks = mem_calloc(CHAIN_BLOCKS_MAX, sizeof(*blocks)), sum = 0;
    char *text = mem_alloc(request_chain_text_max(n_blocks));
    struct request_chain chain = {.origin = 1,
                                  .scheme = 2,
                                  .prompt_bytes = n_tokens * 4u,
                                  .n_blocks = n_blocks,
                                  .blocks = blocks};
    struct request_mark mark = {.tenant = 3, .session = 4, .is_turn = true};
    double put_ns = 1e18, parse_ns = 1e18;
    struct str value = {text, 0};

    for (uint32_t i = 0; i < n_blocks; i++)
        blocks[i] = rng_at(3, i) & PROMPT_HASH_MASK;
    for (int round = 0; round < N_ROUNDS; round++) {
        struct request_chain back;
        uint64_t began = clock_now_us();

        for (uint32_t i = 0; i < N_PER_ROUND; i++) {
            chain.origin = i;
            value.len = (size_t)(request_chain_put(text, &chain, &mark) - text);
            sum += (uint8_t)text[i % value.len];
        }
        put_ns = MIN(put_ns, (double)(clock_now_us() - began) * 1e3 / N_PER_ROUND);
        began = clock_now_us();
        for (uint32_t i = 0; i < N_PER_ROUND; i++) {
            if (request_chain_parse(value, blocks, &back, &mark) != ST_OK) abort();
            sum += back.n_blocks;
        }
        parse_ns = MIN(parse_ns, (double)(clock_now_us() - began) * 1e3 / N_PER_ROUND);
    }
    printf("chain header of %u tokens, %zu bytes: written in %.0f ns, read in %.0f ns%s\n",
           n_tokens, value.len, put_ns, parse_ns, sum == 1 ? "." : "");
    mem_free(text);
    mem_free(blocks);
}

int main(void) {
    make_chains();
    bench_fleet(4, false);
    bench_fleet(64, false);
    bench_fleet(64, true);
    bench_fleet(1000, false);
    bench_fleet(1000, true);
    bench_body(1 << 10);
    bench_body(32 << 10);
    bench_messages(32 << 10);
    bench_chain_header(250);
    bench_chain_header(12000);
    mem_free(chains);
    return 0;
}
