#include "model/codec/codebooks.h"

#include <algorithm>
#include <cmath>

#include "runtime/status.h"

namespace kz {

Codebooks::Codebooks(const GgufFile &f, const CodecConfig &c)
    : dim_(c.codebook_dim),
      size_(c.codebook_size),
      n_(c.n_codebooks),
      first_(f, f.require("a.gen.wav.quant.first.codebook.weight", {dim_, size_}), true),
      rest_(f, f.require("a.gen.wav.quant.rest.codebook.weight", {dim_, size_, n_ - 1}), true) {}

void Codebooks::look_up(const Kernels &k, const int32_t *codes, int frames, float *first,
                        float *rest, ptrdiff_t step, FloatBuffer &entry) const {
    const auto dim = static_cast<size_t>(dim_), size = static_cast<size_t>(size_);
    entry.resize(dim);
    for (int i = 0; i < frames; i++, codes += n_, first += step, rest += step) {
        k.widen(first, first_.data(static_cast<size_t>(codes[0]) * dim), first_.type(), dim_);
        std::fill_n(rest, dim, 0.0f);
        for (int q = 1; q < n_; q++) {
            const size_t index = static_cast<size_t>(q - 1) * size + static_cast<size_t>(codes[q]);
            k.widen(entry.data(), rest_.data(index * dim), rest_.type(), dim_);
            k.axpy(rest, entry.data(), 1.0f, dim_);
        }
    }
}

void finish_samples(float *pcm, int n, const char *device) {
    for (int i = 0; i < n; i++) {
        if (!std::isfinite(pcm[i])) {
            fail(KZ_ERR_COMPUTE, "the codec decoder%s%s produced a sample that is not finite",
                 device ? " on " : "", device ? device : "");
        }
        pcm[i] = std::clamp(pcm[i], -1.0f, 1.0f);
    }
}

}  // namespace kz
