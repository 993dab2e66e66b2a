/* tests/unit/worker/kv/tiers/test_unit.c - what is altered, torn, exchanged or another's is named
 * and never used. Every test runs plain and sealed. */
#include <stdlib.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"
#include "tests/support/unit_fixture.h"

#define BLOCK_BYTES (9 * 1024 + 40)
#define FLAG_SEALED 1u

static const uint8_t fleet_keys[3][32] = {{1, 2, 3}, {4, 5, 6}, {7, 8, 9}};

struct desk {
    bool is_sealed;
    struct unit_codec *codec;
    struct unit_block block;
    uint8_t payload[BLOCK_BYTES], out[BLOCK_BYTES], zeros[BLOCK_BYTES];
    uint8_t *unit; /* of exactly n bytes, so that a sanitizer sees what is read behind them */
    size_t n;
};

static struct unit_codec *codec_with(uint8_t model, const uint8_t (*keys)[32], uint32_t n_keys) {
    struct unit_codec_config c = {
        .fingerprint = {model},
        .block_tokens = UNIT_TEST_TOKENS,
        .block_bytes = BLOCK_BYTES,
        .fleet_keys = keys,
        .n_fleet_keys = n_keys,
    };
    struct unit_codec *codec;

    assert_int_equal(unit_codec_create(&codec, &c, NULL), ST_OK);
    return codec;
}

static void make_block(struct desk *d, struct unit_block *b, uint64_t chain, uint32_t at) {
    unit_block_make(b, d->is_sealed ? fleet_keys[0] : NULL, (uint8_t[UNIT_DIGEST_BYTES]){1}, chain,
                    at);
}

static void seal(struct desk *d, const struct unit_block *b, uint8_t *unit) {
    uint8_t payload[BLOCK_BYTES];

    unit_block_fill(b, payload, sizeof(payload));
    assert_int_equal(unit_seal(d->codec, &b->id, payload, unit), ST_OK);
}

static int setup(void **state) {
    bool is_sealed = *state != NULL;
    struct desk *d = mem_zalloc(sizeof(*d));

    d->is_sealed = is_sealed;
    d->codec = is_sealed ? codec_with(1, fleet_keys, 1) : codec_with(1, NULL, 0);
    d->n = unit_bytes(d->codec);
    d->unit = mem_alloc(d->n);
    make_block(d, &d->block, 1, 2);
    unit_block_fill(&d->block, d->payload, BLOCK_BYTES);
    seal(d, &d->block, d->unit);
    *state = d;
    return 0;
}

static int teardown(void **state) {
    struct desk *d = *state;

    unit_codec_destroy(d->codec);
    mem_free(d->unit);
    mem_free(d);
    return 0;
}

/* Opens the first n bytes of `unit`, and looks that nothing of a refused unit is left. */
static enum unit_cause open_n(struct desk *d, const struct unit_identity *id, const uint8_t *unit,
                              size_t n) {
    uint8_t *copy = mem_alloc(n + 1); /* not 0 */
    enum unit_cause cause;

    memcpy(copy, unit, n);
    memset(d->out, 0xa5, BLOCK_BYTES);
    cause = unit_open(d->codec, id, copy, n, d->out);
    if (cause != UNIT_FINE) assert_memory_equal(d->out, d->zeros, BLOCK_BYTES);
    mem_free(copy);
    return cause;
}

static enum unit_cause open_all(struct desk *d) {
    return open_n(d, &d->block.id, d->unit, d->n);
}

/* What a forger does after changing a header: its sum is of no secret. */
static void sum_again(struct desk *d, uint8_t *unit) {
    uint64_t sum = hash_64(unit, 216, 0);

    sum = hash_64(unit + 224, 32, sum);
    if (!d->is_sealed)
        sum = hash_64(unit + UNIT_HEADER_BYTES, unit_payload_at(d->codec) - UNIT_HEADER_BYTES, sum);
    memcpy(unit + 216, &sum, 8);
}

#define assert_cause(got, wanted) assert_string_equal(unit_cause_name(got), unit_cause_name(wanted))

