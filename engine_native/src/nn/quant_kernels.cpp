#include "nn/quant_kernels.h"

#include <ggml.h>

#include <cstring>

#include "nn/kernel_sets.h"

namespace kz {

extern const QuantKernels quant_scalar;
extern const QuantKernels quant_vec128;
#if defined(__x86_64__)
extern const QuantKernels quant_avx2;
extern const QuantKernels quant_avx512;
#endif

namespace {

// Best first.
std::vector<const QuantKernels *> supported() {
    std::vector<const QuantKernels *> list;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw"))
        list.push_back(&quant_avx512);
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("f16c"))
        list.push_back(&quant_avx2);
#endif
#if defined(__x86_64__) || defined(__aarch64__)
    list.push_back(&quant_vec128);
#endif
    list.push_back(&quant_scalar);
    return list;
}

// A block of q8_0 or q4_0 as the file holds it: an f16 scale, then the weights.  In q4_0 byte i
// holds weight i in its low half and weight i + 16 in its high half, plus 8.
struct SourceBlock {
    const uint8_t *bytes;
    int bits;

    ggml_fp16_t scale() const {
        ggml_fp16_t d;
        std::memcpy(&d, bytes, sizeof(d));
        return d;
    }
    // The two words of a group of inputs, see QuantLayout: the first in the low half.
    uint32_t words8(int group) const {
        uint32_t v;  // inputs 0, 1, 2, 3 of the group
        std::memcpy(&v, bytes + 2 + 4 * group, sizeof(v));
        v ^= 0x80808080u;
        return (v & 0xff0000ffu) | (v >> 8 & 0xff00u) | (v & 0xff00u) << 8;
    }
    uint32_t words4(int group) const {
        uint32_t v = 0;
        for (int i = 0; i < 8; i++) {  // input 2 * j + h -> part j of word h
            const int weight = 8 * group + i;
            const uint32_t w = (bytes[2 + weight % 16] >> (weight / 16 * 4)) & 15u;
            v |= w << (i % 2 * 16 + i / 2 * 4);
        }
        return v;
    }
};

// Weights of 32 inputs of one output, into its places among the other outputs of the panel.
void pack_block(const QuantLayout &l, const SourceBlock &source, int output, uint8_t *out) {
    const auto at = static_cast<size_t>(output);
    const auto outputs = static_cast<size_t>(l.outputs);
    if (l.half_scales) {
        const ggml_fp16_t d = source.scale();
        std::memcpy(out + at * sizeof(d), &d, sizeof(d));
        out += outputs * sizeof(d);
    } else {
        const float d = ggml_fp16_to_fp32(source.scale());
        std::memcpy(out + at * sizeof(d), &d, sizeof(d));
        out += outputs * sizeof(d);
    }
    for (int group = 0; group < source.bits; group++, out += 4 * outputs) {
        const uint32_t words = source.bits == 8 ? source.words8(group) : source.words4(group);
        std::memcpy(out + 4 * at, &words, sizeof(words));
    }
}

}  // namespace

const QuantKernels &quant_kernels(const char *name) {
    if (name) return set_named(supported(), name);
    static const QuantKernels &best = first_correct(supported());
    return best;
}

std::vector<std::string> quant_kernel_names() {
    return set_names(supported());
}

void pack_quant(const QuantLayout &l, int bits, const uint8_t *rows, int in, int n, uint8_t *out) {
    const auto source_bytes = static_cast<size_t>(2 + kQuantBlock * bits / 8);
    const int blocks = in / kQuantBlock;
    const uint8_t zero_block[2 + kQuantBlock] = {};
    for (int panel = 0; panel < l.panels(n); panel++) {
        for (int b = 0; b < blocks; b++, out += l.block_bytes(bits)) {
            for (int o = 0; o < l.outputs; o++) {
                const int row = panel * l.outputs + o;
                const uint8_t *bytes =
                    row < n ? rows + (static_cast<size_t>(row) * static_cast<size_t>(blocks) +
                                      static_cast<size_t>(b)) *
                                         source_bytes
                            : zero_block;
                pack_block(l, {bytes, bits}, o, out);
            }
        }
    }
}

}  // namespace kz
