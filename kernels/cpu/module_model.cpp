// The part of dpmix.kernels._cpu for dpmix.model: conjugate draws, label swaps and table counts on NumPy
// arrays, and a generator.
#include "bindings.hpp"
#include "conjugate.hpp"
#include "dense.hpp"
#include "generator.hpp"
#include "sticks.hpp"
#include "swaps.hpp"
#include "tables.hpp"

namespace dpmix {
namespace {

using In1 = ArrayOf<const double, 1>;
using In2 = ArrayOf<const double, 2>;
using In3 = ArrayOf<const double, 3>;
using Out1 = ArrayOf<double, 1>;
using Out2 = ArrayOf<double, 2>;
using Out3 = ArrayOf<double, 3>;
using Ints = ArrayOf<const std::int64_t, 1>;
using IntsOut = ArrayOf<std::int64_t, 1>;

void posterior(In1 counts, In2 sums, In3 scatters, In2 centres, In1 m, double gamma, In2 scale, Out2 means,
               Out1 precisions, Out3 scales) {
    const nb::gil_scoped_release released;
    const int n_components = static_cast<int>(counts.shape(0)), dim = static_cast<int>(m.shape(0));
    conjugate_posterior({n_components, dim, counts.data(), sums.data(), scatters.data(), centres.data(),
                         m.data(), scale.data(), gamma},
                        means.data(), precisions.data(), scales.data());
}

int draw(In2 means, In1 precisions, In3 scales, In3 normals, In2 gammas, In2 noise, Ints order, int threads,
         Out2 new_means, Out3 covariances, Out3 whiteners, const std::string& isa) {
    const Sweep& sweep = sweep_named(isa);
    const nb::gil_scoped_release released;
    const int n_components = static_cast<int>(means.shape(0)), dim = static_cast<int>(means.shape(1));
    return draw_parameters(sweep,
                           {n_components, dim, order.data(), means.data(), precisions.data(), scales.data(),
                            normals.data(), gammas.data(), noise.data()},
                           threads, {new_means.data(), covariances.data(), whiteners.data()});
}

int whiteners(In3 matrices, Out3 out, const std::string& isa) {
    const Sweep& sweep = sweep_named(isa);
    const nb::gil_scoped_release released;
    return whiteners_of(sweep, static_cast<int>(matrices.shape(0)), static_cast<int>(matrices.shape(1)),
                        matrices.data(), out.data());
}

double sums(Ints held, In2 means, In3 whiteners, In1 m, Out2 precision, Out1 shift, const std::string& isa) {
    const Sweep& sweep = sweep_named(isa);
    const nb::gil_scoped_release released;
    return sum_components(sweep,
                          {static_cast<int>(held.shape(0)), static_cast<int>(m.shape(0)), held.data(),
                           means.data(), whiteners.data(), m.data()},
                          precision.data(), shift.data());
}

double log_det_of(In2 matrix) { return log_det(matrix.data(), static_cast<int>(matrix.shape(0))); }

bool above(In2 one, In2 other) { return is_above(one.data(), other.data(), static_cast<int>(one.shape(0))); }

bool normal(In2 precision, In1 linear, In1 noise, Out1 out) {
    return draw_normal(precision.data(), linear.data(), noise.data(), static_cast<int>(out.shape(0)),
                       out.data());
}

bool wishart(In2 inverse, In2 normals, In1 gammas, Out2 out) {
    return draw_wishart(inverse.data(), normals.data(), gammas.data(), static_cast<int>(out.shape(0)),
                        out.data());
}

void normals(Generator& generator, Out1 out) {
    const nb::gil_scoped_release released;
    generator.normals(out.data(), out.shape(0));
}

void gammas(Generator& generator, In1 shapes, Out1 out) {
    const nb::gil_scoped_release released;
    generator.gammas(shapes.data(), out.data(), out.shape(0));
}

void exponentials(Generator& generator, Out1 out) {
    for (std::size_t i = 0; i < out.shape(0); i++) out.data()[i] = generator.exponential();
}

void integers(Generator& generator, std::uint32_t high, IntsOut out) {
    generator.integers(high, out.data(), out.shape(0));
}

void log_betas(Generator& generator, In1 first, In1 second, Out1 log_sticks, Out1 log1m_sticks) {
    const nb::gil_scoped_release released;
    draw_log_betas(generator, first.data(), second.data(), first.shape(0), log_sticks.data(),
                   log1m_sticks.data());
}

void start_normals(NormalsAhead* own, Generator& generator, Out1 out) {
    new (own) NormalsAhead(generator, out.data(), out.shape(0));
}

void uniforms(Generator& generator, Out1 out) {
    const nb::gil_scoped_release released;
    generator.uniforms(out.data(), out.shape(0));
}

void tables(Ints held, Ints components, std::int64_t first, In1 shapes, In1 uniforms, Out1 by_component) {
    const nb::gil_scoped_release released;
    open_tables({held.shape(0), held.data(), components.data()}, first, shapes.data(), uniforms.data(),
                static_cast<std::int64_t>(uniforms.shape(0)), by_component.data());
}

StickOrder stick_order(Out1& counts, IntsOut& order) {
    return {static_cast<int>(counts.shape(0)), counts.data(), order.data()};
}

nb::tuple counts_of(const Moves& moves) { return nb::make_tuple(moves.proposed, moves.accepted); }

nb::tuple swap_any(Out1 counts, IntsOut order, In1 log_weights, Ints firsts, Ints others, In1 levels) {
    return counts_of(exchange_any(stick_order(counts, order), log_weights.data(), firsts.data(),
                                  others.data(), levels.data()));
}

nb::tuple swap_with_sticks(Out1 counts, IntsOut order, Out1 log1m_sticks, In1 levels) {
    return counts_of(exchange_with_sticks(stick_order(counts, order), log1m_sticks.data(), levels.data()));
}

nb::tuple swap_collapsed(Out1 counts, IntsOut order, double alpha, double after, In1 uniforms) {
    return counts_of(exchange_collapsed(stick_order(counts, order), alpha, after, uniforms.data()));
}

}  // namespace

void bind_model(nb::module_& module) {
    using namespace nb::literals;
    module.def("posterior", &posterior, "counts"_a, "sums"_a, "scatters"_a, "centres"_a, "m"_a, "gamma"_a,
               "scale"_a, "means"_a.noconvert(), "precisions"_a.noconvert(), "scales"_a.noconvert());
    module.def("draw_parameters", &draw, "means"_a, "precisions"_a, "scales"_a, "normals"_a, "gammas"_a,
               "noise"_a, "order"_a, "threads"_a, "new_means"_a.noconvert(), "covariances"_a.noconvert(),
               "whiteners"_a.noconvert(), "isa"_a = "");
    module.def("whiteners", &whiteners, "matrices"_a, "out"_a.noconvert(), "isa"_a = "");
    module.def("sum_components", &sums, "held"_a, "means"_a, "whiteners"_a, "m"_a, "precision"_a.noconvert(),
               "shift"_a.noconvert(), "isa"_a = "");
    module.def("log_det", &log_det_of, "matrix"_a);
    module.def("is_above", &above, "one"_a, "other"_a);
    module.def("draw_normal", &normal, "precision"_a, "linear"_a, "noise"_a, "out"_a.noconvert());
    module.def("draw_wishart", &wishart, "inverse"_a, "normals"_a, "gammas"_a, "out"_a.noconvert());
    module.def("swap_any", &swap_any, "counts"_a.noconvert(), "order"_a.noconvert(), "log_weights"_a,
               "firsts"_a, "others"_a, "levels"_a);
    module.def("swap_with_sticks", &swap_with_sticks, "counts"_a.noconvert(), "order"_a.noconvert(),
               "log1m_sticks"_a.noconvert(), "levels"_a);
    module.def("swap_collapsed", &swap_collapsed, "counts"_a.noconvert(), "order"_a.noconvert(), "alpha"_a,
               "after"_a, "uniforms"_a);
    module.def("open_tables", &tables, "held"_a, "components"_a, "first"_a, "shapes"_a, "uniforms"_a,
               "by_component"_a.noconvert());
    nb::class_<Generator>(module, "Generator")
        .def(nb::init<std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t>(), "key0"_a, "key1"_a,
             "counter1"_a, "counter2"_a)
        .def("uniforms", &uniforms, "out"_a.noconvert())
        .def("normals", &normals, "out"_a.noconvert())
        .def("exponentials", &exponentials, "out"_a.noconvert())
        .def("integers", &integers, "high"_a, "out"_a.noconvert())
        .def("log_betas", &log_betas, "first"_a, "second"_a, "log_sticks"_a.noconvert(),
             "log1m_sticks"_a.noconvert())
        .def("gammas", &gammas, "shapes"_a, "out"_a.noconvert())
        .def_prop_ro("capsule",
                     [](Generator& own) { return nb::capsule(own.bit_generator(), "BitGenerator"); });
    nb::class_<NormalsAhead>(module, "NormalsAhead")
        .def("__init__", &start_normals, "generator"_a, "out"_a.noconvert(), nb::keep_alive<1, 2>(),
             nb::keep_alive<1, 3>())
        .def("wait", &NormalsAhead::wait, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace dpmix
