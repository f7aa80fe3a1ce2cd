#include "runtime/sized.h"

#include <algorithm>
#include <cstring>

#include "runtime/status.h"

namespace kz {

namespace {

// No struct will ever be so large: a size that was never set is not believed.
constexpr uint32_t kLargest = 4096;

uint32_t size_of(const void *given) {
    uint32_t size;
    std::memcpy(&size, given, sizeof(size));
    return size;
}

}  // namespace

void check_sized(const void *out, size_t oldest, const char *name) {
    const uint32_t size = size_of(out);
    if (size < oldest || size > kLargest) {
        fail(KZ_ERR_ARGUMENT, "%s has size %u, expected its sizeof, at least %zu", name, size,
             oldest);
    }
}

void read_sized(void *full, size_t full_size, const void *given, size_t oldest, const char *name) {
    check_sized(given, oldest, name);
    const uint32_t size = size_of(given);
    const auto *bytes = static_cast<const unsigned char *>(given);
    if (size > full_size &&
        std::any_of(bytes + full_size, bytes + size, [](unsigned char b) { return b != 0; })) {
        fail(KZ_ERR_ARGUMENT,
             "%s has size %u and sets fields beyond the %zu bytes this engine knows: the program "
             "was compiled for a newer one",
             name, size, full_size);
    }
    std::memcpy(full, given, std::min<size_t>(size, full_size));
}

void write_sized(void *out, const void *full, size_t full_size) {
    const uint32_t size = size_of(out);
    auto *bytes = static_cast<unsigned char *>(out);
    const size_t known = std::min<size_t>(size, full_size);
    std::memcpy(bytes + sizeof(size), static_cast<const unsigned char *>(full) + sizeof(size),
                known - sizeof(size));
    std::memset(bytes + known, 0, size - known);
}

}  // namespace kz
