#include "nn/kernels/panels.h"

#include <algorithm>
#include <cstring>

namespace kz {

namespace {

// One panel: src [columns][in][taps] -> out [taps * in][nr], in blocks that stay in the first-level
// cache.
template <typename T>
void put_panel(const T *src, T *out, int in, int taps, int columns, int nr) {
    constexpr int kBlock = 16;
    const auto column = static_cast<size_t>(in) * taps;
    for (int i0 = 0; i0 < in; i0 += kBlock) {
        const int end = std::min(in, i0 + kBlock);
        for (int j = 0; j < columns; j++) {
            const T *from = src + static_cast<size_t>(j) * column;
            for (int tap = 0; tap < taps; tap++) {
                T *to = out + static_cast<size_t>(tap) * in * nr + j;
                for (int i = i0; i < end; i++)
                    to[static_cast<size_t>(i) * nr] = from[static_cast<size_t>(i) * taps + tap];
            }
        }
    }
}

}  // namespace

Panels::Panels(const Kernels &kernels, WeightType type, int depth, int columns, int planes)
    : type_(type), depth_(depth), columns_(columns), nr_(kernels.nr) {
    data_ = RawBuffer(plane_bytes() * static_cast<size_t>(planes));
    zero_rest();
}

void Panels::zero_rest() {
    const size_t size = weight_size(type_);
    const int used = columns_ % nr_;
    if (used == 0) return;
    for (size_t end = plane_bytes(); end <= data_.size(); end += plane_bytes()) {
        std::byte *panel = data_.data() + end - panel_values() * size;
        for (int row = 0; row < depth_; row++) {
            std::memset(panel + (static_cast<size_t>(row) * nr_ + used) * size, 0,
                        static_cast<size_t>(nr_ - used) * size);
        }
    }
}

void Panels::put(int row0, int column0, int in, int out, int taps, const void *src) {
    const auto column = static_cast<size_t>(in) * taps;
    for (int o = 0; o < out;) {
        const int n = column0 + o, lane = n % nr_, count = std::min(out - o, nr_ - lane);
        const size_t to =
            static_cast<size_t>(n / nr_) * panel_values() + static_cast<size_t>(row0) * nr_ + lane;
        const size_t from = static_cast<size_t>(o) * column;
        if (type_ == WeightType::f32) {
            put_panel(static_cast<const float *>(src) + from,
                      reinterpret_cast<float *>(data_.data()) + to, in, taps, count, nr_);
        } else {
            put_panel(static_cast<const uint16_t *>(src) + from,
                      reinterpret_cast<uint16_t *>(data_.data()) + to, in, taps, count, nr_);
        }
        o += count;
    }
}

void Panels::put_rows(int row0, int rows, const void *src) {
    const size_t size = weight_size(type_);
    for (int n = 0; n < columns_; n += nr_) {
        std::byte *panel = data_.data() + static_cast<size_t>(n / nr_) * panel_values() * size;
        const size_t bytes = static_cast<size_t>(std::min(nr_, columns_ - n)) * size;
        for (int row = 0; row < rows; row++) {
            std::memcpy(panel + static_cast<size_t>(row0 + row) * nr_ * size,
                        static_cast<const std::byte *>(src) +
                            (static_cast<size_t>(row) * columns_ + n) * size,
                        bytes);
        }
    }
}

}  // namespace kz
