/* router/sharing/redis_stream.h - a Redis (or Valkey) stream that is written to and followed.
 *
 * For routers in front of workers that tell nothing of the requests they were given (vLLM, SGLang):
 * what one router sends it appends here, and all of them read.
 *
 *      append ──▶ XADD key MAXLEN ~ n * b BYTES        one connection
 *      on_entry ◀── XREAD BLOCK ... STREAMS key ID     another one, which that command occupies
 *
 * At first contact all that the stream still holds is told, oldest first, then on_synced; after a lost
 * connection it goes on behind the last entry. While there is no connection appends are dropped and
 * counted: whoever reads loses precision, nothing else. The server's name is looked up off the loop,
 * anew for each connection. Only redis_stream.c sees hiredis.
 * Thread: control. */
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
    uint32_t max_entries; /* that the server keeps, about */

    /* An entry's bytes, and how long ago the server took it in. */
    void (*on_entry)(struct str bytes, uint64_t age_us, void *arg);
    void (*on_synced)(void *arg); /* all there was has been told; again after each new connection */
    void (*on_lost)(void *arg);   /* the reading connection is gone */
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

/* Reads from now on. Asking again changes nothing. */
void redis_stream_read(struct redis_stream *s);

void redis_stream_append(struct redis_stream *s, struct str bytes);
void redis_stream_stats(const struct redis_stream *s, struct redis_stream_stats *out);

/* For --check-config, before anything connects. */
MUST_USE enum status redis_stream_check_url(const char *url, struct error *err);

#endif
