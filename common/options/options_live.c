/* common/options/options_live.c - a change of options: values beside those in effect, and refusals.
 *
 * `base` are the values without what was set at run time: a file that is read again is compared
 * with them, so that what a program has made of its options since the start is not taken for a
 * change. */
#include "common/options/options_live.h"

#include <assert.h>
#include <stdio.h>

#include "common/options/options_internal.h"
#include "common/text/json.h"

#define NAME_SHOWN 100 /* bytes of an unknown name, or of a value, in a refusal */

struct options_change {
    struct options *o;
    void *base, *target; /* as they would be */
    enum option_source *base_sources, *sources;
    struct arena memory; /* of both, and of the texts below */
    struct option_refusal refusals[OPTIONS_REFUSALS_MAX];
    struct option_changed *changed; /* room for every row */
    uint32_t n_refused, n_changed;
};

struct options_change *options_change_begin(struct options *o) {
    const struct option_program *p = o->program;
    struct options_change *c = mem_zalloc(sizeof(*c));

    c->o = o;
    arena_init(&c->memory, 4096);
    c->base = memcpy(mem_alloc(p->target_bytes), o->base, p->target_bytes);
    c->target = memcpy(mem_alloc(p->target_bytes), o->target, p->target_bytes);
    c->base_sources = mem_calloc(p->n_defs, sizeof(*c->base_sources));
    c->sources = mem_calloc(p->n_defs, sizeof(*c->sources));
    c->changed = mem_calloc(p->n_defs, sizeof(*c->changed));
    memcpy(c->base_sources, o->base_sources, p->n_defs * sizeof(*c->base_sources));
    memcpy(c->sources, o->sources, p->n_defs * sizeof(*c->sources));
    return c;
}

void options_change_drop(struct options_change *c) {
    if (!c) return;
    arena_fini(&c->memory);
    mem_free(c->base);
    mem_free(c->target);
    mem_free(c->base_sources);
    mem_free(c->sources);
    mem_free(c->changed);
    mem_free(c);
}

/* --- texts ------------------------------------------------------------------------------------*/
static const char *keep(struct options_change *c, struct str s) {
    return arena_strndup(&c->memory, s.ptr ? s.ptr : "", s.len);
}

/* A value as it may be shown. */
static const char *show(struct options_change *c, const struct option_def *d, const void *target) {
    const char *text;
    struct buf out;

    buf_init(&out, 0);
    option_format(d, target, &out);
    text = !d->is_secret ? keep(c, buf_str(&out)) : buf_len(&out) ? "set" : "unset";
    buf_fini(&out);
    return text;
}

static bool differs(const struct option_def *d, const void *a, const void *b) {
    struct buf x, y;
    bool is_other;

    buf_init(&x, 0);
    buf_init(&y, 0);
    option_format(d, a, &x);
    option_format(d, b, &y);
    is_other = !str_eq(buf_str(&x), buf_str(&y));
    buf_fini(&x);
    buf_fini(&y);
    return is_other;
}

/* --- refusals --------------------------------------------------------------------------------- */
void option_change_refuse(struct options_change *c, struct str option, struct str value,
                          const char *why) {
    if (c->n_refused++ >= OPTIONS_REFUSALS_MAX) return;
    option.len = MIN(option.len, (size_t)NAME_SHOWN);
    value.len = MIN(value.len, (size_t)NAME_SHOWN);
    c->refusals[c->n_refused - 1] =
        (struct option_refusal){keep(c, option), keep(c, value), keep(c, str_of(why))};
}

void options_change_refuse(struct options_change *c, const char *option, const char *why) {
    for (uint32_t i = 0; i < c->n_changed; i++) {
        if (!option || strcmp(c->changed[i].option, option) != 0) continue;
        option_change_refuse(c, str_of(option), str_of(c->changed[i].after), why);
        return;
    }
    option_change_refuse(c, str_of(option), STR_NULL, why);
}

static void refuse_fixed(struct options_change *c, const struct option_def *d) {
    const char *before = show(c, d, c->o->target), *after = show(c, d, c->target);
    struct error err = {0};

    error_set(&err, ST_INVALID,
              "%s is '%.80s' until the program ends: leave it, or restart with '%.80s'", d->name,
              before, after);
    option_change_refuse(c, str_of(d->name), str_of(after), err.message);
}

/* The right to change options does not include the right to read this machine's files. */
static void refuse_path(struct options_change *c, const struct option_def *d, struct str value) {
    struct error err = {0};

    error_set(&err, ST_INVALID,
              "%s names a file of this machine: change it in the --config file and send SIGHUP",
              d->name);
    option_change_refuse(c, str_of(d->name), value, err.message);
}

