/* tests/bench/bench_text.c - tokenizing: megabytes of text per second, on one core.
 *
 *      bench_text                      two vocabularies made here, and text made of their words
 *      bench_text FOLDER FILE          a tokenizer of yours, and a text of yours
 *
 * The vocabularies have the size and the form of real ones: 131,072 byte-level tokens cut as
 * Llama-3 cuts, and 32,000 of characters as Llama-2's. Words follow Zipf's law; one in ten is in
 * neither, as names and typing errors are; numbers, marks and line ends stand between. Then texts
 * made to cost: a run of one letter, of spaces, of emoji. Best of seven, for this is a figure, not
 * a gate. */
#include <stdio.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "worker/text/tokenizer/tokenizer.h"

#define TEXT_BYTES ((size_t)8 << 20)
#define RUN_BYTES  ((size_t)1 << 20)
#define N_WORDS    40000
#define WORD_MAX   32
#define ROUNDS     7
#define GOAL_MB_S  10.0

struct words {
    char text[N_WORDS][WORD_MAX];
};

static void make_word(struct rng *rng, char out[WORD_MAX]) {
    static const char *const heads[] = {"b", "c", "d", "f", "g", "h",  "l",  "m",  "n",  "p",
                                        "r", "s", "t", "v", "w", "st", "tr", "th", "ch", ""};
    static const char *const tails[] = {"a",  "e",   "i",  "o",  "u",  "er", "on",  "in",
                                        "es", "ing", "al", "an", "ed", "or", "ent", "y"};
    uint32_t n = 1 + rng_below(rng, 3) + rng_below(rng, 2);
    size_t len = 0;

    for (uint32_t i = 0; i < n; i++) {
        const char *head = heads[rng_below(rng, ARRAY_LEN(heads))];
        const char *tail = tails[rng_below(rng, ARRAY_LEN(tails))];

        len += (size_t)snprintf(out + len, WORD_MAX - len, "%s%s", head, tail);
    }
}

/* --- a vocabulary ------------------------------------------------------------------------------*/
struct vocabulary {
    struct buf vocab, merges;
    uint32_t n, max;
};

static void put_token(struct vocabulary *v, const char *text, size_t n) {
    buf_appendf(&v->vocab, "%s\"%.*s\":%u", v->n ? "," : "", (int)n, text, v->n);
    v->n++;
}

/* Entries are kept apart by the table of the tokenizer that is being made: here by sorting the
 * words, so that what a word shares with the one before is there already. */
static int by_text(const void *a, const void *b) {
    return strcmp(a, b);
}

static size_t shared(const char *a, const char *b) {
    size_t n = 0;

    while (a[n] && a[n] == b[n])
        n++;
    return n;
}

/* blank + word, a letter at a time: "_t" "_th" "_the". */
static void put_word(struct vocabulary *v, const char *blank, const char *word, size_t from) {
    for (size_t i = from; word[i] && v->n < v->max; i++) {
        char token[WORD_MAX + 8];
        int n = snprintf(token, sizeof(token), "%s%.*s", blank, (int)i + 1, word);

        put_token(v, token, (size_t)n);
        buf_appendf(&v->merges, "%s\"%.*s %c\"", buf_len(&v->merges) ? "," : "", n - 1, token,
                    word[i]);
    }
}

static void put_bytes(struct vocabulary *v, bool is_byte_level) {
    uint32_t other = 256;

    for (uint32_t b = 0; b < 256; b++) {
        bool is_printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        char token[16];
        int n;

        if (is_byte_level) {
            n = snprintf(token, sizeof(token), "\\u%04x", is_printable ? b : other++);
        } else {
            n = snprintf(token, sizeof(token), "<0x%02X>", b);
        }
        put_token(v, token, (size_t)n);
    }
}

static struct tokenizer *make_tokenizer(const struct words *words, bool is_byte_level,
                                        uint32_t size) {
    static const char bytes_head[] =
        "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\","
        "\"pattern\":{"
        "\"Regex\":\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{"
        "1,3}| "
        "?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"},"
        "\"behavior\":"
        "\"Isolated\"},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]},"
        "\"model\":{\"type\":\"BPE\",\"vocab\":{";
    static const char characters_head[] =
        "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":"
        "\"\\u2581\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\" "
        "\"},\"content\":\"\\u2581\"}]},"
        "\"decoder\":{\"type\":\"Fuse\"},\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,"
        "\"vocab\":{";
    const char *blank = is_byte_level ? "\\u0120" : "\\u2581";
    struct vocabulary v = {.max = size};
    struct tokenizer *t = NULL;
    struct error err = {0};
    struct buf file;

    buf_init(&v.vocab, 0);
    buf_init(&v.merges, 0);
    buf_init(&file, 0);
    put_bytes(&v, is_byte_level);
    if (!is_byte_level) {
        put_token(&v, blank, strlen(blank));
        for (char c = '!'; c <= '~'; c++) {
            char token[3] = {'\\', c, '\0'};
            bool is_escaped = c == '"' || c == '\\';

            put_token(&v, token + !is_escaped, 1 + is_escaped);
        }
    }
    for (uint32_t i = 0; i < N_WORDS && v.n < v.max; i++) {
        size_t from = i ? shared(words->text[i - 1], words->text[i]) : 0;

        put_word(&v, blank, words->text[i], from);
    }
    buf_append_str(&file, is_byte_level ? str_of(bytes_head) : str_of(characters_head));
    buf_append_str(&file, buf_str(&v.vocab));
    buf_append_str(&file, STR("},\"merges\":["));
    buf_append_str(&file, buf_str(&v.merges));
    buf_append_str(&file, STR("]}}"));
    if (tokenizer_parse(&t, buf_str(&file), STR_NULL, &err) != ST_OK) {
        fprintf(stderr, "bench_text: %s\n", err.message);
        exit(1);
    }
    buf_fini(&v.vocab);
    buf_fini(&v.merges);
    buf_fini(&file);
    return t;
}

