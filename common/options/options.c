/* common/options/options.c - the layers: defaults, file, environment, flags.
 *
 * Each layer writes over the one below, so that the last one to name an option wins and every value
 * anywhere is checked, used or not. The command line is walked twice: first for --help, --config
 * and unknown names, then, when the layers below are in place, for the values. */
#include "common/options/options.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/options/options_internal.h"

#define LABEL_MAX   96
#define MIN_COLUMNS 40
#define MAX_COLUMNS 100

static const size_t field_sizes[] = {
    [OPT_BOOL] = sizeof(bool),
    [OPT_U32] = sizeof(uint32_t),
    [OPT_U64] = sizeof(uint64_t),
    [OPT_BYTES] = sizeof(uint64_t),
    [OPT_MS] = sizeof(uint32_t),
    [OPT_F64] = sizeof(double),
    [OPT_STR] = sizeof(const char *),
    [OPT_ENUM] = sizeof(int),
    [OPT_LIST] = sizeof(struct option_list),
};

static void layer_init(struct option_layer *l, struct options *o, enum option_source source) {
    *l = (struct option_layer){
        .o = o, .target = o->target, .sources = o->sources, .source = source, .memory = &o->memory};
    l->seen = mem_calloc(o->program->n_defs, sizeof(bool));
}

static void layer_fini(struct option_layer *l) {
    mem_free(l->seen);
}

static void warn_clamped(const struct option_layer *l, const struct option_def *d,
                         const struct option_text *t) {
    struct buf value;

    buf_init(&value, 0);
    option_format(d, l->target, &value);
    fprintf(stderr, "%s: %s %.*s is out of range: " STR_FMT " is used\n", l->o->program->name,
            t->label, (int)MIN(t->value.len, (size_t)40), t->value.ptr, STR_ARG(buf_str(&value)));
    buf_fini(&value);
}

static void warn_shown(const struct option_layer *l, const struct option_def *d,
                       const struct option_text *t) {
    char variable[OPTION_ENV_NAME_MAX];

    option_env_name(d, variable);
    fprintf(stderr,
            "%s: %s shows in the process list: set %s, or '%s' in the --config file, or use "
            "--%s-file\n",
            l->o->program->name, t->label, variable, d->name, d->name);
}

enum status option_layer_set(struct option_layer *l, size_t row, struct option_text *t,
                             struct error *err) {
    const struct option_def *d = &l->o->program->defs[row];
    bool was_clamped = false;
    enum status st;

    t->is_more = l->seen[row];
    t->was_clamped = &was_clamped;
    st = option_set(d, t, l->target, l->memory, err);
    if (st != ST_OK) return st;
    if (was_clamped && !l->change) warn_clamped(l, d, t);
    if (d->is_secret && d->is_shown && l->source == OPTION_FLAG && !t->is_more) warn_shown(l, d, t);
    l->seen[row] = true;
    l->sources[row] = l->source;
    return ST_OK;
}

/* --- names ------------------------------------------------------------------------------------*/
static const char *const builtin_names = "config,dump-config,help,help-all,help-compat,version";

bool option_find(const struct option_program *p, struct str name, struct option_found *out) {
    for (size_t row = 0; row < p->n_defs; row++) {
        const struct option_def *d = &p->defs[row];
        const char *cursor = d->aliases;
        struct str alias;

        *out = (struct option_found){.row = row};
        if (option_name_eq(name, str_of(d->name))) return true;
        while ((alias = option_next_name(&cursor)).len) {
            out->is_inverted = *alias.ptr == '!';
            if (out->is_inverted) alias = (struct str){alias.ptr + 1, alias.len - 1};
            out->in_seconds = str_ends(alias, STR("-secs"));
            if (option_name_eq(name, alias)) return true;
        }
    }
    return false;
}

static struct str without_no(struct str name) {
    if (name.len > 3 && option_name_eq((struct str){name.ptr, 3}, STR("no-"))) {
        return (struct str){name.ptr + 3, name.len - 3};
    }
    return name;
}

/* Also --no-NAME of a bool. */
static bool find_flag(const struct option_program *p, struct str name, struct option_found *out,
                      bool *is_no) {
    struct str positive = without_no(name);

    *is_no = false;
    if (option_find(p, name, out)) return true;
    if (positive.len == name.len || !option_find(p, positive, out)) return false;
    *is_no = true;
    return p->defs[out->row].type == OPT_BOOL;
}

