/* tests/unit/router/fleet/test_kube_watch_random.c - servers that are away, and one that fails at
 * random. */
#include <signal.h>

#include "common/base/rng.h"
#include "tests/support/support.h"
#include "tests/unit/router/fleet/kube_fixture.h"

static void while_the_server_is_away_everything_stays(void **state) {
    struct fixture fx;

    (void)state;
    init(&fx);
    expect(&fx, &(struct answer){200, LISTED("10", POD("a", "3"))});
    start(&fx, (struct kube_config){0});
    UNTIL(&fx, fx.open);
    watch_write(&fx, BOOKMARK("12"));
    turn_idly(&fx);
    http_server_destroy(fx.server);
    fx.server = NULL;
    UNTIL(&fx, kube_watch_stale_s(fx.watch) > 0);
    turn_idly(&fx);
    assert_string_equal(held(&fx), "a");
    assert_true(kube_watch_is_synced(fx.watch));
    assert_true(kube_watch_stale_s(fx.watch) > 0);
    assert_int_equal(fx.n_changes, 1);

    start_server(&fx);
    UNTIL(&fx, fx.open);
    assert_true(is_watch(&fx, 2, "12"));
    UNTIL(&fx, kube_watch_stale_s(fx.watch) == 0); /* though no event has come yet */
    watch_write(&fx, EVENT("ADDED", "b", "13"));
    UNTIL(&fx, fx.n_changes == 2);
    assert_string_equal(held(&fx), "ab");
    finish(&fx);
}

static void a_complete_list_corrects_every_earlier_state(void **state) {
    struct fixture fx;

    (void)state;
    init(&fx);
    expect(&fx, &(struct answer){200, LISTED("10", POD("a", "3"))});
    expect(&fx, &(struct answer){503, ""});
    expect(&fx, &(struct answer){410, ""});
    expect(&fx, &(struct answer){200, LISTED("20", POD("a", "3"))});
    expect(&fx, &(struct answer){429, "", "200"}); /* and there it stays */
    start(&fx, (struct kube_config){0});
    UNTIL(&fx, fx.n_ended == 2);
    assert_true(kube_watch_stale_s(fx.watch) == 0);
    UNTIL(&fx, fx.n_requests == 5);
    UNTIL(&fx, kube_watch_stale_s(fx.watch) > 0);
    assert_true(kube_watch_stale_s(fx.watch) < 100);
    finish(&fx);
}

/* --- at random -------------------------------------------------------------------------------- */

/* A server with a history, that pages by three, forgets, cuts and refuses; in the end both
 * agree. */
struct server_model {
    struct rng rng;
    bool has[26], page_has[26]; /* now; when the list that is being paged began */
    struct {
        char name, type; /* 'A', 'M', 'D' */
    } history[4096];
    uint32_t version, oldest; /* of history: [i] made version i + 1; oldest kept */
    bool is_calm;
};

static struct server_model server;

static void send_event(struct http_request *req, uint32_t version) {
    char text[200];

    snprintf(text, sizeof(text),
             "{\"type\":\"%s\",\"object\":{\"metadata\":{\"name\":\"%c\",\"resourceVersion\":\"%"
             "u\"}}}\n",
             server.history[version - 1].type == 'A'   ? "ADDED"
             : server.history[version - 1].type == 'M' ? "MODIFIED"
                                                       : "DELETED",
             server.history[version - 1].name, version);
    if (rng_below(&server.rng, 2)) { /* in two chunks */
        http_stream_write(req, (struct str){text, 20});
        http_stream_write(req, str_of(text + 20));
    } else {
        http_stream_write(req, str_of(text));
    }
}

static uint32_t number_after(const char *target, const char *name) {
    const char *at = strstr(target, name);

    return at ? (uint32_t)strtoul(at + strlen(name), NULL, 10) : 0;
}

