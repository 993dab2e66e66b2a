/* tests/unit/router/fleet/test_kube_watch.c - what API servers really do, and the copy that stays
 * right. */
#include <signal.h>

#include "tests/unit/router/fleet/kube_fixture.h"

/* --- the ordinary way ------------------------------------------------------------------------- */

static void a_list_of_any_version_then_a_watch_from_there(void **state) {
    struct fixture fx;
    const char *seconds;

    (void)state;
    init(&fx);
    expect(&fx, &(struct answer){200, LISTED("10", POD("a", "3") "," POD("b", "9"))});
    start(&fx, (struct kube_config){0});
    assert_false(kube_watch_is_synced(fx.watch));
    UNTIL(&fx, fx.open);
    assert_string_equal(fx.targets[0], LIST_PATH "&limit=500&resourceVersion=0");
    assert_true(is_watch(&fx, 1, "10"));
    seconds = strstr(fx.targets[1], "timeoutSeconds=") + strlen("timeoutSeconds=");
    assert_in_range(atoi(seconds), 300, 600);
    assert_string_equal(fx.agent, "incipit/" INCIPIT_VERSION " (router)");
    assert_string_equal(held(&fx), "ab");
    assert_int_equal(fx.n_begun, 1);
    assert_int_equal(fx.n_ended, 1);
    assert_int_equal(fx.n_changes, 1);
    assert_true(kube_watch_is_synced(fx.watch));
    assert_true(kube_watch_stale_s(fx.watch) == 0);
    finish(&fx);
}

static void events_come_through_however_they_are_cut(void **state) {
    static const char stream[] = EVENT("ADDED", "c", "11") EVENT("MODIFIED", "a", "12")
        EVENT("DELETED", "b", "13") BOOKMARK("20");
    struct fixture fx;

    (void)state;
    init(&fx);
    expect(&fx, &(struct answer){200, LISTED("10", POD("a", "3") "," POD("b", "9"))});
    start(&fx, (struct kube_config){0});
    UNTIL(&fx, fx.open);
    for (size_t i = 0; stream[i]; i++) { /* a chunk each, often a read each */
        http_stream_write(fx.open, (struct str){stream + i, 1});
        if (i % 3 == 0) loop_turn(fx.loop, 0);
    }
    UNTIL(&fx, fx.n_gone == 1);
    assert_string_equal(held(&fx), "ac");
    assert_int_equal(fx.n_objects, 4);
    end_watch(&fx);
    UNTIL(&fx, fx.n_requests == 3);
    assert_true(is_watch(&fx, 2, "20")); /* the bookmark's */
    assert_int_equal(fx.n_begun, 1);
    finish(&fx);
}

static void several_events_of_one_read_are_one_change(void **state) {
    struct fixture fx;

    (void)state;
    init(&fx);
    expect(&fx, &(struct answer){200, LISTED("10", "")});
    start(&fx, (struct kube_config){0});
    UNTIL(&fx, fx.open);
    watch_write(&fx, EVENT("ADDED", "c", "11") EVENT("ADDED", "d", "12") BOOKMARK("13"));
    UNTIL(&fx, fx.n_changes == 2);
    assert_string_equal(held(&fx), "cd");
    watch_write(&fx, BOOKMARK("14"));
    turn_idly(&fx);
    assert_int_equal(fx.n_changes, 2); /* nothing to look at */
    finish(&fx);
}

static void pages_are_one_list(void **state) {
    struct fixture fx;

    (void)state;
    init(&fx);
    expect(&fx, &(struct answer){200, PAGE("10", "t/1=", POD("a", "3"))});
    expect(&fx, &(struct answer){200, PAGE("10", "t2", POD("b", "3"))});
    expect(&fx, &(struct answer){200, LISTED("12", POD("c", "3"))});
    start(&fx, (struct kube_config){0});
    UNTIL(&fx, fx.open);
    assert_string_equal(fx.targets[1], LIST_PATH "&limit=500&continue=t%2F1%3D");
    assert_string_equal(fx.targets[2], LIST_PATH "&limit=500&continue=t2");
    assert_string_equal(held(&fx), "abc");
    assert_int_equal(fx.n_begun, 1);
    assert_int_equal(fx.n_ended, 1);
    assert_int_equal(fx.n_changes, 1);
    assert_true(is_watch(&fx, 3, "10")); /* nothing since the first page is missed */
    finish(&fx);
}

