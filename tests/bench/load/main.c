/* tests/bench/load/main.c - incipit-bench: offers load to a router or a worker and measures.
 *
 *      incipit-bench http://127.0.0.1:30000 --rps 50 --duration 30s --traffic conversation --stream
 *
 * One JSON object on stdout when the last request has been answered; see --help. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/net/loop.h"
#include "common/net/tls.h"
#include "common/options/options.h"
#include "tests/bench/load/drive.h"
#include "tests/bench/load/report.h"

struct options_of_bench {
    const char *url, *endpoints, *path, *records;
    struct option_list headers;
    int mode;
    double rps, abort_share;
    uint64_t seed, requests;
    uint32_t duration_ms, warmup_ms, timeout_ms, connections, abort_ms;
    bool hold;
    struct traffic_config traffic;
};

enum mode { MODE_OPEN, MODE_CLOSED };
static const char *const mode_names[] = {"open", "closed", NULL};

#define FIELD(member)   OPTION_FIELD(struct options_of_bench, member)
#define TRAFFIC(member) OPTION_FIELD(struct options_of_bench, traffic.member)

static const struct option_def rows[] = {
    {"url", OPT_STR, FIELD(url), .def = "http://127.0.0.1:30000", .is_positional = true,
     .help = "The target's URL, with a numeric address. With https:// any certificate will do."},
    {"endpoints", OPT_STR, FIELD(endpoints), .metavar = "FILE",
     .help = "A file with one URL a line, read again when it changes: each new connection goes to "
             "the next of them, in place of the URL, as those of a Kubernetes Service do."},
    {"path", OPT_STR, FIELD(path), .def = "/v1/chat/completions", .help = "What to ask for."},
    {"header", OPT_LIST, FIELD(headers), .metavar = "TEXT",
     .help = "A header for each request, \"authorization: Bearer key\"; repeatable."},
    {"mode", OPT_ENUM, FIELD(mode), .def = "open", .names = mode_names,
     .help = "open: Poisson arrivals at --rps, whatever the answers take. closed: each of "
             "--connections sends its next request when the last was answered."},
    {"rps", OPT_F64, FIELD(rps), .def = "10", .min = "0.001", .max = "1000000",
     .help = "Arrivals per second of an open loop."},
    {"duration", OPT_MS, FIELD(duration_ms), .def = "10s", .max = "24h",
     .help = "No request is begun after it."},
    {"requests", OPT_U64, FIELD(requests), .def = "0",
     .help = "No more requests than these; 0: by --duration alone."},
    {"warmup", OPT_MS, FIELD(warmup_ms), .def = "0", .max = "24h",
     .help = "Requests due before it are sent and not counted."},
    {"connections", OPT_U32, FIELD(connections), .def = "4096", .min = "1", .max = "1000000",
     .help = "Of a closed loop; of an open loop the most at once, beyond which requests fail."},
    {"timeout", OPT_MS, FIELD(timeout_ms), .def = "60s", .min = "1ms", .max = "24h",
     .help = "A request without a complete answer after it is given up."},
    {"abort-share", OPT_F64, FIELD(abort_share), .def = "0", .min = "0", .max = "1",
     .help = "Share of requests whose client leaves early."},
    {"abort-after", OPT_MS, FIELD(abort_ms), .def = "1s", .max = "1h",
     .help = "Such a client leaves at a random moment before it."},
    {"seed", OPT_U64, FIELD(seed), .def = "1",
     .help = "The same seed gives the same arrivals and the same bodies."},
    {"hold", OPT_BOOL, FIELD(hold),
     .help = "Afterwards keep the connections open until standard input closes."},
    {"records", OPT_STR, FIELD(records), .metavar = "FILE",
     .help = "Write one CSV line per request."},

    {"traffic", OPT_ENUM, TRAFFIC(shape), .def = "fixed", .names = traffic_shape_names,
     .group = "Traffic", .help = "What the requests are; see the options of each."},
    {"model", OPT_STR, TRAFFIC(model), .def = "synthetic", .group = "Traffic",
     .help = "The model they name."},
    {"stream", OPT_BOOL, TRAFFIC(is_stream), .group = "Traffic", .help = "Ask for event streams."},
    {"max-tokens", OPT_U32, TRAFFIC(max_tokens), .def = "64", .min = "1", .group = "Traffic",
     .help = "Tokens of each answer; for conversations their mean."},
    {"body-bytes", OPT_U32, TRAFFIC(body_bytes), .def = "1024", .max = "16777216",
     .group = "Traffic", .help = "fixed: bytes of a body."},
    {"bodies", OPT_U32, TRAFFIC(bodies), .def = "64", .min = "1", .max = "65536",
     .group = "Traffic", .help = "fixed: different bodies."},
    {"families", OPT_U32, TRAFFIC(families), .def = "8", .min = "1", .group = "Traffic",
     .help = "fixed: families of bodies that share their first half."},
    {"groups", OPT_U32, TRAFFIC(groups), .def = "64", .min = "1", .group = "Traffic",
     .help = "shared-prefix: different system prompts."},
    {"prefix-bytes", OPT_U32, TRAFFIC(prefix_bytes), .def = "2048", .max = "1048576",
     .group = "Traffic", .help = "shared-prefix: bytes of a system prompt."},
    {"question-bytes", OPT_U32, TRAFFIC(question_bytes), .def = "128", .max = "1048576",
     .group = "Traffic", .help = "shared-prefix: bytes that differ."},
    {"system-prompts", OPT_U32, TRAFFIC(system_prompts), .def = "16", .min = "1", .max = "4096",
     .group = "Traffic", .help = "conversation: different system prompts, some liked more."},
    {"system-bytes", OPT_U32, TRAFFIC(system_bytes), .def = "1000", .max = "1048576",
     .group = "Traffic", .help = "conversation: bytes of a system prompt."},
    {"first-turn-bytes", OPT_U32, TRAFFIC(first_turn_bytes), .def = "3000", .min = "1",
     .max = "1048576", .group = "Traffic", .help = "conversation: mean of the first question."},
    {"turn-bytes", OPT_U32, TRAFFIC(turn_bytes), .def = "800", .min = "1", .max = "1048576",
     .group = "Traffic", .help = "conversation: mean of those that follow."},
    {"turns", OPT_F64, TRAFFIC(turns), .def = "4", .min = "1", .max = "1000", .group = "Traffic",
     .help = "conversation: mean number of turns."},
    {"pause", OPT_MS, TRAFFIC(pause_ms), .def = "5s", .max = "1h", .group = "Traffic",
     .help = "conversation: mean time from one question to the next."},
};

static const struct option_program program = {
    .name = "incipit-bench",
    .summary = "Offers load to an OpenAI-compatible router or worker and measures the answers.",
    .usage = "[URL] [options]",
    .defs = rows,
    .n_defs = ARRAY_LEN(rows),
    .target_bytes = sizeof(struct options_of_bench),
};

static enum status write_file(const char *path, const struct buf *text, struct error *err) {
    FILE *f = fopen(path, "w");

    if (!f || fwrite(buf_ptr(text), 1, buf_len(text), f) != buf_len(text) || fclose(f) != 0) {
        return error_set(err, ST_IO, "cannot write %s", path);
    }
    return ST_OK;
}

static void on_input(unsigned ready, void *arg) {
    char bytes[256];

    (void)ready;
    if (read(0, bytes, sizeof(bytes)) <= 0) loop_stop(arg);
}

/* Keeps the connections, and notices when one is closed, until no client needs them. */
static void hold_until_input_closes(struct loop *loop) {
    struct loop_fd input;

    loop_fd_init(&input, loop, 0, on_input, loop);
    loop_fd_watch(&input, LOOP_READ);
    loop_run(loop);
    loop_fd_fini(&input);
}

