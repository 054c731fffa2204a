"""Type stub of the native module (kernels/cpu/module*.cpp): CPU engine, exact sums, parameter draws.

The callers, in `dpmix.engines`, `dpmix.model`, `dpmix.drift` and `dpmix.explore`, check shapes and values.
N events, D channels, K components, P populations or pairs. All arrays are C-contiguous; the methods release
the interpreter's lock.
"""

import numpy as np
import numpy.typing as npt

CHUNK: int
MAX_CHANNELS: int
MAX_COMPONENTS: int
MAX_NEIGHBOURS: int
MAX_DESIGN: int
MAX_CANDIDATES: int

def isas() -> list[str]:
    """Return the instruction sets that this processor has, best first."""

def add(
    state: npt.NDArray[np.float64],  # [4, n], changed
    numbers: npt.NDArray[np.float64],  # [n]
) -> None:
    """Add a number to each sum."""

def merge(
    state: npt.NDArray[np.float64],  # [4, n], changed
    other: npt.NDArray[np.float64],  # [4, n]
) -> None:
    """Add other sums to these sums."""

def values(
    state: npt.NDArray[np.float64],  # [4, n]
    out: npt.NDArray[np.float64],  # [n], written
) -> None:
    """Write the sums, each rounded once."""

def add_memberships(
    memberships: npt.NDArray[np.float32],  # [M, P]
    ratios: npt.NDArray[np.float32],  # [P]
    threads: int,
    uniforms: npt.NDArray[np.float32],  # [M], changed
    total: npt.NDArray[np.float32],  # [P, M], changed
    counts: npt.NDArray[np.int64],  # [P], changed
) -> None:
    """Add the memberships of a draw and the events by drawn population (kernels/cpu/averages.hpp)."""

def posterior(
    counts: npt.NDArray[np.float64],  # [K]
    sums: npt.NDArray[np.float64],  # [K, D]
    scatters: npt.NDArray[np.float64],  # [K, D, D]
    centres: npt.NDArray[np.float64],  # [K, D]
    m: npt.NDArray[np.float64],  # [D]
    gamma: float,
    scale: npt.NDArray[np.float64],  # [D, D]: nu * Phi
    means: npt.NDArray[np.float64],  # [K, D], written
    precisions: npt.NDArray[np.float64],  # [K], written
    scales: npt.NDArray[np.float64],  # [K, D, D], written
) -> None:
    """Write the normal inverse Wishart conditionals; see `dpmix.model.normal_wishart.posterior`."""

def draw_parameters(
    means: npt.NDArray[np.float64],  # [K, D]
    precisions: npt.NDArray[np.float64],  # [K]
    scales: npt.NDArray[np.float64],  # [K, D, D]
    normals: npt.NDArray[np.float64],  # [K, D, D]
    gammas: npt.NDArray[np.float64],  # [K, D]
    noise: npt.NDArray[np.float64],  # [K, D]
    order: npt.NDArray[np.int64],  # [K]: the component at each place of the draw
    threads: int,
    new_means: npt.NDArray[np.float64],  # [K, D], written
    covariances: npt.NDArray[np.float64],  # [K, D, D], written
    whiteners: npt.NDArray[np.float64],  # [K, D, D], written
    isa: str = "",  # the best one
) -> int:
    """Write a draw of all parameters; see tests/model/native_reference.py.

    Return the number of a component whose scale matrix is not positive definite, or -1.
    """

def whiteners(
    matrices: npt.NDArray[np.float64],  # [K, D, D]: the lower triangles are read
    out: npt.NDArray[np.float64],  # [K, D, D], written
    isa: str = "",  # the best one
) -> int:
    """Write the inverses of the lower Cholesky factors; see tests/model/native_reference.py.

    Return the number of a matrix that is not positive definite, or -1.
    """

def sum_components(
    held: npt.NDArray[np.int64],  # [J]: numbers of components
    means: npt.NDArray[np.float64],  # [K, D]
    whiteners: npt.NDArray[np.float64],  # [K, D, D]
    m: npt.NDArray[np.float64],  # [D]
    precision: npt.NDArray[np.float64],  # [D, D], written
    shift: npt.NDArray[np.float64],  # [D], written
    isa: str = "",  # the best one
) -> float:
    """Write sums over components and return their spread; see tests/model/native_reference.py."""

def log_det(matrix: npt.NDArray[np.float64]) -> float:  # [D, D]
    """Return the log determinant, or NaN; see tests/model/native_reference.py."""