/* As from a server that does not look at `continue`. */
static void pages_that_go_round_are_no_list(void **state) {
    struct fixture fx;

    (void)state;
    init(&fx);
    for (int i = 0; i < 2; i++)
        expect(&fx, &(struct answer){200, PAGE("10", "t1", POD("a", "3"))});
    start(&fx,
          (struct kube_config){.intervals.backoff_ms = NEVER, .intervals.backoff_max_ms = NEVER});
    UNTIL(&fx, strstr(log_text(&fx), "pages repeat"));
    turn_idly(&fx);
    assert_int_equal(fx.n_requests, 2);
    assert_int_equal(fx.n_ended, 0);
    finish(&fx);
}

/* A server's memory answers the first list whole, whatever the limit. */
static void a_list_of_any_length_is_reported_item_by_item(void **state) {
    enum { N = 1500, BYTES = 20000 };
    struct fixture fx;
    struct buf body;

    (void)state;
    init(&fx);
    buf_init(&body, 0);
    buf_appendf(&body, "{\"metadata\":{\"resourceVersion\":\"10\"},\"items\":[");
    for (int i = 0; i < N; i++) {
        buf_appendf(&body, "%s{\"metadata\":{\"name\":\"%c\",\"managedFields\":\"%0*d\"}}",
                    i ? "," : "", 'a' + i % 26, BYTES, i);
    }
    buf_appendf(&body, "]}");
    buf_append_char(&body, '\0');
    expect(&fx, &(struct answer){200, buf_ptr(&body)});
    start(&fx, (struct kube_config){0});
    UNTIL(&fx, fx.open);
    assert_int_equal(fx.n_objects, N);
    assert_true(fx.object_bytes > (size_t)N * BYTES);
    assert_int_equal(fx.n_ended, 1);
    buf_fini(&body);
    finish(&fx);
}

static void the_list_is_repeated_periodically(void **state) {
    struct fixture fx;

    (void)state;
    init(&fx);
    expect(&fx, &(struct answer){200, LISTED("10", POD("a", "3") "," POD("b", "3"))});
    expect(&fx, &(struct answer){0, BOOKMARK("11")});
    expect(&fx, &(struct answer){200, LISTED("30", POD("b", "3"))});
    start(&fx, (struct kube_config){.intervals.relist_ms = 100});
    UNTIL(&fx, fx.n_requests == 4);
    assert_true(is_new_list(&fx, 2)); /* what is stored now, not what is remembered */
    assert_true(is_watch(&fx, 3, "30"));
    assert_string_equal(held(&fx), "b");
    finish(&fx);
}

static void a_list_that_is_merely_due_may_be_put_off(void **state) {
    struct fixture fx;

    (void)state;
    init(&fx);
    expect(&fx, &(struct answer){200, LISTED("10", POD("a", "3"))});
    expect(&fx, &(struct answer){0, BOOKMARK("11")});
    expect(&fx, &(struct answer){429, STATUS(429, "TooManyRequests", "slow down"), "200"});
    expect(&fx, &(struct answer){0, EVENT("ADDED", "b", "12")});
    expect(&fx, &(struct answer){200, LISTED("30", POD("c", "29"))});
    start(&fx, (struct kube_config){.intervals.relist_ms = 600});
    UNTIL(&fx, fx.n_objects == 2);
    assert_string_equal(held(&fx), "ab");
    assert_true(is_new_list(&fx, 2));
    assert_true(is_watch(&fx, 3, "11"));
    assert_non_null(strstr(log_text(&fx), "kube_list_deferred"));
    UNTIL(&fx, fx.n_requests == 6);
    assert_true(is_new_list(&fx, 4));
    assert_string_equal(held(&fx), "c");
    assert_int_equal(fx.n_begun, 2);
    finish(&fx);
}

