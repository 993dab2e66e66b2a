/* worker/text/template/chat_template.h - messages to the one text a model was trained to continue.
 *
 * Templates are Jinja: a model ships its own, a client may send one. Ours is an interpreter of the
 * part of Jinja that published chat templates use (jinja.h), with limits on steps, output and
 * recursion, so a template can be hostile. Compiled once, rendered per request.
 *
 * A compiled template is constant: any thread may render it, several at a time. */
#ifndef WORKER_TEXT_TEMPLATE_CHAT_TEMPLATE_H
#define WORKER_TEXT_TEMPLATE_CHAT_TEMPLATE_H

#include "common/base/base.h"
#include "common/base/buf.h"
#include "common/base/status.h"

struct json; /* common/text/json.h: one JSON value */

struct chat_template;

#define CHAT_TEMPLATE_MAX_BYTES (128u << 10) /* published ones have at most some 20 KiB */

/* Compiles `source`. ST_INVALID names the line. */
MUST_USE enum status chat_template_compile(struct chat_template **out, struct str source,
                                           struct error *err);

/* The template of a model folder: chat_template.jinja, else `chat_template` of
 * tokenizer_config.json (the one named "default" where there are several); for requests with tools
 * the one named "tool_use", or additional_chat_templates/tool_use.jinja, if there is one. Without
 * any, the built-in one that fits (chat_fallback.h), and *fallback is its name, else NULL.
 * bos_token and eos_token come from tokenizer_config.json. A `given` that is not NULL replaces the
 * folder's template: a file, a template in one line, where \\n is a line end, or a built-in name;
 * else ST_INVALID. */
MUST_USE enum status chat_template_open(struct chat_template **out, const char *folder,
                                        const char *given, const char **fallback,
                                        struct error *err);

/* A built-in one by its name (chat_fallback.h). NULL for any other name. */
struct chat_template *chat_template_builtin(const char *name);
void chat_template_destroy(struct chat_template *t); /* NULL is fine */

/* The text it was compiled from; of two, that of the one for requests with tools. */
struct str chat_template_source(const struct chat_template *t);

/* The variables of a template. */
struct chat_input {
    const struct json *messages;  /* array, required */
    const struct json *tools;     /* array or NULL */
    const struct json *documents; /* array or NULL */
    const struct json *defaults;  /* object: variables that kwargs win over; NULL */
    const struct json *kwargs;    /* object: chat_template_kwargs; NULL */
    struct str effort;            /* reasoning_effort; STR_NULL */
    bool add_generation_prompt;
    int64_t now_s; /* for strftime_now; UTC */
};

/* Appends the text to *out. The template sees messages as chat_messages.h has them. ST_INVALID
 * (param "messages") with the template's own sentence when it calls raise_exception; ST_TOO_LARGE
 * over a limit; ST_INVALID naming the line otherwise. */
MUST_USE enum status chat_template_render(const struct chat_template *t,
                                          const struct chat_input *in, struct buf *out,
                                          struct error *err);

/* Does it print a message of the system that comes after one of the user? It renders one such
 * conversation to see; some templates raise an exception, others print the first message alone. */
bool chat_template_takes_late_system(const struct chat_template *t);

#endif