/* Lists what changes, and refuses what must not. */
static void compare(struct options_change *c) {
    const struct option_program *p = c->o->program;

    for (size_t row = 0; row < p->n_defs; row++) {
        const struct option_def *d = &p->defs[row];

        if (!differs(d, c->o->target, c->target)) continue;
        if (!d->is_live) {
            refuse_fixed(c, d);
            continue;
        }
        c->changed[c->n_changed++] = (struct option_changed){
            d->name, show(c, d, c->o->target), show(c, d, c->target), c->sources[row]};
    }
}

/* --- the file --------------------------------------------------------------------------------- */
static void take_row(const struct option_def *d, const void *from, void *to) {
    memcpy((char *)to + d->offset, (const char *)from + d->offset, d->size);
}

static struct option_layer layer_of(struct options_change *c, enum option_source source) {
    struct option_layer l = {.o = c->o,
                             .target = c->base,
                             .sources = c->base_sources,
                             .source = source,
                             .memory = &c->memory,
                             .change = c};

    l.seen = mem_calloc(c->o->program->n_defs, sizeof(bool));
    return l;
}

/* The layers at the bottom, as they are now; those above as they were at the start. */
static enum status build_base(struct options_change *c, struct error *err) {
    const struct options *o = c->o;
    enum status st = ST_OK;

    for (enum option_source s = OPTION_DEFAULT; s <= OPTION_FILE && st == ST_OK; s++) {
        struct option_layer l = layer_of(c, s);

        st = s == OPTION_DEFAULT ? option_layer_defaults(&l, err)
                                 : option_layer_file(&l, o->config_path, err);
        mem_free(l.seen);
    }
    for (size_t row = 0; row < o->program->n_defs; row++) {
        if (o->base_sources[row] < OPTION_ENV) continue;
        take_row(&o->program->defs[row], o->base, c->base);
        c->base_sources[row] = o->base_sources[row];
    }
    return st;
}

enum status options_change_file(struct options_change *c, struct error *err) {
    const struct options *o = c->o;
    struct error why = {0};

    if (!o->config_path)
        return error_set(
            err, ST_NOT_FOUND,
            "there is no --config file to reload: start the program with --config FILE");
    if (build_base(c, &why) != ST_OK) {
        options_change_refuse(c, "config", why.message);
        return ST_OK;
    }
    for (size_t row = 0; row < o->program->n_defs; row++) {
        const struct option_def *d = &o->program->defs[row];
        bool is_set = o->sources[row] == OPTION_RUNTIME;

        if (is_set && c->base_sources[row] != OPTION_FILE) continue;
        if (is_set || differs(d, o->base, c->base)) take_row(d, c->base, c->target);
        c->sources[row] = c->base_sources[row];
    }
    compare(c);
    return ST_OK;
}

/* --- JSON ------------------------------------------------------------------------------------- */
/* The member as the file would have it: a text, or the items of a list one by one. */
static enum status set_member(struct option_layer *l, const struct option_found *f,
                              const struct json *v, struct error *err) {
    const struct option_def *d = &l->o->program->defs[f->row];
    struct option_text t = {
        .label = d->name, .in_seconds = f->in_seconds, .is_inverted = f->is_inverted};
    bool is_list = json_type(v) == JSON_ARRAY && d->type == OPT_LIST;
    enum status st = ST_OK;
    struct buf text;

    if (is_list && json_count(v) == 0) {
        t.is_empty = true;
        t.value = STR("");
        return option_layer_set(l, f->row, &t, err);
    }
    buf_init(&text, 0);
    t.is_item = is_list;
    for (const struct json *it = is_list ? json_first(v) : v; it && st == ST_OK;
         it = is_list ? json_next(it) : NULL) {
        if (json_to_str(it, &t.value) != ST_OK) {
            struct json_writer w;

            buf_clear(&text);
            json_writer_init(&w, &text);
            json_put_tree(&w, it);
            t.value = buf_str(&text);
        }
        st = option_layer_set(l, f->row, &t, err);
    }
    buf_fini(&text);
    return st;
}

static struct str text_of(const struct option_def *d, const struct json *v) {
    struct str s;

    if (d->is_secret) return STR("set");
    return json_to_str(v, &s) == ST_OK ? s : str_of(json_type_name(v));
}

static void take_member(struct options_change *c, struct option_layer *l, const struct json *v) {
    const struct option_program *p = c->o->program;
    struct error err = {0};
    struct option_found f;
    const struct option_def *d;

    if (!option_find(p, json_key(v), &f)) {
        (void)option_unknown(p, json_key(v), "", &err);
        option_change_refuse(c, json_key(v), STR_NULL, err.message); /* it may be a secret */
        return;
    }
    d = &p->defs[f.row];
    if (l->seen[f.row]) {
        error_set(&err, ST_INVALID, "%s is given twice: send it once", d->name);
        option_change_refuse(c, str_of(d->name), text_of(d, v), err.message);
    } else if (json_is_null(v)) {
        take_row(d, c->base, c->target);
        c->sources[f.row] = c->base_sources[f.row];
    } else if (d->is_live && d->is_path) {
        refuse_path(c, d, text_of(d, v));
    } else if (set_member(l, &f, v, &err) != ST_OK) {
        option_change_refuse(c, str_of(d->name), text_of(d, v), err.message);
    }
    l->seen[f.row] = true;
}

