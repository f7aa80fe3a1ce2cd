// A matrix packed for gemm: panels of the kernel set's columns, each [depth][nr], zero-filled to
// whole panels.  16-bit weights stay as the file has them and are widened in the kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include "nn/kernels/float_kernels.h"

namespace kz {

// Memory on a 64-byte boundary that nothing is written to before its owner does.
class RawBuffer {
  public:
    RawBuffer() = default;
    explicit RawBuffer(size_t bytes)
        : data_(static_cast<std::byte *>(::operator new(bytes, std::align_val_t(64)))),
          size_(bytes) {}
    std::byte *data() { return data_.get(); }
    const std::byte *data() const { return data_.get(); }
    size_t size() const { return size_; }

  private:
    struct Free {
        void operator()(std::byte *p) const { ::operator delete(p, std::align_val_t(64)); }
    };
    std::unique_ptr<std::byte[], Free> data_;
    size_t size_ = 0;
};

inline size_t weight_size(WeightType type) {
    return type == WeightType::f32 ? sizeof(float) : sizeof(uint16_t);
}

class Panels {
  public:
    Panels() = default;
    // planes: matrices of the same shape one behind the other.
    Panels(const Kernels &kernels, WeightType type, int depth, int columns, int planes = 1);

    // Writes src [out][in][taps], of this type, to the rows row0 + tap * in + i and the columns
    // column0 + o.
    void put(int row0, int column0, int in, int out, int taps, const void *src);
    // Writes src [rows][columns()] to the rows row0 ..; of this type.
    void put_rows(int row0, int rows, const void *src);

    WeightType type() const { return type_; }
    int columns() const { return columns_; }
    int nr() const { return nr_; }
    int panels() const { return (columns_ + nr_ - 1) / nr_; }
    size_t plane_bytes() const { return panel_values() * panels() * weight_size(type_); }
    size_t bytes() const { return data_.size(); }
    const void *plane(int i = 0) const {
        return data_.data() + static_cast<size_t>(i) * plane_bytes();
    }
    void *plane(int i = 0) { return data_.data() + static_cast<size_t>(i) * plane_bytes(); }
    size_t panel_values() const { return static_cast<size_t>(depth_) * nr_; }

  private:
    void zero_rest();  // the columns beyond columns_

    WeightType type_ = WeightType::f32;
    int depth_ = 0, columns_ = 0, nr_ = 1;
    RawBuffer data_;
};

}  // namespace kz
