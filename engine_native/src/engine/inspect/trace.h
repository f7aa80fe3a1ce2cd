// Runs that keep intermediate values, for checks against the reference implementation.
#pragma once

#include "kazeia.h"
#include "model/model.h"

namespace kz {

// Throws KZ_ERR_ARGUMENT naming the first code that is out of range.
void check_codes(const Model &model, const int32_t *codes, int n_frames);

void trace(const Model &model, const kz_stream_params &params, const int32_t *forced_codes,
           int n_frames, kz_trace_out &out);

// shape: {time, channels}; out may be nullptr.
void trace_decoder(const Model &model, const int32_t *codes, int n_frames, const char *stage,
                   int64_t shape[2], float *out);

}  // namespace kz
