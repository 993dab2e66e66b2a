/* router/admin/admin_commands.c - calls that run on the control loop. */
#include "router/admin/admin_commands.h"

#include <stdio.h>
#include <string.h>

#include "common/base/list.h"
#include "common/base/mem.h"
#include "common/http/http_server.h"
#include "common/net/mailbox.h"
#include "common/protocol/openai.h"
#include "common/text/json.h"
#include "router/admin/admin.h"
#include "router/admin/admin_commands_internal.h"
#include "router/fleet/fleet.h"
#include "router/registry/registry.h"
#include "router/registry/registry_view.h"

/* --- ids ---------------------------------------------------------------------------------------*/

static void format_id(const struct registry_view *view, char out[WORKER_ID_MAX]) {
    snprintf(out, WORKER_ID_MAX, "%u-%u", view->id, view->incarnation);
}

/* The value of `name` in "a=1&name=value"; false when it is absent or malformed. */
static bool query_value(const char *query, const char *name, char *out, size_t cap) {
    size_t n = strlen(name);

    while (*query) {
        size_t len = strcspn(query, "&");

        if (len > n && strncmp(query, name, n) == 0 && query[n] == '=') {
            return str_percent_decode((struct str){query + n + 1, len - n - 1}, out, cap) == ST_OK;
        }
        query += len + (query[len] == '&');
    }
    return false;
}

static bool find_by_url(struct admin_commands *commands, const char *text,
                        struct registry_view *out) {
    struct address_url url;

    if (address_split(str_of(text), &url, NULL) != ST_OK) return false;
    for (uint32_t id = 0; id < registry_n_ids(commands->registry); id++) {
        if (registry_get(commands->registry, id, out) && strcmp(out->url, url.url) == 0)
            return true;
    }
    return false;
}

/* "3-1", "3" or a URL. The id of an earlier worker at the same place finds none. */
static enum status find_worker(struct admin_commands *commands, const char *text,
                               struct registry_view *out, struct error *err) {
    const char *dash = strchr(text, '-');
    struct str number = str_of(text);
    uint64_t id, incarnation = 0;

    if (dash) number.len = (size_t)(dash - text);
    if (str_to_u64(number, &id) == ST_OK) {
        bool has_both = dash && str_to_u64(str_of(dash + 1), &incarnation) == ST_OK;

        if ((has_both || !dash) && id < REGISTRY_MAX_WORKERS &&
            registry_get(commands->registry, (uint32_t)id, out) &&
            (!dash || out->incarnation == incarnation)) {
            return ST_OK;
        }
    } else if (find_by_url(commands, text, out)) {
        return ST_OK;
    }
    return error_set(err, ST_NOT_FOUND, "unknown worker \"%.200s\": GET /workers lists the workers",
                     text);
}

/* --- answering ---------------------------------------------------------------------------------*/

static void call_free(struct admin_call *c) {
    buf_fini(&c->body);
    buf_fini(&c->answer);
    mem_free(c);
}

static void answer(struct admin_call *c) {
    struct http_request *req = c->req;

    if (!req) return;
    if (c->location[0]) http_add_header(req, STR("location"), str_of(c->location));
    if (c->code) {
        http_reply(req, c->code, c->content_type, buf_str(&c->answer));
    } else {
        http_reply_error(req, c->err.status, &c->err);
    }
}

void admin_commands_reply(struct mail *mail) {
    struct admin_call *c = CONTAINER_OF(mail, struct admin_call, mail);

    answer(c);
    call_free(c);
}

void admin_commands_drop(struct mail *mail) {
    call_free(CONTAINER_OF(mail, struct admin_call, mail));
}

static void log_change(const struct admin_call *c) {
    char call[PATH_MAX_BYTES + 16];

    if (c->method == HTTP_GET || c->method == HTTP_HEAD) return;
    snprintf(call, sizeof(call), "%s %s", http_method_name(c->method), c->path);
    admin_log_change(c->commands->log, &c->asker, call, c->worker,
                     c->code ? c->code : status_http_code(c->err.status));
}

