/* worker/model/quant/pattern.h - the names of modules in lists of a quantization_config.
 *
 * Each writer has its own rules: an expression of Python's re.match, which is anchored at the start
 * alone; a shell wildcard; a name, or a part of one. Expressions run on PCRE2 with a limit on their
 * work: config.json is a stranger's. */
#ifndef WORKER_MODEL_QUANT_PATTERN_H
#define WORKER_MODEL_QUANT_PATTERN_H

#include "common/base/base.h"
#include "common/base/buf.h"
#include "common/base/status.h"

struct pattern;

/* ST_INVALID with PCRE2's words when it is no expression, ST_NOMEM when memory runs out. */
MUST_USE enum status pattern_compile(struct pattern **out, struct str source, struct error *err);
void pattern_free(struct pattern *p);          /* NULL is fine */
size_t pattern_bytes(const struct pattern *p); /* compiled */

/* re.match(source, name) is not None. ST_INVALID: it exceeds its limit on this name; ST_NOMEM. */
MUST_USE enum status pattern_match(const struct pattern *p, struct str name, bool *is_match,
                                   struct error *err);

/* `part` is in `name`, its ends at dots or at the ends of the name. */
bool name_has_part(struct str name, struct str part);

#endif
