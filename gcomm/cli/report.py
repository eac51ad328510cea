"""The HTML page of ``gcomm bench suite``: one file, plots inside it, nothing loaded from anywhere."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from gcomm.cli import plots
from gcomm.cli.bench_link import plot_rows as plot_link
from gcomm.cli.sizes import format_bytes

Row = dict[str, Any]
Cells = Sequence[str | tuple[str, str]]  # each a text, or (text, class)

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2733; --soft: #5b6875; --line: #d8dee4; --page: #fff;
  --card: #f6f8fa; --good: #1a7f37; --bad: #cf222e; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #dfe6ed; --soft: #9aa7b4; --line: #333d47; --page: #12171c; --card: #1a2128; --good: #4ac26b;
    --bad: #ff7b72; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1080px; padding: 24px 20px 60px; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 26px; margin: 0; } h2 { font-size: 20px; margin: 44px 0 6px; }
p, .note { color: var(--soft); margin: 4px 0 12px; }
code { font: 13px/1.5 ui-monospace, Menlo, Consolas, monospace; background: var(--card); padding: 2px 6px;
  border-radius: 4px; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; margin: 8px 0 16px; font-size: 14px; }
th, td { padding: 4px 10px; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap;
  font-variant-numeric: tabular-nums; }
th { color: var(--soft); font-weight: 600; } th:first-child, td:first-child, .text { text-align: left; }
td.best { color: var(--good); font-weight: 600; } .bad { color: var(--bad); font-weight: 700; }
figure { margin: 12px 0; background: #fff; border: 1px solid var(--line); border-radius: 8px; padding: 8px; }
img { width: 100%; max-width: 960px; max-height: 560px; height: auto; margin: auto; display: block; }
nav { display: flex; flex-wrap: wrap; gap: 4px 14px; } nav a { color: inherit; }
"""


def page(
    rows: Mapping[str, Sequence[Row]],
    facts: Mapping[str, str],
    commands: Mapping[str, str],
    failed: Mapping[str, str],
) -> str:
    """The page.

    Parameters
    ----------
    rows : mapping
        Of each part: a collective, ``"link"`` or ``"codec"``.
    facts : mapping
        What figures depend on: machine, versions, ranks.
    commands : mapping
        The command of each part.
    failed : mapping
        What went wrong in parts that failed; those may have no rows.
    """
    drawn: dict[str, Callable[[Sequence[Row]], str]] = {"link": _link, "codec": _codec}
    sections = [
        f'<h2 id="{escape(name)}">{escape(name)}</h2><p><code>{escape(commands[name])}</code></p>'
        + (f'<p class="bad">{escape(failed[name])}</p>' if name in failed else "")
        + (drawn.get(name, _collective)(found) if found else "")
        for name, found in rows.items()
    ]
    links = "".join(f'<a href="#{escape(name)}">{escape(name)}</a>' for name in (*rows, "machine"))
    title = f"gcomm bench: {facts['ranks']} ranks, {facts['transport']}"
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(title)}</h1><p>{escape(facts['date'])}, gcomm {escape(facts['gcomm'])}, "
        f"{escape(facts['processor'])}, {escape(facts['cores'])} cores</p><nav>{links}</nav>"
        f"{_summary(rows, failed)}{''.join(sections)}"
        f'<h2 id="machine">machine</h2>{_facts(facts)}</body></html>\n'
    )


# ---- sections ------------------------------------------------------------------------------------------------


def _collectives(rows: Mapping[str, Sequence[Row]]) -> dict[str, Sequence[Row]]:
    return {name: found for name, found in rows.items() if name not in ("link", "codec") and found}


def _summary(rows: Mapping[str, Sequence[Row]], failed: Mapping[str, str]) -> str:
    """Each collective at its largest size: how many times faster than exact, and than the baseline."""
    body = []
    wrong = 0
    for name, found in _collectives(rows).items():
        largest = max(row["bytes"] for row in found)
        at = {row["codec"]: row for row in found if row["bytes"] == largest}
        wrong += sum(row["wrong"] for row in found)
        for against in [codec for codec in at if codec == "none" or codec.startswith("baseline:")]:
            others = {codec: row for codec, row in at.items() if not codec.startswith("baseline:")}
            others.pop(against, None)
            if not others:
                continue
            best = min(others, key=lambda codec: others[codec]["time_us"])
            times = at[against]["time_us"] / others[best]["time_us"]
            body.append(
                [name, format_bytes(largest), against, best, f"{times:.2f}x", f"{others[best]['rel_err']:.1e}"]
            )
    verdict = (
        "Every result was checked against a float64 oracle, element by element, with the format's own bound: "
        + ("none was wrong." if wrong == 0 else f"{wrong} elements were WRONG.")
    )
    if failed:
        verdict += f" Parts that FAILED: {', '.join(failed)}."
    table = (
        _table(("collective", "size", "against", "fastest codec", "times faster", "error"), body)
        if body
        else ""
    )
    return f"<h2>In short</h2><p>{verdict}</p>{table}"


