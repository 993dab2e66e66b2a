/* tests/unit/worker/api/wires/test_messages_answer.c - an answer as Messages has it. */
#include <stdio.h>
#include <string.h>

#include "common/text/json.h"
#include "tests/support/answer_fixture.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"
#include "worker/api/stores/prompt_history.h"
#include "worker/api/wires/messages_answer.h"

struct setup {
    struct answer answer;
    struct answer_mark mark;
    struct messages_answer m;
    struct messages_stream stream;
    struct buf out;
};

static void setup_open(struct setup *s) {
    memset(s, 0, sizeof(*s));
    answer_init(&s->answer, 10000);
    buf_init(&s->out, 0);
    s->m = (struct messages_answer){.id = "msg_1",
                                    .model = "m",
                                    .answer = &s->answer,
                                    .prompt_tokens = 812,
                                    .cached_tokens = 800,
                                    .output_tokens = 1};
    s->stream.mark = &s->mark;
}

static void setup_close(struct setup *s) {
    answer_fini(&s->answer);
    buf_fini(&s->out);
}

static void look(void *arg) {
    struct setup *s = arg;

    messages_put_more(&s->m, &s->stream, &s->out);
}

static void assert_out(const struct setup *s, const char *want) {
    if (str_eq(buf_str(&s->out), str_of(want))) return;
    fail_msg("\n" STR_FMT "\nnot\n%s", STR_ARG(buf_str(&s->out)), want);
}

#define EVENT(type, more) "event: " type "\ndata: {\"type\":\"" type "\"" more "}\n\n"
#define USAGE(n)                                                                                   \
    "\"usage\":{\"input_tokens\":12,\"cache_creation_input_tokens\":0,"                            \
    "\"cache_read_input_tokens\":800,\"output_tokens\":" n "}"

static void events_are_in_order_one_block_at_a_time(void **state) {
    struct setup s;

    (void)state;
    setup_open(&s);
    messages_put_start(&s.m, &s.out);
    answer_add(&s.answer, PART_REASONING, STR("Look"));
    look(&s);
    answer_add(&s.answer, PART_TEXT, STR("\n\n"));
    look(&s);
    answer_begin_call(&s.answer, STR("f"), STR("toolu_1"));
    answer_add_arguments(&s.answer, STR("{\"x\": 1}"));
    answer_end_call(&s.answer, false);
    answer_end(&s.answer);
    s.m.output_tokens = 41;
    look(&s);
    messages_put_end(&s.m, &s.stream, &s.out);
    assert_out(
        &s,
        EVENT("message_start",
              ",\"message\":{\"id\":\"msg_1\",\"type\":\"message\",\"role\":\"assistant\","
              "\"model\":\"m\",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null," USAGE(
                  "1") "}") EVENT("content_block_start",
                                  ",\"index\":0,\"content_block\":{\"type\":\"thinking\","
                                  "\"thinking\":\"\",\"signature\":\"\"}")
            EVENT("content_block_delta", ",\"index\":0,\"delta\":{\"type\":\"thinking_delta\","
                                         "\"thinking\":\"Look\"}")
                EVENT("content_block_delta",
                      ",\"index\":0,\"delta\":{\"type\":\"signature_delta\","
                      "\"signature\":\"incipit\"}") EVENT("content_block_stop", ",\"index\":0")
                    EVENT("content_block_start",
                          ",\"index\":1,\"content_block\":{\"type\":\"tool_use\","
                          "\"id\":\"toolu_1\",\"name\":\"f\",\"input\":{}}")
                        EVENT("content_block_delta",
                              ",\"index\":1,\"delta\":{\"type\":\"input_json_delta\","
                              "\"partial_json\":\"{\\\"x\\\": 1}\"}")
                            EVENT("content_block_stop", ",\"index\":1")
                                EVENT("message_delta", ",\"delta\":{\"stop_reason\":\"tool_use\","
                                                       "\"stop_sequence\":null}," USAGE("41"))
                                    EVENT("message_stop", ""));
    setup_close(&s);
}

static void empty_answer_has_one_empty_text(void **state) {
    struct setup s;

    (void)state;
    setup_open(&s);
    answer_add(&s.answer, PART_TEXT, STR(" \n"));
    answer_end(&s.answer);
    look(&s);
    messages_put_end(&s.m, &s.stream, &s.out);
    assert_out(&s, EVENT("content_block_start",
                         ",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}")
                       EVENT("content_block_stop", ",\"index\":0")
                           EVENT("message_delta", ",\"delta\":{\"stop_reason\":\"end_turn\","
                                                  "\"stop_sequence\":null}," USAGE("1"))
                               EVENT("message_stop", ""));
    buf_clear(&s.out);
    messages_put_whole(&s.m, &s.out);
    assert_out(&s, "{\"id\":\"msg_1\",\"type\":\"message\",\"role\":\"assistant\",\"model\":\"m\","
                   "\"content\":[{\"type\":\"text\",\"text\":\"\"}],\"stop_reason\":\"end_turn\","
                   "\"stop_sequence\":null," USAGE("1") "}");
    setup_close(&s);
}

