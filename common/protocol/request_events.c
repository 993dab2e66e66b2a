/* common/protocol/request_events.c - the codec of the events and of the chain header; see the
 * header.
 *
 *      accepted  [1, t_us, request, prompt_bytes, origin, scheme, blocks,     blocks: 6 bytes each
 *                    tenant, session, n_system, flags]                        or without the mark
 *      first     [2, t_us, request, prompt_tokens, cached_tokens, below_tokens]
 *      ended     [3, t_us, request, output_tokens, is_aborted]
 *      load      [4, t_us, running, waiting, queued_tokens, kv_free, kv_total, is_draining]
 *      cleared   [5, t_us]
 *      hello     [100, t_us, generation, next, oldest, is_gap]
 *
 * A known kind has at least these elements, of these types, in these ranges, or the stream is not
 * one of ours. What a newer writer puts behind them is not looked at. Nothing is allocated; a chain
 * of 1,024 blocks takes half a microsecond in an event and four in the header, in each
 * direction. */
#include "common/protocol/request_events.h"

#include <endian.h>
#include <string.h>

#include "common/text/msgpack.h"

#define PAYLOAD_MAX   (64u << 10) /* five times the longest known: room for newer writers */
#define BLOCK_CHARS   8           /* base64url of CHAIN_HASH_BYTES */
#define CHAIN_VERSION "1"
#define HEX_DIGITS    16
#define BLOCK_MASK    (~UINT64_C(0xffff))
#define MARK_ELEMENTS 4

/* The flags of a mark, beside the priority less its least value and the weight. Readers ignore
 * unknown ones. */
#define MARK_TURN     1u
#define MARK_LAST     2u
#define MARK_WAITED   4u
#define MARK_PRIORITY 4  /* its place: 4 bits */
#define MARK_WEIGHT   8  /* too: 14 bits */
#define MARK_WAIT     22 /* 12 bits */
#define MARK_HELD     34 /* 12 bits */

/* --- the mark --------------------------------------------------------------------------------- */

static uint64_t flags_of(const struct request_mark *m) {
    int32_t priority = MIN(MAX(m->priority, REQUEST_PRIORITY_LEAST), REQUEST_PRIORITY_MOST);

    return (m->is_turn ? MARK_TURN : 0) | (m->is_last ? MARK_LAST : 0) |
           (m->has_waited ? MARK_WAITED : 0) |
           (uint64_t)(priority - REQUEST_PRIORITY_LEAST) << MARK_PRIORITY |
           (uint64_t)MIN(m->weight_percent, (uint32_t)REQUEST_WEIGHT_MOST) << MARK_WEIGHT |
           (uint64_t)MIN(m->sessions_wait_s, (uint32_t)REQUEST_WAIT_MOST) << MARK_WAIT |
           (uint64_t)MIN(m->held_s, (uint32_t)REQUEST_WAIT_MOST) << MARK_HELD;
}

static void set_flags(struct request_mark *m, uint64_t flags) {
    m->is_turn = flags & MARK_TURN;
    m->is_last = flags & MARK_LAST;
    m->has_waited = flags & MARK_WAITED;
    m->priority = (int32_t)(flags >> MARK_PRIORITY & 15) + REQUEST_PRIORITY_LEAST;
    m->weight_percent = (uint32_t)(flags >> MARK_WEIGHT) & REQUEST_WEIGHT_MOST;
    m->sessions_wait_s = (uint32_t)(flags >> MARK_WAIT) & REQUEST_WAIT_MOST;
    m->held_s = (uint32_t)(flags >> MARK_HELD) & REQUEST_WAIT_MOST;
}

/* --- writing ---------------------------------------------------------------------------------- */

static void put_chain(struct buf *out, const struct request_chain *chain) {
    uint32_t n = MIN(chain->n_blocks, (uint32_t)CHAIN_BLOCKS_MAX);
    size_t n_bytes = (size_t)n * CHAIN_HASH_BYTES;
    uint8_t head[3] = {0xc5, (uint8_t)(n_bytes >> 8), (uint8_t)n_bytes}; /* bin, 16 bits */
    char *p;

    buf_append(out, head, sizeof(head));
    p = buf_reserve(out, n_bytes + 2); /* each is written as 8 bytes, two of them overwritten */
    if (!p) return;
    for (uint32_t i = 0; i < n; i++, p += CHAIN_HASH_BYTES) {
        uint64_t big_endian = htobe64(chain->blocks[i]);

        memcpy(p, &big_endian, sizeof(big_endian));
    }
    buf_commit(out, n_bytes);
}

