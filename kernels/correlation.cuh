// The correlations of a Gaussian process of time; kinds as in kernels/cpu/vecchia.hpp.
#pragma once

// Returns the correlation at a distance in units of the range, or its derivative with respect to log range.
template <typename Real>
__device__ Real correlation(int kind, Real d, bool slope) {
    const Real one = 1.0;
    if (kind == 0) return (slope ? d : one) * std::exp(-d);
    if (kind == 3) return (slope ? d * d : one) * std::exp(Real(-0.5) * d * d);
    const Real a = Real(kind == 1 ? 1.7320508075688772 : 2.23606797749979) * d, third = a * a / Real(3.0);
    if (kind == 1) return (slope ? a * a : one + a) * std::exp(-a);
    return (slope ? third + third * a : one + a + third) * std::exp(-a);
}
