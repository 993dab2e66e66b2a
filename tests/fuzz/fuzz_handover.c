/* tests/fuzz/fuzz_handover.c - whatever the first answer is, the second body has its params alone;
 * whatever the body is, the first leg has one token and no stream. */
#include <stdlib.h>

#include "router/prompt/body_scan.h"
#include "router/proxy/handover/handover.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_answer(struct str answer) {
    struct handover h = {.body = STR("{\"prompt\":\"a\"}"), .host = STR("10.0.0.7")};
    struct buf members, body;
    struct body_scan scan;

    buf_init(&members, 0);
    buf_init(&body, 0);
    if (handover_nixl.second_members(&h, answer, &members) == ST_OK) {
        buf_append(&body, h.body.ptr, handover_open_len(h.body));
        buf_append_str(&body, buf_str(&members));
        buf_append_char(&body, '}');
        /* What a parser of JSON permits and a scan of requests does not, such as depth, is refused
         * by the worker; what it accepts has the params and no other member. */
        if (body_scan(buf_str(&body), &scan, NULL) == ST_OK &&
            (!scan.spans[BODY_KV_TRANSFER_PARAMS].ptr ||
             !str_eq(scan.spans[BODY_PROMPT], STR("\"a\""))))
            abort();
    }
    buf_fini(&body);
    buf_fini(&members);
}

static void check_request(struct str text) {
    struct handover h = {.body = text, .host = STR("p"), .rid = "r"};
    struct str cuts[HANDOVER_CUTS_MAX], rest = text;
    struct body_scan scan;
    struct buf body;
    uint32_t n;

    if (body_scan(text, &scan, NULL) != ST_OK) return;
    (void)handover_peer.fits(STR("/v1/completions"), text);
    if (!handover_nixl.fits(STR("/v1/completions"), text)) return;
    buf_init(&body, 0);
    n = handover_cuts(text, handover_nixl.first_dropped, cuts);
    for (uint32_t i = 0; i < n; i++) {
        if (cuts[i].ptr < rest.ptr || cuts[i].len > rest.len) abort();
        buf_append(&body, rest.ptr, (size_t)(cuts[i].ptr - rest.ptr));
        rest.len -= (size_t)(cuts[i].ptr + cuts[i].len - rest.ptr);
        rest.ptr = cuts[i].ptr + cuts[i].len;
    }
    buf_append(&body, rest.ptr, handover_open_len(rest));
    handover_nixl.first_members(&h, &body);
    buf_append_char(&body, '}');
    if (body_scan(buf_str(&body), &scan, NULL) != ST_OK || scan.is_stream ||
        scan.max_output_tokens != 1)
        abort();
    buf_fini(&body);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct str text = {(const char *)data, size};

    check_answer(text);
    check_request(text);
    return 0;
}
