/* tests/bench/load/endpoints.c - a short list, read again when its file has changed. */
#include "tests/bench/load/endpoints.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/file.h"
#include "common/base/mem.h"

#define LOOK_US 50000u

enum status endpoint_parse(const char *url, struct sockaddr_in *addr, struct error *err) {
    char host[64];
    unsigned port;

    *addr = (struct sockaddr_in){.sin_family = AF_INET};
    if ((sscanf(url, "http://%63[0-9.]:%u", host, &port) != 2 &&
         sscanf(url, "https://%63[0-9.]:%u", host, &port) != 2) ||
        port > 65535 || inet_pton(AF_INET, host, &addr->sin_addr) != 1) {
        return error_set(err, ST_INVALID, "'%s' is not like http://127.0.0.1:30000", url);
    }
    addr->sin_port = htons((uint16_t)port);
    return ST_OK;
}

static enum status read_list(struct endpoints *e, struct error *err) {
    char *text = NULL, *rest;
    struct endpoints fresh = {.n = 0};
    size_t n;
    enum status st = file_read(e->path, 65536, &text, &n, err);

    if (st != ST_OK) return st;
    for (char *line = strtok_r(text, "\r\n", &rest); line && st == ST_OK && fresh.n < ENDPOINTS_MAX;
         line = strtok_r(NULL, "\r\n", &rest))
        st = endpoint_parse(line, &fresh.addrs[fresh.n++], err);
    mem_free(text);
    if (st == ST_OK && fresh.n == 0)
        st = error_set(err, ST_INVALID, "%s lists no address", e->path);
    if (st != ST_OK) return st;
    memcpy(e->addrs, fresh.addrs, sizeof(e->addrs));
    e->n = fresh.n;
    return ST_OK;
}

enum status endpoints_open(struct endpoints *e, const char *path, struct error *err) {
    *e = (struct endpoints){.path = path};
    return read_list(e, err);
}

static void look_again(struct endpoints *e) {
    struct stat sb;
    int64_t changed_ns;

    if (stat(e->path, &sb) != 0) return;
    changed_ns = (int64_t)sb.st_mtim.tv_sec * 1000000000 + sb.st_mtim.tv_nsec;
    if (changed_ns == e->changed_ns) return;
    e->changed_ns = changed_ns;
    (void)!read_list(e, NULL);
}

const struct sockaddr_in *endpoints_next(struct endpoints *e, uint64_t now_us) {
    if (e->path && now_us - e->looked_us >= LOOK_US) {
        e->looked_us = now_us;
        look_again(e);
    }
    return &e->addrs[e->next++ % e->n];
}
