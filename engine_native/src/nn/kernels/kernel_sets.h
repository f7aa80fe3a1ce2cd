// Choosing among sets of kernels, best first: by name, or the first that computes correctly here.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "runtime/status.h"

namespace kz {

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