/* Neither a partial list nor one requested because the watch lacks a version. */
static void a_list_that_is_needed_is_not_put_off(void **state) {
    struct fixture fx;

    (void)state;
    init(&fx);
    expect(&fx, &(struct answer){200, LISTED("10", POD("a", "3"))});
    expect(&fx, &(struct answer){0, BOOKMARK("11")});
    expect(&fx, &(struct answer){0, "{\"items\":[" POD("b", "4")});
    start(&fx, (struct kube_config){.intervals.relist_ms = 600});
    UNTIL(&fx, fx.n_requests == 3 && fx.n_objects == 2);
    expect(&fx, &(struct answer){429, ""});
    expect(&fx, &(struct answer){200, LISTED("20", POD("b", "4"))});
    expect(&fx, &(struct answer){0, GONE});
    expect(&fx, &(struct answer){429, ""});
    expect(&fx, &(struct answer){200, LISTED("30", POD("c", "29"))});
    http_stream_break(fx.open);
    fx.open = NULL;
    UNTIL(&fx, fx.n_requests == 9);
    assert_true(is_new_list(&fx, 3));
    assert_true(is_new_list(&fx, 4));
    assert_true(is_watch(&fx, 5, "20"));
    assert_true(is_new_list(&fx, 6));
    assert_true(is_new_list(&fx, 7));
    assert_string_equal(held(&fx), "c");
    finish(&fx);
}

/* --- watches that end ------------------------------------------------------------------------- */

static void a_watch_without_events_was_blind(void **state) {
    struct fixture fx;

    (void)state;
    init(&fx);
    expect(&fx, &(struct answer){200, LISTED("99", POD("a", "3"))});
    expect(&fx, &(struct answer){200, ""});
    expect(&fx, &(struct answer){200, LISTED("10", POD("b", "4"))});
    start(&fx, (struct kube_config){0});
    UNTIL(&fx, fx.n_requests == 4);
    assert_true(is_new_list(&fx, 2));
    assert_true(is_watch(&fx, 3, "10"));
    assert_string_equal(held(&fx), "b");
    finish(&fx);
}

/* Each watch is judged by itself. */
static void earlier_events_do_not_count(void **state) {
    struct fixture fx;

    (void)state;
    init(&fx);
    expect(&fx, &(struct answer){200, LISTED("10", POD("a", "3"))});
    expect(&fx, &(struct answer){200, BOOKMARK("11")});
    expect(&fx, &(struct answer){200, ""});
    start(&fx, (struct kube_config){0});
    UNTIL(&fx, fx.n_requests == 4);
    assert_true(is_watch(&fx, 2, "11"));
    assert_true(is_new_list(&fx, 3));
    finish(&fx);
}

static void an_ended_watch_resumes_at_once_and_then_backs_off(void **state) {
    struct fixture fx;

    (void)state;
    init(&fx);
    expect(&fx, &(struct answer){200, LISTED("10", POD("a", "3"))});
    expect(&fx, &(struct answer){200, BOOKMARK("11")});
    expect(&fx, &(struct answer){200, BOOKMARK("12")});
    start(&fx,
          (struct kube_config){.intervals.backoff_ms = NEVER, .intervals.backoff_max_ms = NEVER});
    UNTIL(&fx, fx.n_requests == 3);
    turn_idly(&fx);
    assert_int_equal(fx.n_requests, 3);
    finish(&fx);
}

