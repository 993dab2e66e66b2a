/* router/ready_message.c - see ready_message.h. */
#include "router/ready_message.h"

#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"

#define MESSAGE_MAX (64 * 1024)

static const char usual_message[] =
    "Try:\n\n  curl {url}/v1/chat/completions -H 'content-type: application/json' \\\n"
    "    -d '{\"model\":\"{model}\",\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}'\n";

static void print(const char *text, const char *url, const char *model) {
    while (*text) {
        if (strncmp(text, "{url}", 5) == 0) {
            fputs(url, stdout);
            text += 5;
        } else if (strncmp(text, "{model}", 7) == 0) {
            fputs(model, stdout);
            text += 7;
        } else {
            putchar(*text++);
        }
    }
    fflush(stdout);
}

void ready_message_print(const char *path, const char *url, const char *model) {
    FILE *f = path ? fopen(path, "r") : NULL;
    char *text = NULL;

    if (f) {
        size_t n;

        text = mem_zalloc(MESSAGE_MAX);
        n = fread(text, 1, MESSAGE_MAX - 1, f);
        text[n] = '\0';
        fclose(f);
    }
    print(text ? text : usual_message, url, model);
    mem_free(text);
}
