#include "engine/inspect/machine_speed.h"

#include <cmath>

#include "nn/kernels/quant_kernels.h"
#include "testing.h"

using namespace kz;

namespace {

constexpr int64_t kSmall = 8 << 20;  // bytes: quick, also under a sanitizer

kz_machine measured(int threads, double seconds) {
    const kz_measure_params params{sizeof(kz_measure_params), threads, seconds, kSmall};
    kz_machine machine{};
    machine.struct_size = sizeof(machine);
    CHECK_EQ(kz_measure_machine(&params, &machine), KZ_OK);
    return machine;
}

}  // namespace

TEST(loops_that_skip_their_work_are_noticed) {
    Kernels wrong = kernels("scalar");
    wrong.dot = [](const float *, const float *, int n) { return static_cast<float>(n - 1); };
    CHECK_ERROR(measure_machine(wrong, 2, 0.01, kSmall), KZ_ERR_INTERNAL, "read");
    wrong = kernels("scalar");
    wrong.gemm = [](const GemmArgs &) {};
    CHECK_ERROR(measure_machine(wrong, 2, 0.01, kSmall), KZ_ERR_INTERNAL, "product");
}

TEST(every_set_of_loops_computes_what_it_must) {
    for (const std::string &name : kernel_names()) {
        const MachineSpeed speed = measure_machine(kernels(name.c_str()), 1, 0.01, kSmall);
        CHECK(speed.read_gbs[0] > 0 && speed.gemm_gflops[0] > 0);
    }
}

TEST(figures_are_of_the_asked_threads_and_the_chosen_kernels) {
    for (const int threads : {1, 2, 3}) {
        const kz_machine m = measured(threads, 0.01);
        CHECK_EQ(m.n_threads, threads);
        CHECK(std::string(m.kernels) == kernels().name);
        CHECK(std::string(m.integer_kernels) == quant_kernels().name);
        CHECK_EQ(m.working_set, kSmall);
        for (const double figure : {m.read_gbs_1, m.read_gbs_n, m.gemm_gflops_1, m.gemm_gflops_n})
            CHECK(std::isfinite(figure) && figure > 0);
    }
}

TEST(no_parameters_mean_all_cores_and_a_large_working_set) {
    kz_machine machine{};
    machine.struct_size = sizeof(machine);
    CHECK_EQ(kz_measure_machine(nullptr, &machine), KZ_OK);
    CHECK(machine.n_threads >= 1);
    CHECK(machine.working_set > kSmall);
}

TEST(what_is_wrong_is_named) {
    kz_machine machine{};
    machine.struct_size = sizeof(machine);
    const auto refused = [&](kz_measure_params params, const char *word) {
        CHECK_EQ(kz_measure_machine(&params, &machine), KZ_ERR_ARGUMENT);
        CHECK(std::string(kz_last_error()).find(word) != std::string::npos);
    };
    refused({sizeof(kz_measure_params), -1, 0, 0}, "n_threads");
    refused({sizeof(kz_measure_params), 1025, 0, 0}, "n_threads");
    refused({sizeof(kz_measure_params), 1, -1, 0}, "seconds");
    refused({sizeof(kz_measure_params), 1, 61, 0}, "seconds");
    refused({sizeof(kz_measure_params), 1, std::nan(""), 0}, "seconds");
    refused({sizeof(kz_measure_params), 1, 0, -1}, "working_set");
    refused({3, 1, 0, 0}, "kz_measure_params");
    CHECK_EQ(kz_measure_machine(nullptr, nullptr), KZ_ERR_ARGUMENT);
    machine.struct_size = 1;
    refused({sizeof(kz_measure_params), 1, 0, 0}, "kz_machine");
}
