/* worker/kv/tiers/unit.c - sealing, opening and naming units.
 *
 *       offset  size  field                          sum  tag
 *            0     8  magic "ICPTKV1\0"               s    a
 *            8   2 2  version, header bytes           s    a
 *           12     4  flags: 1 is sealed              s    a
 *           16    32  fingerprint                     s    a
 *           48  16 16 key, parent's key               s    a
 *           80    16  salt                            s    a
 *           96   4 4  position, tokens                s    a
 *          104   4 4  blocks (1), group               s    a
 *          112     8  payload bytes                   s    a
 *          120     8  zeros                           s    a
 *          128    16  sum of the payload, or the      s    a
 *                     writer's random number
 *          144  12 4  nonce; id of the fleet's key    s    a (the id)
 *          160    32  extras                          s    a
 *          192     8  zeros                           s    a
 *          200    16  tag, or zeros                   s
 *          216     8  XXH3-64 of s
 *          224    32  zeros                           s
 *          256        token ids, zeros up to 64       s    encrypted
 *                     payload                              encrypted
 *
 * The sum of the payload begins with the hash of all that is before it and of the token ids, so a
 * payload and its sum do not fit another header. A payload is summed, or decrypted, where it has
 * arrived: `in` may be memory that another process still writes to. For the same reason the header
 * is copied before it is looked at.
 *
 * A sealed unit's token ids are known only after decryption, and are compared after the tag. */
#include "worker/kv/tiers/unit.h"

#include <assert.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/net/cipher.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "units are in memory as they are stored");

#define VERSION     1
#define FLAG_SEALED 1u

struct header {
    char magic[8];
    uint16_t version, header_bytes;
    uint32_t flags;
    uint8_t fingerprint[UNIT_DIGEST_BYTES];
    struct unit_key key, parent;
    uint8_t salt[UNIT_KEY_BYTES];
    uint32_t position, n_tokens, n_blocks, group;
    uint64_t payload_bytes, zero_120;
    uint8_t sum[16]; /* or the writer's random number */
    uint8_t nonce[CIPHER_NONCE_BYTES];
    uint32_t fleet_key_id;
    uint8_t extras[UNIT_DIGEST_BYTES];
    uint64_t zero_192;
    uint8_t tag[CIPHER_TAG_BYTES];
    uint64_t header_sum;
    uint8_t zeros[32];
};
_Static_assert(sizeof(struct header) == UNIT_HEADER_BYTES && offsetof(struct header, sum) == 128 &&
                   offsetof(struct header, header_sum) == 216,
               "the table above");

static const char magic[8] = "ICPTKV1";

/* Keys derived lately: units of few writers and salts follow one another. */
struct derived_key {
    bool is_set;
    uint32_t fleet_key;
    uint8_t writer[16], salt[UNIT_KEY_BYTES];
    uint8_t key[CIPHER_KEY_BYTES];
};
#define N_DERIVED 8

struct unit_codec {
    uint8_t fingerprint[UNIT_DIGEST_BYTES];
    uint32_t block_tokens;
    uint64_t block_bytes;
    size_t payload_at;
    struct cipher *cipher; /* NULL: plain */
    uint32_t n_fleet_keys;
    uint8_t fleet_keys[2][CIPHER_KEY_BYTES];
    uint32_t fleet_key_ids[2];
    uint8_t writer[16];
    struct derived_key derived[N_DERIVED];
    uint32_t next_derived;
    uint8_t ids[UNIT_MAX_TOKENS * 4 + 64]; /* decrypted */
};

static const char *const cause_names[UNIT_N_CAUSES] = {
    "fine",   "magic", "version", "torn", "fingerprint", "position", "tokens",
    "parent", "salt",  "extras",  "size", "checksum",    "auth",
};

const char *unit_cause_name(enum unit_cause cause) {
    assert(cause < UNIT_N_CAUSES);
    return cause_names[cause];
}

static size_t payload_at(uint32_t n_tokens) {
    return UNIT_HEADER_BYTES + ALIGN_UP(n_tokens * sizeof(uint32_t), 64);
}

/* --- keys of the cipher ----------------------------------------------------------------------- */

/* Names a fleet key in a header without giving it away. */
static uint32_t id_of_fleet_key(const uint8_t *fleet_key) {
    uint8_t digest[SHA256_BYTES];
    uint32_t id;

    hash_hmac_sha256(fleet_key, CIPHER_KEY_BYTES, "kv1 id", 6, digest);
    memcpy(&id, digest, sizeof(id));
    return id;
}

