/* kernels/tp/tp_device.c - see tp.h: which device each rank takes, and what all of them are
 * together. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "kernels/tp/tp_internal.h"

const struct backend_ops *tp_computing(const struct backend_ops *ops,
                                       const struct backend_config *config) {
    return ops == &backend_tp && config->ranks ? config->ranks : ops;
}

/* Name `rank` of a list with commas into `name`; false when there are fewer. */
static bool nth_name(char *name, size_t size, const char *list, uint32_t rank) {
    for (; rank > 0 && list; rank--) {
        list = strchr(list, ',');
        if (list) list++;
    }
    if (!list || *list == '\0' || *list == ',') return false;
    snprintf(name, size, "%.*s", (int)strcspn(list, ","), list);
    return true;
}

/* "3" or "cuda:3", as against a UUID. */
static bool read_ordinal(const char *name, uint32_t *ordinal) {
    const char *digits = strncmp(name, "cuda:", 5) == 0 ? name + 5 : name;
    size_t n = strspn(digits, "0123456789");

    if (n == 0 || n > 4 || digits[n] != '\0') return false;
    *ordinal = (uint32_t)strtoul(digits, NULL, 10);
    return true;
}

/* What rank `rank` opens; `name` holds its device_id. */
static enum status config_of(struct backend_config *out, char *name, size_t name_size,
                             const struct backend_config *config, uint32_t rank,
                             struct error *err) {
    char unused[64];

    *out = *config;
    out->tp_rank = rank;
    out->ordinal = config->ordinal + rank;
    out->ranks = NULL;
    if (!config->device_id) return ST_OK;
    if (!nth_name(name, name_size, config->device_id, rank) ||
        nth_name(unused, sizeof(unused), config->device_id, config->tp_size))
        return error_set(err, ST_INVALID,
                         "%u ranks, and the devices are \"%s\": name one for each, with commas",
                         config->tp_size, config->device_id);
    out->device_id = read_ordinal(name, &out->ordinal) ? NULL : name;
    return ST_OK;
}

static enum status check_config(const struct backend_config *config, struct error *err) {
    if (!config->ranks) return error_set(err, ST_INVALID, "tensor parallel over no backend");
    if (config->ranks->abi != BACKEND_ABI)
        return error_set(err, ST_UNSUPPORTED, "backend %s has ABI %u, this program needs %u",
                         config->ranks->name, config->ranks->abi, BACKEND_ABI);
    if (config->tp_size < 1 || config->tp_size > TP_MAX_RANKS)
        return error_set(err, ST_INVALID, "%u ranks: 1 to %u are possible", config->tp_size,
                         TP_MAX_RANKS);
    return ST_OK;
}

/* One rank's figures into those of all, which begin as rank 0's. */
static void add_info(struct backend_info *all, const struct backend_info *one) {
    all->flags &= one->flags;
    all->n_threads += one->n_threads;
    all->memory_total = MIN(all->memory_total, one->memory_total);
    all->memory_free = MIN(all->memory_free, one->memory_free);
    all->prefill_tokens_per_s = MIN(all->prefill_tokens_per_s, one->prefill_tokens_per_s);
    if (!all->note[0]) memcpy(all->note, one->note, sizeof(all->note));
}

static void finish_info(struct backend_info *all, uint32_t size) {
    char device[sizeof(all->device)];

    if (all->flags & BACKEND_OWN_MEMORY) {
        all->memory_total *= size;
        all->memory_free *= size;
    }
    snprintf(device, sizeof(device), "%u x %.56s", size, all->device);
    memcpy(all->device, device, sizeof(device));
}

/* Is the device of the last rank in `of` there, and distinct from all others? */
static enum status check_device(const struct backend_config *config, const struct backend_info *of,
                                uint32_t rank, struct error *err) {
    const struct backend_info *one = &of[rank];

    if (one->n_devices && !config->device_id && config->ordinal + config->tp_size > one->n_devices)
        return error_set(err, ST_UNSUPPORTED,
                         "%u ranks from device %u on: this machine has %u devices", config->tp_size,
                         config->ordinal, one->n_devices);
    for (uint32_t r = 0; r < rank && one->uuid[0]; r++) {
        if (strcmp(of[r].uuid, one->uuid) == 0)
            return error_set(err, ST_INVALID,
                             "ranks %u and %u would share the device %s: name another for each", r,
                             rank, one->uuid);
    }
    return ST_OK;
}