static void an_untouched_unit_is_its_block(void **state) {
    struct desk *d = *state;
    struct unit_summary s;

    assert_int_equal(unit_payload_at(d->codec) % 64, 0);
    assert_cause(open_all(d), UNIT_FINE);
    assert_memory_equal(d->out, d->payload, BLOCK_BYTES);
    assert_true(unit_peek(d->codec, d->unit, unit_payload_at(d->codec), &s));
    assert_memory_equal(&s.key, &d->block.id.key, sizeof(s.key));
    assert_memory_equal(&s.parent, &d->block.id.parent, sizeof(s.parent));
    assert_int_equal(s.position, d->block.id.position);
    assert_int_equal(s.n_tokens, UNIT_TEST_TOKENS);
    assert_int_equal(s.n_bytes, d->n);
}

/* The payload may lie where it will be stored, and a unit may be followed by other bytes. */
static void a_unit_is_sealed_in_place(void **state) {
    struct desk *d = *state;
    uint8_t *room = mem_zalloc(d->n + 100);

    memcpy(room + unit_payload_at(d->codec), d->payload, BLOCK_BYTES);
    assert_int_equal(unit_seal(d->codec, &d->block.id, room + unit_payload_at(d->codec), room),
                     ST_OK);
    assert_cause(open_n(d, &d->block.id, room, d->n + 100), UNIT_FINE);
    assert_memory_equal(d->out, d->payload, BLOCK_BYTES);
    mem_free(room);
}

/* Case 2. */
static void a_head_alone_is_that_of_the_unit(void **state) {
    struct desk *d = *state;
    size_t n = unit_payload_at(d->codec);
    uint8_t *head = mem_alloc(n);
    enum status st = unit_seal_head(d->codec, &d->block.id, d->payload, head);

    assert_int_equal(st, d->is_sealed ? ST_UNSUPPORTED : ST_OK);
    if (st == ST_OK) assert_memory_equal(head, d->unit, n);
    mem_free(head);
}

static void each_header_byte_flipped_names_its_cause(void **state) {
    struct desk *d = *state;
    struct unit_summary s;

    for (size_t i = 0; i < unit_payload_at(d->codec); i++) {
        enum unit_cause wanted = i < 8 ? UNIT_MAGIC : i < 10 ? UNIT_VERSION : UNIT_TORN;

        if (i >= UNIT_HEADER_BYTES && d->is_sealed) wanted = UNIT_AUTH;
        for (int bit = 0; bit < 8; bit++) {
            d->unit[i] ^= 1 << bit;
            assert_cause(open_all(d), wanted);
            assert_int_equal(unit_peek(d->codec, d->unit, d->n, &s), wanted == UNIT_AUTH);
            d->unit[i] ^= 1 << bit;
        }
    }
    assert_cause(open_all(d), UNIT_FINE);
}

/* Cases 2 and 17: the same with the sum made right again. No field can be altered. */
static void each_forged_header_byte_names_its_cause(void **state) {
    struct desk *d = *state;
    static const struct {
        size_t from;
        enum unit_cause plain, sealed;
    } fields[] = {
        {0, UNIT_MAGIC, UNIT_MAGIC},
        {8, UNIT_VERSION, UNIT_VERSION},
        {10, UNIT_SIZE, UNIT_SIZE},
        {12, UNIT_N_CAUSES, UNIT_N_CAUSES}, /* flags: below */
        {16, UNIT_FINGERPRINT, UNIT_FINGERPRINT},
        {48, UNIT_PARENT, UNIT_PARENT},
        {80, UNIT_SALT, UNIT_SALT},
        {96, UNIT_POSITION, UNIT_POSITION},
        {100, UNIT_TOKENS, UNIT_TOKENS},
        {104, UNIT_SIZE, UNIT_SIZE},
        {108, UNIT_POSITION, UNIT_POSITION},
        {112, UNIT_SIZE, UNIT_SIZE},
        {120, UNIT_CHECKSUM, UNIT_AUTH},
        {144, UNIT_FINE, UNIT_AUTH}, /* nonce and key, which a plain unit does not use */
        {160, UNIT_EXTRAS, UNIT_EXTRAS},
        {192, UNIT_FINE, UNIT_AUTH}, /* zeros and tag: the same */
        {216, UNIT_TORN, UNIT_TORN}, /* the sum itself */
        {224, UNIT_FINE, UNIT_FINE}, /* zeros, of the sum alone */
        {UNIT_HEADER_BYTES, UNIT_TOKENS, UNIT_AUTH},
    };
    size_t f = 0;

    for (size_t i = 0; i < UNIT_HEADER_BYTES + 4 * UNIT_TEST_TOKENS; i++) {
        uint8_t was[8];

        while (f + 1 < ARRAY_LEN(fields) && fields[f + 1].from <= i)
            f++;
        if (fields[f].plain == UNIT_N_CAUSES) continue;
        memcpy(was, d->unit + 216, 8);
        d->unit[i] ^= 0x40;
        /* Another number of tokens moves the end of what the sum is of: any sum is wrong. */
        if (fields[f].from != 216) sum_again(d, d->unit);
        assert_cause(open_all(d), fields[f].from == 100 && !d->is_sealed ? UNIT_TORN
                                  : d->is_sealed                         ? fields[f].sealed
                                                                         : fields[f].plain);
        d->unit[i] ^= 0x40;
        memcpy(d->unit + 216, was, 8);
    }
    assert_cause(open_all(d), UNIT_FINE);
}

