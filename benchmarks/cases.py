"""The cases: what is run, and what it must reach."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence

from benchmarks.driver import Case, Network, Row, Target
from benchmarks.gift import figures
from gcomm import planner

Figure = Callable[[Sequence[Row]], float]

# Bytes of fp32 over bytes of the format: how much faster an exchange can get that is bound by bytes.
BYTE_LIMIT = {"fp8_e4m3": 3.94, "nvfp4": 7.10}


def _only(rows: Sequence[Row], **wanted: object) -> Row:
    (row,) = (row for row in rows if all(row[key] == value for key, value in wanted.items()))
    return row


def _over_memcpy(codec: str, part: str) -> Figure:
    def figure(rows: Sequence[Row]) -> float:
        row = _only(rows, codec=codec)
        return float(row[f"{part}_gbps"] / row["memcpy_gbps"])

    return figure


def _speedup(codec: str, nbytes: int, limit: float = 1.0, baseline: str = "baseline:torch") -> Figure:
    """Times that ``codec`` is faster than the baseline, as a part of ``limit``."""

    def figure(rows: Sequence[Row]) -> float:
        ours, theirs = (_only(rows, codec=name, bytes=nbytes) for name in (codec, baseline))
        return float(theirs["time_us"] / ours["time_us"] / limit)

    return figure


def _value(key: str, **wanted: object) -> Figure:
    def figure(rows: Sequence[Row]) -> float:
        return float(_only(rows, **wanted)[key])

    return figure


def _largest(key: str) -> Figure:
    def figure(rows: Sequence[Row]) -> float:
        return max(float(row[key]) for row in rows)

    return figure


# ---- codecs --------------------------------------------------------------------------------------------------

_CODEC_TARGETS = {
    0.85: ("int8", "bf16"),
    0.7: ("fp8_e4m3", "mxfp8"),
    0.5: ("int6", "int4", "int3", "int2", "mxfp4", "nvfp4"),
}


def _codec_targets() -> tuple[Target, ...]:
    targets = [
        Target(f"{codec} {part} / memcpy", _over_memcpy(codec, part), limit)
        for limit, codecs in _CODEC_TARGETS.items()
        for codec in codecs
        for part in ("encode", "decode_accumulate")
    ]
    return (*targets, Target("hadamard+int8 encode / memcpy", _over_memcpy("hadamard+int8", "encode"), 0.5))


# ---- all_reduce against torch --------------------------------------------------------------------------------

MIB_64 = 64 << 20


def _all_reduce(transport: str, ranks: int, wanted: float, *, sockets: bool = False) -> Case:
    return Case(
        f"all_reduce_{transport}_{ranks}" + ("_sockets" if sockets else ""),
        f"all_reduce of 64 MiB fp32 on loopback, {ranks} ranks, transport {transport}"
        f"{', no shared memory' if sockets else ''}, against torch over gloo",
        f"gcomm bench all_reduce --nproc {ranks} --transport {transport} -b 64M -n 20 -w 3 "
        "--codec fp8_e4m3,nvfp4 --baseline torch",
        tuple(
            Target(f"{codec} times faster than torch", _speedup(codec, MIB_64), wanted)
            for codec in ("fp8_e4m3", "nvfp4")
        ),
        runs=5,
        settings="GCOMM_TCP_SHM=0" if sockets else "",
    )


def _slow_link(ranks: int, part: float) -> Case:
    return Case(
        f"all_reduce_1gbit_{ranks}",
        f"all_reduce of 64 MiB fp32 over 1 Gbit/s links, {ranks} ranks: times faster than torch",
        "gcomm bench all_reduce -b 64M -n 5 -w 1 --codec fp8_e4m3,nvfp4 --baseline torch",
        tuple(
            Target(f"{codec} speed-up / {limit}", _speedup(codec, MIB_64, limit), part)
            for codec, limit in BYTE_LIMIT.items()
        ),
        network=Network(ranks, "1gbit"),
    )


def _small(ranks: int) -> Case:
    sizes = (4, 64, 1024, 4096)
    return Case(
        f"small_{ranks}",
        f"all_reduce of 4 KiB and less on loopback, {ranks} ranks, against torch over gloo",
        f"gcomm bench all_reduce --nproc {ranks} -b 4 -e 4K -f 2 -n 300 -w 50 -m 10 "
        "--codec fp8_e4m3 --baseline torch",
        tuple(Target(f"{size} B times faster than torch", _speedup("fp8_e4m3", size), 1.0) for size in sizes),
        runs=5,
    )


# ---- all_reduce against MPI ----------------------------------------------------------------------------------


def _mpi() -> Case:
    return Case(
        "all_reduce_mpi_2",
        "all_reduce of 64 MiB fp32 over MPI (shared memory), 2 ranks, against MPI_Allreduce",
        "gcomm bench all_reduce --nproc 2 --transport mpi -b 64M -n 20 -w 3 "
        "--codec fp8_e4m3,nvfp4 --baseline mpi",
        tuple(
            Target(f"{codec} times faster than MPI", _speedup(codec, MIB_64, baseline="baseline:mpi"), 2.0)
            for codec in ("fp8_e4m3", "nvfp4")
        ),
        runs=5,
    )


def _mpi_slow_link() -> Case:
    return Case(
        "all_reduce_mpi_1gbit_2",
        "all_reduce of 64 MiB fp32 over MPI on a 1 Gbit/s link, 2 ranks, against MPI_Allreduce",
        "gcomm bench all_reduce --transport mpi -b 64M -n 5 -w 1 --codec fp8_e4m3,nvfp4 --baseline mpi",
        tuple(
            Target(
                f"{codec} speed-up / {limit}",
                _speedup(codec, MIB_64, limit, "baseline:mpi"),
                0.93,
            )
            for codec, limit in BYTE_LIMIT.items()
        ),
        network=Network(2, "1gbit", "mpi"),
    )


# ---- gcomm plan ----------------------------------------------------------------------------------------------


def _held_out(network: Network | None) -> Figure:
    """The median error of predictions for sizes that the fit had not seen."""

    def figure(rows: Sequence[Row]) -> float:
        cores = len(os.sched_getaffinity(0))
        found = planner.sort_rows(rows)
        return planner.fit(found, lambda n: planner.Layout(n, n, cores, network is not None)).median_error

    return figure


def _plan(name: str, where: str, options: str, network: Network | None = None) -> Case:
    return Case(
        name,
        f"all_reduce of 1 KiB to 64 MiB {where}: error of gcomm plan at every other size, held out of its fit",
        f"gcomm bench all_reduce {options} -b 1K -e 64M -f 4 --codec none,int8,fp8_e4m3,nvfp4",
        (Target("median error of held-out times", _held_out(network), 0.15, unit="", at_most=True),),
        network=network,
    )


# ---- gift ----------------------------------------------------------------------------------------------------

RELATIVE, OWN = "relative_error", "own_geometry_error"


def _gift_block() -> Case:
    def part(codec: str, error: str) -> Figure:
        return lambda rows: figures.over(rows, error, codec)

    wanted = {"scale": (0.62, 0.36), "split": (0.35, 0.35)}
    return Case(
        "gift_block",
        "errors of gift's sums of real gradients, 256 wide, over direct nvfp4's, mean of two steps",
        "python -m benchmarks.gift.fidelity block build/gift/block.npz",
        tuple(
            Target(f"{mode} r=16, {error}", part(f"gift+nvfp4:mode={mode}:rank=16", error), limit, at_most=True)
            for mode, limits in wanted.items()
            for error, limit in zip((RELATIVE, OWN), limits, strict=True)
        ),
        runs=1,
    )


def _gift_wide() -> Case:
    def part(codec: str, error: str, direct: str) -> Figure:
        return lambda rows: figures.over(rows, error, codec, direct)

    def bits(codec: str) -> Figure:
        return lambda rows: figures.bits(rows, codec)

    nvfp4, int4 = "gift+nvfp4", "gift+hadamard+int4"
    return Case(
        "gift_wide",
        "errors of gift's sums of real gradients, sides of 1024 and more, steps 40 and 120",
        "python -m benchmarks.gift.fidelity wide build/gift/wide.npz",
        (
            Target(f"{nvfp4}: bits an element", bits(nvfp4), 4.8, unit="bits", at_most=True),
            Target(f"{nvfp4}: {RELATIVE} / nvfp4's", part(nvfp4, RELATIVE, "nvfp4"), 0.55, at_most=True),
            Target(f"{nvfp4}: {OWN} / nvfp4's", part(nvfp4, OWN, "nvfp4"), 0.3, at_most=True),
            Target(f"{nvfp4}: {RELATIVE} / fp8_e4m3's", part(nvfp4, RELATIVE, "fp8_e4m3"), 1.0, at_most=True),
            Target(f"{int4}: bits an element", bits(int4), 4.5, unit="bits", at_most=True),
            Target(f"{int4}: {RELATIVE} / fp8_e4m3's", part(int4, RELATIVE, "fp8_e4m3"), 1.0, at_most=True),
        ),
        runs=1,
    )


def _gift_training(optimiser: str, *targets: Target) -> Case:
    return Case(
        f"gift_training_{optimiser}",
        f"evaluation loss of a small model trained by 2 ranks under {optimiser}, paired by seed",
        f"python -m benchmarks.gift.training --optimiser {optimiser}",
        targets,
        runs=1,
    )


def _gift_cost() -> Case:
    def part(rows: Sequence[Row]) -> float:
        direct = _only(rows, codec="nvfp4")["call_ms"]
        return min(float(row["call_ms"]) for row in rows if row["codec"] != "nvfp4") / float(direct)

    return Case(
        "gift_cost_1gbit_2",
        "all_reduce_coalesced of four matrices of 1024 x 4096 fp32, gift+nvfp4 at rank 8, over a 1 Gbit/s link",
        "python -m benchmarks.gift.cost",
        (Target("the fastest mode / direct nvfp4", part, 1.25, at_most=True),),
        network=Network(2, "1gbit"),
    )


# ---- mapl ----------------------------------------------------------------------------------------------------


def _mapl_rvq() -> Case:
    shape = {"subvector": 8, "stages": 4, "codewords": 256}
    return Case(
        "mapl_rvq",
        "MAPL's vector quantiser, one thread: encoding against the peak of fused multiply-adds, and decoding",
        "python -m benchmarks.mapl.rvq",
        (
            Target("encode / peak", _value("fraction", **shape), 0.4),
            Target("decode times faster", _value("decode_times_faster", **shape), 10.0),
        ),
    )


# ---- DistributedDataParallel --------------------------------------------------------------------------------


def _steps(over: str, under: str) -> Figure:
    """Milliseconds of one method's step over another's."""
    return lambda rows: float(_only(rows, method=over)["step_ms"] / _only(rows, method=under)["step_ms"])


def _ddp_step() -> Case:
    return Case(
        "ddp_step_1gbit_2",
        "a DistributedDataParallel step of 25.2M parameters over a 1 Gbit/s link, 2 ranks, hooks in turn",
        "python -m benchmarks.ddp.step --turns 8 --warmup 3",
        (
            Target("computing / plain", _steps("compute", "plain"), 0.15, at_most=True),
            Target("nvfp4 times faster than plain", _steps("plain", "nvfp4"), 3.3),
            Target("nvfp4 times faster than the fp16 hook", _steps("fp16_compress_hook", "nvfp4"), 1.7),
            Target("nvfp4 times faster than PowerSGD rank 1", _steps("powerSGD_hook rank 1", "nvfp4"), 1.0),
        ),
        network=Network(2, "1gbit"),
    )


def _ddp_overhead() -> Case:
    return Case(
        "ddp_overhead_2",
        "a DistributedDataParallel step of 25.2M parameters on loopback: the hook with codec fp32 against none",
        "python -m benchmarks.ddp.step --methods plain,fp32,compute --turns 20",
        (Target("fp32 / plain", _steps("fp32", "plain"), 1.03, at_most=True),),
    )


def _loss_over(method: str) -> Figure:
    def figure(rows: Sequence[Row]) -> float:
        mean = {
            name: statistics.mean(row["loss"] for row in rows if row["method"] == name)
            for name in ("plain", method)
        }
        return 100 * (mean[method] / mean["plain"] - 1)

    return figure


def _ddp_loss() -> Case:
    return Case(
        "ddp_loss",
        "evaluation loss of a small model trained by 2 ranks with DistributedDataParallel, five seeds",
        "python -m benchmarks.ddp.loss",
        tuple(
            Target(f"{codec} above plain", _loss_over(codec), 0.3, unit="%", at_most=True)
            for codec in ("nvfp4", "gift+nvfp4")
        ),
        runs=1,
    )


CASES = {
    case.name: case
    for case in (
        Case(
            "codec_speed",
            "one thread's codec speed on 256 MiB of fp32, as a part of memcpy's in the same run",
            "gcomm bench codec -b 256M -n 7",
            _codec_targets(),
        ),
        _all_reduce("tcp", 2, 2.5),
        _all_reduce("tcp", 4, 2.0),
        _all_reduce("tcp", 2, 2.5, sockets=True),
        _all_reduce("tcp", 4, 2.0, sockets=True),
        _all_reduce("torch", 2, 2.0),
        _mpi(),
        _mpi_slow_link(),
        _slow_link(2, 0.93),
        _slow_link(4, 0.88),
        _plan("plan_loopback_2", "on loopback, 2 ranks", "--nproc 2 -n 20 -w 3"),
        _plan("plan_1gbit_2", "over 1 Gbit/s links, 2 ranks", "-n 5 -w 1", Network(2, "1gbit")),
        _small(2),
        _small(4),
        Case(
            "spinning_thread",
            "an all_reduce of 64 KiB between 2 ranks while a Python thread spins, against the same without",
            "python -m benchmarks.programs.spin",
            (Target("slowed by", _value("slowdown", bytes=65536, spinners=1), 1.2, at_most=True),),
            runs=5,
        ),
        Case(
            "call_cost",
            "an all_reduce of four floats by one rank: what C adds to the engine, and Python to C",
            "python -m benchmarks.programs.call_cost",
            (
                Target("C over the engine", _value("over_us", caller="c"), 2.0, unit="us", at_most=True),
                Target(
                    "Python, numpy, over C", _value("over_us", caller="numpy"), 15.0, unit="us", at_most=True
                ),
                Target(
                    "Python, torch, over C", _value("over_us", caller="torch"), 15.0, unit="us", at_most=True
                ),
            ),
        ),
        Case(
            "workspace",
            "workspace of an all_reduce beyond twice the encoded bytes",
            "python -m benchmarks.programs.workspace",
            (Target("largest excess", _largest("excess_mib"), 16.0, unit="MiB", at_most=True),),
            runs=1,
        ),
        Case(
            "memory",
            "resident memory over 10,000 calls of mixed sizes, codecs and verbs",
            "python -m benchmarks.programs.memory",
            (Target("growth after the first 1,000", _largest("growth_mib"), 1.0, unit="MiB", at_most=True),),
            runs=1,
        ),
        _gift_block(),
        _gift_wide(),
        Case(
            "gift_rate_distortion",
            "errors of sums of real gradients against bits, every format; needs gift_wide's gradients",
            "python -m benchmarks.gift.rate_distortion build/gift/wide.npz --step 120 --matrices wq,w_down "
            "--ranks 64 --plot docs/gift_rate_distortion.png",
            (),
            runs=1,
        ),
        _gift_training(
            "muon",
            Target(
                "gift+int3: part of int3's gap closed",
                lambda rows: figures.closed(rows, "muon", "int3", "gift+int3"),
                0.6,
            ),
            Target(
                "gift+int3, scale: part of int3's gap closed",
                lambda rows: figures.closed(rows, "muon", "int3", "gift+int3:mode=scale:rank=16"),
                0.5,
            ),
            Target(
                "gift+nvfp4 above fp32",
                lambda rows: figures.over_exact(rows, "muon", "gift+nvfp4"),
                0.3,
                unit="%",
                at_most=True,
            ),
        ),
        _gift_training("adamw"),
        _gift_cost(),
        _mapl_rvq(),
        _ddp_step(),
        _ddp_overhead(),
        _ddp_loss(),
        Case(
            "link",
            "latency and bandwidth of the bare TCP transport on loopback, 2 ranks",
            "gcomm bench link --nproc 2 -n 200",
            (),
            runs=1,
        ),
    )
}