static bool is_beginning(struct str name, struct str whole) {
    return name.len < whole.len && option_name_eq(name, (struct str){whole.ptr, name.len});
}

/* Shorter ones are more likely a mistake. */
#define BEGINNING_MIN 5

/* A flag cut short, as Python's argparse takes it: the whole name, where all names that begin so
 * are of one row; else STR_NULL. */
static struct str whole_name(const struct option_program *p, struct str name) {
    const void *row = NULL;
    struct str found = STR_NULL, alias;
    struct compat_flag f;

    if (!p->takes_beginnings || name.len < BEGINNING_MIN) return STR_NULL;
    for (size_t i = 0; i < p->n_defs; i++) {
        const char *cursor = p->defs[i].aliases;
        bool is_this = is_beginning(name, str_of(p->defs[i].name));

        if (is_this) found = str_of(p->defs[i].name);
        while ((alias = option_next_name(&cursor)).len) {
            if (!is_beginning(name, alias)) continue;
            if (!is_this) found = alias;
            is_this = true;
        }
        if (!is_this) continue;
        if (row) return STR_NULL;
        row = &p->defs[i];
    }
    for (const struct option_compat *g = p->compat; g && g->flags; g++) {
        const char *cursor = g->flags;

        while (option_compat_next(g, &cursor, &f)) {
            if (f.is_short || option_compat_is_family(&f) || !is_beginning(name, f.name)) continue;
            if (row && row != g) return STR_NULL;
            row = g;
            found = f.name;
        }
    }
    return found;
}

static void consider(struct str candidate, struct str name, struct str *best, size_t *distance) {
    size_t d;

    if (candidate.len && *candidate.ptr == '!') {
        candidate = (struct str){candidate.ptr + 1, candidate.len - 1};
    }
    d = option_distance(candidate, name);
    if (d >= *distance) return;
    *distance = d;
    *best = candidate;
}

enum status option_unknown(const struct option_program *p, struct str name, const char *dashes,
                           struct error *err) {
    struct str positive = without_no(name), best = STR_NULL, candidate;
    size_t distance = 2 + positive.len / 4; /* further off is another word */
    const char *cursor = builtin_names;

    for (size_t row = 0; row < p->n_defs; row++) {
        const char *aliases = p->defs[row].aliases;

        consider(str_of(p->defs[row].name), positive, &best, &distance);
        while ((candidate = option_next_name(&aliases)).len) {
            consider(candidate, positive, &best, &distance);
        }
    }
    while ((candidate = option_next_name(&cursor)).len) {
        consider(candidate, positive, &best, &distance);
    }
    for (const struct option_compat *g = p->compat; g && g->flags; g++) {
        const char *flags = g->flags;
        struct compat_flag f;

        while (option_compat_next(g, &flags, &f)) {
            if (!f.is_short && !option_compat_is_family(&f))
                consider(f.name, positive, &best, &distance);
        }
    }
    if (!best.len) {
        return error_set(err, ST_INVALID, "unknown option %s%.*s: %s --help-all lists all", dashes,
                         (int)MIN(name.len, (size_t)100), name.ptr, p->name);
    }
    return error_set(err, ST_INVALID, "unknown option %s%.*s: did you mean %s" STR_FMT "?", dashes,
                     (int)MIN(name.len, (size_t)100), name.ptr, dashes, STR_ARG(best));
}

/* --- the command line -------------------------------------------------------------------------*/
struct command {
    const struct option_program *program;
    int argc, i;
    char *const *argv;
    struct option_layer *layer; /* NULL in the first walk */
    const char *config, *topic; /* of --help; NULL: none */
    bool wants_help, wants_compat, wants_version, wants_dump;
};

/* The value of the flag at c->i: after '=' or the next argument. */
static enum status take_value(struct command *c, struct str name, const char *after_equals,
                              struct str *out, struct error *err) {
    const char *next = c->i + 1 < c->argc ? c->argv[c->i + 1] : NULL;

    if (after_equals) {
        *out = str_of(after_equals);
        return ST_OK;
    }
    if (!next || (next[0] == '-' && next[1] == '-')) {
        return error_set(err, ST_INVALID, "--" STR_FMT " needs a value: write --" STR_FMT " VALUE",
                         STR_ARG(name), STR_ARG(name));
    }
    c->i++;
    *out = str_of(next);
    return ST_OK;
}

