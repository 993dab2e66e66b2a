/* common/options/options_manual.h - the option table as a manual page and as completions of three
 * shells.
 *
 * What is not in --help (signals, exit codes, files) stands in a constant `struct option_manual`
 * beside the table; the rest is the table. So `PROGRAM man`, `PROGRAM completion bash` are as true
 * as `PROGRAM --help`, and packages install what the program prints of itself.
 *
 *      incipit-router man | man -l -
 *      source <(incipit-router completion bash)
 *
 * Thread: any; nothing is kept. */
#ifndef COMMON_OPTIONS_OPTIONS_MANUAL_H
#define COMMON_OPTIONS_OPTIONS_MANUAL_H

#include "common/options/options.h"

/* What the first word of the command line asks for. */
struct option_command {
    const char *word;
    const char *operands;                 /* "MODEL --input-file FILE", or "" */
    const char *help;                     /* one or two sentences */
    const struct option_program *program; /* its options; NULL: it has none */
};

struct option_manual {
    const struct option_program *program;  /* without a first word */
    const char *name;                      /* what it is, in a few words: "router for ..." */
    const char *description;               /* paragraphs, an empty line between them */
    const struct option_command *commands; /* ends with a NULL word, as the others with NULL */
    const struct option_entry_of_manual *environment, *files, *signals, *exits;
    const char *see_also; /* "incipit-worker(1), curl(1)" */
};

void options_man(const struct option_manual *m, struct buf *out); /* roff, man(7) */

/* `shell`: bash, zsh or fish. ST_INVALID names those. */
MUST_USE enum status options_completion(const struct option_manual *m, const char *shell,
                                        struct buf *out, struct error *err);

/* Answers `PROGRAM man` and `PROGRAM completion SHELL` on stdout; *is_answered: the first word was
 * one of these. */
MUST_USE enum status options_answer(const struct option_manual *m, int argc, char *const *argv,
                                    bool *is_answered, struct error *err);

#endif
