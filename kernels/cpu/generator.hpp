// NumPy's generator of a sweep's normal, exponential and gamma numbers: Philox4x64-10 (Salmon et al. 2011) and
// the ziggurat method, with NumPy's bits. It makes words in blocks and draws signs without a branch, which
// takes less than half the time.
//
// A generator is also a bit generator of NumPy (`bitgen_t` of its C interface), so a numpy.random.Generator
// can draw other variates from the same stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <thread>

namespace dpmix {

// Of numpy/random/bitgen.h.
struct BitGenerator {
    void* state;
    std::uint64_t (*next_uint64)(void*);
    std::uint32_t (*next_uint32)(void*);
    double (*next_double)(void*);
    std::uint64_t (*next_raw)(void*);
};

class Generator {
    static constexpr int WORDS = 1024;  // a block
    std::uint64_t words_[WORDS];
    std::uint64_t keys_[10][2];  // of each round
    std::uint64_t counter_[4];
    int at_ = WORDS;
    bool has_half_ = false;
    std::uint32_t half_ = 0;
    BitGenerator interface_;

    void fill();
    std::uint64_t word();
    std::uint32_t half_word();
    double uniform();
    double normal();
    double tail(bool negative);
    double gamma(double shape);

   public:
    Generator(std::uint64_t key0, std::uint64_t key1, std::uint64_t counter1, std::uint64_t counter2);
    Generator(const Generator&) = delete;
    Generator& operator=(const Generator&) = delete;

    BitGenerator* bit_generator() { return &interface_; }

    // Writes numbers uniform from 0 to 1.
    void uniforms(double* out, std::size_t count);

    // Writes standard normal numbers.
    void normals(double* out, std::size_t count);

    // Draws a standard exponential number.
    double exponential();

    // Writes integers from 0 to high - 1; high is at least 1.
    void integers(std::uint32_t high, std::int64_t* out, std::size_t count);

    // Writes gamma numbers of shapes of at least 1.
    void gammas(const double* shapes, double* out, std::size_t count);
};

// Draws normal numbers of a generator in a thread of its own. Nothing else may use the generator, or what is
// written, until `wait` has returned.
class NormalsAhead {
    std::thread thread_;

   public:
    NormalsAhead(Generator& generator, double* out, std::size_t count);
    NormalsAhead(const NormalsAhead&) = delete;
    NormalsAhead& operator=(const NormalsAhead&) = delete;
    ~NormalsAhead() { wait(); }

    void wait();
};

}  // namespace dpmix
