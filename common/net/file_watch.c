/* common/net/file_watch.c - see file_watch.h. */
#include "common/net/file_watch.h"

#include <assert.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/base.h"
#include "common/base/mem.h"
#include "common/net/loop.h"

#define LOOK_EVERY_US 1000000u

struct watched {
    char *path;
    struct stat seen, known; /* as it looked last; when it was read last */
};

struct file_watch {
    struct loop_timer timer;
    file_watch_fn *fn;
    void *arg;
    struct watched files[FILE_WATCH_MAX];
    size_t n;
};

static bool looks_the_same(const struct stat *a, const struct stat *b) {
    return a->st_ino == b->st_ino && a->st_dev == b->st_dev && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

void file_watch_know(struct file_watch *w) {
    for (size_t i = 0; w && i < w->n; i++) {
        struct watched *f = &w->files[i];

        if (stat(f->path, &f->known) != 0) f->known = (struct stat){0};
        f->seen = f->known;
    }
}

static void on_look(void *arg) {
    struct file_watch *w = arg;
    bool is_settled = true, is_new = false;

    loop_timer_start(&w->timer, LOOK_EVERY_US);
    for (size_t i = 0; i < w->n; i++) {
        struct watched *f = &w->files[i];
        struct stat now = {0};

        if (stat(f->path, &now) != 0) return; /* between two renames, or gone: nothing changes */
        if (!looks_the_same(&now, &f->seen)) is_settled = false;
        if (!looks_the_same(&now, &f->known)) is_new = true;
        f->seen = now;
    }
    if (!is_settled || !is_new) return;
    for (size_t i = 0; i < w->n; i++)
        w->files[i].known = w->files[i].seen; /* before they are read: a later change is another */
    w->fn(w->arg);
}

struct file_watch *file_watch_create(struct loop *loop, const char *const *paths, size_t n,
                                     file_watch_fn *fn, void *arg) {
    struct file_watch *w = mem_zalloc(sizeof(*w));

    assert(n <= FILE_WATCH_MAX);
    w->fn = fn;
    w->arg = arg;
    for (size_t i = 0; i < n; i++)
        if (paths[i] && *paths[i]) w->files[w->n++].path = mem_strdup(paths[i]);
    loop_timer_init(&w->timer, loop, on_look, w);
    if (w->n) loop_timer_start(&w->timer, LOOK_EVERY_US);
    file_watch_know(w);
    return w;
}

void file_watch_destroy(struct file_watch *w) {
    if (!w) return;
    loop_timer_fini(&w->timer);
    for (size_t i = 0; i < w->n; i++)
        mem_free(w->files[i].path);
    mem_free(w);
}
