"""gcomm bench suite: a real run; the page holds every row, and loads nothing."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gcomm.cli import main, report


class Page(HTMLParser):
    """What a page shows and what it would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.loads += [value for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "img", "br", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def suite(*words: str) -> Any:
    return CliRunner().invoke(main, ["bench", "suite", *words])


def test_page(tmp_path: Path) -> None:
    html, rows_file = tmp_path / "page.html", tmp_path / "rows.json"
    result = suite(
        *("--quick", "--transport", "local", "-b", "64K", "-e", "256K", "-n", "2", "-w", "0"),
        *("--collectives", "all_reduce,barrier", "--codec", "none,nvfp4"),
        *("--html", str(html), "--json", str(rows_file)),
    )
    assert result.exit_code == 0, result.output
    rows = json.loads(rows_file.read_text(encoding="utf-8"))
    assert [row["part"] for row in rows if row["part"] not in ("link", "codec")] == ["all_reduce"] * 4 + [
        "barrier"
    ]
    assert {row["part"] for row in rows} == {"all_reduce", "barrier", "link", "codec"}
    text = html.read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    assert all(value.startswith(("data:image/svg+xml;base64,", "#")) for value in page.loads)
    assert not re.search(r"@import|url\(|<script", text)
    shown = " ".join(page.texts)
    assert "none was wrong" in shown
    for row in rows:
        if row["part"] == "all_reduce":
            time = row["time_us"]
            assert (f"{time / 1e3:.2f} ms" if time >= 1e4 else f"{time:.1f} us") in shown
        if row["part"] == "codec":
            assert f"{row['encode_gbps']:.2f}" in shown
        if row["part"] == "link":
            assert f"{row['one_way_gbps']:.3g}" in shown
    assert "gcomm bench all_reduce --nproc 2 --transport local -b 65536 -e 262144" in shown


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--collectives", "all_reduce,allgather"], "known are all_reduce"),
        (["--collectives", ""], "known are all_reduce"),
        (["--codec", "fp9"], "--codec fp9"),
        (["--html", "/nowhere/page.html"], "there is no folder /nowhere"),
        (["--transport", "nccl"], "transport nccl is not available"),
        (["-b", "1M", "-e", "1K"], "larger than the largest"),
    ],
)
def test_arguments(words: list[str], text: str) -> None:
    result = suite(*words)
    assert result.exit_code == 2
    assert text in result.output


def test_under_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = suite()
    assert result.exit_code == 2
    assert "run it without a launcher" in result.output


def test_a_part_that_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GCOMM_SLOT_BYTES", "7")
    result = suite("--quick", "--transport", "local", "--html", str(tmp_path / "page.html"))
    assert result.exit_code == 1
    assert "gcomm bench all_reduce" in result.output
    assert "GCOMM_SLOT_BYTES" in result.output
    # The codec part needs no communicator: its rows are there.
    shown = " ".join(Page((tmp_path / "page.html").read_text(encoding="utf-8")).texts)
    assert "Parts that FAILED: all_reduce, reduce_scatter, all_gather, link." in shown
    assert "decode + accumulate" in shown


def test_wrong_elements_are_shown(tmp_path: Path) -> None:
    def row(codec: str, nbytes: int, wrong: int) -> dict[str, Any]:
        figures = dict.fromkeys(("time_us", "algbw", "busbw", "rel_err"), 1.0)
        names = {"collective": "all_reduce", "world_size": 2, "transport": "tcp", "dtype": "float"}
        return {
            **names,
            "codec": codec,
            "bytes": nbytes,
            "wire_bytes": 1,
            "raw_bytes": 1,
            "wrong": wrong,
            **figures,
        }

    # Wrong at the smaller size only, which the table of the largest must not hide.
    rows = [
        row(codec, size, 3 if (codec, size) == ("int8", 64) else 0)
        for size in (64, 128)
        for codec in ("none", "int8")
    ]
    facts = dict.fromkeys(("ranks", "transport", "date", "gcomm", "processor", "cores"), "1")
    page = report.page(
        {"all_reduce": rows}, facts, {"all_reduce": "gcomm bench all_reduce"}, {"all_reduce": "it failed"}
    )
    assert "3 elements were WRONG" in page
    assert '<td class="bad">3</td>' in page
    assert '<p class="bad">it failed</p>' in page
