#if !defined(__AVX512F__) || !defined(__AVX512BW__)
#error "quant_avx512.cpp needs -mavx512f -mavx512bw"
#endif
#define KZ_ISA avx512
#include "nn/kernels/quant_512.h"
