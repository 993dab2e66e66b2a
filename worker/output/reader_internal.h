/* worker/output/reader_internal.h - what the files of the reader share.
 *
 * ONE ALPHABET. A marker that is a token becomes one byte that UTF-8 does not have, its *code*, in
 * the texts of the format as in the answer. So a reader compares bytes, wherever a marker is one
 * token and wherever it is spelt; and what is spelt never equals a token.
 *
 *            <think>          </think>                    marker of a call
 *      TEXT ─────────▶ REASONING ─────────▶ TEXT ─────────────────────────────▶ a try
 *                                            ▲                                    │
 *                                            └── it is no call: `held` is text ───┤
 *                                            └── it was one ◀── CLOSE ◀── ARGS ◀──┘ name is known
 *
 * A *try* holds its bytes until the name is known (and, of an object, the arguments begin). The
 * bytes behind the one where it fails are read again; they are never more than one marker. */
#ifndef WORKER_OUTPUT_READER_INTERNAL_H
#define WORKER_OUTPUT_READER_INTERNAL_H

#include "common/base/mem.h"
#include "worker/output/arguments/arguments.h"
#include "worker/output/output_internal.h"
#include "worker/output/reader.h"

#define READER_MAX_CODES   13u    /* bytes that UTF-8 does not have */
#define READER_MAX_MARKERS 16u    /* that a text is searched for */
#define READER_MARKER_MAX  64u    /* bytes of one */
#define READER_NAME_MAX    128u   /* of a tool */
#define READER_HELD_MAX    65536u /* of a try: arguments may stand before the name */
#define READER_BLANK_MAX   1024u

enum reader_state {
    /* text is searched for markers */
    READ_TEXT,
    READ_REASONING,
    READ_HEADER,  /* of a message of harmony */
    READ_MESSAGE, /* to a tool */
    /* a try: a text of the format is next */
    READ_SECTION, /* the rest of it */
    READ_OPEN,
    READ_OPEN_REST,
    READ_NAME_AFTER,
    READ_CLOSE,
    READ_SECTION_END,
    /* or something else */
    READ_NAME,
    READ_ARGS_BEGIN,
    READ_ARGS,
    READ_OBJECT,
    READ_LIST, /* the next call of a list or its end */
    READ_N_STATES
};

enum marker_role {
    MARKER_THINK,
    MARKER_THINK_END,
    MARKER_ANSWER,
    MARKER_ANSWER_END,
    MARKER_SECTION_END,
    MARKER_CALL,    /* begins a try */
    MARKER_CHANNEL, /* of harmony */
    MARKER_MESSAGE,
    MARKER_START,
    MARKER_MESSAGE_END,
    MARKER_CONSTRAIN,
};

struct marker {
    struct str text;
    enum marker_role role;
    enum reader_state then; /* of MARKER_CALL */
    bool is_token;          /* has a code in it */
    bool is_bare;           /* counts at the beginning of an answer only */
};

struct code {
    struct str text;
    uint32_t token;
};

/* A JSON value, byte by byte: where it ends. Brackets are counted, not matched. */
struct json_scan {
    uint32_t depth;
    bool is_scalar, in_string, is_escaped;
};

enum json_scan_result { SCAN_MORE, SCAN_END, SCAN_END_BEFORE, SCAN_BAD };

enum object_state {
    OBJECT_BEGIN,
    OBJECT_FIRST_KEY,
    OBJECT_NEXT_KEY,
    OBJECT_KEY,
    OBJECT_COLON,
    OBJECT_VALUE,
    OBJECT_NAME,
    OBJECT_ARGS,
    OBJECT_OTHER,
    OBJECT_AFTER
};

enum message_state { MESSAGE_BEGIN, MESSAGE_JSON, MESSAGE_RAW, MESSAGE_OVER };

enum object_key { KEY_NAME, KEY_ARGS, KEY_OTHER };

struct object {
    enum object_state state;
    enum object_key key;
    char text[16]; /* of the key; longer ones are other keys */
    uint32_t n_text;
    bool has_name, has_args; /* args: they are in `held`, whole */
    size_t args_at, args_len;
};

struct reader {
    const struct reader_setup *setup;
    const struct call_format *calls;
    const struct reasoning_format *reasoning;
    struct answer *out;
    struct arena arena;

    /* of the formats */
    struct code code[READER_MAX_CODES];
    uint32_t n_codes;
    struct marker marker[READER_MAX_MARKERS];
    uint32_t n_markers;
    bool is_first[256]; /* a marker begins with that byte, or it is a code */
    struct str expected[READ_N_STATES];

