/* common/options/options_help.c - the table as a manual (--help) and as a configuration
 * (--dump-config). */
#include <ctype.h>
#include <strings.h>

#include "common/options/options_internal.h"
#include "common/text/json.h"

#define INDENT 6

static const struct option_def builtins[] = {
    {"config", OPT_STR, .metavar = "FILE",
     .help = "YAML file of options. Keys are the options' names, without the hyphens in front."},
    {"dump-config", OPT_BOOL, .help = "Print the values in effect as YAML and exit."},
    {"help", OPT_STR, .metavar = "[NAME]",
     .help = "Explain the most used options. With NAME: an option, or the options of a group."},
    {"help-all", OPT_BOOL, .help = "Print all options and exit."},
    {"version", OPT_BOOL, .help = "Print the version and exit."},
    {"help-compat", OPT_BOOL,
     .help = "Print the known flags of other programs. Each is accepted or refused; then exit."},
};

const struct option_def *option_builtins(const struct option_program *p, size_t *n) {
    *n = ARRAY_LEN(builtins) - (p->compat == NULL);
    return builtins;
}

/* --- help -------------------------------------------------------------------------------------*/
/* `at`: the column; 0 is the start of a line. */
static void append_wrapped_from(struct buf *out, uint32_t at, struct str text, uint32_t columns,
                                uint32_t indent) {
    while (text.len > 0) {
        size_t n = 0;

        while (text.len && isspace((unsigned char)*text.ptr)) {
            text.ptr++;
            text.len--;
        }
        while (n < text.len && !isspace((unsigned char)text.ptr[n]))
            n++;
        if (n == 0) break;
        if (at > indent && at + 1 + n > columns) {
            buf_append_char(out, '\n');
            at = 0;
        }
        if (at == 0) {
            buf_appendf(out, "%*s", (int)indent, "");
            at = indent;
        } else {
            buf_append_char(out, ' ');
            at++;
        }
        buf_append(out, text.ptr, n);
        at += (uint32_t)n;
        text.ptr += n;
        text.len -= n;
    }
    buf_append_char(out, '\n');
}

static void append_wrapped(struct buf *out, struct str text, uint32_t columns, uint32_t indent) {
    append_wrapped_from(out, 0, text, columns, indent);
}

const char *option_metavar(const struct option_def *d) {
    static const char *const names[] = {
        [OPT_U32] = "N", [OPT_U64] = "N",    [OPT_BYTES] = "SIZE", [OPT_MS] = "DURATION",
        [OPT_F64] = "X", [OPT_STR] = "TEXT", [OPT_ENUM] = "NAME",  [OPT_LIST] = "ITEM,..."};

    return d->metavar ? d->metavar : names[d->type];
}

static void append_env_name(const struct option_def *d, struct buf *out) {
    char name[OPTION_ENV_NAME_MAX];

    option_env_name(d, name);
    buf_append_str(out, str_of(name));
}

static void append_spelling(const struct option_def *d, bool is_builtin, struct buf *out) {
    buf_append_str(out, STR("  "));
    if (d->is_secret && !d->is_shown) {
        append_env_name(d, out);
        buf_appendf(out, ", or %s in the --config file", d->name);
    } else if (d->type == OPT_BOOL) {
        buf_appendf(out, is_builtin ? "--%s" : "--[no-]%s", d->name);
    } else {
        buf_appendf(out, "--%s %s", d->name, option_metavar(d));
    }
    buf_append_char(out, '\n');
}

void option_facts(const struct option_def *d, struct buf *out) {
    const char *cursor = d->aliases;
    struct str alias;

    buf_append_char(out, '[');
    if (d->def && *d->def) buf_appendf(out, "default %s; ", d->def);
    if (d->type == OPT_ENUM) {
        option_expected(d, out);
        buf_append_str(out, STR("; "));
    } else if (d->type != OPT_LIST && d->min && d->max) {
        buf_appendf(out, "from %s to %s; ", d->min, d->max);
    } else if (d->type != OPT_LIST && (d->min || d->max)) {
        buf_appendf(out, "%s %s; ", d->min ? "at least" : "at most", d->min ? d->min : d->max);
    }
    while ((alias = option_next_name(&cursor)).len) {
        if (d->is_secret) continue;
        if (*alias.ptr == '!') {
            buf_appendf(out, "opposite --%.*s; ", (int)alias.len - 1, alias.ptr + 1);
        } else {
            buf_appendf(out, "also --" STR_FMT "; ", STR_ARG(alias));
        }
    }
    if (d->is_live && d->is_path) {
        buf_append_str(out, STR("changes while running, by the --config file; "));
    } else if (d->is_live) {
        buf_append_str(out, STR("changes while running; "));
    }
    append_env_name(d, out);
    if (d->env) buf_appendf(out, ", %s", d->env);
    buf_append_char(out, ']');
}

