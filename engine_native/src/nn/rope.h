// Rotary position embedding, rotate-half form (first half of a head paired with the second).
#pragma once

#include <cmath>
#include <vector>

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

    // cos and sin [head_dim / 2] of one position.
    void angles(int position, float *cos_out, float *sin_out) const {
        for (size_t i = 0; i < inv_freq_.size(); i++) {
            const float angle = static_cast<float>(position) * inv_freq_[i];
            cos_out[i] = std::cos(angle);
            sin_out[i] = std::sin(angle);
        }
    }

    int half() const { return static_cast<int>(inv_freq_.size()); }

    static void rotate(float *head, const float *cos_in, const float *sin_in, int half) {
        for (int i = 0; i < half; i++) {
            const float a = head[i], b = head[i + half];
            head[i] = a * cos_in[i] - b * sin_in[i];
            head[i + half] = b * cos_in[i] + a * sin_in[i];
        }
    }

  private:
    std::vector<float> inv_freq_;
};

}  // namespace kz
