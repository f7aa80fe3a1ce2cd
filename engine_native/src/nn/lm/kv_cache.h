// Keys and values of one stream, in pages so that growth copies nothing.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "runtime/aligned.h"

namespace kz {

// Keys and values that a language model holds itself, on a device; it derives from this.
struct KvElsewhere {
    virtual ~KvElsewhere() = default;
};

class KvCache {
  public:
    static constexpr int kPage = 128;  // positions

    KvCache(int layers, int kv_width)
        : width_(kv_width), k_(static_cast<size_t>(layers)), v_(static_cast<size_t>(layers)) {}

    void reserve(int positions) {
        const auto pages = static_cast<size_t>((positions + kPage - 1) / kPage);
        for (auto *all : {&k_, &v_}) {
            for (Pages &layer : *all) {
                while (layer.size() < pages)
                    layer.emplace_back(static_cast<size_t>(kPage) * static_cast<size_t>(width_));
            }
        }
    }
    void clear() { n_past = 0; }

    float *k(int layer, int position) { return at(k_, layer, position); }
    float *v(int layer, int position) { return at(v_, layer, position); }

    size_t prefix_floats(int n) const {
        return k_.size() * static_cast<size_t>(n) * 2 * static_cast<size_t>(width_);
    }
    // The first n positions: [layer][n][keys, values][kv_width].
    FloatBuffer prefix(int n) {
        FloatBuffer out(prefix_floats(n));
        float *to = out.data();
        each_row(n, [&](float *row) { to = std::copy_n(row, width_, to); });
        return out;
    }
    // Takes what prefix() gave as the first n positions; n_past becomes n.
    void set_prefix(const FloatBuffer &rows, int n) {
        reserve(n);
        const float *from = rows.data();
        each_row(n, [&](float *row) {
            std::copy_n(from, width_, row);
            from += width_;
        });
        n_past = n;
    }

    int n_past = 0;
    std::shared_ptr<KvElsewhere> elsewhere;  // in place of the pages; given up with the cache

  private:
    using Pages = std::vector<FloatBuffer>;  // [page][kPage][kv_width]

    template <typename F>
    void each_row(int n, F f) {
        for (int layer = 0; layer < static_cast<int>(k_.size()); layer++) {
            for (int i = 0; i < n; i++) {
                f(k(layer, i));
                f(v(layer, i));
            }
        }
    }
    float *at(std::vector<Pages> &pages, int layer, int position) {
        return pages[static_cast<size_t>(layer)][static_cast<size_t>(position / kPage)].data() +
               static_cast<size_t>(position % kPage) * static_cast<size_t>(width_);
    }

    int width_;
    std::vector<Pages> k_, v_;
};

}  // namespace kz