/* --- texts -------------------------------------------------------------------------------------*/
/* Rank by Zipf's law, by turning the harmonic sum around. */
static uint32_t zipf(struct rng *rng) {
    double u = rng_below(rng, 1u << 30) / (double)(1u << 30), rank = 1;

    for (double step = 1; u * 11 > step && rank < N_WORDS / 2; step++)
        rank *= 2.6;
    return rng_below(rng, (uint32_t)MIN(rank, (double)N_WORDS)) * 2654435761u % N_WORDS;
}

static void make_text(const struct words *words, struct buf *out) {
    struct rng rng;

    rng_seed(&rng, 7);
    while (buf_len(out) < TEXT_BYTES) {
        uint64_t kind = rng_below(&rng, 100);
        char unknown[WORD_MAX];

        if (buf_len(out)) buf_append_char(out, rng_below(&rng, 15) ? ' ' : '\n');
        if (kind < 2) {
            buf_append_u64(out, rng_below(&rng, 100000));
        } else if (kind < 12) {
            make_word(&rng, unknown);
            buf_appendf(out, "%c%s", (char)('A' + rng_below(&rng, 26)), unknown);
        } else {
            buf_append_str(out, str_of(words->text[zipf(&rng)]));
        }
        if (rng_below(&rng, 8) == 0) buf_append_char(out, rng_below(&rng, 2) ? ',' : '.');
    }
}

static void repeat(struct buf *out, const char *unit) {
    while (buf_len(out) < RUN_BYTES)
        buf_append_str(out, str_of(unit));
}

/* --- measuring ---------------------------------------------------------------------------------*/
static void measure(const char *name, const struct tokenizer *t, struct str text) {
    struct token_list ids = {0};
    struct error err = {0};
    double best_s = 1e9;

    for (int i = 0; i < ROUNDS; i++) {
        uint64_t from_ns = clock_now_ns();
        double s;

        ids.n = 0;
        if (tokenizer_encode(t, text, 0, &ids, &err) != ST_OK) {
            fprintf(stderr, "bench_text: %s: %s\n", name, err.message);
            exit(1);
        }
        s = (double)(clock_now_ns() - from_ns) / 1e9;
        best_s = MIN(best_s, s);
    }
    printf("%-34s %8.1f MB/s  %6.2f bytes per token\n", name, (double)text.len / best_s / 1e6,
           (double)text.len / (double)MAX(ids.n, (size_t)1));
    token_list_fini(&ids);
}

static void measure_all(const char *name, const struct tokenizer *t, struct str text) {
    static const char *const units[][2] = {{"a", "one letter"},
                                           {" ", "spaces"},
                                           {"\xF0\x9F\x98\x80", "emoji"},
                                           {"\xE6\x97\xA5\xE6\x9C\xAC", "Chinese"},
                                           {"ab1 !", "short pieces"}};
    char label[64];
    struct buf run;

    snprintf(label, sizeof(label), "%s, text", name);
    measure(label, t, text);
    buf_init(&run, 0);
    for (size_t i = 0; i < ARRAY_LEN(units); i++) {
        buf_clear(&run);
        repeat(&run, units[i][0]);
        snprintf(label, sizeof(label), "%s, %s", name, units[i][1]);
        measure(label, t, buf_str(&run));
    }
    buf_fini(&run);
}

static int measure_files(const char *folder, const char *file) {
    struct tokenizer *t = NULL;
    struct error err = {0};
    char *text = NULL;
    size_t n = 0;

    if (tokenizer_open(&t, folder, &err) != ST_OK ||
        file_read(file, (size_t)1 << 30, &text, &n, &err) != ST_OK) {
        fprintf(stderr, "bench_text: %s\n", err.message);
        return 1;
    }
    measure_all(folder, t, (struct str){text, n});
    mem_free(text);
    tokenizer_destroy(t);
    return 0;
}

int main(int argc, char **argv) {
    struct words *words;
    struct tokenizer *t;
    struct rng rng;
    struct buf text;

    if (argc == 3) return measure_files(argv[1], argv[2]);
    words = mem_zalloc(sizeof(*words));
    rng_seed(&rng, 3);
    for (uint32_t i = 0; i < N_WORDS; i++)
        make_word(&rng, words->text[i]);
    qsort(words->text, N_WORDS, WORD_MAX, by_text);
    buf_init(&text, 0);
    make_text(words, &text);
    t = make_tokenizer(words, true, 131072);
    measure_all("131072 of bytes", t, buf_str(&text));
    tokenizer_destroy(t);
    t = make_tokenizer(words, false, 32000);
    measure_all("32000 of characters", t, buf_str(&text));
    tokenizer_destroy(t);
    printf("goal: text at %.0f MB/s or more\n", GOAL_MB_S);
    buf_fini(&text);
    mem_free(words);
    return 0;
}
