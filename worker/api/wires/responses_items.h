/* worker/api/wires/responses_items.h - the parts of an answer as items of a response. Pure. */
#ifndef WORKER_API_WIRES_RESPONSES_ITEMS_H
#define WORKER_API_WIRES_RESPONSES_ITEMS_H

#include "worker/api/wires/responses_answer.h"
#include "worker/api/wires/responses_tools.h"

struct json_writer;

/* The n-th item of the response: a part of the answer. */
struct responses_item {
    const struct responses_answer *of;
    const struct answer_part *part;
    uint32_t n;
    char id[128];
    struct responses_tool tool; /* of a call */
};

struct responses_item responses_item_of(const struct responses_answer *r,
                                        const struct answer_part *part, uint32_t n);

/* As it begins: empty, in progress. */
void responses_item_put_begin(struct json_writer *w, const struct responses_item *item);
void responses_item_put(struct json_writer *w, const struct responses_item *item);

/* {"type": "output_text" or "reasoning_text", "text", ...} */
void responses_item_put_content(struct json_writer *w, const struct responses_item *item,
                                struct str text);

/* Appends the items of the input as elements of a JSON array, with an id where they have none. */
void responses_put_input(const struct responses_answer *r, struct buf *out);

#endif