/* Control loop: the call is done. Frees it, or sends it home. */
void admin_call_done(struct admin_call *c, int code) {
    if (list_is_linked(&c->link)) list_remove(&c->link);
    c->code = buf_status(&c->answer) == ST_OK ? code : 0;
    if (!c->code && c->err.status == ST_OK)
        error_set(&c->err, ST_NOMEM, "out of memory for the request: retry later");
    log_change(c);
    if (c->home) {
        mailbox_push(c->home, &c->mail);
    } else {
        admin_commands_reply(&c->mail);
    }
}

void admin_call_failed(struct admin_call *c) {
    admin_call_done(c, 0);
}

/* {"status":...,"worker_id":...,"url":...,"location":...,"message":...} */
static void answer_worker(struct admin_call *c, int code, const char *status, const char *message,
                          uint32_t id) {
    char worker_id[WORKER_ID_MAX] = "";
    struct registry_view view = {0};
    struct json_writer w;

    if (registry_get(c->commands->registry, id, &view)) format_id(&view, worker_id);
    if (code == 202) snprintf(c->location, sizeof(c->location), "/workers/%s", worker_id);
    json_writer_init(&w, &c->answer);
    json_begin_object(&w);
    json_field_z(&w, "status", status);
    json_field_z(&w, "worker_id", worker_id);
    json_field_z(&w, "url", view.url);
    if (c->location[0]) json_field_z(&w, "location", c->location);
    json_field_z(&w, "message", message);
    json_end_object(&w);
    admin_call_done(c, code);
}

static void note_worker(struct admin_call *c, const char *url) {
    snprintf(c->worker, sizeof(c->worker), "%s", url);
}

/* --- POST /workers, /add_worker ----------------------------------------------------------------*/

static void on_added(enum status st, uint32_t id, const struct error *err, void *arg) {
    struct admin_call *c = arg;

    if (st != ST_OK) {
        c->err = *err;
        if (st == ST_NOT_FOUND) c->err.status = ST_INVALID; /* the name, not the path */
        admin_call_failed(c);
    } else if (c->is_legacy) {
        struct registry_view view = {0};

        (void)registry_get(c->commands->registry, id, &view);
        buf_appendf(&c->answer, "Successfully added worker: %s", view.url);
        c->content_type = "text/plain; charset=utf-8";
        admin_call_done(c, 200);
    } else {
        answer_worker(c, 202, "accepted", "it takes requests once it has described itself", id);
    }
}

static enum status put_label(struct discovery_worker *worker, const char *key, struct str value,
                             struct error *err) {
    char setting[DISCOVERY_LABELS_MAX + 1]; /* a truncated one is still too long */

    snprintf(setting, sizeof(setting), "%s=" STR_FMT, key, STR_ARG(value));
    return discovery_worker_set(worker, str_of(setting), err);
}

/* smg's members for its part of a request: labels here (worker_part.h), before all others. */
static enum status read_part(const struct json *root, struct discovery_worker *worker,
                             struct error *err) {
    struct str type = STR_NULL, connector = STR_NULL;
    uint64_t port = 0;
    char digits[8];
    enum status st = json_get_str(root, "worker_type", 64, &type, NULL, err);

    if (st == ST_OK) st = json_get_str(root, "kv_connector", 64, &connector, NULL, err);
    if (st == ST_OK) st = json_get_u64(root, "bootstrap_port", 1, UINT16_MAX, &port, NULL, err);
    if (st == ST_OK && type.ptr && !str_eq(type, STR("regular"))) {
        if (!str_eq(type, STR("prefill")) && !str_eq(type, STR("decode"))) {
            return error_set_param(err, ST_UNSUPPORTED, "worker_type",
                                   "worker_type \"" STR_FMT "\" is not served here: use "
                                   "\"regular\", \"prefill\" or \"decode\"",
                                   STR_ARG(type));
        }
        st = put_label(worker, "role", type, err);
    }
    if (st == ST_OK && connector.ptr) st = put_label(worker, "kv_connector", connector, err);
    if (st == ST_OK && port) {
        snprintf(digits, sizeof(digits), "%u", (unsigned)port);
        st = put_label(worker, "bootstrap_port", str_of(digits), err);
    }
    return st;
}

