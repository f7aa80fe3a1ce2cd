// What the kernel sources of all instruction sets share.
#pragma once

// Pins a running sum to a register here.  GCC would otherwise regroup integer sums into trees, with
// more values alive than there are registers, and spill them: half the speed.
#define KZ_IN_ORDER(register_class, sum) asm("" : "+" register_class(sum))

// Names made from KZ_ISA.
#define KZ_CONCAT_(a, b) a##b
#define KZ_CONCAT(a, b) KZ_CONCAT_(a, b)
#define KZ_STRING_(x) #x
#define KZ_STRING(x) KZ_STRING_(x)

// The namespace of a set's own vectors.
#define KZ_SIMD KZ_CONCAT(simd_, KZ_ISA)
