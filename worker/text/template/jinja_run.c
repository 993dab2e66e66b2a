/* worker/text/template/jinja_run.c - statements to text, and one run from its creation to its end.
 *
 * Text goes to run->out, which is the result, or a buffer while a block's text is captured (a
 * macro's, a set block's). */
#include "worker/text/template/jinja_internal.h"

enum flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE };

static enum status run_body(struct jinja_run *r, const struct jinja_node *n, enum flow *flow);

/* --- statements --------------------------------------------------------------------------------*/
static enum status write_text(struct jinja_run *r, struct str s) {
    r->output_bytes += s.len;
    if (r->output_bytes > r->limits.max_output_bytes) {
        return error_set(r->err, ST_TOO_LARGE,
                         "chat template, line %u: the output exceeds %zu bytes", r->line,
                         r->limits.max_output_bytes);
    }
    TRY(jinja_charge(r, s.len / 64));
    buf_append_str(r->out, s);
    if (buf_status(r->out) == ST_OK) return ST_OK;
    return error_set(r->err, ST_NOMEM, "out of memory for the output of a chat template");
}

/* Runs a body and gives what it wrote as a string. */
enum status jinja_capture(struct jinja_run *r, const struct jinja_node *body, struct jv *out) {
    struct buf text, *outer = r->out;
    enum flow flow;
    enum status st;

    buf_init(&text, r->limits.max_output_bytes);
    r->out = &text;
    st = run_body(r, body, &flow);
    r->out = outer;
    if (st == ST_OK) return jinja_take(r, &text, out);
    buf_fini(&text);
    return st;
}

static enum status assign(struct jinja_run *r, const struct jinja_node *target, struct jv v) {
    struct jv ns;

    if (target->kind == NODE_NAME) return jinja_assign(r, target->name, v);
    TRY(jinja_eval(r, target->a, &ns));
    if (ns.type != JV_NAMESPACE) {
        return jinja_fail(
            r, "'" STR_FMT "' is not a namespace: attributes of a namespace alone can be assigned",
            STR_ARG(target->a->name));
    }
    return jv_set(r, ns, jv_string(target->name), v);
}

/* One target takes the value; several take its items. */
static enum status assign_all(struct jinja_run *r, const struct jinja_node *targets, struct jv v) {
    size_t i = 0;

    if (!targets->next) return assign(r, targets, v);
    TRY(jv_iterate(r, v, &v));
    for (const struct jinja_node *t = targets; t; t = t->next, i++) {
        if (i >= v.as.list->n) return jinja_fail(r, "too few values to unpack");
        TRY(assign(r, t, v.as.list->items[i]));
    }
    return i == v.as.list->n ? ST_OK : jinja_fail(r, "too many values to unpack");
}

/* The items that pass the loop's own `if`. */
static enum status filter_items(struct jinja_run *r, const struct jinja_node *n, struct jv *items) {
    struct jinja_scope *outer = r->scope;
    struct jv kept;

    TRY(jv_new_list(r, 0, &kept));
    TRY(jinja_push_scope(r, outer));
    for (size_t i = 0; i < items->as.list->n; i++) {
        struct jv holds;

        TRY(assign_all(r, n->children, items->as.list->items[i]));
        TRY(jinja_eval(r, n->b, &holds));
        if (jv_is_true(holds)) TRY(jv_push(r, kept, items->as.list->items[i]));
    }
    r->scope = outer;
    *items = kept;
    return ST_OK;
}

static enum status run_for(struct jinja_run *r, const struct jinja_node *n, enum flow *flow) {
    struct jinja_scope *outer = r->scope;
    struct jinja_loop *loop;
    struct jv items;
    void *memory = NULL;

    TRY(jinja_eval(r, n->a, &items));
    r->line = n->line;
    TRY(jv_iterate(r, items, &items));
    if (n->b) TRY(filter_items(r, n, &items));
    if (!items.as.list->n) return run_body(r, n->other, flow);
    TRY(jinja_alloc(r, sizeof(*loop), &memory));
    loop = memory;
    loop->items = items.as.list;
    TRY(jinja_push_scope(r, outer));
    for (; loop->i < items.as.list->n && *flow != FLOW_BREAK; loop->i++) {
        TRY(jinja_charge(r, 1));
        r->scope->vars.n = 0; /* each round begins with none */
        TRY(jinja_assign(r, STR("loop"), (struct jv){.type = JV_LOOP, .as.loop = loop}));
        TRY(assign_all(r, n->children, items.as.list->items[loop->i]));
        TRY(run_body(r, n->body, flow));
        if (*flow == FLOW_CONTINUE) *flow = FLOW_ON;
    }
    *flow = FLOW_ON;
    r->scope = outer;
    return ST_OK;
}

