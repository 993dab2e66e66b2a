/* common/net/resolver.c - a thread per lookup, and a shared return path that either side may
 * drop first. */
#include "common/net/resolver.h"

#include <pthread.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/thread.h"
#include "common/net/loop.h"
#include "common/net/mailbox.h"

/* Shared by threads and resolver; the last to leave frees it. */
struct line {
    pthread_mutex_t lock;
    struct mailbox *box; /* NULL once the resolver is gone */
    uint32_t n_users;
};

struct resolver {
    struct line *line;
    struct mailbox *box;
    uint32_t n_open;
};

struct lookup {
    struct mail mail;
    struct line *line;
    struct address_url url;
    struct address_guard guard; /* a copy: the thread may outlive the resolver */
    bool is_guarded;
    resolver_fn *fn; /* one of the two */
    resolver_all_fn *all_fn;
    void *arg;
    enum status st;
    struct address *found; /* room for `max` */
    uint32_t max, n;
    struct error err;
};

static void lookup_destroy(struct lookup *l) {
    mem_free(l->found);
    mem_free(l);
}

static void line_leave(struct line *line) {
    bool is_last;

    pthread_mutex_lock(&line->lock);
    is_last = --line->n_users == 0;
    pthread_mutex_unlock(&line->lock);
    if (!is_last) return;
    pthread_mutex_destroy(&line->lock);
    mem_free(line);
}

static void *run(void *arg) {
    struct lookup *l = arg;
    struct line *line = l->line;
    bool is_wanted;

    if (l->all_fn) {
        l->st = address_resolve_all(&l->url, l->found, l->max, &l->n, &l->err);
    } else {
        l->st = address_resolve(&l->url, l->is_guarded ? &l->guard : NULL, l->found, &l->err);
    }
    pthread_mutex_lock(&line->lock);
    is_wanted = line->box != NULL;
    if (is_wanted) mailbox_push(line->box, &l->mail);
    pthread_mutex_unlock(&line->lock);
    if (!is_wanted) lookup_destroy(l);
    line_leave(line);
    return NULL;
}

static void on_mail(struct mail *mail, void *arg) {
    struct lookup *l = CONTAINER_OF(mail, struct lookup, mail);
    struct resolver *r = arg;

    r->n_open--;
    if (l->all_fn) {
        l->all_fn(l->st, l->found, l->n, &l->err, l->arg);
    } else {
        l->fn(l->st, l->found, &l->err, l->arg);
    }
    lookup_destroy(l);
}

enum status resolver_create(struct resolver **out, struct loop *loop, struct error *err) {
    struct resolver *r = mem_zalloc(sizeof(*r));
    enum status st = mailbox_open(&r->box, loop, on_mail, r, err);

    if (st != ST_OK) {
        mem_free(r);
        return st;
    }
    r->line = mem_zalloc(sizeof(*r->line));
    pthread_mutex_init(&r->line->lock, NULL);
    r->line->box = r->box;
    r->line->n_users = 1;
    *out = r;
    return ST_OK;
}

void resolver_destroy(struct resolver *r) {
    struct list unread, *link;

    if (!r) return;
    pthread_mutex_lock(&r->line->lock);
    r->line->box = NULL;
    pthread_mutex_unlock(&r->line->lock);
    list_init(&unread);
    mailbox_take(r->box, &unread);
    while ((link = list_pop_front(&unread)) != NULL) {
        lookup_destroy(CONTAINER_OF(mail_of(link), struct lookup, mail));
    }
    mailbox_close(r->box);
    line_leave(r->line);
    mem_free(r);
}

static struct lookup *lookup_create(struct resolver *r, const struct address_url *url, uint32_t max,
                                    void *arg) {
    struct lookup *l = mem_zalloc(sizeof(*l));

    l->line = r->line;
    l->url = *url;
    l->max = max;
    l->found = mem_calloc(max, sizeof(*l->found));
    l->arg = arg;
    return l;
}

static enum status begin(struct resolver *r, struct lookup *l, struct error *err) {
    pthread_t thread;
    enum status st;
    int code;

    if (r->n_open >= RESOLVER_MAX_LOOKUPS) {
        lookup_destroy(l);
        return error_set(err, ST_BUSY, "%u names are being looked up, the limit: retry later",
                         r->n_open);
    }
    pthread_mutex_lock(&r->line->lock);
    r->line->n_users++;
    pthread_mutex_unlock(&r->line->lock);
    code = thread_start(&thread, run, l);
    if (code != 0) {
        st = error_set(err, ST_BUSY, "cannot start a thread to look up %s: %s", l->url.host,
                       strerror(code));
        line_leave(r->line);
        lookup_destroy(l);
        return st;
    }
    pthread_detach(thread);
    r->n_open++;
    return ST_OK;
}

enum status resolver_start(struct resolver *r, const struct address_url *url,
                           const struct address_guard *guard, resolver_fn *fn, void *arg,
                           struct error *err) {
    struct lookup *l = lookup_create(r, url, 1, arg);

    l->is_guarded = guard != NULL;
    if (guard) l->guard = *guard;
    l->fn = fn;
    return begin(r, l, err);
}

enum status resolver_start_all(struct resolver *r, const struct address_url *url, uint32_t max,
                               resolver_all_fn *fn, void *arg, struct error *err) {
    struct lookup *l = lookup_create(r, url, max, arg);

    l->all_fn = fn;
    return begin(r, l, err);
}