/* Rejects what the router cannot speak. */
static enum status check_mode(const struct json *root, struct error *err) {
    struct str mode = STR_NULL;
    enum status st = ST_OK;

    if (json_type(json_get(root, "connection_mode")) == JSON_STRING)
        st = json_get_str(root, "connection_mode", 64, &mode, NULL, err);
    if (st != ST_OK) return st;
    if (mode.ptr && !str_eq_nocase(mode, STR("http"))) {
        return error_set_param(err, ST_UNSUPPORTED, "connection_mode",
                               "connection_mode \"" STR_FMT "\" is not spoken here: use \"http\"",
                               STR_ARG(mode));
    }
    return ST_OK;
}

/* {"zone":"a"} becomes "zone=a", behind those that the worker has. */
static enum status read_labels(const struct json *root, struct discovery_worker *worker,
                               struct error *err) {
    const struct json *labels = NULL;
    enum status st = json_get_object(root, "labels", &labels, err);

    JSON_FOR_EACH(it, labels) {
        struct str value;
        char setting[DISCOVERY_LABELS_MAX + 1];

        if (st != ST_OK) break;
        if (json_to_str(it, &value) != ST_OK) {
            st = error_set_param(err, ST_INVALID, "labels",
                                 "label \"" STR_FMT "\" is %s: use a string", STR_ARG(json_key(it)),
                                 json_type_name(it));
        } else if (str_eq(json_key(it), STR("max_in_flight"))) {
            st = error_set_param(err, ST_INVALID, "labels",
                                 "max_in_flight is no label: put it beside \"labels\"");
        } else {
            snprintf(setting, sizeof(setting), STR_FMT "=" STR_FMT, STR_ARG(json_key(it)),
                     STR_ARG(value));
            st = discovery_worker_set(worker, str_of(setting), err);
        }
    }
    return st;
}

/* Shared by POST, PUT and PATCH. Unknown members are ignored. */
static enum status read_settings(const struct json *root, struct discovery_worker *worker,
                                 struct error *err) {
    enum status st =
        json_get_u32(root, "max_in_flight", 0, 1000000, &worker->max_in_flight, NULL, err);

    return st == ST_OK ? read_labels(root, worker, err) : st;
}

static enum status parse_body(struct admin_call *c, struct json **out) {
    static const struct json_limits limits = {
        .max_bytes = 65536, .max_depth = 16, .max_values = 1000};
    enum status st = json_parse(out, buf_str(&c->body), &limits, &c->err);

    if (st != ST_OK) return st;
    if (json_type(*out) == JSON_OBJECT) return ST_OK;
    return error_set(&c->err, ST_INVALID, "the body is %s: send {\"url\":\"http://host:port\"}",
                     json_type_name(*out));
}

static void post_worker(struct admin_call *c) {
    struct discovery_worker worker = {0};
    struct json *root = NULL;
    struct str url = STR_NULL;
    enum status st = parse_body(c, &root);

    if (st == ST_OK) st = json_get_str(root, "url", 1024, &url, NULL, &c->err);
    if (st == ST_OK && !url.ptr) {
        st = error_set_param(&c->err, ST_INVALID, "url",
                             "the body names no url: send {\"url\":\"http://host:port\"}");
    }
    if (st == ST_OK) st = address_split(url, &worker.url, &c->err);
    note_worker(c, worker.url.url);
    if (st == ST_OK) st = check_mode(root, &c->err);
    if (st == ST_OK) st = read_part(root, &worker, &c->err);
    if (st == ST_OK) st = read_settings(root, &worker, &c->err);
    json_destroy(root);
    if (st != ST_OK) {
        admin_call_failed(c);
        return;
    }
    fleet_add(c->commands->fleet, FLEET_API, &worker, on_added, c);
}

/* The url=... of sglang-router's calls. */
static enum status legacy_url(struct admin_call *c, char out[PATH_MAX_BYTES]) {
    c->is_legacy = true;
    if (query_value(c->query, "url", out, PATH_MAX_BYTES)) return ST_OK;
    return error_set_param(&c->err, ST_INVALID, "url", "%s needs ?url=http://host:port", c->path);
}