    bool is_harmony;
    enum reader_state state;
    uint64_t n_read;                   /* bytes, those that were read again too */
    char again[2 * READER_MARKER_MAX]; /* bytes to read again, the last one first */
    uint32_t n_again;

    /* of text */
    char match[READER_MARKER_MAX]; /* may become a marker */
    uint32_t n_match;              /* of a try: bytes of `expected` that were there */
    struct buf ready;              /* text that is not yet in the answer; whole characters
                                      at the end of each push */
    enum part_kind ready_kind;
    struct buf blank;  /* before text: only if text follows */
    size_t n_newlines; /* behind text */
    bool has_text;     /* since reasoning or a call ended */
    bool has_any_text, has_reasoned, is_in_answer, is_in_section;
    bool has_part_before; /* reasoning or a call: newlines after it are of the format */

    /* of a try or call */
    enum reader_state from; /* READ_TEXT, READ_REASONING */
    struct buf held;
    char name[READER_NAME_MAX];
    uint32_t n_name;
    bool is_begun; /* the answer has the call */
    bool is_muted; /* one too many */
    bool is_bare;
    uint32_t n_calls;
    struct json_scan scan;
    struct object object;
    struct arguments *styled; /* reads them, unless they are JSON */
    const char *code_z[READER_MAX_CODES];
    struct buf json;

    enum message_state message; /* of harmony: how far arguments are */
    bool is_marked;             /* the header has a marker or recipient: it is one */
};

/* --- reader.c ------------------------------------------------------------------------------- */

/* Text of the kind of the state, codes as their texts. */
void reader_put(struct reader *r, enum reader_state state, struct str text);
/* What comes next is no text of that kind; at most so many newlines at its end are of the
 * format. */
void reader_end_text(struct reader *r, size_t n_newlines);
void reader_leave_reasoning(struct reader *r);
void reader_flush(struct reader *r);                         /* `ready` into the answer */
void reader_again(struct reader *r, struct str text);        /* is read again, next */
uint32_t reader_code_number(const struct reader *r, char c); /* n_codes: it is none */
struct str reader_code_text(const struct reader *r, char c); /* STR_NULL: no code */

/* --- reader_call.c -------------------------------------------------------------------------- */

void reader_try(struct reader *r, const struct marker *m);
void reader_call_byte(struct reader *r, char c); /* not in READ_TEXT to READ_MESSAGE */
/* Holds a byte of a try. Returns false if that is too much: then it is text, the byte is read
 * again. */
bool reader_hold(struct reader *r, char c);
/* What was read is no call, or ends one: it is text. What began a text of the format and was
 * another one is read again, and so is *c, which may be NULL. */
void reader_fail(struct reader *r, const char *c);
void reader_begin_call(struct reader *r);
void reader_put_arguments(struct reader *r, struct str json);
void reader_end_call(struct reader *r, bool is_cut);
void reader_close_call(struct reader *r); /* what closes a call may follow */
void reader_finish_call(struct reader *r, bool is_cut);

/* --- reader_arguments.c --------------------------------------------------------------------- */

bool reader_is_in_arguments(const struct reader *r);
void reader_begin_arguments(struct reader *r, char c); /* JSON, which begins with that */
void reader_begin_styled(struct reader *r);
/* Reads arguments from the beginning of `text`, and returns of how many bytes they are: less than
 * all if the arguments end before. */
size_t reader_arguments(struct reader *r, struct str text);
/* Adds JSON to the arguments until its end, which is in *result. Returns how many bytes. */
size_t reader_scan_arguments(struct reader *r, struct str text, enum json_scan_result *result);
void reader_finish_arguments(struct reader *r, bool is_cut);

/* --- reader_scan.c -------------------------------------------------------------------------- */

static inline bool reader_is_code(char c) {
    return (unsigned char)c >= 0xF5 || ((unsigned char)c & 0xFE) == 0xC0;
}
bool reader_is_blank(char c);

enum json_scan_result json_scan_byte(struct json_scan *s, char c);
bool json_scan_is_plain(char c); /* may stand in a string */
/* How many bytes at the beginning of the text leave the scan as it is. */
size_t json_scan_run(const struct json_scan *s, struct str text);

/* --- reader_harmony.c ----------------------------------------------------------------------- */

void reader_harmony_marker(struct reader *r, enum marker_role role);
void reader_harmony_text(struct reader *r, struct str text); /* of READ_HEADER, READ_MESSAGE */
void reader_harmony_finish(struct reader *r, bool is_cut);

#endif
