/* tests/support/peer_fixture.c - see the header. */
#include "tests/support/peer_fixture.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "tests/support/cm.h"

static const uint8_t test_keys[1][32] = {{9}};

/* --- the source's engine ---------------------------------------------------------------------- */

static uint32_t block_of(const struct peer_desk *d, const struct unit_key *key) {
    for (uint32_t i = 0; i < PEER_TEST_BLOCKS; i++)
        if (memcmp(&d->blocks[i].id.key, key, sizeof(*key)) == 0) return i;
    return PEER_TEST_BLOCKS;
}

static void pin(struct peer_desk *d, int n) {
    int now = atomic_fetch_add(&d->n_pinned, n) + n;

    if (now > atomic_load(&d->most_pinned)) atomic_store(&d->most_pinned, now);
}

static void find_run(struct peer_desk *d, struct peer_want *w) {
    for (w->n_found = 0; w->n_found < w->asked.n; w->n_found++) {
        uint32_t at = block_of(d, &w->asked.keys[w->n_found]);

        if (at == PEER_TEST_BLOCKS || !atomic_load(&d->has[at])) break;
        w->found[w->n_found].id = d->blocks[at].id;
        w->found[w->n_found].payload = d->theirs + at * d->block_bytes;
        w->found[w->n_found].block = at;
    }
    w->why = TIER_ABSENT;
    pin(d, (int)w->n_found);
}

/* Each block is taken for something else, and then for what it was, under another number. */
static void reuse(struct peer_desk *d, const struct peer_want *w) {
    for (uint32_t i = 0; i < w->n_found; i++) {
        uint32_t at = w->found[i].block;

        generation_raise(&d->pool.generations[at]);
        memset(d->theirs + at * d->block_bytes, 0xaa, d->block_bytes);
        generation_raise(&d->pool.generations[at]);
        unit_block_fill(&d->blocks[at], d->theirs + at * d->block_bytes, d->block_bytes);
    }
}

static void on_want(struct peer_desk *d, struct peer_want *w) {
    if (w->op == PEER_WANT_LET_GO) {
        if (atomic_load(&d->reuses)) reuse(d, w);
        pin(d, -(int)w->n_found);
        mailbox_push(w->home, &w->mail);
        return;
    }
    find_run(d, w);
    if (atomic_fetch_sub(&d->n_keeps, 1) > 0) {
        pthread_mutex_lock(&d->lock);
        list_push_back(&d->kept, &w->link);
        pthread_mutex_unlock(&d->lock);
        return;
    }
    atomic_fetch_add(&d->n_keeps, 1);
    mailbox_push(w->home, &w->mail);
}

static struct peer_want *take_kept(struct peer_desk *d) {
    struct list *link;

    pthread_mutex_lock(&d->lock);
    link = list_pop_front(&d->kept);
    pthread_mutex_unlock(&d->lock);
    return link ? LIST_ENTRY(link, struct peer_want, link) : NULL;
}

void peer_desk_release(struct peer_desk *d) {
    struct peer_want *w = NULL;

    PEER_UNTIL((w = take_kept(d)) != NULL);
    mailbox_push(w->home, &w->mail);
}

static void *engine_main(void *arg) {
    struct peer_desk *d = arg;
    struct list mails, *link;

    for (;;) {
        list_init(&mails);
        mailbox_wait(d->engine, &mails, UINT64_MAX);
        while ((link = list_pop_front(&mails)) != NULL) {
            if (mail_of(link) == &d->stop) return NULL;
            on_want(d, CONTAINER_OF(mail_of(link), struct peer_want, mail));
        }
    }
}

/* --- the door --------------------------------------------------------------------------------- */

int peer_listen(struct tier_source *source) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof(at);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
    assert_int_equal(listen(fd, 128), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &n), 0);
    snprintf(source->authority, sizeof(source->authority), "127.0.0.1:%u", ntohs(at.sin_port));
    source->n_tokens = PEER_TEST_BLOCKS * UNIT_TEST_TOKENS;
    return fd;
}

/* False: it ended before. */
static bool read_head(int fd, char *head, size_t room) {
    size_t n = 0;

    while (n < room - 1 && read(fd, head + n, 1) == 1) {
        head[++n] = '\0';
        if (n >= 4 && strcmp(head + n - 4, "\r\n\r\n") == 0) return true;
    }
    return false;
}

