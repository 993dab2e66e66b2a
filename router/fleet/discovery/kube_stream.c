/* router/fleet/discovery/kube_stream.c - lines into events, and a page of a list as a small
 * machine:
 *
 *      {  key : value ,  key : value ,  ...  }
 *               │
 *               └─ of "items":  [ item , item , ... ]
 *
 * kube_scan cuts out keys, values and items; all but "metadata" and items are skipped. */
#include "router/fleet/discovery/kube_stream.h"

#include <stdio.h>

#include "common/text/json.h"

/* --- lines ------------------------------------------------------------------------------------ */

void kube_lines_init(struct kube_lines *l) {
    buf_init(&l->part, KUBE_OBJECT_MAX_BYTES);
    l->is_returned = false;
}

void kube_lines_fini(struct kube_lines *l) {
    buf_fini(&l->part);
}

void kube_lines_clear(struct kube_lines *l) {
    buf_release(&l->part);
    l->is_returned = false;
}

static struct str trim_line(struct str s) {
    if (s.len && s.ptr[s.len - 1] == '\r') s.len--;
    return str_trim(s);
}

/* The part of the piece up to the line's end; ST_AGAIN: the line continues. */
static enum status cut_line(struct kube_lines *l, struct str *piece, struct str *line) {
    const char *end = piece->len ? memchr(piece->ptr, '\n', piece->len) : NULL;
    struct str head = {piece->ptr, end ? (size_t)(end - piece->ptr) : piece->len};

    piece->ptr += head.len + (end != NULL);
    piece->len -= head.len + (end != NULL);
    if (end && buf_len(&l->part) == 0) {
        if (head.len > KUBE_OBJECT_MAX_BYTES) return ST_TOO_LARGE;
        *line = trim_line(head);
        return ST_OK;
    }
    buf_append_str(&l->part, head);
    if (l->part.has_failed) return ST_TOO_LARGE;
    if (!end) return ST_AGAIN;
    l->is_returned = true;
    *line = trim_line(buf_str(&l->part));
    return ST_OK;
}

enum status kube_lines_next(struct kube_lines *l, struct str *piece, struct str *line) {
    enum status st;

    do {
        if (l->is_returned) buf_clear(&l->part);
        l->is_returned = false;
        st = cut_line(l, piece, line);
    } while (st == ST_OK && line->len == 0);
    return st;
}

/* --- events ----------------------------------------------------------------------------------- */

static void copy_text(char *out, size_t cap, struct str s) {
    snprintf(out, cap, "%.*s", (int)MIN(s.len, cap - 1), s.len ? s.ptr : "");
}

/* Of a member; "" and 0 for anything else. */
static struct str text_of(const struct json *object, const char *name) {
    struct str s;

    return json_to_str(json_get(object, name), &s) == ST_OK ? s : STR("");
}

static uint32_t number_of(const struct json *object, const char *name) {
    uint64_t n;

    return json_to_u64(json_get(object, name), &n) == ST_OK ? (uint32_t)MIN(n, UINT32_MAX) : 0;
}

void kube_status_read(struct kube_status *s, struct str text) {
    const struct json_limits limits = {.max_bytes = KUBE_STATUS_MAX_BYTES};
    const struct json *details;
    struct json *root = NULL;

    *s = (struct kube_status){0};
    if (json_parse(&root, text, &limits, NULL) != ST_OK) return;
    s->code = (int)MIN(number_of(root, "code"), 999);
    copy_text(s->reason, sizeof(s->reason), text_of(root, "reason"));
    copy_text(s->message, sizeof(s->message), text_of(root, "message"));
    details = json_get(root, "details");
    s->retry_after_s = number_of(details, "retryAfterSeconds");
    JSON_FOR_EACH(cause, json_get(details, "causes")) {
        if (str_eq(text_of(cause, "reason"), STR("ResourceVersionTooLarge"))) {
            s->is_version_too_large = true;
        }
    }
    json_destroy(root);
}