static void put_load(struct buf *out, const struct wire_load *load) {
    msgpack_put_u64(out, load->running);
    msgpack_put_u64(out, load->waiting);
    msgpack_put_u64(out, load->queued_tokens);
    msgpack_put_u64(out, load->kv_free);
    msgpack_put_u64(out, load->kv_total);
    msgpack_put_bool(out, load->draining);
}

/* Elements of the array; 0: a kind that is not known. */
static uint32_t n_elements(uint64_t kind) {
    switch (kind) {
    case REQUEST_ACCEPTED: return 7;
    case REQUEST_FIRST: return 5;
    case REQUEST_ENDED: return 5;
    case REQUEST_LOAD: return 8;
    case REQUEST_CLEARED: return 2;
    case REQUEST_HELLO: return 6;
    default: return 0;
    }
}

/* Left out where it is not known, as it is by older readers. */
static bool has_below(const struct request_event *e) {
    return e->kind == REQUEST_FIRST && e->below_tokens >= 0;
}

/* The same. */
static bool has_mark(const struct request_event *e) {
    return e->kind == REQUEST_ACCEPTED && e->mark.tenant;
}

static void put_mark(struct buf *out, const struct request_mark *m) {
    msgpack_put_u64(out, m->tenant);
    msgpack_put_u64(out, m->session);
    msgpack_put_u64(out, m->n_system);
    msgpack_put_u64(out, flags_of(m));
}

static void put_payload(struct buf *out, const struct request_event *e) {
    uint32_t n_more = has_mark(e) ? MARK_ELEMENTS : has_below(e);

    msgpack_begin_array(out, n_elements(e->kind) + n_more);
    msgpack_put_u64(out, e->kind);
    msgpack_put_u64(out, e->t_us);
    switch (e->kind) {
    case REQUEST_ACCEPTED:
        msgpack_put_u64(out, e->request);
        msgpack_put_u64(out, e->chain.prompt_bytes);
        msgpack_put_u64(out, e->chain.origin);
        msgpack_put_u64(out, e->chain.scheme);
        put_chain(out, &e->chain);
        if (has_mark(e)) put_mark(out, &e->mark);
        break;
    case REQUEST_FIRST:
        msgpack_put_u64(out, e->request);
        msgpack_put_i64(out, e->prompt_tokens);
        msgpack_put_i64(out, e->cached_tokens);
        if (has_below(e)) msgpack_put_i64(out, e->below_tokens);
        break;
    case REQUEST_ENDED:
        msgpack_put_u64(out, e->request);
        msgpack_put_i64(out, e->output_tokens);
        msgpack_put_bool(out, e->is_aborted);
        break;
    case REQUEST_LOAD: put_load(out, &e->load); break;
    case REQUEST_CLEARED: break;
    case REQUEST_HELLO:
        msgpack_put_str(out, str_of(e->generation));
        msgpack_put_u64(out, e->next);
        msgpack_put_u64(out, e->oldest);
        msgpack_put_bool(out, e->is_gap);
        break;
    }
}

void request_event_put(struct buf *out, uint64_t sequence, const struct request_event *e) {
    uint8_t head[REQUEST_EVENT_HEAD] = {0};
    size_t begin = buf_len(out);
    uint32_t n_bytes;

    sequence = htobe64(sequence);
    memcpy(head + 4, &sequence, sizeof(sequence));
    buf_append(out, head, sizeof(head));
    put_payload(out, e);
    if (out->has_failed) return;
    n_bytes = htobe32((uint32_t)(buf_len(out) - begin - sizeof(head)));
    memcpy(buf_ptr(out) + begin, &n_bytes, sizeof(n_bytes));
}

/* --- reading ---------------------------------------------------------------------------------- */

/* A reader that remembers whether all was as it should be, so that fields are read in a row. */
struct fields {
    struct msgpack_reader r;
    bool is_bad;
};

static struct msgpack_value take(struct fields *f, enum msgpack_type type) {
    struct msgpack_value v = {.type = type};

    f->is_bad = f->is_bad || msgpack_expect(&f->r, type, &v) != ST_OK;
    return v;
}

