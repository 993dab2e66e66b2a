/* common/options/options_man.c - a page for man(1), in the macros of man(7).
 *
 * In roff a line that begins with a dot or an apostrophe is a command, a backslash escapes, and a
 * bare hyphen may become a typographic one, which no shell takes: all text goes through
 * append_text. */
#include <ctype.h>
#include <stdio.h>

#include "common/options/options_internal.h"
#include "common/options/options_manual.h"

#define REVISED        "2026-11-21" /* the shape of these pages; their content is the program's */
#define LINE_MAX_BYTES 70

static void append_char(struct buf *out, char c) {
    switch (c) {
    case '\\': buf_append_str(out, STR("\\e")); break;
    case '-': buf_append_str(out, STR("\\-")); break;
    case '~': buf_append_str(out, STR("\\(ti")); break;
    case '^': buf_append_str(out, STR("\\(ha")); break;
    case '\'': buf_append_str(out, STR("\\(aq")); break;
    case '`': buf_append_str(out, STR("\\(ga")); break;
    case '"': buf_append_str(out, STR("\\(dq")); break;
    default: buf_append_char(out, c);
    }
}

/* One line of roff, without its end. */
static void append_text(struct buf *out, struct str text) {
    if (text.len && *text.ptr == '.') buf_append_str(out, STR("\\&"));
    for (size_t i = 0; i < text.len; i++)
        append_char(out, text.ptr[i]);
}

/* Words that roff fills, in lines that a person can read too. */
static void append_filled(struct buf *out, struct str text) {
    size_t line = buf_len(out);

    while (text.len) {
        size_t n = 0;

        while (n < text.len && text.ptr[n] != ' ')
            n++;
        if (buf_len(out) > line) {
            bool is_full = buf_len(out) - line + n > LINE_MAX_BYTES;

            buf_append_char(out, is_full ? '\n' : ' ');
            if (is_full) line = buf_len(out);
        }
        append_text(out, (struct str){text.ptr, n});
        while (n < text.len && text.ptr[n] == ' ')
            n++;
        text = (struct str){text.ptr + n, text.len - n};
    }
    buf_append_char(out, '\n');
}

/* A sentence begins a line: that is how roff knows where one ends. */
static void append_sentences(struct buf *out, struct str text) {
    while (text.len) {
        size_t n = 0;

        while (n < text.len && !(text.ptr[n] == ' ' && n && strchr(".:?", text.ptr[n - 1]) &&
                                 n + 1 < text.len && isupper((unsigned char)text.ptr[n + 1])))
            n++;
        append_filled(out, (struct str){text.ptr, n});
        while (n < text.len && text.ptr[n] == ' ')
            n++;
        text = (struct str){text.ptr + n, text.len - n};
    }
}

static void append_macro(struct buf *out, const char *macro, struct str text) {
    buf_appendf(out, ".%s ", macro);
    append_text(out, text);
    buf_append_char(out, '\n');
}

static void append_paragraphs(struct buf *out, const char *text) {
    struct str rest = str_of(text);

    while (rest.len) {
        long end = str_find(rest, STR("\n\n"));
        size_t n = end < 0 ? rest.len : (size_t)end;

        append_sentences(out, (struct str){rest.ptr, n});
        n = MIN(n + 2, rest.len);
        rest = (struct str){rest.ptr + n, rest.len - n};
        if (rest.len) buf_append_str(out, STR(".PP\n"));
    }
}

/* --- options ----------------------------------------------------------------------------------*/

static void append_tag(struct buf *out, const struct option_def *d, bool is_builtin) {
    buf_append_str(out, STR(".TP\n"));
    if (d->is_secret && !d->is_shown) {
        char name[OPTION_ENV_NAME_MAX];

        option_env_name(d, name);
        append_macro(out, "B", str_of(name));
        return;
    }
    if (d->type == OPT_BOOL) {
        buf_append_str(out, STR(".B "));
        append_text(out, is_builtin ? STR("--") : STR("--[no-]"));
        append_text(out, str_of(d->name));
    } else {
        buf_append_str(out, STR(".BI \"\\-\\-"));
        append_text(out, str_of(d->name));
        buf_append_str(out, STR(" \" \""));
        append_text(out, str_of(option_metavar(d)));
        buf_append_char(out, '"');
    }
    buf_append_char(out, '\n');
}

