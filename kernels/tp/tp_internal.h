/* kernels/tp/tp_internal.h - what the files of the backend `tp` share: device and model. */
#ifndef KERNELS_TP_TP_INTERNAL_H
#define KERNELS_TP_TP_INTERNAL_H

#include "kernels/tp/ranks.h"
#include "kernels/tp/shard.h"
#include "kernels/tp/tp.h"

struct backend_device {
    const struct backend_ops *ops; /* of the ranks */
    struct tp_ranks *ranks;
    uint32_t size;
    int event_fd;                 /* of rank 0, as read last */
    struct backend_config config; /* as given; pointers are used in open only */
    struct backend_device *rank[TP_MAX_RANKS];
};

struct backend_model {
    struct backend_device *dev;
    struct geometry g; /* whole; its pointers are not kept */
    struct backend_limits limits;
    struct tp_shard shard[TP_MAX_RANKS];
    struct backend_model *rank[TP_MAX_RANKS];
    bool has_stages[2];
    struct backend_stage stage[2][TP_MAX_RANKS];
    backend_fence used[2][TP_MAX_RANKS]; /* when the slot was submitted last */
    double submit_us[2][TP_MAX_RANKS];   /* how long that took */
};

/* tp_device.c */
enum status tp_probe(const struct backend_config *config, struct backend_info *info,
                     struct error *err);
enum status tp_check(const struct backend_config *config, const struct geometry *g,
                     const struct backend_limits *limits, struct error *err);
enum status tp_open(struct backend_device **out, const struct backend_config *config,
                    struct error *err);
void tp_close(struct backend_device *dev);
void tp_info(struct backend_device *dev, struct backend_info *info);
int tp_event_fd(struct backend_device *dev);

/* tp_kv.c */
uint64_t tp_kv_block_bytes(const struct backend_model *m);
bool tp_give_room(struct backend_model *m);
enum status tp_kv_alloc(struct backend_model *m, uint32_t n_blocks, uint32_t n_host_blocks,
                        struct backend_kv_info *out, struct error *err);
enum status tp_kv_copy(struct backend_model *m, const struct backend_copy *pairs, uint32_t n,
                       backend_fence *out);
enum status tp_kv_swap_out(struct backend_model *m, const struct backend_copy *pairs, uint32_t n,
                           backend_fence *out);
enum status tp_kv_swap_in(struct backend_model *m, const struct backend_copy *pairs, uint32_t n,
                          backend_fence *out);
enum status tp_kv_read(struct backend_model *m, uint32_t block, void *dst, uint64_t n_bytes);
enum status tp_kv_write(struct backend_model *m, uint32_t block, const void *src, uint64_t n_bytes);

#endif
