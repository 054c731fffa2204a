"""AnnData in, AnnData out: a run and its populations in one call."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from dpmix.api.events import RunFolder, events_file, require_unmasked, write_events
from dpmix.api.parameters import EstimatorParameters, make_config
from dpmix.api.sampling import sample, shown
from dpmix.commands.gate import predict
from dpmix.inputs.array_files import variable_names
from dpmix.inputs.type_examples import are_examples
from dpmix.inputs.type_table import TypeTable, match_markers, read_types
from dpmix.model.mixture import Floats, Ints
from dpmix.populations.events.estimates import Estimates
from dpmix.populations.result import Gating
from dpmix.populations.tree.cut import require_cut
from dpmix.populations.types.types import CERTAINTY
from dpmix.report.type_tables import overall_rows
from dpmix.runs.reader import Run
from dpmix.runs.resume import choose

if TYPE_CHECKING:
    from anndata import AnnData

COLUMNS = ("population", "probability", "entropy", "implausible")


def gate_anndata(
    adata: AnnData,
    *,
    layer: str | None = None,
    use_rep: str | None = None,
    sample_key: str | None = None,
    n_populations: int | None = None,
    level: float | None = None,
    n_draws: int = 100,
    key_added: str = "population",
    types: str | os.PathLike[str] | TypeTable | None = None,
    type_certainty: float = CERTAINTY,
    type_key: str = "cell_type",
    folder: str | os.PathLike[str] | None = None,
    resume: bool = False,
    copy: bool = False,
    progress: bool | None = None,
    **parameters: Unpack[EstimatorParameters],
) -> AnnData | None:
    """Find the cell populations in an AnnData object.

    One call makes a run (`dpmix mcmc` or `dpmix bem`) and assigns each event to a population (`dpmix
    predict`). Values that look like raw fluorescence or ion counts are transformed like a file's (method auto
    of data.transform), which the log says; others stay as they are.

    Parameters
    ----------
    adata : AnnData
        A row per event and a column per channel.
    layer : str, optional
        Layer to use instead of X.
    use_rep : str, optional
        Array in ``obsm`` to use instead of X.
    sample_key : str, optional
        Column of ``obs`` with the sample of each event. Populations are shared; each sample has its own
        proportions.
    n_populations, level : int, float, optional
        Number of populations, or the level at which to cut their tree; not both.
    n_draws : int
        Draws of the run that memberships average over.
    key_added : str
        Name of the results.
    types : str, Path or TypeTable, optional
        Table of cell types: a CSV file, the name of a built-in table such as "pbmc-t", or a table that
        `dpmix.inputs.type_table.read_types` has read. Or examples, as in `dpmix gate --types`.
    type_certainty : float
        Least probability of a child in the table, given its parent, for an event to get it.
    type_key : str
        Column of ``obs`` for the cell type.
    folder : str or Path, optional
        Folder where the run file (run.h5), the events and the memberships of all populations
        (gated/events.parquet) are kept. Default: a temporary folder.
    resume : bool
        Continue the run in ``folder``, after Ctrl-C or with more draws.
    copy : bool
        Return a changed copy and leave ``adata`` as it is.
    progress : bool, optional
        Show the log and the progress. Default: on a terminal and in a notebook.
    **parameters
        Parameters of `dpmix.DPMixture`: method, components, chains, draws, channels, transforms,
        random_state, n_jobs, settings and the others that are keys of the config.

    Returns
    -------
    AnnData or None
        The copy, with ``copy=True``. The object gets:

        ``obs["population"]``
            Most probable population, categorical "1", "2", ..., by size.
        ``obs["population_probability"]``
            Its probability.
        ``obs["population_entropy"]``
            Entropy of the memberships, in nats: 0 where the population is certain.
        ``obs["population_implausible"]``
            True for events that the model finds implausible.
        ``obs["cell_type"]``, ``obs["cell_type_probability"]``
            With ``types``: cell type of each event, categorical with the rows of the table and "unknown", and
            its posterior probability.
        ``uns["dpmix"]``
            config (YAML), seed, versions, method, level, verdict (whether the chains agree), and the table
            of populations: phenotype, events, proportion with its 90% interval, R-hat and effective sample
            size, support, certainty; with
            ``sample_key`` also the table of proportions by sample. With ``types``, the populations have their
            cell type, and ``types`` is the table of types: proportion with its 90% interval, R-hat. With
            another ``key_added`` it is ``uns[key_added]``.

    Raises
    ------
    ValueError
        An event has no sample, or ``obs`` has a column ``type_key`` that is not of an earlier call.
    KeyError
        There is no such layer, array or column.
    ConfigError, DataError, EngineError, OutputError
        As in `dpmix.run_mcmc`.
    """
    if unknown := sorted({*parameters} - {*EstimatorParameters.__annotations__}):
        raise TypeError(f"gate_anndata() has no parameter {', '.join(unknown)}")
    require_cut(n_draws, level, n_populations)
    about = "dpmix" if key_added == "population" else key_added
    if types is not None and type_key in adata.obs and "types" not in adata.uns.get(about, {}):
        raise ValueError(f'obs has a column {type_key}, which the types would replace; give type_key="..."')
    values, channels = _events(adata, layer, use_rep)
    known = _known_types(types, channels)
    codes, samples = _samples(adata, sample_key)
    home = RunFolder(folder)
    output = home.path / "gated"
    stems = _stems(samples)
    if not resume:
        names = ["run.h5", *(events_file(channels, stem) for stem in stems)]
        home.require_absent(names, "; use another folder, or resume=True to continue the run in it")
    files = [write_events(home.path, values[codes == s], channels, stem) for s, stem in enumerate(stems)]
    method = parameters.get("method", "mcmc")
    config = make_config(parameters, files, home.path / "run.h5")
    with shown(progress) as display:
        chosen = replace(choose(method, config, resume=resume), base=home.path)
        try:
            run = sample(method, chosen, progress=False, on_sweep=display.on_sweep if display else None)
        except KeyboardInterrupt:
            if folder is None:
                raise KeyboardInterrupt("stopped; with `folder` a stopped run keeps its draws") from None
            raise
        gating = predict(
            run.path,
            [home.path / file for file in files],
            output,
            n_draws=n_draws,
            level=level,
            n_populations=n_populations,
            types=known,
            type_certainty=type_certainty,
            overwrite=resume,
        )
    result = adata.copy() if copy else adata
    _annotate(result, key_added, type_key, codes, output / "events.parquet", gating)
    result.uns[about] = _about(run, gating, samples)
    return result if copy else None


def _known_types(
    types: str | os.PathLike[str] | TypeTable | None, channels: Sequence[str] | None
) -> str | Path | TypeTable | None:
    """Return the types to use; a table is read, and compared with the channels, before the run."""
    if isinstance(types, TypeTable) or types is None:
        table = types
    elif are_examples(given := os.fspath(types)):
        return given
    else:
        table = read_types(given)
    if table is not None and channels is not None:
        match_markers(table, channels)
    return table


def _events(adata: AnnData, layer: str | None, use_rep: str | None) -> tuple[Floats, list[str] | None]:
    """Return the events, float32 [N, D], and the names of their channels."""
    if layer is not None and use_rep is not None:
        raise ValueError("layer and use_rep both name the events; use one of them")
    if use_rep is not None:
        table = adata.obsm[use_rep]
        channels = [*map(str, table.columns)] if hasattr(table, "columns") else None
    else:
        table = adata.X if layer is None else adata.layers[layer]
        channels, _ = variable_names(adata.var)
    if hasattr(table, "to_memory"):  # of an object in backed mode
        table = table.to_memory()
    require_unmasked(table)
    dense = table.toarray() if hasattr(table, "toarray") else np.asarray(table)
    with np.errstate(over="ignore"):  # beyond float32: infinite, which the run refuses by channel
        return np.ascontiguousarray(dense, np.float32), channels


def _samples(adata: AnnData, key: str | None) -> tuple[Ints, list[str]]:
    """Return each event's sample, int64 [N], and the samples' names in the order of their first events."""
    if key is None:
        return np.zeros(adata.n_obs, np.int64), ["events"]
    import pandas

    codes, names = pandas.factorize(adata.obs[key].astype(object))
    if (codes < 0).any():
        raise ValueError(f'obs["{key}"] has no sample for {(codes < 0).sum():,} events; fill it in')
    return codes.astype(np.int64), [str(name) for name in names]


def _stems(samples: Sequence[str]) -> list[str]:
    """Return the names of the samples' files, without suffixes."""
    if len(samples) == 1:
        return ["events"]
    return [f"{k}-{re.sub(r'[^A-Za-z0-9._+-]', '_', name)[:80]}" for k, name in enumerate(samples, 1)]


