/* tests/unit/worker/api/test_wire_cuts.c - however a model's text is cut, a client of each API has
 * the same of a stream as of the whole answer.
 *
 *      text ─ cut ─▶ reader ─▶ answer ─▶ events ─▶ client ─┐
 *      text ───────▶ reader ─▶ answer ─▶ whole ──▶ client ─┴─ equal
 *
 * Random answers in every format, whole, cut by a limit, and broken (tests/support/reader_texts.h).
 * Each is cut once at each place, byte by byte, and at random, where a sender also skips pieces.
 * WIRE_CUTS sets how many (text, cut) pairs are sent in each API. */
#include <stdio.h>
#include <stdlib.h>

#include "common/text/json.h"
#include "tests/support/cm.h"
#include "tests/support/reader_texts.h"
#include "tests/support/support.h"
#include "worker/api/fields/tool_fields.h"
#include "worker/api/shapes/chat_answer.h"
#include "worker/api/wires/call_arguments.h"
#include "worker/api/wires/messages_answer.h"
#include "worker/api/wires/responses_answer.h"
#include "worker/output/output_internal.h"

#define PAIRS_DEFAULT 12000u
#define RANDOM_CUTS   6u

static struct json *chat_tools, *responses_body;
static struct tool_fields tools;

/* One stream: what was sent of the answer. */
struct stream {
    const struct answer *answer;
    struct answer_mark mark;
    uint32_t n_blocks;
    uint64_t n_events;
    struct buf out;
};

static struct json *parse(struct str text) {
    struct json_limits limits = {.max_bytes = text.len + 1, .max_depth = 512};
    struct error err = {0};
    struct json *v = NULL;

    if (json_parse(&v, text, &limits, &err) != ST_OK)
        fail_msg(STR_FMT ": %s", STR_ARG(text), err.message);
    return v;
}

static struct str text_of(const struct json *object, const char *name) {
    struct str text = STR_NULL;

    return json_to_str(json_get(object, name), &text) == ST_OK ? text : STR_NULL;
}

static void put_tree(struct buf *out, const struct json *v) {
    struct json_writer w;

    json_writer_init(&w, out);
    json_put_tree(&w, v);
}

static void put_line(struct buf *out, const char *what, struct str text) {
    buf_appendf(out, "%s " STR_FMT "\n", what, STR_ARG(text));
}

/* Calls a function with the data of each event. */
static void for_each_event(struct str events, void (*take)(const struct json *event, void *arg),
                           void *arg) {
    while (events.len) {
        ptrdiff_t from = str_find(events, STR("data: ")), to = str_find(events, STR("\n\n"));
        struct json *event;

        assert_true(from >= 0 && to > from);
        event = parse((struct str){events.ptr + from + 6, (size_t)(to - from - 6)});
        take(event, arg);
        json_destroy(event);
        events = (struct str){events.ptr + to + 2, events.len - (size_t)to - 2};
    }
}

/* --- chat ------------------------------------------------------------------------------------- */

static struct chat_answer chat_of(const struct answer *a) {
    return (struct chat_answer){.answer = a, .tools = &tools, .role = STR("assistant")};
}

static void chat_more(struct stream *s) {
    struct chat_answer a = chat_of(s->answer);
    struct answer_event e;
    struct json_writer w;

    while (chat_next(&a, &s->mark, &e)) {
        buf_append_str(&s->out, STR("data: "));
        json_writer_init(&w, &s->out);
        json_begin_object(&w);
        chat_put_delta(&w, &a, &e);
        json_end_object(&w);
        buf_append_str(&s->out, STR("\n\n"));
    }
}

static void chat_whole(const struct answer *answer, struct buf *out) {
    struct chat_answer a = chat_of(answer);
    struct json_writer w;

    json_writer_init(&w, out);
    json_begin_object(&w);
    chat_put_message(&w, &a);
    json_end_object(&w);
}

struct chat_client {
    struct buf content, reasoning, calls;
    uint64_t n_calls;
};

/* The call as a delta or the message has it; a delta behind the first has no id. */
static void take_call(struct chat_client *c, const struct json *call) {
    struct str id = text_of(call, "id"), type = text_of(call, "type");
    bool is_custom = json_get(call, "custom") != NULL;
    const struct json *function = json_get(call, is_custom ? "custom" : "function");

    if (id.ptr) {
        assert_true(str_eq(type, is_custom ? STR("custom") : STR("function")));
        buf_appendf(&c->calls, "\n" STR_FMT " " STR_FMT " " STR_FMT " ", STR_ARG(id), STR_ARG(type),
                    STR_ARG(text_of(function, "name")));
        c->n_calls++;
    }
    buf_append_str(&c->calls, text_of(function, is_custom ? "input" : "arguments"));
}

