#include "engine/helpers_policy.h"

#include "testing.h"

using namespace kz;

namespace {

constexpr bool kDecoder = true, kGenerator = false;

// Kernels of our own on both sides, both at work.
constexpr HelpersView kBoth{true, true, false, true, true, false};

HelpersView with(HelpersView v, bool HelpersView::*field, bool value) {
    v.*field = value;
    return v;
}

}  // namespace

TEST(the_generator_has_them_while_the_decoder_keeps_up) {
    CHECK_EQ(helpers_decode(kBoth), kGenerator);
}

TEST(the_decoder_has_them_while_frames_wait) {
    CHECK_EQ(helpers_decode(with(kBoth, &HelpersView::decoder_behind, true)), kDecoder);
}

TEST(nobody_waits_with_a_thread_that_rests) {
    CHECK_EQ(helpers_decode(with(kBoth, &HelpersView::generating, false)), kDecoder);
    const HelpersView behind = with(kBoth, &HelpersView::decoder_behind, true);
    CHECK_EQ(helpers_decode(with(behind, &HelpersView::decoding, false)), kGenerator);
}

TEST(a_decoder_on_a_device_takes_none) {
    HelpersView v = with(kBoth, &HelpersView::decoder_shares, false);
    for (const bool behind : {false, true}) {
        for (const bool generating : {false, true}) {
            v.decoder_behind = behind;
            v.generating = generating;
            CHECK_EQ(helpers_decode(v), kGenerator);
        }
    }
}

TEST(a_generator_on_another_device_leaves_them_to_the_decoder) {
    CHECK_EQ(helpers_decode(with(kBoth, &HelpersView::generator_shares, false)), kDecoder);
}

TEST(cores_that_ggml_keeps_busy_are_not_fought_for) {
    HelpersView v = with(kBoth, &HelpersView::generator_brings_threads, true);
    v.generator_shares = false;
    v.decoder_behind = true;
    CHECK_EQ(helpers_decode(v), kGenerator);
    v.generating = false;
    CHECK_EQ(helpers_decode(v), kDecoder);
}