static void a_flag_of_another_version_or_kind_is_refused(void **state) {
    struct desk *d = *state;

    d->unit[12] ^= 4;
    sum_again(d, d->unit);
    assert_cause(open_all(d), UNIT_VERSION);
    d->unit[12] ^= 4;

    d->unit[12] ^= FLAG_SEALED; /* a plain unit where it must be sealed, and the other way round */
    d->is_sealed = !d->is_sealed;
    sum_again(d, d->unit);
    d->is_sealed = !d->is_sealed;
    assert_cause(open_all(d), d->is_sealed ? UNIT_TOKENS : UNIT_AUTH);
    if (!d->is_sealed) return;
    memcpy(d->unit + UNIT_HEADER_BYTES, d->block.tokens, sizeof(d->block.tokens));
    d->is_sealed = false;
    sum_again(d, d->unit);
    assert_cause(open_all(d), UNIT_AUTH);
    d->is_sealed = true;
}

/* Case 3. */
static void each_part_of_the_payload_flipped_is_noticed(void **state) {
    struct desk *d = *state;

    for (size_t i = unit_payload_at(d->codec); i < d->n; i += 61) {
        d->unit[i] ^= 1;
        assert_cause(open_all(d), d->is_sealed ? UNIT_AUTH : UNIT_CHECKSUM);
        d->unit[i] ^= 1;
    }
    d->unit[d->n - 1] ^= 0x80;
    assert_cause(open_all(d), d->is_sealed ? UNIT_AUTH : UNIT_CHECKSUM);
}

/* Case 4, at every byte of the head. */
static void each_truncation_is_torn_or_short(void **state) {
    struct desk *d = *state;
    size_t whole = d->is_sealed ? UNIT_HEADER_BYTES : unit_payload_at(d->codec);

    for (size_t n = 0; n < d->n; n += n < 400 ? 1 : 512)
        assert_cause(open_n(d, &d->block.id, d->unit, n), n < whole ? UNIT_TORN : UNIT_SIZE);
    assert_cause(open_n(d, &d->block.id, d->unit, d->n - 1), UNIT_SIZE);
}

/* Cases 5 and 6. */
static void exchanged_payloads_are_noticed(void **state) {
    struct desk *d = *state;
    struct unit_block other;
    uint8_t *unit = mem_alloc(d->n), *mixed = mem_alloc(d->n);
    size_t at = unit_payload_at(d->codec);

    make_block(d, &other, 2, 2);
    seal(d, &other, unit);

    /* The whole unit of another block. */
    assert_cause(open_n(d, &d->block.id, unit, d->n), d->is_sealed ? UNIT_PARENT : UNIT_TOKENS);
    /* Its payload under this header. */
    memcpy(mixed, d->unit, at);
    memcpy(mixed + at, unit + at, d->n - at);
    assert_cause(open_n(d, &d->block.id, mixed, d->n), d->is_sealed ? UNIT_AUTH : UNIT_CHECKSUM);
    /* With its sum, nonce and tag, all signed again. */
    memcpy(mixed + 128, unit + 128, 28);
    memcpy(mixed + 200, unit + 200, 16);
    sum_again(d, mixed);
    assert_cause(open_n(d, &d->block.id, mixed, d->n), d->is_sealed ? UNIT_AUTH : UNIT_CHECKSUM);
    /* And with its token ids. */
    memcpy(mixed + UNIT_HEADER_BYTES, unit + UNIT_HEADER_BYTES, at - UNIT_HEADER_BYTES);
    sum_again(d, mixed);
    assert_cause(open_n(d, &d->block.id, mixed, d->n), d->is_sealed ? UNIT_AUTH : UNIT_TOKENS);
    mem_free(unit);
    mem_free(mixed);
}

