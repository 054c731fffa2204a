// The stick proportions of dpmix/model/stick_breaking.py, as logs.
#pragma once

#include <cstddef>

#include "generator.hpp"

namespace dpmix {

// Writes log v_j and log(1 - v_j), [count], of v_j ~ Beta(first[j], second[j]), exact where v_j would round to
// 0 or 1: a Gamma(a) number is a Gamma(a + 1) number times U^(1/a) (Marsaglia and Tsang 2000, ACM TOMS 26:363,
// section 6). The operations are as in tests/model/native_reference.py, in the same order.
void draw_log_betas(Generator& generator, const double* first, const double* second, std::size_t count,
                    double* log_sticks, double* log1m_sticks);

}  // namespace dpmix
