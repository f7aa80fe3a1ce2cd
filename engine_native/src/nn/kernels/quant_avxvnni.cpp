#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__) || !defined(__AVXVNNI__)
#error "quant_avxvnni.cpp needs -mavx2 -mfma -mf16c -mavxvnni"
#endif
#define KZ_ISA avxvnni
#include "nn/kernels/quant_256.h"
