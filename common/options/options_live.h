/* common/options/options_live.h - options that change while the program runs: rows with is_live.
 *
 * A change is all or nothing. It is built beside the values in effect, from the --config file read
 * again or from a JSON object, and collects a refusal for each option that is unknown, wrong or not
 * live. The program adds its own refusals: options that do not fit together, a file that cannot be
 * read. Without any the change is committed, and the program hands the new values to its parts.
 *
 *      begin -> file | json -> the program's checks, refuse ... -> commit -> drop
 *                                                              └─ n_refused > 0 ─────▶ drop
 *
 * A value set by options_change_json is of source OPTION_RUNTIME and lies over those of the start:
 *
 *      runtime > flag > environment > file > default
 *
 * It lasts until null is set for the option, until a file that is read again names an option that
 * neither flag nor environment holds, or until the process ends.
 * Thread: the one that owns the program's options. */
#ifndef COMMON_OPTIONS_OPTIONS_LIVE_H
#define COMMON_OPTIONS_OPTIONS_LIVE_H

#include "common/options/options.h"

#define OPTIONS_REFUSALS_MAX 64 /* that are kept; the others are counted */

struct json;
struct json_writer;
struct options_change;

/* Texts that live as long as the change. A secret's value is "set" or "unset". */
struct option_refusal {
    const char *option, *value, *why; /* value "": none is at fault */
};
struct option_changed {
    const char *option, *before, *after;
    enum option_source source; /* of `after` */
};

struct options_change *options_change_begin(struct options *o);
void options_change_drop(struct options_change *c); /* NULL is fine */

/* Reads the --config file again. ST_NOT_FOUND when the program was started without one; else ST_OK,
 * with the reasons among the refusals. */
MUST_USE enum status options_change_file(struct options_change *c, struct error *err);

/* Sets each member of the object, except rows with is_path: name to value, as in the file; null
 * returns to the value that the option has without a change at run time. */
void options_change_json(struct options_change *c, const struct json *object);

/* The values as they would be, in the program's struct; valid until drop. */
const void *options_change_target(const struct options_change *c);

/* `option` NULL: of the change as a whole. */
void options_change_refuse(struct options_change *c, const char *option, const char *why);

uint32_t options_change_n_refused(const struct options_change *c);
uint32_t options_change_n_kept(const struct options_change *c); /* of them, with their reasons */
const struct option_refusal *options_change_refusal(const struct options_change *c, uint32_t i);
uint32_t options_change_n_changed(const struct options_change *c);
const struct option_changed *options_change_at(const struct options_change *c, uint32_t i);

/* Nothing is refused: the program's values become those of options_change_target. Rows that do not
 * change are not written, so that other threads may read what is not live. */
void options_change_commit(struct options_change *c);

const char *option_source_name(enum option_source s); /* "command line" */

/* {"NAME":{"value":...,"source":"default","live":true}, ...} */
void options_put_json(const struct options *o, struct json_writer *w);

#endif