/* True when it was one of ours. */
static bool take_builtin(struct command *c, struct str name, const char *after_equals,
                         enum status *st, struct error *err) {
    struct str value;

    *st = ST_OK;
    if (option_name_eq(name, STR("help"))) {
        c->wants_help = true;
        c->topic = after_equals;
        /* A name may have its dashes where no other option can be meant. */
        if (!c->topic && c->i + 1 < c->argc && (*c->argv[c->i + 1] != '-' || c->i + 2 == c->argc))
            c->topic = c->argv[++c->i];
        while (c->topic && *c->topic == '-')
            c->topic++;
    } else if (option_name_eq(name, STR("help-all"))) {
        c->wants_help = true;
        c->topic = "all";
    } else if (c->program->compat && (option_name_eq(name, STR("help-compat")) ||
                                      option_name_eq(name, STR("help-foreign")))) {
        c->wants_compat = true;
    } else if (option_name_eq(name, STR("version"))) {
        c->wants_version = true;
    } else if (option_name_eq(name, STR("dump-config"))) {
        c->wants_dump = true;
    } else if (option_name_eq(name, STR("config"))) {
        *st = take_value(c, name, after_equals, &value, err);
        if (*st == ST_OK) c->config = value.ptr;
    } else {
        return false;
    }
    return true;
}

static enum status set_flag(struct command *c, size_t row, struct option_text t,
                            struct error *err) {
    return c->layer ? option_layer_set(c->layer, row, &t, err) : ST_OK;
}

static bool is_flag(const char *arg) {
    return arg[0] == '-' && (arg[1] == '-' || isalpha((unsigned char)arg[1]));
}

/* Does the next argument stand for the value of a bool? */
static bool is_truth(const struct command *c) {
    const char *next = c->i + 1 < c->argc ? c->argv[c->i + 1] : "";

    return strcasecmp(next, "true") == 0 || strcasecmp(next, "false") == 0;
}

/* What another program's flag was given, and how: as a word of its own, behind '=', behind the
 * letter of a short flag, or as one member of the value (--flag.member value). */
struct given {
    const char *dashes;
    struct str name;
    const char *value; /* NULL: not in the same argument */
    bool is_no, is_member;
};

/* Steps over the values of another program's flag; *value is the first. */
static enum status step_over(struct command *c, const struct compat_flag *f, const struct given *g,
                             struct str *value, struct error *err) {
    bool is_given = g->value != NULL;
    enum status st = ST_OK;

    *value = str_of(g->value);
    switch (f->takes) {
    case COMPAT_NOTHING:
        if (!g->value && is_truth(c)) *value = str_of(c->argv[++c->i]);
        break;
    case COMPAT_PERHAPS:
        if (!is_given && c->i + 1 < c->argc && !is_flag(c->argv[c->i + 1]))
            *value = str_of(c->argv[++c->i]);
        break;
    case COMPAT_ONE:
    case COMPAT_ALL: st = take_value(c, g->name, g->value, value, err); break;
    }
    while (st == ST_OK && !is_given && f->takes == COMPAT_ALL && c->i + 1 < c->argc &&
           !is_flag(c->argv[c->i + 1]))
        c->i++;
    return st;
}

static enum status take_compat(struct command *c, const struct compat_flag *f,
                               const struct given *g, struct error *err) {
    struct option_text t = {.label = f->row->as};
    struct str value = STR_NULL;
    struct option_found found;
    bool is_fine;
    enum status st;

    if (g->is_no) return ST_OK;
    st = step_over(c, f, g, &value, err);
    if (st != ST_OK) return st;
    if (f->takes == COMPAT_NOTHING && str_eq_nocase(value, STR("false"))) return ST_OK;
    st = option_compat_check(f, g->is_member ? STR_NULL : value, &is_fine, err);
    if (st != ST_OK || is_fine || !c->layer) return st;
    option_compat_warn(c->program, f);
    if (!f->row->as || !option_find(c->program, str_of(f->row->as), &found)) return ST_OK;
    t.value = f->row->value ? str_of(f->row->value) : value;
    return set_flag(c, found.row, t, err);
}

