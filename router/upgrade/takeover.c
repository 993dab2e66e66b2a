/* router/upgrade/takeover.c - the order of steps in which one router replaces another. */
#include "router/upgrade/takeover.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/net/loop.h"
#include "common/telemetry/log.h"
#include "router/access/isolation.h"
#include "router/fleet/fleet.h"
#include "router/registry/registry_view.h"
#include "router/upgrade/handover.h"
#include "router/upgrade/index_restore.h"
#include "router/upgrade/service_manager.h"
#include "router/upgrade/state_dir.h"

#define LOOK_US           20000u
#define COMMAND_BYTES_MAX (1u << 20)
#define ARGS_MAX          4096

extern char **environ;

struct takeover {
    struct takeover_config config;
    struct log *log;
    struct loop *loop; /* NULL until prepared */
    struct fleet *fleet;
    struct snapshot_source index;
    struct takeover_events events;
    struct service_manager *manager;
    uint64_t hash_seed, began_us;
    struct handover_state state;    /* received; later offered to a successor */
    struct takeover_client *client; /* NULL: no predecessor, or it has gone */
    struct handover *handover;      /* for a successor */
    struct index_restore *restore;
    const struct isolation *isolation;
    struct loop_timer timer; /* until ready */
    bool is_ready, is_succeeded, is_leaving;
    pid_t child; /* a started successor; 0: none */
};

/* --- before anything listens ------------------------------------------------------------------ */

/* Unless a predecessor handed over sockets, which are the same. */
static void take_service_sockets(struct takeover *s, const struct service_sockets *from) {
    struct handover_state *g = &s->state;

    for (uint32_t i = 0; i < from->n_client; i++) {
        if (s->client) {
            close(from->client[i]);
        } else {
            g->client[g->n_client++] = from->client[i];
        }
    }
    for (uint32_t i = 0; i < from->n_admin; i++) {
        if (g->n_admin) { /* one suffices */
            close(from->admin[i]);
        } else {
            g->admin = from->admin[i];
            g->n_admin = 1;
        }
    }
}

static uint16_t port_of(int fd) {
    struct sockaddr_storage addr = {.ss_family = AF_UNSPEC};
    socklen_t n = sizeof(addr);

    if (getsockname(fd, (struct sockaddr *)&addr, &n) != 0) return 0;
    return ntohs(addr.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&addr)->sin6_port
                                            : ((struct sockaddr_in *)&addr)->sin_port);
}

/* A router with other ports is no successor. */
static enum status check_port(uint32_t wanted, int fd, const char *option, struct error *err) {
    if (wanted == 0 || wanted == port_of(fd)) return ST_OK;
    return error_set(err, ST_INVALID,
                     "the router at --handover listens on port %u, not on --%s %u: start this "
                     "router with the same ports, or stop the other first",
                     port_of(fd), option, wanted);
}

static enum status find_predecessor(struct takeover *s, struct error *err) {
    const struct takeover_config *c = &s->config;
    enum status st = takeover_client_open(&s->client, c->handover, &s->state, err);

    if (st == ST_NOT_FOUND) {
        s->state = (struct handover_state){.n_client = 0};
        error_init(err);
        return ST_OK;
    }
    if (st == ST_OK) st = check_port(c->port, s->state.client[0], "port", err);
    if (st == ST_OK && s->state.n_admin) {
        st = check_port(c->admin_port, s->state.admin, "admin-port", err);
    }
    return st;
}

static enum status choose_seed(struct takeover *s, struct error *err) {
    const struct takeover_config *c = &s->config;

    if (c->hash_seed) {
        s->hash_seed = hash_64(c->hash_seed, strlen(c->hash_seed), 0);
    } else if (s->client) {
        s->hash_seed = s->state.hash_seed;
    } else if (c->state_dir) {
        return state_dir_seed(c->state_dir, &s->hash_seed, err);
    } else {
        hash_random(&s->hash_seed, sizeof(s->hash_seed));
    }
    return ST_OK;
}

enum status takeover_open(struct takeover **out, const struct takeover_config *config,
                          struct log *log, struct error *err) {
    struct takeover *s = mem_zalloc(sizeof(*s));
    struct service_sockets sockets;
    struct error scratch = {0};
    enum status st;

    s->config = *config;
    s->log = log;
    st = service_manager_sockets(&sockets, err);
    if (st == ST_OK && config->handover) st = find_predecessor(s, err ? err : &scratch);
    if (st == ST_OK) take_service_sockets(s, &sockets);
    if (st == ST_OK) st = choose_seed(s, err);
    if (st != ST_OK) {
        takeover_close(s);
        return st;
    }
    *out = s;
    return ST_OK;
}

uint64_t takeover_hash_seed(const struct takeover *s) {
    return s->hash_seed;
}

void takeover_keep_salts(struct takeover *s, struct isolation *i) {
    _Static_assert(sizeof(i->secret) == HANDOVER_SECRET_BYTES, "it is handed over whole");
    s->isolation = i;
    if (s->client && i->is_random && s->state.has_salt_secret)
        memcpy(i->secret, s->state.salt_secret, sizeof(i->secret));
}