static void reasons_to_stop_have_an_order(void **state) {
    static const struct {
        bool is_limited, has_call, is_cut, has_stop;
        const char *want;
    } rows[] = {
        {false, false, false, false, "\"end_turn\",\"stop_sequence\":null"},
        {false, false, false, true, "\"stop_sequence\",\"stop_sequence\":\"END\""},
        {false, true, false, false, "\"tool_use\",\"stop_sequence\":null"},
        {false, true, false, true, "\"tool_use\",\"stop_sequence\":null"},
        {false, true, true, true, "\"stop_sequence\",\"stop_sequence\":\"END\""},
        {false, true, true, false, "\"end_turn\",\"stop_sequence\":null"},
        {true, true, false, false, "\"max_tokens\",\"stop_sequence\":null"},
        {true, true, true, false, "\"max_tokens\",\"stop_sequence\":null"},
        {true, false, false, false, "\"max_tokens\",\"stop_sequence\":null"},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char want[128];
        struct setup s;

        setup_open(&s);
        if (rows[i].has_call) {
            answer_begin_call(&s.answer, STR("f"), STR("t"));
            answer_add_arguments(&s.answer, STR("{}"));
            answer_end_call(&s.answer, rows[i].is_cut);
        }
        answer_end(&s.answer);
        s.m.is_limited = rows[i].is_limited;
        if (rows[i].has_stop) s.m.stop = STR("END");
        messages_put_whole(&s.m, &s.out);
        snprintf(want, sizeof(want), "\"stop_reason\":%s,", rows[i].want);
        if (str_find(buf_str(&s.out), str_of(want)) < 0)
            fail_msg("row %zu: " STR_FMT, i, STR_ARG(buf_str(&s.out)));
        setup_close(&s);
    }
}

static void input_of_a_call_is_always_an_object(void **state) {
    static const char *const rows[][2] = {
        {"{\"x\": 1}", "{\"x\": 1}"}, {"[1]", "{}"}, {"\"s\"", "{}"}, {"{\"x\":", "{}"}};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char want[128];
        struct setup s;

        setup_open(&s);
        answer_begin_call(&s.answer, STR("f"), STR("t"));
        answer_add_arguments(&s.answer, str_of(rows[i][0]));
        answer_end_call(&s.answer, false);
        messages_put_whole(&s.m, &s.out);
        snprintf(want, sizeof(want), "\"name\":\"f\",\"input\":%s}", rows[i][1]);
        assert_true(str_find(buf_str(&s.out), str_of(want)) >= 0);
        setup_close(&s);
    }
}

static void diagnosis_has_the_names_of_messages(void **state) {
    static const struct {
        enum prompt_change change;
        const char *want;
    } rows[] = {
        {PROMPT_NOT_COMPARED, "null"},
        {PROMPT_REUSED, "null"},
        {PROMPT_NOT_FOUND, "{\"cache_miss_reason\":{\"type\":\"previous_message_not_found\"}}"},
        {PROMPT_SYSTEM, "{\"cache_miss_reason\":{\"type\":\"system_changed\","
                        "\"cache_missed_input_tokens\":48,\"cause\":\"system\"}}"},
        {PROMPT_TOOLS, "{\"cache_miss_reason\":{\"type\":\"tools_changed\","
                       "\"cache_missed_input_tokens\":48,\"cause\":\"tools\"}}"},
        {PROMPT_EFFORT, "{\"cache_miss_reason\":{\"type\":\"unavailable\","
                        "\"cache_missed_input_tokens\":48,\"cause\":\"effort\"}}"},
        {PROMPT_SETTINGS, "{\"cache_miss_reason\":{\"type\":\"unavailable\","
                          "\"cache_missed_input_tokens\":48,\"cause\":\"settings\"}}"},
        {PROMPT_MESSAGES, "{\"cache_miss_reason\":{\"type\":\"messages_changed\","
                          "\"cache_missed_input_tokens\":48,\"cause\":\"messages\"}}"},
        {PROMPT_TEMPLATE, "{\"cache_miss_reason\":{\"type\":\"unavailable\","
                          "\"cache_missed_input_tokens\":48,\"cause\":\"template\"}}"},
        {PROMPT_EVICTED, "{\"cache_miss_reason\":{\"type\":\"unavailable\","
                         "\"cache_missed_input_tokens\":48,\"cause\":\"evicted\"}}"},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct prompt_diagnosis d = {.change = rows[i].change, .n_equal = 16, .n_missed = 48};
        char want[256];
        struct setup s;

        setup_open(&s);
        messages_put_whole(&s.m, &s.out);
        assert_true(str_find(buf_str(&s.out), STR("diagnostics")) < 0); /* it is not asked for */
        buf_clear(&s.out);
        s.m.diagnosis = &d;
        messages_put_whole(&s.m, &s.out);
        snprintf(want, sizeof(want), "\"output_tokens\":1},\"diagnostics\":%s}", rows[i].want);
        assert_true(str_ends(buf_str(&s.out), str_of(want)));
        setup_close(&s);
    }
}