static const uint8_t *key_of(struct unit_codec *codec, uint32_t fleet_key, const uint8_t *writer,
                             const uint8_t *salt) {
    struct derived_key *d;
    char info[3 + 16 + UNIT_KEY_BYTES] = "kv1";

    for (uint32_t i = 0; i < N_DERIVED; i++) {
        d = &codec->derived[i];
        if (d->is_set && d->fleet_key == fleet_key && memcmp(d->writer, writer, 16) == 0 &&
            memcmp(d->salt, salt, UNIT_KEY_BYTES) == 0)
            return d->key;
    }
    d = &codec->derived[codec->next_derived++ % N_DERIVED];
    d->is_set = true;
    d->fleet_key = fleet_key;
    memcpy(d->writer, writer, 16);
    memcpy(d->salt, salt, UNIT_KEY_BYTES);
    memcpy(info + 3, writer, 16);
    memcpy(info + 19, salt, UNIT_KEY_BYTES);
    cipher_derive_key(codec->fleet_keys[fleet_key], CIPHER_KEY_BYTES, info, sizeof(info), d->key);
    return d->key;
}

/* --- sums ------------------------------------------------------------------------------------- */

/* Of everything before the payload that lies open; `ids` and its padding follow the header. */
static uint64_t sum_of_header(const struct header *h, const void *ids, size_t ids_bytes) {
    uint64_t sum = hash_64(h, offsetof(struct header, header_sum), 0);

    sum = hash_64(h->zeros, sizeof(h->zeros), sum);
    return h->flags & FLAG_SEALED ? sum : hash_64(ids, ids_bytes, sum);
}

/* Of a payload that belongs to this header and these token ids. */
static void sum_of_payload(const struct header *h, const void *ids, size_t ids_bytes,
                           const void *payload, size_t n, uint8_t out[16]) {
    uint64_t seed = hash_64(h, offsetof(struct header, sum), 0);
    struct hash128 sum;

    seed = hash_64(h->extras, sizeof(h->extras), seed);
    sum = hash_128_seeded(payload, n, hash_64(ids, ids_bytes, seed));
    memcpy(out, &sum.lo, 8);
    memcpy(out + 8, &sum.hi, 8);
}

/* --- codec ------------------------------------------------------------------------------------ */

enum status unit_codec_create(struct unit_codec **out, const struct unit_codec_config *c,
                              struct error *err) {
    struct unit_codec *codec;

    if (c->block_tokens == 0 || c->block_tokens > UNIT_MAX_TOKENS)
        return error_set(err, ST_INVALID, "a block of %u tokens has no unit: 1 to %u",
                         c->block_tokens, UNIT_MAX_TOKENS);
    if (c->block_bytes == 0 || c->block_bytes > UNIT_MAX_PAYLOAD)
        return error_set(err, ST_INVALID, "a block of %llu bytes has no unit: 1 to %u",
                         (unsigned long long)c->block_bytes, UNIT_MAX_PAYLOAD);
    if (c->n_fleet_keys > 2 || (c->fleet_keys != NULL) != (c->n_fleet_keys > 0))
        return error_set(err, ST_INVALID, "%u fleet keys: none, one or two", c->n_fleet_keys);

    codec = mem_zalloc(sizeof(*codec));
    memcpy(codec->fingerprint, c->fingerprint, UNIT_DIGEST_BYTES);
    codec->block_tokens = c->block_tokens;
    codec->block_bytes = c->block_bytes;
    codec->payload_at = payload_at(c->block_tokens);
    codec->n_fleet_keys = c->n_fleet_keys;
    for (uint32_t i = 0; i < c->n_fleet_keys; i++) {
        memcpy(codec->fleet_keys[i], c->fleet_keys[i], CIPHER_KEY_BYTES);
        codec->fleet_key_ids[i] = id_of_fleet_key(c->fleet_keys[i]);
    }
    if (c->n_fleet_keys > 0) codec->cipher = cipher_create();
    hash_random(codec->writer, sizeof(codec->writer));
    *out = codec;
    return ST_OK;
}

void unit_codec_destroy(struct unit_codec *codec) {
    if (!codec) return;
    cipher_destroy(codec->cipher);
    cipher_erase(codec, sizeof(*codec));
    mem_free(codec);
}

