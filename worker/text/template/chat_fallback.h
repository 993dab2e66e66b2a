/* worker/text/template/chat_fallback.h - chat templates for folders that have none.
 *
 * A model without a template is one that was never trained to chat, or whose template got lost. The
 * built-in ones are the plain forms of the common families, without tools; the special tokens of
 * the tokenizer, then the architecture, select one. The choice is a guess, and is logged. */
#ifndef WORKER_TEXT_TEMPLATE_CHAT_FALLBACK_H
#define WORKER_TEXT_TEMPLATE_CHAT_FALLBACK_H

#include "common/base/base.h"
#include "common/base/buf.h"

#define CHAT_FALLBACK_NAMES "chatml, llama2, llama3, mistral, deepseek, deepseek-llm, zephyr"

/* The template of one of those names. STR_NULL for none. */
struct str chat_fallback_source(const char *name);

/* The name of the one that fits a folder best; never NULL. Reads its tokenizer.json and
 * config.json. */
const char *chat_fallback_choose(const char *folder);

#endif
