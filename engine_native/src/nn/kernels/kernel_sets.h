// The sets of kernels there are, and choosing among them, best first: by name, or the first that
// computes correctly here.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "nn/kernels/float_kernels.h"
#include "nn/kernels/quant_kernels.h"
#include "runtime/status.h"

namespace kz {

extern const Kernels kernels_scalar, kernels_vec128;
extern const QuantKernels quant_scalar, quant_vec128;
#if defined(__x86_64__)
extern const Kernels kernels_avx2, kernels_avx512;
extern const QuantKernels quant_avx2, quant_avxvnni, quant_avx512, quant_avx512vnni;
#elif defined(__aarch64__)
extern const QuantKernels quant_dotprod, quant_i8mm;
#endif

// Throws KZ_ERR_ARGUMENT for a name that is not in the list, and says what there is.
template <typename Set>
const Set &set_named(const std::vector<const Set *> &sets, const char *name) {
    std::string known;
    for (const Set *set : sets) {
        if (std::strcmp(set->name, name) == 0) return *set;
        known += (known.empty() ? "" : ", ") + std::string(set->name);
    }
    fail(KZ_ERR_ARGUMENT, "kernel set '%s' does not run here; this processor has: %s", name,
         known.c_str());
}

template <typename Set>
std::vector<std::string> set_names(const std::vector<const Set *> &sets) {
    std::vector<std::string> names;
    for (const Set *set : sets) names.emplace_back(set->name);
    return names;
}

// The first set that computes_correctly(); the last one without a check.
template <typename Set>
const Set &first_correct(const std::vector<const Set *> &sets) {
    for (size_t i = 0; i + 1 < sets.size(); i++) {
        if (computes_correctly(*sets[i])) return *sets[i];
    }
    return *sets.back();
}

}  // namespace kz