/* Case 7. */
static void another_model_of_equal_shape_is_refused(void **state) {
    struct desk *d = *state;
    struct unit_codec *other = d->is_sealed ? codec_with(2, fleet_keys, 1) : codec_with(2, NULL, 0);
    struct unit_summary s;

    assert_cause(unit_open(other, &d->block.id, d->unit, d->n, d->out), UNIT_FINGERPRINT);
    assert_false(unit_peek(other, d->unit, d->n, &s));
    unit_codec_destroy(other);
}

/* Cases 10 to 12: names collide, contents do not. */
static void what_the_request_expects_is_compared(void **state) {
    struct desk *d = *state;
    struct unit_identity id = d->block.id;
    uint32_t tokens[UNIT_TEST_TOKENS];

    memcpy(tokens, d->block.tokens, sizeof(tokens));
    for (uint32_t i = 0; i < UNIT_TEST_TOKENS; i++) {
        id.tokens = tokens;
        tokens[i]++;
        assert_cause(open_n(d, &id, d->unit, d->n), UNIT_TOKENS);
        tokens[i]--;
    }
    id.n_tokens--;
    assert_cause(open_n(d, &id, d->unit, d->n), UNIT_TOKENS);
    id = d->block.id;
    id.parent.bytes[15] ^= 1;
    assert_cause(open_n(d, &id, d->unit, d->n), UNIT_PARENT);
    id = d->block.id;
    id.key.bytes[0] ^= 1;
    assert_cause(open_n(d, &id, d->unit, d->n), UNIT_PARENT);
    id = d->block.id;
    id.salt[0] ^= 1;
    assert_cause(open_n(d, &id, d->unit, d->n), UNIT_SALT);
    id = d->block.id;
    id.extras[31] ^= 1;
    assert_cause(open_n(d, &id, d->unit, d->n), UNIT_EXTRAS);
    id = d->block.id;
    id.position += UNIT_TEST_TOKENS;
    assert_cause(open_n(d, &id, d->unit, d->n), UNIT_POSITION);
    id = d->block.id;
    id.group++;
    assert_cause(open_n(d, &id, d->unit, d->n), UNIT_POSITION);
}

/* Cases 15 and 16. */
static void sizes_that_lie_are_refused(void **state) {
    struct desk *d = *state;
    static const uint64_t payloads[] = {
        0, 1, BLOCK_BYTES - 1, BLOCK_BYTES + 1, 4ull << 30, UINT64_MAX, UINT64_MAX - BLOCK_BYTES};
    static const uint32_t blocks[] = {0, 2, UINT32_MAX};
    uint64_t payload = BLOCK_BYTES;
    uint32_t one = 1;
    struct unit_summary s;

    for (size_t i = 0; i < ARRAY_LEN(payloads); i++) {
        memcpy(d->unit + 112, &payloads[i], 8);
        sum_again(d, d->unit);
        assert_cause(open_all(d), UNIT_SIZE);
        assert_false(unit_peek(d->codec, d->unit, d->n, &s));
    }
    memcpy(d->unit + 112, &payload, 8);
    for (size_t i = 0; i < ARRAY_LEN(blocks); i++) {
        memcpy(d->unit + 104, &blocks[i], 4);
        sum_again(d, d->unit);
        assert_cause(open_all(d), UNIT_SIZE);
    }
    memcpy(d->unit + 104, &one, 4);
    d->unit[8] = 2;
    sum_again(d, d->unit);
    assert_cause(open_all(d), UNIT_VERSION);
}

static void codecs_without_sense_are_refused(void **state) {
    struct unit_codec_config good = {.block_tokens = 16, .block_bytes = 64}, c;
    struct unit_codec *codec = NULL;
    struct desk *d = *state;
    struct unit_identity id = d->block.id;
    struct error err;

    for (int i = 0; i < 6; i++) {
        c = good;
        if (i == 0) c.block_tokens = 0;
        if (i == 1) c.block_tokens = UNIT_MAX_TOKENS + 1;
        if (i == 2) c.block_bytes = 0;
        if (i == 3) c.block_bytes = UNIT_MAX_PAYLOAD + 1;
        if (i == 4) c.n_fleet_keys = 1;
        if (i == 5) c.n_fleet_keys = 3, c.fleet_keys = fleet_keys;
        error_init(&err);
        assert_int_equal(unit_codec_create(&codec, &c, &err), ST_INVALID);
        assert_null(codec);
        assert_true(err.message[0] != '\0');
    }
    id.n_tokens--;
    assert_int_equal(unit_seal(d->codec, &id, d->payload, d->unit), ST_INVALID);
    unit_codec_destroy(NULL);
}