size_t unit_bytes(const struct unit_codec *codec) {
    return codec->payload_at + codec->block_bytes;
}

size_t unit_payload_at(const struct unit_codec *codec) {
    return codec->payload_at;
}

/* --- sealing ---------------------------------------------------------------------------------- */

/* What GCM authenticates beside what it encrypts; the nonce between the two is authentic anyway. */
static void put_aad(const struct header *h, struct str aad[2]) {
    const char *at = (const char *)h;

    aad[0] = (struct str){at, offsetof(struct header, nonce)};
    aad[1] = (struct str){at + offsetof(struct header, fleet_key_id),
                          offsetof(struct header, tag) - offsetof(struct header, fleet_key_id)};
}

static void encrypt(struct unit_codec *codec, struct header *h, uint8_t *ids, const void *payload,
                    uint8_t *to) {
    const struct cipher_part parts[] = {
        {ids, ids, codec->payload_at - UNIT_HEADER_BYTES},
        {payload, to, codec->block_bytes},
    };
    struct str aad[2];

    h->flags |= FLAG_SEALED;
    h->fleet_key_id = codec->fleet_key_ids[0];
    memcpy(h->sum, codec->writer, sizeof(h->sum));
    hash_random(h->nonce, sizeof(h->nonce));
    put_aad(h, aad);
    cipher_seal(codec->cipher, key_of(codec, 0, codec->writer, h->salt), h->nonce, aad, 2, parts, 2,
                h->tag);
}

/* All but what depends on the payload; the token ids lie open at `ids`. */
static void begin_unit(const struct unit_codec *codec, const struct unit_identity *id,
                       struct header *h, uint8_t *ids) {
    size_t n = id->n_tokens * sizeof(uint32_t), ids_bytes = codec->payload_at - UNIT_HEADER_BYTES;

    *h = (struct header){
        .version = VERSION,
        .header_bytes = UNIT_HEADER_BYTES,
        .key = id->key,
        .parent = id->parent,
        .position = id->position,
        .n_tokens = id->n_tokens,
        .n_blocks = 1,
        .group = id->group,
        .payload_bytes = codec->block_bytes,
    };
    memcpy(h->magic, magic, sizeof(magic));
    memcpy(h->fingerprint, codec->fingerprint, sizeof(h->fingerprint));
    memcpy(h->salt, id->salt, sizeof(h->salt));
    memcpy(h->extras, id->extras, sizeof(h->extras));
    memcpy(ids, id->tokens, n);
    memset(ids + n, 0, ids_bytes - n);
}

static void end_unit(const struct unit_codec *codec, struct header *h, const uint8_t *ids,
                     void *out) {
    h->header_sum = sum_of_header(h, ids, codec->payload_at - UNIT_HEADER_BYTES);
    memcpy(out, h, sizeof(*h));
}

static void sum_plain(const struct unit_codec *codec, struct header *h, const uint8_t *ids,
                      const void *payload) {
    sum_of_payload(h, ids, codec->payload_at - UNIT_HEADER_BYTES, payload, codec->block_bytes,
                   h->sum);
}

enum status unit_seal(struct unit_codec *codec, const struct unit_identity *id, const void *payload,
                      void *out) {
    uint8_t *ids = (uint8_t *)out + UNIT_HEADER_BYTES, *to = (uint8_t *)out + codec->payload_at;
    struct header h;

    if (id->n_tokens != codec->block_tokens) return ST_INVALID;
    begin_unit(codec, id, &h, ids);
    if (codec->cipher) {
        encrypt(codec, &h, ids, payload, to);
    } else {
        if (payload != to) memcpy(to, payload, codec->block_bytes);
        sum_plain(codec, &h, ids, to);
    }
    end_unit(codec, &h, ids, out);
    return ST_OK;
}

enum status unit_seal_head(struct unit_codec *codec, const struct unit_identity *id,
                           const void *payload, void *out) {
    uint8_t *ids = (uint8_t *)out + UNIT_HEADER_BYTES;
    struct header h;

    if (codec->cipher) return ST_UNSUPPORTED;
    if (id->n_tokens != codec->block_tokens) return ST_INVALID;
    begin_unit(codec, id, &h, ids);
    sum_plain(codec, &h, ids, payload);
    end_unit(codec, &h, ids, out);
    return ST_OK;
}

