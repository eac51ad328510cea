"""``gcomm bench``: collectives, codecs and links, in nccl-tests' manner."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

import gcomm
from gcomm.cli import oracle, plots, present
from gcomm.cli.baselines import BASELINES
from gcomm.cli.bench_rank import Plan
from gcomm.cli.buffers import ALIASES, DTYPES, REDUCIBLE, itemsize
from gcomm.cli.collectives import COLLECTIVES, Collective
from gcomm.cli.launch import Message, RankFailedError, Ranks, run_ranks, run_under_mpiexec
from gcomm.cli.sizes import ByteSize, sweep
from gcomm.cli.world import TRANSPORTS, have, launched_size, under_launcher, under_mpiexec

BYTES = ByteSize()
DEFAULT_NPROC = 2


@click.group()
def bench() -> None:
    """Measure a collective, the codecs, or the bare link.

    Every result is verified: against a float64 oracle with the wire format's own per-element bound, and bit by
    bit between ranks where they must agree. A wrong element makes the command fail.
    """


# ---- what several commands share -----------------------------------------------------------------------------


def rank_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Options of commands that run on several ranks."""
    nproc = click.option(
        "--nproc",
        type=click.IntRange(min=1),
        metavar="N",
        help=f"Start N ranks here. Without it: the ranks that a launcher such as torchrun has started, else "
        f"{DEFAULT_NPROC}.",
    )
    transport = click.option(
        "--transport",
        type=click.Choice(TRANSPORTS),
        default="tcp",
        show_default=True,
        help="What carries the bytes; local is ranks as threads of one process.",
    )
    return nproc(transport(function))


def output_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Options that say where results go."""
    to_json = click.option(
        "-J",
        "--json",
        "json_file",
        metavar="FILE",
        help="Write one array of rows; - is stdout, without the table.",
    )
    plot = click.option("--plot", metavar="FILE.png", help="Draw the rows.")
    return to_json(plot(function))


def number_of_ranks(nproc: int | None, transport: str) -> int:
    """How many ranks to start, from --nproc and the environment (0: a launcher has started them).

    MPI's ranks can only be started by mpiexec: without it, the whole command is run again under it.
    """
    if transport == "mpi" and not under_mpiexec():
        raise SystemExit(run_under_mpiexec(nproc or DEFAULT_NPROC))
    launched = under_launcher() or under_mpiexec()
    if launched and transport == "local":
        raise click.UsageError("--transport local starts its ranks as threads; run it without a launcher")
    if launched and nproc is not None:
        raise click.UsageError("--nproc starts ranks, but the environment says that a launcher already has")
    return 0 if launched else nproc or DEFAULT_NPROC


def require_transport(name: str) -> None:
    """Stop with the reason where a transport cannot be used here."""
    if name == "torch":
        if not have("torch"):
            raise click.UsageError(
                "transport torch is not available: torch is not installed (pip install 'gcomm[torch]')"
            )
        return
    if name == "mpi" and not have("mpi4py"):
        raise click.UsageError(
            "transport mpi is not available: mpi4py is not installed (pip install 'gcomm[mpi]')"
        )
    row = next((row for row in gcomm.transports() if row.name == name), None)
    if row is None or not row.available:
        reason = row.reason if row is not None else "this build of gcomm has no such transport"
        raise click.UsageError(f"transport {name} is not available: {reason}")


def codec_names(text: str) -> list[str]:
    """The codecs of ``--codec a,b,c``; ``none`` is the exact path.

    Raises
    ------
    click.UsageError
        A codec is unknown, or none is named.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise click.UsageError("--codec names no codec")
    for name in names:
        if name != "none":
            try:
                gcomm.codec(name)
            except gcomm.errors.CodecError as error:
                raise click.UsageError(f"--codec {name}: {error}") from error
    return list(dict.fromkeys(names))


def verifiable(names: list[str]) -> list[str]:
    """The same names.

    Raises
    ------
    click.UsageError
        There is no error bound for one of them, so its results could not be verified.
    """
    for name in names:
        try:
            oracle.Rule.parse(name)
        except ValueError as error:
            raise click.UsageError(f"--codec {name}: {error}") from error
    return names