static void sum_info(struct backend_info *all, const struct backend_info *of, uint32_t size) {
    *all = of[0];
    for (uint32_t r = 1; r < size; r++)
        add_info(all, &of[r]);
    finish_info(all, size);
}

enum status tp_probe(const struct backend_config *config, struct backend_info *info,
                     struct error *err) {
    struct backend_info of[TP_MAX_RANKS];
    struct backend_config own;
    char name[64];
    enum status st = check_config(config, err);

    for (uint32_t r = 0; st == ST_OK && r < config->tp_size; r++) {
        st = config_of(&own, name, sizeof(name), config, r, err);
        if (st == ST_OK) st = config->ranks->probe(&own, &of[r], err);
        if (st == ST_OK) st = check_device(config, of, r, err);
    }
    if (st == ST_OK) sum_info(info, of, config->tp_size);
    return st;
}

enum status tp_check(const struct backend_config *config, const struct geometry *g,
                     const struct backend_limits *limits, struct error *err) {
    struct backend_config own;
    char name[64];
    enum status st = check_config(config, err);

    for (uint32_t r = 0; st == ST_OK && config->ranks->check && r < config->tp_size; r++) {
        st = config_of(&own, name, sizeof(name), config, r, err);
        if (st == ST_OK) st = config->ranks->check(&own, g, limits, err);
    }
    return st;
}

static enum status event_fd_rank(uint32_t rank, void *arg, struct error *err) {
    struct backend_device *dev = arg;

    (void)err;
    dev->event_fd = dev->ops->event_fd(dev->rank[rank]);
    return ST_OK;
}

static enum status open_rank(uint32_t rank, void *arg, struct error *err) {
    struct backend_device *dev = arg;
    struct backend_config own;
    char name[64];
    enum status st = config_of(&own, name, sizeof(name), &dev->config, rank, err);

    own.group = tp_ranks_group(dev->ranks);
    if (st == ST_OK) st = dev->ops->open(&dev->rank[rank], &own, err);
    return st == ST_OK && rank == 0 ? event_fd_rank(0, dev, NULL) : st;
}

static enum status close_rank(uint32_t rank, void *arg, struct error *err) {
    struct backend_device *dev = arg;

    (void)err;
    dev->ops->close(dev->rank[rank]);
    return ST_OK;
}

void tp_close(struct backend_device *dev) {
    if (!dev) return;
    if (dev->ranks) (void)!tp_ranks_call_apart(dev->ranks, close_rank, dev, NULL);
    tp_ranks_destroy(dev->ranks);
    mem_free(dev);
}

enum status tp_open(struct backend_device **out, const struct backend_config *config,
                    struct error *err) {
    struct backend_device *dev;
    enum status st = check_config(config, err);

    if (st != ST_OK) return st;
    dev = mem_zalloc(sizeof(*dev));
    dev->ops = config->ranks;
    dev->size = config->tp_size;
    dev->config = *config;
    st = tp_ranks_create(&dev->ranks, dev->size, err);
    if (st == ST_OK) st = tp_ranks_call(dev->ranks, open_rank, dev, err);
    if (st != ST_OK) {
        tp_close(dev);
        return st;
    }
    *out = dev;
    return ST_OK;
}

struct info_call {
    struct backend_device *dev;
    struct backend_info of[TP_MAX_RANKS];
};

static enum status info_rank(uint32_t rank, void *arg, struct error *err) {
    struct info_call *c = arg;

    (void)err;
    c->dev->ops->info(c->dev->rank[rank], &c->of[rank]);
    return ST_OK;
}

void tp_info(struct backend_device *dev, struct backend_info *info) {
    struct info_call c = {.dev = dev};

    (void)!tp_ranks_call_apart(dev->ranks, info_rank, &c, NULL);
    sum_info(info, c.of, dev->size);
}

/* Rank 0's, read each time: it reports only what a caller is about to sleep for. */
int tp_event_fd(struct backend_device *dev) {
    if (dev->event_fd >= 0) (void)!tp_ranks_call_first(dev->ranks, event_fd_rank, dev, NULL);
    return dev->event_fd;
}