int peer_accept(int listener) {
    static const char go_on[] = "HTTP/1.1 101 Switching Protocols\r\nupgrade: " PEER_PROTOCOL
                                "\r\nconnection: upgrade\r\n\r\n";
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    char head[1024];

    if (fd < 0) return -1;

    if (read_head(fd, head, sizeof(head)) && strncmp(head, "GET " PEER_PATH, 14) == 0 &&
        write(fd, go_on, sizeof(go_on) - 1) == sizeof(go_on) - 1)
        return fd;
    close(fd);
    errno = 0;
    return -1;
}

static void *door_main(void *arg) {
    struct peer_door *door = arg;

    for (;;) {
        int fd = peer_accept(door->listener);

        if (fd >= 0) {
            fcntl(fd, F_SETFL, O_NONBLOCK);
            peer_server_take(door->server, fd);
        } else if (errno == EINVAL) { /* it is shut */
            return NULL;
        }
    }
}

void peer_door_open(struct peer_door *door, struct peer_server *server) {
    door->server = server;
    door->listener = peer_listen(&door->source);
    assert_int_equal(pthread_create(&door->thread, NULL, door_main, door), 0);
}

void peer_door_close(struct peer_door *door) {
    shutdown(door->listener, SHUT_RDWR);
    pthread_join(door->thread, NULL);
    close(door->listener);
}

/* --- the desk --------------------------------------------------------------------------------- */

void peer_desk_begin(struct peer_desk *d, bool is_sealed, size_t block_bytes) {
    memset(d, 0, sizeof(*d));
    d->block_bytes = block_bytes;
    d->form = (struct unit_codec_config){
        .fingerprint = {1}, .block_tokens = UNIT_TEST_TOKENS, .block_bytes = block_bytes};
    if (is_sealed) {
        d->form.fleet_keys = test_keys;
        d->form.n_fleet_keys = 1;
    }
    d->theirs = mem_alloc(PEER_TEST_BLOCKS * block_bytes);
    d->ours = mem_alloc(PEER_TEST_BLOCKS * block_bytes);
    for (uint32_t i = 0; i < PEER_TEST_BLOCKS; i++) {
        unit_block_make(&d->blocks[i], is_sealed ? test_keys[0] : NULL, d->form.fingerprint, 1, i);
        unit_block_fill(&d->blocks[i], d->theirs + i * block_bytes, block_bytes);
        atomic_store(&d->has[i], true);
    }
    d->home = mailbox_open_waiting();
    d->engine = mailbox_open_waiting();
    list_init(&d->kept);
    pthread_mutex_init(&d->lock, NULL);
    assert_int_equal(pthread_create(&d->engine_thread, NULL, engine_main, d), 0);
    d->config = (struct tier_peer_config){.codec = &d->form,
                                          .generation = 1,
                                          .connect_ms = PEER_TEST_PATIENT,
                                          .greet_ms = PEER_TEST_PATIENT,
                                          .ping_ms = PEER_TEST_PATIENT};
}

void peer_desk_share(struct peer_desk *d) {
    struct error err = {0};

    if (shared_pool_create(&d->pool, PEER_TEST_BLOCKS, d->block_bytes, &err) != ST_OK)
        fail_msg("%s", err.message);
    memcpy(d->pool.blocks, d->theirs, PEER_TEST_BLOCKS * d->block_bytes);
    mem_free(d->theirs);
    d->theirs = d->pool.blocks;
    d->config.can_share = true;
    d->config.share_uid = d->share_uid = geteuid();
    d->config.share_ms = PEER_TEST_PATIENT;
}

void peer_desk_open_server(struct peer_desk *d, uint64_t look_us, uint32_t proof_looks) {
    struct peer_server_config c = {.codec = &d->form,
                                   .engine = d->engine,
                                   .look_us = look_us,
                                   .proof_looks = proof_looks,
                                   .pool = d->pool.map ? &d->pool : NULL,
                                   .share_uid = d->share_uid};
    struct error err = {0};

    d->server = peer_server_create(2, NULL);
    if (peer_server_start(d->server, &c, &err) != ST_OK) fail_msg("%s", err.message);
    peer_door_open(&d->door, d->server);
    d->source = d->door.source;
}

