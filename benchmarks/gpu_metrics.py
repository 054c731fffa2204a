"""Metrics of Nsight Compute that gpu_counters.py reads and gpu_page.py shows."""

BUSY = {  # unit: metric, percent of the peak
    "float32": "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active",
    "float64": "sm__inst_executed_pipe_fp64.avg.pct_of_peak_sustained_active",
    "exponential": "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active",
    "shared": "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed",
    "L2": "lts__t_sectors.avg.pct_of_peak_sustained_elapsed",
    "memory": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "issue": "sm__inst_issued.avg.pct_of_peak_sustained_active",
}
OTHER = {
    "nanoseconds": "gpu__time_duration.sum",
    "registers": "launch__registers_per_thread",
    "occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "spilled": "smsp__inst_executed_op_local.sum",
}
STALLS = {  # reason: metric, cycles of a warp for each instruction issued
    reason: f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio"
    for reason in (
        "barrier", "dispatch_stall", "imc_miss", "lg_throttle", "long_scoreboard", "math_pipe_throttle",
        "mio_throttle", "no_instruction", "not_selected", "short_scoreboard", "wait",
    )
}  # fmt: skip
METRICS = BUSY | OTHER | STALLS