void unit_add_identity(struct unit_codec *codec, const struct unit_identity *id,
                       struct sha256 *digest) {
    struct header h;

    assert(id->n_tokens == codec->block_tokens);
    begin_unit(codec, id, &h, codec->ids);
    sha256_add(digest, &h, sizeof(h));
    sha256_add(digest, codec->ids, codec->payload_at - UNIT_HEADER_BYTES);
}

/* --- opening ---------------------------------------------------------------------------------- */

/* Copies the header and finds out whether it stands for itself. No more work than for n bytes and a
 * block's token ids, whatever is in them. */
static enum unit_cause read_header(const struct unit_codec *codec, const uint8_t *in, size_t n,
                                   struct header *h) {
    size_t at;

    if (n < UNIT_HEADER_BYTES) return UNIT_TORN;
    memcpy(h, in, sizeof(*h));
    if (memcmp(h->magic, magic, sizeof(magic)) != 0) return UNIT_MAGIC;
    if (h->version != VERSION) return UNIT_VERSION;
    at = payload_at(MIN(h->n_tokens, UNIT_MAX_TOKENS));
    if (!(h->flags & FLAG_SEALED) && n < at) return UNIT_TORN;
    if (h->header_sum != sum_of_header(h, in + UNIT_HEADER_BYTES, at - UNIT_HEADER_BYTES))
        return UNIT_TORN;
    if (h->flags & ~FLAG_SEALED) return UNIT_VERSION;
    if (memcmp(h->fingerprint, codec->fingerprint, sizeof(h->fingerprint)) != 0)
        return UNIT_FINGERPRINT;
    return UNIT_FINE;
}

static bool has_size(const struct unit_codec *codec, const struct header *h) {
    return h->header_bytes == UNIT_HEADER_BYTES && h->n_tokens == codec->block_tokens &&
           h->n_blocks == 1 && h->payload_bytes == codec->block_bytes;
}

static enum unit_cause open_plain(const struct header *h, const uint8_t *ids, size_t ids_bytes,
                                  const uint8_t *payload, void *out) {
    uint8_t sum[16];

    memcpy(out, payload, h->payload_bytes);
    sum_of_payload(h, ids, ids_bytes, out, h->payload_bytes, sum);
    return memcmp(sum, h->sum, sizeof(sum)) == 0 ? UNIT_FINE : UNIT_CHECKSUM;
}

static enum unit_cause open_sealed(struct unit_codec *codec, const struct header *h,
                                   const struct unit_identity *expected, const uint8_t *in,
                                   void *out) {
    const struct cipher_part parts[] = {
        {in + UNIT_HEADER_BYTES, codec->ids, codec->payload_at - UNIT_HEADER_BYTES},
        {in + codec->payload_at, out, codec->block_bytes},
    };
    struct str aad[2];

    put_aad(h, aad);
    for (uint32_t i = 0; i < codec->n_fleet_keys; i++) {
        if (h->fleet_key_id != codec->fleet_key_ids[i]) continue;
        if (!cipher_open(codec->cipher, key_of(codec, i, h->sum, h->salt), h->nonce, aad, 2, parts,
                         2, h->tag))
            return UNIT_AUTH;
        return memcmp(codec->ids, expected->tokens, expected->n_tokens * sizeof(uint32_t)) == 0
                   ? UNIT_FINE
                   : UNIT_TOKENS;
    }
    return UNIT_AUTH;
}

static enum unit_cause verify(struct unit_codec *codec, const struct unit_identity *expected,
                              const uint8_t *in, size_t n, void *out) {
    const uint8_t *ids = in + UNIT_HEADER_BYTES;
    struct header h;
    enum unit_cause cause = read_header(codec, in, n, &h);
    bool is_sealed;

    if (cause != UNIT_FINE) return cause;
    is_sealed = h.flags & FLAG_SEALED;
    if (h.position != expected->position || h.group != expected->group) return UNIT_POSITION;
    if (h.n_tokens != expected->n_tokens) return UNIT_TOKENS;
    if (!is_sealed && memcmp(ids, expected->tokens, h.n_tokens * sizeof(uint32_t)) != 0)
        return UNIT_TOKENS;
    if (memcmp(&h.parent, &expected->parent, sizeof(h.parent)) != 0) return UNIT_PARENT;
    if (memcmp(h.salt, expected->salt, sizeof(h.salt)) != 0) return UNIT_SALT;
    if (memcmp(h.extras, expected->extras, sizeof(h.extras)) != 0) return UNIT_EXTRAS;
    /* All that the key is made of is equal, except the fleet's key. */
    if (memcmp(&h.key, &expected->key, sizeof(h.key)) != 0) return UNIT_PARENT;
    if (!has_size(codec, &h) || n < unit_bytes(codec)) return UNIT_SIZE;
    if (is_sealed != (codec->cipher != NULL)) return UNIT_AUTH;
    if (is_sealed) return open_sealed(codec, &h, expected, in, out);
    return open_plain(&h, ids, codec->payload_at - UNIT_HEADER_BYTES, in + codec->payload_at, out);
}