@contextmanager
def failures_end_the_command() -> Iterator[None]:
    """A failed rank and Ctrl-C become exit codes 1 and 130, each with one line on stderr."""
    try:
        yield
    except RankFailedError as error:
        click.echo(f"gcomm: {error}", err=True)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        click.echo("gcomm: interrupted", err=True)
        raise SystemExit(130) from None


# ---- collectives ---------------------------------------------------------------------------------------------


def _sizes(minimum: int | None, maximum: int | None, factor: int, step: int) -> list[int]:
    if minimum is None:
        minimum = min(64 << 10, maximum) if maximum is not None else 64 << 10
        maximum = maximum if maximum is not None else 64 << 20
    try:
        return sweep(minimum, minimum if maximum is None else maximum, factor, step)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _contenders(
    row: Collective, codec: str | None, dtype: str, baseline: str | None, plot: str | None
) -> list[str]:
    if row.name == "barrier":
        if codec not in (None, "none"):
            raise click.UsageError("a barrier carries no data, so there is no --codec for it")
        if plot:
            raise click.UsageError("a barrier has no sizes, so there is nothing for --plot to draw")
        names = ["none"]
    else:
        names = verifiable(codec_names(codec or ("none,fp8_e4m3" if dtype in REDUCIBLE else "none")))
    if dtype not in REDUCIBLE:
        if row.reduces:
            raise click.UsageError(f"{row.name} sums {', '.join(REDUCIBLE)}, not {dtype}")
        if names != ["none"]:
            raise click.UsageError(
                f"codecs take {', '.join(REDUCIBLE)}; {dtype} travels as it is (--codec none)"
            )
    if baseline is None:
        return names
    summed = BASELINES[f"baseline:{baseline}"].dtypes
    if row.reduces and dtype not in summed:
        raise click.UsageError(f"--baseline {baseline} sums {', '.join(summed)}, not {dtype}")
    return [*names, f"baseline:{baseline}"]


def _check_plan(plan: Plan, ranks: int, transport: str) -> None:
    row = COLLECTIVES[plan.collective]
    ranks = ranks or launched_size()
    if ranks == 1 and row.name == "send_recv":
        raise click.UsageError("send_recv needs at least 2 ranks")
    if plan.dtype == "bfloat16" and not have("torch"):
        raise click.UsageError("bfloat16 needs torch, which is not installed: pip install 'gcomm[torch]'")
    if "baseline:mpi" in plan.contenders and transport != "mpi":
        raise click.UsageError("--baseline mpi needs MPI's own ranks: --transport mpi")
    if "baseline:torch" in plan.contenders:
        if transport == "mpi":
            raise click.UsageError("--baseline torch needs ranks that torch connects, not --transport mpi")
        if transport == "local":
            raise click.UsageError(
                "--baseline torch needs ranks that are processes; --transport local has threads"
            )
        if not have("torch"):
            raise click.UsageError(
                "--baseline torch needs torch, which is not installed: pip install 'gcomm[torch]'"
            )
    # Sums in place grow by a factor of the number of ranks with each call.
    head_room = {"half": 11, "float": 110, "bfloat16": 110}.get(plan.dtype, 0)
    if row.name == "all_reduce" and plan.op == "sum" and plan.aggregate * (ranks - 1).bit_length() > head_room:
        raise click.UsageError(
            f"--agg_iters {plan.aggregate}: sums in place would overflow {plan.dtype}; use --op avg"
        )