/* Case 18: a store renames the unit of one tenant to what another tenant asks for. */
static void a_unit_of_another_tenant_does_not_open(void **state) {
    struct desk *d = *state;
    struct unit_identity theirs = d->block.id;

    theirs.salt[3] = 7;
    unit_chain_root(fleet_keys[0], (uint8_t[UNIT_DIGEST_BYTES]){1}, theirs.salt, &theirs.parent);
    unit_chain_next(fleet_keys[0], &theirs.parent, theirs.tokens, theirs.n_tokens, theirs.extras,
                    &theirs.key);
    memcpy(d->unit + 48, &theirs.key, 16);
    memcpy(d->unit + 64, &theirs.parent, 16);
    memcpy(d->unit + 80, theirs.salt, 16);
    sum_again(d, d->unit);
    assert_cause(open_n(d, &theirs, d->unit, d->n), UNIT_AUTH);
    /* Renamed within one tenant: the same. */
    seal(d, &d->block, d->unit);
    theirs = d->block.id;
    theirs.key.bytes[0] ^= 1;
    d->unit[48] ^= 1;
    sum_again(d, d->unit);
    assert_cause(open_n(d, &theirs, d->unit, d->n), UNIT_AUTH);
}

/* Case 19. */
static void both_fleet_keys_open_and_the_first_seals(void **state) {
    struct desk *d = *state;
    struct unit_codec *rotated = codec_with(1, (const uint8_t[2][32]){{4, 5, 6}, {1, 2, 3}}, 2),
                      *new_only = codec_with(1, &fleet_keys[1], 1),
                      *stranger = codec_with(1, &fleet_keys[2], 1);

    if (!d->is_sealed) {
        assert_cause(unit_open(rotated, &d->block.id, d->unit, d->n, d->out), UNIT_AUTH);
    } else {
        assert_cause(unit_open(rotated, &d->block.id, d->unit, d->n, d->out), UNIT_FINE);
        assert_memory_equal(d->out, d->payload, BLOCK_BYTES);
        assert_cause(unit_open(new_only, &d->block.id, d->unit, d->n, d->out), UNIT_AUTH);
    }
    assert_int_equal(unit_seal(rotated, &d->block.id, d->payload, d->unit), ST_OK);
    assert_cause(unit_open(new_only, &d->block.id, d->unit, d->n, d->out), UNIT_FINE);
    assert_cause(unit_open(rotated, &d->block.id, d->unit, d->n, d->out), UNIT_FINE);
    assert_cause(unit_open(d->codec, &d->block.id, d->unit, d->n, d->out), UNIT_AUTH);
    assert_cause(unit_open(stranger, &d->block.id, d->unit, d->n, d->out), UNIT_AUTH);
    unit_codec_destroy(rotated);
    unit_codec_destroy(new_only);
    unit_codec_destroy(stranger);
}

/* A prompt is not to be read, or confirmed by a guess, from what a store keeps. */
static void a_sealed_unit_shows_nothing_of_the_prompt(void **state) {
    struct desk *d = *state;
    uint8_t *again = mem_alloc(d->n);
    uint64_t with_ids = hash_64(d->unit, 216, 0);

    seal(d, &d->block, again);
    if (d->is_sealed) {
        assert_null(memmem(d->unit, d->n, d->block.tokens, 8));
        assert_null(memmem(d->unit, d->n, d->payload + 1000, 8));
        assert_memory_not_equal(d->unit + UNIT_HEADER_BYTES, again + UNIT_HEADER_BYTES, 64);
        with_ids = hash_64(d->unit + 224, 32, with_ids);
        assert_memory_equal(&with_ids, d->unit + 216, 8);
    } else {
        assert_memory_equal(d->unit, again, d->n); /* equal content, equal bytes */
    }
    mem_free(again);
}

