/* router/proxy/handover/handover.c - the table, and members of bodies. */
#include "router/proxy/handover/handover.h"

#include "router/prompt/raw_json.h"

const struct handover_ops *handover_ops_of(uint8_t handover) {
    switch (handover) {
    case HANDOVER_NIXL: return &handover_nixl;
    case HANDOVER_BOOTSTRAP: return &handover_bootstrap;
    case HANDOVER_MOONCAKE: return &handover_mooncake;
    case HANDOVER_PEER: return &handover_peer;
    default: return NULL;
    }
}

/* The walk begins at the brace. */
static struct raw_walk walk_body(struct str body) {
    const char *end = body.ptr + body.len, *p = raw_skip_space(body.ptr, end);

    return raw_walk_of(raw_between(p, end));
}

struct str handover_member(struct str body, const char *name) {
    struct raw_walk walk = walk_body(body);
    struct raw_member m;

    while (raw_next_member(&walk, &m)) {
        if (raw_text_is(m.name, name)) return m.value;
    }
    return STR_NULL;
}

bool handover_is_absent(struct str value) {
    return !value.ptr || str_eq(value, STR("null")) || str_eq(value, STR("false"));
}

bool handover_is_at_most_one(struct str value) {
    return handover_is_absent(value) || str_eq(value, STR("1"));
}

static bool is_dropped(struct str name, const char *const *dropped) {
    for (; *dropped; dropped++) {
        if (raw_text_is(name, *dropped)) return true;
    }
    return false;
}

/* A member is cut with the comma before it; where none is kept before it, with that behind it. */
uint32_t handover_cuts(struct str body, const char *const *dropped,
                       struct str cuts[HANDOVER_CUTS_MAX]) {
    struct raw_walk walk = walk_body(body);
    const char *from = NULL, *kept = NULL, *end = NULL; /* of the run; behind what is kept */
    struct raw_member m;
    uint32_t n = 0;

    while (raw_next_member(&walk, &m) && n < HANDOVER_CUTS_MAX) {
        if (is_dropped(m.name, dropped)) {
            if (!from) from = kept ? kept : m.key.ptr;
            end = m.value.ptr + m.value.len;
            continue;
        }
        if (from) cuts[n++] = raw_between(from, kept ? end : m.key.ptr);
        kept = m.value.ptr + m.value.len;
        from = NULL;
    }
    if (from && kept && n < HANDOVER_CUTS_MAX) cuts[n++] = raw_between(from, end);
    return n;
}

size_t handover_open_len(struct str body) {
    size_t n = body.len;

    while (n && body.ptr[n - 1] != '}')
        n--;
    return n ? n - 1 : 0;
}