def _run_collective(row: Collective, **options: Any) -> None:
    transport, nproc = options["transport"], options["nproc"]
    require_transport(transport)
    present.require_writable(options["json_file"], options["plot"])
    if options["plot"]:
        plots.require_matplotlib()
    ranks = number_of_ranks(nproc, transport)
    dtype = ALIASES.get(options["datatype"], options["datatype"])
    sizes = _sizes(options["minbytes"], options["maxbytes"], options["stepfactor"], options["stepbytes"])
    plan = Plan(
        collective=row.name,
        sizes=[size // itemsize(dtype) * itemsize(dtype) for size in sizes],
        dtype=dtype,
        op=options["op"],
        contenders=_contenders(row, options["codec"], dtype, options["baseline"], options["plot"]),
        iterations=options["iters"],
        warmup=options["warmup_iters"],
        check=options["check"],
        aggregate=options["agg_iters"],
    )
    _check_plan(plan, ranks, transport)
    rows = _collect(plan, ranks, transport, quiet=options["json_file"] == "-", extremes=options["extremes"])
    if not rows:
        return  # a rank of a launcher other than rank 0
    if options["json_file"]:
        present.write_json(rows, options["json_file"])
    if options["plot"]:
        plots.plot_collective(rows, options["plot"])
    wrong = sum(result["wrong"] for result in rows)
    if wrong:
        click.echo(f"gcomm: {wrong} elements are wrong (see the #wrong column)", err=True)
        raise SystemExit(1)


def transport_words(transport: str, medium: str) -> str:
    """A transport, and what it uses of its own accord where that is something else."""
    return transport if medium in ("", transport) else f"{transport} ({medium})"


def _collect(plan: Plan, ranks: int, transport: str, *, quiet: bool, extremes: bool) -> list[present.Row]:
    rows: list[present.Row] = []
    carrier = transport
    op = plan.op if COLLECTIVES[plan.collective].reduces else "none"
    table = present.CollectiveTable(op, plan.contenders, extremes=extremes)
    with present.progress(total=len(plan.sizes) * len(plan.contenders)) as status:

        def on_message(message: Message) -> None:
            nonlocal carrier
            if "media" in message:
                carrier = transport_words(transport, message["media"])
                return
            if "progress" in message:
                status.say(message["progress"])
                return
            result = message["row"]
            if not rows and not quiet:
                click.echo(
                    f"# gcomm {gcomm.__version__} {plan.collective}: {result['world_size']} ranks, "
                    f"transport {carrier}, {plan.iterations} iterations of {plan.aggregate} call(s) "
                    f"after {plan.warmup}, median of the slowest rank"
                )
                click.echo(table.header())
            rows.append(result)
            status.step()
            if not quiet:
                click.echo(table.line(result))

        with failures_end_the_command():
            run_ranks(
                "gcomm.cli.bench_rank:measure",
                dataclasses.asdict(plan),
                Ranks(transport, ranks, torch_group="baseline:torch" in plan.contenders),
                on_message,
            )
    return rows


def _collective_command(row: Collective) -> click.Command:
    @click.option("-b", "--minbytes", type=BYTES, help="Smallest size, such as 8K.  [default: 64K]")
    @click.option(
        "-e", "--maxbytes", type=BYTES, help="Largest size.  [default: 64M, or --minbytes where that is given]"
    )
    @click.option(
        "-f",
        "--stepfactor",
        type=click.IntRange(min=1),
        default=4,
        show_default=True,
        help="Factor between sizes.",
    )
    @click.option("-i", "--stepbytes", type=BYTES, default=0, help="Step between sizes, instead of a factor.")
    @click.option(
        "-n", "--iters", type=click.IntRange(min=1), default=20, show_default=True, help="Timed iterations."
    )
    @click.option(
        "-w",
        "--warmup_iters",
        type=click.IntRange(min=0),
        default=5,
        show_default=True,
        help="Iterations before.",
    )
    @click.option(
        "-m",
        "--agg_iters",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="Calls an iteration, back to back.",
    )
    @click.option(
        "-c",
        "--check",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="Verified calls before timing (one more follows it).",
    )
    @click.option(
        "-o", "--op", type=click.Choice(["sum", "avg"]), default="sum", show_default=True, help="Reduction."
    )
    @click.option(
        "-d",
        "--datatype",
        type=click.Choice([*DTYPES, *ALIASES]),
        default="float",
        show_default=True,
        metavar="TYPE",
        help=f"Element type: {', '.join(DTYPES)}.",
    )
    @click.option("--codec", metavar="A,B,...", help="Codecs; none is exact.  [default: none,fp8_e4m3]")
    @click.option(
        "--baseline",
        type=click.Choice(["torch", "mpi"]),
        help="Measure torch.distributed (gloo), or MPI's own collectives, in turn with ours.",
    )
    @click.option("--extremes", is_flag=True, help="Show the fastest and slowest iteration, too.")
    @rank_options
    @output_options
    def command(**options: Any) -> None:
        _run_collective(row, **options)

    command.__doc__ = f"""Measure {row.name}, with nccl-tests' flags and columns."""
    return click.command(row.name)(command)


for _row in COLLECTIVES.values():
    bench.add_command(_collective_command(_row))