enum unit_cause unit_open(struct unit_codec *codec, const struct unit_identity *expected,
                          const void *in, size_t n, void *out) {
    enum unit_cause cause = verify(codec, expected, in, n, out);

    if (cause != UNIT_FINE) memset(out, 0, codec->block_bytes);
    return cause;
}

bool unit_peek(const struct unit_codec *codec, const void *in, size_t n, struct unit_summary *out) {
    struct header h;

    if (read_header(codec, in, n, &h) != UNIT_FINE || !has_size(codec, &h)) return false;
    *out = (struct unit_summary){
        .key = h.key,
        .parent = h.parent,
        .position = h.position,
        .n_tokens = h.n_tokens,
        .n_bytes = unit_bytes(codec),
    };
    return true;
}

/* --- the chain of outer keys ------------------------------------------------------------------ */

/* Where no fleet key is set, names need not be secret, only spread. */
static const uint8_t fixed_key[CIPHER_KEY_BYTES] = "incipit kv: no fleet key is set";

/* `parent_group`: NULL for a root. The digest has bytes to spare: one decides whether a group
 * begins here. */
static void name(const uint8_t *fleet_key, const void *data, size_t n, const uint8_t *parent_group,
                 struct unit_key *out) {
    static const uint8_t none[UNIT_GROUP_BYTES];
    uint8_t digest[SHA256_BYTES], *group = out->bytes + UNIT_GROUP_AT;

    hash_hmac_sha256(fleet_key ? fleet_key : fixed_key, CIPHER_KEY_BYTES, data, n, digest);
    memcpy(out->bytes, digest, UNIT_GROUP_AT);
    if (!parent_group) {
        memset(group, 0, UNIT_GROUP_BYTES);
    } else if (memcmp(parent_group, none, sizeof(none)) != 0 &&
               digest[SHA256_BYTES - 1] % UNIT_GROUP_BLOCKS != 0) {
        memmove(group, parent_group, UNIT_GROUP_BYTES);
    } else {
        memcpy(group, digest + UNIT_GROUP_AT, UNIT_GROUP_BYTES);
        group[0] |= 1; /* not zeros */
    }
}

void unit_chain_root(const uint8_t *fleet_key, const uint8_t fingerprint[UNIT_DIGEST_BYTES],
                     const uint8_t salt[UNIT_KEY_BYTES], struct unit_key *out) {
    uint8_t data[8 + UNIT_DIGEST_BYTES + UNIT_KEY_BYTES] = "kv1 root";

    memcpy(data + 8, fingerprint, UNIT_DIGEST_BYTES);
    memcpy(data + 8 + UNIT_DIGEST_BYTES, salt, UNIT_KEY_BYTES);
    name(fleet_key, data, sizeof(data), NULL, out);
}

void unit_chain_next(const uint8_t *fleet_key, const struct unit_key *parent,
                     const uint32_t *tokens, uint32_t n_tokens,
                     const uint8_t extras[UNIT_DIGEST_BYTES], struct unit_key *out) {
    uint8_t data[UNIT_KEY_BYTES + UNIT_MAX_TOKENS * sizeof(uint32_t) + UNIT_DIGEST_BYTES];
    size_t n = n_tokens * sizeof(uint32_t);

    assert(n_tokens <= UNIT_MAX_TOKENS);
    memcpy(data, parent->bytes, UNIT_KEY_BYTES);
    memcpy(data + UNIT_KEY_BYTES, tokens, n);
    memcpy(data + UNIT_KEY_BYTES + n, extras, UNIT_DIGEST_BYTES);
    name(fleet_key, data, UNIT_KEY_BYTES + n + UNIT_DIGEST_BYTES, parent->bytes + UNIT_GROUP_AT,
         out);
}
