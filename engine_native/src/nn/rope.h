// Rotary position embedding, rotate-half form (first half of a head paired with the second).
#pragma once

#include <cmath>
#include <vector>

#include "runtime/aligned.h"

namespace kz {

// The inverse frequencies of one head size.  Angles are products in f32, as the reference
// implementation computes them, so that far positions agree with it.
class Rope {
  public:
    Rope(int head_dim, float theta) : inv_freq_(static_cast<size_t>(head_dim / 2)) {
        for (size_t i = 0; i < inv_freq_.size(); i++) {
            inv_freq_[i] =
                static_cast<float>(1.0 / std::pow(static_cast<double>(theta),
                                                  2.0 * static_cast<double>(i) / head_dim));
        }
    }

    const std::vector<float> &inverse_frequencies() const { return inv_freq_; }

  private:
    std::vector<float> inv_freq_;
};

// cos and sin of t positions, computed once for all layers and heads.
class RopeAngles {
  public:
    // positions n_past .. n_past + t - 1
    void compute(const Rope &rope, int n_past, int t) {
        half_ = rope.inverse_frequencies().size();
        float *to = at_least(values_, 2 * half_ * static_cast<size_t>(t));
        for (int i = 0; i < t; i++, to += 2 * half_) {
            for (size_t j = 0; j < half_; j++) {
                const float angle = static_cast<float>(n_past + i) * rope.inverse_frequencies()[j];
                to[j] = std::cos(angle);
                to[half_ + j] = std::sin(angle);
            }
        }
    }
    // Rotates a head at position n_past + i.
    void rotate(float *head, int i) const {
        const float *cosine = values_.data() + 2 * half_ * static_cast<size_t>(i);
        for (size_t j = 0; j < half_; j++) {
            const float a = head[j], b = head[j + half_];
            head[j] = a * cosine[j] - b * cosine[half_ + j];
            head[j + half_] = b * cosine[j] + a * cosine[half_ + j];
        }
    }

  private:
    size_t half_ = 0;
    FloatBuffer values_;  // [t][cos, sin][half]
};

}  // namespace kz