static uint64_t take_u64(struct fields *f, uint64_t max) {
    uint64_t v = take(f, MSGPACK_U64).u64;

    f->is_bad = f->is_bad || v > max;
    return v;
}

static bool take_bool(struct fields *f) {
    return take(f, MSGPACK_BOOL).boolean;
}

/* At most 2^31 - 1, as in the headers; -1: unknown. */
static int64_t take_tokens(struct fields *f) {
    struct msgpack_value v = {0};

    f->is_bad = f->is_bad || msgpack_next(&f->r, &v) != ST_OK;
    if (v.type == MSGPACK_U64 && v.u64 <= INT32_MAX) return (int64_t)v.u64;
    f->is_bad = f->is_bad || v.type != MSGPACK_I64 || v.i64 != -1;
    return -1;
}

/* Blocks of 6 bytes, high ones first. */
static void take_blocks(struct fields *f, uint64_t *blocks, struct request_chain *chain) {
    struct str bytes = take(f, MSGPACK_BIN).bytes;
    size_t n = MIN(bytes.len / CHAIN_HASH_BYTES, (size_t)CHAIN_BLOCKS_MAX);

    if (f->is_bad || bytes.len % CHAIN_HASH_BYTES) {
        f->is_bad = true;
        return;
    }
    chain->n_blocks = (uint32_t)n;
    chain->blocks = blocks;
    for (size_t i = 0; i + 1 < n; i++) { /* 8 bytes at once, which the last one has not */
        memcpy(&blocks[i], bytes.ptr + i * CHAIN_HASH_BYTES, sizeof(blocks[i]));
        blocks[i] = be64toh(blocks[i]) & BLOCK_MASK;
    }
    if (n == 0) return;
    blocks[n - 1] = 0;
    memcpy(&blocks[n - 1], bytes.ptr + (n - 1) * CHAIN_HASH_BYTES, CHAIN_HASH_BYTES);
    blocks[n - 1] = be64toh(blocks[n - 1]);
}

/* Of no tenant: nothing is known. */
static void take_mark(struct fields *f, struct request_mark *m) {
    m->tenant = take_u64(f, UINT64_MAX);
    m->session = take_u64(f, UINT64_MAX);
    m->n_system = (uint32_t)take_u64(f, UINT32_MAX);
    set_flags(m, take_u64(f, UINT64_MAX));
    if (!m->tenant) *m = (struct request_mark){0};
}

static void take_load(struct fields *f, struct wire_load *load) {
    load->running = (uint32_t)take_u64(f, UINT32_MAX);
    load->waiting = (uint32_t)take_u64(f, UINT32_MAX);
    load->queued_tokens = take_u64(f, UINT64_MAX);
    load->kv_free = take_u64(f, UINT64_MAX);
    load->kv_total = take_u64(f, UINT64_MAX);
    load->draining = take_bool(f);
    f->is_bad = f->is_bad || load->kv_free > load->kv_total;
}

static void take_generation(struct fields *f, char out[WIRE_GENERATION_MAX]) {
    struct str s = take(f, MSGPACK_STR).bytes;

    if (f->is_bad || s.len >= WIRE_GENERATION_MAX || (s.len && memchr(s.ptr, '\0', s.len))) {
        f->is_bad = true;
        return;
    }
    if (s.len) memcpy(out, s.ptr, s.len);
}

static void take_rest(struct fields *f, uint32_t n, uint64_t *blocks, struct request_event *e) {
    switch (e->kind) {
    case REQUEST_ACCEPTED:
        e->request = take_u64(f, UINT64_MAX);
        e->chain.prompt_bytes = take_u64(f, UINT64_MAX);
        e->chain.origin = take_u64(f, UINT64_MAX);
        e->chain.scheme = take_u64(f, UINT64_MAX);
        take_blocks(f, blocks, &e->chain);
        if (n >= n_elements(REQUEST_ACCEPTED) + MARK_ELEMENTS) take_mark(f, &e->mark);
        if (e->mark.tenant) e->mark.origin = e->chain.origin;
        break;
    case REQUEST_FIRST:
        e->request = take_u64(f, UINT64_MAX);
        e->prompt_tokens = take_tokens(f);
        e->cached_tokens = take_tokens(f);
        if (n > n_elements(REQUEST_FIRST)) e->below_tokens = take_tokens(f); /* not of old ones */
        break;
    case REQUEST_ENDED:
        e->request = take_u64(f, UINT64_MAX);
        e->output_tokens = take_tokens(f);
        e->is_aborted = take_bool(f);
        break;
    case REQUEST_LOAD: take_load(f, &e->load); break;
    case REQUEST_CLEARED: break;
    case REQUEST_HELLO:
        take_generation(f, e->generation);
        e->next = take_u64(f, REQUEST_EVENT_CONTROL - 1);
        e->oldest = take_u64(f, e->next);
        e->is_gap = take_bool(f);
        break;
    }
}

