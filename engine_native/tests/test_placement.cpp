#include "engine/inspect/placement.h"

#include "device_runs.h"

using namespace kz;
using namespace kz::testing;

TEST(placement_names_every_part) {
    device().max_rows = 1024;
    const auto all = placement_json(*load(handle(), 1024), 1);
    for (const char *text :
         {"\"max_rows\": 1024", "\"part\": \"talker\", \"device\": \"Rows0\"",
          "\"part\": \"code predictor\"", "\"part\": \"decoder\"", "\"graph\": \"8 frames\"",
          "\"splits\": 1", "\"op\": \"MUL_MAT\"", "\"op\": \"SET_ROWS\""})
        CHECK(all.find(text) != std::string::npos);
    CHECK(all.find("\"CPU\"") == std::string::npos);
    CHECK(placement_json(*load(cpu_device()), 1).find("\"device\": \"cpu-graph\"") !=
          std::string::npos);
    const auto none = placement_json(own_kernels(), 1);
    CHECK(none.find("\"device\": \"cpu\"") != std::string::npos);
    CHECK(none.find("MUL_MAT") == std::string::npos);
}
