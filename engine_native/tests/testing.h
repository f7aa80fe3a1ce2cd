// The few macros the C++ tests need.  A test program lists TEST functions and gets its main from
// testing.cpp; its exit status is 1 when any check failed.
#pragma once

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "runtime/status.h"

namespace kz::testing {

struct Test {
    const char *name;
    std::function<void()> body;
};

std::vector<Test> &tests();

struct Register {
    Register(const char *name, std::function<void()> body) {
        tests().push_back({name, std::move(body)});
    }
};

// Whether a text holds a part.
bool holds(const std::string &text, const std::string &part);

// Functions of their own: written out at every check they would be most of what is compiled.
void report(const char *file, int line, const std::string &what);
void report(const char *file, int line, const char *what);
void report_error(const char *file, int line, const char *expression, const Error &error);

template <class A, class B>
[[gnu::noinline]] void report(const char *file, int line, const char *what, A a, B b) {
    report(file, line, std::string(what) + ": " + std::to_string(a) + " and " + std::to_string(b));
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

}  // namespace kz::testing

#define TEST(name)                                                   \
    static void name();                                              \
    static const kz::testing::Register register_##name(#name, name); \
    static void name()

#define CHECK(condition)                                                       \
    do {                                                                       \
        if (!(condition)) kz::testing::report(__FILE__, __LINE__, #condition); \
    } while (0)

#define CHECK_EQ(a, b)                                                                  \
    do {                                                                                \
        const auto a_ = (a);                                                            \
        const auto b_ = (b);                                                            \
        if (!(a_ == b_)) kz::testing::report(__FILE__, __LINE__, #a " == " #b, a_, b_); \
    } while (0)

#define CHECK_NEAR(a, b, tolerance)                                          \
    do {                                                                     \
        const double a_ = (a), b_ = (b);                                     \
        if (!(std::fabs(a_ - b_) <= (tolerance)))                            \
            kz::testing::report(__FILE__, __LINE__, #a " near " #b, a_, b_); \
    } while (0)

// expression must throw kz::Error of that status, and its message must hold the text.
#define CHECK_ERROR(expression, expected_status, text)                                  \
    do {                                                                                \
        try {                                                                           \
            expression;                                                                 \
            kz::testing::report(__FILE__, __LINE__, #expression " threw nothing");      \
        } catch (const kz::Error &e) {                                                  \
            if (e.status() != (expected_status) || !kz::testing::holds(e.what(), text)) \
                kz::testing::report_error(__FILE__, __LINE__, #expression, e);          \
        }                                                                               \
    } while (0)