/* False: not one of ours. */
static bool read_payload(struct str payload, uint64_t sequence, uint64_t *blocks,
                         struct request_event *e) {
    struct fields f = {msgpack_reader_of(payload), false};
    uint32_t n = take(&f, MSGPACK_ARRAY).n;
    uint64_t kind = take_u64(&f, UINT64_MAX);
    uint32_t n_known = n_elements(kind);

    *e = (struct request_event){
        .prompt_tokens = -1, .cached_tokens = -1, .below_tokens = -1, .output_tokens = -1};
    e->t_us = take_u64(&f, UINT64_MAX);
    if (f.is_bad || n < 2) return false;
    if (n_known == 0) return true;
    if (n < n_known || (kind == REQUEST_HELLO) != (sequence == REQUEST_EVENT_CONTROL)) return false;
    e->kind = (enum request_event_kind)kind;
    take_rest(&f, n, blocks, e);
    return !f.is_bad && (n > n_known || f.r.at == f.r.end);
}

enum status request_event_read(struct str bytes, uint64_t *blocks, struct request_event *e,
                               uint64_t *sequence, size_t *used, struct error *err) {
    uint32_t n_bytes;
    uint64_t number;
    struct request_event event;

    *used = 0;
    if (bytes.len < REQUEST_EVENT_HEAD) return ST_OK;
    memcpy(&n_bytes, bytes.ptr, sizeof(n_bytes));
    memcpy(&number, bytes.ptr + sizeof(n_bytes), sizeof(number));
    n_bytes = be32toh(n_bytes);
    number = be64toh(number);
    if (n_bytes > PAYLOAD_MAX) {
        return error_set(err, ST_TOO_LARGE,
                         "a request event of %u bytes: at most %u are read, so this is no stream "
                         "of " REQUEST_EVENTS_PATH,
                         n_bytes, PAYLOAD_MAX);
    }
    if (bytes.len - REQUEST_EVENT_HEAD < n_bytes) return ST_OK;
    if (!read_payload((struct str){bytes.ptr + REQUEST_EVENT_HEAD, n_bytes}, number, blocks,
                      &event)) {
        return error_set(err, ST_INVALID, "malformed request event %llu of %u bytes",
                         (unsigned long long)number, n_bytes);
    }
    *e = event;
    *sequence = number;
    *used = REQUEST_EVENT_HEAD + n_bytes;
    return ST_OK;
}

/* --- the header ------------------------------------------------------------------------------- */

