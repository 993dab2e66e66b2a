/* common/options/options_completion.c - what the shells offer when TAB is pressed.
 *
 * One question is asked of each row, what kind of value it takes, and answered in three languages.
 * Offered are canonical names; behind an alias the values are completed all the same. Secrets are
 * not offered: they are not taken on the command line. */
#include <ctype.h>

#include "common/options/options_internal.h"
#include "common/options/options_manual.h"

enum value_kind {
    VALUE_NONE,  /* a bool */
    VALUE_WORDS, /* one of .names */
    VALUE_FILE,
    VALUE_FOLDER,
    VALUE_OTHER, /* a number, an address: nothing to offer */
};

static enum value_kind kind_of(const struct option_def *d) {
    const char *what = option_metavar(d);

    if (d->type == OPT_BOOL) return VALUE_NONE;
    if (d->type == OPT_ENUM) return VALUE_WORDS;
    if (strcmp(what, "FILE") == 0 || strcmp(what, "PATH") == 0) return VALUE_FILE;
    if (strcmp(what, "DIR") == 0 || strcmp(what, "MODEL") == 0) return VALUE_FOLDER;
    return VALUE_OTHER;
}

static bool is_offered(const struct option_def *d) {
    return !d->is_hidden && (!d->is_secret || d->is_shown);
}

/* "incipit-router" as a function's name: "_incipit_router" */
static void append_function(struct buf *out, const char *program) {
    buf_append_char(out, '_');
    for (; *program; program++)
        buf_append_char(out, *program == '-' ? '_' : *program);
}

static void append_words(struct buf *out, const char *const *names) {
    for (size_t i = 0; names[i]; i++)
        buf_appendf(out, i ? " %s" : "%s", names[i]);
}

static void append_commands(struct buf *out, const struct option_manual *m) {
    for (const struct option_command *c = m->commands; c->word; c++)
        buf_appendf(out, c == m->commands ? "%s" : " %s", c->word);
}

/* Rows of the program and those that every program has, through one door. */
typedef void row_fn(struct buf *out, const struct option_def *d, bool is_builtin);

static void each_row(struct buf *out, const struct option_program *p, row_fn *fn) {
    size_t n;
    const struct option_def *rows = option_builtins(p, &n);

    for (size_t i = 0; i < p->n_defs; i++) {
        if (is_offered(&p->defs[i])) fn(out, &p->defs[i], false);
    }
    for (size_t i = 0; i < n; i++)
        fn(out, &rows[i], true);
}

/* --- bash -------------------------------------------------------------------------------------*/

static void bash_flags(struct buf *out, const struct option_def *d, bool is_builtin) {
    buf_appendf(out, " --%s", d->name);
    if (d->type == OPT_BOOL && !is_builtin) buf_appendf(out, " --no-%s", d->name);
}

/* "--model|--model-path) ... ;;" */
static void bash_values(struct buf *out, const struct option_def *d, bool is_builtin) {
    static const char *const how[] = {[VALUE_FILE] = "-f", [VALUE_FOLDER] = "-d"};
    enum value_kind kind = kind_of(d);
    const char *cursor = d->aliases;
    struct str alias;

    (void)is_builtin;
    if (kind == VALUE_NONE) return;
    buf_appendf(out, "    --%s", d->name);
    while ((alias = option_next_name(&cursor)).len)
        buf_appendf(out, "|--" STR_FMT, STR_ARG(alias));
    buf_append_str(out, STR(") "));
    if (kind == VALUE_WORDS) {
        buf_append_str(out, STR("mapfile -t COMPREPLY < <(compgen -W '"));
        append_words(out, d->names);
        buf_append_str(out, STR("' -- \"$cur\"); "));
    } else if (kind != VALUE_OTHER) {
        buf_appendf(out,
                    "compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen %s -- "
                    "\"$cur\"); ",
                    how[kind]);
    }
    buf_append_str(out, STR("return ;;\n"));
}

/* Of a command, what is not the program's. */
static void bash_own_values(struct buf *out, const struct option_program *of,
                            const struct option_program *p) {
    for (size_t i = 0; p && i < p->n_defs; i++) {
        if (is_offered(&p->defs[i]) && !option_has_row(of, p->defs[i].name)) {
            bash_values(out, &p->defs[i], false);
        }
    }
}