/* Finds --name, --no-name and the name before the dot of --name.member. */
static bool find_compat(const struct option_program *p, struct given *g, bool is_short,
                        struct compat_flag *out) {
    struct str positive = without_no(g->name);
    const char *dot = memchr(g->name.ptr, '.', g->name.len);

    if (dot) g->name.len = (size_t)(dot - g->name.ptr);
    g->is_member = dot != NULL;
    if (option_compat_find(p, g->name, is_short, out)) return true;
    if (is_short || positive.len == g->name.len) return false;
    g->is_no = true;
    return option_compat_find(p, positive, false, out) && out->takes == COMPAT_NOTHING;
}

/* -tp 4, -tp=4, -O3: all short flags are other programs'. */
static enum status take_short(struct command *c, const char *arg, struct error *err) {
    const char *equals = strchr(arg, '=');
    struct given g = {.dashes = "-", .name = {arg + 1, strcspn(arg + 1, "=")}};
    struct compat_flag f;

    g.value = equals ? equals + 1 : NULL;
    if (find_compat(c->program, &g, true, &f)) return take_compat(c, &f, &g, err);
    g = (struct given){.dashes = "-", .name = {arg + 1, 1}, .value = arg + 2};
    if (arg[2] && option_compat_find(c->program, g.name, true, &f) && f.takes != COMPAT_NOTHING)
        return take_compat(c, &f, &g, err);
    return error_set(
        err, ST_INVALID,
        "unknown option %.100s: options begin with two hyphens, %s --help-all lists all", arg,
        c->program->name);
}

static enum status take_secret(const struct option_def *d, const char *label, struct error *err) {
    char variable[OPTION_ENV_NAME_MAX];

    option_env_name(d, variable);
    return error_set_param(err, ST_INVALID, d->name,
                           "%s is a secret and would show in the process list: set %s, or '%s' "
                           "in the --config file",
                           label, variable, d->name);
}

static enum status take_own(struct command *c, const struct option_found *f, struct str name,
                            const char *after, bool is_no, struct error *err) {
    const struct option_def *d = &c->program->defs[f->row];
    char label[LABEL_MAX];
    struct option_text t = {.label = label, .in_seconds = f->in_seconds};
    enum status st;

    snprintf(label, sizeof(label), "--" STR_FMT, STR_ARG(name));
    t.is_inverted = f->is_inverted != is_no;
    if (d->is_secret && !d->is_shown) return take_secret(d, label, err);
    if (d->type == OPT_BOOL) {
        if (is_no && after)
            return error_set(err, ST_INVALID, "%s takes no value: leave the value out", label);
        t.value = after ? str_of(after) : STR("true");
        if (!after && !is_no && c->program->compat && is_truth(c))
            t.value = str_of(c->argv[++c->i]);
        return set_flag(c, f->row, t, err);
    }
    if (d->alone && !after && (c->i + 1 == c->argc || c->argv[c->i + 1][0] == '-')) {
        t.value = str_of(d->alone);
        return set_flag(c, f->row, t, err);
    }
    st = take_value(c, name, after, &t.value, err);
    if (st == ST_OK) st = set_flag(c, f->row, t, err);
    while (st == ST_OK && d->takes_many && c->i + 1 < c->argc && c->argv[c->i + 1][0] != '-') {
        t.value = str_of(c->argv[++c->i]);
        st = set_flag(c, f->row, t, err);
    }
    return st;
}

static enum status take_flag(struct command *c, const char *arg, struct error *err) {
    const char *equals = strchr(arg, '='), *after = equals ? equals + 1 : NULL;
    struct str name = {arg + 2, equals ? (size_t)(equals - arg) - 2 : strlen(arg) - 2};
    struct given g = {.dashes = "--", .name = name, .value = after};
    struct compat_flag compat;
    struct option_found f;
    enum status st;
    bool is_no;