static void take_delta(const struct json *event, void *arg) {
    const struct json *delta = json_get(event, "delta");
    struct chat_client *c = arg;
    uint64_t index = 0;

    buf_append_str(&c->content, text_of(delta, "content"));
    buf_append_str(&c->reasoning, text_of(delta, "reasoning"));
    JSON_FOR_EACH(call, json_get(delta, "tool_calls")) {
        take_call(c, call);
        assert_int_equal(json_to_u64(json_get(call, "index"), &index), ST_OK);
        assert_int_equal(index + 1, c->n_calls);
    }
}

static void put_chat(struct chat_client *c, struct buf *out) {
    put_line(out, "content", buf_str(&c->content));
    put_line(out, "reasoning", buf_str(&c->reasoning));
    put_line(out, "calls", buf_str(&c->calls));
    buf_fini(&c->content);
    buf_fini(&c->reasoning);
    buf_fini(&c->calls);
}

static void read_chat_events(struct str events, const struct answer *answer, struct buf *out) {
    struct chat_client c = {0};

    (void)answer;
    for_each_event(events, take_delta, &c);
    put_chat(&c, out);
}

static void read_chat_whole(struct str whole, struct buf *out) {
    struct json *body = parse(whole);
    const struct json *message = json_get(body, "message");
    struct chat_client c = {0};

    buf_append_str(&c.content, text_of(message, "content"));
    buf_append_str(&c.reasoning, text_of(message, "reasoning"));
    JSON_FOR_EACH(call, json_get(message, "tool_calls")) take_call(&c, call);
    put_chat(&c, out);
    json_destroy(body);
}

/* --- messages --------------------------------------------------------------------------------- */

static struct messages_answer messages_of(const struct answer *a) {
    return (struct messages_answer){.id = "msg_1", .model = "m", .answer = a};
}

static void messages_start(struct stream *s) {
    struct messages_answer m = messages_of(s->answer);

    messages_put_start(&m, &s->out);
}

static void messages_more(struct stream *s) {
    struct messages_answer m = messages_of(s->answer);
    struct messages_stream stream = {.mark = &s->mark, .n_blocks = s->n_blocks};

    messages_put_more(&m, &stream, &s->out);
    s->n_blocks = stream.n_blocks;
}

static void messages_end(struct stream *s) {
    struct messages_answer m = messages_of(s->answer);
    struct messages_stream stream = {.mark = &s->mark, .n_blocks = s->n_blocks};

    messages_put_end(&m, &stream, &s->out);
}

static void messages_whole(const struct answer *answer, struct buf *out) {
    struct messages_answer m = messages_of(answer);

    messages_put_whole(&m, out);
}

struct messages_client {
    const struct answer *answer;
    struct buf *out;
    struct buf text; /* of the block that is open */
    char type[24], id[ANSWER_ID_MAX], name[64];
    uint64_t n_blocks, n_shown;
    bool is_open;
};

/* A call that is cut is in no whole answer. Ids are unique. */
static bool is_cut_call(const struct answer *a, const char *id) {
    const struct answer_part *found = NULL;

    for (uint32_t i = 0; i < a->n; i++) {
        if (strcmp(a->part[i].id, id) != 0) continue;
        assert_null(found);
        found = &a->part[i];
    }
    assert_non_null(found);
    return found->is_cut;
}

/* The input is what pieces spell, if that is an object. */
static void put_input(struct messages_client *c) {
    struct buf kept;
    struct json *input;

    buf_init(&kept, 0);
    input = call_arguments_read(buf_str(&c->text), &kept);
    if (input) {
        put_tree(c->out, input);
    } else {
        buf_append_str(c->out, STR("{}"));
    }
    buf_append_char(c->out, '\n');
    json_destroy(input);
    buf_fini(&kept);
}

static void open_block(struct messages_client *c, const struct json *block) {
    assert_false(c->is_open);
    c->is_open = true;
    buf_clear(&c->text);
    snprintf(c->type, sizeof(c->type), STR_FMT, STR_ARG(text_of(block, "type")));
    snprintf(c->id, sizeof(c->id), STR_FMT, STR_ARG(text_of(block, "id")));
    snprintf(c->name, sizeof(c->name), STR_FMT, STR_ARG(text_of(block, "name")));
}

