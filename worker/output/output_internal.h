/* worker/output/output_internal.h - the rows of the formats' table; see output_format.h.
 *
 * A row spells an answer with calls as models were trained to write it:
 *
 *      before  section  open  body  close  between  open  body  close  section_end
 *
 *      body  BODY_NAMED   name_before NAME name_after arguments
 *            BODY_OBJECT  {"name": "NAME", "KEY": arguments}
 *
 * That is what a grammar generates. A reader is more lenient: where a text of the row has blanks or
 * none, there may be any blanks or none; an object's members may have any order; what stands
 * between calls and after them may be missing.
 *
 * The texts that stand in `tokens` are one token each where the vocabulary has such a token. */
#ifndef WORKER_OUTPUT_OUTPUT_INTERNAL_H
#define WORKER_OUTPUT_OUTPUT_INTERNAL_H

#include "worker/output/output_format.h"

#define FORMAT_MAX_TOKENS 8u
#define FORMAT_MAX_SIGNS  3u

enum sign_place { SIGN_TEMPLATE, SIGN_VOCABULARY, SIGN_EITHER };

struct sign { /* by which a format is known; all of a row's must be there */
    enum sign_place place;
    const char *text;
};

enum call_body { BODY_OBJECT, BODY_NAMED, BODY_HARMONY };

enum call_ids { IDS_CALL, IDS_MISTRAL, IDS_KIMI }; /* call_ and 24; 9; functions.NAME:N */

/* Where a reader goes on. */
enum call_step { STEP_SECTION, STEP_BODY };

struct call_format {
    const char *name, *aliases; /* aliases: divided by blanks */
    struct sign signs[FORMAT_MAX_SIGNS];
    enum call_body body;
    enum call_ids ids;
    const char *arguments;      /* the style of worker/output/arguments/; NULL: JSON */
    const char *arguments_end;  /* of a style: behind them, part of it */
    struct {                    /* how a grammar spells them */
        const char *key, *text; /* before the key of a parameter, before its text, */
        const char *json;       /* or before its JSON, if that differs; */
        const char *end;        /* after its value */
        const char *quote;      /* instead: around the strings of JSON whose names are bare */
        bool is_literal;        /* `end` stands between two */
        bool has_python;        /* None, True, False: as templates print them again */
    } spelling;
    const char *key;    /* BODY_OBJECT: of the arguments; NULL: "arguments" */
    const char *before; /* between text and a call, of neither */
    const char *section, *section_end;
    const char *open, *name_before, *name_after, *close, *between;
    bool is_list; /* calls are divided by a comma or semicolon */
    bool is_bare; /* an answer that begins with a call needs no marker before it */
    struct {      /* read too: another marker, and what follows it */
        const char *text;
        enum call_step step;
    } also;
    const char *tokens[FORMAT_MAX_TOKENS];
};

struct reasoning_format {
    const char *name, *aliases;
    struct sign signs[FORMAT_MAX_SIGNS];
    const char *begin, *end;
    const char *forced;              /* written to end it early; NULL: `end` */
    const char *next;                /* of harmony: between two messages */
    const char *answer, *answer_end; /* around the text after reasoning */
    bool is_harmony;                 /* channels: reader_harmony.c */
};

/* NULL past the last row. */
const struct call_format *call_format_at(uint32_t i);
const struct reasoning_format *reasoning_format_at(uint32_t i);

/* Is that text one token? `m` may be NULL. */
bool output_model_find(const struct output_model *m, const char *text, uint32_t *id);

#endif
