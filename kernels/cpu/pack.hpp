// The packing of a mixture: from the caller's arrays (float64) to sweep.hpp's Mixture (float32, packed).
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <vector>

#include "sweep.hpp"

namespace dpmix {

// An allocator of memory that starts on a cache line, so that vectors of any width may be loaded from it.
template <class T>
struct Aligned {
    using value_type = T;
    Aligned() = default;
    template <class Other>
    Aligned(const Aligned<Other>&) {}
    T* allocate(std::size_t n) {
        return static_cast<T*>(::operator new(n * sizeof(T), std::align_val_t{64}));
    }
    void deallocate(T* memory, std::size_t) { ::operator delete(memory, std::align_val_t{64}); }
    friend bool operator==(const Aligned&, const Aligned&) { return true; }
    friend bool operator!=(const Aligned&, const Aligned&) { return false; }
};
template <class T>
using AlignedVector = std::vector<T, Aligned<T>>;

// The whiteners of a mixture. Mixtures that share them, as the samples' do, differ in weights and means
// alone.
class Whiteners {
    const double* values_;
    int n_components_, n_channels_;
    std::uint64_t number_;

    static std::uint64_t new_number() {
        static std::atomic<std::uint64_t> latest{0};
        return ++latest;
    }

   public:
    // `values` [K][D][D] lower triangular, held by reference.
    Whiteners(const double* values, int n_components, int n_channels)
        : values_(values), n_components_(n_components), n_channels_(n_channels), number_(new_number()) {}

    const double* values() const { return values_; }
    int n_components() const { return n_components_; }
    int n_channels() const { return n_channels_; }
    std::uint64_t number() const { return number_; }  // no others of this process have it
};

// Views of the caller's arrays.
struct Parameters {
    const double* log_constants;  // [K] log pi_j + log of the normal density at its mean
    const double* means;          // [K][D]
    const Whiteners& whiteners;

    int n_components() const { return whiteners.n_components(); }
};

// A mixture in memory that the next one uses again. The next one with the same whiteners overwrites means and
// constants alone.
class PackedMixture {
    std::vector<float> constants_, stages_;
    AlignedVector<float> centres_;
    std::uint64_t number_ = 0;  // of the whiteners in stages_
    Mixture view_{};

   public:
    const PackedMixture& pack(const Parameters& from, float weight_floor, bool pruning) {
        const Whiteners& whiteners = from.whiteners;
        const int D = whiteners.n_channels(), K = whiteners.n_components();
        pack_centres(from);
        const std::size_t whole = pack_stages(whiteners, pruning);
        view_ = Mixture{D,
                        K,
                        weight_floor,
                        constants_.data(),
                        stages_.data(),
                        pruning ? stages_.data() + whole : nullptr,
                        centres_.data(),
                        from.log_constants,
                        from.means,
                        whiteners.values(),
                        {}};
        return *this;
    }

    // Adds clearances to the mixture that was packed last.
    void add(const Clearances& clearances) { view_.clearances = clearances; }

    // The mixture that was packed last.
    const Mixture& view() const { return view_; }

    // The mixture of components first and first + 1.
    Mixture two(int first) const {
        const std::size_t j = static_cast<std::size_t>(first), D = static_cast<std::size_t>(view_.n_channels);
        Mixture two = view_;
        two.n_components = 2;
        two.constants += j;
        two.whole += j * stage_size(0, view_.n_channels);
        two.staged = nullptr;
        two.centres += j * padded_width(view_.n_channels);
        two.log_constants += j;
        two.means += j * D;
        two.whiteners += j * D * D;
        two.clearances = {};
        return two;
    }

   private:
    void pack_centres(const Parameters& from) {
        const int D = from.whiteners.n_channels(), K = from.n_components(), width = padded_width(D);
        constants_.assign(static_cast<std::size_t>(K + MAX_TILE), -std::numeric_limits<float>::infinity());
        centres_.assign(static_cast<std::size_t>(K) * width, 0.0f);
        for (int j = 0; j < K; j++) {
            constants_[j] = static_cast<float>(from.log_constants[j]);
            float* centre = &centres_[static_cast<std::size_t>(j) * width];
            for (int i = 0; i < D; i++)
                centre[i] = static_cast<float>(from.means[static_cast<std::size_t>(j) * D + i]);
            centre[D] = -1.0f;
        }
    }

    // Packs all rows as one stage, then, to prune, the stages. Returns the number of floats of the former.
    std::size_t pack_stages(const Whiteners& from, bool pruning) {
        const int D = from.n_channels();
        const std::size_t K = static_cast<std::size_t>(from.n_components());
        const Stages stages = stages_of(D);
        const std::size_t whole = K * stage_size(0, D);
        std::size_t size = whole;
        for (int g = 0; pruning && g < stages.count; g++)
            size += K * stage_size(stages.bounds[g], stages.bounds[g + 1]);
        const bool rows = number_ != from.number() || stages_.size() != size;
        number_ = from.number();
        stages_.resize(size);
        float* at = pack_stage(from, 0, D, rows, stages_.data());
        for (int g = 0; pruning && g < stages.count; g++)
            at = pack_stage(from, stages.bounds[g], stages.bounds[g + 1], rows, at);
        return whole;
    }

    // Packs the means of a stage from centres_ and, unless they are there, its rows. Returns its end.
    float* pack_stage(const Whiteners& from, int first, int last, bool rows, float* packed) const {
        const int D = from.n_channels(), width = padded_width(D);
        for (int j = 0; j < from.n_components(); j++, packed += stage_size(first, last)) {
            std::copy_n(&centres_[static_cast<std::size_t>(j) * width], last, packed);
            if (!rows) continue;
            const double* whitener = from.values() + static_cast<std::size_t>(j) * D * D;
            float* to = packed + last;
            for (int r = first; r < last; r++) {
                for (int i = 0; i <= r; i++) *to++ = static_cast<float>(whitener[r * D + i] * std::sqrt(0.5));
            }
        }
        return packed;
    }
};

}  // namespace dpmix
