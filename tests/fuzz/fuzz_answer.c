/* tests/fuzz/fuzz_answer.c - whatever a worker sends as an answer: a verdict, and none that
 * contradicts another. Linked to libFuzzer by `make fuzz`. */
#include <stdlib.h>
#include <string.h>

#include "router/proxy/answers/answer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *copy = malloc(size); /* of this size: a byte read behind it is seen */
    struct str body = {copy, size};
    enum answer_fault any, of_completion;

    if (!copy) return 0;
    memcpy(copy, data, size);
    any = answer_judge(body, false);
    of_completion = answer_judge(body, true);
    /* A completion may only be found to lack more. */
    if (any != ANSWER_FINE && of_completion != any) abort();
    if (any == ANSWER_FINE && of_completion != ANSWER_FINE && of_completion != ANSWER_EMPTY)
        abort();
    if (answer_is_error(body) && any != ANSWER_ERROR) abort();
    (void)answer_blames_request(body);
    free(copy);
    return 0;
}
