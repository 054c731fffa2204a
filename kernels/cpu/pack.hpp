// The packing of a mixture: from the caller's arrays (float64) to sweep.hpp's Mixture (float32, packed).
#pragma once

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

// Views of the caller's arrays.
struct Parameters {
    int n_components;
    const double* log_constants;  // [K] log pi_j + log of the normal density at its mean
    const double* means;          // [K][D]
    const double* whiteners;      // [K][D][D] lower triangular
};

class PackedMixture {
    std::vector<float> constants_, whole_, staged_;
    AlignedVector<float> centres_;
    Mixture view_;

   public:
    PackedMixture(const Parameters& from, int n_channels, float weight_floor, bool pruning) {
        const int D = n_channels, K = from.n_components, width = padded_width(D);
        constants_.assign(static_cast<std::size_t>(K + TILE), -std::numeric_limits<float>::infinity());
        centres_.assign(static_cast<std::size_t>(K) * width, 0.0f);
        for (int j = 0; j < K; j++) {
            constants_[j] = static_cast<float>(from.log_constants[j]);
            float* centre = &centres_[static_cast<std::size_t>(j) * width];
            for (int i = 0; i < D; i++)
                centre[i] = static_cast<float>(from.means[static_cast<std::size_t>(j) * D + i]);
            centre[D] = -1.0f;
        }
        pack_stage(from, D, 0, D, whole_);
        const Stages stages = stages_of(D);
        for (int g = 0; pruning && g < stages.count; g++) {
            pack_stage(from, D, stages.bounds[g], stages.bounds[g + 1], staged_);
        }
        view_ = Mixture{D,
                        K,
                        weight_floor,
                        constants_.data(),
                        whole_.data(),
                        pruning ? staged_.data() : nullptr,
                        centres_.data(),
                        from.log_constants,
                        from.means,
                        from.whiteners};
    }
    PackedMixture(const PackedMixture&) = delete;
    PackedMixture& operator=(const PackedMixture&) = delete;

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
        return two;
    }

   private:
    static void pack_stage(const Parameters& from, int D, int first, int last, std::vector<float>& packed) {
        packed.reserve(packed.size() + static_cast<std::size_t>(from.n_components) * stage_size(first, last));
        for (int j = 0; j < from.n_components; j++) {
            const double* mean = from.means + static_cast<std::size_t>(j) * D;
            const double* whitener = from.whiteners + static_cast<std::size_t>(j) * D * D;
            for (int i = 0; i < last; i++) packed.push_back(static_cast<float>(mean[i]));
            for (int r = first; r < last; r++) {
                for (int i = 0; i <= r; i++)
                    packed.push_back(static_cast<float>(whitener[r * D + i] * std::sqrt(0.5)));
            }
        }
    }
};

}  // namespace dpmix