static void append_row(const struct option_def *d, bool is_builtin, uint32_t columns,
                       struct buf *out) {
    struct buf facts;

    append_spelling(d, is_builtin, out);
    append_wrapped(out, str_of(d->help), columns, INDENT);
    if (is_builtin) return;
    buf_init(&facts, 0);
    option_facts(d, &facts);
    append_wrapped(out, buf_str(&facts), columns, INDENT);
    buf_fini(&facts);
}

const char *option_group(const struct option_def *d) {
    return d->group ? d->group : "General";
}

bool option_is_of_group(const struct option_def *d, const char *group) {
    return strcasecmp(option_group(d), group) == 0;
}

bool option_is_first_of_group(const struct option_program *p, size_t row) {
    for (size_t i = 0; i < row; i++) {
        if (option_is_of_group(&p->defs[i], option_group(&p->defs[row]))) return false;
    }
    return true;
}

struct str option_brief(const char *help) {
    size_t n = 0;

    while (help[n] && !(help[n] == '.' && (!help[n + 1] || (help[n + 1] == ' ' &&
                                                            !islower((unsigned char)help[n + 2])))))
        n++;
    return (struct str){help, n};
}

bool option_has_row(const struct option_program *p, const char *name) {
    for (size_t i = 0; i < p->n_defs; i++) {
        if (strcmp(p->defs[i].name, name) == 0) return true;
    }
    return false;
}

#define BRIEF_INDENT 30
#define GROUP_INDENT 18
#define N_EXAMPLES   3

/* "  --port N      Port for clients [30000]" */
static void append_brief(const struct option_def *d, bool is_builtin, uint32_t columns,
                         struct buf *out) {
    size_t before = buf_len(out);
    struct str brief = option_brief(d->help);
    struct buf text;
    uint32_t at;

    if (d->type == OPT_BOOL) {
        buf_appendf(out, is_builtin ? "  --%s" : "  --[no-]%s", d->name);
    } else {
        buf_appendf(out, "  --%s %s", d->name, option_metavar(d));
    }
    at = (uint32_t)(buf_len(out) - before);
    if (at + 2 > BRIEF_INDENT) {
        buf_append_char(out, '\n');
        at = 0;
    } else {
        buf_appendf(out, "%*s", (int)(BRIEF_INDENT - 1 - at), "");
        at = BRIEF_INDENT - 1;
    }
    buf_init(&text, 0);
    buf_append_str(&text, brief);
    if (d->def && *d->def && strlen(d->def) < 16 && d->type != OPT_BOOL)
        buf_appendf(&text, " [%s]", d->def);
    append_wrapped_from(out, at, buf_str(&text), columns, BRIEF_INDENT);
    buf_fini(&text);
}

static bool is_in(const char *list, const char *name) {
    struct str item;

    while ((item = option_next_name(&list)).len) {
        if (str_eq(item, str_of(name))) return true;
    }
    return false;
}

static void append_most_used(const struct option_program *p, uint32_t columns, struct buf *out) {
    const char *cursor = p->most_used;
    struct str name;

    buf_append_str(out, STR("\nMost used\n"));
    while ((name = option_next_name(&cursor)).len) {
        for (size_t i = 0; i < p->n_defs; i++) {
            if (str_eq(name, str_of(p->defs[i].name)))
                append_brief(&p->defs[i], false, columns, out);
        }
    }
}

/* One line: the group, and the options in it that are not among the most used, as far as they
 * fit. */
static void append_group_line(const struct option_program *p, const char *group, uint32_t columns,
                              struct buf *out) {
    struct buf line;
    bool is_cut = false;

    buf_init(&line, 0);
    for (size_t i = 0; i < p->n_defs; i++) {
        const struct option_def *d = &p->defs[i];

        if (d->is_hidden || !option_is_of_group(d, group) || is_in(p->most_used, d->name)) continue;
        is_cut = is_cut || GROUP_INDENT + buf_len(&line) + strlen(d->name) + 7 > columns;
        if (!is_cut) buf_appendf(&line, "%s%s", buf_len(&line) ? ", " : "", d->name);
    }
    if (buf_len(&line))
        buf_appendf(out, "  %-*s" STR_FMT "%s\n", GROUP_INDENT - 2, group, STR_ARG(buf_str(&line)),
                    is_cut ? ", ..." : "");
    buf_fini(&line);
}

