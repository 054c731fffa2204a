// The Python module dpmix.kernels._cpu (types: kernels/_cpu.pyi): the engine on NumPy arrays, and the choice
// of an instruction set.
//
// The callers, dpmix.engines.cpu and dpmix.engines.exact, check shapes and values.

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "averages.hpp"
#include "bindings.hpp"
#include "engine.hpp"

namespace dpmix {

void bind_model(nb::module_& module);    // module_model.cpp
void bind_drift(nb::module_& module);    // module_drift.cpp
void bind_explore(nb::module_& module);  // module_explore.cpp

extern const Sweep sweep_v2, sweep_v3, sweep_v4, sweep_neon;  // those that are built: DPMIX_HAS_...

namespace {

// The instruction sets that this processor has, best first.
std::vector<const Sweep*> sweeps() {
    std::vector<const Sweep*> found;
#if defined(__x86_64__)
    __builtin_cpu_init();
    [[maybe_unused]] const bool v2 = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt");
    [[maybe_unused]] const bool v3 = v2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                                     __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
    [[maybe_unused]] const bool v4 = v3 && __builtin_cpu_supports("avx512f") &&
                                     __builtin_cpu_supports("avx512bw") &&
                                     __builtin_cpu_supports("avx512cd") &&
                                     __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#if defined(DPMIX_HAS_v4)
    if (v4) found.push_back(&sweep_v4);
#endif
#if defined(DPMIX_HAS_v3)
    if (v3) found.push_back(&sweep_v3);
#endif
#if defined(DPMIX_HAS_v2)
    if (v2) found.push_back(&sweep_v2);
#endif
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

}  // namespace

const Sweep& sweep_named(const std::string& name) {
    for (const Sweep* sweep : sweeps()) {
        if (name.empty() || sweep->name == name) return *sweep;
    }
    throw std::invalid_argument("this processor does not have the instruction set " + name);
}

namespace {

using Events = ArrayOf<const float, 2>;
using Doubles1 = ArrayOf<const double, 1>;
using Doubles2 = ArrayOf<const double, 2>;
using Doubles3 = ArrayOf<const double, 3>;
using Starts = std::optional<ArrayOf<const std::int64_t, 1>>;
using Weights = std::optional<ArrayOf<const float, 1>>;
using DoublesOut1 = ArrayOf<double, 1>;
using DoublesOut2 = ArrayOf<double, 2>;
using RowsOut = std::optional<DoublesOut2>;
using LabelsOut = std::optional<ArrayOf<std::int32_t, 1>>;

// The state of n sums [4][n] (exact.hpp) in a caller's array.
Sums sums_in(DoublesOut2& state) { return {state.data(), state.shape(1)}; }

void add(DoublesOut2 state, Doubles1 numbers) {
    const nb::gil_scoped_release released;
    sums_in(state).add(0, numbers.data(), numbers.shape(0));
}

void merge(DoublesOut2 state, Doubles2 other) {
    const nb::gil_scoped_release released;
    sums_in(state).merge(other.data());
}

void values(Doubles2 state, DoublesOut1 out) {
    const nb::gil_scoped_release released;
    values_of(state.data(), state.shape(1), out.data());
}

void add_draw_memberships(ArrayOf<const float, 2> memberships, ArrayOf<const float, 1> ratios, int threads,
                          ArrayOf<float, 1> uniforms, ArrayOf<float, 2> total,
                          ArrayOf<std::int64_t, 1> counts) {
    const nb::gil_scoped_release released;
    add_memberships(
        {memberships.shape(0), static_cast<int>(memberships.shape(1)), memberships.data(), ratios.data()},
        threads, uniforms.data(), total.data(), counts.data());
}

// Whiteners and the array of them, which stays as it is.
class HeldWhiteners {
    Doubles3 array_;

   public:
    const Whiteners held;

