/* tests/support/client.h - a raw loopback client for servers that run on a loop of the same thread.
 *
 * Whatever has to wait turns the server's loop meanwhile, and fails the test after some seconds. */
#ifndef TESTS_SUPPORT_CLIENT_H
#define TESTS_SUPPORT_CLIENT_H

#include "common/base/buf.h"

struct loop;

#define CLIENT_TIMEOUT_US 5000000u

struct client {
    int fd;
    bool is_closed, was_reset;
    struct buf got; /* all that was received */
};

void client_open(struct client *c, uint16_t port);                      /* connects to 127.0.0.1 */
void client_open_from(struct client *c, uint16_t port, uint8_t source); /* from 127.0.0.`source` */
void client_close(struct client *c);

void client_send(struct client *c, struct loop *loop, struct str s);
size_t client_read(struct client *c); /* what is there now; returns how many bytes */

void client_expect(struct client *c, struct loop *loop, const char *needle); /* until received */
void client_expect_close(struct client *c, struct loop *loop);
int client_count(const struct client *c, const char *needle); /* occurrences so far */

/* Turns `loop` until the condition holds. Needs cm.h, clock.h and loop.h. */
#define TURN_UNTIL(loop, condition)                                                                \
    do {                                                                                           \
        uint64_t until_us_ = clock_now_us() + CLIENT_TIMEOUT_US;                                   \
        while (!(condition)) {                                                                     \
            loop_turn(loop, 1000);                                                                 \
            if (clock_now_us() > until_us_) fail_msg("never: %s", #condition);                     \
        }                                                                                          \
    } while (0)

#endif