/* As the engine does it: the wants that it has, or gets, are let go. */
void peer_desk_close_server(struct peer_desk *d) {
    struct peer_want *w;

    if (!d->server) return;
    peer_door_close(&d->door);
    peer_server_stop(d->server);
    mailbox_push(d->engine, &d->stop);
    pthread_join(d->engine_thread, NULL);
    while ((w = take_kept(d)) != NULL)
        pin(d, -(int)w->n_found);
    assert_int_equal(atomic_load(&d->n_pinned), 0);
    peer_server_destroy(d->server);
    d->server = NULL;
    assert_int_equal(pthread_create(&d->engine_thread, NULL, engine_main, d), 0);
}

void peer_desk_open_sink(struct peer_desk *d) {
    struct error err = {0};

    if (tier_peer_open(&d->tier, &d->config, &err) != ST_OK) fail_msg("%s", err.message);
}

void peer_desk_end(struct peer_desk *d) {
    if (d->tier) d->tier->ops->destroy(d->tier);
    peer_desk_close_server(d);
    mailbox_push(d->engine, &d->stop);
    pthread_join(d->engine_thread, NULL);
    mailbox_close(d->engine);
    pthread_mutex_destroy(&d->lock);
    mailbox_close(d->home);
    if (!d->pool.map) mem_free(d->theirs);
    shared_pool_close(&d->pool);
    mem_free(d->ours);
}

/* --- jobs ------------------------------------------------------------------------------------- */

void peer_job_submit(struct peer_desk *d, struct tier_job *job, uint32_t first, uint32_t n) {
    memset(job, 0, sizeof(*job));
    job->home = d->home;
    job->op = TIER_LOAD;
    job->n = n;
    job->source = &d->source;
    job->deadline_us = d->patience_us ? clock_now_us() + d->patience_us : UINT64_MAX;
    for (uint32_t i = 0; i < n; i++) {
        uint8_t *payload = d->ours + (first + i) * d->block_bytes;

        if (!d->is_bench) memset(payload, 0xee, d->block_bytes);
        job->units[i] = (struct tier_unit){
            .id = d->blocks[first + i].id, .payload = payload, .result = TIER_N_RESULTS};
    }
    d->tier->ops->submit(d->tier, job);
}

void peer_desk_await(struct peer_desk *d, uint32_t n_mails) {
    uint64_t until_us = clock_now_us() + 60000000u;
    struct list mails;

    while (d->n_mails < n_mails) {
        list_init(&mails);
        mailbox_wait(d->home, &mails, 1000000);
        while (list_pop_front(&mails))
            d->n_mails++;
        if (clock_now_us() > until_us) fail_msg("%u of %u jobs came home", d->n_mails, n_mails);
    }
    assert_int_equal(d->n_mails, n_mails);
}

void peer_desk_run(struct peer_desk *d, struct tier_job *job, uint32_t first, uint32_t n) {
    uint32_t n_mails = d->n_mails;

    peer_job_submit(d, job, first, n);
    peer_desk_await(d, n_mails + 1);
    peer_job_check(d, job);
}

uint32_t peer_job_count(const struct tier_job *job, enum tier_result result) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < job->n; i++)
        n += job->units[i].result == result;
    return n;
}

static bool has_only(const uint8_t *bytes, size_t n, uint8_t byte) {
    return bytes[0] == byte && memcmp(bytes, bytes + 1, n - 1) == 0;
}

void peer_job_check(const struct peer_desk *d, const struct tier_job *job) {
    for (uint32_t i = 0; i < job->n; i++) {
        const struct tier_unit *u = &job->units[i];
        size_t at = (size_t)((uint8_t *)u->payload - d->ours);

        assert_true(u->result < TIER_N_RESULTS);
        if (u->result == TIER_OK) {
            assert_memory_equal(u->payload, d->theirs + at, d->block_bytes);
        } else {
            assert_true(has_only(u->payload, d->block_bytes, 0xee) ||
                        has_only(u->payload, d->block_bytes, 0));
        }
    }
}

/* --- ends of a connection --------------------------------------------------------------------- */

int peer_dial(const struct tier_source *source) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    at.sin_port = htons((uint16_t)atoi(strchr(source->authority, ':') + 1));
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof(at)), 0);
    return fd;
}