/* --- what a client makes of the events -------------------------------------------------------- */

/* Appends what is in the field of a delta to the block that is open. */
static void take_delta(const struct json *delta, struct buf *text) {
    static const char *const fields[] = {"thinking", "text", "partial_json"};
    struct str piece;

    for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
        if (json_to_str(json_get(delta, fields[i]), &piece) == ST_OK) buf_append_str(text, piece);
    }
}

/* The text of each block behind its type, and a line end; checks that one is open at a time. */
static void read_event(const struct json *event, int *open, struct buf *out) {
    const struct json *block = json_get(event, "content_block");
    struct str type, block_type = STR_NULL;
    uint64_t index = 0;

    assert_int_equal(json_to_str(json_get(event, "type"), &type), ST_OK);
    if (str_starts(type, STR("message_"))) return;
    assert_int_equal(json_to_u64(json_get(event, "index"), &index), ST_OK);
    if (block) {
        assert_int_equal(json_to_str(json_get(block, "type"), &block_type), ST_OK);
        buf_append_str(out, block_type);
        assert_true(*open % 2 == 0 && (int)index == *open / 2);
        (*open)++;
    } else {
        assert_true(*open % 2 == 1 && (int)index == *open / 2);
    }
    take_delta(json_get(event, "delta"), out);
    if (str_eq(type, STR("content_block_stop"))) {
        buf_append_char(out, '\n');
        (*open)++;
    }
}

static void read_events(struct str events, struct buf *out) {
    int open = 0;

    while (events.len) {
        ptrdiff_t from = str_find(events, STR("\ndata: ")), to = str_find(events, STR("\n\n"));
        struct json *event = NULL;

        assert_true(from > 0 && to > from && str_starts(events, STR("event: ")));
        assert_int_equal(json_parse(&event,
                                    (struct str){events.ptr + from + 7, (size_t)(to - from - 7)},
                                    NULL, NULL),
                         ST_OK);
        read_event(event, &open, out);
        json_destroy(event);
        events = (struct str){events.ptr + to + 2, events.len - (size_t)to - 2};
    }
    assert_true(open > 0 && open % 2 == 0);
}

static void read_whole(struct str whole, struct buf *out) {
    struct json *message = NULL;
    struct str type;

    assert_int_equal(json_parse(&message, whole, NULL, NULL), ST_OK);
    JSON_FOR_EACH(it, json_get(message, "content")) {
        struct json_writer w;

        assert_int_equal(json_to_str(json_get(it, "type"), &type), ST_OK);
        buf_append_str(out, type);
        take_delta(it, out);
        json_writer_init(&w, out);
        if (str_eq(type, STR("tool_use"))) json_put_tree(&w, json_get(it, "input"));
        buf_append_char(out, '\n');
    }
    json_destroy(message);
}

/* The arguments are in a canonical form only as a value. */
static void drop_blanks_of_arguments(struct buf *b) {
    char *p = b->data ? buf_ptr(b) : NULL, *to = p;

    for (size_t i = 0, n = buf_len(b); i < n; i++) {
        if (p[i] != ' ') *to++ = p[i];
    }
    if (p) buf_truncate(b, (size_t)(to - p));
}

static void pieces_are_what_is_whole(void **state) {
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    for (int i = 0; i < 2000; i++) {
        struct setup s;
        struct answer_growth g = {.answer = &s.answer, .rng = &rng, .look = look, .arg = &s};
        struct buf pieces, whole;
        bool is_cut;

        setup_open(&s);
        buf_init(&pieces, 0);
        buf_init(&whole, 0);
        messages_put_start(&s.m, &s.out);
        grow_answer(&g);
        look(&s);
        messages_put_end(&s.m, &s.stream, &s.out);
        read_events(buf_str(&s.out), &pieces);
        buf_clear(&s.out);
        messages_put_whole(&s.m, &s.out);
        read_whole(buf_str(&s.out), &whole);
        drop_blanks_of_arguments(&pieces);
        drop_blanks_of_arguments(&whole);
        is_cut = s.answer.n > 0 && s.answer.part[s.answer.n - 1].is_cut;
        if (!is_cut && !str_eq(buf_str(&pieces), buf_str(&whole)))
            fail_msg(STR_FMT "\nis not\n" STR_FMT, STR_ARG(buf_str(&pieces)),
                     STR_ARG(buf_str(&whole)));
        buf_fini(&pieces);
        buf_fini(&whole);
        setup_close(&s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_are_in_order_one_block_at_a_time), /* 103, 104 */
        cmocka_unit_test(empty_answer_has_one_empty_text),         /* 111 */
        cmocka_unit_test(reasons_to_stop_have_an_order),           /* 105 */
        cmocka_unit_test(input_of_a_call_is_always_an_object),
        cmocka_unit_test(diagnosis_has_the_names_of_messages),
        cmocka_unit_test(pieces_are_what_is_whole),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
