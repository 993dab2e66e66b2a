/* common/options/options.h - the option table: one row drives everything.
 *
 * A program describes its options in a constant table of rows and its values in a plain struct; the
 * row names the field it fills. From the rows come the command line, the environment, the YAML
 * file, changes at run time, --help, --version, --dump-config. A value is taken from the first of
 *
 *      flag --block-size 32  >  INCIPIT_BLOCK_SIZE=32  >  block-size: 32 in --config  >  default
 *
 * Spelling: '_' equals '-'; --name value and --name=value; a bool is --name, --no-name or
 * --name=false. An environment variable that is empty counts as not set. Every row, its default
 * included, is checked when the program starts.
 *
 *      #define FIELD(member) OPTION_FIELD(struct worker_options, member)
 *      static const struct option_def rows[] = {
 *          {"block-size", OPT_U32, FIELD(block_size), .def = "16", .min = "1", .max = "128",
 *           .aliases = "page-size", .group = "Cache", .help = "Tokens per KV block. ..."},
 *      };
 *
 * Every program also gets --config, --help, --help-all, --version and --dump-config; one that takes
 * flags of other programs gets --help-compat, which lists those flags. What may change while the
 * program runs is in options_live.h. Thread: the one that owns the program's options; readers of
 * live fields live on it too. */
#ifndef COMMON_OPTIONS_OPTIONS_H
#define COMMON_OPTIONS_OPTIONS_H

#include "common/base/base.h"
#include "common/base/buf.h"
#include "common/base/status.h"

enum option_type {            /* the field's type */
                   OPT_BOOL,  /* bool */
                   OPT_U32,   /* uint32_t */
                   OPT_U64,   /* uint64_t */
                   OPT_BYTES, /* uint64_t; 64M, 64MiB (1024-based), 64MB (1000-based) */
                   OPT_MS,    /* uint32_t; 250ms, 5s, 2m, 1h; a bare number is milliseconds */
                   OPT_F64,   /* double */
                   OPT_STR,   /* const char *; NULL without a default */
                   OPT_ENUM,  /* an enum (or int): the index in .names */
                   OPT_LIST,  /* struct option_list; repeated, or separated by commas */
};

struct option_list {
    const char *const *items;
    uint32_t n;
};

struct option_def {
    const char *name; /* canonical: lower case, hyphens */
    enum option_type type;
    size_t offset, size;             /* OPTION_FIELD(struct, member) */
    const char *def;                 /* as a user would write it; NULL: zero, or unset */
    const char *min, *max;           /* inclusive, same notation; for OPT_LIST the count of items */
    const char *const *names;        /* OPT_ENUM: the choices, NULL-terminated */
    const char *const *name_aliases; /* other words for them, or for numbers (-1 for 0: no limit),
                                      * which may be out of range: alias, name, alias, name, NULL */
    const char *aliases; /* other names, "dp-size,tp-size". An OPT_MS alias that ends in -secs
                               * takes a bare number as seconds; an OPT_BOOL alias that begins with
                               * '!' means the opposite: "!disable-radix-cache" */
    bool is_live;        /* may change while the program runs (options_live.h) */
    bool is_path; /* names a file of this machine: what may change it is the --config file alone */
    bool is_clamped;     /* a number out of range is brought into it, with a line on stderr */
    bool is_gib;         /* OPT_BYTES: a number without a unit, up to 1024, is in GiB */
    bool is_human;       /* OPT_U32: also 32k (32000), 1.5k and 32K (32768) */
    bool is_secret;      /* shown as ***; refused on the command line, where `ps` shows it ... */
    bool is_shown;       /* ... or accepted there, with a line on stderr that warns of it */
    bool is_verbatim;    /* OPT_LIST: commas belong to the items */
    const char *env;     /* a variable of another program, used when ours is not set */
    bool is_positional;  /* also taken from the bare argument (one row at most) */
    bool takes_many;     /* OPT_LIST: --name a b c, up to the next flag */
    const char *alone;   /* OPT_ENUM: its value when the flag stands alone, last or before a flag */
    bool is_hidden;      /* rarely needed: not in --help, but in --help-all */
    const char *metavar; /* NULL: from the type */
    const char *group;   /* heading in --help; NULL: "General" */
    const char *help;    /* what it is, and what happens when it is raised or lowered */
};

