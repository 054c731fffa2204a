// The Python module dpmix.kernels._cpu: the engine on NumPy arrays, and the choice of an instruction set.
//
// Shapes and values are checked by dpmix.engines.cpu, the only caller.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "engine.hpp"

namespace nb = nanobind;

namespace dpmix {

#if defined(__x86_64__)
[[gnu::weak]] extern const Sweep sweep_v2, sweep_v3, sweep_v4;  // null where not built (DPMIX_SETS)
#else
extern const Sweep sweep_neon;
#endif

namespace {

// The instruction sets that this processor has, best first.
std::vector<const Sweep*> sweeps() {
    std::vector<const Sweep*> found;
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool v2 = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt");
    const bool v3 = v2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
    const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                    __builtin_cpu_supports("avx512vl");
    if (v4 && &sweep_v4) found.push_back(&sweep_v4);
    if (v3 && &sweep_v3) found.push_back(&sweep_v3);
    if (v2 && &sweep_v2) found.push_back(&sweep_v2);
#else
    found.push_back(&sweep_neon);
#endif
    return found;
}

std::vector<std::string> isas() {
    std::vector<std::string> names;
    for (const Sweep* sweep : sweeps()) names.push_back(sweep->name);
    return names;
}

const Sweep& sweep_named(const std::string& name) {
    for (const Sweep* sweep : sweeps()) {
        if (sweep->name == name) return *sweep;
    }
    throw std::invalid_argument("this processor does not have the instruction set " + name);
}

using Events = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Doubles1 = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Doubles2 = nb::ndarray<const double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Doubles3 = nb::ndarray<const double, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using DoublesOut1 = nb::ndarray<double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using DoublesOut2 = nb::ndarray<double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using DoublesOut3 = nb::ndarray<double, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

// The engine together with the array that it reads, which is neither copied nor changed.
class CpuEngine {
    Events events_;
    const Sweep& sweep_;
    Engine engine_;

    static Parameters parameters(const Doubles1& log_constants, const Doubles2& means,
                                 const Doubles3& whiteners) {
        return {static_cast<int>(log_constants.shape(0)), log_constants.data(), means.data(),
                whiteners.data()};
    }

    // Moments (sweep.hpp) to counts, sums and symmetric scatters.
    void unpack(const AlignedVector<double>& moments, DoublesOut1& counts, DoublesOut2& sums,
                DoublesOut3& scatters) const {
        const std::size_t D = events_.shape(1), K = counts.shape(0);
        const std::size_t size = static_cast<std::size_t>(moment_size(static_cast<int>(D)));
        for (std::size_t j = 0; j < K; j++) {
            const double* own = &moments[j * size];
            for (std::size_t i = 0; i <= D; i++) {
                const double* row = own + moment_row(static_cast<int>(i));
                for (std::size_t l = 0; l <= i; l++) {
                    if (i == D) (l == D ? counts(j) : sums(j, l)) = row[l];
                    else scatters(j, i, l) = scatters(j, l, i) = row[l];
                }
            }
        }
    }

    // Runs a pass without the interpreter's lock; returns the log likelihood.
    template <class Pass>
    double run(const Pass& pass, DoublesOut1& counts, DoublesOut2& sums, DoublesOut3& scatters) {
        const nb::gil_scoped_release released;
        const std::size_t size = static_cast<std::size_t>(moment_size(static_cast<int>(events_.shape(1))));
        AlignedVector<double> moments(counts.shape(0) * size);
        Totals totals{moments.data(), 0.0};
        pass(totals);
        unpack(moments, counts, sums, scatters);
        return totals.log_likelihood;
    }

   public:
    CpuEngine(Events events, const std::string& isa, int threads, bool pruning, float weight_floor,
              int chunks_in_flight, std::uint64_t first_event)
        : events_(events),
          sweep_(sweep_named(isa)),
          engine_(sweep_, events.data(), events.shape(0), static_cast<int>(events.shape(1)),
                  {threads, pruning, weight_floor, chunks_in_flight, first_event}) {}

    double draw_labels(Doubles1 log_constants, Doubles2 means, Doubles3 whiteners, std::uint64_t seed,
                       std::uint32_t chain, std::uint32_t iteration, DoublesOut1 counts, DoublesOut2 sums,
                       DoublesOut3 scatters) {
        const Parameters from = parameters(log_constants, means, whiteners);
        const Key key{seed, chain, iteration};
        return run([&](Totals& totals) { engine_.draw_labels(from, key, totals); }, counts, sums, scatters);
    }

