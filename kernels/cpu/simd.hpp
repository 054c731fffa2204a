// Vectors of W float32, and the few operations on them that need intrinsics.
//
// One translation unit is compiled per instruction set (CMakeLists.txt). Everything in these headers has
// internal linkage, so no function compiled for one set can be linked into the code of another.
//
//   x86-64-v4  W = 16   AVX-512, fused multiply-add
//   x86-64-v3  W = 8    AVX2, fused multiply-add
//   x86-64-v2  W = 4    SSE4.2, no fused multiply-add: the only set whose rounding differs
//   aarch64    W = 4    NEON, fused multiply-add
//
// The compiler does not contract a * b + c (-ffp-contract=off). A fused multiply-add is written fma(a, b, c).
// So all sets except v2 give the same bits.
#pragma once

#include "sweep.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#else
#error "dpmix's CPU kernel is written for x86-64 and aarch64"
#endif

#if defined(__clang__)
#define DPMIX_UNROLL _Pragma("clang loop unroll(full)")
#else
#define DPMIX_UNROLL _Pragma("GCC unroll 64")
#endif
#define DPMIX_INLINE inline __attribute__((always_inline, unused))

namespace dpmix {
namespace {

#if defined(__AVX512F__)
constexpr int W = 16;
#elif defined(__AVX2__)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif

// Events evaluated together: at least two vectors, so that each number of a component is loaded once for two. Of
// twice as many, narrow vectors would drop fewer components and be slower.
constexpr int TILE = W < 16 ? 16 : 32;
constexpr int U = TILE / W;  // vectors of a tile
static_assert(TILE <= MAX_TILE && U % 2 == 0);

typedef float Floats __attribute__((vector_size(W * 4)));
typedef float FloatsAnywhere __attribute__((vector_size(W * 4), aligned(4)));
typedef double Doubles __attribute__((vector_size(W * 8), aligned(8)));
typedef double Reals __attribute__((vector_size(W * 4)));  // one vector, of W / 2
typedef std::int32_t Ints __attribute__((vector_size(W * 4)));
typedef std::uint32_t Words __attribute__((vector_size(W * 4)));
typedef std::uint64_t LongWords __attribute__((vector_size(W * 4)));

// All lanes equal to a.
DPMIX_INLINE Floats splat(float a) { return a - Floats{}; }
DPMIX_INLINE Reals splat(double a) { return a - Reals{}; }

// a * b + c, rounded once (twice on x86-64-v2).
DPMIX_INLINE Floats fma(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
    return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
    return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (Floats)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

DPMIX_INLINE Reals fma(Reals a, Reals b, Reals c) {
#if defined(__AVX512F__)
    return (Reals)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(__AVX2__)
    return (Reals)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#elif defined(__aarch64__)
    return (Reals)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
#else
    return a * b + c;
#endif
}

DPMIX_INLINE Reals root(Reals a) {
#if defined(__AVX512F__)
    return (Reals)_mm512_maskz_sqrt_pd(0xFF, (__m512d)a);  // gcc 12 warns about the form without a mask
#elif defined(__AVX2__)
    return (Reals)_mm256_sqrt_pd((__m256d)a);
#elif defined(__aarch64__)
    return (Reals)vsqrtq_f64((float64x2_t)a);
#else
    return (Reals)_mm_sqrt_pd((__m128d)a);
#endif
}

// The larger of the two; b if a is NaN.
DPMIX_INLINE Floats larger(Floats a, Floats b) { return a > b ? a : b; }

// The smallest lane.
DPMIX_INLINE float lowest(Floats a) {
    alignas(64) float lanes[W];
    *(Floats*)lanes = a;
    for (int half = W / 2; half > 0; half /= 2) {
        for (int l = 0; l < half; l++) lanes[l] = lanes[l + half] < lanes[l] ? lanes[l + half] : lanes[l];
    }
    return lanes[0];
}

// Bit l is set if a[l] > b[l]; NaN is never greater.
DPMIX_INLINE unsigned greater(Floats a, Floats b) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GT_OQ);
#elif defined(__AVX2__)
    return static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_GT_OQ)));
#elif defined(__aarch64__)
    const uint32x4_t bits = {1, 2, 4, 8};
    return vaddvq_u32(vandq_u32(vcgtq_f32((float32x4_t)a, (float32x4_t)b), bits));
#else
    return static_cast<unsigned>(_mm_movemask_ps(_mm_cmpgt_ps((__m128)a, (__m128)b)));
#endif
}

// The first `count` floats at `from`, then zeros, for 0 <= count <= W; reads nothing else.
DPMIX_INLINE Floats load_first(const float* from, int count) {
#if defined(__AVX512F__)
    return (Floats)_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1u), from);
