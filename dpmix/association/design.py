"""Designs: a table of samples, a formula and named contrasts, as columns of numbers.

A design that cannot answer the question is an error that names the column and the reason. formulae reads the
formulas, which have the syntax of R and lme4: ``~ group + age + (1 | donor)``.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpmix.association.columns import (
    MOST_LEVELS,
    NUMERIC,
    Table,
    check_numbers,
    decimal_comma,
    is_factor,
    levels_of,
    nearest,
    number_of,
    read_numbers,
    reading_of,
    rounded,
    slopes_of,
    text_of,
    value_named,
)
from dpmix.association.regression import Predictors
from dpmix.errors import ConfigError
from dpmix.inputs.samples import FILE, NAME
from dpmix.model.mixture import Array
from dpmix.system.extras import require_extra

LEAST_FREE = 2  # samples more than coefficients
RANGE = (0.1, 0.9)  # quantiles of a column of numbers: its effect is for the difference between them
FUNCTIONS = {
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
    "exp": np.exp,
}
"""Functions of R in formulas; formulae has others of its own."""


@dataclass(frozen=True)
class Contrast:
    """A named difference between samples.

    Attributes
    ----------
    name : str
        For example "treated - control", or "age: 62 against 25" for a column of numbers.
    first, second : float64 [C]
        Means of the fixed columns if every sample were of the first, and of the second kind.
    variability : float64 [G]
        Difference of the means of the columns of variability.
    column : str
        Column of the table that the contrast compares.
    groups : tuple of (str or float), optional
        Both values of the column; None for a slope.
    """

    name: str
    first: Array
    second: Array
    variability: Array
    column: str
    groups: tuple[Any, Any] | None


@dataclass(frozen=True)
class Design:
    """A design for the samples of a gating.

    Attributes
    ----------
    predictors : Predictors
    contrasts : tuple of Contrast
    formula : str
    table : mapping of str to S values
        Columns of the table of samples; numbers where all cells are numbers.
    columns, terms, scales : tuple of str
        Names of the fixed columns, of the terms (1 | column), and of the columns of variability.
    units : float64 [C]
        What a fixed column was divided by, after its mean was subtracted.
    readings : tuple of str
        How each column of the formula was read.
    """

    predictors: Predictors
    contrasts: tuple[Contrast, ...]
    formula: str
    table: Table
    columns: tuple[str, ...]
    terms: tuple[str, ...]
    scales: tuple[str, ...]
    units: Array
    readings: tuple[str, ...]


def make_design(
    columns: Mapping[str, Sequence[str]],
    samples: Sequence[str],
    formula: str,
    contrasts: Sequence[str],
    variability: str | None = None,
) -> Design:
    """Check a design and return it in numbers.

    Parameters
    ----------
    columns : mapping of str to S str
        Columns of the table of samples.
    samples : S str
    formula : str
        For example ``~ group + age + (1 | donor)``. A column is a factor if it has texts, if a contrast
        compares
        two of its values, or if it has few different values, all integers. ``numeric(column)`` is a slope.
    contrasts : sequence of str
        Each ``first - second``, two values of a column of the formula, ``column: first - second``, a
        column of numbers for the change over its usual range, or ``column: step`` for that with a step of it.
    variability : str, optional
        Formula of the columns on which the standard deviation of the samples depends.

    Raises
    ------
    ConfigError
        A library is missing, or the design cannot answer the question.
    """
    require_extra("formulae", "associate", "dpmix associate")
    read = {name: read_numbers(cells) for name, cells in columns.items() if name not in (NAME, FILE)}
    asked = "+".join([formula, variability or ""])
    contrasts = [NUMERIC.sub(r"\1", name).strip("`") for name in contrasts]
    slopes = slopes_of(asked, contrasts)
    formula, variability = NUMERIC.sub(r"\1", formula), NUMERIC.sub(r"\1", variability or "") or None
    table = {
        name: levels_of(columns[name], cells) if is_factor(name, cells, contrasts, slopes) else cells
        for name, cells in read.items()
    }
    check_numbers(table, samples, [name.strip("`") for name in NUMERIC.findall(asked)], 1)
    matrices = _matrices("--formula", formula, table, samples)
    fixed, fixed_names = _fixed(matrices)
    if matrices.common.as_dataframe().shape[1] == len(fixed_names):
        raise ConfigError(
            [f'--formula "{formula}": found no intercept, need a formula without "0 +" or "- 1"']
        )
    random, terms = _random(matrices, len(samples))
    scales = _matrices("--variability", variability, table, samples) if variability else None
    if scales is not None and scales.group is not None and scales.group.terms:
        raise ConfigError(["--variability: found (1 | ...), need columns without random effects"])
    spread, spread_names = _fixed(scales) if scales is not None else (np.zeros((len(samples), 0)), [])
    used = [name for name in table if name in _variables(matrices)]
    check_numbers(table, samples, used, MOST_LEVELS + 1)
    _check_rank(fixed, fixed_names, len(samples))
    named = [_contrast(name, table, used, matrices, scales) for name in contrasts]
    if scales is not None and not any(contrast.variability.any() for contrast in named):
        raise ConfigError([f'--variability "{variability}": no contrast is on its columns; leave it out'])
    _check_groups(named, table, matrices)
    # Centred, so that the intercept is the mean of a typical sample and hardly depends on the coefficients.
    centre, unit = fixed.mean(axis=0), _units(fixed)
    made = tuple(
        replace(c, first=(c.first - centre) / unit, second=(c.second - centre) / unit) for c in named
    )
    predictors = Predictors((fixed - centre) / unit, random, terms, spread - spread.mean(axis=0))
    term_names = tuple(matrices.group.terms) if matrices.group is not None else ()
    return Design(
        predictors,
        made,
        formula,
        table,
        tuple(fixed_names),
        term_names,
        tuple(spread_names),
        unit,
        tuple(reading_of(name, read[name], table[name]) for name in used),
    )


def _matrices(option: str, formula: str, table: Table, samples: Sequence[str]) -> Any:
    """Return the matrices of a formula, once its columns are there, filled and not constant."""
    import pandas
    from formulae import design_matrices, model_description

    text = formula.strip().removeprefix("~").strip()
    if "~" in text or not text:
        raise ConfigError([f'{option} "{formula}": need columns after "~", for example "~ group"'])
    try:
        variables = sorted(model_description(text).var_names)
    except Exception as error:  # errors of formulae have no common class
        raise ConfigError(
            [f'{option} "{formula}": {error}; write for example "~ group + (1 | donor)"']
        ) from None
    problems = []
    for name in variables:
        if name not in table:
            known = nearest(name, list(table)).replace("a row is named", "did you mean")
            problems.append(
                f"no column {name} in the table of samples (found: {', '.join(table) or 'none'}){known}"
            )
        elif empty := [s for s, cell in zip(samples, table[name], strict=True) if cell == ""]:
            problems.append(
                f"column {name} is empty for {', '.join(empty[:3])} (NA counts as empty); fill or omit it"
            )
        elif comma := decimal_comma(table[name]):
            problems.append(
                f"column {name} has decimal commas ({comma}); write points ({comma.replace(',', '.')}) in a "
                "copy of the table, and give it by --design"
            )
        elif len({*table[name]}) == 1:
            value = text_of(table[name][0])
            problems.append(
                f"column {name} has the value {value} for all samples; leave it out of the formula"
            )
    if problems:
        raise ConfigError([f'{option} "{formula}": {problem}' for problem in problems])
    try:
        frame = pandas.DataFrame({name: table[name] for name in variables})
        return design_matrices(text, frame, extra_namespace=FUNCTIONS)
    except Exception as error:
        raise ConfigError([f'{option} "{formula}": cannot be evaluated ({error})']) from None


def _variables(matrices: Any) -> set[str]:
    """Return the names of the columns in the fixed part of a formula."""
    return {name for term in matrices.common.terms.values() for name in getattr(term, "var_names", ())}


def _fixed(matrices: Any) -> tuple[Array, list[str]]:
    """Return the fixed columns without the intercept, float64 [S, C], and their names."""
    frame = matrices.common.as_dataframe()
    names = [name for name in frame.columns if name != "Intercept"]
    return frame[names].to_numpy(np.float64), names


def _units(fixed: Array) -> Array:
    """Return the unit of each column, float64 [C]: 1 for indicators, else two standard deviations.

    One prior then fits both (Gelman 2008, Stat. Med. 27:2865).
    """
    indicators = np.isin(fixed, (0.0, 1.0)).all(axis=0)
    units: Array = np.where(indicators, 1.0, 2.0 * fixed.std(axis=0))
    return units


def _random(matrices: Any, n_samples: int) -> tuple[Array, Any]:
    """Return the columns of all random effects, float64 [S, R], and the term of each, int64 [R]."""
    effects = matrices.group.terms if matrices.group is not None else {}
    for name, term in effects.items():
        if term.kind != "intercept":
            raise ConfigError([f"--formula: found the random effect ({name}), need (1 | column)"])
    data = [term.data.toarray().astype(np.float64) for term in effects.values()]
    terms = np.repeat(np.arange(len(data)), [block.shape[1] for block in data]).astype(np.int64)
    return np.concatenate([np.zeros((n_samples, 0)), *data], axis=1), terms


def _check_rank(fixed: Array, names: Sequence[str], n_samples: int) -> None:
    """Raise `ConfigError` if columns are confounded, or too many for the samples."""
    if absent := [name for name, column in zip(names, fixed.T, strict=True) if not column.any()]:
        raise ConfigError(
            [
                f"--formula: no sample has {absent[0]}; leave the interaction out (+ for *), or measure such "
                "samples"
            ]
        )
    whole = np.column_stack([np.ones(n_samples), fixed])
    # The directions without length name the confounded columns, where a rank alone would only count them.
    _, sizes, directions = np.linalg.svd(whole / np.linalg.norm(whole, axis=0))
    rank = int((sizes > 1e-8 * sizes[0]).sum())
    if rank < whole.shape[1]:
        loose = np.abs(directions[rank:]).max(axis=0)[1:] > 1e-6
        mixed = [name for name, part in zip(names, loose, strict=True) if part]
        raise ConfigError(
            [
                f"--formula: {' and '.join(mixed)} are confounded: the samples cannot tell them apart; "
                "leave one out, or measure samples that differ in one of them only"
            ]
        )
    if n_samples < rank + LEAST_FREE:
        listed = ", ".join(["intercept", *names])
        raise ConfigError(
            [
                f"--formula: {rank} coefficients ({listed}) for {n_samples} samples; need "
                f"at least {rank + LEAST_FREE} samples, or fewer columns"
            ]
        )


def _contrast(name: str, table: Table, used: Sequence[str], matrices: Any, scales: Any) -> Contrast:
    """Return a contrast from its name; means over the samples of the table stand for all other columns."""
    column, groups, step = _parse(name, table, used)
    values = list(table[column])
    if step is not None:
        settings = [value + step for value in values], values
        name = f"{column}, per {rounded(step)}"
    elif groups is None:
        low, high = np.quantile(values, RANGE, method="nearest").tolist()
        # With few different values both quantiles may be the same one.
        low, high = (low, high) if high > low else (min(values), max(values))
        settings = [high] * len(values), [low] * len(values)
        name = f"{column}: {rounded(high)} against {rounded(low)}"
    else:
        settings = [groups[0]] * len(values), [groups[1]] * len(values)
    first, second = (_means(matrices, table, column, cells) for cells in settings)
    spread = np.zeros(0)
    if scales is not None:
        one, other = (_means(scales, table, column, cells) for cells in settings)
        spread = one - other
    return Contrast(name, first, second, spread, column, groups)


def _means(matrices: Any, table: Table, column: str, cells: Sequence[Any]) -> Array:
    """Return the means of the fixed columns if a column of the table had other cells."""
    import pandas

    frame = pandas.DataFrame(dict(table) | {column: list(cells)})
    rows = np.asarray(matrices.common.evaluate_new_data(frame).design_matrix, np.float64)
    names = list(matrices.common.as_dataframe().columns)
    means: Array = rows[:, [k for k, name in enumerate(names) if name != "Intercept"]].mean(axis=0)
    return means


def _parse(name: str, table: Table, used: Sequence[str]) -> tuple[str, tuple[Any, Any] | None, float | None]:
    """Return the column that a contrast compares, both values (None for a slope), and the step of a slope."""
    asked, colon, rest = name.partition(": ")
    candidates = [asked] if colon and asked in used else list(used)
    parts = (rest if colon and asked in used else name).split(" - ")
    if parts == [name] and name in used and not isinstance(table[name][0], str):
        return name, None, None
    if colon and asked in used and not isinstance(table[asked][0], str) and (number_of(rest) or 0.0) > 0.0:
        return asked, None, float(rest)
    found = []
    for column, cut in itertools.product(candidates, range(1, len(parts))):  # a value may contain " - "
        first, second = (value_named(" - ".join(own), table[column]) for own in (parts[:cut], parts[cut:]))
        if first is not None and second is not None and first != second:
            found.append((column, (first, second)))
    if len(found) == 1:
        return *found[0], None
    if found:
        columns = ", ".join(column for column, _ in found)
        raise ConfigError(
            [f'--contrast "{name}": {columns} have these values; write "{found[0][0]}: {name}"']
        )
    offered = _offered(table, used)
    there = f"there are {offered}" if offered else "it has only random effects, which have no contrasts"
    raise ConfigError([f'--contrast "{name}": no such contrast in the formula; {there}'])


def _offered(table: Table, used: Sequence[str]) -> str:
    """Return contrasts that the columns of a formula allow, for an error."""
    offered = []
    for column in used:
        values = list(dict.fromkeys(table[column]))
        if not isinstance(values[0], str):
            offered.append(f'"{column}" (over its usual range), "{column}: 1" (per unit)')
            continue
        offered += [f'"{text_of(a)} - {text_of(b)}"' for b, a in itertools.combinations(values[:4], 2)]
    return ", ".join(offered[:8])


def _check_groups(contrasts: Sequence[Contrast], table: Table, matrices: Any) -> None:
    """Raise `ConfigError` if a group has one sample, or is confounded with a random effect."""
    effects = matrices.group.terms if matrices.group is not None else {}
    names = {str(term.factor.name) for term in effects.values()} & {*table}
    units = {name: [text_of(value) for value in table[name]] for name in sorted(names)}
    problems = []
    for unit, members in units.items():
        if len({*members}) == len(members):
            problems.append(f"--formula: (1 | {unit}): every {unit} has one sample only; leave the term out")
    for contrast in contrasts:
        for group in contrast.groups or ():
            at = [k for k, value in enumerate(table[contrast.column]) if value == group]
            where = f'--contrast "{contrast.name}": {contrast.column} {text_of(group)}'
            if len(at) == 1:
                problems.append(f"{where} has one sample; differences between samples need at least two")
                continue
            for unit, members in units.items():
                if len({members[k] for k in at}) == 1 and members.count(members[at[0]]) == len(at):
                    problems.append(
                        f"{where} is confounded with {unit}: all its samples are of {unit} {members[at[0]]}, "
                        f"and no others are; measure another {unit}"
                    )
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
