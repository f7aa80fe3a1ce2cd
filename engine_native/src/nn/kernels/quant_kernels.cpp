#include "nn/kernels/quant_kernels.h"

#include <ggml.h>

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include <cstring>

#include "nn/kernels/kernel_sets.h"

namespace kz {

namespace {

// Best first.
std::vector<const QuantKernels *> supported() {
    std::vector<const QuantKernels *> list;
#if defined(__x86_64__)
    __builtin_cpu_init();  // a feature counts where the system keeps its registers, too
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")) {
        if (__builtin_cpu_supports("avx512vnni")) list.push_back(&quant_avx512vnni);
        list.push_back(&quant_avx512);
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("f16c")) {
        if (__builtin_cpu_supports("avxvnni")) list.push_back(&quant_avxvnni);
        list.push_back(&quant_avx2);
    }
#elif defined(__aarch64__) && defined(__linux__)
    if (getauxval(AT_HWCAP2) & HWCAP2_I8MM) list.push_back(&quant_i8mm);
    if (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) list.push_back(&quant_dotprod);
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
    uint32_t four(int at) const {
        uint32_t v;
        std::memcpy(&v, bytes + sizeof(ggml_fp16_t) + at, sizeof(v));
        return v;
    }
    // 32 bits of a group of inputs, see QuantLayout: the first word in the lowest bits.
    uint32_t words(int group, int word_bits) const {
        if (word_bits == 8) return bits == 8 ? bytes8(group) : bytes4(group);
        return bits == 8 ? words8(group) : words4(group);
    }
    uint32_t bytes8(int group) const { return four(4 * group) ^ 0x80808080u; }
    uint32_t bytes4(int group) const {
        const int at = 8 * group % 16, shift = group / 2 * 4;
        return (four(at) >> shift & 0x0f0f0f0fu) | (four(at + 4) >> shift & 0x0f0f0f0fu) << 4;
    }
    uint32_t words8(int group) const {
        const uint32_t v = bytes8(group);  // inputs 0, 1, 2, 3 of the group
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
        const uint32_t words = source.words(group, l.word_bits);
        std::memcpy(out + 4 * at, &words, sizeof(words));
    }
}

}  // namespace

const QuantKernels &quant_kernels(const char *name) {
    if (name) return set_named(supported(), name);
    // A reference would make g++ 13 and newer warn of the vector, which it does not refer to.
    static const QuantKernels *const best = &first_correct(supported());
    return *best;
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