static void bash(struct buf *out, const struct option_manual *m) {
    const struct option_program *p = m->program;

    buf_appendf(out, "# bash completion of %s %s, as it prints it.\n", p->name, INCIPIT_VERSION);
    append_function(out, p->name);
    buf_append_str(out,
                   STR("() {\n"
                       "    local cur=${COMP_WORDS[COMP_CWORD]} prev= flags=\n"
                       "    COMPREPLY=()\n"
                       "    [ \"$COMP_CWORD\" -gt 0 ] && prev=${COMP_WORDS[COMP_CWORD-1]}\n"
                       "    # --name=value comes as three words\n"
                       "    if [ \"$cur\" = = ]; then cur=\n"
                       "    elif [ \"$prev\" = = ]; then prev=${COMP_WORDS[COMP_CWORD-2]}; fi\n"
                       "    case $prev in\n"
                       "    completion) mapfile -t COMPREPLY < <(compgen -W 'bash zsh fish' -- "
                       "\"$cur\"); return ;;\n"));
    each_row(out, p, bash_values);
    for (const struct option_command *c = m->commands; c->word; c++)
        bash_own_values(out, p, c->program);
    buf_append_str(out, STR("    esac\n    case ${COMP_WORDS[1]} in\n"));
    for (const struct option_command *c = m->commands; c->word; c++) {
        buf_appendf(out, "    %s) flags='", c->word);
        if (c->program) each_row(out, c->program, bash_flags);
        buf_append_str(out, STR("' ;;\n"));
    }
    buf_append_str(out, STR("    *) flags='"));
    each_row(out, p, bash_flags);
    buf_append_str(out, STR("' ;;\n    esac\n"
                            "    if [ \"$COMP_CWORD\" = 1 ] && [[ $cur != -* ]]; then flags='"));
    append_commands(out, m);
    buf_append_str(out, STR("'; fi\n"
                            "    mapfile -t COMPREPLY < <(compgen -W \"$flags\" -- \"$cur\")\n"
                            "}\ncomplete -o default -F "));
    append_function(out, p->name);
    buf_appendf(out, " %s\n", p->name);
}

/* --- zsh --------------------------------------------------------------------------------------*/

static void zsh_text(struct buf *out, struct str text) {
    for (size_t i = 0; i < text.len; i++) {
        if (text.ptr[i] == '\'') {
            buf_append_str(out, STR("'\\''"));
            continue;
        }
        if (strchr("[]:\\", text.ptr[i])) buf_append_char(out, '\\');
        buf_append_char(out, text.ptr[i]);
    }
}

static void zsh_row(struct buf *out, const struct option_def *d, bool is_builtin) {
    enum value_kind kind = kind_of(d);

    buf_appendf(out, " \\\n        '%s--%s%s[", d->type == OPT_LIST ? "*" : "", d->name,
                kind == VALUE_NONE ? "" : "=");
    zsh_text(out, option_brief(d->help));
    buf_append_char(out, ']');
    if (kind != VALUE_NONE) {
        buf_append_char(out, ':');
        zsh_text(out, str_of(option_metavar(d)));
        buf_append_char(out, ':');
    }
    if (kind == VALUE_WORDS) {
        buf_append_char(out, '(');
        append_words(out, d->names);
        buf_append_char(out, ')');
    }
    if (kind == VALUE_FILE) buf_append_str(out, STR("_files"));
    if (kind == VALUE_FOLDER) buf_append_str(out, STR("_files -/"));
    buf_append_char(out, '\'');
    if (kind == VALUE_NONE && !is_builtin) {
        buf_appendf(out, " \\\n        '--no-%s[Not: ", d->name);
        zsh_text(out, option_brief(d->help));
        buf_append_str(out, STR("]'"));
    }
}

static void zsh_arguments(struct buf *out, const struct option_program *p) {
    buf_append_str(out, STR("        _arguments"));
    each_row(out, p, zsh_row);
    buf_append_str(out, STR(" \\\n        '*:MODEL:_files -/'\n"));
}

static void zsh(struct buf *out, const struct option_manual *m) {
    const char *name = m->program->name;

    buf_appendf(out, "#compdef %s\n# zsh completion of %s %s, as it prints it.\n", name, name,
                INCIPIT_VERSION);
    append_function(out, name);
    buf_append_str(out, STR("() {\n    if (( CURRENT == 2 )) && [[ $words[2] != -* ]]; then\n"
                            "        local -a commands\n        commands=(\n"));
    for (const struct option_command *c = m->commands; c->word; c++) {
        buf_appendf(out, "            '%s:", c->word);
        zsh_text(out, option_brief(c->help));
        buf_append_str(out, STR("'\n"));
    }
    buf_append_str(out, STR("        )\n        _describe command commands\n        _files -/\n"
                            "        return\n    fi\n    case $words[2] in\n"));
    for (const struct option_command *c = m->commands; c->word; c++) {
        buf_appendf(out, "    %s)\n        shift words; (( CURRENT-- ))\n", c->word);
        if (c->program) {
            zsh_arguments(out, c->program);
        } else {
            buf_appendf(out, "        _arguments '1:word:(%s)'\n",
                        strcmp(c->word, "completion") == 0 ? "bash zsh fish" : "");
        }
        buf_append_str(out, STR("        ;;\n"));
    }
    buf_append_str(out, STR("    *)\n"));
    zsh_arguments(out, m->program);
    buf_append_str(out, STR("        ;;\n    esac\n}\n"));
    /* As a file of $fpath it is called; sourced it is registered. */
    buf_append_str(out, STR("if [ \"${funcstack[1]}\" = "));
    append_function(out, name);
    buf_append_str(out, STR(" ]; then "));
    append_function(out, name);
    buf_append_str(out, STR(" \"$@\"; elif (( $+functions[compdef] )); then compdef "));
    append_function(out, name);
    buf_appendf(out, " %s; fi\n", name);
}

