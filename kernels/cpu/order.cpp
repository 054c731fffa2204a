#include "order.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "../limits.cuh"

namespace dpmix {
namespace {

constexpr int CURVE_CHANNELS = 4;

}  // namespace

void follow_curve(const float* events, int n, int n_channels, std::uint16_t* curve) {
    std::vector<std::uint16_t> keys(static_cast<std::size_t>(n), 0);
    for (int channel = 0; channel < std::min(CURVE_CHANNELS, n_channels); channel++) {
        const auto value = [&](int i) {
            return double{events[static_cast<std::size_t>(i) * n_channels + channel]};
        };
        double sum = 0.0, squares = 0.0;
        for (int i = 0; i < n; i++) sum += value(i);
        const double mean = sum / n;
        for (int i = 0; i < n; i++) squares += (value(i) - mean) * (value(i) - mean);
        const double steps = squares > 0.0 ? 4.0 / std::sqrt(squares / n) : 0.0;
        for (int i = 0; i < n; i++) {
            const int step = static_cast<int>(std::clamp(8.0 + steps * (value(i) - mean), 0.0, 15.0));
            for (int bit = 0; bit < 4; bit++)
                keys[i] |= (step >> bit & 1) << (CURVE_CHANNELS * bit + channel);
        }
    }
    std::vector<std::uint32_t> next(CHUNK + 1, 0);
    for (const std::uint16_t key : keys) next[key + 1u]++;
    for (int key = 0; key < CHUNK; key++) next[key + 1] += next[key];
    for (int i = 0; i < n; i++) curve[next[keys[i]]++] = static_cast<std::uint16_t>(i);
}

void count_labels(const std::uint16_t* labels, int n, int n_components, std::uint32_t* starts) {
    std::fill_n(starts, n_components + 1, 0u);
    for (int i = 0; i < n; i++) starts[labels[i] + 1u]++;
    for (int j = 0; j < n_components; j++) starts[j + 1] += starts[j];
}

void sort_by_label(const std::uint16_t* labels, const std::uint16_t* curve, int n, int n_components,
                   std::uint16_t* order, std::uint32_t* starts) {
    std::vector<std::uint32_t> next(static_cast<std::size_t>(n_components) + 1);
    count_labels(labels, n, n_components, next.data());
    std::copy(next.begin(), next.end(), starts);
    for (int i = 0; i < n; i++) order[next[labels[curve[i]]]++] = curve[i];
}

}  // namespace dpmix
