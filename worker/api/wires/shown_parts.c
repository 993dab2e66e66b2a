/* worker/api/wires/shown_parts.c - see shown_parts.h. */
#include "worker/api/wires/shown_parts.h"

bool shown_is_blank(const struct answer_part *part) {
    struct str text = buf_str(&part->text);

    if (part->kind != PART_TEXT) return false;
    for (size_t i = 0; i < text.len; i++) {
        if (!memchr(" \t\r\n", text.ptr[i], 4)) return false;
    }
    return true;
}

bool shown_next(const struct answer *a, struct answer_mark *mark, struct answer_event *out) {
    while (mark->part < a->n && !mark->has_begun && shown_is_blank(&a->part[mark->part])) {
        if (!a->part[mark->part].is_whole) return false;
        mark->part++;
    }
    return answer_next(a, mark, out);
}
