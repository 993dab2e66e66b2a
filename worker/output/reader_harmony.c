/* worker/output/reader_harmony.c - messages with a channel and a recipient, as gpt-oss writes them.
 *
 *      <|channel|>analysis<|message|>...<|end|>
 *      <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}<|call|>
 *      <|start|>assistant to=functions.f<|channel|>commentary json<|message|>{...}<|call|>
 *
 * A prompt ends inside of a header, after `<|start|>assistant`. `held` has the header, with one
 * byte that UTF-8 does not have for each marker. Arguments are JSON, or else whatever the message
 * is. */
#include "worker/output/reader_internal.h"

#define HEADER_MAX 512u
#define AT_CHANNEL "\xF5"
#define AT_OTHER   "\xF6"

/* The word after `mark`. */
static struct str word_after(struct str header, struct str mark) {
    ptrdiff_t at = str_find(header, mark);
    struct str word;

    if (at < 0) return STR_NULL;
    word = (struct str){header.ptr + at + mark.len, 0};
    while (word.ptr < header.ptr + header.len && *word.ptr == ' ')
        word.ptr++;
    while (word.ptr + word.len < header.ptr + header.len && !reader_is_blank(word.ptr[word.len]) &&
           !reader_is_code(word.ptr[word.len]))
        word.len++;
    return word;
}

static void begin_call(struct reader *r, struct str to) {
    memcpy(r->name, to.ptr, to.len);
    r->n_name = (uint32_t)to.len;
    r->from = READ_TEXT;
    reader_begin_call(r);
    r->scan = (struct json_scan){0};
    r->message = MESSAGE_BEGIN;
    r->state = READ_MESSAGE;
}

static void begin_message(struct reader *r) {
    struct str header = buf_str(&r->held), to = word_after(header, STR(" to="));
    struct str channel = word_after(header, STR(AT_CHANNEL));

    if (str_starts(to, STR("functions.")) && to.len > 10) to.ptr += 10, to.len -= 10;
    r->state = r->reasoning && str_eq(channel, STR("analysis")) ? READ_REASONING : READ_TEXT;
    if (to.len > 0 && to.len <= READER_NAME_MAX && r->calls) begin_call(r, to);
    buf_clear(&r->held);
}

/* Of a call: its arguments end with the message, at the latest. */
static void end_arguments(struct reader *r, bool is_cut) {
    bool is_empty = r->message == MESSAGE_BEGIN && !is_cut;

    if (is_empty) reader_put_arguments(r, STR("{}"));
    reader_end_call(r, r->message == MESSAGE_JSON || (is_cut && r->message != MESSAGE_OVER));
    r->is_begun = false;
}

static void end_message(struct reader *r) {
    if (r->state == READ_MESSAGE)
        end_arguments(r, false);
    else if (r->state == READ_REASONING)
        reader_leave_reasoning(r);
    buf_clear(&r->held);
    r->state = READ_HEADER;
    r->is_marked = false;
}

void reader_harmony_marker(struct reader *r, enum marker_role role) {
    bool is_in_header = r->state == READ_HEADER;

    if (role == MARKER_MESSAGE || role == MARKER_CONSTRAIN) {
        if (!is_in_header) return; /* dropped */
        if (role == MARKER_MESSAGE)
            begin_message(r);
        else if (r->is_marked && buf_len(&r->held) < HEADER_MAX)
            buf_append_str(&r->held, STR(AT_OTHER));
        return;
    }
    if (!is_in_header || role != MARKER_CHANNEL) end_message(r);
    r->is_marked |= role != MARKER_MESSAGE_END;
    if (role == MARKER_CHANNEL && buf_len(&r->held) < HEADER_MAX)
        buf_append_str(&r->held, STR(AT_CHANNEL));
}

/* An answer may have no header at all. */
static void header_byte(struct reader *r, char c) {
    struct str header, to = STR(" to=");

    if (buf_len(&r->held) < HEADER_MAX) buf_append_char(&r->held, c);
    header = buf_str(&r->held);
    r->is_marked |= str_starts(header, to);
    if (r->is_marked || str_starts(to, header)) return;
    r->state = READ_TEXT;
    reader_put(r, READ_TEXT, header);
    buf_clear(&r->held);
}

void reader_harmony_text(struct reader *r, struct str text) {
    enum json_scan_result result;
    size_t n = 0;

    while (r->state == READ_HEADER && n < text.len)
        header_byte(r, text.ptr[n++]);
    if (r->state == READ_TEXT) { /* there was none */
        reader_put(r, READ_TEXT, (struct str){text.ptr + n, text.len - n});
        return;
    }
    while (r->message == MESSAGE_BEGIN && n < text.len) {
        if (!reader_is_blank(text.ptr[n]))
            r->message = text.ptr[n] == '{' ? MESSAGE_JSON : MESSAGE_RAW;
        else
            n++;
    }
    if (r->message == MESSAGE_JSON) {
        n += reader_scan_arguments(r, (struct str){text.ptr + n, text.len - n}, &result);
        if (result != SCAN_MORE) r->message = result == SCAN_END ? MESSAGE_OVER : MESSAGE_RAW;
    }
    if (r->message == MESSAGE_RAW)
        reader_put_arguments(r, (struct str){text.ptr + n, text.len - n});
}

void reader_harmony_finish(struct reader *r, bool is_cut) {
    if (r->state == READ_MESSAGE)
        end_arguments(r, is_cut);
    else if (r->state == READ_HEADER && !r->is_marked)
        reader_put(r, READ_TEXT, buf_str(&r->held));
}