def _annotate(adata: AnnData, key: str, type_key: str, codes: Ints, path: Path, gating: Gating) -> None:
    """Add the columns of an event file to `obs`. The file has the samples one after another."""
    import pandas
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(path, columns=list(COLUMNS))
    order = np.argsort(codes, kind="stable")
    columns = {}
    for name in COLUMNS:
        ordered = table.column(name).to_numpy()
        columns[name] = np.empty_like(ordered)
        columns[name][order] = ordered
    numbers = gating.all_numbers
    adata.obs[key] = pandas.Categorical.from_codes(
        np.searchsorted(numbers, columns["population"]), [str(number) for number in numbers]
    )
    for name in COLUMNS[1:]:
        adata.obs[f"{key}_{name}"] = columns[name]
    if (types := gating.types) is not None:
        rows, probability = np.empty_like(types.rows), np.empty_like(types.probability)
        rows[order], probability[order] = types.rows, types.probability
        adata.obs[type_key] = pandas.Categorical.from_codes(rows, types.names)
        adata.obs[f"{type_key}_probability"] = probability


def _about(run: Run, gating: Gating, samples: Sequence[str]) -> dict[str, Any]:
    """Describe the run and its populations, for `uns`."""
    about = {
        "config": run.config_text,
        "method": run.kind,
        "seed": np.uint64(run.attributes["seed"]),
        "versions": dict(run.versions),
        "level": float(gating.level),
        "verdict": str(gating.verdict),
        "populations": _table(gating, gating.sizes.sum(axis=0), gating.overall),
    }
    if gating.types is not None:
        about["populations"].insert(1, "type", list(gating.population_types))
        about["types"] = _table_of_types(gating)
    about["populations"]["rhat"] = gating.r_hat
    about["populations"]["ess"] = gating.ess
    about["populations"]["support"] = gating.support
    about["populations"]["certainty"] = gating.certainty
    if len(samples) > 1:
        import pandas

        own = (Estimates(*(each[s] for each in gating.estimates)) for s in range(len(samples)))
        tables = [_table(gating, *each) for each in zip(gating.sizes, own, strict=True)]
        for name, table in zip(samples, tables, strict=True):
            table.insert(0, "sample", name)
        about["proportions"] = pandas.concat(tables).reset_index(drop=True)
        about["proportions"].index = about["proportions"].index.astype(str)
    return about


def _table(gating: Gating, events: Ints, estimates: Estimates) -> Any:
    """Return a data frame with a row per population: its events [P], and estimates of its proportion [P]."""
    import pandas

    return pandas.DataFrame(
        {
            "population": [str(number) for number in gating.all_numbers],
            "phenotype": list(gating.phenotypes),
            "full phenotype": list(gating.full_phenotypes),
            "events": events,
            "proportion": estimates.mean,
            "low": estimates.low,
            "high": estimates.high,
        },
        index=[str(number) for number in gating.all_numbers],
    )


def _table_of_types(gating: Gating) -> Any:
    """Return a data frame with a row per cell type, unknown last; a parent includes its children."""
    import pandas

    assert gating.types is not None
    rows = overall_rows(gating)
    return pandas.DataFrame(
        {
            "type": [row.name for row in rows],
            "parent": [*gating.types.table.parents, ""],
            "proportion": [row.share for row in rows],
            "low": [np.nan if row.low is None else row.low for row in rows],
            "high": [np.nan if row.high is None else row.high for row in rows],
            "rhat": gating.types.r_hat,
        },
        index=[row.name for row in rows],
    )