static void append_option(struct buf *out, const struct option_def *d, bool is_builtin) {
    struct buf facts;

    append_tag(out, d, is_builtin);
    append_sentences(out, str_of(d->help));
    if (is_builtin) return;
    if (d->is_secret && !d->is_shown) {
        buf_append_str(out, STR("Not taken on the command line, which\n.BR ps (1)\nshows: set the "
                                "variable, or\n"));
        append_macro(out, "B", str_of(d->name));
        buf_append_str(out, STR("in the configuration file.\n"));
    }
    buf_init(&facts, 0);
    option_facts(d, &facts);
    buf_append_str(out, STR(".br\n"));
    append_filled(out, buf_str(&facts));
    buf_fini(&facts);
}

static void append_groups(struct buf *out, const struct option_program *p) {
    for (size_t i = 0; i < p->n_defs; i++) {
        const char *group = option_group(&p->defs[i]);

        if (!option_is_first_of_group(p, i)) continue;
        append_macro(out, "SS", str_of(group));
        for (size_t j = i; j < p->n_defs; j++) {
            if (!p->defs[j].is_hidden && option_is_of_group(&p->defs[j], group))
                append_option(out, &p->defs[j], false);
        }
    }
}

static void append_hidden(struct buf *out, const struct option_program *p) {
    bool has_heading = false;

    for (size_t i = 0; i < p->n_defs; i++) {
        if (!p->defs[i].is_hidden) continue;
        if (!has_heading) buf_append_str(out, STR(".SS Rarely needed\n"));
        has_heading = true;
        append_option(out, &p->defs[i], false);
    }
}

static void append_builtins(struct buf *out, const struct option_program *p) {
    size_t n;
    const struct option_def *rows = option_builtins(p, &n);

    buf_append_str(out, STR(".SS Every program\n"));
    for (size_t i = 0; i < n; i++)
        append_option(out, &rows[i], true);
}

/* Options of a command that the program does not have without it. */
static void append_own(struct buf *out, const struct option_manual *m,
                       const struct option_command *c) {
    bool has_heading = false;

    for (size_t i = 0; c->program && i < c->program->n_defs; i++) {
        const struct option_def *d = &c->program->defs[i];

        if (option_has_row(m->program, d->name)) continue;
        if (!has_heading) buf_appendf(out, ".SS Of the command %s alone\n", c->word);
        has_heading = true;
        append_option(out, d, false);
    }
}

/* --- sections ---------------------------------------------------------------------------------*/

static void append_synopsis(struct buf *out, const struct option_manual *m) {
    const char *usage = m->program->usage;

    buf_append_str(out, STR(".SH SYNOPSIS\n.B "));
    append_text(out, str_of(m->program->name));
    buf_append_char(out, '\n');
    append_text(out, (struct str){usage, strcspn(usage, "\n")});
    buf_append_char(out, '\n');
    for (const struct option_command *c = m->commands; c->word; c++) {
        buf_append_str(out, STR(".br\n.B "));
        append_text(out, str_of(m->program->name));
        buf_append_char(out, ' ');
        append_text(out, str_of(c->word));
        buf_append_char(out, '\n');
        if (*c->operands) append_text(out, str_of(c->operands));
        if (*c->operands) buf_append_char(out, '\n');
    }
}

static void append_commands(struct buf *out, const struct option_manual *m) {
    buf_append_str(out, STR(".SH COMMANDS\nThe first word, if it is one of these.\n"));
    for (const struct option_command *c = m->commands; c->word; c++) {
        buf_appendf(out, ".TP\n.B %s\n", c->word);
        append_sentences(out, str_of(c->help));
    }
}

