#include "generator.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <system_error>

#include "ziggurat.hpp"
#include "ziggurat_exponential.hpp"

namespace dpmix {
namespace {

// Philox4x64-10: encrypts a counter of four words with a key of two.
inline void encrypt(const std::uint64_t* counter, const std::uint64_t (&keys)[10][2], std::uint64_t* out) {
    __extension__ using Wide = unsigned __int128;
    std::uint64_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    for (const auto& key : keys) {
        const Wide first = Wide{0xD2E7470EE14C6C93u} * c0, second = Wide{0xCA5A826395121157u} * c2;
        c0 = static_cast<std::uint64_t>(second >> 64) ^ c1 ^ key[0];
        c1 = static_cast<std::uint64_t>(second);
        c2 = static_cast<std::uint64_t>(first >> 64) ^ c3 ^ key[1];
        c3 = static_cast<std::uint64_t>(first);
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

// A signed number converts faster, and 53 bits have no sign.
inline double uniform_of(std::uint64_t word) {
    return static_cast<double>(static_cast<std::int64_t>(word >> 11)) * 0x1p-53;
}

Generator& generator(void* state) { return *static_cast<Generator*>(state); }

}  // namespace

Generator::Generator(std::uint64_t key0, std::uint64_t key1, std::uint64_t counter1, std::uint64_t counter2)
    : counter_{0, counter1, counter2, 0},
      interface_{this, [](void* state) { return generator(state).word(); },
                 [](void* state) { return generator(state).half_word(); },
                 [](void* state) { return generator(state).uniform(); },
                 [](void* state) { return generator(state).word(); }} {
    for (auto& key : keys_) {
        key[0] = key0;
        key[1] = key1;
        key0 += 0x9E3779B97F4A7C15u;
        key1 += 0xBB67AE8584CAA73Bu;
    }
}

void Generator::fill() {
    for (int word = 0; word < WORDS; word += 4) {
        for (int i = 0; i < 4 && ++counter_[i] == 0; i++) {
        }
        encrypt(counter_, keys_, words_ + word);
    }
    at_ = 0;
}

inline std::uint64_t Generator::word() {
    if (__builtin_expect(at_ == WORDS, 0)) fill();
    return words_[at_++];
}

// Both halves of a word, the low one first.
std::uint32_t Generator::half_word() {
    has_half_ = !has_half_;
    if (!has_half_) return half_;
    const std::uint64_t both = word();
    half_ = static_cast<std::uint32_t>(both >> 32);
    return static_cast<std::uint32_t>(both);
}

inline double Generator::uniform() { return uniform_of(word()); }

// random_standard_normal of NumPy's distributions.c.
inline double Generator::normal() {
    while (true) {
        const std::uint64_t word = this->word();
        const std::size_t layer = word & 0xFF;
        const std::uint64_t size = word >> 9 & 0xFFFFFFFFFFFFFu;
        const double magnitude =
            static_cast<double>(static_cast<std::int64_t>(size)) * ZIGGURAT_WIDTHS[layer];
        std::uint64_t bits;
        std::memcpy(&bits, &magnitude, sizeof bits);
        bits |= (word >> 8 & 1) << 63;  // the sign
        double x;
        std::memcpy(&x, &bits, sizeof x);
        if (__builtin_expect(size < ZIGGURAT_LIMITS[layer], 1)) return x;
        if (layer == 0) return tail(size >> 8 & 1);
        const double height = ZIGGURAT_HEIGHTS[layer - 1] - ZIGGURAT_HEIGHTS[layer];
        if (height * uniform() + ZIGGURAT_HEIGHTS[layer] < std::exp(-0.5 * x * x)) return x;
    }
}

double Generator::tail(bool negative) {
    while (true) {
        const double x = -ZIGGURAT_INVERSE_R * std::log1p(-uniform()), y = -std::log1p(-uniform());
        if (y + y > x * x) return negative ? -(ZIGGURAT_R + x) : ZIGGURAT_R + x;
    }
}

void Generator::uniforms(double* out, std::size_t count) {
    while (count > 0) {
        if (at_ == WORDS) fill();
        const std::size_t here = std::min(count, static_cast<std::size_t>(WORDS - at_));
        for (std::size_t i = 0; i < here; i++) out[i] = uniform_of(words_[at_ + i]);
        at_ += static_cast<int>(here);
        out += here;
        count -= here;
    }
}

void Generator::normals(double* out, std::size_t count) {
    for (std::size_t i = 0; i < count; i++) out[i] = normal();
}

// random_standard_exponential of NumPy's distributions.c.
double Generator::exponential() {
    while (true) {
        const std::uint64_t word = this->word() >> 3, size = word >> 8;
        const std::size_t layer = word & 0xFF;
        const double x = static_cast<double>(static_cast<std::int64_t>(size)) * EXPONENTIAL_WIDTHS[layer];
        if (__builtin_expect(size < EXPONENTIAL_LIMITS[layer], 1)) return x;
        if (layer == 0) return EXPONENTIAL_R - std::log1p(-uniform());
        const double height = EXPONENTIAL_HEIGHTS[layer - 1] - EXPONENTIAL_HEIGHTS[layer];
        if (height * uniform() + EXPONENTIAL_HEIGHTS[layer] < std::exp(-x)) return x;
    }
}

// random_bounded_uint64_fill of NumPy's distributions.c: Lemire (2019, ACM Trans. Model. Comput. Simul. 29:3).
void Generator::integers(std::uint32_t high, std::int64_t* out, std::size_t count) {
    if (high == 1) {
        std::fill_n(out, count, 0);
        return;
    }
    const std::uint32_t least = (0u - high) % high;
    for (std::size_t i = 0; i < count; i++) {
        std::uint64_t product;
        do {
            product = std::uint64_t{half_word()} * high;
        } while (static_cast<std::uint32_t>(product) < least);
        out[i] = static_cast<std::int64_t>(product >> 32);
    }
}

// random_standard_gamma of NumPy's distributions.c: Marsaglia and Tsang (2000, ACM TOMS 26:363).
inline double Generator::gamma(double shape) {
    if (shape == 1.0) return exponential();
    const double b = shape - 1.0 / 3.0, c = 1.0 / std::sqrt(9.0 * b);
    while (true) {
        double x, root;
        do {
            x = normal();
            root = 1.0 + c * x;
        } while (root <= 0.0);
        const double v = root * root * root, u = uniform(), squared = x * x;
        if (u < 1.0 - 0.0331 * squared * squared || std::log(u) < 0.5 * x * x + b * (1.0 - v + std::log(v)))
            return b * v;
    }
}

void Generator::gammas(const double* shapes, double* out, std::size_t count) {
    for (std::size_t i = 0; i < count; i++) out[i] = gamma(shapes[i]);
}

NormalsAhead::NormalsAhead(Generator& generator, double* out, std::size_t count) {
    try {
        thread_ = std::thread([&generator, out, count] { generator.normals(out, count); });
    } catch (const std::system_error&) {
        generator.normals(out, count);  // no more threads are available
    }
}

void NormalsAhead::wait() {
    if (thread_.joinable()) thread_.join();
}

}  // namespace dpmix
