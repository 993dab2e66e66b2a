/* worker/model/digest.h - one number for all that a checkpoint computes: equal digest, equal model.
 */
#ifndef WORKER_MODEL_DIGEST_H
#define WORKER_MODEL_DIGEST_H

#include "common/base/hash.h"
#include "common/base/status.h"
#include "worker/model/checkpoint/weights.h"

/* SHA-256 of the folder's config.json, hf_quant_config.json and all tensors: names, types, shapes
 * and bytes. Reads the whole checkpoint. */
MUST_USE enum status digest_checkpoint(const char *folder, const struct weights *w,
                                       uint8_t out[SHA256_BYTES], struct error *err);

#endif
