#include "nn/tensor_values.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "runtime/status.h"

namespace kz {

namespace {

constexpr uint32_t kF16Exponent = 0x7c00;  // of what is not finite

// Whether all n values are of the type; half gets them.
bool to_f16(const float *x, uint16_t *half, size_t n) {
    uint32_t wrong = 0;
    for (size_t i = 0; i < n; i++) {
        // The inverse of widening: the exponent's bias is 112 smaller, 13 bits are dropped.
        const auto bits = std::bit_cast<uint32_t>(x[i]);
        const uint32_t sign = bits & 0x80000000u;
        const uint32_t h =
            std::bit_cast<uint32_t>(std::bit_cast<float>(bits ^ sign) * 0x1p-112f) >> 13;
        const float back = std::bit_cast<float>(h << 13) * 0x1p112f;
        wrong |= (std::bit_cast<uint32_t>(back) ^ (bits ^ sign)) | (h >= kF16Exponent ? 1u : 0u);
        half[i] = static_cast<uint16_t>(h | sign >> 16);
    }
    return wrong == 0;
}

bool to_bf16(const float *x, uint16_t *half, size_t n) {
    uint32_t wrong = 0;
    for (size_t i = 0; i < n; i++) {
        const auto bits = std::bit_cast<uint32_t>(x[i]);
        wrong |= bits & 0xffffu;
        half[i] = static_cast<uint16_t>(bits >> 16);
    }
    return wrong == 0;
}

// Stops at the first block that does not fit, so weights of full precision cost nothing.
template <typename F>
bool all_blocks(const float *x, uint16_t *half, size_t n, F convert) {
    constexpr size_t kBlock = 4096;
    for (size_t i = 0; i < n; i += kBlock) {
        if (!convert(x + i, half + i, std::min(kBlock, n - i))) return false;
    }
    return true;
}

}  // namespace

TensorValues::TensorValues(const GgufFile &f, const ggml_tensor *t, bool narrow) {
    const auto n = static_cast<size_t>(ggml_nelements(t));
    const bool half = t->type == GGML_TYPE_F16 || t->type == GGML_TYPE_BF16;
    if (narrow && half) {
        type_ = t->type == GGML_TYPE_F16 ? WeightType::f16 : WeightType::bf16;
        data_ = RawBuffer(n * sizeof(uint16_t));
        f.read(t, data_.data());
        if (type_ == WeightType::bf16) return;
        const auto *values = reinterpret_cast<const uint16_t *>(data_.data());
        int special = 0;
        for (size_t i = 0; i < n; i++) special |= (values[i] & kF16Exponent) == kF16Exponent;
        if (special) {
            fail(KZ_ERR_FORMAT, "%s: tensor %s has a value that is not finite", f.path().c_str(),
                 t->name);
        }
        return;
    }
    data_ = RawBuffer(n * sizeof(float));
    if (t->type == GGML_TYPE_F32) {
        f.read(t, data_.data());
    } else if (half) {
        RawBuffer raw(n * sizeof(uint16_t));
        f.read(t, raw.data());
        ggml_get_type_traits(t->type)->to_float(raw.data(), reinterpret_cast<float *>(data_.data()),
                                                static_cast<int64_t>(n));
    } else {
        const FloatBuffer values = f.read_f32(t);
        std::memcpy(data_.data(), values.data(), data_.size());
    }
    if (narrow) narrow_f32(n);
}

void TensorValues::narrow_f32(size_t n) {
    const auto *x = reinterpret_cast<const float *>(data_.data());
    RawBuffer half(n * sizeof(uint16_t));
    auto *to = reinterpret_cast<uint16_t *>(half.data());
    if (all_blocks(x, to, n, to_bf16)) {
        type_ = WeightType::bf16;
    } else if (all_blocks(x, to, n, to_f16)) {
        type_ = WeightType::f16;
    } else {
        return;
    }
    data_ = std::move(half);
}

FloatBuffer read_vector(const GgufFile &f, const std::string &name, int n) {
    return f.read_f32(f.require(name, {n}));
}

}  // namespace kz
