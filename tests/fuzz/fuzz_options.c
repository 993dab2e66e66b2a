/* tests/fuzz/fuzz_options.c - a configuration that is accepted can be dumped, and the dump is the
 * same configuration. Input that begins with a hyphen is a command line, one argument a line; any
 * other is a file. Linked to libFuzzer by `make fuzz`, and included by the unit test. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/options/options.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum color { RED, DARK_GREEN, BLUE };

struct target {
    bool cache;
    uint32_t block_size, timeout_ms, max_tokens;
    uint64_t seed, budget_bytes;
    double load_factor;
    const char *model, *host, *api_key, *overrides;
    enum color color;
    struct option_list urls, names, tokens;
};

#define FIELD(member) OPTION_FIELD(struct target, member)

static const char *const colors[] = {"red", "dark-green", "blue", NULL};
static const char *const color_aliases[] = {"scarlet", "red", "navy", "blue", NULL};
static const struct option_compat compat[] = {
    {.flags = "tokenizer-path=", .remark = "there is no tokenizer"},
    {.flags = "with-wings", .remark = "it does not fly"},
    {.flags = "feather-light,feather-*=", .remark = "it has no wings"},
    {.flags = "selector=*", .remark = "nothing is selected"},
    {.flags = "no-color", .as = "color", .value = "dark-green"},
    {.flags = "prefill=*", .is_refused = true, .remark = "use --worker-urls"},
    {.flags = "quantization=,-q=",
     .fine = "none,auto",
     .is_refused = true,
     .remark = "weights keep their type"},
    {.flags = "kv-cache-dtype=", .fine = "auto", .refuses = "fp8*", .remark = "it is the model's"},
    {.flags = "compilation-config=,-O=,-cc=", .remark = "nothing is compiled"},
    {.flags = "numa-bind=?", .remark = "threads go where the system puts them"},
    {.flags = "-bs=", .as = "block-size"},
    {.flags = NULL},
};
static const struct option_def rows[] = {
    {"enable-cache", OPT_BOOL, FIELD(cache), .def = "true", .aliases = "!disable-radix-cache",
     .is_live = true, .group = "Cache", .help = "Keep computed blocks."},
    {"block-size", OPT_U32, FIELD(block_size), .def = "16", .min = "1", .max = "128",
     .aliases = "page-size", .group = "Cache",
     .help = "Tokens per KV block. Smaller blocks share more of a prompt; larger ones cost less "
             "bookkeeping."},
    {"budget-bytes", OPT_BYTES, FIELD(budget_bytes), .def = "64MiB", .min = "1M", .max = "1T",
     .group = "Cache", .is_live = true, .help = "Memory for the cache."},
    {"timeout", OPT_MS, FIELD(timeout_ms), .def = "250ms", .max = "1h",
     .aliases = "request-timeout-secs", .is_live = true, .help = "How long to wait."},
    {"max-tokens", OPT_U32, FIELD(max_tokens), .max = "1000000", .is_human = true,
     .is_clamped = true, .help = "Longest answer."},
    {"seed", OPT_U64, FIELD(seed), .help = "Where chance begins."},
    {"load-factor", OPT_F64, FIELD(load_factor), .def = "1.25", .min = "1", .max = "10",
     .is_live = true, .help = "Above this times the mean a worker is passed over."},
    {"model", OPT_STR, FIELD(model), .is_positional = true, .aliases = "model-path",
     .metavar = "DIR", .help = "Folder of the model."},
    {"host", OPT_STR, FIELD(host), .def = "127.0.0.1", .is_live = true, .help = "Address."},
    {"api-key", OPT_STR, FIELD(api_key), .is_secret = true, .help = "What clients must send."},
    {"token", OPT_LIST, FIELD(tokens), .is_secret = true, .is_shown = true, .is_verbatim = true,
     .takes_many = true, .env = "OTHER_TOKEN", .help = "What clients may send."},
    {"overrides", OPT_STR, FIELD(overrides), .help = "JSON."},
    {"color", OPT_ENUM, FIELD(color), .def = "red", .names = colors, .name_aliases = color_aliases,
     .is_live = true, .help = "A choice."},
    {"worker-urls", OPT_LIST, FIELD(urls), .takes_many = true, .max = "5", .is_live = true,
     .help = "Where the workers are."},
    {"names", OPT_LIST, FIELD(names), .def = "a,b", .is_live = true, .help = "Names."},
};
static const struct option_program program = {
    .name = "incipit-test",
    .summary = "A program that has options.",
    .usage = "[MODEL] [options]",
    .defs = rows,
    .n_defs = ARRAY_LEN(rows),
    .target_bytes = sizeof(struct target),
    .compat = compat,
    .others = "other tests",
    .takes_beginnings = true,
};

/* A file that has no name but this path. */
static int file_of(struct str text, char *path, size_t size) {
    int fd = memfd_create("config", MFD_CLOEXEC);

    if (fd < 0 || write(fd, text.ptr, text.len) != (ssize_t)text.len) abort();
    snprintf(path, size, "/proc/self/fd/%d", fd);
    return fd;
}