static int by_bytes(const void *a, const void *b) {
    return memcmp(a, b, 28);
}

/* Case 20, with fewer nonces: writers differ, so do nonces of one. */
static void no_nonce_is_used_twice(void **state) {
    enum { N = 4000, WRITERS = 8 };
    struct unit_codec_config c = {.block_tokens = UNIT_TEST_TOKENS,
                                  .block_bytes = 64,
                                  .fleet_keys = fleet_keys,
                                  .n_fleet_keys = 1};
    uint8_t(*seen)[28] = mem_alloc(sizeof(*seen) * N * WRITERS); /* writer, nonce */
    struct unit_codec *codec;
    struct desk *d = *state;
    uint8_t unit[1024];

    for (int w = 0; w < WRITERS; w++) {
        assert_int_equal(unit_codec_create(&codec, &c, NULL), ST_OK);
        for (int i = 0; i < N; i++) {
            assert_int_equal(unit_seal(codec, &d->block.id, d->payload, unit), ST_OK);
            memcpy(seen[w * N + i], unit + 128, 28);
        }
        unit_codec_destroy(codec);
    }
    qsort(seen, N * WRITERS, sizeof(*seen), by_bytes);
    for (int i = 1; i < N * WRITERS; i++)
        assert_memory_not_equal(seen[i - 1], seen[i], 28);
    assert_memory_not_equal(seen[0], seen[N * WRITERS - 1], 16);
    mem_free(seen);
}

/* Many salts pass through the few derived keys that a codec keeps. */
static void many_salts_open_in_any_order(void **state) {
    enum { SALTS = 30 };
    struct desk *d = *state;
    uint8_t *units = mem_alloc(SALTS * d->n);
    struct unit_identity id = d->block.id;
    struct rng rng;

    rng_seed(&rng, support_seed());
    for (int i = 0; i < SALTS; i++) {
        id.salt[0] = (uint8_t)i;
        assert_int_equal(unit_seal(d->codec, &id, d->payload, units + (size_t)i * d->n), ST_OK);
    }
    for (int i = 0; i < 200; i++) {
        uint64_t s = rng_below(&rng, SALTS);

        id.salt[0] = (uint8_t)s;
        assert_cause(open_n(d, &id, units + s * d->n, d->n), UNIT_FINE);
        id.salt[0] ^= 1;
        assert_cause(open_n(d, &id, units + s * d->n, d->n), UNIT_SALT);
    }
    mem_free(units);
}

static void the_chain_depends_on_everything(void **state) {
    uint8_t fingerprint[UNIT_DIGEST_BYTES] = {1}, salt[UNIT_KEY_BYTES] = {0};
    uint8_t extras[UNIT_DIGEST_BYTES] = {0};
    uint32_t tokens[4] = {1, 2, 3, 4};
    struct unit_key keys[9], root;

    (void)state;
    unit_chain_root(NULL, fingerprint, salt, &root);
    unit_chain_next(NULL, &root, tokens, 4, extras, &keys[0]);
    unit_chain_next(fleet_keys[0], &root, tokens, 4, extras, &keys[1]);
    unit_chain_next(NULL, &keys[0], tokens, 4, extras, &keys[2]);
    unit_chain_next(NULL, &root, tokens, 3, extras, &keys[3]);
    extras[31] = 1;
    unit_chain_next(NULL, &root, tokens, 4, extras, &keys[4]);
    tokens[3] = 5;
    extras[31] = 0;
    unit_chain_next(NULL, &root, tokens, 4, extras, &keys[5]);
    unit_chain_root(fleet_keys[0], fingerprint, salt, &keys[6]);
    fingerprint[31] = 1;
    unit_chain_root(NULL, fingerprint, salt, &keys[7]);
    salt[15] = 1;
    unit_chain_root(NULL, fingerprint, salt, &keys[8]);
    for (int i = 0; i < 9; i++)
        for (int j = 0; j < i; j++)
            assert_memory_not_equal(&keys[i], &keys[j], sizeof(keys[i]));
    tokens[3] = 4;
    unit_chain_next(NULL, &root, tokens, 4, extras, &keys[1]);
    assert_memory_equal(&keys[0], &keys[1], sizeof(keys[0]));
}

