/* router/proxy/handover/handover.c - the table, and members of bodies. */
#include "router/proxy/handover/handover.h"

#include "router/prompt/raw_json.h"

const struct handover_ops *handover_ops_of(uint8_t handover) {
    switch (handover) {
    case HANDOVER_NIXL: return &handover_nixl;
    case HANDOVER_BOOTSTRAP: return &handover_bootstrap;
    case HANDOVER_MOONCAKE: return &handover_mooncake;
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

static bool is_dropped(struct str name, const char *const *dropped) {
    for (; *dropped; dropped++) {
        if (raw_text_is(name, *dropped)) return true;
    }
    return false;
}

void handover_rewrite(struct str body, const char *const *dropped, struct str members,
                      struct buf *out) {
    struct raw_walk walk = walk_body(body);
    struct raw_member m;
    bool is_first = true;

    buf_append_char(out, '{');
    while (raw_next_member(&walk, &m)) {
        if (is_dropped(m.name, dropped)) continue;
        if (!is_first) buf_append_char(out, ',');
        buf_append_str(out, raw_between(m.key.ptr, m.value.ptr + m.value.len));
        is_first = false;
    }
    if (is_first && members.len) { /* the first comma */
        members.ptr++;
        members.len--;
    }
    buf_append_str(out, members);
    buf_append_char(out, '}');
}

bool handover_is_absent(struct str value) {
    return !value.ptr || str_eq(value, STR("null")) || str_eq(value, STR("false"));
}

size_t handover_open_len(struct str body) {
    size_t n = body.len;

    while (n && body.ptr[n - 1] != '}')
        n--;
    return n ? n - 1 : 0;
}
