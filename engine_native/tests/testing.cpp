#include "testing.h"

#include <algorithm>
#include <cstdio>

namespace kz::testing {

std::vector<Test> &tests() {
    static std::vector<Test> all;
    return all;
}

namespace {

int failures = 0;

// Runs all tests, or those named; a name that no test has is a failure.
int run(const std::vector<std::string> &names) {
    size_t found = 0;
    for (const Test &t : tests()) {
        if (!names.empty() && std::find(names.begin(), names.end(), t.name) == names.end())
            continue;
        found++;
        const int before = failures;
        try {
            t.body();
        } catch (const std::exception &e) {
            report(t.name, 0, std::string("threw: ") + e.what());
        }
        std::printf("%s %s\n", failures == before ? "ok    " : "FAILED", t.name);
    }
    if (found == 0 || found < names.size()) std::printf("FAILED: no test of that name\n");
    return failures == 0 && found > 0 && found >= names.size() ? 0 : 1;
}

}  // namespace

void report(const char *file, int line, const std::string &what) {
    failures++;
    std::printf("%s:%d: %s\n", file, line, what.c_str());
}

void report(const char *file, int line, const char *what) {
    report(file, line, std::string(what));
}

void report_error(const char *file, int line, const char *expression, const Error &error) {
    report(file, line, std::string(expression) + " threw: " + error.what());
}

bool holds(const std::string &text, const std::string &part) {
    return text.find(part) != std::string::npos;
}

}  // namespace kz::testing

int main(int argc, char **argv) {
    return kz::testing::run({argv + 1, argv + argc});
}