    for (;;) {
        if (take_builtin(c, name, after, &st, err)) return st;
        if (find_flag(c->program, name, &f, &is_no))
            return take_own(c, &f, name, after, is_no, err);
        if (find_compat(c->program, &g, false, &compat)) return take_compat(c, &compat, &g, err);
        name = whole_name(c->program, name);
        if (!name.len) break;
        g = (struct given){.dashes = "--", .name = name, .value = after};
    }
    name = (struct str){arg + 2, equals ? (size_t)(equals - arg) - 2 : strlen(arg) - 2};
    return option_unknown(c->program, name, "--", err);
}

static enum status take_positional(struct command *c, const char *arg, bool *is_taken,
                                   struct error *err) {
    for (size_t row = 0; row < c->program->n_defs; row++) {
        const struct option_def *d = &c->program->defs[row];

        if (!d->is_positional || *is_taken) continue;
        *is_taken = true;
        return set_flag(c, row, (struct option_text){.value = str_of(arg), .label = d->name}, err);
    }
    return error_set(err, ST_INVALID, "unexpected argument '%.100s': the usage is %s %s", arg,
                     c->program->name, c->program->usage);
}

static enum status walk(struct command *c, struct option_layer *layer, struct error *err) {
    bool is_taken = false, only_positional = false;
    enum status st = ST_OK;

    c->layer = layer;
    for (c->i = 1; c->i < c->argc && st == ST_OK; c->i++) {
        const char *arg = c->argv[c->i];

        if (only_positional || arg[0] != '-' || arg[1] == '\0') {
            st = take_positional(c, arg, &is_taken, err);
        } else if (strcmp(arg, "--") == 0) {
            only_positional = true;
        } else if (strcmp(arg, "-h") == 0) {
            c->wants_help = true;
        } else if (arg[1] != '-') {
            st = take_short(c, arg, err);
        } else {
            st = take_flag(c, arg, err);
        }
    }
    return st;
}

/* --- defaults, file, environment --------------------------------------------------------------*/
enum status option_layer_defaults(struct option_layer *l, struct error *err) {
    for (size_t row = 0; row < l->o->program->n_defs; row++) {
        const struct option_def *d = &l->o->program->defs[row];
        struct option_text t = {.value = str_of(d->def), .label = "the default"};
        enum status st;

        assert(d->name && d->help && d->size == field_sizes[d->type]);
        assert((d->type == OPT_ENUM) == (d->names != NULL));
        option_unset(d, l->target);
        l->sources[row] = OPTION_DEFAULT;
        if (!d->def) continue;
        st = option_layer_set(l, row, &t, err);
        if (st != ST_OK) return error_prefix(err, "option table, %s", d->name);
    }
    return ST_OK;
}

static enum status read_file(const char *path, struct buf *out, struct error *err) {
    FILE *file = fopen(path, "re");
    enum status st = ST_OK;

    if (!file) {
        return error_set(err, ST_IO, "cannot open the config file %s: %s", path, strerror(errno));
    }
    for (;;) {
        char *to = buf_reserve(out, 4096);
        size_t n = to ? fread(to, 1, 4096, file) : 0;

        if (n == 0) break;
        buf_commit(out, n);
    }
    if (ferror(file)) {
        st = error_set(err, ST_IO, "cannot read the config file %s: %s", path, strerror(errno));
    } else if (buf_status(out) != ST_OK) {
        st = error_set(err, ST_TOO_LARGE,
                       "the config file %s has more than %d bytes: shorten the file", path,
                       OPTIONS_FILE_MAX_BYTES);
    }
    fclose(file);
    return st;
}

/* A key of another program in the file. */
static enum status on_compat_entry(struct option_layer *l, const struct compat_flag *f,
                                   bool is_member, const struct option_entry *e,
                                   struct error *err) {
    struct option_text t = {.value = e->value, .label = f->row->as};
    struct option_found found;
    bool is_fine;
    enum status st;

    if (f->takes == COMPAT_NOTHING && str_eq_nocase(e->value, STR("false"))) return ST_OK;
    st = option_compat_check(f, e->is_json || is_member ? STR_NULL : e->value, &is_fine, err);
    if (st != ST_OK && err) error_prefix(err, "line %u", e->line);
    if (st != ST_OK || is_fine) return st;
    if (e->index == 0 && !l->change) option_compat_warn(l->o->program, f);
    if (!f->row->as || !option_find(l->o->program, str_of(f->row->as), &found)) return ST_OK;
    if (f->row->value) t.value = str_of(f->row->value);
    return option_layer_set(l, found.row, &t, err);
}