static void add_worker(struct admin_call *c) {
    struct discovery_worker worker = {0};
    char text[PATH_MAX_BYTES];
    enum status st = legacy_url(c, text);

    if (st == ST_OK) st = address_split(str_of(text), &worker.url, &c->err);
    note_worker(c, worker.url.url);
    if (st != ST_OK) {
        admin_call_failed(c);
        return;
    }
    fleet_add(c->commands->fleet, FLEET_API, &worker, on_added, c);
}

/* --- DELETE, PATCH, GET /workers/ID; /remove_worker ------------------------------------------- */

static void delete_worker(struct admin_call *c, const struct registry_view *view) {
    char force[8] = "", message[80];
    bool is_forced = query_value(c->query, "force", force, sizeof(force)) &&
                     (strcmp(force, "true") == 0 || strcmp(force, "1") == 0);
    char id[WORKER_ID_MAX];
    struct json_writer w;

    note_worker(c, view->url);
    if (fleet_remove(c->commands->fleet, view->id, is_forced, &c->err) != ST_OK) {
        admin_call_failed(c);
        return;
    }
    if (c->is_legacy) {
        buf_appendf(&c->answer, "Successfully removed worker: %s", view->url);
        c->content_type = "text/plain; charset=utf-8";
        admin_call_done(c, 200);
        return;
    }
    format_id(view, id);
    snprintf(message, sizeof(message), "%u requests in flight may finish", view->in_flight);
    json_writer_init(&w, &c->answer);
    json_begin_object(&w);
    json_field_z(&w, "status", is_forced ? "removed" : "draining");
    json_field_z(&w, "worker_id", id);
    json_field_z(&w, "url", view->url);
    json_field_z(&w, "message", message);
    json_end_object(&w);
    admin_call_done(c, 202);
}

static void change_worker(struct admin_call *c, const struct registry_view *view) {
    const struct discovery_worker *known = fleet_worker(c->commands->fleet, view->id);
    struct discovery_worker worker = known ? *known : (struct discovery_worker){0};
    bool is_draining = false, says_draining = false;
    struct json *root = NULL;
    enum status st = parse_body(c, &root);

    note_worker(c, view->url);
    if (st == ST_OK) st = json_get_bool(root, "draining", &is_draining, &says_draining, &c->err);
    if (json_get(root, "labels")) worker.labels[0] = '\0'; /* the new ones replace them */
    if (st == ST_OK) st = read_settings(root, &worker, &c->err);
    json_destroy(root);
    if (st == ST_OK) st = fleet_change(c->commands->fleet, view->id, &worker, &c->err);
    if (st == ST_OK && says_draining) {
        st = fleet_set_draining(c->commands->fleet, view->id, is_draining, &c->err);
    }
    if (st == ST_OK) {
        answer_worker(c, 202, "accepted", "changed", view->id);
    } else {
        admin_call_failed(c);
    }
}

static void get_worker(struct admin_call *c, const struct registry_view *view) {
    struct json_writer w;

    json_writer_init(&w, &c->answer);
    admin_put_worker(&w, view);
    admin_call_done(c, 200);
}

static void on_worker_path(struct admin_call *c) {
    char text[PATH_MAX_BYTES];
    struct registry_view view;
    struct str tail = str_of(c->path + strlen("/workers/"));

    if (str_percent_decode(tail, text, sizeof(text)) != ST_OK) {
        error_set(&c->err, ST_INVALID,
                  "invalid path %s: use printable characters that begin with /", c->path);
        admin_call_failed(c);
    } else if (find_worker(c->commands, text, &view, &c->err) != ST_OK) {
        admin_call_failed(c);
    } else if (c->method == HTTP_DELETE) {
        delete_worker(c, &view);
    } else if (c->method == HTTP_PATCH || c->method == HTTP_PUT) {
        change_worker(c, &view);
    } else {
        get_worker(c, &view);
    }
}

static void remove_worker(struct admin_call *c) {
    char text[PATH_MAX_BYTES];
    struct registry_view view;

    if (legacy_url(c, text) != ST_OK || find_worker(c->commands, text, &view, &c->err) != ST_OK) {
        admin_call_failed(c);
    } else {
        delete_worker(c, &view);
    }
}

