// One utterance in the generator: prompt, talker, code predictor, sampling, frame by frame.
#pragma once

#include <array>
#include <vector>

#include "engine/model.h"
#include "model/code_predictor.h"
#include "model/sampler.h"
#include "model/talker.h"

namespace kz {

struct GeneratorTimes {
    double prefill = 0, talker = 0, cp = 0, sample = 0;
};

// The graphs and scratch that a generating thread needs; serves any number of utterances in turn.
struct Generator {
    Generator(const Model &model, int n_threads)
        : backend(n_threads),
          talker(model.talker, *model.kernels, backend),
          cp(model.cp, *model.kernels, backend) {}
    Backend backend;
    Talker talker;
    CodePredictor cp;
};

// A request, copied and checked.
struct Request {
    // Throws KZ_ERR_ARGUMENT naming the parameter.
    Request(const Model &model, const kz_stream_params &params);

    std::vector<int32_t> text_ids, codec_ids;  // of the prompt, -1: absent
    std::vector<int32_t> trailing_ids;
    int32_t pad_text_id;
    bool text_open;
    kz_sampling talker, cp;
    kz_guard guard;
    int n_text_tokens;
    uint64_t seed;
    int max_frames, min_frames, chunk, skip_frames;
    bool cp_recompute, ignore_eos, profile;
};

void check_text_ids(const Model &model, const int32_t *ids, int32_t n, const char *what);

class Generation {
  public:
    enum class Outcome { kFrame, kEos, kMaxFrames, kRunaway, kRepetition, kStopped };

    Generation(const Model &model, const Request &request);

    // The next frame's codes [n_codebooks].  next_text: the text id fed beside the last frame;
    // n_text: text tokens known by now; eos_allowed: whether end-of-speech may be drawn now.
    // kStopped: the backend's abort flag.
    Outcome next(Generator &generator, int32_t next_text, int n_text, bool eos_allowed,
                 int32_t *codes);

    int frames() const { return static_cast<int>(history_.size()); }
    const GeneratorTimes &times() const { return times_; }

    // For checks against the reference: the values behind the last frame, and another choice of
    // codes to feed back.
    const FloatBuffer &hidden() const { return hidden_; }
    const FloatBuffer &logits() const { return logits_; }
    const FloatBuffer &prompt_embeds() const { return prompt_embeds_; }
    void keep_prompt_embeds() { keep_prompt_ = true; }
    void keep_cp_logits(float *out) { cp_logits_ = out; }  // [n_steps][codebook_size]
    void force(const int32_t *codes) { forced_ = codes; }

  private:
    static constexpr int kMaxPeriod = 8;

    bool prefill(Generator &generator);
    bool feed(Generator &generator, int32_t next_text);
    int guard_limit(int n_text) const;
    bool repeating() const;
    void note_repetition();

    const Model &model_;
    const Request &request_;
    TalkerState state_;
    Sampler talker_sampler_, cp_sampler_;
    Random random_;
    std::vector<uint8_t> suppressed_;  // [codec_vocab]
    std::vector<int32_t> history_;     // codebook 0 so far
    std::vector<int32_t> last_;        // codes of the last frame, not yet fed
    FloatBuffer hidden_, logits_, embed_, prompt_embeds_;
    std::array<int, kMaxPeriod> repeated_{};  // frames for which the codes had period 1, 2, ...
    GeneratorTimes times_;
    bool started_ = false, keep_prompt_ = false;
    float *cp_logits_ = nullptr;
    const int32_t *forced_ = nullptr;
};

}  // namespace kz