static enum status on_entry(void *ctx, const struct option_entry *e, struct error *err) {
    struct option_layer *l = ctx;
    const struct option_program *p = l->o->program;
    char label[LABEL_MAX];
    struct option_text t = {.value = e->value, .label = label};
    struct option_found f;
    enum status st;
    bool is_no;

    if (!find_flag(p, e->key, &f, &is_no)) {
        struct given g = {.name = e->key};
        struct compat_flag compat;

        if (find_compat(p, &g, false, &compat))
            return g.is_no ? ST_OK : on_compat_entry(l, &compat, g.is_member, e, err);
        st = option_unknown(p, e->key, "", err);
        if (err) error_prefix(err, "line %u", e->line);
        return st;
    }
    if (e->is_json && p->defs[f.row].type != OPT_STR) {
        return error_set_param(err, ST_INVALID, p->defs[f.row].name,
                               "line %u: %s is a mapping: write a value or a list", e->line,
                               p->defs[f.row].name);
    }
    snprintf(label, sizeof(label), "line %u: %s", e->line, p->defs[f.row].name);
    if (e->is_item && p->defs[f.row].type != OPT_LIST) {
        return error_set_param(err, ST_INVALID, p->defs[f.row].name,
                               "%s is a list: write one value", label);
    }
    if (l->seen[f.row] && e->index == 0) {
        return error_set_param(err, ST_INVALID, p->defs[f.row].name,
                               "%s is given twice: remove one of the lines", label);
    }
    t.is_item = e->is_item;
    t.is_empty = e->is_empty;
    t.in_seconds = f.in_seconds;
    t.is_inverted = f.is_inverted != is_no;
    return option_layer_set(l, f.row, &t, err);
}

/* In a change each wrong entry is a refusal of its own, and the rest is read on. What belongs to an
 * unknown name may be a secret. */
static enum status on_file_entry(void *ctx, const struct option_entry *e, struct error *err) {
    struct option_layer *l = ctx;
    struct str value = STR_NULL;
    struct option_found f;
    enum status st = on_entry(l, e, err);

    if (st == ST_OK || !l->change) return st;
    if (option_find(l->o->program, e->key, &f))
        value = l->o->program->defs[f.row].is_secret ? STR("set") : e->value;
    option_change_refuse(l->change, e->key, value, err->message);
    return ST_OK;
}

enum status option_layer_file(struct option_layer *l, const char *path, struct error *err) {
    struct buf text;
    enum status st;

    buf_init(&text, OPTIONS_FILE_MAX_BYTES);
    st = read_file(path, &text, err);
    if (st == ST_OK) {
        st = options_yaml_read(buf_str(&text), on_file_entry, l, err);
        if (st != ST_OK && err) error_prefix(err, "config file %s", path);
    }
    buf_fini(&text);
    return st;
}

/* Any user who can log in reads a file with mode ..4. */
static void warn_of_secrets(const struct option_layer *l, const char *path) {
    const struct option_program *p = l->o->program;
    struct stat st;

    if (stat(path, &st) != 0 || !(st.st_mode & S_IROTH)) return;
    for (size_t row = 0; row < p->n_defs; row++) {
        if (!l->seen[row] || !p->defs[row].is_secret) continue;
        fprintf(stderr,
                "%s: the config file %s has a secret (%s) and every user of this machine can "
                "read the file: set its mode to 640 and its group to the service's\n",
                p->name, path, p->defs[row].name);
        return;
    }
}

static enum status apply_env(struct option_layer *l, struct error *err) {
    for (size_t row = 0; row < l->o->program->n_defs; row++) {
        const struct option_def *d = &l->o->program->defs[row];
        struct option_text t = {0};
        char name[OPTION_ENV_NAME_MAX];
        const char *value;
        enum status st;

        option_env_name(d, name);
        t.label = name;
        value = getenv(name);
        if ((!value || !*value) && d->env) value = getenv(t.label = d->env);
        if (!value || !*value) continue;
        t.value = str_of(value);
        st = option_layer_set(l, row, &t, err);
        if (st == ST_OK) continue;
        if (!str_starts(t.value, STR("tcp://"))) return st;
        return error_set_param(
            err, ST_INVALID, d->name,
            "%s is '%.60s', as Kubernetes sets the variable for a service of this name: "
            "set enableServiceLinks: false in the pod, or rename the service",
            name, value);
    }
    return ST_OK;
}

