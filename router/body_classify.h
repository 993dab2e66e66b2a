/* router/body_classify.h - 64 bytes of JSON at a time, as bit masks.
 *
 * The one part of the body scan that depends on the instruction set: bit i of a mask says what
 * byte i of a group is. All versions give the same masks; body_scan.c does the rest in plain
 * 64-bit arithmetic. After Langdale and Lemire, Parsing Gigabytes of JSON per Second, 2019. */
#ifndef ROUTER_BODY_CLASSIFY_H
#define ROUTER_BODY_CLASSIFY_H

#include "common/base.h"

#define BODY_GROUP 64

struct body_masks {
    uint64_t quote;     /* "                          */
    uint64_t backslash; /* \                          */
    uint64_t op;        /* { } [ ] , :                */
    uint64_t space;     /* space, tab, LF, CR         */
    uint64_t control;   /* below 0x20, tab, LF and CR among them */
    uint64_t high;      /* 0x80 and above             */
};

/* Classifies n_groups x 64 bytes at p. */
typedef void body_classify_fn(const uint8_t *p, size_t n_groups, struct body_masks *out);

struct body_classifier {
    const char *name;
    body_classify_fn *fn;
};

/* The i-th version this machine can run, fastest first; NULL after the last, which is plain C. */
const struct body_classifier *body_classifier_at(uint32_t i);

body_classify_fn body_classify_plain, body_classify_sse2, body_classify_avx2, body_classify_avx512,
    body_classify_neon;

#endif
