// A float array on a 64-byte boundary, so that vector loads never straddle cache lines.
#pragma once

#include <algorithm>
#include <cstddef>
#include <new>
#include <vector>

namespace kz {

template <typename T>
struct AlignedAllocator {
    using value_type = T;
    AlignedAllocator() = default;
    template <typename U>
    AlignedAllocator(const AlignedAllocator<U> &) {}
    T *allocate(size_t n) {
        return static_cast<T *>(::operator new(n * sizeof(T), std::align_val_t(64)));
    }
    void deallocate(T *p, size_t) { ::operator delete(p, std::align_val_t(64)); }
    template <typename U>
    bool operator==(const AlignedAllocator<U> &) const {
        return true;
    }
};

using FloatBuffer = std::vector<float, AlignedAllocator<float>>;

// Grows only: scratch that reaches its size once and then costs nothing.
inline float *at_least(FloatBuffer &buffer, size_t n) {
    if (buffer.size() < n) buffer.resize(n);
    return buffer.data();
}

}  // namespace kz
