#include "nn/kernels.h"

#include <cstring>

#include "runtime/status.h"

namespace kz {

extern const Kernels kernels_scalar;
extern const Kernels kernels_vec128;
#if defined(__x86_64__)
extern const Kernels kernels_avx2;
extern const Kernels kernels_avx512;
#endif

namespace {

// Best first.
std::vector<const Kernels *> supported() {
    std::vector<const Kernels *> list;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f")) list.push_back(&kernels_avx512);
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("f16c"))
        list.push_back(&kernels_avx2);
#endif
    list.push_back(&kernels_vec128);
    list.push_back(&kernels_scalar);
    return list;
}

}  // namespace

const Kernels &kernels(const char *name) {
    if (!name) {
        static const Kernels &best = first_correct(supported());
        return best;
    }
    const auto list = supported();
    std::string known;
    for (const Kernels *k : list) {
        if (std::strcmp(k->name, name) == 0) return *k;
        known += (known.empty() ? "" : ", ") + std::string(k->name);
    }
    fail(KZ_ERR_ARGUMENT, "kernel set '%s' does not run here; this processor has: %s", name,
         known.c_str());
}

std::vector<std::string> kernel_names() {
    std::vector<std::string> names;
    for (const Kernels *k : supported()) names.emplace_back(k->name);
    return names;
}

}  // namespace kz
