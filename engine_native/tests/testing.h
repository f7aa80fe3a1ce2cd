// The few macros the C++ tests need.  A test program lists TEST functions; its exit status is 1
// when any check failed.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "runtime/status.h"

namespace kz::testing {

struct Test {
    const char *name;
    std::function<void()> body;
};

inline std::vector<Test> &tests() {
    static std::vector<Test> all;
    return all;
}

inline int &failures() {
    static int count = 0;
    return count;
}

struct Register {
    Register(const char *name, std::function<void()> body) {
        tests().push_back({name, std::move(body)});
    }
};

inline void report(const char *file, int line, const std::string &what) {
    failures()++;
    std::printf("%s:%d: %s\n", file, line, what.c_str());
}

// The largest |a - b| over n values; NaN anywhere counts as infinite.
inline double max_difference(const float *a, const float *b, size_t n) {
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        const double d = std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
        if (!(d <= worst)) worst = std::isnan(d) ? INFINITY : d;
    }
    return worst;
}

// A reproducible value in -1..1.
inline float noise(uint32_t &state) {
    state = state * 1664525u + 1013904223u;
    return static_cast<float>(static_cast<int32_t>(state)) * (1.0f / 2147483648.0f);
}

// Runs all tests, or those named; a name that no test has is a failure.
inline int run(const std::vector<std::string> &names) {
    size_t found = 0;
    for (const Test &t : tests()) {
        if (!names.empty() && std::find(names.begin(), names.end(), t.name) == names.end())
            continue;
        found++;
        const int before = failures();
        try {
            t.body();
        } catch (const std::exception &e) {
            report(t.name, 0, std::string("threw: ") + e.what());
        }
        std::printf("%s %s\n", failures() == before ? "ok    " : "FAILED", t.name);
    }
    if (found == 0 || found < names.size()) std::printf("FAILED: no test of that name\n");
    return failures() == 0 && found > 0 && found >= names.size() ? 0 : 1;
}

}  // namespace kz::testing

#define TEST(name)                                                   \
    static void name();                                              \
    static const kz::testing::Register register_##name(#name, name); \
    static void name()

#define CHECK(condition)                                                       \
    do {                                                                       \
        if (!(condition)) kz::testing::report(__FILE__, __LINE__, #condition); \
    } while (0)

#define CHECK_EQ(a, b)                                                                          \
    do {                                                                                        \
        const auto a_ = (a);                                                                    \
        const auto b_ = (b);                                                                    \
        if (!(a_ == b_))                                                                        \
            kz::testing::report(__FILE__, __LINE__,                                             \
                                std::string(#a " == " #b ": ") + std::to_string(a_) + " and " + \
                                    std::to_string(b_));                                        \
    } while (0)

#define CHECK_NEAR(a, b, tolerance)                                                               \
    do {                                                                                          \
        const double a_ = (a), b_ = (b);                                                          \
        if (!(std::fabs(a_ - b_) <= (tolerance)))                                                 \
            kz::testing::report(__FILE__, __LINE__,                                               \
                                std::string(#a " near " #b ": ") + std::to_string(a_) + " and " + \
                                    std::to_string(b_));                                          \
    } while (0)

// expression must throw kz::Error of that status, and its message must hold the text.
#define CHECK_ERROR(expression, expected_status, text)                               \
    do {                                                                             \
        try {                                                                        \
            expression;                                                              \
            kz::testing::report(__FILE__, __LINE__, #expression " threw nothing");   \
        } catch (const kz::Error &e) {                                               \
            if (e.status() != (expected_status) ||                                   \
                std::string(e.what()).find(text) == std::string::npos)               \
                kz::testing::report(__FILE__, __LINE__,                              \
                                    std::string(#expression " threw: ") + e.what()); \
        }                                                                            \
    } while (0)

int main(int argc, char **argv) {
    return kz::testing::run({argv + 1, argv + argc});
}