bool kube_status_is_expired(const struct kube_status *s) {
    return s->code == 410 || strcmp(s->reason, "Expired") == 0 || strcmp(s->reason, "Gone") == 0;
}

static bool read_type(struct str name, enum kube_event_type *out) {
    static const char *const names[] = {[KUBE_ADDED] = "ADDED",
                                        [KUBE_MODIFIED] = "MODIFIED",
                                        [KUBE_DELETED] = "DELETED",
                                        [KUBE_BOOKMARK] = "BOOKMARK",
                                        [KUBE_ERROR] = "ERROR"};

    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (!str_eq(name, str_of(names[i]))) continue;
        *out = (enum kube_event_type)i;
        return true;
    }
    return false;
}

static bool is_version(struct str s) {
    return s.len > 0 && s.len < KUBE_VERSION_MAX && !memchr(s.ptr, '\0', s.len);
}

enum status kube_event_read(struct kube_event *e, struct str line, struct error *err) {
    struct kube_members m = {.rest = line};
    struct str type = STR_NULL, key, value;

    *e = (struct kube_event){0};
    while (kube_members_next(&m, &key, &value)) {
        if (str_eq(key, STR("type"))) type = kube_json_plain(value);
        if (str_eq(key, STR("object"))) e->object = value;
    }
    if (m.is_bad || m.rest.len || e->object.len == 0 || e->object.ptr[0] != '{') {
        return error_set(err, ST_INVALID, "a line of the watch is not an event: '%.*s'",
                         (int)MIN(line.len, (size_t)80), line.len ? line.ptr : "");
    }
    if (!read_type(type, &e->type)) {
        return error_set(err, ST_INVALID, "the watch sent an event of unknown type '%.*s'",
                         (int)MIN(type.len, (size_t)40), type.len ? type.ptr : "");
    }
    if (e->type == KUBE_ERROR) return ST_OK;
    e->version =
        kube_json_plain(kube_json_get(kube_json_get(e->object, "metadata"), "resourceVersion"));
    if (is_version(e->version)) return ST_OK;
    return error_set(err, ST_INVALID, "an event of the watch has no metadata.resourceVersion");
}

/* --- lists ------------------------------------------------------------------------------------ */

enum at {
    BEFORE, /* the first brace */
    KEY,    /* or the end of an empty object */
    IN_KEY,
    COLON,
    VALUE,
    IN_VALUE,
    AFTER_VALUE,
    ITEM, /* or the end of an empty array */
    IN_ITEM,
    AFTER_ITEM,
    DONE
};

enum member { OTHER, METADATA, ITEMS };

void kube_list_init(struct kube_list *l, kube_list_fn *fn, void *arg) {
    *l = (struct kube_list){.fn = fn, .arg = arg, .at = BEFORE};
    buf_init(&l->value, KUBE_OBJECT_MAX_BYTES);
}

void kube_list_fini(struct kube_list *l) {
    buf_fini(&l->value);
}

void kube_list_clear(struct kube_list *l) {
    kube_list_fini(l);
    kube_list_init(l, l->fn, l->arg);
}

static enum status refuse(struct error *err, const char *why) {
    return error_set(err, ST_INVALID, "the response is not a Kubernetes list: %s", why);
}

static enum status read_metadata(struct kube_list *l, struct error *err) {
    const struct json_limits limits = {.max_bytes = KUBE_STATUS_MAX_BYTES};
    struct str version = STR(""), next = STR("");
    struct json *root = NULL;
    enum status st = json_parse(&root, buf_str(&l->value), &limits, err);

    if (st == ST_OK) {
        st = json_get_str(root, "resourceVersion", KUBE_VERSION_MAX - 1, &version, NULL, err);
    }
    if (st == ST_OK) {
        st = json_get_str(root, "continue", KUBE_CONTINUE_MAX - 1, &next, NULL, err);
    }
    if (st == ST_OK) {
        copy_text(l->version, sizeof(l->version), version);
        copy_text(l->next, sizeof(l->next), next);
    } else {
        (void)error_prefix(err, "the list's metadata");
    }
    json_destroy(root);
    return st;
}

