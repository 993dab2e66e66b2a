/* worker/engine/engine_model.c - the engine's options for a model folder. Apart, so that an engine
 * can be built in a test from a geometry alone. */
#include <string.h>

#include "worker/engine/engine.h"
#include "worker/model/model.h"

static enum status load(void *arg, const struct backend_ops *ops, struct backend_device *dev,
                        const struct geometry *g, const struct backend_limits *limits,
                        struct backend_model **out, struct error *err) {
    const struct model *m = arg;

    return model_load(m, ops, dev, g, limits, NULL, NULL, NULL, out, err);
}

static enum status digest(void *arg, uint8_t out[32], struct error *err) {
    return model_digest(arg, out, err);
}

/* If all layers have the window, blocks below it are released. If some layers see everything, all
 * blocks are kept, and only the kernels apply the window. */
static void set_groups(struct engine_options *o) {
    const struct geometry *g = &o->geometry;

    if (!g->layer_kind || memchr(g->layer_kind, 0, g->n_layers)) return;
    o->kv.n_groups = 1;
    o->kv.group[0] = (struct kv_group_config){.kind = KV_SLIDING, .window = g->sliding_window};
}

void engine_options_set_model(struct engine_options *o, const struct model *m) {
    const struct model_config *config = model_config(m);

    model_geometry(m, &o->geometry);
    set_groups(o);
    o->weight_bytes = model_weight_bytes(m, o->geometry.weight_dtype);
    o->load = load;
    o->load_arg = (void *)(uintptr_t)m; /* only read again by load() and digest() above */
    o->digest_weights = digest;
    o->digest_arg = o->load_arg;
    o->scheduler.eos_ids = config->eos;
    o->scheduler.n_eos = config->n_eos;
}