    double expect_labels(Doubles1 log_constants, Doubles2 means, Doubles3 whiteners, DoublesOut1 counts,
                         DoublesOut2 sums, DoublesOut3 scatters) {
        const Parameters from = parameters(log_constants, means, whiteners);
        return run([&](Totals& totals) { engine_.expect_labels(from, totals); }, counts, sums, scatters);
    }

    void memberships(Doubles1 log_constants, Doubles2 means, Doubles3 whiteners,
                     nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> populations,
                     std::size_t start,
                     nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu> memberships,
                     DoublesOut1 log_densities) {
        const nb::gil_scoped_release released;
        const Parameters from = parameters(log_constants, means, whiteners);
        engine_.memberships(from, {static_cast<int>(memberships.shape(1)), populations.data()}, start,
                            start + memberships.shape(0), memberships.data(), log_densities.data());
    }

    // Whether the chain has labels of so many components; statistics [2P] and log probabilities [P] are written.
    bool divide(nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> pairs,
                nb::ndarray<const std::int8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> sides,
                Doubles1 log_constants, Doubles2 means, Doubles3 whiteners, std::uint64_t seed,
                std::uint32_t chain, std::uint32_t iteration, int word, DoublesOut1 counts, DoublesOut2 sums,
                DoublesOut3 scatters, DoublesOut1 log_probabilities) {
        const Parameters from = parameters(log_constants, means, whiteners);
        const Deal deal{static_cast<int>(pairs.shape(0)), pairs.data(), sides.data(), word};
        bool done = false;
        run(
            [&](Totals& totals) {
                done = engine_.divide(deal, from, {seed, chain, iteration}, totals, log_probabilities.data());
            },
            counts, sums, scatters);
        return done;
    }

    // Whether the chain has labels; they are written to `out` [N].
    bool labels(std::uint32_t chain,
                nb::ndarray<std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> out) const {
        const nb::gil_scoped_release released;
        return engine_.copy_labels(chain, out.data());
    }

    void log_densities(Doubles1 log_constants, Doubles2 means, Doubles3 whiteners, Events events,
                       nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu> out) const {
        const Parameters from = parameters(log_constants, means, whiteners);
        engine_.log_densities(from, events.data(), static_cast<int>(events.shape(0)), out.data());
    }

    double kept() const { return engine_.kept(); }
    int width() const { return sweep_.width; }
};

}  // namespace
}  // namespace dpmix

NB_MODULE(_cpu, module) {
    using dpmix::CpuEngine;
    using namespace nb::literals;
    module.attr("CHUNK") = dpmix::CHUNK;
    module.attr("MAX_CHANNELS") = dpmix::MAX_CHANNELS;
    module.attr("MAX_COMPONENTS") = dpmix::MAX_COMPONENTS;
    module.def("isas", &dpmix::isas, "Instruction sets that this processor has, best first.");
    nb::class_<CpuEngine>(module, "Engine")
        .def(nb::init<dpmix::Events, const std::string&, int, bool, float, int, std::uint64_t>(), "events"_a,
             "isa"_a, "threads"_a, "pruning"_a, "weight_floor"_a, "chunks_in_flight"_a, "first_event"_a)
        .def("draw_labels", &CpuEngine::draw_labels, "log_constants"_a, "means"_a, "whiteners"_a, "seed"_a,
             "chain"_a, "iteration"_a, "counts"_a, "sums"_a, "scatters"_a)
        .def("expect_labels", &CpuEngine::expect_labels, "log_constants"_a, "means"_a, "whiteners"_a,
             "counts"_a, "sums"_a, "scatters"_a)
        .def("memberships", &CpuEngine::memberships, "log_constants"_a, "means"_a, "whiteners"_a,
             "populations"_a, "start"_a, "memberships"_a, "log_densities"_a)
        .def("divide", &CpuEngine::divide, "pairs"_a, "sides"_a, "log_constants"_a, "means"_a, "whiteners"_a,
             "seed"_a, "chain"_a, "iteration"_a, "word"_a, "counts"_a, "sums"_a, "scatters"_a,
             "log_probabilities"_a)
        .def("labels", &CpuEngine::labels, "chain"_a, "out"_a)
        .def("log_densities", &CpuEngine::log_densities, "log_constants"_a, "means"_a, "whiteners"_a,
             "events"_a, "out"_a)
        .def_prop_ro("kept", &CpuEngine::kept)
        .def_prop_ro("width", &CpuEngine::width);
}
