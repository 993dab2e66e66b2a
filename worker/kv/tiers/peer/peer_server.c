/* worker/kv/tiers/peer/peer_server.c - the source's thread, and the wants on their way to the
 * engine and back.
 *
 * A want is free, or on its client's list, or, when that client is gone, with the engine: first to
 * be found if it was not yet, then to be let go. */
#include "worker/kv/tiers/peer/peer_server.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/thread.h"
#include "common/net/cipher.h"
#include "worker/kv/tiers/peer/peer_server_internal.h"

#define LOOK_US       1000000u
#define PROOF_LOOKS   5u
#define PATIENCE_MOST 10000000u /* a run is pinned no longer, however long its sink would wait */

/* On its way to the thread. */
struct socket_mail {
    struct mail mail;
    int fd;
};

/* --- wants ------------------------------------------------------------------------------------ */

struct peer_want *peer_want_begin(struct peer_client *c, uint16_t stream,
                                  const struct peer_asked *asked, bool by_place) {
    struct peer_server *s = c->server;
    struct list *link = list_pop_front(&s->free_wants);
    struct peer_want *w;

    if (!link) return NULL;
    w = LIST_ENTRY(link, struct peer_want, link);
    w->op = PEER_WANT_FIND;
    w->asked = *asked;
    w->deadline_us = clock_now_us() + MIN(asked->patience_us, PATIENCE_MOST);
    w->n_found = w->n_sent = 0;
    w->client = c;
    w->stream = stream;
    w->credit = asked->credit_bytes;
    w->is_found = w->is_cancelled = false;
    w->by_place = by_place;
    list_push_back(&c->wants, &w->of_client);
    mailbox_push(s->engine, &w->mail);
    return w;
}

static void let_go(struct peer_server *s, struct peer_want *w) {
    if (w->n_found == 0) {
        list_push_back(&s->free_wants, &w->link);
        return;
    }
    w->op = PEER_WANT_LET_GO;
    mailbox_push(s->engine, &w->mail);
}

void peer_want_end(struct peer_server *s, struct peer_want *w) {
    list_remove(&w->of_client);
    w->client = NULL;
    if (w->is_found) let_go(s, w);
}

static void on_want(struct peer_server *s, struct peer_want *w) {
    if (w->op == PEER_WANT_LET_GO) {
        list_push_back(&s->free_wants, &w->link);
        return;
    }
    w->is_found = true;
    if (w->client) {
        peer_client_on_found(w->client, w);
    } else {
        let_go(s, w);
    }
}

bool peer_server_owns(const struct peer_server *s, const struct mail *mail) {
    uintptr_t from = (uintptr_t)s->wants, at = (uintptr_t)mail;

    return at >= from && at < from + sizeof(s->wants);
}

/* --- the thread ------------------------------------------------------------------------------- */

static void on_socket(struct peer_server *s, struct socket_mail *mail) {
    struct peer_client *c = s->clients;

    while (c->state != CLIENT_FREE)
        c++; /* there is one: n_sockets is limited */
    peer_client_open(c, mail->fd);
    mem_free(mail);
}

static void on_stop(struct peer_server *s) {
    for (uint32_t i = 0; i < PEER_CLIENTS_MAX; i++)
        if (s->clients[i].state != CLIENT_FREE) peer_client_close(&s->clients[i]);
    peer_places_end(s);
    loop_timer_stop(&s->look);
    loop_stop(s->loop);
}

static void on_mail(struct mail *mail, void *arg) {
    struct peer_server *s = arg;

    if (mail == &s->stop) {
        on_stop(s);
    } else if (peer_server_owns(s, mail)) {
        on_want(s, CONTAINER_OF(mail, struct peer_want, mail));
    } else {
        on_socket(s, CONTAINER_OF(mail, struct socket_mail, mail));
    }
}

static void on_look(void *arg) {
    struct peer_server *s = arg;

    loop_timer_start(&s->look, s->look_us);
    for (uint32_t i = 0; i < PEER_CLIENTS_MAX; i++)
        if (s->clients[i].state != CLIENT_FREE) peer_client_look(&s->clients[i]);
}

static void *run(void *arg) {
    struct peer_server *s = arg;

    loop_run(s->loop);
    return NULL;
}

static enum status start_thread(struct peer_server *s, struct error *err) {
    int code = thread_start(&s->thread, run, s);

    if (code != 0)
        return error_set(err, ST_IO, "cannot start the thread that serves peers: %s",
                         strerror(code));
    s->is_running = true;
    return ST_OK;
}