static void close_block(struct messages_client *c) {
    c->is_open = false;
    c->n_blocks++;
    if (strcmp(c->type, "tool_use") == 0 && is_cut_call(c->answer, c->id)) return;
    c->n_shown++;
    buf_appendf(c->out, "%s %s %s ", c->type, c->id, c->name);
    if (strcmp(c->type, "tool_use") == 0) {
        put_input(c);
    } else {
        put_line(c->out, "", buf_str(&c->text));
    }
}

static void take_messages_event(const struct json *event, void *arg) {
    static const char *const fields[] = {"thinking", "text", "partial_json"};
    struct messages_client *c = arg;
    struct str type = text_of(event, "type");
    uint64_t index = 0;

    if (str_starts(type, STR("message_"))) return;
    assert_int_equal(json_to_u64(json_get(event, "index"), &index), ST_OK);
    assert_int_equal(index, c->n_blocks);
    if (str_eq(type, STR("content_block_start"))) {
        open_block(c, json_get(event, "content_block"));
        return;
    }
    assert_true(c->is_open);
    for (size_t i = 0; i < ARRAY_LEN(fields); i++)
        buf_append_str(&c->text, text_of(json_get(event, "delta"), fields[i]));
    if (str_eq(type, STR("content_block_stop"))) close_block(c);
}

static void read_messages_events(struct str events, const struct answer *answer, struct buf *out) {
    struct messages_client c = {.answer = answer, .out = out};

    for_each_event(events, take_messages_event, &c);
    assert_true(c.n_blocks > 0 && !c.is_open);
    if (c.n_shown == 0) buf_append_str(out, STR("text    \n"));
    buf_fini(&c.text);
}

static void read_messages_whole(struct str whole, struct buf *out) {
    struct json *body = parse(whole);

    JSON_FOR_EACH(block, json_get(body, "content")) {
        struct str type = text_of(block, "type"), thinking = text_of(block, "thinking");

        buf_appendf(out, STR_FMT " " STR_FMT " " STR_FMT " ", STR_ARG(type),
                    STR_ARG(text_of(block, "id")), STR_ARG(text_of(block, "name")));
        if (str_eq(type, STR("tool_use"))) {
            put_tree(out, json_get(block, "input"));
            buf_append_char(out, '\n');
        } else {
            put_line(out, "", thinking.ptr ? thinking : text_of(block, "text"));
        }
    }
    json_destroy(body);
}

/* --- responses -------------------------------------------------------------------------------- */

static struct responses_answer responses_of(const struct answer *a) {
    return (struct responses_answer){
        .id = "resp_7", .model = "m", .asked = responses_body, .answer = a};
}

static struct responses_stream responses_stream_of(struct stream *s) {
    return (struct responses_stream){
        .mark = &s->mark, .n_items = s->n_blocks, .sequence = s->n_events};
}

static void responses_step(struct stream *s,
                           void (*put)(const struct responses_answer *r,
                                       struct responses_stream *stream, struct buf *out)) {
    struct responses_answer r = responses_of(s->answer);
    struct responses_stream stream = responses_stream_of(s);

    put(&r, &stream, &s->out);
    s->n_blocks = stream.n_items;
    s->n_events = stream.sequence;
}

static void responses_start(struct stream *s) {
    responses_step(s, responses_put_start);
}

static void responses_more(struct stream *s) {
    responses_step(s, responses_put_more);
}

static void responses_end(struct stream *s) {
    responses_step(s, responses_put_end);
}

static void responses_whole(const struct answer *answer, struct buf *out) {
    struct responses_answer r = responses_of(answer);

    responses_put_whole(&r, out);
}

struct responses_client {
    struct buf *out;
    struct buf deltas; /* of the item that is open */
    struct buf items;  /* those that are done */
    uint64_t sequence;
    bool is_open, is_over;
};

/* The whole item has what its deltas had. */
static void close_item(struct responses_client *c, const struct json *item) {
    static const char *const fields[] = {"arguments", "input"};
    const struct json *content = json_get(item, "content");
    struct str text = STR_NULL;

    assert_true(c->is_open);
    c->is_open = false;
    for (size_t i = 0; i < ARRAY_LEN(fields); i++)
        if (!text.ptr) text = text_of(item, fields[i]);
    if (content) text = text_of(json_first(content), "text");
    assert_true(str_eq(text, buf_str(&c->deltas)));
    buf_clear(&c->deltas);
    if (buf_len(&c->items)) buf_append_char(&c->items, ',');
    put_tree(&c->items, item);
}

