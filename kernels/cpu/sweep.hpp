// The input of the code of an instruction set, and the table of that code.
//
// N events, D channels, K components. Only plain values and pointers cross this interface. The engine owns
// all memory, threads and order (engine.hpp); the code behind the table (sweep.cpp) only computes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../limits.cuh"

namespace dpmix {

using ::CHUNK, ::FAR, ::MAX_CHANNELS, ::MAX_COMPONENTS;

constexpr int MAX_TILE = 32;  // events that an instruction set evaluates together, at most (simd.hpp)

// ---- Stages of pruning ---------------------------------------------------------------------------------

// The whitening of a component is divided into stages of rows [bounds[g], bounds[g + 1]). After each stage,
// the components that cannot have weight are dropped.
struct Stages {
    int count;
    int bounds[5];
};

// Bounds grow geometrically from 4 to D: bounds[g + 1] = ceil(4 (D / 4)^(g / (count - 1))). This rule was the
// fastest of a dozen at D = 8 (4, 6, 8), 14 (4, 7, 10, 14) and 30 (4, 8, 16, 30).
constexpr Stages stages_of(int n_channels) {
    const int count = n_channels <= 4 ? 1 : n_channels <= 7 ? 2 : n_channels <= 10 ? 3 : 4;
    Stages stages{count, {}};
    for (int g = 0; g + 1 < count; g++) {
        long power = 1, target = 1;  // bound^(count - 1) >= 4^(count - 1 - g) D^g
        for (int f = 0; f < count - 1; f++) target *= f < g ? n_channels : 4;
        int bound = 3;
        do {
            bound++;
            power = 1;
            for (int f = 0; f < count - 1; f++) power *= bound;
        } while (power < target);
        stages.bounds[g + 1] = bound;
    }
    stages.bounds[count] = n_channels;
    return stages;
}

// Multiplications in rows [first, last) of a triangle.
constexpr int triangle(int first, int last) { return (last * (last + 1) - first * (first + 1)) / 2; }

// Floats of one component in a stage: its means up to `last`, then its rows.
constexpr int stage_size(int first, int last) { return last + triangle(first, last); }

// ---- Moments -------------------------------------------------------------------------------------------

// Scatter, sum and count of one component form one lower triangular matrix: the sum of r z z' over its
// events, where z = (x - centre, 1) has D + 1 entries and r is the responsibility (1 for a drawn label) times
// the weight of the event. Row D holds the sum and, on its diagonal, the count. Rows are padded to multiples
// of 16, so that whole vectors are added; results have no padding.
constexpr int moment_row(int row) {
    return 16 * (8 * (row / 16) * (row / 16 + 1) + (row % 16) * (row / 16 + 1));
}
constexpr int moment_size(int n_channels) { return moment_row(n_channels + 1); }
constexpr int moment_count(int n_channels) { return triangle(0, n_channels + 1); }  // without padding
constexpr int padded_width(int n_channels) { return (n_channels + 16) / 16 * 16; }  // of z

// ---- Values --------------------------------------------------------------------------------------------

struct Key {
    std::uint64_t seed;
    std::uint32_t chain, iteration;
};

// Lower bounds of the distances between events near a component a and the other components (clearance.hpp): an
// event with |y_a| <= r has |y_j| >= distances[j] - widenings[j] r.
struct Clearances {
    int stride;       // floats of a row: K in whole vectors
    const int* rows;  // [K] row of a, -1 for none; null without rows
    const float *distances, *widenings;
};

// A packed mixture: log pi_j N(x) = constants[j] - |y|^2 with y = whitener_j (x - mu_j), where the whitener
// is scaled by sqrt(1/2).
struct Mixture {
    int n_channels, n_components;
    float weight_floor;
    const float* constants;       // [K], then -inf up to a whole vector
    const float* whole;           // [K][stage_size(0, D)]
    const float* staged;          // per stage [K][stage_size]; null without pruning
    const float* centres;         // [K][padded_width]: mu_j, -1, 0...: x - centre is z of the moments
    const double* log_constants;  // [K], the float64 values for far events, unscaled
    const double* means;          // [K][D]
    const double* whiteners;      // [K][D][D]
    Clearances clearances;
};

// New rows of a Gaussian process's inverse Cholesky factor, packed in blocks of GP_BLOCK points or rows. Beyond
// the last point and row, blocks hold the last point again and zeros.
constexpr int GP_BLOCK = 4;
constexpr int GP_SCRATCH = 64;  // floats of scratch for each row: as the widest tile needs

struct GaussianProcess {
    bool laplacian;  // correlation exp(-|d|_1) instead of exp(-|d|^2)
    int n_channels, n_points, n_rows;
    const float* scales;   // [D] that events are multiplied by
    const float* points;   // [block][D][GP_BLOCK], multiplied
    const float* rows;     // [block][points in whole blocks][GP_BLOCK]: the last n_rows of the factor
    const float* targets;  // [n_rows]: the whitened judgements
};

// The population of each component.
struct Populations {
    int count;      // P
    const int* of;  // [K], 0 to P - 1
};

// The assignment of labelled events to pairs.
struct Split {
    int n_components;          // K of the labels
    const int* pairs;          // [K] pair of a component's events, -1 for none
    const std::int8_t* sides;  // [K] side of all these events, 0 or 1; -1 to draw it
    int word;                  // of the generator, 1 to 3
};

// Scratch of one thread.
struct Scratch {
    float* logs;      // [K][tile] partial sums by component; log densities or weights of the candidates
    int* candidates;  // [K]
    double* weights;  // [K] of a far event
    float* rows;      // [2][64][padded_width] centred events and weighted centred events
    float* sums;      // [P][tile] weights of the populations (memberships only)

