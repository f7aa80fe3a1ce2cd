#include "nn/kernels/minimal_filter.h"

#include <cmath>

#include "runtime/status.h"

namespace kz {

namespace {

// Points chosen by search among small fractions for the least mean square error of an f32 tile.
struct Offer {
    int outputs, taps, pairs;
    double point[MinimalFilter::kMaxPairs];
};
constexpr Offer kOffers[] = {
    {3, 2, 1, {1.0}},
    {5, 2, 2, {0.5, 1.25}},
    {4, 7, 4, {3.0 / 8, 4.0 / 5, 5.0 / 4, 2.0}},
    {6, 7, 5, {3.0 / 8, 2.0 / 3, 1.0, 3.0 / 2, 3.0}},
};

// Coefficients in x^2 of the product of (x^2 - p_j^2) over all j but skip.
std::vector<double> product(const Offer &o, int skip) {
    std::vector<double> q{1.0};
    for (int j = 0; j < o.pairs; j++) {
        if (j == skip) continue;
        q.push_back(0.0);
        for (size_t i = q.size(); i-- > 0;)
            q[i] = (i > 0 ? q[i - 1] : 0.0) - o.point[j] * o.point[j] * q[i];
    }
    return q;
}

double value(const std::vector<double> &q, double x2) {
    double v = 0;
    for (size_t i = q.size(); i-- > 0;) v = v * x2 + q[i];
    return v;
}

MinimalFilter build(const Offer &o) {
    MinimalFilter f;
    f.outputs = o.outputs;
    f.taps = o.taps;
    f.pairs = o.pairs;
    f.weights.assign(static_cast<size_t>(f.points()) * static_cast<size_t>(f.taps), 0.0);
    double *weights = f.weights.data();

    const auto q = product(o, -1);
    for (size_t i = 0; i < q.size(); i++) f.q[i] = static_cast<float>(q[i]);
    weights[0] = 1.0 / q[0];
    weights += f.taps;
    for (int k = 0; k < o.pairs; k++) {
        const double p = o.point[k];
        const auto r = product(o, k);
        f.point[k] = static_cast<float>(p);
        for (size_t i = 0; i < r.size(); i++) f.c[k][i] = static_cast<float>(r[i]);
        for (int i = 0; i < f.outputs; i++) f.power[k][i] = static_cast<float>(std::pow(p, i));
        const double norm = 1.0 / (2.0 * p * p * value(r, p * p));
        for (const double signed_point : {p, -p}) {
            for (int i = 0; i < f.taps; i++) weights[i] = norm * std::pow(signed_point, i);
            weights += f.taps;
        }
    }
    weights[f.taps - 1] = 1.0;
    return f;
}

}  // namespace

MinimalFilter minimal_filter(int outputs, int taps) {
    for (const Offer &o : kOffers) {
        if (o.outputs == outputs && o.taps == taps) return build(o);
    }
    fail(KZ_ERR_ARGUMENT, "no minimal filter of %d outputs and %d taps", outputs, taps);
}

std::vector<int> tile_starts(int outputs, int rows, int dilation) {
    std::vector<int> starts;
    for (int group = 0; group < rows; group += outputs * dilation) {
        for (int phase = 0; phase < dilation && group + phase < rows; phase++)
            starts.push_back(group + phase);
    }
    return starts;
}

MinimalFilter choose_filter(int taps, int rows, int dilation, int in, int out) {
    // In multiply-adds: reading a weight from memory takes as long as about 6 of them.
    constexpr double kWeight = 6;
    const double area = static_cast<double>(in) * out;
    double best = area * taps * (rows + kWeight);
    const Offer *chosen = nullptr;
    for (const Offer &o : kOffers) {
        if (o.taps != taps) continue;
        const auto tiles = static_cast<double>(tile_starts(o.outputs, rows, dilation).size());
        const double points = 2 * o.pairs + 2;
        // A transform takes pairs steps a value and moves it through the caches.
        const double transform = tiles * points * (in + out) * (o.pairs + 6);
        const double cost = area * points * (tiles + kWeight) + transform;
        if (cost < best) {
            best = cost;
            chosen = &o;
        }
    }
    return chosen ? build(*chosen) : MinimalFilter{};
}

}  // namespace kz