static void a_watch_that_lasted_is_followed_by_the_next_at_once(void **state) {
    struct fixture fx;

    (void)state;
    init(&fx);
    expect(&fx, &(struct answer){200, LISTED("10", POD("a", "3"))});
    start(&fx, (struct kube_config){.intervals.healthy_ms = 1,
                                    .intervals.backoff_ms = NEVER,
                                    .intervals.backoff_max_ms = NEVER});
    for (int i = 2; i < 6; i++) {
        UNTIL(&fx, fx.open && fx.n_requests == i);
        watch_write(&fx, BOOKMARK("11"));
        turn_idly(&fx);
        end_watch(&fx);
    }
    UNTIL(&fx, fx.n_requests == 6);
    finish(&fx);
}

static void a_list_that_is_due_does_not_disturb_one_under_way(void **state) {
    struct fixture fx;

    (void)state;
    init(&fx);
    expect(&fx, &(struct answer){200, LISTED("10", POD("a", "3"))});
    expect(&fx, &(struct answer){0, GONE});
    start(&fx, (struct kube_config){.intervals.relist_ms = 20});
    UNTIL(&fx, fx.n_requests == 3); /* a list that takes its time */
    turn_idly(&fx);
    assert_int_equal(fx.n_requests, 3);
    finish(&fx);
}

static void a_watch_without_data_is_ended(void **state) {
    struct fixture fx;

    (void)state;
    init(&fx);
    expect(&fx, &(struct answer){200, LISTED("99", POD("a", "3"))});
    expect(&fx, &(struct answer){0, NULL});
    expect(&fx, &(struct answer){200, LISTED("10", POD("b", "4"))});
    expect(&fx, &(struct answer){0, BOOKMARK("11")});
    start(&fx, (struct kube_config){.intervals.silence_ms = 50});
    UNTIL(&fx, fx.n_requests == 5);
    assert_true(is_new_list(&fx, 2));
    assert_true(is_watch(&fx, 4, "11")); /* this watch had events */
    finish(&fx);
}

static void a_cut_in_the_middle_of_an_event_goes_on_from_the_last_one(void **state) {
    struct fixture fx;

    (void)state;
    init(&fx);
    expect(&fx, &(struct answer){200, LISTED("10", POD("a", "3"))});
    start(&fx, (struct kube_config){0});
    UNTIL(&fx, fx.open);
    watch_write(&fx, EVENT("ADDED", "b", "11"));
    watch_write(&fx, "{\"type\":\"DELETED\",\"object\":{\"metadata\":{\"name\":\"a\"");
    UNTIL(&fx, fx.n_objects == 2);
    http_stream_break(fx.open);
    fx.open = NULL;
    UNTIL(&fx, fx.open);
    assert_true(is_watch(&fx, 2, "11"));
    watch_write(&fx, EVENT("DELETED", "a", "12"));
    UNTIL(&fx, fx.n_gone == 1);
    assert_string_equal(held(&fx), "b");
    assert_int_equal(fx.n_begun, 1);
    assert_non_null(strstr(log_text(&fx), "kube_watch_lost"));
    assert_non_null(strstr(log_text(&fx), "kube_watch_resumed"));
    finish(&fx);
}

static void every_form_of_gone_causes_a_new_list(void **state) {
    static const struct answer forms[] = {
        {0, GONE},
        {0, EVENT("ADDED", "z", "11") GONE EVENT("ADDED", "y", "12")},
        {410, STATUS(410, "Expired", "too old")},
        {410, STATUS(410, "Gone", "too old")},
        {410, ""},
        {400, STATUS(400, "Expired", "too old")},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
        struct fixture fx;

        init(&fx);
        expect(&fx, &(struct answer){200, LISTED("10", POD("a", "3"))});
        expect(&fx, &forms[i]);
        expect(&fx, &(struct answer){200, LISTED("50", POD("b", "40"))});
        start(&fx, (struct kube_config){.intervals.backoff_ms = NEVER,
                                        .intervals.backoff_max_ms = NEVER}); /* at once */
        UNTIL(&fx, fx.n_requests == 4);
        assert_true(is_new_list(&fx, 2));
        assert_true(is_watch(&fx, 3, "50"));
        assert_string_equal(held(&fx), "b");
        assert_int_equal(fx.n_objects, i == 1 ? 3 : 2); /* what stands behind it does not count */
        finish(&fx);
    }
}

