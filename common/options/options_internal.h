/* common/options/options_internal.h - what the files of the option table share.
 *
 *      options.c         layers: defaults, file, environment, flags
 *      options_live.c    values that change while the program runs
 *      options_value.c   one value: text to field, field to text, what would have been right
 *      options_yaml.c    the file; the only place that sees libyaml
 *      options_compat.c  compat flags: flags of other programs
 *      options_help.c    --help and --dump-config
 *      options_man.c, options_completion.c   the same for man(1) and for shells */
#ifndef COMMON_OPTIONS_OPTIONS_INTERNAL_H
#define COMMON_OPTIONS_OPTIONS_INTERNAL_H

#include "common/base/mem.h"
#include "common/options/options.h"

struct options {
    const struct option_program *program;
    void *target;
    enum option_source *sources; /* per row */
    void *base;                  /* the values without those set at run time */
    enum option_source *base_sources;
    char *config_path;   /* NULL: none */
    struct arena memory; /* strings and lists; what a change replaces stays until the end */
};

/* --- options.c --------------------------------------------------------------------------------*/
struct option_text;
struct options_change;

/* One layer on its way into a target. */
struct option_layer {
    struct options *o;
    void *target;
    enum option_source *sources;
    bool *seen; /* rows that this layer has set */
    enum option_source source;
    struct arena *memory;          /* of the target's strings and lists */
    struct options_change *change; /* NULL: at the start. Else wrong entries of a file are collected
                                    * there, and nothing is written to stderr */
};

struct option_found {
    size_t row;
    bool in_seconds, is_inverted;
};

/* A row by its name or an alias. */
bool option_find(const struct option_program *p, struct str name, struct option_found *out);

/* ST_INVALID with the name that is nearest. */
enum status option_unknown(const struct option_program *p, struct str name, const char *dashes,
                           struct error *err);

MUST_USE enum status option_layer_set(struct option_layer *l, size_t row, struct option_text *t,
                                      struct error *err);
MUST_USE enum status option_layer_defaults(struct option_layer *l, struct error *err);
MUST_USE enum status option_layer_file(struct option_layer *l, const char *path, struct error *err);

/* --- options_live.c ---------------------------------------------------------------------------*/
void option_change_refuse(struct options_change *c, struct str option, struct str value,
                          const char *why);

/* --- options_value.c --------------------------------------------------------------------------*/
/* How a text is to be taken. */
struct option_text {
    struct str value;
    const char *label; /* how the user called it, for messages: "--port", "INCIPIT_PORT" */
    bool is_item;      /* one item of a list, commas and all */
    bool is_more;      /* to be added to the list that is there */
    bool is_empty;     /* an empty list */
    bool in_seconds;   /* OPT_MS: a bare number is seconds */
    bool is_inverted;  /* OPT_BOOL: the opposite */
    bool *was_clamped; /* set when the number was brought into its range; or NULL */
};

/* Checks the text against the row and stores it in the row's field of `target`. */
MUST_USE enum status option_set(const struct option_def *d, const struct option_text *text,
                                void *target, struct arena *memory, struct error *err);

/* The field as a user would write it; "" for an unset string. */
void option_format(const struct option_def *d, const void *target, struct buf *out);

/* "a whole number from 1 to 128" */
void option_expected(const struct option_def *d, struct buf *out);

/* "INCIPIT_BLOCK_SIZE" */
#define OPTION_ENV_NAME_MAX 96
void option_env_name(const struct option_def *d, char out[OPTION_ENV_NAME_MAX]);

/* Zeroes the field: an unset number, string or list. */
void option_unset(const struct option_def *d, void *target);

/* True when two spellings name the same thing: '_' equals '-'. */
bool option_name_eq(struct str a, struct str b);

/* Number of single-character edits from a to b; names longer than 63 are far from everything. */
size_t option_distance(struct str a, struct str b);

/* The next name of "a,b,c" at *cursor, STR_NULL at the end. */
struct str option_next_name(const char **cursor);

/* --- options_help.c ---------------------------------------------------------------------------*/
/* --config, --help ...: rows without a field. */
const struct option_def *option_builtins(const struct option_program *p, size_t *n);

const char *option_metavar(const struct option_def *d); /* "N", "FILE" */
const char *option_group(const struct option_def *d);   /* its heading */
bool option_is_first_of_group(const struct option_program *p, size_t row);
bool option_is_of_group(const struct option_def *d, const char *group);
struct str option_brief(const char *help); /* the first sentence */

/* "[default 16; from 1 to 128; also --page-size; INCIPIT_BLOCK_SIZE]" */
void option_facts(const struct option_def *d, struct buf *out);

/* What becomes of a row's flags, in a few words: "refused, except none and auto". */
void option_compat_fate(const struct option_compat *row, struct buf *out);

bool option_has_row(const struct option_program *p, const char *name);

/* --- options_compat.c ------------------------------------------------------------------------*/
enum compat_takes { COMPAT_NOTHING, COMPAT_ONE, COMPAT_PERHAPS, COMPAT_ALL };

/* One flag of a row. */
struct compat_flag {
    const struct option_compat *row;
    struct str name; /* as the row has it, without the first hyphen of a short one */
    enum compat_takes takes;
    bool is_short;
};

/* The program's entry for a name that is none of its own. False when there is none. */
bool option_compat_find(const struct option_program *p, struct str name, bool is_short,
                        struct compat_flag *out);

/* One "family-*=" for all flags that begin so. */
bool option_compat_is_family(const struct compat_flag *f);

/* The next flag of a row's list at *cursor; false at its end. */
bool option_compat_next(const struct option_compat *row, const char **cursor,
                        struct compat_flag *out);

/* ST_UNSUPPORTED with the remark when the flag is refused with that value (STR_NULL: none).
 * *is_fine: the value changes nothing, and no warning is due. */
MUST_USE enum status option_compat_check(const struct compat_flag *f, struct str value,
                                         bool *is_fine, struct error *err);

/* One line on stderr: no effect, and why; or the option that the flag stands for. */
void option_compat_warn(const struct option_program *p, const struct compat_flag *f);

/* --- options_yaml.c ---------------------------------------------------------------------------*/
#define OPTIONS_FILE_MAX_BYTES (1 << 20)

struct option_entry {
    struct str key, value;
    uint32_t line;  /* of the value, from 1 */
    uint32_t index; /* of the item in a sequence */
    bool is_item;   /* the value is an item of a sequence */
    bool is_empty;  /* an empty sequence */
    bool is_json;   /* the value is a mapping, or a sequence of such, written as JSON */
};

typedef enum status option_entry_fn(void *ctx, const struct option_entry *e, struct error *err);

/* Calls `fn` for each `key: scalar` and each item of `key: [a, b]`, in order; for a mapping with
 * its text as JSON. Anything else in the document is refused. */
MUST_USE enum status options_yaml_read(struct str text, option_entry_fn *fn, void *ctx,
                                       struct error *err);

#endif
