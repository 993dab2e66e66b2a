/* worker/kv/tiers/peer/peer_frame.c - see the header. */
#include "worker/kv/tiers/peer/peer_frame.h"

#include <assert.h>
#include <string.h>

#include "common/base/hash.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "bodies are in memory as they are sent");
_Static_assert(sizeof(struct peer_hello) == 96, "no padding");
_Static_assert(sizeof(struct peer_place) == 32, "no padding");

/* Sizes of bodies. */
static const struct {
    uint32_t least, most;
} sizes[PEER_N_TYPES] = {
    [PEER_HELLO] = {sizeof(struct peer_hello), sizeof(struct peer_hello)},
    [PEER_REFUSE] = {4, 4},
    [PEER_AUTH] = {PEER_PROOF_BYTES, PEER_PROOF_BYTES},
    [PEER_WANT] = {PEER_ASKED_BYTES(1), PEER_ASKED_BYTES(PEER_KEYS_MAX)},
    [PEER_HAVE] = {4, 4},
    [PEER_UNIT] = {1, PEER_PART_BYTES},
    [PEER_END] = {4, 4},
    [PEER_CREDIT] = {4, 4},
    [PEER_PLACES] = {PEER_PLACES_BYTES(1), PEER_PLACES_BYTES(PEER_KEYS_MAX)},
};

/* --- frames ----------------------------------------------------------------------------------- */

enum status peer_frame_read(struct str in, struct peer_frame *out, size_t *wanted,
                            struct error *err) {
    uint32_t length;
    uint8_t type;

    *wanted = PEER_HEAD_BYTES;
    if (in.len < PEER_HEAD_BYTES) return ST_AGAIN;
    memcpy(&length, in.ptr, sizeof(length));
    type = (uint8_t)in.ptr[4];
    if (type == 0 || type >= PEER_N_TYPES)
        return error_set(err, ST_INVALID, "a frame of type %u: " PEER_PROTOCOL " has 1 to %d", type,
                         PEER_N_TYPES - 1);
    if (length < PEER_HEAD_BYTES + sizes[type].least || length > PEER_HEAD_BYTES + sizes[type].most)
        return error_set(err, ST_INVALID, "a frame of %u bytes: one of type %u has %u to %u",
                         length, type, PEER_HEAD_BYTES + sizes[type].least,
                         PEER_HEAD_BYTES + sizes[type].most);
    *wanted = length;
    if (in.len < length) return ST_AGAIN;
    *out = (struct peer_frame){.type = (enum peer_type)type,
                               .flags = (uint8_t)in.ptr[5],
                               .body = {in.ptr + PEER_HEAD_BYTES, length - PEER_HEAD_BYTES},
                               .n_taken = length};
    memcpy(&out->stream, in.ptr + 6, sizeof(out->stream));
    return ST_OK;
}

void peer_frame_head(enum peer_type type, uint8_t flags, uint16_t stream, size_t n_body,
                     uint8_t out[PEER_HEAD_BYTES]) {
    uint32_t length = (uint32_t)(PEER_HEAD_BYTES + n_body);

    assert(n_body >= sizes[type].least && n_body <= sizes[type].most);
    memcpy(out, &length, sizeof(length));
    out[4] = (uint8_t)type;
    out[5] = flags;
    memcpy(out + 6, &stream, sizeof(stream));
}

/* --- who speaks ------------------------------------------------------------------------------- */

static const char *const refusal_names[PEER_N_REFUSALS] = {
    "none",        "version",    "encryption", "block_size", "block_bytes",
    "fingerprint", "generation", "key",        "room",
};

const char *peer_refusal_name(enum peer_refusal refusal) {
    return (unsigned)refusal < PEER_N_REFUSALS ? refusal_names[refusal] : "unknown";
}

void peer_hello_make(const struct unit_codec_config *codec, uint64_t generation,
                     struct peer_hello *out) {
    *out = (struct peer_hello){.version = PEER_VERSION,
                               .block_tokens = codec->block_tokens,
                               .block_bytes = codec->block_bytes,
                               .generation = generation,
                               .is_sealed = codec->fleet_keys != NULL};
    memcpy(out->fingerprint, codec->fingerprint, sizeof(out->fingerprint));
    hash_random(out->nonce, sizeof(out->nonce));
}

/* The fingerprint depends on what is compared before it, and would name it less well. */
enum peer_refusal peer_hello_compare(const struct peer_hello *mine,
                                     const struct peer_hello *theirs) {
    if (mine->version != theirs->version) return PEER_DIFFERS_VERSION;
    if (mine->is_sealed != theirs->is_sealed) return PEER_DIFFERS_ENCRYPTION;
    if (mine->block_tokens != theirs->block_tokens) return PEER_DIFFERS_BLOCK_SIZE;
    if (mine->block_bytes != theirs->block_bytes) return PEER_DIFFERS_BLOCK_BYTES;
    if (memcmp(mine->fingerprint, theirs->fingerprint, sizeof(mine->fingerprint)) != 0)
        return PEER_DIFFERS_FINGERPRINT;
    if (mine->generation == theirs->generation) return PEER_SAME_GENERATION;
    return PEER_WELCOME;
}

