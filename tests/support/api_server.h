/* tests/support/api_server.h - a Kubernetes API server that follows commands.
 *
 * On one side it is a server: discovery, LIST with limit and continue, WATCH with resourceVersion,
 * bookmarks and timeoutSeconds, GET, PATCH, DELETE, POST of pods, services, endpointslices and
 * inferencepools, over TLS, for tokens or client certificates; right enough for kubectl. On the
 * wire it behaves as a real one was seen to: chunks of 2 KiB, TLS records of 4 KiB, wherever an
 * event ends.
 *
 * On the other side a test changes what it holds and how it misbehaves, by commands: one JSON
 * object a line, one answer a line ({"ok":true,...} or {"error":"..."}).
 *
 *   what it holds
 *      {"do":"put","object":{...}} or {"do":"put","objects":[...]}
 *      {"do":"patch","resource":"pods","namespace":"default","name":"a","patch":{...}}    merge patch
 *      {"do":"delete",...,"grace":30}   a user's delete: MODIFIED with a deletionTimestamp
 *      {"do":"forget",...}              the kubelet is done: DELETED
 *      {"do":"force",...}               both at once
 *      {"do":"compact"}                 forgets old versions: 410 for requests of them
 *      {"do":"rewind","rv":5}           restored from a backup: versions so far are of the future
 *      {"do":"show","resource":"pods","labels":"a=b"}       names and version
 *   how it is on the wire, from now on
 *      {"do":"set", "chunk_bytes":2048, "record_bytes":4096, "is_ragged":false, "drip_us":0,
 *                   "bookmark_ms":60000, "bookmark_before_end_ms":2000, "max_watch_ms":0,
 *                   "limits_cached_lists":false, "serves_deletes_at_once":false,
 *                   "serves_old_pools_only":false}   the group and version of before v1
 *      {"do":"tokens","tokens":["a"]}   the only ones; [] admits any
 *      {"do":"listen","on":false}       refuses connections; true: the same port again
 *      {"do":"accept","how":"serve"|"reset"|"stall"|"close"}   what happens to new connections
 *      {"do":"authority"}               another certificate authority: {"ca":FILE}, of the next ...
 *      {"do":"certificate"}             ... handshakes, from now on
 *   the next calls
 *      {"do":"answer","on":"list"|"watch"|"get"|"patch"|"any","resource":"pods","times":1,"skip":0, ANSWER}
 *      ANSWER: "status":429,"reason":"TooManyRequests","message":"...","cause":"...","retry_after":1,
 *              "after_ms":0 | "raw":"bytes","then":"keep"|"close"|"reset" | "stall":true
 *      {"do":"forbid","verb":"list","resource":"pods","on":true}
 *   the watches that are open
 *      {"do":"watches","act":"end"}     in order; the connection stays
 *                      "cut"            in the middle of a chunk, without close_notify: kill -9
 *                      "reset" | "hold" | "release" | "bookmark" | "gone" (410 in a 200, and end)
 *                      "raw","bytes":"..."                a chunk of this
 *                      "send","events":[{"type":..,"object":..}]    events that never happened
 *                      "repeat","n":3,"is_reversed":false          the last changes once more
 *      {"do":"die"}                     kill -9 of the server: all of them cut, nothing listens
 *   what has happened
 *      {"do":"stats"}                   open and total connections, lists, watches ...
 *      {"do":"calls"}                   the requests since the last time it was asked
 *
 * Thread: that of its loop. */
#ifndef TESTS_SUPPORT_API_SERVER_H
#define TESTS_SUPPORT_API_SERVER_H

#include "common/base/buf.h"

struct api_server;
struct loop;

/* Listens on 127.0.0.1, a port that the system picks. is_plain: no TLS. */
struct api_server *api_server_create(struct loop *loop, bool is_plain);
void api_server_destroy(struct api_server *a); /* NULL is fine */

uint16_t api_server_port(const struct api_server *a);
const char *api_server_folder(const struct api_server *a); /* ca.pem, client.pem, client.key */

/* One command; its answer is appended, without a line end. */
void api_server_do(struct api_server *a, struct str command, struct buf *answer);

#endif
