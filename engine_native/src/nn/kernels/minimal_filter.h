// Minimal filtering: m outputs of a causal filter with r taps from m + r - 1 products instead of
// m * r (Toom-Cook, known as Winograd's F(m, r)).  The tile's inputs, the weights and the outputs
// are values of polynomials; products are taken at the points 0, +-p_1 .. +-p_k and infinity, so
// m + r - 1 = 2 * k + 2.
//
// The symmetric points halve both transforms: with Q(x) = product of (x^2 - p_j^2) and its factors
// R_k(x) = Q(x) / (x^2 - p_k^2), of inputs d_0 .. d_(n-1)
//   v(0)    = sum over j of q_j d_(2j)              v(inf) = sum over j of q_j d_(2j+1)
//   v(+-p_k) = sum over j of c_kj d_(2j+2)  +-  p_k * sum over j of c_kj d_(2j+1)
// where q and c_k are the coefficients of Q and R_k in x^2; what normalises them is in the weights.
// Of products u:
//   y_i = [i = 0] u(0) + sum over k of p_k^i (u(p_k) + (-1)^i u(-p_k)) + [i = m - 1] u(inf)
//
// Planes are kept in the order 0, +p_1, -p_1, +p_2, .. , inf.
#pragma once

#include <vector>

namespace kz {

struct MinimalFilter {
    static constexpr int kMaxPairs = 5, kMaxPoints = 2 * kMaxPairs + 2, kMaxOutputs = 6,
                         kMaxTaps = 7;

    int outputs = 0, taps = 0, pairs = 0;  // outputs = 0: none
    float point[kMaxPairs] = {};
    float c[kMaxPairs][kMaxPairs] = {};
    float q[kMaxPairs + 1] = {};
    float power[kMaxPairs][kMaxOutputs] = {};
    std::vector<double> weights;  // [points][taps]: from the taps to the values at the points

    int points() const { return 2 * pairs + 2; }
    explicit operator bool() const { return outputs > 0; }
};

// The filter with those numbers of outputs and taps; throws KZ_ERR_ARGUMENT for one not offered.
MinimalFilter minimal_filter(int outputs, int taps);

// First outputs (steps from the start of the frame) of the tiles that cover rows steps: a tile
// holds the outputs first + i * dilation below rows.  Ordered so that neighbours in the list are
// neighbours in time.
std::vector<int> tile_starts(int outputs, int rows, int dilation);

// The fastest filter for a convolution in -> out of rows steps a frame by an estimate of products,
// transforms and weights read; none where the direct product is no slower.
MinimalFilter choose_filter(int taps, int rows, int dilation, int in, int out);

}  // namespace kz
