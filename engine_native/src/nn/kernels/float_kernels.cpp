#include "nn/kernels/float_kernels.h"

#include <cstring>

#include "nn/kernels/kernel_sets.h"

namespace kz {

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
    if (name) return set_named(supported(), name);
    // A reference would make g++ 13 and newer warn of the vector, which it does not refer to.
    static const Kernels *const best = &first_correct(supported());
    return *best;
}

std::vector<std::string> kernel_names() {
    return set_names(supported());
}

}  // namespace kz
