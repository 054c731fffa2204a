"""Designs: a table of samples, a formula and named contrasts, as columns of numbers.

A design that cannot answer the question is an error that names the column and the reason. formulae reads the
formulas, which have the syntax of R and lme4: ``~ group + age + (1 | donor)``.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dpmix.association.regression import Predictors
from dpmix.errors import ConfigError
from dpmix.inputs.samples import FILE, NAME, read_table
from dpmix.model.mixture import Array
from dpmix.system.extras import require_extra
from dpmix.system.paths import encoding_of

NEED = f"need a CSV file with a row per sample and a column {NAME}"
LEAST_FREE = 2  # samples more than coefficients
NOT_KNOWN = ("", "na", "n/a", "#n/a", "nan")
"""Cells that are missing, in small letters, as R and spreadsheets write them."""
MISSING = (*NOT_KNOWN, "inf", "-inf")  # of a column of numbers: not numbers
MOST_LEVELS = 6  # of a column of integers that is a factor unless asked
RANGE = (0.1, 0.9)  # quantiles of a column of numbers: its effect is for the difference between them
NUMERIC = re.compile(r"\bnumeric\(\s*([A-Za-z_]\w*)\s*\)")
CALL = re.compile(r"([A-Za-z_][\w.]*)\(([^()]*)\)")
WITH_COMMA = re.compile(r"[-+]?[0-9]+(,[0-9]+)?")

Table = Mapping[str, Sequence[Any]]


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


def read_design(path: Path, samples: Sequence[str]) -> dict[str, list[str]]:
    """Return the columns of a table of samples, in the order of the samples.

    Parameters
    ----------
    path : Path
        A CSV file with a column `sample` (or `file`, which has the names of the samples after folders are
        removed).
    samples : S str
        Names of the samples of the gating.

    Raises
    ------
    ConfigError
        The table cannot be read, or its samples differ from the samples of the gating.
    """
    with_names = _has_column(path, NAME)
    head, rows = read_table("--design", path, NAME if with_names else FILE, NEED)
    key = head.index(NAME if with_names else FILE)
    names = [row[key] if with_names else Path(row[key]).name for row in rows]
    if with_names and FILE in head:  # samples of new files have the names of the files
        files = [Path(row[head.index(FILE)]).name for row in rows]
        names = files if not {*samples} & {*names} and {*samples} <= {*files} else names
    problems = [
        f"the sample {name} is named twice, need one row for each"
        for name, n in Counter(names).items()
        if n > 1
    ]
    missing = [name for name in samples if name not in names]
    odd = [name for name in names if name not in samples]
    problems += [f"the sample {name} of the gating has no row{_nearest(name, odd)}" for name in missing]
    if not missing:
        problems += [f"the gating has no sample {name}; leave out this row" for name in odd]
    if problems:
        raise ConfigError([f"--design: {path}: {problem}" for problem in problems])
    at = [names.index(name) for name in samples]
    return {name: [rows[k][c] for k in at] for c, name in enumerate(head)}


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
    read = {name: _numbers(cells) for name, cells in columns.items() if name not in (NAME, FILE)}
    asked = "+".join([formula, variability or ""])
    slopes = _slopes(asked, contrasts)
    formula, variability = NUMERIC.sub(r"\1", formula), NUMERIC.sub(r"\1", variability or "") or None
    contrasts = [NUMERIC.sub(r"\1", name) for name in contrasts]
    table = {
        name: [_text(value) for value in cells] if _is_factor(name, cells, contrasts, slopes) else cells
        for name, cells in read.items()
    }
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
        tuple(_reading(name, read[name], table[name]) for name in used),
    )


def _slopes(formula: str, contrasts: Sequence[str]) -> set[str]:
    """Return the columns that a formula or a contrast uses as numbers."""
    # C() is formulae's word for a factor; a column inside any other function is used as a number.
    in_calls = [text for function, text in CALL.findall(formula) if function != "C"]
    words = {word for text in in_calls for word in re.findall(r"[A-Za-z_]\w*", text)}
    return words | {name.partition(": ")[0].strip() for name in contrasts if " - " not in name}


def _is_factor(name: str, cells: Sequence[Any], contrasts: Sequence[str], slopes: set[str]) -> bool:
    """Return True for a column of numbers that stand for groups: a contrast names two, or few integers."""
    known = {cell for cell in cells if cell != ""}
    if not known or any(isinstance(cell, str) for cell in known) or name in slopes:
        return False
    texts = {_text(value) for value in known}
    for contrast in contrasts:
        column, colon, rest = contrast.partition(": ")
        sides = {side.strip() for side in (rest if colon else contrast).split(" - ")}
        if len(sides) == 2 and sides <= texts and column in ((name,) if colon else (contrast,)):
            return True
    return len(known) <= MOST_LEVELS and all(value == round(value) for value in known)


def _reading(name: str, cells: Sequence[Any], used: Sequence[Any]) -> str:
    """Return how a column was read, for the reader."""
    if not isinstance(used[0], str):
        return f"{name}: numbers, {min(used):g} to {max(used):g}"
    values = list(dict.fromkeys(used))
    listed = ", ".join(values[:MOST_LEVELS]) + (", ..." if len(values) > MOST_LEVELS else "")
    note = "" if isinstance(cells[0], str) else f"; numeric({name}) would be a slope"
    return f"{name}: groups {listed}{note}"


def _has_column(path: Path, column: str) -> bool:
    """Return True if the first line of a table has a column; `read_table` reports what is wrong with it."""
    try:
        first = path.open(encoding=encoding_of(path)).readline()
    except (OSError, ValueError):
        return True
    return column in [
        cell.strip().strip('"') for cell in first.replace("\t", ",").replace(";", ",").split(",")
    ]


def _nearest(name: str, names: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, names, 1, 0.5)
    return f"; a row is named {close[0]}" if close else ""


def _numbers(cells: Sequence[str]) -> list[Any]:
    """Return the cells as numbers if all that are there are numbers, else texts; "" for missing ones."""
    known = ["" if cell.casefold() in MISSING else cell for cell in cells]
    try:
        return [float(cell) if cell else "" for cell in known]
    except ValueError:
        return ["" if cell.casefold() in NOT_KNOWN else cell for cell in cells]


def _decimal_comma(cells: Sequence[Any]) -> str:
    """Return a cell with a decimal comma if all cells are numbers, some of them with a comma, else ""."""
    texts = [str(cell) for cell in cells]
    if not all(WITH_COMMA.fullmatch(text) for text in texts):
        return ""
    return next((text for text in texts if "," in text), "")


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
            known = _nearest(name, list(table)).replace("a row is named", "did you mean")
            problems.append(
                f"no column {name} in the table of samples (found: {', '.join(table) or 'none'}){known}"
            )
        elif empty := [s for s, cell in zip(samples, table[name], strict=True) if cell == ""]:
            problems.append(
                f"column {name} is empty for {', '.join(empty[:3])} (NA counts as empty); fill or omit it"
            )
        elif comma := _decimal_comma(table[name]):
            problems.append(
                f"column {name} has decimal commas ({comma}); write points ({comma.replace(',', '.')}) in a "
                "copy of the table, and give it by --design"
            )
        elif len({*table[name]}) == 1:
            value = _text(table[name][0])
            problems.append(
                f"column {name} has the value {value} for all samples; leave it out of the formula"
            )
    if problems:
        raise ConfigError([f'{option} "{formula}": {problem}' for problem in problems])
    try:
        return design_matrices(text, pandas.DataFrame({name: table[name] for name in variables}))
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
        name = f"{column}, per {step:g}"
    elif groups is None:
        low, high = np.quantile(values, RANGE, method="nearest").tolist()
        # With few different values both quantiles may be the same one.
        low, high = (low, high) if high > low else (min(values), max(values))
        settings = [high] * len(values), [low] * len(values)
        name = f"{column}: {high:g} against {low:g}"
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
    sides = [side.strip() for side in (rest if colon and asked in used else name).split(" - ")]
    if sides == [name] and name in used and not isinstance(table[name][0], str):
        return name, None, None
    if colon and asked in used and not isinstance(table[asked][0], str) and _is_number(rest):
        return asked, None, float(rest)
    found = []
    if len(sides) == 2 and sides[0] != sides[1]:
        for column in candidates:
            by_text = {_text(value): value for value in table[column]}
            if sides[0] in by_text and sides[1] in by_text:
                found.append((column, (by_text[sides[0]], by_text[sides[1]])))
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


def _is_number(text: str) -> bool:
    try:
        return float(text) > 0.0
    except ValueError:
        return False


def _offered(table: Table, used: Sequence[str]) -> str:
    """Return contrasts that the columns of a formula allow, for an error."""
    offered = []
    for column in used:
        values = list(dict.fromkeys(table[column]))
        if not isinstance(values[0], str):
            offered.append(f'"{column}" (over its usual range), "{column}: 1" (per unit)')
            continue
        offered += [f'"{_text(a)} - {_text(b)}"' for b, a in itertools.combinations(values[:4], 2)]
    return ", ".join(offered[:8])


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _check_groups(contrasts: Sequence[Contrast], table: Table, matrices: Any) -> None:
    """Raise `ConfigError` if a group has one sample, or is confounded with a random effect."""
    effects = matrices.group.terms if matrices.group is not None else {}
    names = {str(term.factor.name) for term in effects.values()} & {*table}
    units = {name: [_text(value) for value in table[name]] for name in sorted(names)}
    problems = []
    for unit, members in units.items():
        if len({*members}) == len(members):
            problems.append(f"--formula: (1 | {unit}): every {unit} has one sample only; leave the term out")
    for contrast in contrasts:
        for group in contrast.groups or ():
            at = [k for k, value in enumerate(table[contrast.column]) if value == group]
            where = f'--contrast "{contrast.name}": {contrast.column} {_text(group)}'
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