def is_above(one: npt.NDArray[np.float64], other: npt.NDArray[np.float64]) -> bool:  # [D, D]
    """Return True if the difference of two symmetric matrices is positive definite to float64."""

def draw_normal(
    precision: npt.NDArray[np.float64],  # [D, D]
    linear: npt.NDArray[np.float64],  # [D]
    noise: npt.NDArray[np.float64],  # [D]
    out: npt.NDArray[np.float64],  # [D], written
) -> bool:
    """Write a normal draw; see tests/model/native_reference.py.

    Return False if the precision is not positive definite.
    """

def draw_wishart(
    inverse: npt.NDArray[np.float64],  # [D, D]
    normals: npt.NDArray[np.float64],  # [D, D]
    gammas: npt.NDArray[np.float64],  # [D]
    out: npt.NDArray[np.float64],  # [D, D], written
) -> bool:
    """Write a Wishart draw; see tests/model/native_reference.py.

    Return False if `inverse` is not positive definite.
    """

def swap_any(
    counts: npt.NDArray[np.float64],  # [K], changed
    order: npt.NDArray[np.int64],  # [K], changed
    log_weights: npt.NDArray[np.float64],  # [K]
    firsts: npt.NDArray[np.int64],  # [K]
    others: npt.NDArray[np.int64],  # [K]
    levels: npt.NDArray[np.float64],  # [K]
) -> tuple[int, int]:
    """Make label swaps and return the numbers proposed and accepted; see tests/model/native_reference.py."""

def swap_with_sticks(
    counts: npt.NDArray[np.float64],  # [K], changed
    order: npt.NDArray[np.int64],  # [K], changed
    log1m_sticks: npt.NDArray[np.float64],  # [K - 1], changed
    levels: npt.NDArray[np.float64],  # [K - 2]
) -> tuple[int, int]:
    """Make label swaps; see tests/model/native_reference.py."""

def swap_collapsed(
    counts: npt.NDArray[np.float64],  # [K], changed
    order: npt.NDArray[np.int64],  # [K], changed
    alpha: float,
    after: float,
    uniforms: npt.NDArray[np.float64],  # [K - 1]
) -> tuple[int, int]:
    """Make label swaps except the last; see tests/model/native_reference.py."""

def open_tables(
    held: npt.NDArray[np.int64],  # [n]: events of each cell
    components: npt.NDArray[np.int64],  # [n], below K
    first: int,
    shapes: npt.NDArray[np.float64],  # [K]
    uniforms: npt.NDArray[np.float64],  # [M]
    by_component: npt.NDArray[np.float64],  # [K], changed
) -> None:
    """Add the tables that M events open, from event `first` of the first cell on (`draw_tables`)."""

class Generator:
    """The generator numpy.random.Philox with key and counter (0, counter1, counter2, 0)."""

    def __init__(self, key0: int, key1: int, counter1: int, counter2: int) -> None: ...
    def uniforms(
        self,
        out: npt.NDArray[np.float64],  # [n], written
    ) -> None:
        """Write uniform numbers, the same as `numpy.random.Generator.random`."""

    def normals(
        self,
        out: npt.NDArray[np.float64],  # [n], written
    ) -> None:
        """Write standard normal numbers, the same as `numpy.random.Generator.standard_normal`."""

    def exponentials(
        self,
        out: npt.NDArray[np.float64],  # [n], written
    ) -> None:
        """Write standard exponential numbers, the same as `numpy.random.Generator.standard_exponential`."""

    def integers(
        self,
        high: int,  # from 1 to 2**32 - 1
        out: npt.NDArray[np.int64],  # [n], written
    ) -> None:
        """Write integers below `high`, the same as `numpy.random.Generator.integers`."""

    def log_betas(
        self,
        first: npt.NDArray[np.float64],  # [n]
        second: npt.NDArray[np.float64],  # [n]
        log_sticks: npt.NDArray[np.float64],  # [n], written
        log1m_sticks: npt.NDArray[np.float64],  # [n], written
    ) -> None:
        """Write logs of beta numbers v and of 1 - v; see tests/model/native_reference.py."""

    def gammas(
        self,
        shapes: npt.NDArray[np.float64],  # [n], all at least 1
        out: npt.NDArray[np.float64],  # [n], written
    ) -> None:
        """Write gamma numbers, the same as `numpy.random.Generator.standard_gamma`."""

    @property
    def capsule(self) -> object:
        """The interface that numpy.random.Generator uses; valid as long as this object."""