bool takeover_has_predecessor(const struct takeover *s) {
    return s->client != NULL;
}

bool takeover_has_sockets(const struct takeover *s) {
    return s->state.n_client > 0;
}

uint32_t takeover_client_sockets(struct takeover *s, uint32_t i, uint32_t n, int *fds,
                                 uint32_t max) {
    uint32_t n_taken = 0, n_all = s->state.n_client;

    if (n_all &&
        i >= n_all) { /* shared with another loop: the first to accept gets the connection */
        fds[0] = fcntl(s->state.client[i % n_all], F_DUPFD_CLOEXEC, 0);
        return fds[0] >= 0;
    }
    for (uint32_t k = i; k < n_all && n_taken < max; k += n)
        fds[n_taken++] = s->state.client[k];
    return n_taken;
}

int takeover_admin_socket(struct takeover *s) {
    return s->state.n_admin ? s->state.admin : -1;
}

/* --- becoming ready --------------------------------------------------------------------------- */

static void start_restore(struct takeover *s, struct snapshot *snapshot, bool trusts_unnamed) {
    const struct index_restore_config config = {.registry = s->index.registry,
                                                .log = s->log,
                                                .is_serving = s->is_ready,
                                                .trusts_unnamed = trusts_unnamed};

    s->restore = index_restore_start(s->loop, &config, snapshot);
}

static void log_not_restored(struct takeover *s, const struct error *err) {
    log_event(s->log, LOG_WARN, "index_restore_failed", log_z("why", err->message));
}

/* Called by the takeover client. */
static void on_index(int fd, void *arg) {
    struct takeover *s = arg;
    struct snapshot *snapshot = NULL;
    struct error err = {0};

    if (snapshot_read_fd(&snapshot, fd, s->index.scheme, &err) == ST_OK) {
        start_restore(s, snapshot, true);
    } else {
        log_not_restored(s, &err);
    }
    close(fd);
}

static void index_restore_from_disk(struct takeover *s) {
    struct snapshot *snapshot = NULL;
    struct error err = {0};
    enum status st = state_dir_load(s->config.state_dir, s->index.scheme, &snapshot, &err);

    if (st == ST_OK) start_restore(s, snapshot, false);
    if (st != ST_OK && st != ST_NOT_FOUND) log_not_restored(s, &err);
}

enum follow_from takeover_follow_from(const char *url, const char *generation, uint64_t *next,
                                      void *takeover) {
    const struct takeover *s = takeover;

    if (s->client && !takeover_client_has_index(s->client)) return FOLLOW_FROM_LATER;
    *next = s->restore ? index_restore_events_next(s->restore, url, generation) : 0;
    return *next ? FOLLOW_FROM_NEXT : FOLLOW_FROM_OLDEST;
}

static void become_ready(struct takeover *s, enum status st, const struct error *err) {
    s->is_ready = true;
    loop_timer_stop(&s->timer);
    index_restore_is_serving(s->restore);
    s->events.on_ready(st, err, s->events.arg);
}

static void look(void *arg) {
    struct takeover *s = arg;
    uint64_t waited_us = loop_now_us(s->loop) - s->began_us;
    struct registry_totals totals;
    struct error err = {0};

    registry_totals(s->index.registry, &totals);
    if (totals.n_eligible && totals.n_eligible == fleet_n_wanted(s->fleet) &&
        takeover_client_has_index(s->client) && index_restore_is_over(s->restore)) {
        become_ready(s, ST_OK, NULL);
    } else if (waited_us < (uint64_t)s->config.handover_wait_ms * 1000) {
        loop_timer_start(&s->timer, LOOK_US);
    } else if (totals.n_eligible) {
        log_event(s->log, LOG_WARN, "handover_is_incomplete", log_u64("usable", totals.n_eligible),
                  log_u64("workers", totals.n_workers),
                  log_bool("has_index", index_restore_is_over(s->restore) &&
                                            takeover_client_has_index(s->client)));
        become_ready(s, ST_OK, NULL);
    } else {
        error_set(&err, ST_UNAVAILABLE,
                  "none of %u workers is usable after --handover-wait %u ms: the running router "
                  "continues; check the workers and start again",
                  totals.n_workers, s->config.handover_wait_ms);
        become_ready(s, err.status, &err);
    }
}

static void open_handover(struct takeover *s);

/* The path is free. */
static void on_alone(void *arg) {
    struct takeover *s = arg;

    if (s->is_ready) open_handover(s);
}

void takeover_prepare(struct takeover *s, struct loop *loop, struct fleet *fleet,
                      const struct snapshot_source *index, const struct takeover_events *events) {
    const struct takeover_client_events takeover_client_events = {on_index, on_alone, s};

    s->loop = loop;
    s->fleet = fleet;
    s->index = *index;
    s->events = *events;
    s->began_us = loop_now_us(loop);
    s->manager = service_manager_open(loop);
    loop_timer_init(&s->timer, loop, look, s);
    if (s->client) {
        takeover_client_listen(s->client, loop, &takeover_client_events);
        loop_timer_start(&s->timer, LOOK_US);
        return;
    }
    if (s->config.state_dir) index_restore_from_disk(s);
    become_ready(s, ST_OK, NULL);
}

