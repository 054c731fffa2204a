// What the engine hands to the code of an instruction set, and the table of that code.
//
// N events, D channels, K components. Only plain values and pointers cross this border: the engine owns all
// memory, threads and order (engine.hpp), the code behind the table (sweep.cpp) only computes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dpmix {

constexpr int MAX_CHANNELS = 64;
constexpr int MAX_COMPONENTS = 4096;
constexpr int CHUNK = 65536;  // events of the grid; an event's place in its chunk fits 16 bits
constexpr int TILE = 16;      // events evaluated together, whatever the instruction set

// Where the best float32 log density of an event is below this, the event is done again in float64.
constexpr float FAR = -4.0e4f;

// ---- Stages of pruning ---------------------------------------------------------------------------------

// The whitening of a component is cut into stages of rows [bounds[g], bounds[g + 1]); after each, the
// components that can have no weight are dropped.
struct Stages {
    int count;
    int bounds[5];
};

// Bounds that grow geometrically from 4 to D: bounds[g + 1] = ceil(4 (D / 4)^(g / (count - 1))), found the
// best of a dozen at D = 8 (4, 6, 8), 14 (4, 7, 10, 14) and 30 (4, 8, 16, 30).
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

// Scatter, sum and count of one component are one lower triangular matrix: the sum of r z z' over its events,
// z = (x - centre, 1) with D + 1 entries, r the responsibility (1 for a drawn label). Row D holds the sum
// and, on its diagonal, the count. Rows are padded to multiples of 16 so that whole vectors are added; what is
// handed out has none of the padding.
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

// A mixture, packed: log pi_j N(x) = constants[j] - |y|^2 with y = whitener_j (x - mu_j), the whitener scaled
// by sqrt(1/2).
struct Mixture {
    int n_channels, n_components;
    float weight_floor;
    const float* constants;       // [K]
    const float* whole;           // [K][stage_size(0, D)]
    const float* staged;          // per stage [K][stage_size]; null where pruning is off
    const float* centres;         // [K][padded_width]: mu_j, -1, 0...: x - centre is then z of the moments
    const double* log_constants;  // [K], the float64 values for far events, unscaled
    const double* means;          // [K][D]
    const double* whiteners;      // [K][D][D]
};

// A population for each component.
struct Populations {
    int count;      // P
    const int* of;  // [K], 0 to P - 1
};

// Which labelled events are dealt out anew, and how.
struct Deal {
    int n_components;          // K of the labels
    const int* pairs;          // [K] pair of a component's events, -1 where they are not dealt out
    const std::int8_t* sides;  // [K] side of its pair, 0 or 1, that all of them get; -1 where it is drawn
    int word;                  // of the generator, 1 to 3
};

// Scratch of one thread.
struct Scratch {
    float* logs;      // [K][TILE] partial sums by component; log densities or weights of the candidates
    int* candidates;  // [K]
    double* weights;  // [K] of a far event
    float* rows;      // [2][64][padded_width] centred events and weighted centred events
    float* sums;      // [P][TILE] weights of the populations (memberships only)

    // Responsibilities of a block of events: entries (event, r), in segments of one component (expect only).
    int capacity;            // of entries, and of segments
    std::uint16_t* entries;  // [capacity] places in the chunk
    float* shares;           // [capacity]
    int *starts, *nexts;     // [capacity + 1] and [capacity] of segments: first entry, next segment
    int *heads, *tails;      // [K] first and last segment of a component in this block; -1 for none
};

// Some events of one chunk, in the order in which they are to be taken.
struct Piece {
    const float* events;         // [chunk][D]
    const std::uint16_t* order;  // [count] places in the chunk
    int count;
    bool pruned;
    std::uint64_t first_event;  // number of the chunk's first event
    std::uint16_t* labels;      // [chunk], by place: the last labels, replaced by the new ones
    const std::uint16_t* now;   // the number that the component of each last label has now
};

// The code of one instruction set. `work` returned: multiplications made in whitening, per event of a tile.
struct Sweep {
    const char* name;

    // Draw the labels of a piece; log_likelihoods [chunk] by place.
    double (*draw)(const Mixture&, const Piece&, const Key&, double* log_likelihoods, Scratch&);

    // Responsibilities of a piece: moments [K][moment_size] of the components that it touches, zeroed first
    // where touched[j] is 0; labels become the most probable components.
    double (*expect)(const Mixture&, const Piece&, double* moments, std::uint8_t* touched,
                     double* log_likelihood, Scratch&);

    // Memberships [piece][P] and log densities [piece] of a piece that is not pruned, by place.
    void (*memberships)(const Mixture&, const Piece&, const Populations&, float* memberships,
                        double* log_densities, Scratch&);

    // Sides [piece] of a piece that is not pruned, in its order, between the two components of a mixture: `given`,
    // or drawn where that is -1. Returns the log probability of these sides.
    double (*divide)(const Mixture& two, const Piece&, const Key&, int word, int given, std::uint8_t* sides,
                     Scratch&);

    // Moments of `count` events of one component: written, not added.
    void (*moments)(const Mixture&, int component, const float* events, const std::uint16_t* order, int count,
                    double* moments, Scratch&);

    // Log densities [count][K] of consecutive events, as the sweep sees them.
    void (*log_densities)(const Mixture&, const float* events, int count, float* out, Scratch&);
};

// A far event in float64 (far.cpp): weights [K] relative to the best component, zero below the floor.
struct FarEvent {
    double total;  // of the weights
    double log_likelihood;
};
FarEvent far_weights(const Mixture& mixture, const float* event, double* weights);

}  // namespace dpmix
