/* tests/unit/common/net/test_file_watch.c - which changes are reported, once each. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/net/file_watch.h"
#include "common/net/loop.h"
#include "tests/support/client.h"
#include "tests/support/cm.h"

struct fixture {
    char folder[64], a[80], b[80], data[2][80];
    struct loop *loop;
    int n_reported;
};

static void on_change(void *arg) {
    struct fixture *f = arg;

    f->n_reported++;
}

static void write_file(const char *path, const char *text) {
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static int setup(void **state) {
    struct fixture *f = calloc(1, sizeof(*f));

    snprintf(f->folder, sizeof(f->folder), "/tmp/incipit-file-watch-XXXXXX");
    assert_non_null(mkdtemp(f->folder));
    snprintf(f->a, sizeof(f->a), "%s/a", f->folder);
    snprintf(f->b, sizeof(f->b), "%s/b", f->folder);
    for (int i = 0; i < 2; i++)
        snprintf(f->data[i], sizeof(f->data[i]), "%s/data%d", f->folder, i);
    assert_int_equal(loop_create(&f->loop, NULL), ST_OK);
    *state = f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;

    loop_destroy(f->loop);
    unlink(f->a);
    unlink(f->b);
    unlink(f->data[0]);
    unlink(f->data[1]);
    rmdir(f->folder);
    free(f);
    return 0;
}

static void files_that_change_together_are_reported_once(void **state) {
    struct fixture *f = *state;
    struct file_watch *w;

    write_file(f->a, "1");
    write_file(f->b, "1");
    w = file_watch_create(f->loop, (const char *const[]){f->a, NULL, "", f->b}, 4, on_change, f);
    write_file(f->a, "12");
    write_file(f->b, "12");
    TURN_UNTIL(f->loop, f->n_reported == 1);
    write_file(f->b, "123"); /* if the first had been reported twice, this would be the third */
    TURN_UNTIL(f->loop, f->n_reported == 2);
    file_watch_destroy(w);
}

static void a_link_that_is_swapped_is_a_change(void **state) {
    struct fixture *f = *state;
    struct file_watch *w;

    write_file(f->data[0], "1");
    write_file(f->data[1], "2");
    assert_int_equal(symlink(f->data[0], f->a), 0);
    w = file_watch_create(f->loop, (const char *const[]){f->a}, 1, on_change, f);
    assert_int_equal(symlink(f->data[1], f->b), 0);
    assert_int_equal(rename(f->b, f->a), 0); /* as the kubelet renews a Secret */
    TURN_UNTIL(f->loop, f->n_reported == 1);
    file_watch_destroy(w);
}

static void a_change_already_read_is_not_reported(void **state) {
    struct fixture *f = *state;
    struct file_watch *w;

    write_file(f->a, "1");
    write_file(f->b, "1");
    w = file_watch_create(f->loop, (const char *const[]){f->a, f->b}, 2, on_change, f);
    write_file(f->a, "12");
    file_watch_know(w);
    unlink(f->b); /* while it is missing nothing is reported */
    loop_turn(f->loop, 0);
    assert_int_equal(f->n_reported, 0);
    write_file(f->b, "12");
    TURN_UNTIL(f->loop, f->n_reported == 1);
    file_watch_destroy(w);
    file_watch_destroy(NULL);
    file_watch_know(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(files_that_change_together_are_reported_once, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_link_that_is_swapped_is_a_change, setup, teardown),
        cmocka_unit_test_setup_teardown(a_change_already_read_is_not_reported, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
