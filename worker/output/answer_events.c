/* worker/output/answer_events.c - see answer_events.h. */
#include "worker/output/answer_events.h"

bool answer_next(const struct answer *a, struct answer_mark *mark, struct answer_event *out) {
    const struct answer_part *part;
    struct str text;

    if (mark->part >= a->n) return false;
    part = &a->part[mark->part];
    text = buf_str(&part->text);
    *out = (struct answer_event){.part = part, .index = mark->part};
    if (!mark->has_begun) {
        out->kind = ANSWER_BEGIN;
        mark->has_begun = true;
    } else if (text.len > mark->offset) {
        out->kind = ANSWER_TEXT;
        out->text = (struct str){text.ptr + mark->offset, text.len - mark->offset};
        mark->offset = text.len;
    } else if (part->is_whole) {
        out->kind = ANSWER_END;
        *mark = (struct answer_mark){.part = mark->part + 1};
    } else {
        return false;
    }
    return true;
}

bool answer_has_more(const struct answer *a, const struct answer_mark *mark) {
    struct answer_mark copy = *mark;
    struct answer_event event;

    return answer_next(a, &copy, &event);
}