/* Bytes without sense, and units with a few bytes changed: never fine unless untouched. */
static void random_damage_never_opens(void **state) {
    struct desk *d = *state;
    uint8_t *unit = mem_alloc(d->n);
    struct rng rng;

    rng_seed(&rng, support_seed());
    for (int i = 0; i < 3000; i++) {
        size_t n = d->n - (rng_below(&rng, 2) ? rng_below(&rng, d->n) : 0);
        int n_flips = (int)rng_below(&rng, 4);
        bool is_whole;

        memcpy(unit, d->unit, d->n);
        while (n_flips-- > 0)
            unit[rng_below(&rng, rng_below(&rng, 2) ? 320 : d->n)] ^= 1 << rng_below(&rng, 8);
        if (rng_below(&rng, 2) && memcmp(unit, d->unit, 224) != 0) sum_again(d, unit);
        is_whole = n == d->n &&
                   memcmp(unit + UNIT_HEADER_BYTES, d->unit + UNIT_HEADER_BYTES,
                          n - UNIT_HEADER_BYTES) == 0 &&
                   memcmp(unit, d->unit, 120) == 0;
        if (open_n(d, &d->block.id, unit, n) == UNIT_FINE) {
            assert_true(is_whole);
            assert_memory_equal(d->out, d->payload, BLOCK_BYTES);
        }
    }
    mem_free(unit);
}

#define PLAIN_ONLY(f)                                                                              \
    { #f ".plain", f, setup, teardown, NULL }
#define SEALED_ONLY(f)                                                                             \
    { #f ".sealed", f, setup, teardown, (void *)1 }
#define BOTH(f) PLAIN_ONLY(f), SEALED_ONLY(f)

static void neighbours_in_a_chain_share_a_group(void **state) {
    const uint8_t fingerprint[UNIT_DIGEST_BYTES] = {1}, none[UNIT_DIGEST_BYTES] = {0};
    const uint8_t zeros[UNIT_GROUP_BYTES] = {0};
    struct unit_key key, before, heads[2];
    uint32_t n_groups = 0;

    (void)state;
    unit_chain_root(NULL, fingerprint, none, &key);
    assert_memory_equal(key.bytes + UNIT_GROUP_AT, zeros, UNIT_GROUP_BYTES);
    for (uint32_t i = 0; i < 2; i++)
        unit_chain_next(NULL, &key, &i, 1, none, &heads[i]);
    assert_memory_not_equal(heads[0].bytes + UNIT_GROUP_AT, heads[1].bytes + UNIT_GROUP_AT,
                            UNIT_GROUP_BYTES);
    for (uint32_t i = 0; i < 100 * UNIT_GROUP_BLOCKS; i++) {
        before = key;
        unit_chain_next(NULL, &key, &i, 1, none, &key);
        assert_memory_not_equal(key.bytes, before.bytes, UNIT_GROUP_AT);
        assert_memory_not_equal(key.bytes + UNIT_GROUP_AT, zeros, UNIT_GROUP_BYTES);
        n_groups +=
            memcmp(key.bytes + UNIT_GROUP_AT, before.bytes + UNIT_GROUP_AT, UNIT_GROUP_BYTES) != 0;
    }
    assert_in_range(n_groups, 60, 160); /* 100 expected, of a fixed chain */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        BOTH(an_untouched_unit_is_its_block),
        BOTH(a_unit_is_sealed_in_place),
        BOTH(a_head_alone_is_that_of_the_unit),
        BOTH(each_header_byte_flipped_names_its_cause),
        BOTH(each_forged_header_byte_names_its_cause),
        BOTH(a_flag_of_another_version_or_kind_is_refused),
        BOTH(each_part_of_the_payload_flipped_is_noticed),
        BOTH(each_truncation_is_torn_or_short),
        BOTH(exchanged_payloads_are_noticed),
        BOTH(another_model_of_equal_shape_is_refused),
        BOTH(what_the_request_expects_is_compared),
        BOTH(sizes_that_lie_are_refused),
        BOTH(codecs_without_sense_are_refused),
        SEALED_ONLY(a_unit_of_another_tenant_does_not_open),
        BOTH(both_fleet_keys_open_and_the_first_seals),
        BOTH(a_sealed_unit_shows_nothing_of_the_prompt),
        BOTH(no_nonce_is_used_twice),
        BOTH(many_salts_open_in_any_order),
        BOTH(the_chain_depends_on_everything),
        BOTH(random_damage_never_opens),
        cmocka_unit_test(neighbours_in_a_chain_share_a_group),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
