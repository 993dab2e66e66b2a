/* worker/engine/masks.c - jobs sorted by grammar, and the parts that they make. */
#include "worker/engine/masks.h"

#include <stdlib.h>

#include "common/base/mem.h"
#include "worker/engine/mask_threads.h"

enum status masks_init(struct masks *m, uint32_t max_masks, uint32_t n_threads, struct error *err) {
    m->job = mem_calloc(MAX(max_masks, 1u), sizeof(*m->job));
    m->part = mem_calloc(MAX(max_masks, 1u), sizeof(*m->part));
    return mask_threads_start(&m->threads, n_threads, err);
}

void masks_fini(struct masks *m) {
    mask_threads_stop(m->threads);
    mem_free(m->job);
    mem_free(m->part);
    m->threads = NULL;
    m->job = NULL;
    m->part = NULL;
}

bool masks_fill(struct masks *m, struct request *r, uint32_t *mask) {
    if (!constrain_is_known(r)) return false;
    constrain_fill(r, &m->ends, mask, m->vocab, &m->stats);
    return true;
}

void masks_add(struct masks *m, struct request *r, uint32_t *mask) {
    m->job[m->n_jobs] = (struct mask_job){r, mask, m->n_jobs};
    m->n_jobs++;
}

static int by_grammar(const void *a, const void *b) {
    const struct mask_job *p = a, *q = b;
    uintptr_t g = (uintptr_t)p->request->params.grammar, h = (uintptr_t)q->request->params.grammar;

    if (g != h) return g < h ? -1 : 1;
    return (p->number > q->number) - (p->number < q->number);
}

static void divide(struct masks *m) {
    struct mask_part *p = NULL;

    qsort(m->job, m->n_jobs, sizeof(*m->job), by_grammar);
    m->n_parts = 0;
    for (uint32_t i = 0; i < m->n_jobs; i++) {
        const struct grammar *g = m->job[i].request->params.grammar;

        if (!p || g != m->job[p->first].request->params.grammar) {
            p = &m->part[m->n_parts++];
            *p = (struct mask_part){.first = i, .stats.seconds = m->stats.seconds};
        }
        p->n++;
    }
}

static void compute_part(void *masks, uint32_t number) {
    const struct masks *m = masks;
    struct mask_part *p = &m->part[number];

    for (uint32_t i = p->first; i < p->first + p->n; i++)
        constrain_fill(m->job[i].request, &m->ends, m->job[i].mask, m->vocab, &p->stats);
}

void masks_compute(void *masks) {
    struct masks *m = masks;

    if (m->n_jobs == 0) return;
    divide(m);
    mask_threads_run(m->threads, m->n_parts, compute_part, m);
    for (uint32_t i = 0; i < m->n_parts; i++) {
        m->stats.n_new += m->part[i].stats.n_new;
        m->stats.n_known += m->part[i].stats.n_known;
    }
    m->n_jobs = 0;
}
