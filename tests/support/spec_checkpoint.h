/* tests/support/spec_checkpoint.h - safetensors files from a line of words.
 *
 *      "m.weight:F8_E4M3:4,6:r m.weight_scale:F32:-:1"
 *
 * name, type, shape and content of each tensor; a shape of - is (). Content: 1 one, m minus one, 0
 * bytes of zero, h of 80, i of 81, f of ff, r varied without a NaN of e4m3, s the numbers 1, 2, 3
 * ..., p 0, 1, 2 ..., e 1 2 4 8 and again, g 0 0 0 0 1 1 1 1 2 ..., n the same from the end. */
#ifndef TESTS_SUPPORT_SPEC_CHECKPOINT_H
#define TESTS_SUPPORT_SPEC_CHECKPOINT_H

#include "common/base/buf.h"

#define SPEC_FOLDER 64

void spec_folder(char folder[SPEC_FOLDER]); /* makes one; spec_erase removes it */
void spec_erase(const char *folder);        /* with the files in it */
void spec_write_bytes(const char *folder, const char *name, struct str bytes);
void spec_write(const char *folder, const char *name, const char *specs);

#endif
