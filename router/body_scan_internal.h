/* router/body_scan_internal.h - the scan with a given classifier, so that tests can compare them. */
#ifndef ROUTER_BODY_SCAN_INTERNAL_H
#define ROUTER_BODY_SCAN_INTERNAL_H

#include "router/body_classify.h"
#include "router/body_scan.h"

MUST_USE enum status body_scan_with(struct str body, struct body_scan *out,
                                    body_classify_fn *classify, struct error *err);

#endif
