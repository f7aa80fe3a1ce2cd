// What the matrix products of a model cost at least: beside it stands what a frame really takes.
#pragma once

#include "model/model.h"

namespace kz {

// Seconds of the matrix products alone that a frame of one stream needs: one talker step, all
// passes of the code predictor.  0 for models whose products are ggml's.
struct PassTimes {
    double talker_s = 0, cp_s = 0;
};
PassTimes measure_passes(const Model &model, int threads);

}  // namespace kz