    explicit HeldWhiteners(Doubles3 array)
        : array_(array),
          held(array.data(), static_cast<int>(array.shape(0)), static_cast<int>(array.shape(1))) {}
};

// Working memory that engines may share.
struct SharedWorkspaces {
    std::shared_ptr<Workspaces> shared = std::make_shared<Workspaces>();
};

// The engine and the array of its events, which it neither copies nor changes.
class CpuEngine {
    Events events_;
    Engine engine_;

    static Parameters parameters(const Doubles1& log_constants, const Doubles2& means,
                                 const HeldWhiteners& whiteners) {
        return {log_constants.data(), means.data(), whiteners.held};
    }

    Totals totals(DoublesOut2& state, RowsOut& rows) const {
        return {sums_in(state), static_cast<int>(events_.shape(1)), rows ? rows->data() : nullptr};
    }

    static SampleWeights sample_weights(const Starts& starts, const Weights& weights) {
        if (!starts || !weights) return {};
        return {weights->shape(0), starts->data(), weights->data()};
    }

   public:
    CpuEngine(Events events, const std::string& isa, int threads, bool pruning, float weight_floor,
              int chunks_in_flight, std::uint64_t first_event, const std::string& scratch, bool mapped,
              const Starts& sample_starts, const Weights& weights, const SharedWorkspaces& workspaces)
        : events_(events),
          engine_(sweep_named(isa), events.data(), events.shape(0), static_cast<int>(events.shape(1)),
                  {threads, pruning, weight_floor, chunks_in_flight, first_event, scratch, mapped},
                  workspaces.shared, sample_weights(sample_starts, weights)) {}

    void draw_labels(Doubles1 log_constants, Doubles2 means, const HeldWhiteners& whiteners,
                     ArrayOf<const std::uint16_t, 1> now, std::uint64_t seed, std::uint32_t chain,
                     std::uint32_t iteration, DoublesOut2 state, RowsOut rows) {
        const nb::gil_scoped_release released;
        engine_.draw_labels(parameters(log_constants, means, whiteners), now.data(), {seed, chain, iteration},
                            totals(state, rows));
    }

    void expect_labels(Doubles1 log_constants, Doubles2 means, const HeldWhiteners& whiteners,
                       DoublesOut2 state, RowsOut rows) {
        const nb::gil_scoped_release released;
        engine_.expect_labels(parameters(log_constants, means, whiteners), totals(state, rows));
    }

    void memberships(Doubles1 log_constants, Doubles2 means, const HeldWhiteners& whiteners,
                     ArrayOf<const std::int32_t, 1> populations, std::size_t start,
                     ArrayOf<float, 2> memberships, DoublesOut1 log_densities, LabelsOut most_probable) {
        const nb::gil_scoped_release released;
        const Parameters from = parameters(log_constants, means, whiteners);
        engine_.memberships(from, {static_cast<int>(memberships.shape(1)), populations.data()}, start,
                            start + memberships.shape(0), memberships.data(), log_densities.data(),
                            most_probable ? most_probable->data() : nullptr);
    }

    // False if the chain has no labels of that many components; nothing is added then.
    bool divide(ArrayOf<const std::int32_t, 1> pairs, ArrayOf<const std::int8_t, 1> sides,
                Doubles1 log_constants, Doubles2 means, const HeldWhiteners& whiteners, std::uint64_t seed,
                std::uint32_t chain, std::uint32_t iteration, int word, DoublesOut2 state, RowsOut rows) {
        const nb::gil_scoped_release released;
        return engine_.divide({static_cast<int>(pairs.shape(0)), pairs.data(), sides.data(), word},
                              parameters(log_constants, means, whiteners), {seed, chain, iteration},
                              totals(state, rows));
    }

    // Writes labels to `out` [N]; false if the chain has none.
    bool labels(std::uint32_t chain, ArrayOf<std::int32_t, 1> out) const {
        const nb::gil_scoped_release released;
        return engine_.copy_labels(chain, out.data());
    }