static void take_responses_event(const struct json *event, void *arg) {
    struct responses_client *c = arg;
    struct str type = text_of(event, "type"), delta = text_of(event, "delta");
    uint64_t n = 0;

    assert_int_equal(json_to_u64(json_get(event, "sequence_number"), &n), ST_OK);
    assert_int_equal(n, c->sequence++);
    assert_false(c->is_over);
    if (str_eq(type, STR("response.output_item.added"))) {
        assert_false(c->is_open);
        c->is_open = true;
    } else if (str_eq(type, STR("response.output_item.done"))) {
        close_item(c, json_get(event, "item"));
    } else if (str_eq(type, STR("response.completed"))) {
        c->is_over = true;
        put_tree(c->out, json_get(json_get(event, "response"), "output"));
    } else if (delta.ptr) {
        assert_true(c->is_open);
        buf_append_str(&c->deltas, delta);
    }
}

static void read_responses_events(struct str events, const struct answer *answer, struct buf *out) {
    struct responses_client c = {.out = out};
    size_t before = buf_len(out);
    struct str last; /* brackets around what the items are */

    (void)answer;
    for_each_event(events, take_responses_event, &c);
    assert_true(c.is_over && !c.is_open);
    last = (struct str){buf_ptr(out) + before + 1, buf_len(out) - before - 2};
    assert_true(str_eq(last, buf_str(&c.items)));
    buf_fini(&c.deltas);
    buf_fini(&c.items);
}

static void read_responses_whole(struct str whole, struct buf *out) {
    struct json *body = parse(whole);

    put_tree(out, json_get(body, "output"));
    json_destroy(body);
}

/* --- each beside the whole -------------------------------------------------------------------- */

static const struct wire {
    const char *name;
    void (*start)(struct stream *s);
    void (*more)(struct stream *s);
    void (*end)(struct stream *s);
    void (*whole)(const struct answer *answer, struct buf *out);
    void (*read_events)(struct str events, const struct answer *answer, struct buf *out);
    void (*read_whole)(struct str whole, struct buf *out);
} wires[] = {
    {"chat", NULL, chat_more, NULL, chat_whole, read_chat_events, read_chat_whole},
    {"messages", messages_start, messages_more, messages_end, messages_whole, read_messages_events,
     read_messages_whole},
    {"responses", responses_start, responses_more, responses_end, responses_whole,
     read_responses_events, read_responses_whole},
};

struct sender {
    struct stream stream[ARRAY_LEN(wires)];
    struct rng *rng; /* NULL: each piece is sent as it comes */
};

static void look(void *arg) {
    struct sender *s = arg;

    if (s->rng && rng_below(s->rng, 2)) return;
    for (size_t i = 0; i < ARRAY_LEN(wires); i++)
        wires[i].more(&s->stream[i]);
}

static void start(struct sender *s, struct reader_fixture *f) {
    for (size_t i = 0; i < ARRAY_LEN(wires); i++) {
        s->stream[i] = (struct stream){.answer = &f->answer, .out = s->stream[i].out};
        buf_clear(&s->stream[i].out);
        if (wires[i].start) wires[i].start(&s->stream[i]);
    }
    f->look = look;
    f->look_arg = s;
}

static bool never(void *arg, size_t at) {
    (void)arg, (void)at;
    return false;
}

static bool always(void *arg, size_t at) {
    (void)arg, (void)at;
    return true;
}

static bool once(void *arg, size_t at) {
    return *(size_t *)arg == at;
}

static bool at_random(void *arg, size_t at) {
    (void)at;
    return rng_below(arg, 5) == 0;
}

struct bench {
    struct sender sender;
    struct buf whole[ARRAY_LEN(wires)]; /* what a client has of the whole answer */
    struct buf got;
};

static void read_whole(struct bench *b, const struct reader_text *t, struct reader_fixture *f) {
    f->look = NULL;
    reader_fixture_begin(f);
    reader_text_push(t, f, never, NULL);
    reader_fixture_end(f, t->is_cut);
    for (size_t i = 0; i < ARRAY_LEN(wires); i++) {
        buf_clear(&b->got);
        buf_clear(&b->whole[i]);
        wires[i].whole(&f->answer, &b->got);
        wires[i].read_whole(buf_str(&b->got), &b->whole[i]);
    }
    answer_fini(&f->answer);
}