/* --- being succeeded -------------------------------------------------------------------------- */

static void on_succeeded(void *arg) {
    struct takeover *s = arg;

    s->is_succeeded = true;
    log_event(s->log, LOG_INFO, "router_replaced");
    s->events.on_succeeded(s->events.arg);
}

static enum status try_to_open(struct takeover *s, struct error *err) {
    const struct handover_config config = {.path = s->config.handover,
                                           .log = s->log,
                                           .index = s->index,
                                           .state = s->state,
                                           .on_succeeded = on_succeeded,
                                           .arg = s};

    return handover_open(&s->handover, s->loop, &config, err);
}

static void open_handover(struct takeover *s) {
    struct error err = {0};

    takeover_client_close(s->client);
    s->client = NULL;
    if (s->is_leaving || try_to_open(s, &err) == ST_OK) return;
    log_event(s->log, LOG_ERROR, "handover_not_opened", log_z("why", err.message));
}

enum status takeover_serving(struct takeover *s, const int *client, uint32_t n_client, int admin,
                             struct error *err) {
    s->state = (struct handover_state){.n_client = MIN(n_client, HANDOVER_SOCKETS_MAX),
                                       .admin = admin,
                                       .n_admin = 1,
                                       .hash_seed = s->hash_seed};
    memcpy(s->state.client, client, s->state.n_client * sizeof(*client));
    s->state.has_salt_secret = s->isolation->is_random;
    memcpy(s->state.salt_secret, s->isolation->secret, HANDOVER_SECRET_BYTES);
    if (s->client) {
        service_manager_succeeding(s->manager);
        takeover_client_ready(
            s->client); /* this router listens at the path after the predecessor has left */
        if (s->client && takeover_client_is_alone(s->client)) open_handover(s);
        return ST_OK;
    }
    service_manager_ready(s->manager);
    return s->config.handover ? try_to_open(s, err) : ST_OK;
}

/* --- signals, and the end --------------------------------------------------------------------- */

void takeover_reload(struct takeover *s, bool is_done) {
    if (is_done) {
        service_manager_ready(s->manager);
    } else {
        service_manager_reloading(s->manager);
    }
}

/* Starts the program at the path of this process, which may be newer by now. */
static int spawn_self(pid_t *pid) {
    char *args[ARGS_MAX + 1], *text = NULL;
    uint32_t n_args = 0;
    size_t n = 0;
    int code;
    FILE *f = fopen("/proc/self/cmdline", "re");

    if (!f) return -1;
    text = mem_zalloc(COMMAND_BYTES_MAX + 1);
    n = fread(text, 1, COMMAND_BYTES_MAX, f);
    fclose(f);
    for (char *at = text; at < text + n && n_args < ARGS_MAX; at += strlen(at) + 1)
        args[n_args++] = at;
    args[n_args] = NULL;
    code = n_args ? posix_spawnp(pid, args[0], NULL, NULL, args, environ) : -1;
    mem_free(text);
    return code;
}

void takeover_spawn(struct takeover *s) {
    if (s->child && waitpid(s->child, NULL, WNOHANG) != 0) s->child = 0;
    if (!s->handover || s->child) {
        log_event(s->log, LOG_WARN, "successor_not_started",
                  log_z("why", s->child ? "one is being made" : "there is no --handover"));
        return;
    }
    if (spawn_self(&s->child) == 0) {
        log_event(s->log, LOG_INFO, "successor_started", log_u64("pid", (uint64_t)s->child));
    } else {
        s->child = 0;
        log_event(s->log, LOG_ERROR, "successor_not_started",
                  log_z("why", "this program cannot be started again"));
    }
}

void takeover_draining(struct takeover *s) {
    if (s->is_leaving) return;
    s->is_leaving = true;
    if (!s->is_succeeded) service_manager_stopping(s->manager);
    handover_close(s->handover);
    s->handover = NULL;
}

void takeover_save(struct takeover *s) {
    struct error err = {0};
    uint64_t n_blocks = 0;

    if (!s || !s->config.state_dir || !s->is_ready || s->is_succeeded) return;
    if (state_dir_save(s->config.state_dir, &s->index, &n_blocks, &err) == ST_OK) {
        log_event(s->log, LOG_INFO, "index_saved", log_u64("blocks", n_blocks));
    } else {
        log_event(s->log, LOG_ERROR, "index_not_saved", log_z("why", err.message));
    }
}

void takeover_close(struct takeover *s) {
    if (!s) return;
    index_restore_stop(s->restore);
    handover_close(s->handover);
    takeover_client_close(s->client);
    if (s->loop) loop_timer_fini(&s->timer);
    service_manager_close(s->manager);
    mem_free(s);
}