static enum member member_of(struct str quoted_key) {
    if (str_eq(quoted_key, STR("\"metadata\""))) return METADATA;
    return str_eq(quoted_key, STR("\"items\"")) ? ITEMS : OTHER;
}

/* The current value is complete. */
static enum status take_value(struct kube_list *l, struct error *err) {
    struct str value = buf_str(&l->value);
    enum status st = ST_OK;

    if (l->at == IN_KEY) {
        if (value.ptr[0] != '"') return refuse(err, "expected a key");
        l->member = member_of(value);
        l->at = COLON;
    } else if (l->at == IN_VALUE) {
        if (l->member == METADATA) st = read_metadata(l, err);
        l->at = AFTER_VALUE;
    } else {
        l->n_items++;
        l->fn(value, l->arg);
        l->at = AFTER_ITEM;
    }
    buf_clear(&l->value);
    return st;
}

static enum status feed_value(struct kube_list *l, struct str *piece, struct error *err) {
    bool is_kept = l->at != IN_VALUE || l->member == METADATA;
    size_t n = piece->len;
    enum status st = kube_scan_feed(&l->scan, *piece, &n);

    if (st == ST_INVALID) return refuse(err, "invalid JSON");
    if (is_kept) buf_append(&l->value, piece->ptr, n);
    if (l->value.has_failed) {
        return error_set(err, ST_TOO_LARGE, "an object of the list has more than %u bytes",
                         KUBE_OBJECT_MAX_BYTES);
    }
    piece->ptr += n;
    piece->len -= n;
    return st == ST_OK ? take_value(l, err) : ST_OK;
}

static enum status begin_value(struct kube_list *l, enum at at) {
    l->scan = (struct kube_scan){0};
    l->at = at;
    return ST_OK;
}

/* A byte between values. *is_taken: false when it is the first of one. */
static enum status feed_byte(struct kube_list *l, char c, bool *is_taken, struct error *err) {
    *is_taken = true;
    if (c == ' ' || c == '\t' || c == '\n' || c == '\r') return ST_OK;
    if (l->at == BEFORE && c == '{') {
        l->at = KEY;
    } else if (l->at == KEY && c == '}') {
        l->at = DONE;
    } else if (l->at == COLON && c == ':') {
        l->at = VALUE;
    } else if (l->at == VALUE && c == '[' && l->member == ITEMS) {
        l->at = ITEM;
    } else if (l->at == ITEM && c == ']') {
        l->at = AFTER_VALUE;
    } else if (l->at == AFTER_VALUE && (c == ',' || c == '}')) {
        l->at = c == ',' ? KEY : DONE;
    } else if (l->at == AFTER_ITEM && (c == ',' || c == ']')) {
        l->at = c == ',' ? ITEM : AFTER_VALUE;
    } else {
        *is_taken = false;
        if (l->at == KEY) return begin_value(l, IN_KEY);
        if (l->at == VALUE) return begin_value(l, IN_VALUE);
        if (l->at == ITEM) return begin_value(l, IN_ITEM);
        return refuse(err, l->at == DONE ? "text follows its end" : "not JSON");
    }
    return ST_OK;
}

enum status kube_list_feed(struct kube_list *l, struct str piece, struct error *err) {
    enum status st = ST_OK;
    bool is_taken;

    while (st == ST_OK && piece.len) {
        if (l->at == IN_KEY || l->at == IN_VALUE || l->at == IN_ITEM) {
            st = feed_value(l, &piece, err);
            continue;
        }
        st = feed_byte(l, *piece.ptr, &is_taken, err);
        piece.ptr += is_taken;
        piece.len -= is_taken;
    }
    return st;
}

enum status kube_list_end(const struct kube_list *l, struct error *err) {
    if (l->at != DONE) return refuse(err, "it is truncated");
    if (!l->version[0]) return refuse(err, "metadata.resourceVersion is missing");
    return ST_OK;
}