static enum status report(const struct options_of_bench *o, const struct drive *d,
                          struct error *err) {
    const struct record *records;
    struct report_config config = {.warmup_us = o->warmup_ms * UINT64_C(1000),
                                   .until_us = o->duration_ms * UINT64_C(1000)};
    enum status st = ST_OK;
    struct buf text;
    uint64_t n;

    records = drive_records(d, &n);
    if (o->requests && n == o->requests) { /* it was not time that ended it */
        config.until_us = config.warmup_us + 1;
        for (uint64_t i = 0; i < n; i++)
            config.until_us = MAX(config.until_us, records[i].end_us + 1);
    }
    buf_init(&text, 0);
    report_summary(d, &config, &text);
    fwrite(buf_ptr(&text), 1, buf_len(&text), stdout);
    fflush(stdout);
    if (o->records) {
        buf_clear(&text);
        report_records(d, &text);
        st = write_file(o->records, &text, err);
    }
    buf_fini(&text);
    return st;
}

static enum status run(struct options_of_bench *o, struct error *err) {
    struct endpoints endpoints = {.n = 1};
    struct drive_config config = {
        .endpoints = &endpoints,
        .authority = strstr(o->url, "://") ? strstr(o->url, "://") + 3 : o->url,
        .path = o->path,
        .headers = o->headers.items,
        .n_headers = o->headers.n,
        .is_open = o->mode == MODE_OPEN,
        .rps = o->rps,
        .seed = o->seed,
        .n_requests = o->requests,
        .duration_us = o->duration_ms * UINT64_C(1000),
        .timeout_us = o->timeout_ms * UINT64_C(1000),
        .connections = o->connections,
        .abort_share = o->abort_share,
        .abort_us = o->abort_ms * UINT64_C(1000),
    };
    const struct tls_config any = {.is_insecure = true};
    struct traffic *traffic;
    struct drive *drive;
    struct loop *loop;
    enum status st = endpoint_parse(o->url, &endpoints.addrs[0], err);

    if (st == ST_OK && o->endpoints) st = endpoints_open(&endpoints, o->endpoints, err);
    if (st != ST_OK) return st;
    if (o->warmup_ms >= o->duration_ms) {
        return error_set(err, ST_INVALID, "--warmup must be shorter than --duration");
    }
    if (strncmp(o->url, "https:", 6) == 0) st = tls_create(&config.tls, &any, err);
    if (st == ST_OK) st = loop_create(&loop, err);
    if (st != ST_OK) return st;
    o->traffic.seed = o->seed;
    traffic = traffic_create(&o->traffic);
    drive = drive_create(loop, &config, traffic);
    drive_start(drive);
    loop_run(loop);
    st = report(o, drive, err);
    if (st == ST_OK && o->hold) hold_until_input_closes(loop);
    drive_destroy(drive);
    traffic_destroy(traffic);
    loop_destroy(loop);
    tls_destroy(config.tls);
    return st;
}

int main(int argc, char **argv) {
    struct options_of_bench values = {0};
    struct options *options = NULL;
    struct error err = {0};
    struct rlimit limit;
    bool wants_exit = false;
    enum status st;

    signal(SIGPIPE, SIG_IGN);
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    st = options_parse(&options, &program, &values, argc, argv, &wants_exit, &err);
    if (st == ST_OK && !wants_exit) st = run(&values, &err);
    options_destroy(options);
    if (st == ST_OK) return 0;
    fprintf(stderr, "incipit-bench: %s\n", err.message);
    return st == ST_INVALID ? 2 : 1;
}