static void answer_list(struct fixture *fx, struct http_request *req, const char *target) {
    uint32_t from = number_after(target, "continue="), n = 0;
    struct buf out;

    (void)fx;
    if (from && !server.is_calm && rng_below(&server.rng, 4) == 0) {
        http_reply(req, 410, NULL, STR(STATUS(410, "Expired", "old")));
        return;
    }
    if (!from) memcpy(server.page_has, server.has, sizeof(server.has));
    buf_init(&out, 0);
    buf_appendf(&out, "{\"items\":[");
    for (; from < 26 && n < 3; from++) {
        if (!server.page_has[from]) continue;
        buf_appendf(&out, "%s{\"metadata\":{\"name\":\"%c\"}}", n++ ? "," : "", 'a' + (int)from);
    }
    /* The snapshot's version: nothing changes between the pages of one list. */
    buf_appendf(&out, "],\"metadata\":{\"resourceVersion\":\"%u\"", server.version);
    if (from < 26) buf_appendf(&out, ",\"continue\":\"%u\"", from);
    buf_appendf(&out, "}}");
    http_reply(req, 200, "application/json", buf_str(&out));
    buf_fini(&out);
}

static void answer_watch(struct fixture *fx, struct http_request *req, const char *target) {
    uint32_t from = number_after(target, "resourceVersion=");

    go_on(fx, req, NULL);
    if (from < server.oldest) {
        http_stream_write(req, STR(GONE));
        end_watch(fx);
        return;
    }
    for (uint32_t v = from + 1; v <= server.version; v++)
        send_event(req, v);
}

static void answer_from_model(struct fixture *fx, struct http_request *req) {
    char target[700];

    snprintf(target, sizeof(target), "%s", fx->targets[0]);
    fx->n_requests = 0;
    if (!server.is_calm && rng_below(&server.rng, 6) == 0) {
        http_reply(req, rng_below(&server.rng, 2) ? 500 : 429, NULL, STR("{}"));
    } else if (strstr(target, "watch=true")) {
        answer_watch(fx, req, target);
    } else {
        answer_list(fx, req, target);
    }
}

static void mutate(struct fixture *fx) {
    int i = (int)rng_below(&server.rng, 26);
    char type = !server.has[i] ? 'A' : rng_below(&server.rng, 2) ? 'M' : 'D';

    if (server.version == ARRAY_LEN(server.history)) return;
    server.has[i] = type != 'D';
    server.history[server.version].name = (char)('a' + i);
    server.history[server.version].type = type;
    server.version++;
    if (!fx->open) return;
    send_event(fx->open, server.version);
    if (rng_below(&server.rng, 8) == 0) send_event(fx->open, server.version); /* doubled */
}

static void disturb(struct fixture *fx) {
    switch (rng_below(&server.rng, 8)) {
    case 0: server.oldest = server.version; break;
    case 1:
        if (fx->open) http_stream_break(fx->open);
        fx->open = NULL;
        break;
    case 2:
        if (fx->open) end_watch(fx);
        break;
    case 3:
        if (fx->open) http_stream_write(fx->open, STR(BOOKMARK("0") "junk\n"));
        break;
    case 4: /* away */
        http_server_destroy(fx->server);
        fx->server = NULL;
        loop_turn(fx->loop, 1000);
        start_server(fx);
        break;
    default: break;
    }
}

static bool agrees(const struct fixture *fx) {
    for (int i = 0; i < 26; i++) {
        if (server.has[i] != (fx->round_of[i] != 0)) return false;
    }
    return true;
}

static void at_random_the_copy_ends_up_right(void **state) {
    struct fixture fx;

    (void)state;
    memset(&server, 0, sizeof(server));
    rng_seed(&server.rng, support_seed());
    init(&fx);
    fx.on_request = answer_from_model;
    start(&fx, (struct kube_config){.intervals.relist_ms = 200});
    for (int i = 0; i < 1500; i++) {
        server.is_calm = false;
        mutate(&fx);
        if (rng_below(&server.rng, 4) == 0) disturb(&fx);
        loop_turn(fx.loop, rng_below(&server.rng, 3) * 500);
        if (i % 100) continue;
        server.is_calm = true; /* nothing changes for a while */
        UNTIL(&fx, kube_watch_is_synced(fx.watch) && agrees(&fx));
    }
    finish(&fx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(while_the_server_is_away_everything_stays),
        cmocka_unit_test(a_complete_list_corrects_every_earlier_state),
        cmocka_unit_test(at_random_the_copy_ends_up_right),
    };

    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