/* Compat flags: flags of other programs, in rows that share one reason. A flag is refused; or
 * stands for an option of ours; or is accepted without effect, with a line on stderr that gives the
 * reason. A bool that is switched off (--no-NAME, =false) is accepted in silence.
 *
 * `flags` are names with commas between them. A name by itself takes no value; NAME= takes one,
 * NAME=? takes one unless the next word is a flag, NAME=* takes all words up to the next flag.
 * FAMILY-*= is every flag that begins so and is named nowhere in the table. A name that begins with
 * a hyphen is a short flag: "-tp=" for -tp 4, "-O=" also for -O3. */
struct option_compat {
    const char *flags;
    const char *as;      /* the option of ours that they stand for, or NULL */
    const char *value;   /* what that is set to; NULL: the value given, and not a word on stderr */
    const char *fine;    /* "auto,none": values that change nothing, accepted in silence */
    const char *refuses; /* "fp8,int8": values that are refused; a last '*' stands for any ending */
    bool is_refused;     /* every value but the fine ones is refused */
    const char *remark;  /* what to do instead; "stands for" needs none */
};

#define COMPAT_IGNORED(names, why)                                                                 \
    { .flags = names, .remark = why }
#define COMPAT_PASSED_ON(names, ours)                                                              \
    { .flags = names, .as = ours }
#define COMPAT_STANDS_FOR(names, ours, with)                                                       \
    { .flags = names, .as = ours, .value = with }
#define COMPAT_REFUSED(names, why)                                                                 \
    { .flags = names, .is_refused = true, .remark = why }
#define COMPAT_REFUSED_BUT(names, harmless, why)                                                   \
    { .flags = names, .fine = harmless, .is_refused = true, .remark = why }
#define COMPAT_FINE(names, harmless, why)                                                          \
    { .flags = names, .fine = harmless, .remark = why }

#define OPTION_FIELD(type, member) offsetof(type, member), sizeof(((type *)0)->member)

/* FILES, SIGNALS ... of the manual; of EXAMPLES: what it does, the command line. */
struct option_entry_of_manual {
    const char *term, *text;
};

struct option_program {
    const char *name;      /* "incipit-worker" */
    const char *summary;   /* one or two sentences for --help */
    const char *usage;     /* "[MODEL] [options]" */
    const char *most_used; /* names with commas, what --help explains; NULL: --help explains all */
    const struct option_entry_of_manual *examples; /* the first three are in --help; or NULL */
    const struct option_def *defs;
    size_t n_defs;
    size_t target_bytes;                /* sizeof the struct that the rows fill */
    const struct option_compat *compat; /* after defs, which win; ends with NULL flags, or NULL */
    const char *others;    /* whose flags those are: "vllm serve and sglang.launch_server" */
    bool takes_beginnings; /* a flag may be cut short where only one row has such a name */
};

/* In ascending order of precedence. */
enum option_source { OPTION_DEFAULT, OPTION_FILE, OPTION_ENV, OPTION_FLAG, OPTION_RUNTIME };

struct options; /* where each value came from, and the memory behind strings and lists */

/* Fills *target. With --help, --version or --dump-config it prints to stdout, sets *wants_exit and
 * returns ST_OK. On failure the message names the option, the value and what is permitted. `argv`
 * and the file are not referred to afterwards; *target is valid until options_destroy. */
MUST_USE enum status options_parse(struct options **out, const struct option_program *program,
                                   void *target, int argc, char *const *argv, bool *wants_exit,
                                   struct error *err);
void options_destroy(struct options *o); /* NULL is fine */

/* Where the value of `name` came from; OPTION_DEFAULT for an unknown name. */
enum option_source options_source(const struct options *o, const char *name);

void options_dump(const struct options *o, struct buf *out); /* as YAML; secrets masked */

/* The most used options (topic NULL), "all", the options of a group, or one option. False when
 * there is no such topic. */
bool options_help(const struct option_program *program, const char *topic, uint32_t columns,
                  struct buf *out);

/* The compat flags and what becomes of each, for a terminal. */
void options_help_compat(const struct option_program *program, uint32_t columns, struct buf *out);

#endif