class NormalsAhead:
    """Draws normal numbers of a generator in another thread, started at once."""

    def __init__(
        self,
        generator: Generator,  # used by nothing else until `wait` has returned
        out: npt.NDArray[np.float64],  # [n], written
    ) -> None: ...
    def wait(self) -> None:
        """Return when all numbers are written."""

class Whiteners:
    """The whiteners of K components, which mixtures may share: engines then pack them once.

    It holds the array by reference; the array must not change.
    """

    def __init__(
        self,
        array: npt.NDArray[np.float64],  # [K, D, D] lower triangular
    ) -> None: ...

class Workspaces:
    """Working memory of passes, as much as passes run at a time; engines may share it."""

    def __init__(self) -> None: ...

class Engine:
    """The CPU engine. It holds the events by reference and does not change them.

    A mixture is log_constants, means and whiteners. A pass adds its sums to `state`, a state of
    `dpmix.engines.exact`. An engine with one chunk may also write `rows`: for each component with events its
    sum of x - centre, then its count.
    """

    def __init__(
        self,
        events: npt.NDArray[np.float32],  # [N, D]
        isa: str,  # one of isas()
        threads: int,
        pruning: bool,
        weight_floor: float,  # nats
        chunks_in_flight: int,  # 0: the default
        first_event: int,
        scratch: str,  # folder; empty: memory
        mapped: bool,  # the events are a shared map of a file
        sample_starts: npt.NDArray[np.int64] | None,  # [S + 1] ascending from 0 to N
        weights: npt.NDArray[np.float32] | None,  # [S] of each event of a sample; None: 1
        workspaces: Workspaces,
    ) -> None: ...
    def draw_labels(
        self,
        log_constants: npt.NDArray[np.float64],  # [K]
        means: npt.NDArray[np.float64],  # [K, D]
        whiteners: Whiteners,  # [K]
        now: npt.NDArray[np.uint16],  # [K] present number of each component of the last labels
        seed: int,
        chain: int,
        iteration: int,
        state: npt.NDArray[np.float64],  # [4, K * N_MOMENTS + 1], changed
        rows: npt.NDArray[np.float64] | None = None,  # [K, D + 1], written; of an engine with one chunk
    ) -> None:
        """Draw all labels of a chain, and add their moments and the log likelihood to the sums."""

    def expect_labels(
        self,
        log_constants: npt.NDArray[np.float64],  # [K]
        means: npt.NDArray[np.float64],  # [K, D]
        whiteners: Whiteners,  # [K]
        state: npt.NDArray[np.float64],  # [4, K * N_MOMENTS + 1], changed
        rows: npt.NDArray[np.float64] | None = None,  # [K, D + 1], written; of an engine with one chunk
    ) -> None:
        """Add the moments weighted by responsibilities and the log likelihood to the sums (the E step)."""

    def memberships(
        self,
        log_constants: npt.NDArray[np.float64],  # [K]
        means: npt.NDArray[np.float64],  # [K, D]
        whiteners: Whiteners,  # [K]
        populations: npt.NDArray[np.int32],  # [K] from 0 to P - 1
        start: int,
        memberships: npt.NDArray[np.float32],  # [M, P], written
        log_densities: npt.NDArray[np.float64],  # [M], written
        most_probable: npt.NDArray[np.int32] | None = None,  # [M], written
    ) -> None:
        """Write results of the events start, ..., start + M - 1."""

    def divide(
        self,
        pairs: npt.NDArray[np.int32],  # [components of the labels]
        sides: npt.NDArray[np.int8],  # [components of the labels]
        log_constants: npt.NDArray[np.float64],  # [2 P]
        means: npt.NDArray[np.float64],  # [2 P, D]
        whiteners: Whiteners,  # [2 P]
        seed: int,
        chain: int,
        iteration: int,
        word: int,  # of the random generator, 1 to 3
        state: npt.NDArray[np.float64],  # [4, 2 P * N_MOMENTS + P], changed
        rows: npt.NDArray[np.float64] | None = None,  # [2 P, D + 1], written; of an engine with one chunk
    ) -> bool:
        """Divide events among pairs, and add their moments and log probabilities to the sums.

        Return False, and add nothing, if the chain has no labels of that many components.
        """

    def labels(
        self,
        chain: int,
        out: npt.NDArray[np.int32],  # [N], written
    ) -> bool:
        """Write the labels of a chain; return False if it has none."""

    def log_densities(
        self,
        log_constants: npt.NDArray[np.float64],  # [K]
        means: npt.NDArray[np.float64],  # [K, D]
        whiteners: Whiteners,  # [K]
        events: npt.NDArray[np.float32],  # [M, D], any events
        out: npt.NDArray[np.float32],  # [M, K], written
    ) -> None:
        """Write log pi_j N(x_i | mu_j, Sigma_j) as passes compute it; for tests and figures."""

    @property
    def kept(self) -> float:
        """Share of the whitening's multiplications that the latest pass made; 1 without pruning.

        For tests and benchmarks.
        """