static enum status parse_args(struct options **o, struct target *t, int argc, char *const *argv,
                              struct error *err) {
    bool wants_exit;

    memset(t, 0, sizeof(*t));
    return options_parse(o, &program, t, argc, argv, &wants_exit, err);
}

static enum status parse_file(struct options **o, struct target *t, struct str text,
                              struct error *err) {
    char path[64], *argv[] = {(char[]){"incipit-test"}, (char[]){"--config"}, path, NULL};
    int fd = file_of(text, path, sizeof(path));
    enum status st = parse_args(o, t, 3, argv, err);

    close(fd);
    return st;
}

/* The dump without the comments about the source of each value. */
static void dump_values(const struct options *o, struct buf *out) {
    struct buf whole;
    struct str rest, line;

    buf_init(&whole, 0);
    options_dump(o, &whole);
    rest = buf_str(&whole);
    while (rest.len > 0) {
        const char *comment = NULL;

        line =
            (struct str){rest.ptr, (size_t)((char *)memchr(rest.ptr, '\n', rest.len) - rest.ptr)};
        rest = (struct str){rest.ptr + line.len + 1, rest.len - line.len - 1};
        for (size_t i = 0; i + 3 < line.len; i++) {
            if (memcmp(line.ptr + i, "  # ", 4) == 0) comment = line.ptr + i;
        }
        if (*line.ptr == '#') continue;
        if (comment) line.len = (size_t)(comment - line.ptr);
        buf_append_str(out, line);
        buf_append_char(out, '\n');
    }
    buf_fini(&whole);
}

static enum status parse_lines(struct options **o, struct target *t, struct str text,
                               struct error *err) {
    char *copy = mem_strndup(text.ptr, text.len), *argv[64] = {copy}, *p = copy;
    enum status st;
    int argc = 1;

    while (p && argc < 63) {
        argv[argc++] = p;
        p = strchr(p, '\n');
        if (p) *p++ = '\0';
    }
    st = parse_args(o, t, argc, argv, err);
    mem_free(copy);
    return st;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct str text = {(const char *)data, size};
    struct options *o = NULL, *again = NULL;
    struct target t, u;
    struct error err = {0};
    struct buf once, twice;
    enum status st;

    if (size && *data == '-') {
        if (str_find(text, STR("help")) >= 0 || str_find(text, STR("vers")) >= 0 ||
            str_find(text, STR("dump")) >= 0 || str_find(text, STR("conf")) >= 0 ||
            str_find(text, STR("-h")) >= 0) {
            return 0; /* nothing onto the fuzzer's terminal, nothing from its disk */
        }
        st = parse_lines(&o, &t, text, &err);
    } else {
        st = parse_file(&o, &t, text, &err);
    }
    if (st != ST_OK) {
        if (!err.message[0]) abort(); /* every refusal has a reason */
        return 0;
    }
    buf_init(&once, 0);
    buf_init(&twice, 0);
    dump_values(o, &once);
    if (str_is_utf8(text)) {
        if (parse_file(&again, &u, buf_str(&once), &err) != ST_OK) abort();
        dump_values(again, &twice);
        if (!str_eq(buf_str(&once), buf_str(&twice))) abort();
    }
    options_destroy(again);
    options_destroy(o);
    buf_fini(&once);
    buf_fini(&twice);
    return 0;
}
