/* router/body_scan_internal.h - the scan with a given version of body_text.h, so that tests can
 * compare them. */
#ifndef ROUTER_BODY_SCAN_INTERNAL_H
#define ROUTER_BODY_SCAN_INTERNAL_H

#include "router/body_text.h"
#include "router/body_scan.h"

MUST_USE enum status body_scan_with(struct str body, struct body_scan *out,
                                    const struct body_text *text, struct error *err);

#endif
