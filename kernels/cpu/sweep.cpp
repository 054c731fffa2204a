// The code of one instruction set, compiled once per set with that set's flags (CMakeLists.txt).
//
// DPMIX_SET is the set's short name. Only the table may have external linkage, and no template of the
// standard library is used: the linker keeps one copy of such a function, possibly from a set which this
// processor lacks.

#include "clearance_group.hpp"
#include "conjugate_group.hpp"
#include "divide.hpp"
#include "draw.hpp"
#include "exact_add.hpp"
#include "expect.hpp"
#include "gaussian_process.hpp"
#include "memberships.hpp"
#include "vecchia_piece.hpp"

#define DPMIX_JOIN_(a, b) a##b
#define DPMIX_JOIN(a, b) DPMIX_JOIN_(a, b)
#define DPMIX_QUOTE_(a) #a
#define DPMIX_QUOTE(a) DPMIX_QUOTE_(a)

namespace dpmix {
namespace {

// Log densities as the sweep computes them: a dense evaluation without a weight floor keeps every component.
void log_densities(const Mixture& mixture, const float* events, int count, float* out, Scratch& scratch) {
    Mixture unlimited = mixture;
    unlimited.weight_floor = __builtin_inff();
    const Evaluate evaluate = evaluate_for(mixture.n_channels);
    Tile tile;
    Candidates c{(Floats*)scratch.logs, scratch.candidates, false, 0, -1, {}, 0.0};
    const std::size_t K = static_cast<std::size_t>(mixture.n_components);
    for (int from = 0; from < count; from += TILE) {
        std::uint16_t order[TILE];
        const int here = count - from < TILE ? count - from : TILE;
        for (int l = 0; l < here; l++) order[l] = static_cast<std::uint16_t>(l);
        const float* first =
            events + static_cast<std::size_t>(from) * static_cast<std::size_t>(mixture.n_channels);
        const Piece piece{first, order, here, false, 0, nullptr, nullptr, nullptr};
        load_tile(piece, mixture.n_channels, 0, tile);
        evaluate(unlimited, piece, tile, c);
        float* rows = out + static_cast<std::size_t>(from) * K;
        for (std::size_t i = 0; i < static_cast<std::size_t>(here) * K; i++) rows[i] = -__builtin_inff();
        for (int q = 0; q < c.count; q++) {
            for (int l = 0; l < here; l++) {
                rows[static_cast<std::size_t>(l) * K + static_cast<std::size_t>(c.list[q])] =
                    c.logs[q * U + l / W][l % W];
            }
        }
    }
}

}  // namespace

extern const Sweep DPMIX_JOIN(sweep_, DPMIX_SET);
const Sweep DPMIX_JOIN(sweep_, DPMIX_SET) = {
    DPMIX_QUOTE(DPMIX_SET), TILE,        draw_piece,         expect_piece,  memberships_piece, divide_piece,
    component_moments,      add_numbers, log_densities,      vecchia_piece, update_posterior,  draw_group,
    whiten_group,           sum_group,   prepare_clearances, clearances};

}  // namespace dpmix
