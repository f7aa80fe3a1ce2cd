#include "weights/gguf_file.h"

#include <fstream>

#include "model/model.h"
#include "testing.h"
#include "tiny_model.h"

using namespace kz;
using namespace kz::testing;

namespace {

void cut(const std::string &path, double share) {
    std::filesystem::resize_file(
        path,
        static_cast<uintmax_t>(static_cast<double>(std::filesystem::file_size(path)) * share));
}

void write_text(const std::string &path, const std::string &text) {
    std::ofstream(path) << text;
}

}  // namespace

TEST(missing_empty_and_foreign_files) {
    const TempFolder folder;
    CHECK_ERROR(GgufFile(folder.file("none.gguf")), KZ_ERR_FILE, "none.gguf");
    write_text(folder.file("empty.gguf"), "");
    CHECK_ERROR(GgufFile(folder.file("empty.gguf")), KZ_ERR_FORMAT, "empty");
    write_text(folder.file("text.gguf"), "this is a text, not a model");
    CHECK_ERROR(GgufFile(folder.file("text.gguf")), KZ_ERR_FORMAT, "not a GGUF file");
    write_text(folder.file("magic.gguf"),
               "GGUFxxxxyyyyzzzz and then nothing sensible follows here");
    CHECK_ERROR(GgufFile(folder.file("magic.gguf")), KZ_ERR_FORMAT, "damaged");
}

TEST(truncated_files_are_refused_wherever_they_end) {
    for (const double share : {0.999, 0.9, 0.5, 0.2, 0.05, 0.01}) {
        const TinyModel files;
        cut(files.codec, share);
        CHECK_ERROR(load_model(files.talker, files.codec, {}), KZ_ERR_FORMAT, "codec.gguf");
    }
    const TinyModel files;
    cut(files.talker, 0.95);
    CHECK_ERROR(load_model(files.talker, files.codec, {}), KZ_ERR_FORMAT, "truncated: tensor");
}

TEST(every_missing_tensor_is_named) {
    for (const char *name :
         {"output_norm.weight", "blk.1.attn_k_norm.weight", "output.weight", "token_embd.weight"}) {
        const TinyModel files;
        write_talker(files.talker, name);
        CHECK_ERROR(load_model(files.talker, files.codec, {}), KZ_ERR_FORMAT, name);
    }
    for (const char *name :
         {"a.gen.code.head.weight", "a.gen.code.blk.0.ffn_down.weight", "a.gen.code.proj_in.bias",
          "a.gen.wav.dac.blk.2.res.1.act2.beta", "a.gen.wav.dac.post_conv.bias",
          "a.gen.wav.up.blk.1.gamma", "a.gen.wav.quant.rest.codebook.weight",
          "a.gen.wav.tfm.blk.0.ls1.weight"}) {
        const TinyModel files;
        write_codec(files.codec, name);
        CHECK_ERROR(load_model(files.talker, files.codec, {}), KZ_ERR_FORMAT, name);
    }
}

TEST(files_in_the_wrong_place) {
    const TinyModel files;
    CHECK_ERROR(load_model(files.codec, files.talker, {}), KZ_ERR_FORMAT,
                "general.architecture is 'clip'");
    CHECK_ERROR(load_model(files.talker, files.talker, {}), KZ_ERR_FORMAT,
                "not a Qwen3-TTS codec file");
}

TEST(a_wrong_shape_is_named_with_both_shapes) {
    const TinyModel files;
    GgufFile file(files.codec);
    CHECK_ERROR(file.require("a.gen.code.proj_in.weight", {32, 25}), KZ_ERR_FORMAT,
                "[32, 24], expected [32, 25]");
    CHECK(file.require("a.gen.code.proj_in.weight", {-1, 24}) != nullptr);
}

TEST(a_key_of_another_type_is_an_error_not_a_crash) {
    const TinyModel files;
    GgufFile file(files.talker);
    CHECK_ERROR(file.require_u32("general.architecture"), KZ_ERR_FORMAT,
                "general.architecture has type");
    CHECK_ERROR(file.require_f32("qwen3tts.nothing"), KZ_ERR_FORMAT, "qwen3tts.nothing is missing");
}

TEST(zero_sized_tensors_are_refused) {
    const TempFolder folder;
    const std::string path = folder.file("zero.gguf");
    GgufWriter w;
    w.text("general.architecture", "clip");
    w.tensor("empty", {4, 3, 1, 1}, 1);
    w.write(path);
    // ggml writes no such file: set the second dimension behind the name to 0.
    std::ifstream in(path, std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(in)), {});
    const size_t shape = bytes.find("empty") + 5 + sizeof(uint32_t);
    CHECK_EQ(static_cast<int>(bytes[shape + sizeof(uint64_t)]), 3);
    bytes[shape + sizeof(uint64_t)] = 0;
    write_text(path, bytes);
    CHECK_ERROR(GgufFile{path}, KZ_ERR_FORMAT, "tensor empty has shape");
}

TEST(a_decoder_wider_than_its_other_layers_stays_in_its_buffers) {
    // The pre-transformer's width bounds none of its other widths; the address sanitizer watches.
    const TinyModel files;
    GgufWriter w;
    w.text("general.architecture", "clip");
    w.u32("kazeia.codec.heads", 1);
    write_decoder_tensors(w, 1, 64, 2, 4);
    w.write(files.codec);
    const GgufFile file(files.codec);
    const KernelWeights weights = load_kernel_weights(file, kernels(), false);
    KernelState state(weights);
    KernelDecoder decoder(weights);
    const std::vector<int32_t> codes(8 * (kSteps + 1), 3);
    std::vector<float> pcm(8 * 1920);
    CHECK(decoder.decode(state, codes.data(), 8, pcm.data(), nullptr));
}