/* --- fish -------------------------------------------------------------------------------------*/

static void fish_text(struct buf *out, struct str text) {
    buf_append_char(out, '\'');
    for (size_t i = 0; i < text.len; i++) {
        if (strchr("'\\", text.ptr[i])) buf_append_char(out, '\\');
        buf_append_char(out, text.ptr[i]);
    }
    buf_append_char(out, '\'');
}

/* `when`: a condition, or "". */
static void fish_row(struct buf *out, const char *program, const char *when,
                     const struct option_def *d, bool is_builtin) {
    enum value_kind kind = kind_of(d);

    buf_appendf(out, "complete -c %s%s -l %s", program, when, d->name);
    if (kind == VALUE_FILE) buf_append_str(out, STR(" -r -F"));
    if (kind == VALUE_FOLDER) buf_append_str(out, STR(" -x -a '(__fish_complete_directories)'"));
    if (kind == VALUE_OTHER) buf_append_str(out, STR(" -x"));
    if (kind == VALUE_WORDS) {
        buf_append_str(out, STR(" -x -a '"));
        append_words(out, d->names);
        buf_append_char(out, '\'');
    }
    buf_append_str(out, STR(" -d "));
    fish_text(out, option_brief(d->help));
    buf_append_char(out, '\n');
    if (kind == VALUE_NONE && !is_builtin) {
        buf_appendf(out, "complete -c %s%s -l no-%s\n", program, when, d->name);
    }
}

static void fish_rows(struct buf *out, const struct option_manual *m, const char *when,
                      const struct option_program *p) {
    size_t n;
    const struct option_def *rows = option_builtins(p, &n);

    for (size_t i = 0; i < p->n_defs; i++) {
        if (is_offered(&p->defs[i])) fish_row(out, m->program->name, when, &p->defs[i], false);
    }
    for (size_t i = 0; i < n; i++)
        fish_row(out, m->program->name, when, &rows[i], true);
}

static void fish(struct buf *out, const struct option_manual *m) {
    const char *name = m->program->name;
    struct buf when;

    buf_appendf(out, "# fish completion of %s %s, as it prints it.\n", name, INCIPIT_VERSION);
    for (const struct option_command *c = m->commands; c->word; c++) {
        buf_appendf(out, "complete -c %s -n __fish_use_subcommand -a %s -d ", name, c->word);
        fish_text(out, option_brief(c->help));
        buf_append_char(out, '\n');
    }
    buf_appendf(out,
                "complete -c %s -n '__fish_seen_subcommand_from completion' -x -a 'bash zsh "
                "fish'\n",
                name);
    buf_init(&when, 0);
    buf_append_str(&when, STR(" -n 'not __fish_seen_subcommand_from "));
    append_commands(&when, m);
    buf_append(&when, "'", 2);
    fish_rows(out, m, buf_ptr(&when), m->program);
    for (const struct option_command *c = m->commands; c->word; c++) {
        if (!c->program) continue;
        buf_clear(&when);
        buf_appendf(&when, " -n '__fish_seen_subcommand_from %s'", c->word);
        buf_append_char(&when, '\0');
        fish_rows(out, m, buf_ptr(&when), c->program);
    }
    buf_fini(&when);
}

/* --- which ------------------------------------------------------------------------------------*/

enum status options_completion(const struct option_manual *m, const char *shell, struct buf *out,
                               struct error *err) {
    if (strcmp(shell, "bash") == 0) {
        bash(out, m);
    } else if (strcmp(shell, "zsh") == 0) {
        zsh(out, m);
    } else if (strcmp(shell, "fish") == 0) {
        fish(out, m);
    } else {
        return error_set(
            err, ST_INVALID,
            "there is no completion for the shell '%.40s': use %s completion bash, zsh or fish",
            shell, m->program->name);
    }
    return ST_OK;
}