/* --- parse ------------------------------------------------------------------------------------*/
static enum status apply_layers(struct options *o, struct command *c, struct error *err) {
    enum status st = ST_OK;

    for (enum option_source s = OPTION_DEFAULT; s <= OPTION_FLAG && st == ST_OK; s++) {
        struct option_layer l;

        layer_init(&l, o, s);
        switch (s) {
        case OPTION_DEFAULT: st = option_layer_defaults(&l, err); break;
        case OPTION_FILE:
            if (o->config_path) st = option_layer_file(&l, o->config_path, err);
            if (o->config_path && st == ST_OK) warn_of_secrets(&l, o->config_path);
            break;
        case OPTION_ENV: st = apply_env(&l, err); break;
        case OPTION_FLAG: st = walk(c, &l, err); break;
        case OPTION_RUNTIME: break;
        }
        layer_fini(&l);
    }
    return st;
}

static uint32_t terminal_columns(void) {
    struct winsize size;

    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
    return MAX(MIN((uint32_t)size.ws_col, MAX_COLUMNS), MIN_COLUMNS);
}

static enum status print(const struct command *c, const struct options *o, struct error *err) {
    struct buf out;
    enum status st = ST_OK;

    buf_init(&out, 0);
    if (c->wants_help) {
        if (!options_help(c->program, c->topic, terminal_columns(), &out))
            st = error_set(err, ST_INVALID,
                           "no option and no group is called '%.100s': --help-all lists all",
                           c->topic);
    } else if (c->wants_compat) {
        options_help_compat(c->program, terminal_columns(), &out);
    } else if (c->wants_version) {
        buf_appendf(&out, "%s %s\n", c->program->name, INCIPIT_VERSION);
    } else {
        options_dump(o, &out);
    }
    if (st == ST_OK) fwrite(buf_ptr(&out), 1, buf_len(&out), stdout);
    fflush(stdout);
    buf_fini(&out);
    return st;
}

enum status options_parse(struct options **out, const struct option_program *program, void *target,
                          int argc, char *const *argv, bool *wants_exit, struct error *err) {
    struct command c = {.program = program, .argc = argc, .argv = argv};
    struct options *o = mem_zalloc(sizeof(*o));
    enum status st;

    o->program = program;
    o->target = target;
    o->sources = mem_calloc(program->n_defs, sizeof(*o->sources));
    arena_init(&o->memory, 4096);
    *wants_exit = false;
    st = walk(&c, NULL, err);
    if (st == ST_OK || c.wants_help)
        *wants_exit = c.wants_help || c.wants_compat || c.wants_version;
    if (*wants_exit) {
        st = print(&c, o, err);
        *wants_exit = st == ST_OK;
        if (st != ST_OK) goto fail;
        goto done;
    }
    if (st != ST_OK) goto fail;
    if (!c.config) c.config = getenv("INCIPIT_CONFIG");
    if (c.config && *c.config) o->config_path = mem_strdup(c.config);
    st = apply_layers(o, &c, err);
    if (st != ST_OK) goto fail;
    *wants_exit = c.wants_dump;
    if (c.wants_dump) st = print(&c, o, err);
    if (st != ST_OK) goto fail;
    o->base = memcpy(mem_alloc(program->target_bytes), target, program->target_bytes);
    o->base_sources = mem_calloc(program->n_defs, sizeof(*o->base_sources));
    memcpy(o->base_sources, o->sources, program->n_defs * sizeof(*o->base_sources));
done:
    *out = o;
    return ST_OK;
fail:
    options_destroy(o);
    return st;
}

void options_destroy(struct options *o) {
    if (!o) return;
    arena_fini(&o->memory);
    mem_free(o->sources);
    mem_free(o->base);
    mem_free(o->base_sources);
    mem_free(o->config_path);
    mem_free(o);
}

enum option_source options_source(const struct options *o, const char *name) {
    struct option_found f;

    return option_find(o->program, str_of(name), &f) ? o->sources[f.row] : OPTION_DEFAULT;
}
