// Codec decoder ("code2wav"): frames of 16 codes -> 24 kHz samples, strictly causal.
//
//   codes -> sum of codebook rows -> causal conv k3 -> pre-transformer (window 72)
//         -> 2 x [transposed conv k2 s2, ConvNeXt] -> causal conv k7
//         -> 4 x [SnakeBeta, transposed conv k2r sr, 3 x residual unit (dilation 1, 3, 9)]
//         -> SnakeBeta -> causal conv k7 to one channel -> clamp
//
// Reference: Qwen3TTSTokenizerV2Decoder (qwen-tts, modeling_qwen3_tts_tokenizer_v2.py).
// Everything a later frame needs of earlier ones is in KernelState, so decoding in any chunking is
// the same computation.  A transposed conv drops what reaches beyond its last input: each input
// step and the one before give one step of `rate` outputs, side by side.
#pragma once

#include <vector>

#include "model/codec/decoder.h"
#include "model/codec/kernel_weights.h"
#include "nn/rope.h"

namespace kz {

// All memory of one stream's decoder.
struct KernelState final : DecoderState {
    explicit KernelState(const KernelWeights &weights);
    void reset() override;

    int position = 0;                 // frames decoded so far
    int cached = 0;                   // positions held in k and v, at most window - 1
    std::vector<FloatBuffer> k, v;    // [layer][window - 1][kv_width]
    FloatBuffer pre_conv;             // [2][quant_out]
    std::vector<FloatBuffer> dwconv;  // [stage][6][latent]
    std::vector<FloatBuffer> up;      // [stage][taps - 1][latent]
    FloatBuffer entry;                // [6][latent]
    std::vector<FloatBuffer> block;   // [block][1][channels in]
    std::vector<FloatBuffer> res;     // [block * 3 + unit][6 * dilation][channels]
    FloatBuffer post_conv;            // [6][channels]
};

class KernelDecoder final : public Decoder {
  public:
    explicit KernelDecoder(const KernelWeights &weights) : KernelDecoder(weights, alone_) {}
    // Shares its work with the helpers of team, whose only caller it is while it decodes.
    KernelDecoder(const KernelWeights &weights, Team &team);

    bool decode(DecoderState &state, const int32_t *codes, int n_frames, float *pcm,
                CodecStageTimes *times) override;

  private:
    bool decode_some(KernelState &state, const int32_t *codes, int n_frames, float *pcm,
                     CodecStageTimes &times);
    void quantizer(const int32_t *codes, int t, float *out);
    void pre_transformer(KernelState &state, int t);
    void attention(KernelState &state, int layer, int t);
    void upsample_stage(KernelState &state, size_t stage, int t);
    void dac_block(KernelState &state, size_t block, int t);
    void probe(const char *name, const float *x, int t, int c) {
        if (probe_) probe_(name, x, t, c);
    }

    Team alone_;  // without helpers
    const KernelWeights &w_;
    const Kernels &k_;
    const Compute c_;
    Rope rope_;
    RopeAngles angles_;
    FloatBuffer x_, y_, z_, h_, padded_, scores_, keys_, values_, tiles_, entry_;
};

}  // namespace kz
