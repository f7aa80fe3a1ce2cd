#include "model/codec/kernel_decoder.h"

#include <atomic>
#include <cstring>
#include <thread>

#include "decoder_runs.h"

using namespace kz;
using namespace kz::testing;

namespace {

// A model whose vocoder is wide enough for minimal filters in some of its layers.
struct WideCodec {
    explicit WideCodec(ggml_type matrices = GGML_TYPE_F32, bool widened = false)
        : path(folder.file("codec.gguf")) {
        GgufWriter w;
        w.matrices = matrices;
        w.widened = widened;
        write_codec(w, path, 1, 12);
    }
    TempFolder folder;
    std::string path;
};

struct Loaded {
    WideCodec files;
    GgufFile file{files.path};
    KernelWeights fast = load_kernel_weights(file, kernels(), false);
    KernelWeights exact = load_kernel_weights(file, kernels(), true);
};

const Loaded &loaded() {
    static const Loaded l;
    return l;
}

const KernelWeights &weights() {
    return loaded().fast;
}

std::vector<float> decode(const KernelWeights &w, const std::vector<int32_t> &c,
                          const std::vector<int> &pieces) {
    KernelState state(w);
    KernelDecoder decoder(w);
    return testing::decode(decoder, state, c, pieces);
}

}  // namespace

TEST(any_chunking_gives_the_same_samples) {
    const auto c = codes(14);  // twice the window of this model
    const auto whole = decode(weights(), c, {14});
    double energy = 0;
    for (const float x : whole) energy += x * x;
    CHECK(energy > 1);
    for (const auto &pieces :
         std::vector<std::vector<int>>{{1, 13}, {3, 1, 1, 9}, std::vector<int>(14, 1)}) {
        const auto got = decode(weights(), c, pieces);
        CHECK(std::memcmp(whole.data(), got.data(), sizeof(float) * whole.size()) == 0);
    }
}

TEST(later_frames_never_change_earlier_samples) {
    const auto c = codes(12);
    auto changed = c;
    for (size_t i = 7 * kBooks; i < changed.size(); i++) changed[i] = (changed[i] + 1) % kCodebook;
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

TEST(some_layers_use_filters_and_some_do_not) {
    int filtered = 0, direct = 0;
    for (const auto &b : weights().blocks) {
        for (const auto &r : b.res) (r.conv1.filter ? filtered : direct)++;
        (b.conv.filter ? filtered : direct)++;
    }
    CHECK(filtered >= 8);
    CHECK(direct >= 1);
    for (const auto &b : loaded().exact.blocks) {
        CHECK(!b.conv.filter);
        for (const auto &r : b.res) CHECK(!r.conv1.filter);
    }
}

TEST(minimal_filters_give_the_samples_of_direct_products) {
    const auto c = codes(8);
    const auto fast = decode(weights(), c, {8}), exact = decode(loaded().exact, c, {8});
    double signal = 0, noise = 0;
    for (size_t i = 0; i < exact.size(); i++) {
        signal += exact[i] * exact[i];
        noise += (fast[i] - exact[i]) * (fast[i] - exact[i]);
    }
    CHECK(noise > 0);  // another computation, or nothing was compared
    CHECK(signal > 1e8 * noise);
    CHECK(max_difference(fast.data(), exact.data(), exact.size()) < 1e-4);
}

TEST(vector_kernels_equal_the_scalar_twin) {
    const auto c = codes(2);
    for (const bool exact : {true, false}) {
        const KernelWeights scalar = load_kernel_weights(loaded().file, kernels("scalar"), exact);
        const auto plain = decode(scalar, c, {2});
        const auto vector = decode(exact ? loaded().exact : loaded().fast, c, {2});
        CHECK(max_difference(vector.data(), plain.data(), plain.size()) < 1e-4);
    }
}

TEST(helpers_change_no_sample) {
    const auto c = codes(9);
    const auto alone = decode(weights(), c, {1, 8});
    Team team;
    std::atomic<bool> leave{false};
    std::vector<std::thread> helpers;
    for (int i = 0; i < 2; i++) helpers.emplace_back([&] { team.help(leave); });
    while (team.helpers() < 2) std::this_thread::yield();
    for (const KernelWeights *w : {&loaded().fast, &loaded().exact}) {
        KernelState state(*w);
        KernelDecoder decoder(*w, team);
        std::vector<float> pcm(alone.size());
        decoder.decode(state, c.data(), 1, pcm.data(), nullptr);
        decoder.decode(state, c.data() + kBooks, 8, pcm.data() + kFrame, nullptr);
        const auto expected = w == &weights() ? alone : decode(*w, c, {9});
        CHECK(std::memcmp(pcm.data(), expected.data(), sizeof(float) * pcm.size()) == 0);
    }
    leave = true;
    team.wake();
    for (std::thread &t : helpers) t.join();
}

TEST(weights_kept_in_16_bits_give_the_same_samples) {
    const auto c = codes(4);
    for (const ggml_type type : {GGML_TYPE_F16, GGML_TYPE_BF16}) {
        const WideCodec narrow(type), widened(type, true);
        const GgufFile narrow_file(narrow.path), widened_file(widened.path);
        const KernelWeights a = load_kernel_weights(narrow_file, kernels(), false);
        const KernelWeights b = load_kernel_weights(widened_file, kernels(), false);
        CHECK(a.entry.w.type() == (type == GGML_TYPE_F16 ? WeightType::f16 : WeightType::bf16));
        CHECK_EQ(a.bytes, b.bytes);  // f32 that is f16 or bf16 throughout is kept as that
        CHECK(a.bytes < loaded().fast.bytes);
        const auto first = decode(a, c, {4}), second = decode(b, c, {4});
        CHECK(std::memcmp(first.data(), second.data(), sizeof(float) * first.size()) == 0);
    }
}

TEST(reset_forgets_everything) {
    const auto c = codes(5);
    KernelState state(weights());
    KernelDecoder decoder(weights());
    std::vector<float> first(5 * kFrame), second(5 * kFrame);
    decoder.decode(state, c.data(), 5, first.data(), nullptr);
    state.reset();
    decoder.decode(state, c.data(), 5, second.data(), nullptr);
    CHECK(std::memcmp(first.data(), second.data(), sizeof(float) * first.size()) == 0);
}
