/* tests/unit/common/http/test_http_parse.c - heads and bodies, the vectors, and every way of
 * cutting.
 *
 * A message is reduced to one line, its verdict: the refusal's code, or what was understood. The
 * line must be the expected one, and the same whether the bytes come whole, one by one or cut at
 * random. */
#include <stdio.h>
#include <stdlib.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/http/http_parse.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"

#define VERDICT_MAX 4096
#define BODY_LIMIT  100000

/* How much of the message each call sees: the next cut after `at`. */
struct cutter {
    size_t piece; /* 0: random */
    struct rng rng;
};

static size_t next_cut(struct cutter *c, size_t at, size_t len) {
    size_t n = c->piece ? c->piece : 1 + (size_t)rng_below(&c->rng, 1 + rng_below(&c->rng, 40));

    return MIN(len, n > len ? len : at + n);
}

static void describe_head(const struct http_head *h, const char *data, char *out, size_t cap) {
    static const char *const framings[] = {"none", "length", "chunked", "close"};
    struct str method = http_span_str(h->method_span, data);
    struct str path = http_span_str(h->path, data), query = http_span_str(h->query, data);

    if (h->is_response) {
        snprintf(out, cap, "%u %s%s", h->status_code, framings[h->framing],
                 h->keep_alive ? "" : " closing");
    } else {
        snprintf(out, cap, "%.*s %.*s%s%.*s %s%s%s%s", STR_ARG(method), STR_ARG(path),
                 query.ptr && query.len ? "?" : "", STR_ARG(query), framings[h->framing],
                 h->minor_version ? "" : " 1.0", h->keep_alive ? "" : " closing",
                 h->expects_continue ? " expects" : "");
    }
}

