#if !defined(__AVX512F__) || !defined(__AVX512BW__) || !defined(__AVX512VNNI__)
#error "quant_avx512vnni.cpp needs -mavx512f -mavx512bw -mavx512vnni"
#endif
#define KZ_ISA avx512vnni
#include "nn/kernels/quant_512.h"