static void append_examples(const struct option_program *p, uint32_t columns, struct buf *out) {
    buf_append_str(out, STR("\nExamples\n"));
    for (size_t i = 0; i < N_EXAMPLES && p->examples[i].term; i++) {
        append_wrapped(out, str_of(p->examples[i].term), columns, 2);
        buf_appendf(out, "      %s\n", p->examples[i].text);
    }
}

/* The page of --help: what most people need, and the names of the rest. */
static void append_short_page(const struct option_program *p, uint32_t columns, struct buf *out) {
    size_t n;
    const struct option_def *builtin = option_builtins(p, &n);

    append_most_used(p, columns, out);
    buf_append_str(out, STR("\nMore\n"));
    for (size_t i = 0; i < p->n_defs; i++) {
        if (option_is_first_of_group(p, i))
            append_group_line(p, option_group(&p->defs[i]), columns, out);
    }
    buf_append_str(out, STR("\nEvery program\n"));
    for (size_t i = 0; i < n; i++)
        append_brief(&builtin[i], true, columns, out);
    if (p->examples) append_examples(p, columns, out);
}

/* All options, or those of one group. */
static void append_groups(const struct option_program *p, const char *group, uint32_t columns,
                          struct buf *out) {
    for (size_t i = 0; i < p->n_defs; i++) {
        const char *heading = option_group(&p->defs[i]);

        if (!option_is_first_of_group(p, i) || (group && strcasecmp(group, heading) != 0)) continue;
        buf_appendf(out, "\n%s\n", heading);
        for (size_t j = i; j < p->n_defs; j++) {
            if (option_is_of_group(&p->defs[j], heading))
                append_row(&p->defs[j], false, columns, out);
        }
    }
}

static void append_long_page(const struct option_program *p, uint32_t columns, struct buf *out) {
    size_t n;
    const struct option_def *builtin = option_builtins(p, &n);

    append_groups(p, NULL, columns, out);
    buf_append_str(out, STR("\nEvery program\n"));
    for (size_t i = 0; i < n; i++)
        append_row(&builtin[i], true, columns, out);
}

static void append_head(const struct option_program *p, uint32_t columns, struct buf *out) {
    buf_appendf(out, "%s %s\n\n", p->name, INCIPIT_VERSION);
    append_wrapped(out, str_of(p->summary), columns, 0);
    buf_appendf(out, "\nUsage: %s %s\n", p->name, p->usage);
}

bool options_help(const struct option_program *p, const char *topic, uint32_t columns,
                  struct buf *out) {
    struct option_found f;

    if (!topic || strcmp(topic, "all") == 0) {
        append_head(p, columns, out);
        if (!topic && p->most_used) {
            append_short_page(p, columns, out);
        } else {
            append_long_page(p, columns, out);
        }
        return true;
    }
    if (option_find(p, str_of(topic), &f)) {
        append_row(&p->defs[f.row], false, columns, out);
        return true;
    }
    append_groups(p, topic, columns, out);
    return buf_len(out) > 0;
}

/* --- flags of other programs ------------------------------------------------------------------*/
/* "auto and none", "a, b and c"; a list of values with commas between. */
static void append_values(struct buf *out, const char *list) {
    struct str word = option_next_name(&list), following;
    bool is_first = true;

    for (; word.len; word = following) {
        following = option_next_name(&list);
        if (!is_first) buf_append_str(out, following.len ? STR(", ") : STR(" and "));
        is_first = false;
        if (str_ends(word, STR("*"))) {
            buf_appendf(out, "%.*s...", (int)word.len - 1, word.ptr);
        } else {
            buf_append_str(out, word);
        }
    }
}

void option_compat_fate(const struct option_compat *row, struct buf *out) {
    if (row->as && row->value) {
        buf_appendf(out, "taken as --%s %s", row->as, row->value);
    } else if (row->as) {
        buf_appendf(out, "taken as --%s", row->as);
    } else if (row->is_refused) {
        buf_append_str(out, STR("refused"));
        if (row->fine) {
            buf_append_str(out, STR(", except "));
            append_values(out, row->fine);
        }
    } else {
        buf_append_str(out, STR("no effect"));
        if (row->refuses) {
            buf_append_str(out, STR("; refused with "));
            append_values(out, row->refuses);
        }
    }
}

