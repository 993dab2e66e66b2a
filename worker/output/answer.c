/* worker/output/answer.c - a list of parts; see answer.h. */
#include "worker/output/answer.h"

#include <assert.h>

#include "common/base/mem.h"

void answer_init(struct answer *a, size_t max_bytes) {
    *a = (struct answer){.max_bytes = max_bytes};
}

void answer_fini(struct answer *a) {
    for (uint32_t i = 0; i < a->n; i++) {
        buf_fini(&a->part[i].text);
        buf_fini(&a->part[i].name);
    }
    mem_free(a->part);
    *a = (struct answer){.max_bytes = a->max_bytes};
}

static struct answer_part *open_part(const struct answer *a) {
    return a->n > 0 && !a->part[a->n - 1].is_whole ? &a->part[a->n - 1] : NULL;
}

static struct answer_part *add_part(struct answer *a, enum part_kind kind) {
    struct answer_part *open = open_part(a), *grown;

    if (open) open->is_whole = true;
    if (a->n == ANSWER_MAX_PARTS) {
        a->is_incomplete = true;
        return NULL;
    }
    if (a->n == a->cap) {
        uint32_t cap = a->cap ? 2 * a->cap : 4;

        if (!(grown = mem_try_realloc(a->part, cap * sizeof(*grown)))) {
            a->is_incomplete = true;
            return NULL;
        }
        a->part = grown;
        a->cap = cap;
    }
    a->part[a->n] = (struct answer_part){.kind = kind};
    return &a->part[a->n++];
}

/* What fits, in whole characters: so much is kept however the text is divided over calls. */
static void append(struct answer *a, struct buf *to, struct str text) {
    size_t room = a->max_bytes - a->n_bytes;

    if (text.len > room) {
        a->is_incomplete = true;
        while (room > 0 && ((unsigned char)text.ptr[room] & 0xC0) == 0x80)
            room--;
        text.len = room;
    }
    buf_append_str(to, text);
    if (to->has_failed)
        a->is_incomplete = true;
    else
        a->n_bytes += text.len;
}

void answer_add(struct answer *a, enum part_kind kind, struct str text) {
    struct answer_part *p = open_part(a);

    assert(kind != PART_CALL);
    if (text.len == 0 || a->is_incomplete) return;
    if (!p || p->kind != kind) p = add_part(a, kind);
    if (p) append(a, &p->text, text);
}

void answer_begin_call(struct answer *a, struct str name, struct str id) {
    struct answer_part *p;

    if (a->is_incomplete || !(p = add_part(a, PART_CALL))) return;
    p->call = a->n_calls++;
    append(a, &p->name, name);
    memcpy(p->id, id.ptr, MIN(id.len, sizeof(p->id) - 1));
}

void answer_add_arguments(struct answer *a, struct str json) {
    if (a->is_incomplete || json.len == 0) return;
    assert(open_part(a) && open_part(a)->kind == PART_CALL);
    append(a, &open_part(a)->text, json);
}

void answer_end_call(struct answer *a, bool is_cut) {
    struct answer_part *p = open_part(a);

    if (!p || p->kind != PART_CALL) return; /* it did not fit */
    p->is_whole = true;
    p->is_cut = is_cut || a->is_incomplete;
}

void answer_end(struct answer *a) {
    struct answer_part *p = open_part(a);

    if (!p) return;
    if (p->kind == PART_CALL) p->is_cut = true;
    p->is_whole = true;
}

bool answer_join(const struct answer *a, enum part_kind kind, struct buf *out) {
    bool is_any = false;

    for (uint32_t i = 0; i < a->n; i++) {
        if (a->part[i].kind != kind) continue;
        buf_append_str(out, buf_str(&a->part[i].text));
        is_any = true;
    }
    return is_any;
}

void answer_check(const struct answer *a) {
    size_t n_bytes = 0;
    uint32_t n_calls = 0;

    assert(a->n <= ANSWER_MAX_PARTS && a->n <= a->cap);
    for (uint32_t i = 0; i < a->n; i++) {
        const struct answer_part *p = &a->part[i];

        assert(p->is_whole || i + 1 == a->n);
        if (p->kind == PART_CALL) {
            assert(p->call == n_calls++);
        } else {
            assert(!p->is_cut && buf_len(&p->name) == 0);
            assert(a->is_incomplete || buf_len(&p->text) > 0);
        }
        n_bytes += buf_len(&p->text) + buf_len(&p->name);
    }
    assert(n_calls == a->n_calls && n_bytes == a->n_bytes && n_bytes <= a->max_bytes);
    (void)n_calls;
    (void)n_bytes;
}
