#include "engine/generation.h"

#include <algorithm>
#include <cstring>

#include "runtime/clock.h"
#include "runtime/status.h"

namespace kz {

namespace {

void check_range(const char *name, int64_t value, int64_t low, int64_t high) {
    if (value < low || value > high) {
        fail(KZ_ERR_ARGUMENT, "%s is %lld, expected %lld..%lld", name,
             static_cast<long long>(value), static_cast<long long>(low),
             static_cast<long long>(high));
    }
}

void check_guard(const kz_guard &guard) {
    for (const float value : {guard.frames_per_token, guard.eos_boost}) {
        if (!(value >= 0.0f && value <= 1000.0f))
            fail(KZ_ERR_ARGUMENT, "a rate of the guard is %g, expected 0..1000",
                 static_cast<double>(value));
    }
    constexpr int32_t kMost = 1 << 30;
    check_range("the guard's min_frames", guard.min_frames, 0, kMost);
    check_range("the guard's repeat_frames", guard.repeat_frames, 0, kMost);
    check_range("the guard's silence_frames", guard.silence_frames, 0, kMost);
}

}  // namespace

void check_text_ids(const Model &model, const int32_t *ids, int32_t n, const char *what) {
    for (int32_t i = 0; i < n; i++)
        check_range(what, ids[i], 0, model.talker.config.text_vocab - 1);
}

Request::Request(const Model &model, const kz_stream_params &p) {
    if (p.struct_size != sizeof(kz_stream_params)) {
        fail(KZ_ERR_ARGUMENT, "kz_stream_params has size %u, expected %zu", p.struct_size,
             sizeof(kz_stream_params));
    }
    const TalkerConfig &c = model.talker.config;
    const kz_prompt &prompt = p.prompt;
    if (!prompt.text_ids || !prompt.codec_ids || (prompt.n_trailing > 0 && !prompt.trailing_ids)) {
        fail(KZ_ERR_ARGUMENT, "the prompt has no ids");
    }
    check_range("n_positions", prompt.n_positions, 1, c.max_positions);
    check_range("n_trailing", prompt.n_trailing, 0, c.max_positions);
    check_range("max_frames", p.max_frames, 1, c.max_positions - prompt.n_positions);
    check_range("min_frames", p.min_frames, 0, p.max_frames);
    check_range("chunk", p.chunk, -1, c.max_positions);
    check_range("skip_frames", p.skip_frames, 0, c.max_positions);
    check_range("pad_text_id", prompt.pad_text_id, 0, c.text_vocab - 1);
    for (int32_t i = 0; i < prompt.n_positions; i++) {
        check_range("a text id of the prompt", prompt.text_ids[i], -1, c.text_vocab - 1);
        check_range("a codec id of the prompt", prompt.codec_ids[i], -1, c.codec_vocab - 1);
    }
    check_text_ids(model, prompt.trailing_ids, prompt.n_trailing, "a trailing text id");
    check_sampling(p.talker, "talker");
    check_sampling(p.cp, "code predictor");
    check_guard(p.guard);
    check_range("n_text_tokens", prompt.n_text_tokens, 0, prompt.n_positions);

    text_ids.assign(prompt.text_ids, prompt.text_ids + prompt.n_positions);
    codec_ids.assign(prompt.codec_ids, prompt.codec_ids + prompt.n_positions);
    if (prompt.n_trailing > 0)
        trailing_ids.assign(prompt.trailing_ids, prompt.trailing_ids + prompt.n_trailing);
    pad_text_id = prompt.pad_text_id;
    text_open = prompt.text_open != 0;
    talker = p.talker;
    cp = p.cp;
    cp.repetition_penalty = 1.0f;
    guard = p.guard;
    n_text_tokens = prompt.n_text_tokens;
    seed = p.seed;
    max_frames = p.max_frames;
    min_frames = p.min_frames;
    chunk = p.chunk;
    skip_frames = p.skip_frames;
    cp_recompute = p.cp_recompute != 0;
    ignore_eos = p.ignore_eos != 0;
    profile = p.profile != 0;
}

Generation::Generation(const Model &model, const Request &request)
    : model_(model),
      request_(request),
      state_(model.talker),
      talker_sampler_(request.talker),
      cp_sampler_(request.cp),
      random_(request.seed),
      suppressed_(static_cast<size_t>(model.talker.config.codec_vocab)),
      hidden_(static_cast<size_t>(model.talker.config.block.hidden)),
      logits_(static_cast<size_t>(model.talker.config.codec_vocab)),
      embed_(hidden_.size()) {
    // Ids beyond the codebook are control ids: only end-of-speech may be drawn, next() decides
    // when.
    for (size_t i = static_cast<size_t>(model.codec.config.codebook_size); i < suppressed_.size();
         i++)
        suppressed_[i] = 1;
}

bool Generation::prefill(Generator &g) {
    const ScopedTimer timer(times_.prefill);
    const size_t width = hidden_.size(), n = request_.text_ids.size();
    FloatBuffer embeds(n * width);
    for (size_t i = 0; i < n; i++)
        g.talker.embed(request_.text_ids[i], request_.codec_ids[i], &embeds[i * width]);
    if (!g.talker.forward(state_, embeds.data(), static_cast<int>(n), hidden_.data(),
                          logits_.data()))
        return false;
    if (keep_prompt_) prompt_embeds_ = std::move(embeds);
    return true;
}

bool Generation::feed(Generator &g, int32_t next_text) {
    const ScopedTimer timer(times_.talker);
    g.talker.embed(next_text, last_[0], embed_.data());
    g.cp.add_embeddings(last_.data() + 1, embed_.data());
    return g.talker.forward(state_, embed_.data(), 1, hidden_.data(), logits_.data());
}

int Generation::guard_limit(int n_text) const {
    const double limit = static_cast<double>(request_.guard.frames_per_token) * n_text;
    return std::max(request_.guard.min_frames,
                    static_cast<int>(std::min<double>(limit, request_.max_frames)));
}

void Generation::note_repetition() {
    const size_t n = history_.size();
    for (size_t period = 1; period <= repeated_.size(); period++) {
        int &run = repeated_[period - 1];
        run = n > period && history_[n - 1] == history_[n - 1 - period] ? run + 1 : 0;
    }
}

bool Generation::repeating() const {
    return request_.guard.repeat_frames > 0 &&
           *std::max_element(repeated_.begin(), repeated_.end()) >= request_.guard.repeat_frames;
}

Generation::Outcome Generation::next(Generator &g, int32_t next_text, int n_text, bool eos_allowed,
                                     int32_t *codes) {
    if (frames() >= request_.max_frames) return Outcome::kMaxFrames;
    const bool limited = request_.guard.frames_per_token > 0 && eos_allowed && !request_.ignore_eos;
    const int limit = limited ? guard_limit(n_text) : 0;
    if (limited && frames() >= limit) return Outcome::kRunaway;
    if (repeating()) return Outcome::kRepetition;
    if (!(started_ ? feed(g, next_text) : prefill(g))) return Outcome::kStopped;
    started_ = true;

    const TalkerConfig &c = model_.talker.config;
    suppressed_[static_cast<size_t>(c.codec_eos)] =
        !(eos_allowed && frames() >= request_.min_frames && !request_.ignore_eos);
    {
        const ScopedTimer timer(times_.sample);
        if (limited && frames() > limit / 2)
            logits_[static_cast<size_t>(c.codec_eos)] +=
                request_.guard.eos_boost * static_cast<float>(frames() - limit / 2);
        codes[0] = talker_sampler_.draw(logits_.data(), c.codec_vocab, suppressed_.data(),
                                        history_.data(), frames(), random_);
    }
    if (forced_) codes[0] = forced_[0];
    if (codes[0] == c.codec_eos) return Outcome::kEos;

    double sampling = 0;
    const double start = now_s();
    g.talker.embed(-1, codes[0], embed_.data());
    const auto choose = [&](int step, const float *logits) {
        const ScopedTimer timer(sampling);
        const int size = model_.cp.config.codebook_size;
        if (cp_logits_)
            std::memcpy(cp_logits_ + static_cast<ptrdiff_t>(step) * size, logits,
                        sizeof(float) * static_cast<size_t>(size));
        const int code = cp_sampler_.draw(logits, size, nullptr, nullptr, 0, random_);
        return forced_ ? static_cast<int>(forced_[step + 1]) : code;
    };
    if (!g.cp.run(hidden_.data(), embed_.data(), choose, codes + 1, request_.cp_recompute))
        return Outcome::kStopped;
    times_.cp += now_s() - start - sampling;
    times_.sample += sampling;

    history_.push_back(codes[0]);
    note_repetition();
    last_.assign(codes, codes + model_.n_codebooks());
    return Outcome::kFrame;
}

}  // namespace kz
