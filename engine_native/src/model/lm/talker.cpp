#include "model/lm/talker.h"

#include <algorithm>

namespace kz {

Talker::Talker(const TalkerWeights &weights, Team &team, int n_threads)
    : w_(weights), lm_(make_lm(weights.lm, team, n_threads)) {}

void Talker::embed(int text_id, int codec_id, float *out) {
    std::fill(out, out + w_.config.block.hidden, 0.0f);
    if (text_id >= 0) w_.embd.add_row(text_id, out, scratch_);
    if (codec_id >= 0) w_.embd.add_row(w_.codec_row(codec_id), out, scratch_);
}

}  // namespace kz
