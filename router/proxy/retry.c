/* router/proxy/retry.c - two tables. */
#include "router/proxy/retry.h"

#include <string.h>

static const struct {
    const char *word;
    uint32_t cause;
} words[] = {
    {"connect", RETRY_CONNECT}, {"reset", RETRY_RESET},
    {"timeout", RETRY_TIMEOUT}, {"malformed", RETRY_MALFORMED},
    {"empty", RETRY_EMPTY},     {"500", RETRY_500},
    {"502", RETRY_502},         {"503", RETRY_503},
    {"504", RETRY_504},         {"all", RETRY_ALL},
};

static uint32_t cause_of_word(const char *word) {
    for (size_t i = 0; i < ARRAY_LEN(words); i++) {
        if (strcmp(word, words[i].word) == 0) return words[i].cause;
    }
    return 0;
}

enum status retry_check(const struct option_list *list, struct error *err) {
    for (uint32_t i = 0; i < list->n; i++) {
        const char *word = list->items[i];

        if (cause_of_word(word) || (list->n == 1 && strcmp(word, "none") == 0)) continue;
        return error_set(err, ST_INVALID,
                         "--retry-on '%.80s' is no known failure: use some of " RETRY_ON_DEFAULT
                         ", or all, or none alone",
                         word);
    }
    return ST_OK;
}

uint32_t retry_causes(const struct option_list *list) {
    uint32_t causes = 0;

    for (uint32_t i = 0; i < list->n; i++)
        causes |= cause_of_word(list->items[i]);
    return causes;
}

const char *retry_name(uint32_t cause) {
    size_t i = 0;

    while (words[i].cause != cause && words[i].cause != RETRY_ALL)
        i++;
    return words[i].word;
}

uint32_t retry_cause_of_status(int code) {
    switch (code) {
    case 500: return RETRY_500;
    case 502: return RETRY_502;
    case 503: return RETRY_503;
    case 504: return RETRY_504;
    default: return 0;
    }
}
