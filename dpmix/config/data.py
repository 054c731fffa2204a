"""The config section `data`: data files, channels and preprocessing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer, model_validator

from dpmix.config.section import Section, key

DEFAULT = "default"
LOGICLE = ("logicle",)
METHODS_WITH = {"cofactor": ("arcsinh", "widen"), "t": LOGICLE, "w": LOGICLE, "m": LOGICLE, "a": LOGICLE}

Resolution = Annotated[float, Field(ge=0.0, le=1e9)]


class TransformConfig(Section):
    """Transform of a channel to a scale on which its populations are close to Gaussian."""

    method: Literal["auto", "logicle", "arcsinh", "log", "widen", "linear"] = key(
        "auto",
        "auto: the transform that fits the instrument, recorded in the run file. log: logarithm to base 10. "
        "widen: arcsinh(sinh(x) / cofactor), for values on an arcsinh scale that divides noise about zero.",
        "scatter linear, mass cytometry arcsinh with cofactor 5, fluorescence logicle with t, w and m fitted "
        "to the events, plain tables linear, or widen where their scale divides the noise about zero",
    )
    cofactor: float | None = key(
        None,
        "Cofactor of arcsinh(x / cofactor); null: 5 for mass cytometry, 150 otherwise. For widen, how many "
        "times as wide the linear part of the scale becomes; null: fitted to the events.",
        gt=0,
    )
    t: float | None = key(
        None, "Top of the logicle scale, in data units; null: the range in the file. For logicle only.", gt=0
    )
    w: float | None = key(
        None, "Linear region of the logicle scale, in decades; null: 0.5. For logicle only.", ge=0
    )
    m: float | None = key(None, "Width of the logicle scale, in decades; null: 4.5. For logicle only.", gt=0)
    a: float | None = key(
        None, "Additional negative decades of the logicle scale; null: 0. For logicle only."
    )

    @model_serializer(mode="wrap")
    def _given_keys(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in dump(self).items() if value is not None}

    @model_validator(mode="after")
    def _parameters_belong_to_the_method(self) -> TransformConfig:
        for name, methods in METHODS_WITH.items():
            if getattr(self, name) is not None and self.method not in methods:
                those = " or ".join(methods)
                raise ValueError(f"{name} is for method {those}, but method is {self.method}; remove {name}")
        w, m, a = (
            default if x is None else x for x, default in ((self.w, 0.5), (self.m, 4.5), (self.a, 0.0))
        )
        if w > m / 2:
            raise ValueError(f"w is {w:g} and m is {m:g}; w must be at most m / 2")
        if not -w <= a <= m - 2 * w:
            raise ValueError(f"a is {a:g}; it must be from -w to m - 2 w, here from {-w:g} to {m - 2 * w:g}")
        return self


class GateConfig(Section):
    """A population that a person has gated, from which the run starts."""

    workspace: str = key(
        ...,
        "FlowJo workspace (.wsp) or GatingML 2.0 file. Relative to the folder of this config.",
        min_length=1,
        need="the path of a file, for example file.wsp",
    )
    population: str = key(
        ...,
        "Path of the gate, for example Live/CD3+, or an end of it that no other gate has.",
        min_length=1,
        need="the path of a gate, for example Live/CD3+",
    )


class WeightsConfig(Section):
    """Weights of the samples from a column of a table."""

    file: str | None = key(
        None,
        "CSV file with one row per sample. Its column sample has the names of the samples as dpmix shows "
        "them: without a table of samples, the names of the files. Relative to the folder of this config. "
        "null: the table in data.samples.",
        min_length=1,
        need="the path of a CSV file, for example weights.csv, or null for the table in data.samples",
    )
    column: str = key(
        ...,
        "Column with the weight of each event of a sample, a number above 0. Only their ratios matter.",
        min_length=1,
        need="the name of a column, for example weight",
    )


class DataConfig(Section):
    """Data files, channels and preprocessing."""

    files: list[str] = key(
        [],
        "Data files, globs or folders, pooled into one data set; a folder stands for all data files in it, "
        "without tables of samples and files that dpmix wrote. Relative to the folder of this config. "
        "Required without samples.",
        need="a list of file names or globs, for example [sample.fcs]",
    )
    samples: str | None = key(
        None,
        "Instead of files: a CSV file with one row per sample. Its column file names the data file, relative "
        "to the folder of the table; its column sample, if present, has the name to show; all other columns "
        "are copied to the table of proportions.",
        min_length=1,
        need="the path of a CSV file, for example samples.csv, or null",
    )
    gate: GateConfig | None = key(
        None,
        "Use only the events inside a gate of a FlowJo workspace or a GatingML 2.0 file, with its "
        "compensation (where compensation is auto) and its transforms (where the method is auto). Needs "
        "'dpmix-cytometry[flowjo]'.",
        need="a workspace and a population, for example {workspace: file.wsp, population: Live/CD3+}, or "
        "null",
    )
    channels: list[str] | None = key(
        None,
        "Channels by marker or detector name; globs are allowed. null: all that measure a marker, each "
        "detector once; not scatter, time, viability, DNA, beads, barcodes, constant channels, copies and, "
        "where three other channels remain, phosphorylated proteins (state_channels).",
        "few analyses want scatter and time clustered together with the markers",
        min_length=1,
        need='a list of channel names or globs, for example [CD3, "CD8*"] (numbers in quotes), or null',
    )
    state_channels: list[str] | None = key(
        None,
        "Channels that are only measured in the populations, by marker or detector name; globs are allowed. "
        "The populations are not found by them. dpmix associate tests their medians.",
        "a signalling marker that changes with the treatment would make populations of its own",
        min_length=1,
        need='a list of channel names or globs, for example [pS6, "pErk*"], or null',
    )
    panel: str | None = key(
        None,
        "Instead of channels and state_channels: a CSV file with the columns channel, marker and class: type "
        "(of the model), state (only measured) or none. The names of CATALYST work, too: fcs_colname, "
        "antigen, marker_class. Relative to the folder of this config.",
        min_length=1,
        need="the path of a CSV file, for example panel.csv, or null",
    )
    rename: dict[str, str] = key(
        {},
        "Names of markers to replace in all files, old name to new name, before channels are chosen and "
        "compared. Of a channel without a marker, the name of the detector. dpmix init suggests names that "
        "differ in spelling.",
        "markers are never merged without being asked for",
        need="a mapping of old names to new names, for example {CD45-RA: CD45RA}",
    )
    leave_out: list[str] = key(
        [],
        "Files to leave out, by file name or glob, or by the sample of a table of samples; for example one "
        "that cannot be read.",
        "a file that cannot be read ends the run",
        need="a list of file names or globs, for example [broken.fcs]",
    )
    compensation: str = key(
        "auto",
        "auto: the spillover matrix of each file, if it has one that names its channels. none: no "
        "compensation. Or the path of a CSV file with a matrix.",
        "an uncompensated file shows populations that do not exist",
        need="auto, none, or the path of a CSV file with detector names in its header, for example "
        "spillover.csv",
    )
    linearize: bool = key(
        True,
        "Undo the amplification that FCS files declare, before any other step: logarithmic ($PnE), and "
        "linear, by division ($PnG).",
        "transforms and compensation are defined on the linear scale",
    )
    transform: dict[str, TransformConfig] = key(
        {DEFAULT: TransformConfig()},
        'Transform of each channel, by name or glob; "default" applies to all other channels. Methods: auto '
        "(fits the instrument), logicle (t, w, m, a), arcsinh (cofactor), log, widen (cofactor), linear.",
        need="a mapping of channel names or globs to transforms, for example {default: {method: logicle}}",
    )
    controls: dict[str, str] = key(
        {},
        'FMO or unstained files: file of each channel, by name or glob; "default" applies to all other '
        "channels. The threshold between - and + is then expected at the 99% quantile of the control. The "
        "files are read at the start of a run, compensated and transformed like the data, and are not part "
        "of it. Relative to the folder of this config.",
        "without a control, thresholds are at valleys between populations",
        need="a mapping of channel names or globs to files, for example {CD25: fmo_cd25.fcs, default: "
        "unstained.fcs}",
    )
    standardize: bool = key(
        True,
        "Scale each channel to mean 0 and standard deviation 1 after its transform. The run file records the "
        "scaling.",
        "one prior then fits every channel",
    )
    atoms: Literal["report", "dither", "tail"] = key(
        "tail",
        "Handling of atoms: many events at exactly one value of a channel (clipped, or zero), where "
        "covariances may shrink to zero. report: only report them. dither: add noise of 0.03 standard "
        "deviations. tail: spread events at a limit beyond it as a half-normal, and dither the others. Atoms "
        "are always reported; the noise depends on the values in the files, not on their names or the seed; "
        "data files are not changed.",
        "a learned prior (model.learn) needs it, because many events at one value pull phi to zero; "
        "a tail continues a population beyond a limit, as if nothing had been cut off",
    )
    resolution: Literal["auto"] | Resolution | dict[str, Resolution] = key(
        "auto",
        "Standard deviation of one measurement, on the transformed scale, before standardisation: events "
        "that differ by less are the same to the model. One number for all channels, or a mapping of "
        "channels, by name or glob, to numbers; the others are auto. auto: for mass cytometry the error of a "
        "count of few ions, 1.5 counts, for example 0.3 on arcsinh(x / 5); for a channel whose values are so "
        "coarse that a step is above 5% of its standard deviation, the step / sqrt(12); 0 otherwise. 0: "
        "events are points. At most the standard deviation of the channel is used. See "
        "docs/explanation/model.md.",
        "without it, components describe the grain of ion counts (zero, one, two) instead of populations",
        need="auto, a number of at least 0, or a mapping of channel names or globs to such numbers, for "
        "example {CD3: 0.3}",
    )
    margin_events: Literal["report", "drop"] = key(
        "report",
        "Events at a limit of a channel's range. report: only report them. drop: remove them.",
        "events are only removed on request",
    )
    time: Literal["report", "drop", "correct"] | None = key(
        None,
        "Recordings that are not steady, as in dpmix drift. report: judge each file and say what was found. "
        "drop: leave out events in unsteady stretches. correct: subtract the signal over time from channels "
        "with drift or steps, on the transformed scale. null: do not look. What was done is in the run file "
        "and in the report.",
        "events are only removed or changed on request",
    )
    max_events: int | None = key(
        None, "Use this many events, drawn at random (by the seed) from the pooled data; null: use all.", ge=1
    )

    weights: Literal["proportional", "equal"] | WeightsConfig = key(
        "proportional",
        "What an event of each sample counts in the likelihood. proportional: every event counts 1, so a "
        "sample counts in proportion to its events. equal: every sample counts the same; each of its N_s "
        "events counts N / (S N_s), with N events in S samples. Or a table with a column of weights. Weights "
        "are scaled to mean 1 over all events.",
        "the exact likelihood; weights make it a composite likelihood, see docs/explanation/weights.md",
        need="proportional, equal, or a column of a table, for example {file: weights.csv, column: weight}",
    )

    @model_validator(mode="after")
    def _panel_is_alone(self) -> DataConfig:
        for name in ("channels", "state_channels"):
            if self.panel is not None and getattr(self, name) is not None:
                raise ValueError(f"panel is {self.panel}, which lists the {name}; remove {name}, or panel")
        return self

    @model_validator(mode="after")
    def _weights_have_a_table(self) -> DataConfig:
        if isinstance(self.weights, WeightsConfig) and self.weights.file is None and self.samples is None:
            raise ValueError(
                "weights.file is missing; give a CSV file with the columns sample and "
                f"{self.weights.column}, or the table of samples in data.samples"
            )
        return self

    @model_validator(mode="after")
    def _files_or_samples(self) -> DataConfig:
        if self.files and self.samples is not None:
            raise ValueError("both files and samples are given; remove one of them")
        if not self.files and self.samples is None:
            raise ValueError("files is missing; give a list of file names or globs, for example [sample.fcs]")
        return self

    @field_validator("compensation")
    @classmethod
    def _compensation_is_known(cls, value: str) -> str:
        return name_or_path(value, ("auto", "none"))

    @field_validator("transform")
    @classmethod
    def _transform_has_a_default(cls, value: dict[str, TransformConfig]) -> dict[str, TransformConfig]:
        return value if DEFAULT in value else {DEFAULT: TransformConfig(), **value}


def name_or_path(value: str, names: Sequence[str]) -> str:
    """Return `value` if it is one of the names or looks like a path; a mistyped name is not a path.

    Raises
    ------
    ValueError
        It is neither.
    """
    if value not in names and not Path(value).suffix and "/" not in value:
        raise ValueError
    return value
