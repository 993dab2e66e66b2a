/* tests/integration/api_server.c - the scripted Kubernetes API server as a program.
 *
 *      api_server [--plain]
 *
 * Prints its address, {"port":N,"folder":DIR}; DIR has ca.pem, client.pem and client.key. Then
 * answers each line of its input, a command of tests/support/api_server.h, by a line. Ends with its
 * input. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/net/loop.h"
#include "tests/support/api_server.h"

struct program {
    struct loop *loop;
    struct api_server *server;
    struct loop_fd input;
    struct buf in;
};

static void report(struct buf *answer) {
    buf_append_char(answer, '\n');
    (void)fwrite(buf_ptr(answer), 1, buf_len(answer), stdout);
    (void)fflush(stdout);
    buf_fini(answer);
}

static void on_input(unsigned ready, void *arg) {
    struct program *p = arg;
    char *to = buf_reserve(&p->in, 65536);
    ssize_t n = read(STDIN_FILENO, to, 65536);
    const char *end;

    (void)ready;
    if (n == 0 || (n < 0 && errno != EAGAIN)) {
        loop_stop(p->loop);
        return;
    }
    if (n < 0) return;
    buf_commit(&p->in, (size_t)n);
    while (buf_len(&p->in) && (end = memchr(buf_ptr(&p->in), '\n', buf_len(&p->in))) != NULL) {
        size_t line = (size_t)(end - buf_ptr(&p->in));
        struct buf answer;

        buf_init(&answer, 0);
        api_server_do(p->server, (struct str){buf_ptr(&p->in), line}, &answer);
        buf_consume(&p->in, line + 1);
        report(&answer);
    }
}

int main(int argc, char **argv) {
    struct program p;
    struct error err;
    struct buf hello;

    (void)signal(SIGPIPE, SIG_IGN);
    if (loop_create(&p.loop, &err) != ST_OK) {
        fprintf(stderr, "api_server: %s\n", err.message);
        return 1;
    }
    p.server = api_server_create(p.loop, argc > 1 && strcmp(argv[1], "--plain") == 0);
    buf_init(&p.in, 0);
    buf_init(&hello, 0);
    buf_appendf(&hello, "{\"port\":%u,\"folder\":\"%s\"}", api_server_port(p.server),
                api_server_folder(p.server));
    report(&hello);
    (void)fcntl(STDIN_FILENO, F_SETFL, fcntl(STDIN_FILENO, F_GETFL) | O_NONBLOCK);
    loop_fd_init(&p.input, p.loop, STDIN_FILENO, on_input, &p);
    loop_fd_watch(&p.input, LOOP_READ);
    loop_run(p.loop);
    loop_fd_fini(&p.input);
    api_server_destroy(p.server);
    buf_fini(&p.in);
    loop_destroy(p.loop);
    return 0;
}