static void check_cut(struct bench *b, const struct reader_text *t, struct reader_fixture *f,
                      bool (*is_cut_at)(void *, size_t), void *arg) {
    struct sender *s = &b->sender;

    reader_fixture_begin(f);
    start(s, f);
    reader_text_push(t, f, is_cut_at, arg);
    reader_fixture_end(f, t->is_cut);
    for (size_t i = 0; i < ARRAY_LEN(wires); i++) {
        wires[i].more(&s->stream[i]);
        if (wires[i].end) wires[i].end(&s->stream[i]);
        buf_clear(&b->got);
        wires[i].read_events(buf_str(&s->stream[i].out), &f->answer, &b->got);
        if (!str_eq(buf_str(&b->got), buf_str(&b->whole[i])))
            fail_msg("%s, %s:\n" STR_FMT "\nwhole:\n" STR_FMT "\nstreamed:\n" STR_FMT,
                     wires[i].name, call_format_name(f->setup.calls), STR_ARG(buf_str(&t->bytes)),
                     STR_ARG(buf_str(&b->whole[i])), STR_ARG(buf_str(&b->got)));
    }
    answer_fini(&f->answer);
}

static uint64_t check_text(struct bench *b, const struct reader_text *t, struct reader_fixture *f,
                           struct rng *rng) {
    size_t length = MAX(reader_text_length(t), (size_t)1);

    read_whole(b, t, f);
    b->sender.rng = NULL;
    check_cut(b, t, f, always, NULL);
    for (size_t at = 1; at < length; at++)
        check_cut(b, t, f, once, &at);
    b->sender.rng = rng;
    for (uint32_t i = 0; i < RANDOM_CUTS; i++)
        check_cut(b, t, f, at_random, rng);
    return length + RANDOM_CUTS;
}

/* Of the functions that random answers call, f and h are functions, g is custom. */
static void set_up_tools(void) {
    static const char chat[] = "{\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}},"
                               "{\"type\":\"custom\",\"custom\":{\"name\":\"g\"}},"
                               "{\"type\":\"function\",\"function\":{\"name\":\"h\"}}]}";
    static const char responses[] =
        "{\"tools\":[{\"type\":\"function\",\"name\":\"f\"},{\"type\":\"custom\",\"name\":\"g\"},"
        "{\"type\":\"namespace\",\"name\":\"a.b\",\"tools\":[{\"type\":\"function\",\"name\":\"c\"}"
        "]}],"
        "\"include\":[\"reasoning.encrypted_content\"]}";

    chat_tools = parse(str_of(chat));
    responses_body = parse(str_of(responses));
    assert_int_equal(tool_fields_parse(&tools, chat_tools, NULL), ST_OK);
}

static void a_stream_is_the_whole_in_each_api(void **state) {
    static const char *const reasoning[] = {NULL, "deepseek_r1", "mistral", "granite"};
    const char *asked = getenv("WIRE_CUTS");
    uint64_t n = 0, most = asked ? strtoull(asked, NULL, 10) : PAIRS_DEFAULT;
    struct bench b = {0};
    struct reader_text t;

    (void)state;
    set_up_tools();
    reader_text_init(&t);
    for (uint32_t round = 0; n < most; round++) {
        const struct call_format *c;
        struct rng rng;

        rng_seed(&rng, support_seed() + round);
        for (uint32_t i = 0; (c = call_format_at(i)); i++) {
            struct reader_fixture f;

            reader_fixture_init(
                &f, c->name,
                c->body == BODY_HARMONY ? "openai" : reasoning[(round + i) % ARRAY_LEN(reasoning)],
                round % 2);
            reader_text_draw(&t, &f, &rng);
            n += check_text(&b, &t, &f, &rng);
            reader_fixture_fini(&f);
        }
    }
    for (size_t i = 0; i < ARRAY_LEN(wires); i++) {
        buf_fini(&b.sender.stream[i].out);
        buf_fini(&b.whole[i]);
    }
    buf_fini(&b.got);
    reader_text_fini(&t);
    tool_fields_fini(&tools);
    json_destroy(chat_tools);
    json_destroy(responses_body);
    if (asked) printf("%llu pairs in each API, no difference\n", (unsigned long long)n);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stream_is_the_whole_in_each_api), /* 114 */
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