static void an_unreadable_event_causes_a_new_list(void **state) {
    static const struct answer forms[] = {
        {0, "<html>\n"},
        {0, EVENT("SYNCED", "b", "11")},
        {0, "{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"name\":\"b\"}}}\n"},
        {0, "{\"type\":\"ERROR\",\"object\":" STATUS(500, "InternalError", "etcd") "}\n"},
        {422, STATUS(422, "Invalid", "sendInitialEvents is forbidden")},
        {400, "no"},
        {302, ""},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
        struct fixture fx;

        init(&fx);
        expect(&fx, &(struct answer){200, LISTED("10", POD("a", "3"))});
        expect(&fx, &forms[i]);
        expect(&fx, &(struct answer){200, LISTED("50", POD("b", "40"))});
        start(&fx, (struct kube_config){0});
        UNTIL(&fx, fx.n_requests == 4);
        assert_true(is_new_list(&fx, 2));
        assert_string_equal(held(&fx), "b");
        assert_non_null(strstr(log_text(&fx), "kube_watch_lost"));
        finish(&fx);
    }
}

/* --- lists that fail -------------------------------------------------------------------------- */

static void an_expired_page_restarts_the_list(void **state) {
    struct fixture fx;

    (void)state;
    init(&fx);
    expect(&fx, &(struct answer){200, PAGE("10", "t1", POD("a", "3"))});
    expect(&fx, &(struct answer){410, STATUS(410, "Expired",
                                             "The provided continue parameter is "
                                             "too old")});
    expect(&fx, &(struct answer){200, LISTED("20", POD("b", "3"))});
    start(&fx, (struct kube_config){0});
    UNTIL(&fx, fx.open);
    assert_true(is_new_list(&fx, 2));
    assert_true(is_watch(&fx, 3, "20"));
    assert_string_equal(held(&fx), "b");
    assert_int_equal(fx.n_begun, 2);
    assert_int_equal(fx.n_ended, 1);
    finish(&fx);
}

#define TOO_LARGE                                                                                  \
    "{\"kind\":\"Status\",\"status\":\"Failure\",\"message\":\"Too large resource version\","      \
    "\"reason\":\"Timeout\",\"details\":{\"causes\":[{\"reason\":\"ResourceVersionTooLarge\"}]},"  \
    "\"code\":504}"

/* Neither by a list nor by a watch. */
static void a_future_version_is_not_requested_again(void **state) {
    struct fixture fx;

    (void)state;
    init(&fx);
    expect(&fx, &(struct answer){504, TOO_LARGE});
    expect(&fx, &(struct answer){200, LISTED("20", POD("b", "3"))});
    expect(&fx, &(struct answer){504, TOO_LARGE});
    expect(&fx, &(struct answer){200, LISTED("10", POD("c", "2"))});
    start(&fx, (struct kube_config){0});
    UNTIL(&fx, fx.open);
    assert_true(is_new_list(&fx, 1));
    assert_true(is_watch(&fx, 2, "20"));
    assert_true(is_new_list(&fx, 3));
    assert_true(is_watch(&fx, 4, "10"));
    assert_string_equal(held(&fx), "c");
    finish(&fx);
}

static void permanent_errors_are_reported_with_the_remedy(void **state) {
    struct fixture fx;

    (void)state;
    init(&fx);
    expect(&fx, &(struct answer){400, STATUS(400, "BadRequest", "unable to parse requirement")});
    expect(&fx, &(struct answer){404, "404 page not found"});
    start(&fx, (struct kube_config){0});
    UNTIL(&fx, fx.open);
    assert_non_null(strstr(log_text(&fx), "unable to parse requirement"));
    assert_non_null(strstr(log_text(&fx), "--k8s-selector"));
    assert_non_null(strstr(log_text(&fx), "--k8s-api-server"));
    finish(&fx);
}