#elif defined(__AVX2__)
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return (Floats)_mm256_maskload_ps(from, _mm256_cmpgt_epi32(_mm256_set1_epi32(count), lanes));
#else
    if (count == W) return *(const FloatsAnywhere*)from;
    Floats loaded = {};
    for (int l = 0; l < count; l++) loaded[l] = from[l];
    return loaded;
#endif
}

// 64-bit products of the even 32-bit lanes.
DPMIX_INLINE LongWords multiply_even(Words a, Words b) {
#if defined(__AVX512F__)
    // gcc 12 warns about the form without a mask.
    return (LongWords)_mm512_maskz_mul_epu32(0xFF, (__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (LongWords)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#elif defined(__aarch64__)
    return (LongWords)vmull_u32(vmovn_u64((uint64x2_t)a), vmovn_u64((uint64x2_t)b));
#else
    return (LongWords)_mm_mul_epu32((__m128i)a, (__m128i)b);
#endif
}

// exp(x) for -87 <= x <= 0, within 2 units in the last place: Cephes' expf (Moshier), with x / ln 2 rounded
// to an integer by adding and taking away 1.5 * 2^23.
DPMIX_INLINE Floats exp_negative(Floats x) {
    x = larger(x, splat(-87.0f));
    const Floats shift = splat(12582912.0f);
    const Floats shifted = fma(x, splat(1.44269504088896f), shift);
    const Floats n = shifted - shift;
    const Floats r = fma(n, splat(2.12194440e-4f), fma(n, splat(-0.693359375f), x));
    Floats p = splat(1.9875691500e-4f);
    p = fma(p, r, splat(1.3981999507e-3f));
    p = fma(p, r, splat(8.3334519073e-3f));
    p = fma(p, r, splat(4.1665795894e-2f));
    p = fma(p, r, splat(1.6666665459e-1f));
    p = fma(p, r, splat(5.0000001201e-1f));
    p = fma(p, r * r, r) + splat(1.0f);
    return (Floats)((Ints)p + ((Ints)shifted << 23));
}

// exp(x) for x <= 0, 2^-1021 below -708: its Taylor series to degree 13 about the nearest multiple of ln 2,
// within 2 units in the last place.
DPMIX_INLINE Reals exp_negative(Reals x) {
    x = x > splat(-708.0) ? x : splat(-708.0);
    const Reals shift = splat(6755399441055744.0);  // 1.5 * 2^52
    const Reals shifted = fma(x, splat(1.4426950408889634), shift);
    const Reals n = shifted - shift;
    const Reals r = fma(n, splat(-1.9082149292705877e-10), fma(n, splat(-0.6931471803691238), x));
    Reals p = splat(1.0 / 6227020800.0);
    p = fma(p, r, splat(1.0 / 479001600.0));
    p = fma(p, r, splat(1.0 / 39916800.0));
    p = fma(p, r, splat(1.0 / 3628800.0));
    p = fma(p, r, splat(1.0 / 362880.0));
    p = fma(p, r, splat(1.0 / 40320.0));
    p = fma(p, r, splat(1.0 / 5040.0));
    p = fma(p, r, splat(1.0 / 720.0));
    p = fma(p, r, splat(1.0 / 120.0));
    p = fma(p, r, splat(1.0 / 24.0));
    p = fma(p, r, splat(1.0 / 6.0));
    p = fma(p, r, splat(0.5));
    p = fma(p, r * r, r) + splat(1.0);
    return (Reals)((LongWords)p + ((LongWords)shifted << 52));
}

// log(x) for normal positive x: Cephes' logf (Moshier), x = 2^e m with sqrt(1/2) <= m < sqrt(2).
DPMIX_INLINE Floats log_positive(Floats x) {
    const Ints bits = (Ints)x - 0x3F3504F3;
    const Ints exponent = bits >> 23;
    const Floats e = __builtin_convertvector(exponent, Floats);
    const Floats m = (Floats)((Ints)x - (exponent << 23)) - splat(1.0f);
    Floats p = splat(7.0376836292e-2f);
    p = fma(p, m, splat(-1.1514610310e-1f));
    p = fma(p, m, splat(1.1676998740e-1f));
    p = fma(p, m, splat(-1.2420140846e-1f));
    p = fma(p, m, splat(1.4249322787e-1f));
    p = fma(p, m, splat(-1.6668057665e-1f));
    p = fma(p, m, splat(2.0000714765e-1f));
    p = fma(p, m, splat(-2.4999993993e-1f));
    p = fma(p, m, splat(3.3333331174e-1f));
    const Floats square = m * m;
    p = fma(p * m, square, e * splat(-2.12194440e-4f));
    p = fma(square, splat(-0.5f), p);
    return fma(e, splat(0.693359375f), m + p);
}

}  // namespace
}  // namespace dpmix