/* --- what clients hold ------------------------------------------------------------------------ */

void admin_commands_set_holds(struct admin_commands *commands,
                              void (*put)(void *arg, struct json_writer *w), void *arg) {
    commands->put_holds = put;
    commands->holds = arg;
}

static void get_holds(struct admin_call *c) {
    struct json_writer w;

    json_writer_init(&w, &c->answer);
    c->commands->put_holds(c->commands->holds, &w);
    c->content_type = OPENAI_JSON;
    admin_call_done(c, 200);
}

/* --- the way there and back --------------------------------------------------------------------*/

static void dispatch(struct admin_call *c) {
    list_push_back(&c->commands->calls, &c->link);
    if (strcmp(c->path, "/workers") == 0) {
        post_worker(c);
    } else if (strcmp(c->path, "/add_worker") == 0) {
        add_worker(c);
    } else if (strcmp(c->path, "/remove_worker") == 0) {
        remove_worker(c);
    } else if (strcmp(c->path, "/config") == 0) {
        admin_config_answer(c);
    } else if (strcmp(c->path, "/cache/holds") == 0) {
        get_holds(c);
    } else if (strcmp(c->path, "/flush_cache") == 0) {
        admin_flush(c);
    } else {
        on_worker_path(c);
    }
}

static void on_mail(struct mail *mail, void *arg) {
    (void)arg;
    dispatch(CONTAINER_OF(mail, struct admin_call, mail));
}

static void on_abort(struct http_request *req) {
    struct admin_call *c = req->user;

    c->req = NULL;
}

void admin_commands_take(struct admin_commands *commands, struct http_request *req,
                         const struct admin_asker *asker, struct mailbox *home) {
    struct error err = {0};
    struct admin_call *c;

    if (req->path.len >= PATH_MAX_BYTES || req->query.len >= PATH_MAX_BYTES) {
        error_set(&err, ST_INVALID, "the path is too long: shorten it");
        http_reply_error(req, ST_INVALID, &err);
        return;
    }
    c = mem_zalloc(sizeof(*c));
    c->commands = commands;
    c->home = home;
    c->req = req;
    c->method = req->method;
    c->asker = *asker;
    memcpy(c->path, req->path.ptr, req->path.len);
    if (req->query.len) memcpy(c->query, req->query.ptr, req->query.len);
    buf_init(&c->body, 0);
    buf_init(&c->answer, 0);
    buf_append_str(&c->body, req->body);
    c->content_type = OPENAI_JSON;
    list_init(&c->asked);
    req->user = c;
    req->on_abort = on_abort;
    if (home) {
        mailbox_push(commands->box, &c->mail);
    } else {
        dispatch(c);
    }
}

enum status admin_commands_create(struct admin_commands **out, struct loop *loop,
                                  struct registry *registry, struct fleet *fleet,
                                  struct http_client *client, struct log *log, struct error *err) {
    struct admin_commands *commands = mem_zalloc(sizeof(*commands));
    enum status st = mailbox_open(&commands->box, loop, on_mail, commands, err);

    if (st != ST_OK) {
        mem_free(commands);
        return st;
    }
    commands->registry = registry;
    commands->fleet = fleet;
    commands->client = client;
    commands->log = log;
    list_init(&commands->calls);
    *out = commands;
    return ST_OK;
}

void admin_commands_set_config(struct admin_commands *commands, const struct admin_config *config) {
    commands->config = config;
}

void admin_commands_destroy(struct admin_commands *commands) {
    struct list unread, *link;

    if (!commands) return;
    list_init(&unread);
    mailbox_take(commands->box, &unread);
    while ((link = list_pop_front(&unread)) != NULL)
        admin_commands_drop(mail_of(link));
    while ((link = list_pop_front(&commands->calls)) != NULL) {
        struct admin_call *c = LIST_ENTRY(link, struct admin_call, link);

        admin_flush_drop(c);
        call_free(c);
    }
    mailbox_close(commands->box);
    mem_free(commands);
}
