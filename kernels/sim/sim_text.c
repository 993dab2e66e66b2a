/* kernels/sim/sim_text.c - see sim_text.h. */
#include "kernels/sim/sim_text.h"

#include "common/base/rng.h"

#define PATTERN_LENGTH 16

/* c: a consonant, v: a vowel. Each ends in a space, so words never run together. */
static const char patterns[8][PATTERN_LENGTH + 1] = {
    "cvcv cvcvc cvcv ", "cv cvccv cvcvcv ", "cvcvccv vc cvcc ", "cvc cvcv cv vcv ",
    "vccvcv cvccvcv. ", "cvcvcv cv cvcvc ", "cvccv vcvc cvcc ", "cv cvcvcvc cvc. ",
};

uint64_t sim_text_key(const uint32_t *prompt, uint32_t n_prompt) {
    uint64_t key = n_prompt;

    for (uint32_t i = 0; i < n_prompt; i++)
        key = rng_mix(key ^ prompt[i]);
    return key;
}

uint32_t sim_text_token(uint64_t key, uint32_t offset) {
    static const char consonants[] = "bcdfghjklmnprstv", vowels[] = "aeiou";
    uint64_t chance = rng_at(key, offset);
    char c = patterns[rng_at(~key, offset / PATTERN_LENGTH) % 8][offset % PATTERN_LENGTH];

    if (c == 'c') return (uint32_t)consonants[chance % 16];
    if (c == 'v') return (uint32_t)vowels[chance % 5];
    return (uint32_t)c;
}
