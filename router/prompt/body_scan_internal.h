/* router/prompt/body_scan_internal.h - the scan with a given version of string_scan.h, so that
 * tests can compare them. */
#ifndef ROUTER_PROMPT_BODY_SCAN_INTERNAL_H
#define ROUTER_PROMPT_BODY_SCAN_INTERNAL_H

#include "router/prompt/body_scan.h"
#include "router/prompt/string_scan.h"

MUST_USE enum status body_scan_with(struct str body, struct body_scan *out,
                                    const struct string_scan *text, struct error *err);

#endif
