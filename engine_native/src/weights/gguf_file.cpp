#include "weights/gguf_file.h"

#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstring>

#include "runtime/status.h"

namespace kz {

std::string shape_text(const ggml_tensor *tensor) {
    std::string s = "[";
    for (int i = 0; i < ggml_n_dims(tensor); i++)
        s += (i ? ", " : "") + std::to_string(tensor->ne[i]);
    return s + "]";
}

GgufFile::GgufFile(const std::string &path) : path_(path) {
    file_.reset(std::fopen(path.c_str(), "rb"));
    if (!file_) fail(KZ_ERR_FILE, "%s: %s", path.c_str(), std::strerror(errno));
    char magic[4] = {};
    if (std::fread(magic, 1, 4, file_.get()) != 4)
        fail(KZ_ERR_FORMAT, "%s: the file is empty or truncated", path.c_str());
    if (std::memcmp(magic, "GGUF", 4) != 0)
        fail(KZ_ERR_FORMAT, "%s: not a GGUF file", path.c_str());

    ggml_context *meta = nullptr;
    gguf_.reset(gguf_init_from_file(path.c_str(), {true, &meta}));
    meta_.reset(meta);
    if (!gguf_) fail(KZ_ERR_FORMAT, "%s: the GGUF header is damaged or truncated", path.c_str());

    if (std::fseek(file_.get(), 0, SEEK_END) != 0)
        fail(KZ_ERR_FILE, "%s: cannot seek", path.c_str());
    const auto size = static_cast<uint64_t>(std::ftell(file_.get()));
    for (int64_t i = 0; i < gguf_get_n_tensors(gguf_.get()); i++) {
        const ggml_tensor *t = find(gguf_get_tensor_name(gguf_.get(), i));
        for (const int64_t n : t->ne) {
            if (n < 1 || n > INT32_MAX) {
                fail(KZ_ERR_FORMAT, "%s: tensor %s has shape %s", path.c_str(), t->name,
                     shape_text(t).c_str());
            }
        }
        const uint64_t end = offset(t) + gguf_get_tensor_size(gguf_.get(), i);
        if (end > size) {
            fail(KZ_ERR_FORMAT,
                 "%s: truncated: tensor %s ends at byte %" PRIu64 ", the file has %" PRIu64,
                 path.c_str(), t->name, end, size);
        }
    }
}

int64_t GgufFile::key(const char *name, gguf_type type) const {
    const int64_t id = gguf_find_key(gguf_.get(), name);
    if (id < 0) return -1;
    const gguf_type found = gguf_get_kv_type(gguf_.get(), id);
    if (found != type) {
        fail(KZ_ERR_FORMAT, "%s: key %s has type %s, expected %s", path_.c_str(), name,
             gguf_type_name(found), gguf_type_name(type));
    }
    return id;
}

int64_t GgufFile::require_key(const char *name, gguf_type type) const {
    const int64_t id = key(name, type);
    if (id < 0) fail(KZ_ERR_FORMAT, "%s: key %s is missing", path_.c_str(), name);
    return id;
}

std::string GgufFile::require_string(const char *name) const {
    return gguf_get_val_str(gguf_.get(), require_key(name, GGUF_TYPE_STRING));
}

uint32_t GgufFile::require_u32(const char *name) const {
    return gguf_get_val_u32(gguf_.get(), require_key(name, GGUF_TYPE_UINT32));
}

float GgufFile::require_f32(const char *name) const {
    return gguf_get_val_f32(gguf_.get(), require_key(name, GGUF_TYPE_FLOAT32));
}

uint32_t GgufFile::u32_or(const char *name, uint32_t fallback) const {
    const int64_t id = key(name, GGUF_TYPE_UINT32);
    return id < 0 ? fallback : gguf_get_val_u32(gguf_.get(), id);
}

float GgufFile::f32_or(const char *name, float fallback) const {
    const int64_t id = key(name, GGUF_TYPE_FLOAT32);
    return id < 0 ? fallback : gguf_get_val_f32(gguf_.get(), id);
}

const ggml_tensor *GgufFile::find(const std::string &name) const {
    return ggml_get_tensor(meta_.get(), name.c_str());
}

const ggml_tensor *GgufFile::require(const std::string &name) const {
    const ggml_tensor *t = find(name);
    if (!t) fail(KZ_ERR_FORMAT, "%s: tensor %s is missing", path_.c_str(), name.c_str());
    return t;
}

const ggml_tensor *GgufFile::require(const std::string &name,
                                     std::initializer_list<int64_t> ne) const {
    const ggml_tensor *t = require(name);
    size_t i = 0;
    bool same = true;
    std::string wanted = "[";
    for (const int64_t n : ne) {
        same = same && (n < 0 || t->ne[i] == n);
        wanted += (i ? ", " : "") + (n < 0 ? std::string("*") : std::to_string(n));
        i++;
    }
    for (; i < GGML_MAX_DIMS; i++) same = same && t->ne[i] == 1;
    if (!same) {
        fail(KZ_ERR_FORMAT, "%s: tensor %s has shape %s, expected %s]", path_.c_str(), name.c_str(),
             shape_text(t).c_str(), wanted.c_str());
    }
    return t;
}

uint64_t GgufFile::offset(const ggml_tensor *tensor) const {
    const int64_t id = gguf_find_tensor(gguf_.get(), tensor->name);
    return gguf_get_data_offset(gguf_.get()) + gguf_get_tensor_offset(gguf_.get(), id);
}

void GgufFile::read(const ggml_tensor *tensor, void *out) const {
    const size_t size = ggml_nbytes(tensor);
    const auto begin = static_cast<off_t>(offset(tensor));
    for (size_t done = 0; done < size;) {
        const ssize_t n = pread(fileno(file_.get()), static_cast<char *>(out) + done, size - done,
                                begin + static_cast<off_t>(done));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) fail(KZ_ERR_FILE, "%s: cannot read tensor %s", path_.c_str(), tensor->name);
        done += static_cast<size_t>(n);
    }
}

FloatBuffer GgufFile::read_f32(const ggml_tensor *tensor) const {
    const int64_t n = ggml_nelements(tensor);
    FloatBuffer out(static_cast<size_t>(n));
    if (tensor->type == GGML_TYPE_F32) {
        read(tensor, out.data());
        return out;
    }
    const ggml_type_traits *traits = ggml_get_type_traits(tensor->type);
    if (!traits->to_float) {
        fail(KZ_ERR_FORMAT, "%s: tensor %s has type %s, which cannot be read as numbers",
             path_.c_str(), tensor->name, ggml_type_name(tensor->type));
    }
    std::vector<uint8_t> raw(ggml_nbytes(tensor));
    read(tensor, raw.data());
    traits->to_float(raw.data(), out.data(), n);
    return out;
}

}  // namespace kz
