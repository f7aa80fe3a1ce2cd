// The codec decoder in either of its forms: kernels of our own (kernel_decoder.h), or a ggml
// graph on any device (graph_decoder.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>

namespace kz {

// All memory of one stream's decoder.
struct DecoderState {
    virtual ~DecoderState() = default;
    virtual void reset() = 0;
};

struct CodecStageTimes {
    double quant = 0, preconv = 0, pretr = 0, upsample = 0, bigvgan = 0;

    CodecStageTimes &operator+=(const CodecStageTimes &other) {
        quant += other.quant;
        preconv += other.preconv;
        pretr += other.pretr;
        upsample += other.upsample;
        bigvgan += other.bigvgan;
        return *this;
    }
};

// Computes; owns scratch memory only.  One per thread.
class Decoder {
  public:
    virtual ~Decoder() = default;

    // codes [n_frames][n_codebooks] -> pcm [n_frames * samples_per_frame].  Codes must be in range;
    // the state must be of this decoder's form, and decoded by no other decoder meanwhile.  False
    // when the stop flag was seen: the state is then of no more use.  Throws KZ_ERR_COMPUTE when
    // samples are not finite.  times: nullptr, or where to add the seconds of each stage; a graph
    // has no stages.
    virtual bool decode(DecoderState &state, const int32_t *codes, int n_frames, float *pcm,
                        CodecStageTimes *times) = 0;

    // Looked at between the stages of a frame, or the nodes and ends of graphs; nullptr: never.
    void set_stop(const std::atomic<bool> *stop) { stop_ = stop; }

    // Called with every stage's output: name, values [t][c], t, c.
    using Probe = std::function<void(const char *, const float *, int, int)>;
    virtual void set_probe(Probe probe) { probe_ = std::move(probe); }
    // Stages that are blocks; more of them have no names.
    static constexpr const char *kBlockNames[] = {"dac.0", "dac.1", "dac.2", "dac.3"};

    // Frames decoded at a time inside decode(): bounds the scratch memory.
    static constexpr int kMaxFrames = 8;

  protected:
    bool stopped() const { return stop_ && stop_->load(std::memory_order_relaxed); }

    Probe probe_;
    const std::atomic<bool> *stop_ = nullptr;
};

}  // namespace kz
