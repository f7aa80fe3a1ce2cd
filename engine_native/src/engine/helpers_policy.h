// Where threads beyond the generator's and the decoder's own help.
#pragma once

namespace kz {

struct HelpersView {
    bool generating, decoding;      // a thread is at work
    bool decoder_behind;            // frames come faster than they are decoded
    bool generator_shares;          // some of its products are shared with helpers (Team)
    bool decoder_shares;            // as are the decoder's
    bool generator_brings_threads;  // ggml graphs on the processor: threads of their own, all cores
};

// Whether they help the decoder; the generator otherwise.  The split of the threads follows from
// what waits: how long a frame takes either side differs by model, weight type, device, machine
// and number of streams.
inline bool helpers_decode(const HelpersView &v) {
    if (!v.decoding || !v.decoder_shares) return false;
    if (!v.generating) return true;
    if (v.generator_brings_threads) return false;
    return v.decoder_behind || !v.generator_shares;
}

}  // namespace kz