static enum status run_if(struct jinja_run *r, const struct jinja_node *n, enum flow *flow) {
    for (;;) {
        struct jv v;

        TRY(jinja_eval(r, n->a, &v));
        if (jv_is_true(v)) return run_body(r, n->body, flow);
        if (!n->other) return ST_OK;
        if (n->other->kind != NODE_IF || n->other->next) return run_body(r, n->other, flow);
        n = n->other;
    }
}

static enum status run_set_block(struct jinja_run *r, const struct jinja_node *n) {
    struct jinja_scope *outer = r->scope;
    struct jv v;

    TRY(jinja_capture(r, n->body, &v));
    if (n->a) { /* filters; the innermost reads the text as the variable without a name */
        TRY(jinja_push_scope(r, outer));
        TRY(jinja_assign(r, STR(""), v));
        TRY(jinja_eval(r, n->a, &v));
        r->scope = outer;
    }
    return assign(r, n->children, v);
}

static enum status run_macro(struct jinja_run *r, const struct jinja_node *n) {
    void *memory = NULL;
    struct jinja_macro *m;

    TRY(jinja_alloc(r, sizeof(*m), &memory));
    m = memory;
    m->node = n;
    m->scope = r->scope;
    return jinja_assign(r, n->name,
                        (struct jv){.type = JV_FUNCTION, .as.string = n->name, .macro = m});
}

static enum status run_statement(struct jinja_run *r, const struct jinja_node *n, enum flow *flow) {
    struct str text;
    struct jv v;

    switch (n->kind) {
    case NODE_TEXT: return write_text(r, n->value.as.string);
    case NODE_PRINT:
        TRY(jinja_eval(r, n->a, &v));
        TRY(jv_to_string(r, v, &text));
        return write_text(r, text);
    case NODE_IF: return run_if(r, n, flow);
    case NODE_FOR: return run_for(r, n, flow);
    case NODE_SET: TRY(jinja_eval(r, n->a, &v)); return assign_all(r, n->children, v);
    case NODE_SET_BLOCK: return run_set_block(r, n);
    case NODE_MACRO: return run_macro(r, n);
    case NODE_BREAK: *flow = FLOW_BREAK; return ST_OK;
    case NODE_CONTINUE: *flow = FLOW_CONTINUE; return ST_OK;
    default: return ST_INTERNAL;
    }
}

/* Sets *flow; after a break or continue the rest of the body is skipped. */
static enum status run_body(struct jinja_run *r, const struct jinja_node *n, enum flow *flow) {
    *flow = FLOW_ON;
    for (; n && *flow == FLOW_ON; n = n->next) {
        TRY(jinja_enter(r, n));
        TRY(run_statement(r, n, flow));
        r->depth--;
    }
    return ST_OK;
}

/* --- runs --------------------------------------------------------------------------------------*/
struct jinja_run *jinja_run_create(const struct jinja_program *p, const struct jinja_limits *limits,
                                   int64_t now_s, struct error *err) {
    struct jinja_run *r = mem_zalloc(sizeof(*r));

    r->program = p;
    if (limits) r->limits = *limits;
    if (!r->limits.max_steps) r->limits.max_steps = 5000000;
    if (!r->limits.max_output_bytes) r->limits.max_output_bytes = 32u << 20;
    if (!r->limits.max_memory_bytes) r->limits.max_memory_bytes = 128u << 20;
    r->now_s = now_s;
    r->err = err;
    r->scope = &r->globals;
    arena_init(&r->arena, 0);
    return r;
}

void jinja_run_destroy(struct jinja_run *r) {
    if (!r) return;
    arena_fini(&r->arena);
    mem_free(r);
}

enum status jinja_run_set(struct jinja_run *r, const char *name, struct jv v) {
    struct jv globals = {.type = JV_DICT, .as.dict = &r->globals.vars};

    return jv_set(r, globals, jv_string(str_of(name)), v);
}

enum status jinja_run_render(struct jinja_run *r, struct buf *out) {
    enum flow flow;

    r->out = out;
    return run_body(r, r->program->body, &flow);
}
