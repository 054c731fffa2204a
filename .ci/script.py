"""A user's script: `.ci/run` runs it by the wheel, and `make lint` checks its types."""

import numpy as np

import dpmix
from dpmix.runs.loop import SweepReport


def report(sweep: SweepReport) -> None:
    print(sweep.iteration, sweep.log_posterior)


run = dpmix.open_run("run.h5")
print(run.weights.shape, dpmix.gate(run.path, "gated", n_draws=4).n_populations)
print(dpmix.predict(run.path, ["sample.fcs"], "predicted", n_draws=4).sizes.sum())

np.save("events.npy", dpmix.simulate(500, kind="model", channels=3).events)
config = {"data": {"files": ["events.npy"]}, "model": {"components": 8}, "output": {"path": "python.h5"}}
few = {"mcmc.burn_in": 2, "mcmc.draws": 3, "bem.starts": 1, "bem.max_steps": 3}
drawn: dpmix.Run = dpmix.run_mcmc(config, settings=few, on_sweep=report)
print(drawn.complete, dpmix.run_bem(config, settings=few, overwrite=True).alpha)
try:
    dpmix.run_mcmc(config, settings={"model.components": 0})
except dpmix.ConfigError as error:
    print(error.problems)
try:
    print(dpmix.DPMixture)
except ImportError as error:
    print(error)
