/* router/admin/metrics_page.h - what GET /metrics of the admin port answers. */
#ifndef ROUTER_ADMIN_METRICS_PAGE_H
#define ROUTER_ADMIN_METRICS_PAGE_H

struct buf;
struct log;
struct metrics;
struct registry;

/* Appends the page in the text format of Prometheus: what was counted, and what the registry holds now.
 * Any thread. */
void metrics_page_write(struct metrics *m, struct registry *registry, struct log *log,
                        struct buf *out);

#endif
