/* router/fleet/discovery/file.c - a list of workers in a file, read again when it changes
 * (common/net/file_watch.h). */
#include <string.h>

#include "common/base/file.h"
#include "common/base/mem.h"
#include "common/net/file_watch.h"
#include "common/telemetry/log.h"
#include "router/fleet/discovery.h"

#define MAX_FILE_BYTES (1u << 20)

struct file_source {
    struct discovery discovery;
    struct file_watch *watch;
    struct log *log;
    discovery_fn *fn;
    void *arg;
    char *path;
};

/* --- the format --------------------------------------------------------------------------------*/

static struct str next_word(struct str *rest) {
    struct str word;
    size_t n = 0;

    *rest = str_trim(*rest);
    while (n < rest->len && rest->ptr[n] != ' ' && rest->ptr[n] != '\t')
        n++;
    word = (struct str){rest->ptr, n};
    *rest = (struct str){rest->ptr + n, rest->len - n};
    return word;
}

static enum status parse_line(struct str line, struct discovery_set *out, struct error *err) {
    const char *hash = line.len ? memchr(line.ptr, '#', line.len) : NULL;
    struct discovery_worker worker = {0};
    enum status st;
    struct str word;

    if (hash) line.len = (size_t)(hash - line.ptr);
    if (line.len && line.ptr[line.len - 1] == '\r') line.len--;
    word = next_word(&line);
    if (word.len == 0) return ST_OK;
    st = address_split(word, &worker.url, err);
    while (st == ST_OK && (word = next_word(&line)).len > 0)
        st = discovery_worker_set(&worker, word, err);
    return st == ST_OK ? discovery_set_add(out, &worker, err) : st;
}

enum status discovery_file_parse(struct str text, const char *name, struct discovery_set *out,
                                 struct error *err) {
    struct discovery_set set = {0};
    uint32_t number = 0;

    while (text.len) {
        const char *end = memchr(text.ptr, '\n', text.len);
        struct str line = {text.ptr, end ? (size_t)(end - text.ptr) : text.len};
        enum status st = parse_line(line, &set, err);

        number++;
        if (st != ST_OK) {
            discovery_set_fini(&set);
            (void)error_prefix(err, "%s line %u", name, number);
            return st;
        }
        text.ptr += line.len + (end != NULL);
        text.len -= line.len + (end != NULL);
    }
    *out = set;
    return ST_OK;
}

/* --- the file ----------------------------------------------------------------------------------*/

static enum status read_and_report(struct file_source *f, struct error *err) {
    struct discovery_set set = {0};
    char *text = NULL;
    enum status st;
    size_t n;

    file_watch_know(f->watch);
    st = file_read(f->path, MAX_FILE_BYTES, &text, &n, err);
    if (st == ST_OK) st = discovery_file_parse((struct str){text, n}, f->path, &set, err);
    mem_free(text);
    if (st == ST_OK) f->fn(&set, f->arg);
    discovery_set_fini(&set);
    return st;
}

static void file_reload(struct discovery *d) {
    struct file_source *f = CONTAINER_OF(d, struct file_source, discovery);
    struct error err = {0};

    if (read_and_report(f, &err) == ST_OK) return;
    log_event(
        f->log, LOG_ERROR, "worker_file_refused", log_z("why", err.message),
        log_z("remedy", "the workers stay as they are: mend the file; it is read again then"));
}

static void on_change(void *arg) {
    struct file_source *f = arg;

    file_reload(&f->discovery);
}

static void file_destroy(struct discovery *d) {
    struct file_source *f = CONTAINER_OF(d, struct file_source, discovery);

    file_watch_destroy(f->watch);
    mem_free(f->path);
    mem_free(f);
}

static const struct discovery_ops file_ops = {
    .name = "file", .reload = file_reload, .destroy = file_destroy};

enum status discovery_file_create(struct discovery **out, const char *path, struct loop *loop,
                                  struct log *log, discovery_fn *fn, void *arg, struct error *err) {
    struct file_source *f = mem_zalloc(sizeof(*f));
    enum status st;

    f->discovery.ops = &file_ops;
    f->log = log;
    f->fn = fn;
    f->arg = arg;
    f->path = mem_strdup(path);
    f->watch = file_watch_create(loop, (const char *const[]){path}, 1, on_change, f);
    st = read_and_report(f, err);
    if (st != ST_OK) {
        file_destroy(&f->discovery);
        return error_prefix(err, "--worker-file");
    }
    *out = &f->discovery;
    return ST_OK;
}
