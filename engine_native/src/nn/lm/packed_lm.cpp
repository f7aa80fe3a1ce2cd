#include "nn/lm/packed_lm.h"

#include <algorithm>

namespace kz {

std::vector<const Matrix *> PackedWeights::pass(int head) const {
    std::vector<const Matrix *> all;
    if (proj) all.push_back(&*proj);
    for (const PackedLayer &l : layers)
        all.insert(all.end(), {&l.qkv, &l.out, &l.gate_up, &l.down});
    all.push_back(&heads[static_cast<size_t>(head)]);
    return all;
}

int64_t PackedWeights::bytes() const {
    size_t n = 0;
    for (const Matrix *m : pass(0)) n += m->bytes();
    for (size_t i = 1; i < heads.size(); i++) n += heads[i].bytes();
    return static_cast<int64_t>(n);
}

PackedLm::PackedLm(const LmConfig &config, const PackedWeights &weights, Team &team)
    : config_(config),
      w_(weights),
      products_(*weights.kernels, *weights.quant, team),
      rope_(config.block.head_dim, config.block.rope_theta) {}

bool PackedLm::forward(std::span<const LmSequence> sequences, int head) {
    m_ = 0;
    if (angles_.size() < sequences.size()) angles_.resize(sequences.size());
    for (size_t i = 0; i < sequences.size(); i++) {
        const LmSequence &s = sequences[i];
        s.cache->reserve(s.cache->n_past + s.n);
        angles_[i].compute(rope_, s.cache->n_past, s.n);
        m_ += s.n;
    }
    input(sequences);
    for (size_t i = 0; i < w_.layers.size(); i++) {
        if (stopped()) return false;
        const PackedLayer &layer = w_.layers[i];
        norm(x_.data(), layer.attn_norm, m_);
        products_.run(layer.qkv, rows_,
                      at_least(y_, static_cast<size_t>(m_) * static_cast<size_t>(layer.qkv.out)),
                      false);
        attention(sequences, static_cast<int>(i));
        products_.run(layer.out, rows_, x_.data(), true);
        norm(x_.data(), layer.ffn_norm, m_);
        feed_forward(layer);
    }
    output(sequences, head);
    for (const LmSequence &s : sequences) s.cache->n_past += s.n;
    return true;
}

// The inputs of all sequences -> x_.
void PackedLm::input(std::span<const LmSequence> sequences) {
    const auto hidden = static_cast<size_t>(config_.block.hidden);
    float *x = at_least(x_, static_cast<size_t>(m_) * hidden);
    float *to = w_.proj ? rows_.reset(m_, config_.input_width) : x;
    for (const LmSequence &s : sequences)
        to = std::copy_n(s.inputs, static_cast<ptrdiff_t>(s.n) * config_.input_width, to);
    if (!w_.proj) return;
    for (int i = 0; i < m_; i++)
        std::copy_n(w_.proj_bias.data(), hidden, x + static_cast<size_t>(i) * hidden);
    products_.run(*w_.proj, rows_, x, true);
}

// rows [m][hidden], normalised -> rows_.
void PackedLm::norm(const float *rows, const FloatBuffer &weight, int m) {
    const int hidden = config_.block.hidden;
    float *out = rows_.reset(m, hidden);
    for (int i = 0; i < m; i++) {
        const ptrdiff_t at = static_cast<ptrdiff_t>(i) * hidden;
        w_.kernels->rms_norm(out + at, rows + at, weight.data(), config_.block.eps, hidden);
    }
}

// y_ [m][q | k | v] -> rows_ [m][q_width]
void PackedLm::attention(std::span<const LmSequence> sequences, int layer) {
    const BlockConfig &b = config_.block;
    const PackedLayer &l = w_.layers[static_cast<size_t>(layer)];
    float *out = rows_.reset(m_, b.q_width());
    std::vector<AttentionArgs> all;
    int64_t work = 0;  // scores
    ptrdiff_t at = 0;
    for (size_t i = 0; i < sequences.size(); i++) {
        const LmSequence &s = sequences[i];
        const float *q = y_.data() + at * l.qkv.out;
        all.push_back({&b, w_.kernels, l.q_norm.data(), l.k_norm.data(), &angles_[i], s.cache,
                       layer, s.n, q, q + b.q_width(), q + b.q_width() + b.kv_width(), l.qkv.out,
                       l.qkv.out, out + at * b.q_width()});
        work += static_cast<int64_t>(s.n) * (s.cache->n_past + s.n);
        at += s.n;
    }
    const auto one = [&](int item) {
        attend(all[static_cast<size_t>(item / b.kv_heads)], item % b.kv_heads);
    };
    const int items = static_cast<int>(all.size()) * b.kv_heads;
    constexpr int64_t kShared = 64;  // fewer scores a head are done before a helper has looked
    if (work >= kShared) {
        products_.team().run(items, one);
    } else {
        for (int i = 0; i < items; i++) one(i);
    }
}

// rows_ [m][hidden] -> x_ [m][hidden] += SwiGLU
void PackedLm::feed_forward(const PackedLayer &layer) {
    const auto ffn = static_cast<size_t>(config_.block.ffn);
    float *y = at_least(y_, static_cast<size_t>(m_) * 2 * ffn);
    products_.run(layer.gate_up, rows_, y, false);
    float *out = rows_.reset(m_, config_.block.ffn);
    for (size_t i = 0; i < static_cast<size_t>(m_); i++, y += 2 * ffn) {
        w_.kernels->silu_mul(y, y + ffn, config_.block.ffn);
        std::copy_n(y, ffn, out + i * ffn);
    }
    products_.run(layer.down, rows_, x_.data(), true);
}

// The last row of every sequence that wants it -> its hidden and logits.
void PackedLm::output(std::span<const LmSequence> sequences, int head) {
    const auto hidden = static_cast<size_t>(config_.block.hidden);
    const auto size = static_cast<size_t>(config_.head_size);
    float *last = at_least(y_, sequences.size() * std::max(hidden, size));
    size_t at = 0;
    int wanted = 0;
    for (const LmSequence &s : sequences) {
        at += static_cast<size_t>(s.n);
        if (!s.hidden) continue;
        std::copy_n(x_.data() + (at - 1) * hidden, hidden,
                    last + static_cast<size_t>(wanted++) * hidden);
    }
    if (wanted == 0) return;
    norm(last, w_.output_norm, wanted);
    const float *normed = rows_.values();
    bool logits = false;
    for (const LmSequence &s : sequences) {
        if (!s.hidden) continue;
        std::copy_n(normed, hidden, s.hidden);
        normed += hidden;
        logits = logits || s.logits;
    }
    if (!logits) return;
    products_.run(w_.heads[static_cast<size_t>(head)], rows_, last, false);
    for (const LmSequence &s : sequences) {
        if (!s.hidden) continue;
        if (s.logits) std::copy_n(last, size, s.logits);
        last += size;
    }
}

}  // namespace kz
