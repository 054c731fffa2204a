// The part of dpmix.kernels._cpu for dpmix.drift: likelihood, posterior, steps and local predictions on NumPy arrays.
#include "bindings.hpp"
#include "local.hpp"
#include "markov.hpp"
#include "partition.hpp"
#include "vecchia.hpp"

namespace dpmix {
namespace {

using In = ArrayOf<const double, 1>;

void neighbours(In times, ArrayOf<const std::int64_t, 1> order, ArrayOf<std::int32_t, 2> out) {
    const nb::gil_scoped_release released;
    nearest_predecessors(times.data(), order.data(), times.shape(0), static_cast<int>(out.shape(1)),
                         out.data());
}

// Rows of `out`: log determinant, y'y, 1'y, 1'1 of the whitened vectors, each with its three derivatives; then
// the information.
void sums(In times, In values, In known, ArrayOf<const std::int32_t, 2> near, int correlation,
          double variance, double range, double nugget, const std::string& isa, int threads,
          ArrayOf<double, 2> out) {
    const Sweep& sweep = sweep_named(isa);
    const nb::gil_scoped_release released;
    const VecchiaSums found =
        vecchia(sweep,
                {times.shape(0), static_cast<int>(near.shape(1)), times.data(), values.data(), known.data(),
                 near.data(), static_cast<Correlation>(correlation), variance, range, nugget},
                threads);
    const double totals[4] = {found.log_det, found.yy, found.xy, found.xx};
    const double* slopes[4] = {found.d_log_det, found.d_yy, found.d_xy, found.d_xx};
    for (std::size_t row = 0; row < 4; row++) {
        out(row, 0) = totals[row];
        for (std::size_t p = 0; p < 3; p++) out(row, p + 1) = slopes[row][p];
    }
    for (std::size_t p = 0; p < 3; p++)
        for (std::size_t q = 0; q < 3; q++) out(p + 4, q) = found.information[p > q ? p : q][p > q ? q : p];
}

void local(In times, In values, In noise, int correlation, In centres, In sds, In at, int threads,
           ArrayOf<std::int32_t, 2> designs, ArrayOf<double, 2> weights, ArrayOf<double, 2> parameters,
           ArrayOf<double, 1> variances) {
    const nb::gil_scoped_release released;
    const LocalInput input{times.shape(0),
                           times.data(),
                           values.data(),
                           noise.data(),
                           static_cast<Correlation>(correlation),
                           {centres(0), centres(1)},
                           {sds(0), sds(1)},
                           static_cast<int>(designs.shape(1))};
    predict_locally(input, at.data(), at.shape(0), threads,
                    {designs.data(), weights.data(), parameters.data(), variances.data()});
}

MarkovInput markov_input(In times, In noise, int correlation, double variance, double range,
                         ArrayOf<const double, 2> columns) {
    return {times.shape(0), times.data(), noise.data(),     static_cast<Correlation>(correlation),
            variance,       range,        columns.shape(0), columns.data()};
}

double whitened(In times, In noise, int correlation, double variance, double range,
                ArrayOf<const double, 2> columns, ArrayOf<double, 2> out) {
    const nb::gil_scoped_release released;
    return whiten(markov_input(times, noise, correlation, variance, range, columns), out.data());
}

void smoothed(In times, In noise, int correlation, double variance, double range,
              ArrayOf<const double, 2> columns, ArrayOf<double, 2> means, ArrayOf<double, 1> variances) {
    const nb::gil_scoped_release released;
    smooth(markov_input(times, noise, correlation, variance, range, columns), means.data(), variances.data());
}

void lines(In values, double penalty, std::size_t shortest, ArrayOf<std::int64_t, 1> last) {
    const nb::gil_scoped_release released;
    best_lines(values.data(), values.shape(0), penalty, shortest, last.data());
}

}  // namespace

void bind_drift(nb::module_& module) {
    using namespace nb::literals;
    module.attr("MAX_NEIGHBOURS") = MAX_NEIGHBOURS;
    module.attr("MAX_DESIGN") = MAX_DESIGN;
    module.attr("MAX_CANDIDATES") = MAX_CANDIDATES;
    module.def("nearest_predecessors", &neighbours, "times"_a, "order"_a, "out"_a.noconvert());
    module.def("vecchia", &sums, "times"_a, "values"_a, "known"_a, "neighbours"_a, "correlation"_a,
               "variance"_a, "range"_a, "nugget"_a, "isa"_a, "threads"_a, "out"_a.noconvert());
    module.def("whiten", &whitened, "times"_a, "noise"_a, "correlation"_a, "variance"_a, "range"_a,
               "columns"_a, "out"_a.noconvert());
    module.def("smooth", &smoothed, "times"_a, "noise"_a, "correlation"_a, "variance"_a, "range"_a,
               "columns"_a, "means"_a.noconvert(), "variances"_a.noconvert());
    module.def("best_lines", &lines, "values"_a, "penalty"_a, "shortest"_a, "last"_a.noconvert());
    module.def("predict_locally", &local, "times"_a, "values"_a, "noise"_a, "correlation"_a, "centres"_a,
               "sds"_a, "at"_a, "threads"_a, "designs"_a.noconvert(), "weights"_a.noconvert(),
               "parameters"_a.noconvert(), "variances"_a.noconvert());
}

}  // namespace dpmix
