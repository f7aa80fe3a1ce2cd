// Structs of programs compiled for another version of the header.
#include "runtime/sized.h"

#include <cstring>
#include <string>

#include "runtime/status.h"
#include "testing.h"

namespace {

struct Options {  // as this engine knows it
    uint32_t struct_size;
    int32_t a, b;
};

struct NewerOptions {
    uint32_t struct_size;
    int32_t a, b, c;
};

constexpr size_t kOldest = 8;  // struct_size and a

// The words of the refusal; empty: none.
std::string refusal(const void *given) {
    Options full{sizeof(Options), 1, 2};
    try {
        kz::read_sized(&full, sizeof(full), given, kOldest, "kz_options");
    } catch (const kz::Error &e) {
        CHECK_EQ(e.status(), KZ_ERR_ARGUMENT);
        return e.what();
    }
    return "";
}

}  // namespace

TEST(an_older_program_gets_the_defaults_of_what_it_does_not_know) {
    const Options given{kOldest, 7, 99};
    Options full{sizeof(Options), 1, 2};
    kz::read_sized(&full, sizeof(full), &given, kOldest, "kz_options");
    CHECK_EQ(full.a, 7);
    CHECK_EQ(full.b, 2);
}

TEST(a_newer_program_is_served_unless_it_asks_for_what_is_unknown) {
    NewerOptions given{sizeof(NewerOptions), 7, 8, 0};
    Options full{sizeof(Options), 1, 2};
    kz::read_sized(&full, sizeof(full), &given, kOldest, "kz_options");
    CHECK_EQ(full.a, 7);
    CHECK_EQ(full.b, 8);
    given.c = 1;
    CHECK(refusal(&given).find("compiled for a newer one") != std::string::npos);
}

TEST(sizes_that_no_version_had_are_refused) {
    Options given{0, 0, 0};
    CHECK(refusal(&given).find("kz_options has size 0") != std::string::npos);
    given.struct_size = 7;
    CHECK(!refusal(&given).empty());
    given.struct_size = 0xcccccccc;  // never set: what lies behind it must not be read
    CHECK(!refusal(&given).empty());
}

TEST(an_answer_fits_the_callers_struct) {
    const Options full{sizeof(Options), 7, 8};
    Options older{kOldest, 1, 2};
    kz::write_sized(&older, &full, sizeof(full));
    CHECK_EQ(older.struct_size, kOldest);
    CHECK_EQ(older.a, 7);
    CHECK_EQ(older.b, 2);  // beyond the caller's struct
    NewerOptions newer{sizeof(NewerOptions), 1, 2, 3};
    kz::write_sized(&newer, &full, sizeof(full));
    CHECK_EQ(newer.struct_size, sizeof(NewerOptions));
    CHECK_EQ(newer.b, 8);
    CHECK_EQ(newer.c, 0);
}
