#include "model/lm/code_predictor.h"

#include <algorithm>

namespace kz {

CodePredictor::Slot::Slot(const CodePredictorWeights &w)
    : kv(w.config.layers, w.config.block.kv_width()),
      inputs(static_cast<size_t>(w.config.n_steps + 1) * static_cast<size_t>(w.config.input_width)),
      hidden(static_cast<size_t>(w.config.block.hidden)),
      logits(static_cast<size_t>(w.config.codebook_size)) {}

CodePredictor::CodePredictor(const CodePredictorWeights &weights, Team &team, int n_threads)
    : w_(weights), lm_(make_lm(weights.lm, team, n_threads)) {}

bool CodePredictor::run(std::span<CpFrame> frames) {
    const int width = w_.config.input_width;
    while (slots_.size() < frames.size()) slots_.push_back(std::make_unique<Slot>(w_));
    std::vector<LmSequence> sequences(frames.size());
    for (size_t i = 0; i < frames.size(); i++) {
        float *inputs = slots_[i]->inputs.data();
        std::copy_n(frames[i].hidden, width, inputs);
        std::copy_n(frames[i].code0_embed, width, inputs + width);
    }
    for (int g = 0; g < w_.config.n_steps; g++) {
        for (size_t i = 0; i < frames.size(); i++) {
            Slot &slot = *slots_[i];
            float *newest = slot.inputs.data() + static_cast<ptrdiff_t>(g + 1) * width;
            if (g > 0) {
                std::fill(newest, newest + width, 0.0f);
                w_.embd.add_row(w_.row(g - 1, frames[i].codes[g - 1]), newest, scratch_);
            }
            const bool whole = frames[i].recompute || g == 0;
            if (whole) slot.kv.clear();
            sequences[i] = {&slot.kv, whole ? slot.inputs.data() : newest, whole ? g + 2 : 1,
                            slot.hidden.data(), slot.logits.data()};
        }
        if (!lm_->forward(sequences, g)) return false;
        for (size_t i = 0; i < frames.size(); i++)
            frames[i].codes[g] = frames[i].choose(g, slots_[i]->logits.data());
    }
    return true;
}

void CodePredictor::add_embeddings(const int32_t *codes, float *out) {
    for (int g = 0; g < w_.config.n_steps; g++) w_.embd.add_row(w_.row(g, codes[g]), out, scratch_);
}

}  // namespace kz
