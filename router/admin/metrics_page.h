/* router/admin/metrics_page.h - the response of GET /metrics on the admin port. */
#ifndef ROUTER_ADMIN_METRICS_PAGE_H
#define ROUTER_ADMIN_METRICS_PAGE_H

struct buf;
struct log;
struct metrics;
struct registry;

/* Appends the page in the text format of Prometheus: counters, and the current state of the
 * registry. Any thread. */
void metrics_page_write(struct metrics *m, struct registry *registry, struct log *log,
                        struct buf *out);

#endif