enum status peer_server_start(struct peer_server *s, const struct peer_server_config *config,
                              struct error *err) {
    enum status st = unit_codec_create(&s->codec, config->codec, err);

    if (st == ST_OK) st = loop_create(&s->loop, err);
    if (st == ST_OK) st = mailbox_open(&s->inbox, s->loop, on_mail, s, err);
    if (st != ST_OK) return st;
    s->form = *config->codec;
    if (s->form.fleet_keys) {
        memcpy(s->fleet_key[0], s->form.fleet_keys[0], sizeof(s->fleet_key[0]));
        s->form.fleet_keys = s->fleet_key;
    }
    s->engine = config->engine;
    s->unit_bytes = unit_bytes(s->codec);
    for (uint32_t i = 0; i < PEER_CLIENTS_MAX; i++)
        peer_client_init(&s->clients[i], s);
    for (uint32_t i = 0; i < PEER_WANTS_MAX; i++)
        s->wants[i].home = s->inbox;
    s->look_us = config->look_us ? config->look_us : LOOK_US;
    s->proof_looks = config->proof_looks ? config->proof_looks : PROOF_LOOKS;
    peer_places_begin(s, config);
    loop_timer_init(&s->look, s->loop, on_look, s);
    loop_timer_start(&s->look, s->look_us);
    return start_thread(s, err);
}

void peer_server_stop(struct peer_server *s) {
    struct list mails, *link;

    if (!s->is_running) return;
    mailbox_push(s->inbox, &s->stop);
    pthread_join(s->thread, NULL);
    s->is_running = false;
    list_init(&mails); /* came behind the stop: of clients that are gone, or of none */
    mailbox_take(s->inbox, &mails);
    while ((link = list_pop_front(&mails)) != NULL) {
        struct mail *mail = mail_of(link);

        if (peer_server_owns(s, mail)) {
            on_want(s, CONTAINER_OF(mail, struct peer_want, mail));
        } else {
            struct socket_mail *socket = CONTAINER_OF(mail, struct socket_mail, mail);

            close(socket->fd);
            mem_free(socket);
        }
    }
}

/* --- its creator's side ----------------------------------------------------------------------- */

uint64_t peer_server_generation(const struct peer_server *s) {
    return s->generation;
}

struct peer_server *peer_server_create(uint64_t generation, struct log *log) {
    struct peer_server *s = mem_zalloc(sizeof(*s));

    s->generation = generation;
    s->log = log;
    s->pass_fd = -1;
    list_init(&s->free_wants);
    for (uint32_t i = 0; i < PEER_WANTS_MAX; i++)
        list_push_back(&s->free_wants, &s->wants[i].link);
    return s;
}

void peer_server_destroy(struct peer_server *s) {
    struct list mails;

    if (!s) return;
    assert(!s->is_running);
    list_init(&mails);
    if (s->inbox) mailbox_take(s->inbox, &mails); /* wants that the engine has returned since */
    for (uint32_t i = 0; i < PEER_CLIENTS_MAX; i++)
        mem_free(s->clients[i].out);
    peer_places_end(s); /* its thread may never have begun */
    if (s->loop) loop_timer_fini(&s->look);
    mailbox_close(s->inbox);
    loop_destroy(s->loop);
    unit_codec_destroy(s->codec);
    cipher_erase(s->fleet_key, sizeof(s->fleet_key));
    mem_free(s);
}

void peer_server_take(struct peer_server *s, int fd) {
    struct socket_mail *mail;

    if (atomic_fetch_add(&s->n_sockets, 1) >= PEER_CLIENTS_MAX) {
        uint8_t refusal[PEER_HEAD_BYTES + 4];
        uint32_t why = PEER_HAS_NO_ROOM;

        peer_frame_head(PEER_REFUSE, 0, 0, sizeof(why), refusal);
        memcpy(refusal + PEER_HEAD_BYTES, &why, sizeof(why));
        (void)!write(fd, refusal, sizeof(refusal)); /* it does not block, and may be lost */
        close(fd);
        atomic_fetch_sub(&s->n_sockets, 1);
        peer_count(&s->n_refused, 1);
        return;
    }
    mail = mem_alloc(sizeof(*mail));
    mail->fd = fd;
    mailbox_push(s->inbox, &mail->mail);
}

void peer_server_stats(struct peer_server *s, struct peer_server_stats *out) {
    *out = (struct peer_server_stats){.n_clients = atomic_load(&s->n_sockets),
                                      .n_refused = atomic_load(&s->n_refused),
                                      .n_broken = atomic_load(&s->n_broken),
                                      .sent_units = atomic_load(&s->sent_units),
                                      .sent_bytes = atomic_load(&s->sent_bytes),
                                      .placed_units = atomic_load(&s->placed_units),
                                      .placed_bytes =
                                          atomic_load(&s->placed_units) * s->form.block_bytes,
                                      .n_sharing = atomic_load(&s->n_sharing)};
    for (int i = 0; i < TIER_N_RESULTS; i++)
        out->wants[i] = atomic_load(&s->ended[i]);
}
