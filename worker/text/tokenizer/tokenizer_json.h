/* worker/text/tokenizer/tokenizer_json.h - how the parts of tokenizer.json are read: by their
 * "type". */
#ifndef WORKER_TEXT_TOKENIZER_TOKENIZER_JSON_H
#define WORKER_TEXT_TOKENIZER_TOKENIZER_JSON_H

#include "common/base/base.h"
#include "common/base/buf.h"
#include "common/base/status.h"

struct json;
struct pattern;

bool tokenizer_json_is(const struct json *object, const char *type);
const char *tokenizer_json_type(const struct json *object); /* for messages; "(none)" */
bool tokenizer_json_true(const struct json *object, const char *name, bool when_absent);

/* The "pattern" of a Split or a Replace: {"String": s} or {"Regex": r}. */
MUST_USE enum status tokenizer_json_pattern(const struct json *object, struct pattern *out,
                                            struct error *err);

#endif
