// The kernel sets chosen on this processor.
//   kernel_sets                 names them
//   kernel_sets FLOAT INTEGER   fails unless these are the ones
//   kernel_sets --unasked SET   runs an integer set whether or not the processor has its
//   instructions
#include <cstdio>
#include <cstring>

#include "nn/kernels/kernel_sets.h"

namespace {

int run_unasked(const char *name) {
    for (const kz::QuantKernels *set : {
             &kz::quant_vec128,
#if defined(__x86_64__)
             &kz::quant_avx2,
             &kz::quant_avxvnni,
             &kz::quant_avx512,
             &kz::quant_avx512vnni,
#elif defined(__aarch64__)
             &kz::quant_dotprod,
             &kz::quant_i8mm,
#endif
         }) {
        if (std::strcmp(set->name, name) != 0) continue;
        const bool correct = kz::computes_correctly(*set);
        std::printf("%s computes %s\n", name, correct ? "correctly" : "wrongly");
        return correct ? 0 : 1;
    }
    std::printf("no integer kernel set is named '%s'\n", name);
    return 2;
}

}  // namespace

int main(int argc, char **argv) {
    if (argc == 3 && std::strcmp(argv[1], "--unasked") == 0) return run_unasked(argv[2]);
    const char *floats = kz::kernels().name, *integers = kz::quant_kernels().name;
    std::printf("float %s, integer %s\n", floats, integers);
    if (argc == 1) return 0;
    if (argc != 3) {
        std::printf("expected no arguments, FLOAT INTEGER or --unasked SET\n");
        return 2;
    }
    const bool expected = std::strcmp(floats, argv[1]) == 0 && std::strcmp(integers, argv[2]) == 0;
    if (!expected) std::printf("expected float %s, integer %s\n", argv[1], argv[2]);
    return expected ? 0 : 1;
}