static const char base64url[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

static char *put_hex(char *to, uint64_t v) {
    for (int shift = 4 * HEX_DIGITS - 4; shift >= 0; shift -= 4)
        *to++ = "0123456789abcdef"[v >> shift & 15];
    *to++ = ' ';
    return to;
}

/* Its words, a space before each: at most MARK_CHARS. */
#define MARK_CHARS (2 * (HEX_DIGITS + 1) + 2 * (STR_U64_MAX + 1))
static char *put_words(char *to, const struct request_mark *m) {
    *to++ = ' ';
    to = put_hex(to, m->tenant);
    to = put_hex(to, m->session);
    to = str_put_u64(to, m->n_system);
    *to++ = ' ';
    return str_put_u64(to, flags_of(m));
}

size_t request_chain_text_max(uint32_t n_blocks) {
    size_t n = MIN(n_blocks, (uint32_t)CHAIN_BLOCKS_MAX);

    return sizeof(CHAIN_VERSION " ") - 1 + (HEX_DIGITS + 1) + (HEX_DIGITS + 1) + (STR_U64_MAX + 1) +
           n * BLOCK_CHARS + MARK_CHARS;
}

char *request_chain_put(char *to, const struct request_chain *chain,
                        const struct request_mark *mark) {
    uint32_t n = MIN(chain->n_blocks, (uint32_t)CHAIN_BLOCKS_MAX);

    memcpy(to, CHAIN_VERSION " ", sizeof(CHAIN_VERSION " ") - 1);
    to = put_hex(to + sizeof(CHAIN_VERSION " ") - 1, chain->origin);
    to = put_hex(to, chain->scheme);
    to = str_put_u64(to, chain->prompt_bytes);
    if (n > 0 || mark->tenant) *to++ = ' ';
    for (uint32_t i = 0; i < n; i++) {
        uint64_t h = chain->blocks[i];

        for (int k = 0; k < BLOCK_CHARS; k++, h <<= 6)
            *to++ = base64url[h >> 58];
    }
    return mark->tenant ? put_words(to, mark) : to;
}

/* Cuts the first space-separated word off. */
static struct str next_word(struct str *rest) {
    const char *space = rest->len ? memchr(rest->ptr, ' ', rest->len) : NULL;
    struct str word = {rest->ptr, space ? (size_t)(space - rest->ptr) : rest->len};

    rest->ptr += word.len + (space ? 1 : 0);
    rest->len -= word.len + (space ? 1 : 0);
    return word;
}

static enum status parse_hex(struct str word, uint64_t *out) {
    uint64_t v = 0;

    if (word.len != HEX_DIGITS) return ST_INVALID;
    for (size_t i = 0; i < word.len; i++) {
        int digit = str_hex_value((unsigned char)word.ptr[i]);

        if (digit < 0) return ST_INVALID;
        v = v << 4 | (uint64_t)digit;
    }
    *out = v;
    return ST_OK;
}

#define NONE 0x80 /* of a byte that is no digit: a bit that no digit has */

/* clang-format off */
static const uint8_t base64url_values[256] = {
    [0 ... 44] = NONE,
    ['-'] = 62, [46 ... 47] = NONE,
    ['0'] = 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, [58 ... 64] = NONE,
    ['A'] = 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,
    ['N'] = 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, [91 ... 94] = NONE,
    ['_'] = 63, [96] = NONE,
    ['a'] = 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38,
    ['n'] = 39, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, [123 ... 255] = NONE,
};
/* clang-format on */

static enum status parse_blocks(struct str word, uint64_t *blocks, uint32_t *n_blocks) {
    size_t n = MIN(word.len / BLOCK_CHARS, (size_t)CHAIN_BLOCKS_MAX);
    const uint8_t *p = (const uint8_t *)word.ptr;
    uint8_t all = 0;

    if (word.len % BLOCK_CHARS) return ST_INVALID;
    for (size_t i = 0; i < n; i++) {
        uint64_t h = 0;

        for (int k = 0; k < BLOCK_CHARS; k++) {
            uint8_t digit = base64url_values[*p++];

            all |= digit;
            h = h << 6 | digit;
        }
        blocks[i] = h << 16;
    }
    *n_blocks = (uint32_t)n;
    return all & NONE ? ST_INVALID : ST_OK;
}

/* What a newer writer puts in their place is no mark. */
static struct request_mark parse_mark(struct str *rest) {
    struct request_mark m = {0};
    uint64_t n_system = 0, flags = 0;
    bool is_whole = parse_hex(next_word(rest), &m.tenant) == ST_OK &&
                    parse_hex(next_word(rest), &m.session) == ST_OK &&
                    str_to_u64(next_word(rest), &n_system) == ST_OK && n_system <= UINT32_MAX &&
                    str_to_u64(next_word(rest), &flags) == ST_OK;

    if (!is_whole || !m.tenant) return (struct request_mark){0};
    m.n_system = (uint32_t)n_system;
    set_flags(&m, flags);
    return m;
}

enum status request_chain_parse(struct str value, uint64_t *blocks, struct request_chain *out,
                                struct request_mark *mark) {
    struct request_chain chain = {.blocks = blocks};

    if (!str_eq(next_word(&value), STR(CHAIN_VERSION))) return ST_INVALID;
    if (parse_hex(next_word(&value), &chain.origin) != ST_OK) return ST_INVALID;
    if (parse_hex(next_word(&value), &chain.scheme) != ST_OK) return ST_INVALID;
    if (str_to_u64(next_word(&value), &chain.prompt_bytes) != ST_OK) return ST_INVALID;
    if (parse_blocks(next_word(&value), blocks, &chain.n_blocks) != ST_OK) return ST_INVALID;
    *mark = parse_mark(&value);
    *out = chain;
    return ST_OK;
}