def nearest_predecessors(
    times: npt.NDArray[np.float64],  # [n], ascending
    order: npt.NDArray[np.int64],  # [n], a permutation
    out: npt.NDArray[np.int32],  # [n, m], written
) -> None:
    """Write for each point the m nearest of those before it in the order; they ascend, -1 after the last."""

def vecchia(
    times: npt.NDArray[np.float64],  # [n]
    values: npt.NDArray[np.float64],  # [n]
    known: npt.NDArray[np.float64],  # [n]: variances
    neighbours: npt.NDArray[np.int32],  # [n, m]
    correlation: int,
    variance: float,
    range: float,
    nugget: float,
    isa: str,
    threads: int,
    out: npt.NDArray[np.float64],  # [7, 4], written
) -> None:
    """Write the sums of Vecchia's likelihood; see `dpmix.drift.likelihood`.

    Rows 0 to 3: log determinant, y'y, 1'y and 1'1 of the whitened vectors, each with its derivatives.
    Rows 4 to 6: the information in columns 0 to 2.
    """

def whiten(
    times: npt.NDArray[np.float64],  # [n], ascending
    noise: npt.NDArray[np.float64],  # [n]: variances
    correlation: int,
    variance: float,
    range: float,
    columns: npt.NDArray[np.float64],  # [C, n]
    out: npt.NDArray[np.float64],  # [C, n], written
) -> float:
    """Write whitened columns, and return the log determinant; see `dpmix.drift.markov`."""

def smooth(
    times: npt.NDArray[np.float64],  # [n], ascending
    noise: npt.NDArray[np.float64],  # [n]: variances, infinity for no value
    correlation: int,
    variance: float,
    range: float,
    columns: npt.NDArray[np.float64],  # [C, n]
    means: npt.NDArray[np.float64],  # [C, n], written
    variances: npt.NDArray[np.float64],  # [n], written
) -> None:
    """Write posterior means and variances of a signal; see `dpmix.drift.markov`."""

def best_lines(
    values: npt.NDArray[np.float64],  # [n]
    penalty: float,
    shortest: int,
    last: npt.NDArray[np.int64],  # [n + 1], written
) -> None:
    """Write where the last line of the best partition of the first values begins; see `dpmix.drift.steps`."""

def predict_locally(
    times: npt.NDArray[np.float64],  # [n], ascending
    values: npt.NDArray[np.float64],  # [n], without mean and trend
    noise: npt.NDArray[np.float64],  # [n]: variances, above 0
    correlation: int,
    centres: npt.NDArray[np.float64],  # [2] of the priors of log variance and log range
    sds: npt.NDArray[np.float64],  # [2]
    at: npt.NDArray[np.float64],  # [P]
    threads: int,
    designs: npt.NDArray[np.int32],  # [P, k], written; k at most n and MAX_DESIGN
    weights: npt.NDArray[np.float64],  # [P, k], written
    parameters: npt.NDArray[np.float64],  # [P, 2], written: variance and range
    variances: npt.NDArray[np.float64],  # [P], written
) -> None:
    """Write local designs, their fits and weights; see `dpmix.drift.local`."""

def update_posterior(
    events: npt.NDArray[np.float32],  # [N, D]
    points: npt.NDArray[np.float32],  # [n, D]
    scales: npt.NDArray[np.float32],  # [D]
    laplacian: bool,
    rows: npt.NDArray[np.float32],  # [m, n]: the last rows of the inverse Cholesky factor
    targets: npt.NDArray[np.float32],  # [m]
    isa: str,
    threads: int,
    mean: npt.NDArray[np.float32],  # [N], changed
    variance: npt.NDArray[np.float32],  # [N], changed
) -> None:
    """Add the terms of rows to the posterior mean and variance of events; see `dpmix.explore.posterior`."""