def _collective(rows: Sequence[Row]) -> str:
    codecs = list(dict.fromkeys(row["codec"] for row in rows))
    sizes = sorted({row["bytes"] for row in rows})
    cell = {(row["bytes"], row["codec"]): row for row in rows}
    body: list[Cells] = []
    for size in sizes:
        times = {codec: cell[size, codec]["time_us"] for codec in codecs}
        best = min(times, key=lambda codec: times[codec])
        body.append(
            [
                format_bytes(size) if size else "-",
                *(
                    (f"{_time(times[codec])}", "best" if codec == best and len(codecs) > 1 else "")
                    for codec in codecs
                ),
            ]
        )
    largest = [cell[sizes[-1], codec] for codec in codecs]
    wrong = {codec: sum(row["wrong"] for row in rows if row["codec"] == codec) for codec in codecs}
    details = [
        [
            row["codec"],
            f"{row['algbw']:.3f}",
            f"{row['busbw']:.3f}",
            f"{row['wire_bytes']:,}",
            f"{row['raw_bytes'] / row['wire_bytes']:.2f}" if row["wire_bytes"] else "-",
            f"{row['rel_err']:.2e}",
            (str(wrong[row["codec"]]), "bad" if wrong[row["codec"]] else ""),
        ]
        for row in largest
    ]
    figure = _figure(plots.plot_collective, rows) if sizes[-1] > 0 else ""
    return (
        figure
        + _table(
            ("size", *codecs), body, note="Median time of the slowest rank; the fastest of a size is green."
        )
        + _table(
            ("codec", "algbw GB/s", "busbw GB/s", "wire bytes", "ratio", "relative error", "wrong"),
            details,
            note=f"At {format_bytes(sizes[-1])}; wrong elements over all sizes." if sizes[-1] else "",
        )
    )


def _codec(rows: Sequence[Row]) -> str:
    body = [
        [
            row["codec"],
            row["isa"],
            *(
                f"{row[key]:.2f}"
                for key in ("encode_gbps", "decode_gbps", "decode_accumulate_gbps", "memcpy_gbps")
            ),
        ]
        for row in rows
    ]
    headings = ("codec", "isa", "encode", "decode", "decode + accumulate", "memcpy")
    return _figure(plots.plot_codec, rows) + _table(headings, body, note="GB/s of fp32, one thread.")


def _link(rows: Sequence[Row]) -> str:
    body = [
        [
            f"{row['initiator']} and {row['peer']}",
            format_bytes(row["bytes"]),
            f"{row['latency_us']:.1f}",
            f"{row['one_way_gbps']:.3g}",
            f"{row['bidirectional_gbps']:.3g}",
        ]
        for row in rows
    ]
    headings = ("ranks", "message", "latency us", "one way GB/s", "both ways GB/s")
    note = "Medians; latency is half a round trip, no codec, no header of a collective."
    return _figure(plot_link, rows) + _table(headings, body, note=note)


def _facts(facts: Mapping[str, str]) -> str:
    return _table(
        ("fact", "value"), [[name.replace("_", " "), (value, "text")] for name, value in facts.items()]
    )


# ---- pieces --------------------------------------------------------------------------------------------------


def _figure(draw: Callable[[Sequence[Row], str], None], rows: Sequence[Row]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plot.svg"
        draw(rows, str(path))
        data = base64.b64encode(path.read_bytes()).decode()
    return f'<figure><img alt="plot of the table below" src="data:image/svg+xml;base64,{data}"></figure>'


def _table(headings: Sequence[str], body: Iterable[Cells], note: str = "") -> str:
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    lines = []
    for cells in body:
        pairs = [cell if isinstance(cell, tuple) else (cell, "") for cell in cells]
        lines.append(
            "<tr>"
            + "".join(
                f'<td class="{kind}">{escape(text)}</td>' if kind else f"<td>{escape(text)}</td>"
                for text, kind in pairs
            )
            + "</tr>"
        )
    below = f'<p class="note">{escape(note)}</p>' if note else ""
    return f'<div class="scroll"><table><tr>{head}</tr>{"".join(lines)}</table></div>{below}'


def _time(microseconds: float) -> str:
    return f"{microseconds / 1e3:.2f} ms" if microseconds >= 1e4 else f"{microseconds:.1f} us"
