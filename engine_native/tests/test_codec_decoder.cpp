#include "model/codec_decoder.h"

#include <cstring>

#include "engine/model.h"
#include "testing.h"
#include "tiny_model.h"

using namespace kz;
using kz::testing::max_difference;

namespace {

constexpr int kBooks = testing::kSteps + 1, kFrame = 1920;

const CodecWeights &weights(const char *kernel_set = nullptr) {
    static const testing::TinyModel files;
    static const GgufFile file(files.codec);
    static const CodecWeights best = load_codec_weights(file, kernels());
    static const CodecWeights scalar = load_codec_weights(file, kernels("scalar"));
    return kernel_set ? scalar : best;
}

std::vector<int32_t> codes(int frames) {
    std::vector<int32_t> c(static_cast<size_t>(frames) * kBooks);
    uint32_t state = 5;
    for (int32_t &x : c) {
        state = state * 1664525u + 1013904223u;
        x = static_cast<int32_t>((state >> 16) % testing::kCodebook);
    }
    return c;
}

std::vector<float> decode(const CodecWeights &w, const std::vector<int32_t> &c,
                          const std::vector<int> &pieces) {
    CodecState state(w);
    CodecDecoder decoder(w);
    std::vector<float> pcm(c.size() / kBooks * kFrame);
    int at = 0;
    for (const int p : pieces) {
        decoder.decode(state, c.data() + static_cast<ptrdiff_t>(at) * kBooks, p,
                       pcm.data() + static_cast<ptrdiff_t>(at) * kFrame, nullptr);
        at += p;
    }
    CHECK_EQ(static_cast<size_t>(at) * kBooks, c.size());
    return pcm;
}

}  // namespace

TEST(any_chunking_gives_the_same_samples) {
    const auto c = codes(30);  // five times the window of this model
    const auto whole = decode(weights(), c, {30});
    double energy = 0;
    for (const float x : whole) energy += x * x;
    CHECK(energy > 1);
    for (const auto &pieces : std::vector<std::vector<int>>{
             {1, 29}, {5, 1, 1, 8, 15}, {29, 1}, std::vector<int>(30, 1)}) {
        const auto got = decode(weights(), c, pieces);
        CHECK(std::memcmp(whole.data(), got.data(), sizeof(float) * whole.size()) == 0);
    }
}

TEST(later_frames_never_change_earlier_samples) {
    const auto c = codes(12);
    auto changed = c;
    for (size_t i = 7 * kBooks; i < changed.size(); i++)
        changed[i] = (changed[i] + 1) % testing::kCodebook;
    const auto a = decode(weights(), c, {12}), b = decode(weights(), changed, {12});
    CHECK(std::memcmp(a.data(), b.data(), sizeof(float) * 7 * kFrame) == 0);
    CHECK(max_difference(a.data() + 7 * kFrame, b.data() + 7 * kFrame, 5 * kFrame) > 1e-3);
}

TEST(earlier_frames_reach_later_samples_through_the_state) {
    // The negative control of the chunking test: forgetting the state must be audible.
    const auto c = codes(4);
    const auto whole = decode(weights(), c, {4});
    const std::vector<int32_t> tail(c.begin() + 2 * kBooks, c.end());
    const auto alone = decode(weights(), tail, {2});
    CHECK(max_difference(whole.data() + 2 * kFrame, alone.data(), alone.size()) > 1e-3);
}

TEST(vector_kernels_equal_the_scalar_twin) {
    const auto c = codes(10);
    const auto fast = decode(weights(), c, {10}), plain = decode(weights("scalar"), c, {10});
    CHECK(max_difference(fast.data(), plain.data(), fast.size()) < 1e-4);
}

TEST(reset_forgets_everything) {
    const auto c = codes(5);
    CodecState state(weights());
    CodecDecoder decoder(weights());
    std::vector<float> first(5 * kFrame), second(5 * kFrame);
    decoder.decode(state, c.data(), 5, first.data(), nullptr);
    state.reset();
    decoder.decode(state, c.data(), 5, second.data(), nullptr);
    CHECK(std::memcmp(first.data(), second.data(), sizeof(float) * first.size()) == 0);
}