/* `who`: another letter for each message that proves the key. */
static void prove(const uint8_t *fleet_key, char who, const struct peer_hello *sink,
                  const struct peer_hello *source, struct str rest, uint8_t out[PEER_PROOF_BYTES]) {
    static const uint8_t fixed[32] = PEER_PROTOCOL;
    char text[16 + 2 * sizeof(struct peer_hello) + 64 + PEER_KEYS_MAX * sizeof(struct peer_place)] =
        PEER_PROTOCOL;
    size_t n = 16;

    text[15] = who;
    memcpy(text + n, sink, sizeof(*sink));
    n += sizeof(*sink);
    memcpy(text + n, source, sizeof(*source));
    n += sizeof(*source);
    assert(rest.len <= sizeof(text) - n);
    if (rest.len) memcpy(text + n, rest.ptr, rest.len);
    hash_hmac_sha256(fleet_key ? fleet_key : fixed, 32, text, n + rest.len, out);
}

void peer_prove(const uint8_t *fleet_key, bool is_source, const struct peer_hello *sink,
                const struct peer_hello *source, uint8_t out[PEER_PROOF_BYTES]) {
    prove(fleet_key, is_source ? 'S' : 's', sink, source, STR_NULL, out);
}

void peer_prove_pass(const uint8_t *fleet_key, bool is_source, const struct peer_hello *sink,
                     const struct peer_hello *source, uint8_t out[PEER_PROOF_BYTES]) {
    prove(fleet_key, is_source ? 'M' : 'm', sink, source, STR_NULL, out);
}

void peer_prove_places(const uint8_t *fleet_key, const struct peer_hello *sink,
                       const struct peer_hello *source, uint16_t stream,
                       const struct peer_place *places, uint32_t n,
                       const uint8_t identities[UNIT_DIGEST_BYTES], uint8_t out[PEER_PROOF_BYTES]) {
    char rest[2 + UNIT_DIGEST_BYTES + PEER_KEYS_MAX * sizeof(struct peer_place)];
    size_t n_head = 2 + UNIT_DIGEST_BYTES, n_bytes = n * sizeof(*places);

    assert(n <= PEER_KEYS_MAX);
    memcpy(rest, &stream, 2);
    memcpy(rest + 2, identities, UNIT_DIGEST_BYTES);
    memcpy(rest + n_head, places, n_bytes);
    prove(fleet_key, 'P', sink, source, (struct str){rest, n_head + n_bytes}, out);
}

/* --- bodies ----------------------------------------------------------------------------------- */

void peer_read_hello(const struct peer_frame *f, struct peer_hello *out) {
    assert(f->type == PEER_HELLO && f->body.len == sizeof(*out));
    memcpy(out, f->body.ptr, sizeof(*out));
}

enum status peer_read_asked(const struct peer_frame *f, struct peer_asked *out, struct error *err) {
    struct peer_asked asked;

    assert(f->type == PEER_WANT && f->body.len <= sizeof(asked));
    memcpy(&asked, f->body.ptr, f->body.len);
    if (asked.n == 0 || asked.n > PEER_KEYS_MAX || f->body.len != PEER_ASKED_BYTES(asked.n))
        return error_set(err, ST_INVALID, "a WANT of %u keys in %zu bytes: 1 to %u keys of %zu",
                         asked.n, f->body.len, PEER_KEYS_MAX, sizeof(asked.keys[0]));
    if (asked.credit_bytes > PEER_CREDIT_MAX)
        return error_set(err, ST_INVALID, "a WANT with a credit of %u bytes: at most %u",
                         asked.credit_bytes, PEER_CREDIT_MAX);
    memcpy(out, &asked, f->body.len);
    return ST_OK;
}

enum status peer_read_places(const struct peer_frame *f, struct peer_place out[PEER_KEYS_MAX],
                             uint32_t *n, uint8_t proof[PEER_PROOF_BYTES], struct error *err) {
    size_t n_bytes = f->body.len - PEER_PROOF_BYTES;

    assert(f->type == PEER_PLACES && f->body.len <= PEER_PLACES_BYTES(PEER_KEYS_MAX));
    if (n_bytes % sizeof(*out) != 0)
        return error_set(err, ST_INVALID, "%zu bytes of places: a multiple of %zu", n_bytes,
                         sizeof(*out));
    *n = (uint32_t)(n_bytes / sizeof(*out));
    memcpy(out, f->body.ptr, n_bytes);
    memcpy(proof, f->body.ptr + n_bytes, PEER_PROOF_BYTES);
    return ST_OK;
}

uint32_t peer_read_number(const struct peer_frame *f) {
    uint32_t number;

    assert(f->body.len == sizeof(number));
    memcpy(&number, f->body.ptr, sizeof(number));
    return number;
}