static void append_compat_row(struct buf *out, const struct option_compat *row, uint32_t columns) {
    const char *cursor = row->flags;
    struct compat_flag f;
    struct buf line;

    buf_init(&line, 0);
    while (option_compat_next(row, &cursor, &f))
        buf_appendf(&line, "%s" STR_FMT " ", f.is_short ? "-" : "--", STR_ARG(f.name));
    append_wrapped(out, buf_str(&line), columns, 2);
    buf_clear(&line);
    option_compat_fate(row, &line);
    if (row->remark) buf_appendf(&line, ": %s", row->remark);
    append_wrapped(out, buf_str(&line), columns, INDENT);
    buf_fini(&line);
}

void options_help_compat(const struct option_program *p, uint32_t columns, struct buf *out) {
    buf_appendf(out, "%s %s: flags of %s\n\n", p->name, INCIPIT_VERSION,
                p->others ? p->others : "other programs");
    for (const struct option_compat *row = p->compat; row && row->flags; row++)
        append_compat_row(out, row, columns);
}

/* --- dump -------------------------------------------------------------------------------------*/
/* The code point of a character that JSON takes as it is and YAML only escaped: DEL, the C1
 * controls, the byte order mark, U+FFFE, U+FFFF. 0 for all others. */
static unsigned yaml_only_escaped(const char *at, size_t n) {
    const unsigned char *p = (const unsigned char *)at;
    unsigned code;

    if (n == 1) return p[0] == 0x7F ? 0x7F : 0;
    if (n == 2) return p[0] == 0xC2 && p[1] < 0xA0 ? p[1] : 0;
    if (n != 3) return 0;
    code = (p[0] & 0x0Fu) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu);
    return code == 0xFEFF || code >= 0xFFFE ? code : 0;
}

/* YAML's double quotes take JSON's escapes. */
static void append_quoted(struct buf *out, const char *z) {
    struct str rest = str_of(z);

    buf_append_char(out, '"');
    while (rest.len > 0) {
        size_t n = MAX(str_utf8_len(rest), (size_t)1);
        unsigned code = yaml_only_escaped(rest.ptr, n);

        if (code) {
            buf_appendf(out, "\\u%04x", code);
        } else {
            json_escape(out, (struct str){rest.ptr, n});
        }
        rest = (struct str){rest.ptr + n, rest.len - n};
    }
    buf_append_char(out, '"');
}

static void append_list(struct buf *out, const struct option_list *list) {
    buf_append_char(out, '[');
    for (uint32_t i = 0; i < list->n; i++) {
        if (i) buf_append_str(out, STR(", "));
        append_quoted(out, list->items[i]);
    }
    buf_append_char(out, ']');
}

static void dump_row(const struct options *o, size_t row, struct buf *out) {
    static const char *const sources[] = {"default", "file", "environment", "flag", "runtime"};
    const struct option_def *d = &o->program->defs[row];
    const void *at = (const char *)o->target + d->offset;
    struct option_list list;
    const char *z;

    if (d->is_secret) { /* a comment, so that the dump can be used as a file */
        struct buf value;

        buf_init(&value, 0);
        option_format(d, o->target, &value);
        buf_appendf(out, "# %s: %s", d->name, buf_len(&value) ? "***" : "not set");
        buf_fini(&value);
    } else if (d->type == OPT_STR) {
        memcpy(&z, at, sizeof(z));
        buf_appendf(out, z ? "%s: " : "# %s: not set", d->name);
        if (z) append_quoted(out, z);
    } else if (d->type == OPT_LIST) {
        memcpy(&list, at, sizeof(list));
        buf_appendf(out, "%s: ", d->name);
        append_list(out, &list);
    } else {
        buf_appendf(out, "%s: ", d->name);
        option_format(d, o->target, out);
    }
    buf_appendf(out, "  # %s\n", sources[o->sources[row]]);
}

void options_dump(const struct options *o, struct buf *out) {
    buf_appendf(out, "# %s %s: the effective configuration\n", o->program->name, INCIPIT_VERSION);
    for (size_t i = 0; i < o->program->n_defs; i++)
        dump_row(o, i, out);
}
