/* tests/support/registry_fixture.h - adds a worker by its URL; resolves the name and may block. */
#ifndef TESTS_SUPPORT_REGISTRY_FIXTURE_H
#define TESTS_SUPPORT_REGISTRY_FIXTURE_H

#include "common/net/address.h"
#include "router/registry/registry_workers.h"

static inline enum status registry_add(struct registry *r, const char *url, uint32_t *id,
                                       struct error *err) {
    struct address_url parts;
    struct address addr;
    enum status st = address_split(str_of(url), &parts, err);

    if (st == ST_OK) st = address_resolve(&parts, NULL, &addr, err);
    return st == ST_OK ? registry_add_at(r, &parts, &addr, id, err) : st;
}

#endif