int peer_connect(const struct peer_desk *d) {
    static const char ask[] = "GET " PEER_PATH " HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\n"
                              "upgrade: " PEER_PROTOCOL "\r\n\r\n";
    int fd = peer_dial(&d->source);
    char head[1024];

    assert_int_equal(write(fd, ask, sizeof(ask) - 1), (ssize_t)sizeof(ask) - 1);
    assert_true(read_head(fd, head, sizeof(head)));
    return fd;
}

void peer_write(int fd, enum peer_type type, uint16_t stream, const void *body, size_t n) {
    uint8_t head[PEER_HEAD_BYTES];

    peer_frame_head(type, 0, stream, n, head);
    (void)!send(fd, head, sizeof(head), MSG_NOSIGNAL);
    if (n) (void)!send(fd, body, n, MSG_NOSIGNAL);
}

static bool read_all(int fd, uint8_t *to, size_t n) {
    return n == 0 || recv(fd, to, n, MSG_WAITALL) == (ssize_t)n;
}

bool peer_read(int fd, struct peer_frame *f, uint8_t *body) {
    uint8_t *frame = mem_alloc(PEER_FRAME_MAX);
    struct error err = {0};
    size_t wanted;
    bool is_there = false;

    if (read_all(fd, frame, PEER_HEAD_BYTES)) {
        enum status st =
            peer_frame_read((struct str){(char *)frame, PEER_HEAD_BYTES}, f, &wanted, &err);

        if (st == ST_INVALID) fail_msg("%s", err.message);
        is_there = read_all(fd, frame + PEER_HEAD_BYTES, wanted - PEER_HEAD_BYTES);
        if (is_there &&
            peer_frame_read((struct str){(char *)frame, wanted}, f, &wanted, &err) != ST_OK)
            fail_msg("%s", err.message);
    }
    if (is_there) {
        memcpy(body, f->body.ptr, f->body.len);
        f->body.ptr = (const char *)body;
    }
    mem_free(frame);
    return is_there;
}

static const uint8_t *key_of(const struct peer_desk *d) {
    return d->form.fleet_keys ? d->form.fleet_keys[0] : NULL;
}

static void greet_as_sink(const struct peer_desk *d, int fd, struct peer_greeting *g) {
    uint8_t proof[PEER_PROOF_BYTES], body[256];
    struct peer_frame f;

    peer_write(fd, PEER_HELLO, 0, &g->sink, sizeof(g->sink));
    assert_true(peer_read(fd, &f, body) && f.type == PEER_HELLO);
    peer_read_hello(&f, &g->source);
    peer_prove(key_of(d), false, &g->sink, &g->source, proof);
    peer_write(fd, PEER_AUTH, 0, proof, sizeof(proof));
    assert_true(peer_read(fd, &f, body) && f.type == PEER_AUTH);
    peer_prove(key_of(d), true, &g->sink, &g->source, proof);
    assert_memory_equal(f.body.ptr, proof, sizeof(proof));
}

static void greet_as_source(const struct peer_desk *d, int fd, struct peer_greeting *g) {
    uint8_t proof[PEER_PROOF_BYTES], body[256];
    struct peer_frame f;

    assert_true(peer_read(fd, &f, body) && f.type == PEER_HELLO);
    peer_read_hello(&f, &g->sink);
    peer_write(fd, PEER_HELLO, 0, &g->source, sizeof(g->source));
    assert_true(peer_read(fd, &f, body) && f.type == PEER_AUTH);
    peer_prove(key_of(d), false, &g->sink, &g->source, proof);
    assert_memory_equal(f.body.ptr, proof, sizeof(proof));
    peer_prove(key_of(d), true, &g->sink, &g->source, proof);
    peer_write(fd, PEER_AUTH, 0, proof, sizeof(proof));
}

void peer_greet(const struct peer_desk *d, int fd, bool as_source, uint32_t flags,
                struct peer_greeting *out) {
    struct peer_hello *mine = as_source ? &out->source : &out->sink;

    peer_hello_make(&d->form, as_source ? 78 : 77, mine);
    mine->flags = flags;
    if (as_source) {
        greet_as_source(d, fd, out);
    } else {
        greet_as_sink(d, fd, out);
    }
}

void peer_greet_as_sink(const struct peer_desk *d, int fd) {
    struct peer_greeting g;

    peer_greet(d, fd, false, 0, &g);
}

void peer_greet_as_source(const struct peer_desk *d, int fd) {
    struct peer_greeting g;

    peer_greet(d, fd, true, 0, &g);
}
