#include "sticks.hpp"

#include <cmath>
#include <vector>

namespace dpmix {
namespace {

void draw_log_gammas(Generator& generator, const double* shapes, std::size_t count, double* out) {
    std::vector<double> above(shapes, shapes + count);
    for (double& shape : above) shape += 1.0;
    generator.gammas(above.data(), out, count);
    for (std::size_t i = 0; i < count; i++) out[i] = std::log(out[i]) - generator.exponential() / shapes[i];
}

// log(exp(a) + exp(b)).
double log_sum(double a, double b) {
    if (a == b) return a + std::log(2.0);
    return a > b ? a + std::log1p(std::exp(b - a)) : b + std::log1p(std::exp(a - b));
}

}  // namespace

void draw_log_betas(Generator& generator, const double* first, const double* second, std::size_t count,
                    double* log_sticks, double* log1m_sticks) {
    draw_log_gammas(generator, first, count, log_sticks);
    draw_log_gammas(generator, second, count, log1m_sticks);
    for (std::size_t i = 0; i < count; i++) {
        const double both = log_sum(log_sticks[i], log1m_sticks[i]);
        log_sticks[i] -= both;
        log1m_sticks[i] -= both;
    }
}

}  // namespace dpmix
