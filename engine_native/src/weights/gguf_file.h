// A GGUF file opened for reading: keys and tensors by name, every access checked.
#pragma once

#include <ggml.h>
#include <gguf.h>

#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "runtime/aligned.h"
#include "runtime/backend.h"

namespace kz {

class GgufFile {
  public:
    // Throws KZ_ERR_FILE or KZ_ERR_FORMAT; a file shorter than its tensors need is refused here.
    explicit GgufFile(const std::string &path);

    const std::string &path() const { return path_; }

    std::string require_string(const char *key) const;
    uint32_t require_u32(const char *key) const;
    float require_f32(const char *key) const;
    uint32_t u32_or(const char *key, uint32_t fallback) const;
    float f32_or(const char *key, float fallback) const;

    bool has(const std::string &name) const { return find(name) != nullptr; }
    // Shape and type of a tensor that must exist, fastest dimension first.
    const ggml_tensor *require(const std::string &name) const;
    // The same, and its shape must be this one; -1 accepts any size.
    const ggml_tensor *require(const std::string &name, std::initializer_list<int64_t> ne) const;
    // Its size in one dimension.
    int size(const std::string &name, std::initializer_list<int64_t> ne, int dimension) const {
        return static_cast<int>(require(name, ne)->ne[dimension]);
    }

    // The bytes of a tensor, as the file holds them.  Several threads may read at once.
    void read(const ggml_tensor *tensor, void *out) const;
    // The values of a tensor as f32, whatever its type.
    FloatBuffer read_f32(const ggml_tensor *tensor) const;

  private:
    int64_t key(const char *name, gguf_type type) const;  // -1: none
    int64_t require_key(const char *name, gguf_type type) const;
    const ggml_tensor *find(const std::string &name) const;
    uint64_t offset(const ggml_tensor *tensor) const;

    std::string path_;
    std::unique_ptr<gguf_context, void (*)(gguf_context *)> gguf_{nullptr, gguf_free};
    ContextPtr meta_;  // tensors without data
    std::unique_ptr<std::FILE, int (*)(std::FILE *)> file_{nullptr, std::fclose};
};

// "[1024, 3072]" for messages.
std::string shape_text(const ggml_tensor *tensor);

}  // namespace kz
