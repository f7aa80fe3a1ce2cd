// Runs of the codec decoder, in either form.
#pragma once

#include <vector>

#include "model/codec/decoder.h"
#include "testing.h"
#include "tiny_model.h"

namespace kz::testing {

// The samples of frames given in the pieces asked for.
inline std::vector<float> decode(Decoder &decoder, DecoderState &state,
                                 const std::vector<int32_t> &c, const std::vector<int> &pieces) {
    std::vector<float> pcm(c.size() / kBooks * kFrame);
    int at = 0;
    for (const int p : pieces) {
        CHECK(decoder.decode(state, c.data() + static_cast<ptrdiff_t>(at) * kBooks, p,
                             pcm.data() + static_cast<ptrdiff_t>(at) * kFrame, nullptr));
        at += p;
    }
    CHECK_EQ(static_cast<size_t>(at) * kBooks, c.size());
    return pcm;
}

}  // namespace kz::testing