static void append_entries(struct buf *out, const char *heading,
                           const struct option_entry_of_manual *entries) {
    buf_appendf(out, ".SH %s\n", heading);
    for (const struct option_entry_of_manual *e = entries; e->term; e++) {
        buf_append_str(out, STR(".TP\n"));
        append_macro(out, "B", str_of(e->term));
        append_sentences(out, str_of(e->text));
    }
}

static void append_examples(struct buf *out, const struct option_entry_of_manual *entries) {
    buf_append_str(out, STR(".SH EXAMPLES\n"));
    for (const struct option_entry_of_manual *e = entries; e->term; e++) {
        if (e != entries) buf_append_str(out, STR(".PP\n"));
        append_sentences(out, str_of(e->term));
        buf_append_str(out, STR(".PP\n.RS 4\n.EX\n"));
        append_text(out, str_of(e->text));
        buf_append_str(out, STR("\n.EE\n.RE\n"));
    }
}

/* "incipit-worker(1), curl(1)" */
static void append_see_also(struct buf *out, const char *list) {
    buf_append_str(out, STR(".SH SEE ALSO\n"));
    while (*list) {
        size_t name = strcspn(list, "("), all = strcspn(list, ",");

        buf_append_str(out, STR(".BR "));
        append_text(out, (struct str){list, name});
        buf_append_char(out, ' ');
        append_text(out, (struct str){list + name, all - name});
        buf_append_str(out, list[all] ? STR(" ,\n") : STR("\n"));
        list += all;
        list += strspn(list, ", ");
    }
}

void options_man(const struct option_manual *m, struct buf *out) {
    buf_append_str(out, STR(".TH \""));
    for (const char *z = m->program->name; *z; z++)
        append_char(out, (char)toupper((unsigned char)*z));
    buf_appendf(out, "\" 1 " REVISED " \"incipit %s\" \"User Commands\"\n.nh\n.ad l\n",
                INCIPIT_VERSION);
    buf_append_str(out, STR(".SH NAME\n"));
    append_text(out, str_of(m->program->name));
    buf_append_str(out, STR(" \\- "));
    append_text(out, str_of(m->name));
    buf_append_char(out, '\n');
    append_synopsis(out, m);
    buf_append_str(out, STR(".SH DESCRIPTION\n"));
    append_paragraphs(out, m->description);
    append_commands(out, m);
    buf_append_str(out,
                   STR(".SH OPTIONS\nEach may also be a variable of the environment, or a key of "
                       "the YAML file that\n.B \\-\\-config\nnames, spelled as the option without "
                       "its hyphens in front.\nThe command line comes before the environment, that "
                       "before the file, that before the default.\nAn underscore is as good as a "
                       "hyphen.\n"));
    append_groups(out, m->program);
    append_hidden(out, m->program);
    append_builtins(out, m->program);
    for (const struct option_command *c = m->commands; c->word; c++)
        append_own(out, m, c);
    append_entries(out, "ENVIRONMENT", m->environment);
    append_entries(out, "FILES", m->files);
    append_entries(out, "SIGNALS", m->signals);
    append_entries(out, "EXIT STATUS", m->exits);
    append_examples(out, m->program->examples);
    append_see_also(out, m->see_also);
}

/* --- the words --------------------------------------------------------------------------------*/

enum status options_answer(const struct option_manual *m, int argc, char *const *argv,
                           bool *is_answered, struct error *err) {
    const char *word = argc > 1 ? argv[1] : "";
    enum status st = ST_OK;
    struct buf page;

    *is_answered = true;
    buf_init(&page, 0);
    if (strcmp(word, "man") == 0) {
        options_man(m, &page);
    } else if (strcmp(word, "completion") == 0) {
        st = options_completion(m, argc > 2 ? argv[2] : "", &page, err);
    } else {
        *is_answered = false;
    }
    if (buf_len(&page) && st == ST_OK) fwrite(buf_ptr(&page), 1, buf_len(&page), stdout);
    buf_fini(&page);
    return st;
}
