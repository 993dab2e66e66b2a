/* router/proxy/proxy_body.c - the body that a worker gets: pieces of the client's, and what the
 * router adds.
 *
 *      client   {"model":"m","stream":true,"prompt":"... noise ..."}
 *                ^ salt      ^ cut by a first leg        ^ cut       ^ members of a leg
 *
 * Nothing is copied: a body may be large, and it is pinned while an attempt lasts. Salt and members
 * are the exchange's. Both legs of a request are made so. */
#include "router/proxy/proxy_internal.h"

_Static_assert(1 + PROXY_BODY_PIECES_MAX <= CONN_IOV_MAX, "head and body are one send");

/* What one worker's body has of its own. */
struct body_edit {
    bool is_salted;
    const struct str *cuts; /* (n_cuts) beside the noise, in the body's order */
    uint32_t n_cuts;
    struct str members; /* each behind a comma; STR_NULL: none */
};

static bool is_spliced(const struct exchange *x, const struct registry_target *target) {
    return x->is_salted && !target->trusts_router;
}

static struct body_edit edit_of(const struct exchange *x) {
    return (struct body_edit){.is_salted = is_spliced(x, &x->try.target),
                              .members = proxy_leg_members(x)};
}

static struct body_edit edit_of_leg(const struct exchange *x) {
    const struct leg *leg = x->leg;

    return (struct body_edit){.is_salted = is_spliced(x, &leg->target),
                              .cuts = leg->cuts,
                              .n_cuts = leg->n_cuts,
                              .members = buf_str(&leg->first_members)};
}

static size_t len_of(const struct exchange *x, const struct body_edit *edit) {
    size_t n = x->req->body.len + edit->members.len;

    if (x->is_lookup) return 0;
    if (x->cuts_noise) n -= client_noise_len(&x->noise);
    for (uint32_t i = 0; i < edit->n_cuts; i++)
        n -= edit->cuts[i].len;
    return edit->is_salted ? n - x->splice.removed + x->splice.len : n;
}

/* The pieces that are written so far, and what of the body follows them. */
struct pieces {
    struct iovec *to;
    int n;
    struct str rest;
};

static void put_piece(struct pieces *p, const char *ptr, size_t n) {
    if (n) p->to[p->n++] = (struct iovec){(void *)(uintptr_t)ptr, n};
}

/* Puts the bytes before `at`, and skips `removed` bytes. */
static void skip_at(struct pieces *p, const char *at, size_t removed) {
    size_t n = (size_t)(at - p->rest.ptr);

    put_piece(p, p->rest.ptr, n);
    p->rest.ptr += n + removed;
    p->rest.len -= n + removed;
}

static void put_salt(struct pieces *p, const struct exchange *x) {
    skip_at(p, x->req->body.ptr + x->splice.at, x->splice.removed);
    put_piece(p, x->splice.text, x->splice.len);
}

/* The next cut of both lists, which are disjoint; false: none is left. */
static bool next_cut(const struct exchange *x, const struct body_edit *edit, uint32_t *n_noise,
                     uint32_t *n_own, struct str *cut) {
    bool has_noise = x->cuts_noise && *n_noise < x->noise.n, has_own = *n_own < edit->n_cuts;

    if (!has_noise && !has_own) return false;
    if (has_noise && (!has_own || x->noise.cuts[*n_noise].ptr < edit->cuts[*n_own].ptr)) {
        *cut = x->noise.cuts[(*n_noise)++];
    } else {
        *cut = edit->cuts[(*n_own)++];
    }
    return true;
}

static int put_pieces(const struct exchange *x, const struct body_edit *edit,
                      struct iovec *pieces) {
    struct pieces p = {.to = pieces, .rest = x->req->body};
    const char *salt_at = x->req->body.ptr + x->splice.at;
    bool is_salt_due = edit->is_salted;
    uint32_t n_noise = 0, n_own = 0;
    struct str cut;

    if (x->is_lookup) return 0;
    while (next_cut(x, edit, &n_noise, &n_own, &cut)) {
        if (is_salt_due && salt_at <= cut.ptr) {
            put_salt(&p, x);
            is_salt_due = false;
        }
        skip_at(&p, cut.ptr, cut.len);
    }
    if (is_salt_due) put_salt(&p, x);
    if (edit->members.len) {
        skip_at(&p, p.rest.ptr + handover_open_len(p.rest), 0);
        put_piece(&p, edit->members.ptr, edit->members.len);
    }
    put_piece(&p, p.rest.ptr, p.rest.len);
    return p.n;
}

size_t proxy_body_len(const struct exchange *x) {
    struct body_edit edit = edit_of(x);

    return len_of(x, &edit);
}

int proxy_body_pieces(const struct exchange *x, struct iovec *pieces) {
    struct body_edit edit = edit_of(x);

    return put_pieces(x, &edit, pieces);
}

size_t proxy_leg_body_len(const struct exchange *x) {
    struct body_edit edit = edit_of_leg(x);

    return len_of(x, &edit);
}

int proxy_leg_body_pieces(const struct exchange *x, struct iovec *pieces) {
    struct body_edit edit = edit_of_leg(x);

    return put_pieces(x, &edit, pieces);
}
