/* common/http/http_judge.c - what headers mean for where the message ends, and which are refused
 * for it.
 *
 * Each header is judged as its line ends, and the head once more when it is complete. */
#include <stdarg.h>
#include <stdio.h>

#include "common/http/http_parse.h"
#include "common/http/http_parse_internal.h"

enum status http_refuse(struct http_head *h, int code, struct error *err, const char *fmt, ...) {
    char text[ERROR_MESSAGE_MAX];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    h->refused_code = (uint16_t)code;
    return error_set(err, ST_INVALID, "%s", text);
}

static enum status judge_host(struct http_head *h, struct str value, struct error *err) {
    if (h->n_host++) {
        return http_refuse(h, 400, err, "several Host headers: send exactly one");
    }
    if (!http_chars_are(value, HTTP_CHAR_HOST)) {
        return http_refuse(h, 400, err, "Host '%.*s' is not a host name with an optional port",
                           HTTP_QUOTE(value));
    }
    if (value.len == 0) return http_refuse(h, 400, err, "the Host header is empty: name the host");
    return ST_OK;
}

static enum status judge_length(struct http_head *h, struct str value, struct error *err) {
    uint64_t length;

    if (h->n_length++) {
        return http_refuse(h, 400, err, "several Content-Length headers: send exactly one");
    }
    if (str_to_u64(value, &length) != ST_OK) {
        return http_refuse(h, 400, err, "Content-Length '%.*s' is not a decimal number",
                           HTTP_QUOTE(value));
    }
    if (length > HTTP_MAX_BODY_LENGTH) {
        return http_refuse(h, 413, err, "Content-Length %.*s is more than anyone can send",
                           HTTP_QUOTE(value));
    }
    h->content_length = length;
    return ST_OK;
}

static enum status judge_coding(struct http_head *h, struct str value, struct error *err) {
    if (h->n_coding++) {
        return http_refuse(h, 400, err, "several Transfer-Encoding headers: send exactly one");
    }
    if (h->minor_version == 0) {
        return http_refuse(h, 400, err, "Transfer-Encoding does not exist in HTTP/1.0");
    }
    if (value.len == 0) return http_refuse(h, 400, err, "the Transfer-Encoding header is empty");
    if (!str_eq_nocase(value, STR("chunked"))) {
        return http_refuse(h, 501, err,
                           "Transfer-Encoding '%.*s' is not supported: send 'chunked' or a "
                           "Content-Length",
                           HTTP_QUOTE(value));
    }
    return ST_OK;
}

static enum status judge_expect(struct http_head *h, struct str value, struct error *err) {
    if (h->is_response) return ST_OK;
    if (!str_eq_nocase(value, STR("100-continue"))) {
        return http_refuse(h, 417, err,
                           "Expect '%.*s' is not supported: send '100-continue' or none",
                           HTTP_QUOTE(value));
    }
    h->expects_continue = h->minor_version == 1;
    return ST_OK;
}

/* Reads the Connection header; options other than close and keep-alive name headers that end here.
 * Empty options count as well: each is compared once per header. */
static enum status judge_connection(struct http_head *h, struct str value, struct error *err) {
    do {
        const char *comma = value.len ? memchr(value.ptr, ',', value.len) : NULL;
        size_t n = comma ? (size_t)(comma - value.ptr) : value.len;
        struct str option = str_trim((struct str){value.ptr, n});

        if (h->n_options++ == HTTP_MAX_CONNECTION_OPTIONS) {
            return http_refuse(h, 431, err, "more than %u options in the Connection header",
                               HTTP_MAX_CONNECTION_OPTIONS);
        }
        if (str_eq_nocase(option, STR("keep-alive"))) {
            h->has_keep_alive = true;
        } else if (str_eq_nocase(option, STR("close"))) {
            h->has_close = true;
        } else if (option.len) {
            h->has_options = true;
        }
        n += comma != NULL;
        value = (struct str){value.ptr + n, value.len - n};
    } while (value.len);
    return ST_OK;
}

/* The first would count here and the last behind us. */
static enum status judge_credential(struct http_head *h, uint8_t *n, const char *name,
                                    struct error *err) {
    if (h->is_response || !(*n)++) return ST_OK;
    *n = 2;
    return http_refuse(h, 400, err, "several %s headers: send exactly one", name);
}

enum status http_judge_header(struct http_head *h, enum http_name id, struct str value,
                              struct error *err) {
    switch (id) {
    case HTTP_NAME_HOST: return h->is_response ? ST_OK : judge_host(h, value, err);
    case HTTP_NAME_CONTENT_LENGTH: return judge_length(h, value, err);
    case HTTP_NAME_TRANSFER_ENCODING: return judge_coding(h, value, err);
    case HTTP_NAME_EXPECT: return judge_expect(h, value, err);
    case HTTP_NAME_CONNECTION: return judge_connection(h, value, err);
    case HTTP_NAME_AUTHORIZATION:
        return judge_credential(h, &h->n_authorization, "Authorization", err);
    case HTTP_NAME_X_API_KEY: return judge_credential(h, &h->n_api_key, "X-Api-Key", err);
    default: return ST_OK;
    }
}

/* Marks what the Connection headers name. */
static void mark_options(struct http_head *h, const char *data) {
    for (uint16_t i = 0; i < h->n_headers; i++) {
        struct str options = http_span_str(h->headers[i].value, data);

        if (h->headers[i].id != HTTP_NAME_CONNECTION) continue;
        for (uint16_t k = 0; k < h->n_headers; k++) {
            struct str name = http_span_str(h->headers[k].name, data);

            if (http_value_has_token(options, name)) h->headers[k].is_option = true;
        }
    }
}

static bool response_has_no_body(const struct http_head *h) {
    return h->is_head_answer || h->status_code < 200 || h->status_code == 204 ||
           h->status_code == 304;
}

enum status http_judge_head(struct http_head *h, const char *data, struct error *err) {
    if (h->n_length && h->n_coding) {
        return http_refuse(
            h, 400, err,
            "both Content-Length and Transfer-Encoding: it is not clear where the message "
            "ends; send one of them");
    }
    if (!h->is_response && h->minor_version == 1 && h->n_host == 0) {
        return http_refuse(h, 400, err, "no Host header: HTTP/1.1 requires one");
    }
    h->keep_alive = !h->has_close && (h->minor_version == 1 || h->has_keep_alive);
    if (h->is_response && response_has_no_body(h)) {
        h->framing = HTTP_NO_BODY;
    } else if (h->n_coding) {
        h->framing = HTTP_CHUNKED_BODY;
    } else if (h->content_length) {
        h->framing = HTTP_LENGTH_BODY;
    } else if (h->is_response && !h->n_length) {
        h->framing = HTTP_CLOSE_BODY;
        h->keep_alive = false;
    }
    if (h->framing == HTTP_NO_BODY) h->expects_continue = false;
    if (h->has_options) mark_options(h, data);
    return ST_OK;
}
