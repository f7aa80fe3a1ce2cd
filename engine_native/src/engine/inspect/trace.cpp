#include "engine/inspect/trace.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "engine/generation.h"
#include "runtime/status.h"

namespace kz {

void check_codes(const Model &model, const int32_t *codes, int n_frames) {
    const int books = model.n_codebooks(), size = model.codec.config.codebook_size;
    for (int64_t i = 0; i < static_cast<int64_t>(n_frames) * books; i++) {
        if (codes[i] < 0 || codes[i] >= size) {
            fail(KZ_ERR_ARGUMENT, "code %d at frame %lld, codebook %lld: expected 0..%d", codes[i],
                 static_cast<long long>(i / books), static_cast<long long>(i % books), size - 1);
        }
    }
}

void trace(const Model &model, const kz_stream_params &params, const int32_t *forced_codes,
           int n_frames, kz_trace_out &out) {
    if (n_frames < 1) fail(KZ_ERR_ARGUMENT, "n_frames is %d, expected 1 or more", n_frames);
    if (forced_codes) check_codes(model, forced_codes, n_frames);
    kz_stream_params p = params;
    p.max_frames = std::max(p.max_frames, n_frames);
    const Request request(model, p);
    Team alone;
    Generator generator(model, alone, 1);
    Generation generation(model, request);
    if (out.prompt_embeds) generation.keep_prompt_embeds();

    const auto books = static_cast<size_t>(model.n_codebooks());
    const auto cp_size = static_cast<size_t>(model.cp.config.n_steps) *
                         static_cast<size_t>(model.cp.config.codebook_size);
    for (out.n_done = 0; out.n_done < n_frames; out.n_done++) {
        const auto i = static_cast<size_t>(out.n_done);
        const size_t trailing = request.trailing_ids.size();
        const int32_t text =
            i > 0 && i <= trailing ? request.trailing_ids[i - 1] : request.pad_text_id;
        if (forced_codes) generation.force(forced_codes + i * books);
        if (out.cp_logits) generation.keep_cp_logits(out.cp_logits + i * cp_size);
        Turn turn{&generation, text, 0, i >= trailing, {}, Turn::Outcome::kPrompt, KZ_OK, {}};
        while (turn.status == KZ_OK && turn.outcome == Turn::Outcome::kPrompt)
            advance(generator, {&turn, 1});
        if (turn.status != KZ_OK) fail(turn.status, "%s", turn.error.c_str());
        const auto keep = [&](float *target, const FloatBuffer &values) {
            if (target)
                std::memcpy(target + i * values.size(), values.data(),
                            sizeof(float) * values.size());
        };
        keep(out.talker_hidden, generation.hidden());
        keep(out.talker_logits, generation.logits());
        if (turn.outcome != Turn::Outcome::kFrame) break;
        if (out.codes)
            std::memcpy(out.codes + i * books, turn.codes.data(), sizeof(int32_t) * books);
    }
    if (out.prompt_embeds) {
        std::memcpy(out.prompt_embeds, generation.prompt_embeds().data(),
                    sizeof(float) * generation.prompt_embeds().size());
    }
}

void trace_decoder(const Model &model, const int32_t *codes, int n_frames, const char *stage,
                   int64_t shape[2], float *out) {
    if (n_frames < 1) fail(KZ_ERR_ARGUMENT, "n_frames is %d, expected 1 or more", n_frames);
    check_codes(model, codes, n_frames);
    const auto state = model.codec.make_state();
    const auto decoder = model.codec.make_decoder(nullptr, 1);
    shape[0] = shape[1] = 0;
    decoder->set_probe([&](const char *name, const float *x, int t, int c) {
        if (std::strcmp(name, stage) != 0) return;
        if (out)
            std::memcpy(out + shape[0] * c, x,
                        sizeof(float) * static_cast<size_t>(t) * static_cast<size_t>(c));
        shape[0] += t;
        shape[1] = c;
    });
    std::vector<float> pcm(static_cast<size_t>(n_frames) *
                           static_cast<size_t>(model.codec.config.samples_per_frame));
    decoder->decode(*state, codes, n_frames, pcm.data(), nullptr);
    if (shape[1] == 0) {
        fail(KZ_ERR_ARGUMENT,
             "no decoder stage '%s'; expected quant, preconv, pretr, upsample, dac.entry, dac.0 .. "
             "dac.3 or pcm",
             stage);
    }
}

}  // namespace kz
