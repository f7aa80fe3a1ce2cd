// What devices there are, and what of a model runs where, as JSON.
#pragma once

#include <string>

#include "model/model.h"

namespace kz {

std::string devices_json();
// n_threads: of ggml's processor device.
std::string placement_json(const Model &model, int n_threads);

}  // namespace kz
