/* router/prompt/body_scan_internal.h - the scan with a given version of body_text.h, so that tests can
 * compare them. */
#ifndef ROUTER_PROMPT_BODY_SCAN_INTERNAL_H
#define ROUTER_PROMPT_BODY_SCAN_INTERNAL_H

#include "router/prompt/body_scan.h"
#include "router/prompt/body_text.h"

MUST_USE enum status body_scan_with(struct str body, struct body_scan *out,
                                    const struct body_text *text, struct error *err);

#endif
