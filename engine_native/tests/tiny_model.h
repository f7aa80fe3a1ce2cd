// A random pair of model files, small enough to build in every test run.
#pragma once

#include <gguf.h>

#include <array>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/backend.h"
#include "runtime/status.h"

namespace kz::testing {

// Collects keys and tensors of one GGUF file and writes it.
class GgufWriter {
  public:
    GgufWriter() : gguf_(gguf_init_empty()), ctx_(ggml_init({size_t{64} << 20, nullptr, false})) {}
    ~GgufWriter() { gguf_free(gguf_); }
    GgufWriter(const GgufWriter &) = delete;

    void text(const char *key, const char *value) { gguf_set_val_str(gguf_, key, value); }
    void u32(const char *key, uint32_t value) { gguf_set_val_u32(gguf_, key, value); }
    void f32(const char *key, float value) { gguf_set_val_f32(gguf_, key, value); }

    // Values in base - scale .. base + scale.
    void tensor(const std::string &name, std::array<int64_t, 4> ne, float scale, float base = 0.0f);

    void write(const std::string &path) { gguf_write_to_file(gguf_, path.c_str(), false); }

    std::string left_out;                // a tensor to leave out
    int still_blocks = 0;                // more blocks of the vocoder, with a stride of 1
    ggml_type matrices = GGML_TYPE_F32;  // f16 or bf16: what matrices are rounded to
    bool widened = false;                // store them as f32 all the same

  private:
    gguf_context *gguf_;
    ContextPtr ctx_;
    uint32_t seed_ = 99;
};

constexpr int kTextVocab = 40, kCodebook = 16, kCodecVocab = 24, kEos = 20, kSteps = 15;
constexpr int kBooks = kSteps + 1, kFrame = 1920;  // codes and samples of a frame

// Random codes [frames][kBooks].
inline std::vector<int32_t> codes(int frames) {
    std::vector<int32_t> c(static_cast<size_t>(frames) * kBooks);
    uint32_t state = 5;
    for (int32_t &x : c) {
        state = state * 1664525u + 1013904223u;
        x = static_cast<int32_t>((state >> 16) % kCodebook);
    }
    return c;
}

void write_talker(const std::string &path, const std::string &left_out = "");
// wide: times the vocoder's channels.
void write_decoder_tensors(GgufWriter &w, float gain = 1, int64_t hidden = 8, int64_t q = 16,
                           int64_t ffn = 24, int64_t wide = 1);
// gain: of the last layer; 0 makes every sample 0.
void write_codec(GgufWriter &w, const std::string &path, float gain = 1, int64_t wide = 1);
void write_codec(const std::string &path, const std::string &left_out = "", float gain = 1);

// A folder of its own that disappears with the object.
class TempFolder {
  public:
    TempFolder() {
        std::string pattern =
            (std::filesystem::temp_directory_path() / "kazeia-test-XXXXXX").string();
        if (!mkdtemp(pattern.data())) fail(KZ_ERR_FILE, "no temporary folder");
        path_ = pattern;
    }
    ~TempFolder() { std::filesystem::remove_all(path_); }
    TempFolder(const TempFolder &) = delete;
    std::string file(const char *name) const { return (path_ / name).string(); }

  private:
    std::filesystem::path path_;
};

struct TinyModel {
    explicit TinyModel(float gain = 1)
        : talker(folder.file("talker.gguf")), codec(folder.file("codec.gguf")) {
        write_talker(talker);
        write_codec(codec, "", gain);
    }
    TempFolder folder;
    std::string talker, codec;
};

}  // namespace kz::testing