void options_change_json(struct options_change *c, const struct json *object) {
    struct option_layer l = layer_of(c, OPTION_RUNTIME);

    l.target = c->target;
    l.sources = c->sources;
    JSON_FOR_EACH(it, object) take_member(c, &l, it);
    mem_free(l.seen);
    compare(c);
}

/* --- what becomes of it ----------------------------------------------------------------------- */
const void *options_change_target(const struct options_change *c) {
    return c->target;
}

uint32_t options_change_n_refused(const struct options_change *c) {
    return c->n_refused;
}

uint32_t options_change_n_kept(const struct options_change *c) {
    return MIN(c->n_refused, (uint32_t)OPTIONS_REFUSALS_MAX);
}

const struct option_refusal *options_change_refusal(const struct options_change *c, uint32_t i) {
    return &c->refusals[i];
}

uint32_t options_change_n_changed(const struct options_change *c) {
    return c->n_changed;
}

const struct option_changed *options_change_at(const struct options_change *c, uint32_t i) {
    return &c->changed[i];
}

/* Copies the field, and what it points to into `memory`. */
static void copy_row(const struct option_def *d, const void *from, void *to, struct arena *memory) {
    const char *z;
    struct option_list list;
    const char **items;

    take_row(d, from, to);
    if (d->type == OPT_STR) {
        memcpy(&z, (const char *)from + d->offset, sizeof(z));
        if (z) z = arena_strndup(memory, z, strlen(z));
        memcpy((char *)to + d->offset, &z, sizeof(z));
    } else if (d->type == OPT_LIST) {
        memcpy(&list, (const char *)from + d->offset, sizeof(list));
        items = arena_alloc(memory, MAX(list.n, 1u) * sizeof(*items));
        for (uint32_t i = 0; i < list.n; i++)
            items[i] = arena_strndup(memory, list.items[i], strlen(list.items[i]));
        list.items = items;
        memcpy((char *)to + d->offset, &list, sizeof(list));
    }
}

void options_change_commit(struct options_change *c) {
    struct options *o = c->o;

    assert(c->n_refused == 0);
    for (size_t row = 0; row < o->program->n_defs; row++) {
        const struct option_def *d = &o->program->defs[row];

        if (differs(d, o->base, c->base)) copy_row(d, c->base, o->base, &o->memory);
        if (differs(d, o->target, c->target)) copy_row(d, c->target, o->target, &o->memory);
        o->base_sources[row] = c->base_sources[row];
        o->sources[row] = c->sources[row];
    }
}

/* --- what holds now --------------------------------------------------------------------------- */
const char *option_source_name(enum option_source s) {
    static const char *const names[] = {"default", "file", "environment", "command line",
                                        "runtime"};

    return names[s];
}

static void put_value(const struct option_def *d, const void *target, struct json_writer *w) {
    const char *at = (const char *)target + d->offset;
    struct option_list list;
    struct buf text;
    uint64_t number; /* and no word that stands for one */

    buf_init(&text, 0);
    option_format(d, target, &text);
    if (d->is_secret) {
        json_put_str(w, buf_len(&text) ? STR("set") : STR("unset"));
    } else if (d->type == OPT_LIST) {
        memcpy(&list, at, sizeof(list));
        json_begin_array(w);
        for (uint32_t i = 0; i < list.n; i++)
            json_put_str(w, str_of(list.items[i]));
        json_end_array(w);
    } else if (d->type == OPT_STR && buf_len(&text) == 0) {
        json_put_null(w);
    } else if (d->type == OPT_BOOL || d->type == OPT_F64 ||
               (d->type < OPT_BYTES && str_to_u64(buf_str(&text), &number) == ST_OK)) {
        json_put_raw(w, buf_str(&text));
    } else {
        json_put_str(w, buf_str(&text));
    }
    buf_fini(&text);
}

void options_put_json(const struct options *o, struct json_writer *w) {
    json_begin_object(w);
    for (size_t row = 0; row < o->program->n_defs; row++) {
        const struct option_def *d = &o->program->defs[row];

        json_put_key(w, d->name);
        json_begin_object(w);
        json_put_key(w, "value");
        put_value(d, o->target, w);
        json_field_z(w, "source", option_source_name(o->sources[row]));
        json_field_bool(w, "live", d->is_live);
        json_end_object(w);
    }
    json_end_object(w);
}