    void log_densities(Doubles1 log_constants, Doubles2 means, const HeldWhiteners& whiteners, Events events,
                       ArrayOf<float, 2> out) const {
        const Parameters from = parameters(log_constants, means, whiteners);
        engine_.log_densities(from, events.data(), static_cast<int>(events.shape(0)), out.data());
    }

    double kept() const { return engine_.kept(); }
};

}  // namespace
}  // namespace dpmix

NB_MODULE(_cpu, module) {
    dpmix::bind_model(module);
    dpmix::bind_drift(module);
    dpmix::bind_explore(module);
    using dpmix::CpuEngine;
    using namespace nb::literals;
    module.attr("CHUNK") = dpmix::CHUNK;
    module.attr("MAX_CHANNELS") = dpmix::MAX_CHANNELS;
    module.attr("MAX_COMPONENTS") = dpmix::MAX_COMPONENTS;
    nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
        try {
            std::rethrow_exception(thrown);
        } catch (const std::filesystem::filesystem_error& error) {
            errno = error.code().value();
            PyErr_SetFromErrnoWithFilename(PyExc_OSError, error.path1().c_str());
        }
    });
    module.def("isas", &dpmix::isas, "Instruction sets that this processor has, best first.");
    module.def("add", &dpmix::add, "state"_a.noconvert(), "numbers"_a);
    module.def("merge", &dpmix::merge, "state"_a.noconvert(), "other"_a);
    module.def("values", &dpmix::values, "state"_a, "out"_a.noconvert());
    module.def("add_memberships", &dpmix::add_draw_memberships, "memberships"_a, "ratios"_a, "threads"_a,
               "uniforms"_a.noconvert(), "total"_a.noconvert(), "counts"_a.noconvert());
    nb::class_<dpmix::HeldWhiteners>(module, "Whiteners")
        .def(nb::init<dpmix::Doubles3>(), "array"_a.noconvert());
    nb::class_<dpmix::SharedWorkspaces>(module, "Workspaces").def(nb::init<>());
    nb::class_<CpuEngine>(module, "Engine")
        .def(nb::init<dpmix::Events, const std::string&, int, bool, float, int, std::uint64_t,
                      const std::string&, bool, const dpmix::Starts&, const dpmix::Weights&,
                      const dpmix::SharedWorkspaces&>(),
             "events"_a, "isa"_a, "threads"_a, "pruning"_a, "weight_floor"_a, "chunks_in_flight"_a,
             "first_event"_a, "scratch"_a, "mapped"_a, "sample_starts"_a.none(), "weights"_a.none(),
             "workspaces"_a)
        .def("draw_labels", &CpuEngine::draw_labels, "log_constants"_a, "means"_a, "whiteners"_a, "now"_a,
             "seed"_a, "chain"_a, "iteration"_a, "state"_a.noconvert(), "rows"_a.noconvert() = nb::none())
        .def("expect_labels", &CpuEngine::expect_labels, "log_constants"_a, "means"_a, "whiteners"_a,
             "state"_a.noconvert(), "rows"_a.noconvert() = nb::none())
        .def("memberships", &CpuEngine::memberships, "log_constants"_a, "means"_a, "whiteners"_a,
             "populations"_a, "start"_a, "memberships"_a.noconvert(), "log_densities"_a.noconvert(),
             "most_probable"_a.noconvert() = nb::none())
        .def("divide", &CpuEngine::divide, "pairs"_a, "sides"_a, "log_constants"_a, "means"_a, "whiteners"_a,
             "seed"_a, "chain"_a, "iteration"_a, "word"_a, "state"_a.noconvert(),
             "rows"_a.noconvert() = nb::none())
        .def("labels", &CpuEngine::labels, "chain"_a, "out"_a.noconvert())
        .def("log_densities", &CpuEngine::log_densities, "log_constants"_a, "means"_a, "whiteners"_a,
             "events"_a, "out"_a.noconvert())
        .def_prop_ro("kept", &CpuEngine::kept);
}
