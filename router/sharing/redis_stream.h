/* router/sharing/redis_stream.h - appends to a Redis (or Valkey) stream and reads it.
 *
 * For routers in front of workers that publish no request events (vLLM, SGLang): each router
 * appends what it sends, and all of them read.
 *
 *      append ──▶ XADD key MAXLEN ~ n * b BYTES        one connection
 *      on_entry ◀── XREAD BLOCK ... STREAMS key ID     another one, which that command occupies
 *
 * The first connection delivers all entries of the stream, oldest first, then calls on_synced; a
 * later connection continues behind the last entry. Without a connection appends are dropped and
 * counted: readers lose precision, no request. The server's name is resolved off the loop, for each
 * connection. Only redis_stream.c includes hiredis. Thread: control. */
#ifndef ROUTER_SHARING_REDIS_STREAM_H
#define ROUTER_SHARING_REDIS_STREAM_H

#include "common/base/buf.h"
#include "common/base/status.h"

struct log;
struct loop;
struct redis_stream;

struct redis_stream_config {
    const char *url;      /* redis://host[:port][/database]; port 6379, database 0 */
    const char *password; /* NULL: none */
    const char *key;      /* of the stream */
    uint32_t max_entries; /* approximate limit that the server keeps */

    /* An entry's bytes and its age on the server. */
    void (*on_entry)(struct str bytes, uint64_t age_us, void *arg);
    void (*on_synced)(
        void *arg); /* all existing entries are delivered; again after each connection */
    void (*on_lost)(void *arg); /* the reading connection is gone */
    void *arg;
};

struct redis_stream_stats {
    bool is_reading, is_writing;
    uint64_t n_appended, n_dropped, n_read, n_lost; /* n_lost: connections */
};

/* Connects in the background, to write. ST_INVALID: the URL. */
MUST_USE enum status redis_stream_create(struct redis_stream **out, struct loop *loop,
                                         struct log *log, const struct redis_stream_config *config,
                                         struct error *err);
void redis_stream_destroy(struct redis_stream *s); /* NULL is fine */

/* Starts reading. A second call does nothing. */
void redis_stream_read(struct redis_stream *s);

void redis_stream_append(struct redis_stream *s, struct str bytes);
void redis_stream_stats(const struct redis_stream *s, struct redis_stream_stats *out);

/* For --check-config, before anything connects. */
MUST_USE enum status redis_stream_check_url(const char *url, struct error *err);

#endif