static void retry_after_is_waited_for(void **state) {
    static const struct answer forms[] = {
        {429, STATUS(429, "TooManyRequests", "slow down"), "200"},
        {503, "", "200"},
        {504, "{\"details\":{\"retryAfterSeconds\":200}}", NULL},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
        struct fixture fx;

        init(&fx);
        expect(&fx, &forms[i]);
        start(&fx, (struct kube_config){0});
        UNTIL(&fx, fx.n_requests == 1);
        turn_idly(&fx);
        assert_int_equal(fx.n_requests, 1);
        finish(&fx);
    }
}

static void broken_answers_are_tried_again(void **state) {
    static const struct answer forms[] = {
        {500, STATUS(500, "InternalError", "etcdserver: leader changed")},
        {429, STATUS(429, "TooManyRequests", "slow down")},
        {200, "{\"metadata\":{\"resourceVersion\":\"7\"},\"items\":[" POD("x", "1")},
        {200, "<html>sign in</html>"},
        {200, "{\"items\":[]}"},
        {404, "not yet"},
        {409, "?"},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
        struct fixture fx;

        init(&fx);
        for (int k = 0; k < 3; k++)
            expect(&fx, &forms[i]);
        expect(&fx, &(struct answer){200, LISTED("50", POD("b", "40"))});
        start(&fx, (struct kube_config){0});
        UNTIL(&fx, fx.open);
        assert_string_equal(held(&fx), "b");
        assert_int_equal(fx.n_ended, 1);
        assert_true(is_watch(&fx, 4, "50"));
        finish(&fx);
    }
}

static void a_collection_that_is_missing_is_the_listeners_to_judge(void **state) {
    struct fixture fx;

    (void)state;
    init(&fx);
    fx.gives_up = true;
    expect(&fx, &(struct answer){404, STATUS(404, "NotFound", "could not find the resource")});
    start(&fx, (struct kube_config){0});
    UNTIL(&fx, fx.n_missing == 1);
    turn_idly(&fx);
    assert_null(fx.watch);
    assert_int_equal(fx.n_requests, 1);
    finish(&fx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_list_of_any_version_then_a_watch_from_there),
        cmocka_unit_test(events_come_through_however_they_are_cut),
        cmocka_unit_test(several_events_of_one_read_are_one_change),
        cmocka_unit_test(pages_are_one_list),
        cmocka_unit_test(pages_that_go_round_are_no_list),
        cmocka_unit_test(a_list_of_any_length_is_reported_item_by_item),
        cmocka_unit_test(the_list_is_repeated_periodically),
        cmocka_unit_test(a_list_that_is_merely_due_may_be_put_off),
        cmocka_unit_test(a_list_that_is_needed_is_not_put_off),
        cmocka_unit_test(a_watch_without_events_was_blind),
        cmocka_unit_test(earlier_events_do_not_count),
        cmocka_unit_test(an_ended_watch_resumes_at_once_and_then_backs_off),
        cmocka_unit_test(a_watch_that_lasted_is_followed_by_the_next_at_once),
        cmocka_unit_test(a_list_that_is_due_does_not_disturb_one_under_way),
        cmocka_unit_test(a_watch_without_data_is_ended),
        cmocka_unit_test(a_cut_in_the_middle_of_an_event_goes_on_from_the_last_one),
        cmocka_unit_test(every_form_of_gone_causes_a_new_list),
        cmocka_unit_test(an_unreadable_event_causes_a_new_list),
        cmocka_unit_test(an_expired_page_restarts_the_list),
        cmocka_unit_test(a_future_version_is_not_requested_again),
        cmocka_unit_test(permanent_errors_are_reported_with_the_remedy),
        cmocka_unit_test(retry_after_is_waited_for),
        cmocka_unit_test(broken_answers_are_tried_again),
        cmocka_unit_test(a_collection_that_is_missing_is_the_listeners_to_judge),
    };

    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