    // Responsibilities of a block of events: entries (event, r), in segments of one component (expect only).
    int capacity;            // of entries, and of segments
    std::uint16_t* entries;  // [capacity] places in the chunk
    float* shares;           // [capacity]
    int *starts, *nexts;     // [capacity + 1] and [capacity] of segments: first entry, next segment
    int *heads, *tails;      // [K] first and last segment of a component in this block; -1 for none
};

// Some events of one chunk, in the order of processing.
struct Piece {
    const float* events;         // [chunk][D]
    const std::uint16_t* order;  // [count] places in the chunk
    int count;
    bool pruned;
    std::uint64_t first_event;  // number of the chunk's first event
    std::uint16_t* labels;      // [chunk], by place: the last labels, overwritten by the new ones; or null
    const std::uint16_t* now;   // the present number of the component of each last label
    const float* weights;       // [chunk], by place; null if every event has weight 1
};

struct Sums;          // exact.hpp
struct VecchiaInput;  // vecchia.hpp
struct VecchiaSums;
struct DrawInput;  // conjugate.hpp
struct Drawn;
struct ComponentsInput;
struct Lanes;
struct ClearanceInput;  // clearance.hpp
struct LaneSums;

// The code of one instruction set. draw, expect and memberships return the multiplications of whitening, per
// event of a tile.
struct Sweep {
    const char* name;
    int tile;  // events evaluated together

    // Draws the labels of a piece; log_likelihoods [chunk] by place.
    double (*draw)(const Mixture&, const Piece&, const Key&, double* log_likelihoods, Scratch&);

    // Computes responsibilities of a piece and adds the moments [K][moment_size] of its components, which are
    // zeroed first if touched[j] is 0. Labels become the most probable components.
    double (*expect)(const Mixture&, const Piece&, double* moments, std::uint8_t* touched,
                     double* log_likelihood, Scratch&);

    // Computes memberships [chunk][P] and log densities [chunk] of a piece, by place. Labels become the most
    // probable components, if there are labels.
    double (*memberships)(const Mixture&, const Piece&, const Populations&, float* memberships,
                          double* log_densities, Scratch&);

    // Computes the sides [piece] of a piece, in its order, between the two components of a mixture, without
    // pruning: `given`, or drawn if that is -1. Returns the log probability of these sides.
    double (*divide)(const Mixture& two, const Piece&, const Key&, int word, int given, std::uint8_t* sides,
                     Scratch&);

    // Writes the moments of `count` events of one component, given the events and weights (or null) of their
    // chunk; does not add them.
    void (*moments)(const Mixture&, int component, const float* events, const float* weights,
                    const std::uint16_t* order, int count, double* moments, Scratch&);

    // Adds one number to each of the sums first, ..., first + count - 1.
    void (*add)(const Sums&, std::size_t first, const double* numbers, std::size_t count);

    // Computes log densities [count][K] of consecutive events, as the sweep does.
    void (*log_densities)(const Mixture&, const float* events, int count, float* out, Scratch&);

    // Adds the points [first, end) of Vecchia's likelihood to the sums.
    void (*vecchia)(const VecchiaInput&, std::size_t first, std::size_t end, VecchiaSums&);

    // Adds the terms of new judgements to the posterior mean and variance of `count` consecutive events.
    void (*update_posterior)(const GaussianProcess&, const float* events, int count, float* mean,
                             float* variance, float* scratch);

    // Draws the components at the places of a group, from `first` on, given scratch for four triangles. Returns
    // the first one whose scale matrix is not positive definite to float64, or -1.
    int (*draw_group)(const DrawInput&, int first, Lanes* scratch, const Drawn&);

    // Writes the whiteners of `count` matrices, given scratch for three triangles. Returns the first one that is
    // not positive definite to float64, or -1.
    int (*whiten_group)(const double* matrices, int count, int dim, Lanes* scratch, double* whiteners);

    // Adds a group of components to the sums, given scratch for a triangle and two rows.
    void (*sum_group)(const ComponentsInput&, int first, Lanes* scratch, const LaneSums&);

    // Loads a group of components; writes the clearances [K] from one component, which has been loaded.
    void (*prepare_clearances)(const ClearanceInput&, int group, Lanes* scratch);
    void (*clearances)(const ClearanceInput&, int near, Lanes* scratch, float* distances, float* widenings);
};

// A far event in float64 (far.cpp): weights [K] relative to the best component, 0 below the floor.
struct FarEvent {
    double total;  // of the weights
    double log_likelihood;
    int best;  // the first component with the largest weight
};
FarEvent far_weights(const Mixture& mixture, const float* event, double* weights);

}  // namespace dpmix