static void append(char *verdict, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void append(char *verdict, const char *fmt, ...) {
    size_t n = strlen(verdict);
    va_list args;

    va_start(args, fmt);
    vsnprintf(verdict + n, VERDICT_MAX - n, fmt, args);
    va_end(args);
}

/* Feeds a body that begins at data[at]. */
static void body_verdict(const struct http_head *h, const char *data, size_t at, size_t len,
                         struct cutter *cutter, char *verdict) {
    size_t seen = at, used;
    struct http_body body;
    struct error err = {0};
    struct str payload;
    struct buf got;
    enum status st;

    buf_init(&got, 0);
    http_body_init(&body, h, BODY_LIMIT);
    for (;;) {
        st = http_body_next(&body, data + at, seen - at, &used, &payload, &err);
        assert_true(used <= seen - at);
        assert_true(payload.len == 0 ||
                    (payload.ptr >= data + at && payload.ptr + payload.len <= data + at + used));
        buf_append_str(&got, payload);
        at += used;
        if (st != ST_AGAIN) break;
        if (at < seen) continue;
        if (seen == len) break;
        seen = next_cut(cutter, seen, len);
    }
    if (st == ST_OK) {
        append(verdict, " [%.*s] rest=%zu", (int)MIN(buf_len(&got), (size_t)100),
               got.data ? buf_ptr(&got) : "", len - at);
    } else if (st == ST_AGAIN) {
        append(verdict, " [%.*s] %s", (int)MIN(buf_len(&got), (size_t)100),
               got.data ? buf_ptr(&got) : "", http_body_eof(&body, &err) == ST_OK ? "end" : "cut");
    } else {
        assert_true(err.message[0]);
        snprintf(verdict, VERDICT_MAX, "%u body", body.refused_code);
    }
    buf_fini(&got);
}

/* The bytes live in an allocation of exactly the size given so far, so that a sanitizer sees any
 * look beyond it; and they move between calls. */
static void find_verdict(struct str message, bool is_response, bool to_head, struct cutter *cutter,
                         char verdict[VERDICT_MAX]) {
    struct http_head *h = mem_alloc(sizeof(*h));
    struct error err = {0};
    char *copy = NULL;
    size_t seen = 0;
    enum status st = ST_AGAIN;

    verdict[0] = '\0';
    if (is_response) {
        http_response_init(h, to_head);
    } else {
        http_request_init(h);
    }
    do {
        seen = next_cut(cutter, seen, message.len);
        mem_free(copy);
        copy = mem_alloc(seen);
        memcpy(copy, message.ptr, seen);
        st = http_head_parse(h, copy, seen, &err);
    } while (st == ST_AGAIN && seen < message.len);
    if (st == ST_AGAIN) {
        append(verdict, "incomplete");
    } else if (st == ST_OK) {
        describe_head(h, copy, verdict, VERDICT_MAX);
        /* The body parser sees what was seen beyond the head, then the rest. */
        body_verdict(h, message.ptr, h->head_len, message.len, cutter, verdict);
    } else {
        assert_int_equal(st, ST_INVALID);
        assert_true(err.message[0]);
        assert_true(h->refused_code >= 400 && h->refused_code <= 505);
        append(verdict, "%u", h->refused_code);
        assert_int_equal(http_head_parse(h, copy, seen, &err), ST_INVALID);
    }
    mem_free(copy);
    mem_free(h);
}

static void check_all_cuts(struct str message, bool is_response, bool to_head, const char *expected,
                           const char *name) {
    char whole[VERDICT_MAX], cut[VERDICT_MAX];
    struct cutter cutter = {.piece = message.len};

    rng_seed(&cutter.rng, support_seed());
    if (message.len == 0) return;
    find_verdict(message, is_response, to_head, &cutter, whole);
    if (expected && strcmp(whole, expected) != 0) {
        fail_msg("%s: expected '%s', got '%s'", name, expected, whole);
    }
    for (int i = 0; i < 12; i++) {
        cutter.piece = i == 0 ? 1 : 0;
        if (message.len > 5000) cutter.piece = 997 + (size_t)i; /* the rest would be quadratic */
        find_verdict(message, is_response, to_head, &cutter, cut);
        if (strcmp(whole, cut) != 0) fail_msg("%s: whole '%s', cut '%s'", name, whole, cut);
    }
}

/* --- vectors ---------------------------------------------------------------------------------- */

struct vector {
    const char *name;
    struct str message;
    const char *expected;
};

#define V(name, message, expected)                                                                 \
    { name, {"" message, sizeof(message) - 1}, expected }
#define GET_A   "GET / HTTP/1.1\r\nHost: a\r\n"
#define POST_A  "POST / HTTP/1.1\r\nHost: a\r\n"
#define CHUNKED POST_A "Transfer-Encoding: chunked\r\n\r\n"

static const struct vector requests[] = {
    /* what must be understood */
    V("plain", GET_A "\r\n", "GET / none [] rest=0"),
    V("query", "GET /a/b?c=d&e=f HTTP/1.1\r\nHost: a:80\r\n\r\n",
      "GET /a/b?c=d&e=f none [] rest=0"),
    V("empty query", "GET /a? HTTP/1.1\r\nHost: a\r\n\r\n", "GET /a none [] rest=0"),
    V("ipv6 host", "GET / HTTP/1.1\r\nHost: [::1]:30000\r\n\r\n", "GET / none [] rest=0"),
    V("length", POST_A "Content-Length: 3\r\n\r\nabc", "POST / length [abc] rest=0"),
    V("length 0", POST_A "Content-Length: 0\r\n\r\n", "POST / none [] rest=0"),
    V("length with zeros", POST_A "Content-Length: 003\r\n\r\nabc", "POST / length [abc] rest=0"),
    V("body short", POST_A "Content-Length: 5\r\n\r\nabc", "POST / length [abc] cut"),
    V("body on GET", GET_A "Content-Length: 3\r\n\r\nabc", "GET / length [abc] rest=0"),
    V("pipelined", GET_A "\r\nGET /2 HTTP/1.1\r\n", "GET / none [] rest=17"),
    V("pipelined behind a body", POST_A "Content-Length: 3\r\n\r\nabcGET",
      "POST / length [abc] rest=3"),
    V("chunked", CHUNKED "3\r\nabc\r\n0\r\n\r\n", "POST / chunked [abc] rest=0"),
    V("chunked, letter case", POST_A "tRANSFER-eNCODING: ChUnKeD\r\n\r\n1\r\na\r\n0\r\n\r\n",
      "POST / chunked [a] rest=0"),
    V("two chunks and more", CHUNKED "3\r\nabc\r\n0A\r\n0123456789\r\n0\r\n\r\nX",
      "POST / chunked [abc0123456789] rest=1"),
    V("chunk extension", CHUNKED "3;a=b;c=\"d\"\r\nabc\r\n0;x\r\n\r\n",
      "POST / chunked [abc] rest=0"),
    V("trailers dropped", CHUNKED "1\r\na\r\n0\r\nContent-Length: 5\r\nX: y\r\n\r\nrest",
      "POST / chunked [a] rest=4"),
    V("blank around value", "GET / HTTP/1.1\r\nHost: \t a \t \r\n\r\n", "GET / none [] rest=0"),
    V("no blank before value", "GET / HTTP/1.1\r\nHost:a\r\n\r\n", "GET / none [] rest=0"),
    V("empty value", GET_A "X:\r\n\r\n", "GET / none [] rest=0"),
    V("bytes above 7F in value", GET_A "X: \xC3\xA9\xFF\r\n\r\n", "GET / none [] rest=0"),
    V("empty lines first", "\r\n\r\n" GET_A "\r\n", "GET / none [] rest=0"),
    V("connection close", GET_A "Connection: close\r\n\r\n", "GET / none closing [] rest=0"),
    V("connection list", GET_A "Connection: foo, CLOSE ,bar\r\n\r\n",
      "GET / none closing [] rest=0"),
    V("1.0 closes", "GET / HTTP/1.0\r\n\r\n", "GET / none 1.0 closing [] rest=0"),
    V("1.0 keeps alive", "GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n",
      "GET / none 1.0 [] rest=0"),
    V("expect", POST_A "Content-Length: 1\r\nExpect: 100-Continue\r\n\r\na",
      "POST / length expects [a] rest=0"),
    V("expect without body", GET_A "Expect: 100-continue\r\n\r\n", "GET / none [] rest=0"),
    V("options star", "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", "OPTIONS * none [] rest=0"),
    V("other method", "PURGE / HTTP/1.1\r\nHost: a\r\n\r\n", "PURGE / none [] rest=0"),
    V("cut in the head", "GET / HTTP/1.1\r\nHost: a\r\n", "incomplete"),
    V("cut before the last LF", GET_A "\r", "incomplete"),

    /* request line */
    V("lower-case method", "get / HTTP/1.1\r\nHost: a\r\n\r\n", "400"),
    V("mixed-case method", "GeT / HTTP/1.1\r\nHost: a\r\n\r\n", "400"),
    V("no method", " / HTTP/1.1\r\nHost: a\r\n\r\n", "400"),
    V("dot segment", "GET /a/../b HTTP/1.1\r\nHost: a\r\n\r\n", "400"),
    V("dot segment at the end", "GET /a/. HTTP/1.1\r\nHost: a\r\n\r\n", "400"),
    V("dot segment at the start", "GET /..?x HTTP/1.1\r\nHost: a\r\n\r\n", "400"),
    V("encoded dot segment", "GET /a/%2e%2E/b HTTP/1.1\r\nHost: a\r\n\r\n", "400"),
    V("dots, encoded slash", "GET /a/..%2fb HTTP/1.1\r\nHost: a\r\n\r\n", "400"),
    V("all encoded", "GET /a/%2e%2e%2Fb HTTP/1.1\r\nHost: a\r\n\r\n", "400"),
    V("encoded slash, dots", "GET /a%2f.. HTTP/1.1\r\nHost: a\r\n\r\n", "400"),
    V("dots, backslashes", "GET /a/\\..\\b HTTP/1.1\r\nHost: a\r\n\r\n", "400"),
    V("dots, encoded backslash", "GET /a/..%5Cb HTTP/1.1\r\nHost: a\r\n\r\n", "400"),
    V("half encoded dot segment", "GET /%2E./b HTTP/1.1\r\nHost: a\r\n\r\n", "400"),
    V("dots within names", "GET /..a/b../.c/...?../ HTTP/1.1\r\nHost: a\r\n\r\n",
      "GET /..a/b../.c/...?../ none [] rest=0"),
    V("cut escape", "GET /%2 HTTP/1.1\r\nHost: a\r\n\r\n", "GET /%2 none [] rest=0"),
    V("long method", "ABCDEFGHIJKLMNOPQ / HTTP/1.1\r\nHost: a\r\n\r\n", "501"),
    V("connect", "CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n", "501"),
    V("tab after method", "GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n", "400"),
    V("two spaces", "GET  / HTTP/1.1\r\nHost: a\r\n\r\n", "400"),
    V("space in target", "GET /a b HTTP/1.1\r\nHost: a\r\n\r\n", "400"),
    V("space after version", "GET / HTTP/1.1 \r\nHost: a\r\n\r\n", "400"),
    V("tab in target", "GET /a\tb HTTP/1.1\r\nHost: a\r\n\r\n", "400"),
    V("NUL in target", "GET /a\0b HTTP/1.1\r\nHost: a\r\n\r\n", "400"),
    V("control in target", "GET /a\x01 HTTP/1.1\r\nHost: a\r\n\r\n", "400"),
    V("DEL in target", "GET /\x7F HTTP/1.1\r\nHost: a\r\n\r\n", "400"),
    V("UTF-8 in target", "GET /\xC3\xA9 HTTP/1.1\r\nHost: a\r\n\r\n", "400"),
    V("fragment", "GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n", "400"),
    V("absolute form", "GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n", "400"),
    V("absolute form, other host", "GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n", "400"),
    V("no slash", "GET a HTTP/1.1\r\nHost: a\r\n\r\n", "400"),
    V("star on GET", "GET * HTTP/1.1\r\nHost: a\r\n\r\n", "400"),
    V("HTTP/0.9", "GET /\r\n\r\n", "400"),
    V("HTTP/0.9 by number", "GET / HTTP/0.9\r\nHost: a\r\n\r\n", "505"),
    V("HTTP/1.2", "GET / HTTP/1.2\r\nHost: a\r\n\r\n", "505"),
    V("HTTP/2.0", "GET / HTTP/2.0\r\nHost: a\r\n\r\n", "505"),
    V("HTTP/1.10", "GET / HTTP/1.10\r\nHost: a\r\n\r\n", "400"),
    V("HTTP/1", "GET / HTTP/1\r\nHost: a\r\n\r\n", "400"),
    V("HTTP/11", "GET / HTTP/11\r\nHost: a\r\n\r\n", "400"),
    V("http/1.1", "GET / http/1.1\r\nHost: a\r\n\r\n", "400"),
    V("HTTP/1,1", "GET / HTTP/1,1\r\nHost: a\r\n\r\n", "400"),
    V("HTTP 1.1", "GET / HTTP 1.1\r\nHost: a\r\n\r\n", "400"),
    V("h2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "400"),
    V("TLS hello", "\x16\x03\x01\x02\x00\x01\x00\x01\xFC\x03\x03", "400"),
    V("too many empty lines", "\r\n\r\n\r\n\r\n\r\n" GET_A "\r\n", "400"),
    V("LF first", "\n" GET_A "\r\n", "400"),

    /* line ends */
    V("bare LF after request line", "GET / HTTP/1.1\nHost: a\r\n\r\n", "400"),
    V("bare LF after header", "GET / HTTP/1.1\r\nHost: a\n\r\n", "400"),
    V("bare LF at the end", GET_A "\n", "400"),
    V("bare LF throughout", "GET / HTTP/1.1\nHost: a\n\n", "400"),
    V("bare CR in value", GET_A "X: a\rb\r\n\r\n", "400"),
    V("CR CR LF", GET_A "X: a\r\r\n\r\n", "400"),
    V("bare CR ends the head", GET_A "\rX", "400"),
    V("bare CR in name", GET_A "X\r: a\r\n\r\n", "400"),
    V("LF CR", "GET / HTTP/1.1\r\nHost: a\n\r\r\n", "400"),

    /* headers */
    V("space before colon", POST_A "Content-Length : 3\r\n\r\nabc", "400"),
    V("tab before colon", POST_A "Content-Length\t: 3\r\n\r\nabc", "400"),
    V("space before name", GET_A " X: a\r\n\r\n", "400"),
    V("fold", GET_A "X: a\r\n b\r\n\r\n", "400"),
    V("fold by tab", GET_A "X: a\r\n\tb\r\n\r\n", "400"),
    V("fold of first header", "GET / HTTP/1.1\r\n Host: a\r\n\r\n", "400"),
    V("fold into Transfer-Encoding", POST_A "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
      "400"),
    V("no colon", GET_A "X\r\n\r\n", "400"),
    V("no name", GET_A ": a\r\n\r\n", "400"),
    V("control in name", GET_A "X\x01: a\r\n\r\n", "400"),
    V("byte above 7F in name", GET_A "X\xE9: a\r\n\r\n", "400"),
    V("delimiter in name", GET_A "X(y): a\r\n\r\n", "400"),
    V("NUL in name", GET_A "X\0Y: a\r\n\r\n", "400"),
    V("NUL in value", GET_A "X: a\0b\r\n\r\n", "400"),
    V("control in value", GET_A "X: a\x0B\x62\r\n\r\n", "400"),
    V("DEL in value", GET_A "X: a\x7F\r\n\r\n", "400"),
    V("no Host", "GET / HTTP/1.1\r\nX: a\r\n\r\n", "400"),
    V("two Hosts", GET_A "Host: b\r\n\r\n", "400"),
    V("two equal Hosts", GET_A "HOST: a\r\n\r\n", "400"),
    V("two Hosts in 1.0", "GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n", "400"),
    V("empty Host", "GET / HTTP/1.1\r\nHost:\r\n\r\n", "400"),
    V("Host with path", "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", "400"),
    V("Host with user", "GET / HTTP/1.1\r\nHost: x@a\r\n\r\n", "400"),
    V("Host list", "GET / HTTP/1.1\r\nHost: a, b\r\n\r\n", "400"),
    V("unknown expectation", POST_A "Content-Length: 1\r\nExpect: 200-ok\r\n\r\na", "417"),

    /* framing */
    V("two lengths", POST_A "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", "400"),
    V("two equal lengths", POST_A "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", "400"),
    V("length list", POST_A "Content-Length: 3, 3\r\n\r\nabc", "400"),
    V("length 0, 3", POST_A "Content-Length: 0, 3\r\n\r\nabc", "400"),
    V("length +3", POST_A "Content-Length: +3\r\n\r\nabc", "400"),
    V("length -1", POST_A "Content-Length: -1\r\n\r\n", "400"),
    V("length 0x3", POST_A "Content-Length: 0x3\r\n\r\nabc", "400"),
    V("length 3a", POST_A "Content-Length: 3a\r\n\r\nabc", "400"),
    V("length 1 2", POST_A "Content-Length: 1 2\r\n\r\na", "400"),
    V("length 3.0", POST_A "Content-Length: 3.0\r\n\r\nabc", "400"),
    V("length 1_0", POST_A "Content-Length: 1_0\r\n\r\na", "400"),
    V("length in quotes", POST_A "Content-Length: \"3\"\r\n\r\nabc", "400"),
    V("length empty", POST_A "Content-Length:\r\n\r\n", "400"),
    V("length overflow", POST_A "Content-Length: 18446744073709551617\r\n\r\n", "400"),
    V("length of 2^64 - 1", POST_A "Content-Length: 18446744073709551615\r\n\r\n", "413"),
    V("length over the limit", POST_A "Content-Length: 100001\r\n\r\n", "413 body"),
    V("CL.TE", POST_A "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"),
    V("TE.CL", POST_A "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n", "400"),
    V("TE twice", POST_A "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", "400"),
    V("TE.TE", POST_A "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n", "400"),
    V("TE xchunked", POST_A "Transfer-Encoding: xchunked\r\n\r\n", "501"),
    V("TE chunkedx", POST_A "Transfer-Encoding: chunkedx\r\n\r\n", "501"),
    V("TE gzip, chunked", POST_A "Transfer-Encoding: gzip, chunked\r\n\r\n", "501"),
    V("TE chunked, identity", POST_A "Transfer-Encoding: chunked, identity\r\n\r\n", "501"),
    V("TE chunked, chunked", POST_A "Transfer-Encoding: chunked, chunked\r\n\r\n", "501"),
    V("TE ,chunked", POST_A "Transfer-Encoding: ,chunked\r\n\r\n", "501"),
    V("TE chunked;q=1", POST_A "Transfer-Encoding: chunked;q=1\r\n\r\n", "501"),
    V("TE in quotes", POST_A "Transfer-Encoding: \"chunked\"\r\n\r\n", "501"),
    V("TE identity", POST_A "Transfer-Encoding: identity\r\n\r\n", "501"),
    V("TE empty", POST_A "Transfer-Encoding:\r\n\r\n", "400"),
    V("TE with vertical tab",
      POST_A "Transfer-Encoding: \x0B"
             "chunked\r\n\r\n",
      "400"),
    V("TE with NUL", POST_A "Transfer-Encoding: chunked\0\r\n\r\n", "400"),
    V("TE name with space", POST_A "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", "400"),
    V("TE on 1.0", "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"),
    V("gzip and length", POST_A "Transfer-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc", "501"),

    /* chunks */
    V("size 0x3", CHUNKED "0x3\r\nabc\r\n0\r\n\r\n", "400 body"),
    V("size with blank before", CHUNKED " 3\r\nabc\r\n0\r\n\r\n", "400 body"),
    V("size with blank behind", CHUNKED "3 \r\nabc\r\n0\r\n\r\n", "400 body"),
    V("size with tab behind", CHUNKED "3\t\r\nabc\r\n0\r\n\r\n", "400 body"),
    V("size 3 zz", CHUNKED "3 zz\r\nabc\r\n0\r\n\r\n", "400 body"),
    V("size +3", CHUNKED "+3\r\nabc\r\n0\r\n\r\n", "400 body"),
    V("size -3", CHUNKED "-3\r\nabc\r\n0\r\n\r\n", "400 body"),
    V("size 1_0", CHUNKED "1_0\r\nabc\r\n0\r\n\r\n", "400 body"),
    V("no size", CHUNKED "\r\nabc\r\n0\r\n\r\n", "400 body"),
    V("extension without size", CHUNKED ";a\r\nabc\r\n0\r\n\r\n", "400 body"),
    V("size of 2^64 - 1", CHUNKED "ffffffffffffffff\r\nabc", "400 body"),
    V("size of 2^64", CHUNKED "10000000000000000\r\nabc", "400 body"),
    V("size with many zeros", CHUNKED "00000000000000003\r\nabc", "400 body"),
    V("size over the limit", CHUNKED "fffff\r\nabc", "413 body"),
    V("bare LF after size", CHUNKED "3\nabc\r\n0\r\n\r\n", "400 body"),
    V("bare CR after size", CHUNKED "3\rabc\r\n0\r\n\r\n", "400 body"),
    V("bare LF after chunk", CHUNKED "3\r\nabc\n0\r\n\r\n", "400 body"),
    V("chunk longer than its size", CHUNKED "3\r\nabcd\r\n0\r\n\r\n", "400 body"),
    V("chunk shorter than its size", CHUNKED "5\r\nabc\r\n0\r\n\r\n", "400 body"),
    V("bare LF in extension", CHUNKED "3;a\nb\r\nabc\r\n0\r\n\r\n", "400 body"),
    V("NUL in extension", CHUNKED "3;a\0\r\nabc\r\n0\r\n\r\n", "400 body"),
    V("byte above 7F in extension", CHUNKED "3;\xFF\r\nabc\r\n0\r\n\r\n", "400 body"),
    V("bare CR in extension", CHUNKED "3;a\rb\r\nabc\r\n0\r\n\r\n", "400 body"),
    V("bare LF ends last chunk", CHUNKED "0\n\n", "400 body"),
    V("bare LF ends trailers", CHUNKED "0\r\n\n", "400 body"),
    V("trailer without colon", CHUNKED "0\r\nX\r\n\r\n", "400 body"),
    V("trailer with space before colon", CHUNKED "0\r\nX : y\r\n\r\n", "400 body"),
    V("trailer without name", CHUNKED "0\r\n: y\r\n\r\n", "400 body"),
    V("folded trailer", CHUNKED "0\r\nX: y\r\n z\r\n\r\n", "400 body"),
    V("NUL in trailer", CHUNKED "0\r\nX: \0\r\n\r\n", "400 body"),
    V("next request as trailer", CHUNKED "0\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", "400 body"),
    V("no last chunk", CHUNKED "3\r\nabc\r\n", "POST / chunked [abc] cut"),
};

static void requests_are_understood_or_refused(void **state) {
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(requests); i++) {
        check_all_cuts(requests[i].message, false, false, requests[i].expected, requests[i].name);
    }
    assert_true(ARRAY_LEN(requests) >= 72);
}

#define OK_RESPONSE "HTTP/1.1 200 OK\r\n"

static const struct vector responses[] = {
    V("length", OK_RESPONSE "Content-Length: 2\r\n\r\nhiX", "200 length [hi] rest=1"),
    V("chunked", OK_RESPONSE "Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
      "200 chunked [hi] rest=0"),
    V("until close", OK_RESPONSE "\r\nhello", "200 close closing [hello] end"),
    V("no reason", "HTTP/1.1 200 \r\nContent-Length: 0\r\n\r\n", "200 none [] rest=0"),
    V("no reason, no space", "HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", "200 none [] rest=0"),
    V("1.0", "HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", "200 none closing [] rest=0"),
    V("close", OK_RESPONSE "Connection: close\r\nContent-Length: 1\r\n\r\na",
      "200 length closing [a] rest=0"),
    V("continue", "HTTP/1.1 100 Continue\r\n\r\nHTTP", "100 none [] rest=4"),
    V("204 with a length", "HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n",
      "204 none [] rest=0"),
    V("304", "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", "304 none [] rest=0"),
    V("two lengths", OK_RESPONSE "Content-Length: 2\r\nContent-Length: 2\r\n\r\nhi", "400"),
    V("both framings", OK_RESPONSE "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\nhi",
      "400"),
    V("chunked on 1.0", "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "400"),
    V("gzip coding", OK_RESPONSE "Transfer-Encoding: gzip\r\n\r\n", "501"),
    V("two digits", "HTTP/1.1 20 OK\r\n\r\n", "400"),
    V("four digits", "HTTP/1.1 2000 OK\r\n\r\n", "400"),
    V("code 099", "HTTP/1.1 099 OK\r\n\r\n", "400"),
    V("code 600", "HTTP/1.1 600 OK\r\n\r\n", "400"),
    V("negative code", "HTTP/1.1 -20 OK\r\n\r\n", "400"),
    V("two spaces", "HTTP/1.1  200 OK\r\n\r\n", "400"),
    V("version 2", "HTTP/2.0 200 OK\r\n\r\n", "505"),
    V("no version", "200 OK\r\n\r\n", "400"),
    V("ICY", "ICY 200 OK\r\n\r\n", "400"),
    V("bare LF", "HTTP/1.1 200 OK\nContent-Length: 0\n\n", "400"),
    V("empty line first", "\r\nHTTP/1.1 200 OK\r\n\r\n", "400"),
    V("control in reason", "HTTP/1.1 200 O\x01K\r\n\r\n", "400"),
    V("fold", OK_RESPONSE "X: a\r\n b\r\n\r\n", "400"),
    V("space before colon", OK_RESPONSE "Content-Length : 2\r\n\r\nhi", "400"),
};

static void responses_are_understood_or_refused(void **state) {
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(responses); i++) {
        check_all_cuts(responses[i].message, true, false, responses[i].expected, responses[i].name);
    }
    check_all_cuts(STR(OK_RESPONSE "Content-Length: 2\r\n\r\n"), true, true, "200 none [] rest=0",
                   "answer to HEAD");
}

/* --- limits ----------------------------------------------------------------------------------- */

static void check_limit(struct buf *b, const char *expected, const char *name) {
    check_all_cuts(buf_str(b), false, false, expected, name);
    buf_clear(b);
}

static void fill(struct buf *b, size_t n) {
    for (size_t i = 0; i < n; i++)
        buf_append_char(b, 'x');
}

static void limits_hold_to_the_byte(void **state) {
    struct buf b;

    (void)state;
    buf_init(&b, 0);

    buf_append_str(&b, STR("GET /"));
    fill(&b, HTTP_MAX_REQUEST_LINE_BYTES - 6);
    buf_append_str(&b, STR(" HTTP/1.1\r\nHost: a\r\n\r\n"));
    check_all_cuts(buf_str(&b), false, false, NULL, "longest line");
    buf_clear(&b);
    buf_append_str(&b, STR("GET /"));
    fill(&b, HTTP_MAX_REQUEST_LINE_BYTES - 5);
    buf_append_str(&b, STR(" HTTP/1.1\r\nHost: a\r\n\r\n"));
    check_limit(&b, "414", "line one too long");

    for (unsigned more = 0; more < 2; more++) {
        buf_append_str(&b, STR("GET / HTTP/1.1\r\nHost: a\r\nX: "));
        fill(&b, HTTP_MAX_HEAD_BYTES - buf_len(&b) - 4 + more);
        buf_append_str(&b, STR("\r\n\r\n"));
        check_limit(&b, more ? "431" : "GET / none [] rest=0", "head at its limit");
    }
    for (unsigned more = 0; more < 2; more++) {
        buf_append_str(&b, STR("GET / HTTP/1.1\r\nHost: a\r\n"));
        for (unsigned i = 1; i < HTTP_MAX_HEADERS + more; i++)
            buf_append_str(&b, STR("X: y\r\n"));
        buf_append_str(&b, STR("\r\n"));
        check_limit(&b, more ? "431" : "GET / none [] rest=0", "headers at their limit");
    }
    for (unsigned more = 0; more < 2; more++) {
        buf_append_str(&b, STR("GET / HTTP/1.1\r\nHost: a\r\nConnection: a"));
        for (unsigned i = 2; i < HTTP_MAX_CONNECTION_OPTIONS; i++)
            buf_append_str(&b, i % 2 ? STR(", a") : STR(",")); /* empty ones count as well */
        buf_append_str(&b, STR("\r\nConnection: b"));
        buf_append_str(&b, more ? STR(",,\r\n\r\n") : STR("\r\n\r\n"));
        check_limit(&b, more ? "431" : "GET / none [] rest=0", "options at their limit");
    }
    for (unsigned more = 0; more < 2; more++) {
        buf_append_str(&b, STR(CHUNKED "1;"));
        fill(&b, HTTP_MAX_CHUNK_LINE_BYTES + more);
        buf_append_str(&b, STR("\r\na\r\n0\r\n\r\n"));
        check_limit(&b, more ? "400 body" : "POST / chunked [a] rest=0", "extension at its limit");
    }
    for (unsigned more = 0; more < 2; more++) {
        buf_append_str(&b, STR(CHUNKED "0\r\nX: "));
        fill(&b, HTTP_MAX_TRAILER_BYTES - 6 + more); /* with "X: ", CR LF and the last CR */
        buf_append_str(&b, STR("\r\n\r\n"));
        check_limit(&b, more ? "400 body" : "POST / chunked [] rest=0", "trailers at their limit");
    }
    buf_append_str(&b, STR(CHUNKED));
    for (int i = 0; i < 5; i++) {
        buf_append_str(&b, STR("4e20\r\n"));
        fill(&b, 20000);
        buf_append_str(&b, STR("\r\n"));
    }
    buf_append_str(&b, STR("1\r\nx\r\n0\r\n\r\n"));
    check_limit(&b, "413 body", "chunks add up");
    buf_fini(&b);
}

/* --- names ------------------------------------------------------------------------------------ */

static void headers_are_found_without_regard_to_case(void **state) {
    struct str m = STR("GET / HTTP/1.1\r\nHOST: a\r\nX-One: 1\r\nx-one: 2\r\nConnection: X-Hop, "
                       "keep-alive\r\nX-Hop: y\r\n\r\n");
    struct http_head h;

    (void)state;
    http_request_init(&h);
    assert_int_equal(http_head_parse(&h, m.ptr, m.len, NULL), ST_OK);
    assert_int_equal(h.n_headers, 5);
    assert_true(str_eq(http_head_find(&h, m.ptr, STR("x-ONE")), STR("1")));
    assert_null(http_head_find(&h, m.ptr, STR("x-on")).ptr);
    assert_true(str_eq(http_head_get(&h, m.ptr, HTTP_NAME_HOST), STR("a")));
    assert_null(http_head_get(&h, m.ptr, HTTP_NAME_CONTENT_TYPE).ptr);
}

static const struct {
    const char *name;
    enum http_name id;
} known_names[] = {
    {"host", HTTP_NAME_HOST},
    {"content-length", HTTP_NAME_CONTENT_LENGTH},
    {"transfer-encoding", HTTP_NAME_TRANSFER_ENCODING},
    {"connection", HTTP_NAME_CONNECTION},
    {"expect", HTTP_NAME_EXPECT},
    {"content-type", HTTP_NAME_CONTENT_TYPE},
    {"authorization", HTTP_NAME_AUTHORIZATION},
    {"x-api-key", HTTP_NAME_X_API_KEY},
    {"x-request-id", HTTP_NAME_X_REQUEST_ID},
    {"close", HTTP_NAME_HOP},
    {"http2-settings", HTTP_NAME_HOP},
    {"keep-alive", HTTP_NAME_HOP},
    {"proxy-", HTTP_NAME_HOP},
    {"proxy-authorization", HTTP_NAME_HOP},
    {"proxy-connection", HTTP_NAME_HOP},
    {"te", HTTP_NAME_HOP},
    {"trailer", HTTP_NAME_HOP},
    {"upgrade", HTTP_NAME_HOP},
    {"forwarded", HTTP_NAME_WAY},
    {"x-forwarded-for", HTTP_NAME_WAY},
    {"x-forwarded-host", HTTP_NAME_WAY},
    {"x-real-ip", HTTP_NAME_WAY},
    {"x-incipit-salt", HTTP_NAME_OURS},
    {"x-incipit-", HTTP_NAME_OURS},
    {"alt-svc", HTTP_NAME_SITE},
    {"authentication-info", HTTP_NAME_SITE},
    {"clear-site-data", HTTP_NAME_SITE},
    {"content-location", HTTP_NAME_SITE},
    {"location", HTTP_NAME_SITE},
    {"refresh", HTTP_NAME_SITE},
    {"set-cookie", HTTP_NAME_SITE},
    {"strict-transport-security", HTTP_NAME_SITE},
    {"www-authenticate", HTTP_NAME_SITE},
};

/* The names, spelled out: what http_name_of must find, by the slow way. */
static enum http_name name_by_text(struct str name) {
    static const struct {
        struct str prefix;
        enum http_name id;
    } families[] = {{{"proxy-", 6}, HTTP_NAME_HOP},
                    {{"x-forwarded-", 12}, HTTP_NAME_WAY},
                    {{"x-incipit-", 10}, HTTP_NAME_OURS}};

    for (size_t i = 0; i < ARRAY_LEN(known_names); i++) {
        if (str_eq_nocase(name, str_of(known_names[i].name))) return known_names[i].id;
    }
    for (size_t i = 0; i < ARRAY_LEN(families); i++) {
        if (name.len >= families[i].prefix.len &&
            str_eq_nocase((struct str){name.ptr, families[i].prefix.len}, families[i].prefix)) {
            return families[i].id;
        }
    }
    return HTTP_NAME_OTHER;
}

/* In an allocation of its own size, so that a sanitizer sees any look beyond it. */
static void check_name(const char *bytes, size_t n) {
    char *copy = mem_alloc(n);
    struct str name = {copy, n};

    memcpy(copy, bytes, n);
    if (http_name_of(name) != name_by_text(name)) {
        fail_msg("'%.*s': %d, not %d", STR_ARG(name), http_name_of(name), name_by_text(name));
    }
    mem_free(copy);
}

/* Each in any letter case, and then with one byte changed to any other of a token's, or lost, or
 * one more. */
static void names_have_their_ids_and_near_misses_do_not(void **state) {
    char name[64];
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    for (int round = 0; round < 400; round++) {
        for (size_t i = 0; i < ARRAY_LEN(known_names); i++) {
            size_t n = strlen(known_names[i].name);

            for (size_t k = 0; k < n; k++) {
                char c = known_names[i].name[k];

                name[k] = c >= 'a' && c <= 'z' && rng_below(&rng, 2) ? (char)(c - 32) : c;
            }
            assert_int_equal(http_name_of((struct str){name, n}), known_names[i].id);
            check_name(name, n);
            if (n > 1) check_name(name, n - 1);
            name[n] = 's';
            check_name(name, n + 1);
            do {
                name[rng_below(&rng, n)] = (char)(0x21 + rng_below(&rng, 0x7F - 0x21));
            } while (!http_is_token((struct str){name, n}));
            check_name(name, n);
        }
    }
}

/* --- what is passed on ------------------------------------------------------------------------ */

struct line {
    char name[24], value[24];
    bool is_kept;
};

/* A head of random lines: known names and others, every way of putting blanks, some named by a
 * Connection header. Content-Length, Host and their like are left out: the head must be
 * accepted. */
static uint16_t make_head(struct rng *rng, struct buf *out, struct line lines[], uint32_t dropped) {
    static const char *const names[] = {
        "content-type", "Authorization", "X-API-Key", "x-request-id", "TE", "Keep-Alive",
        "Forwarded",    "x-incipit-a",   "accept",    "X-Hop",        "y",  "User-Agent",
        "Set-Cookie"};
    static const char *const blanks[] = {" ", " ", " ", " ", "", "  ", "\t", " \t "};
    static const char *const ends[] = {"", "", "", " ", "\t"};
    bool has_option = rng_below(rng, 2);
    uint16_t n = (uint16_t)rng_below(rng, 12);
    uint32_t credentials = 0; /* HTTP_NAME_BITs of those that are there */

    buf_clear(out);
    buf_append_str(out, STR("GET / HTTP/1.1\r\nHost: a\r\n"));
    for (uint16_t i = 0; i < n; i++) {
        struct line *l = &lines[i];
        enum http_name id;

        snprintf(l->name, sizeof(l->name), "%s", names[rng_below(rng, ARRAY_LEN(names))]);
        snprintf(l->value, sizeof(l->value), "%.*s", (int)rng_below(rng, 12), "v: x\xFF/;,=z0123");
        if (l->value[0] && l->value[strlen(l->value) - 1] == ' ') l->value[0] = '\0';
        id = http_name_of(str_of(l->name));
        if (credentials & HTTP_NAME_BIT(id)) { /* a second is refused */
            snprintf(l->name, sizeof(l->name), "x-other");
            id = HTTP_NAME_OTHER;
        }
        if (id == HTTP_NAME_AUTHORIZATION || id == HTTP_NAME_X_API_KEY)
            credentials |= HTTP_NAME_BIT(id);
        l->is_kept =
            !((dropped | HTTP_HOP_BY_HOP | HTTP_NAME_BIT(HTTP_NAME_HOST)) & HTTP_NAME_BIT(id)) &&
            !(has_option && str_eq_nocase(str_of(l->name), STR("x-hop")));
        buf_appendf(out, "%s:%s%s%s\r\n", l->name, blanks[rng_below(rng, ARRAY_LEN(blanks))],
                    l->value, ends[rng_below(rng, ARRAY_LEN(ends))]);
    }
    if (has_option) buf_append_str(out, STR("Connection: close, X-hop\r\n"));
    buf_append_str(out, STR("\r\n"));
    return n;
}

static void what_is_written_is_what_is_kept(void **state) {
    struct http_head *h = mem_alloc(sizeof(*h));
    struct line lines[12];
    struct buf head, expected;
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    buf_init(&head, 0);
    buf_init(&expected, 0);
    for (int round = 0; round < 5000; round++) {
        uint32_t dropped = (uint32_t)rng_below(&rng, 1u << HTTP_N_NAMES);
        uint16_t n = make_head(&rng, &head, lines, dropped | HTTP_NAME_BIT(HTTP_NAME_HOST));
        char *written;
        size_t len;

        buf_clear(&expected);
        for (uint16_t i = 0; i < n; i++) {
            if (!lines[i].is_kept) continue;
            buf_appendf(&expected, "%s: %s\r\n", lines[i].name, lines[i].value);
        }
        http_request_init(h);
        assert_int_equal(http_head_parse(h, buf_ptr(&head), buf_len(&head), NULL), ST_OK);
        written = mem_alloc(http_kept_max(h));
        len = (size_t)(http_write_kept(written, h, buf_ptr(&head),
                                       dropped | HTTP_NAME_BIT(HTTP_NAME_HOST)) -
                       written);
        assert_true(str_eq((struct str){written, len}, buf_str(&expected)));
        mem_free(written);
    }
    buf_fini(&head);
    buf_fini(&expected);
    mem_free(h);
}

static void query_parameters_are_decoded(void **state) {
    struct str q = STR("a=1&url=http%3A%2F%2Fx%2f&e&plus=a+b&bad=%zz%4&a=2");
    struct buf out;

    (void)state;
    buf_init(&out, 0);
    assert_true(http_query_param(q, STR("url"), &out));
    assert_true(str_eq(buf_str(&out), STR("http://x/")));
    buf_clear(&out);
    assert_true(http_query_param(q, STR("a"), &out));
    assert_true(http_query_param(q, STR("e"), &out));
    assert_true(http_query_param(q, STR("plus"), &out));
    assert_true(http_query_param(q, STR("bad"), &out));
    assert_true(str_eq(buf_str(&out), STR("1a b%zz%4")));
    assert_false(http_query_param(q, STR("ur"), &out));
    assert_false(http_query_param(STR_NULL, STR("x"), &out));
    buf_fini(&out);
}

/* --- chance ----------------------------------------------------------------------------------- */

/* Vectors with bytes changed, dropped, doubled: nothing is read out of bounds (sanitizers), and
 * every way of cutting gives one verdict. */
static void mutated_messages_have_one_verdict(void **state) {
    static const char alphabet[] = "\r\n\t :;,0139aAfFxX\0\x7F\xFF/?*";
    struct rng rng;
    char bytes[1024];

    (void)state;
    rng_seed(&rng, support_seed());
    for (int round = 0; round < 3000; round++) {
        bool is_response = rng_below(&rng, 4) == 0;
        const struct vector *v = is_response ? &responses[rng_below(&rng, ARRAY_LEN(responses))]
                                             : &requests[rng_below(&rng, ARRAY_LEN(requests))];
        size_t n = MIN(v->message.len, sizeof(bytes) / 2);

        memcpy(bytes, v->message.ptr, n);
        for (uint64_t k = 1 + rng_below(&rng, 4); k > 0 && n > 1; k--) {
            size_t at = (size_t)rng_below(&rng, n);

            switch (rng_below(&rng, 3)) {
            case 0: bytes[at] = alphabet[rng_below(&rng, sizeof(alphabet) - 1)]; break;
            case 1:
                memmove(bytes + at, bytes + at + 1, n - at - 1);
                n--;
                break;
            default:
                memmove(bytes + at + 1, bytes + at, n - at);
                n++;
                break;
            }
        }
        check_all_cuts((struct str){bytes, n}, is_response, false, NULL, v->name);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_are_understood_or_refused),
        cmocka_unit_test(responses_are_understood_or_refused),
        cmocka_unit_test(limits_hold_to_the_byte),
        cmocka_unit_test(headers_are_found_without_regard_to_case),
        cmocka_unit_test(names_have_their_ids_and_near_misses_do_not),
        cmocka_unit_test(what_is_written_is_what_is_kept),
        cmocka_unit_test(query_parameters_are_decoded),
        cmocka_unit_test(mutated_messages_have_one_verdict),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
