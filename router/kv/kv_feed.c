/* router/kv/kv_feed.c - see the header. */
#include "router/kv/kv_feed.h"

#include <stdio.h>

#include "common/http/http_client.h"

#define DIGEST_S    "10"
#define SILENCE_MS  30000u
#define SMALL_FRAME 65536u
#define PIECE_MAX   (4u << 20) /* far above what is read in one turn */

static void set_room(struct kv_feed *f, uint64_t bytes) {
    f->room->used += bytes - f->charged;
    f->charged = bytes;
}

void kv_feed_close(struct kv_feed *f) {
    http_call_cancel(f->call);
    f->call = NULL;
    f->is_up = false;
    f->n_opened++;
    buf_release(&f->rest);
    if (f->charged) set_room(f, 0);
}

static void lose(struct kv_feed *f, const char *why, bool is_wrong) {
    kv_feed_close(f);
    f->events->on_lost(why, is_wrong, f->arg);
}

/* Charges a frame that is not whole yet; false: there is no room. */
static bool want(struct kv_feed *f, uint64_t bytes) {
    uint64_t charge = bytes > SMALL_FRAME ? bytes : 0;

    if (charge > f->charged && charge - f->charged > f->room->max - f->room->used) return false;
    if (charge != f->charged) set_room(f, charge);
    return true;
}

static void take_frames(struct kv_feed *f) {
    uint32_t n_opened = f->n_opened;

    for (;;) {
        struct kv_frame frame;
        struct error err = {0};
        size_t n;

        if (kv_frame_read(buf_str(&f->rest), &frame, &n, &err) != ST_OK) {
            lose(f, err.message, true);
            return;
        }
        if (!want(f, n)) {
            lose(f, "too many large batches at once", false);
            return;
        }
        if (n > buf_len(&f->rest)) return;
        f->events->on_frame(&frame, f->arg);
        if (f->n_opened != n_opened) return;
        buf_consume(&f->rest, n);
    }
}

static void on_data(int code, struct str bytes, void *arg) {
    struct kv_feed *f = arg;
    uint32_t n_opened = f->n_opened;

    if (code != 200) return;
    buf_append_str(&f->rest, bytes);
    if (buf_status(&f->rest) != ST_OK) {
        lose(f, "out of memory", false);
        return;
    }
    if (!f->is_up) {
        f->is_up = true;
        f->events->on_up(f->arg);
        if (f->n_opened != n_opened) return;
    }
    take_frames(f);
}

static void on_end(const struct http_client_response *response, void *arg) {
    struct kv_feed *f = arg;
    char why[96];

    f->call = NULL;
    if (response->status != ST_OK) {
        lose(f, response->message, false);
    } else if (response->code == 404) {
        lose(f, "the worker publishes no KV events: start it with --kv-events", true);
    } else if (response->code != 200) {
        snprintf(why, sizeof(why), "GET /kv_events was answered with %d", response->code);
        lose(f, why, response->code != 429 && response->code < 500);
    } else {
        lose(f, "the worker ended the stream", false);
    }
}

void kv_feed_init(struct kv_feed *f, struct http_client *client, struct kv_stream_room *room,
                  const struct kv_feed_events *events, void *arg) {
    *f = (struct kv_feed){.events = events, .arg = arg, .client = client, .room = room};
    buf_init(&f->rest, KV_FRAME_HEAD + KV_FRAME_MAX + PIECE_MAX);
}

void kv_feed_fini(struct kv_feed *f) {
    if (!f->client) return;
    kv_feed_close(f);
    buf_fini(&f->rest);
}

enum status kv_feed_open(struct kv_feed *f, const char *url, const struct address *address,
                         uint64_t from, const char *generation, struct error *err) {
    char full[ADDRESS_URL_MAX + 160], connect_to[ADDRESS_TEXT_MAX], place[24] = "snapshot";
    struct http_client_request request = {.url = full,
                                          .connect_to = connect_to,
                                          .on_data = on_data,
                                          .max_body_bytes = PIECE_MAX,
                                          .silence_ms = SILENCE_MS};

    kv_feed_close(f);
    address_text(address, connect_to);
    if (from != KV_FEED_SNAPSHOT) snprintf(place, sizeof(place), "%llu", (unsigned long long)from);
    snprintf(full, sizeof(full), "%s/kv_events?format=msgpack&digest=" DIGEST_S "&from=%s%s%s", url,
             place, generation[0] ? "&generation=" : "", generation);
    return http_client_start(f->client, &request, on_end, f, &f->call, err);
}
