/* worker/devices.c - see devices.h. Devices are counted by asking for one after the other: which
 * are there is known from any that can be used. */
#include "worker/devices.h"

#include <stdio.h>

#include "common/base/buf.h"
#include "common/base/mem.h"
#include "common/text/json.h"
#include "worker/engine/backend_load.h"
#include "worker/worker_options.h"

#define MAX_DEVICES 64u
#define MIB         (1024.0 * 1024.0)

struct found {
    struct backend_info info;
    struct error why;
    bool is_usable;
};

/* Fills the first n of `found`; 0 with a sentence when none can be used. */
static uint32_t find_all(const struct backend_ops *ops, struct found *found, struct error *err) {
    uint32_t n_usable = 0, n_there = 0;

    for (uint32_t i = 0; i < MAX_DEVICES; i++) {
        struct backend_config config = {.ordinal = i};
        struct found *f = &found[i];

        f->is_usable = ops->probe(&config, &f->info, &f->why) == ST_OK;
        if (!f->is_usable && i > 0 && f->why.status == ST_NOT_FOUND) break;
        n_usable += f->is_usable;
        n_there = f->is_usable ? MIN(f->info.n_devices, MAX_DEVICES) : n_there;
    }
    if (n_usable == 0 && err) *err = found[0].why;
    return n_there;
}

static void print_lines(const struct found *found, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        const struct backend_info *info = &found[i].info;

        if (found[i].is_usable) {
            printf("%u  %s  %s  %s  %.0f MiB, %.0f free\n", i, info->device, info->path, info->uuid,
                   (double)info->memory_total / MIB, (double)info->memory_free / MIB);
        } else {
            printf("%u  cannot be used: %s\n", i, found[i].why.message);
        }
    }
}

static void put_device(struct json_writer *w, uint32_t index, const struct backend_info *info) {
    json_begin_object(w);
    json_field_u64(w, "index", index);
    json_field_z(w, "name", info->device);
    json_field_z(w, "uuid", info->uuid);
    json_field_z(w, "path", info->path);
    json_field_u64(w, "memory_total", info->memory_total);
    json_field_u64(w, "memory_free", info->memory_free);
    json_end_object(w);
}

static void put_unusable(struct json_writer *w, uint32_t index, const struct error *why) {
    json_begin_object(w);
    json_field_u64(w, "index", index);
    json_field_z(w, "why", why->message);
    json_end_object(w);
}

static void print_json(const char *backend, const struct found *found, uint32_t n) {
    struct json_writer w;
    struct buf body;

    buf_init(&body, 0);
    json_writer_init(&w, &body);
    json_begin_object(&w);
    json_field_z(&w, "backend", backend);
    json_put_key(&w, "devices");
    json_begin_array(&w);
    for (uint32_t i = 0; i < n; i++)
        if (found[i].is_usable) put_device(&w, i, &found[i].info);
    json_end_array(&w);
    json_put_key(&w, "unusable");
    json_begin_array(&w);
    for (uint32_t i = 0; i < n; i++)
        if (!found[i].is_usable) put_unusable(&w, i, &found[i].why);
    json_end_array(&w);
    json_end_object(&w);
    printf("%.*s\n", STR_ARG(buf_str(&body)));
    buf_fini(&body);
}

enum status list_devices(struct worker_options *o, struct error *err) {
    struct found *found = mem_calloc(MAX_DEVICES, sizeof(*found));
    const struct backend_ops *ops = NULL;
    struct error why = {0};
    uint32_t n = 0;

    if (backend_load(&ops, "cuda", o->backend_library, &why) == ST_OK)
        n = find_all(ops, found, &why);
    if (o->json)
        print_json(ops ? ops->name : "cuda", found, n);
    else
        print_lines(found, n);
    mem_free(found);
    return n > 0 ? ST_OK : error_set(err, why.status, "%s", why.message);
}
