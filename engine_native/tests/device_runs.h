// The tiny model on ggml's processor device and on one that refuses what it is told to refuse.
#pragma once

#include "model/model.h"
#include "row_limited_device.h"
#include "testing.h"
#include "tiny_model.h"

namespace kz::testing {

constexpr double kTolerance = 1e-4;  // of samples of -1..1, and of logits

inline const TinyModel &files() {
    static const TinyModel tiny;
    return tiny;
}

inline RowLimitedDevice &device() {
    RowLimitedDevice &d = RowLimitedDevice::get();
    d.reset();
    return d;
}

// As it has been told to behave.
inline ggml_backend_dev_t handle() {
    return RowLimitedDevice::get().handle();
}

inline std::unique_ptr<const Model> load(ggml_backend_dev_t where, int max_rows = 0) {
    return load_model(
        files().talker, files().codec,
        {.f32 = true, .talker = where, .cp = where, .decoder = where, .max_rows = max_rows});
}

inline const Model &own_kernels() {
    static const auto model = load_model(files().talker, files().codec, {.f32 = true});
    return *model;
}

inline double difference(const std::vector<float> &a, const std::vector<float> &b) {
    return a.size() == b.size() ? max_difference(a.data(), b.data(), a.size()) : INFINITY;
}

}  // namespace kz::testing
