"""The stability controller against its reference, sentence by sentence, and its log."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.gnmr import Reference

from gcomm.cli import main
from gcomm.errors import DtypeError, GcommError, InvalidArgumentError
from gcomm.gnmr import Controller, calibrate, replay

NORMS = st.one_of(
    st.floats(0.5, 2.0),
    st.floats(1e-3, 1e3),
    st.sampled_from([0.0, -0.0, 5e-324, 1e-310, 1e-300, 1e300, 1.7e308, math.inf, math.nan, 10.0, 100.0]),
)
CONFIGS = st.fixed_dictionaries(
    {
        "tau": st.sampled_from([1.0, 1.5, 3.0, 1e308, math.inf]),
        "tau_delta": st.sampled_from([1.0, 2.0, math.inf]),
        "window": st.integers(1, 9),
        "warmup": st.integers(0, 4),
        "max_ops": st.integers(1, 3),
        "lock": st.integers(1, 4),
        "levels": st.integers(1, 4),
    }
)
NAMES = ["a", "b", "c", "ä", "blocks.0.wq"]
STEPS = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from(NAMES), NORMS, max_size=5),
        st.sampled_from([None, None, None, 1, 3]),  # steps on from the last
        st.sampled_from([None] * 8 + NAMES),  # removed afterwards
    ),
    min_size=1,
    max_size=40,
)
USUAL = {"tau": 3.0, "tau_delta": 2.0, "window": 8, "warmup": 3, "max_ops": 2, "lock": 2}


def plain(actions):
    return {unit: dataclasses.asdict(action) for unit, action in actions.items()}


def warmed(units=("u",), **changed):
    controller = Controller(**{**USUAL, **changed})
    for _ in range(USUAL["warmup"]):
        assert controller.observe(dict.fromkeys(units, 1.0)) == {}
    return controller


@settings(max_examples=200, deadline=None)
@given(CONFIGS, STEPS)
def test_decides_exactly_as_the_reference(config, steps):
    controller, reference = Controller(**config), Reference(**config)
    for number, (norms, on, removed) in enumerate(steps):
        step = None if on is None else max(controller.step, 0) + on
        expected = reference.observe(norms, step)
        actions = controller.observe(norms, step)
        assert plain(actions) == expected
        assert list(plain(controller.refused).items()) == reference.refused
        busy = [a for a in actions.values() if a.kind == "clip" or a.until > controller.step or a.level]
        assert len(busy) <= config["max_ops"]
        assert all(0 < a.scale <= 1 for a in actions.values() if a.kind == "clip" and norms and a.rho < 1e300)
        for unit in reference.units:
            assert controller.level(unit) == reference.level(unit)
            assert controller.level(unit) < config["levels"]
        if removed in reference.units:
            del reference.units[removed]
            controller.remove(removed)
        if number % 7 == 3:
            # A resume in between, through JSON, makes no difference.
            state = json.loads(json.dumps(controller.state_dict(), allow_nan=False))
            controller = Controller(**config)
            controller.load_state_dict(state)
            assert controller.state_dict() == state


@settings(max_examples=40, deadline=None)
@given(CONFIGS, STEPS)
def test_a_log_is_replayed_exactly(tmp_path_factory, config, steps):
    path = tmp_path_factory.mktemp("log") / "log.jsonl"
    controller = Controller(**config, log=path)
    for norms, _, removed in steps:
        controller.observe(norms)
        if removed in controller.units:
            controller.remove(removed)
        elif removed is not None:
            controller.add(removed)
    state = controller.state_dict()
    resumed = Controller(**config, log=path)
    resumed.load_state_dict(state)
    for norms, _, _ in steps:
        resumed.observe(norms)
    result = replay(path)
    assert result.same, result.differs
    assert len(result.actions) == 2 * len(steps)
    # Another window or another lock reads the state in between, too.
    replay(path, window=config["window"] + 1, levels=1)
    replay(path, window=1, lock=7)


def test_nothing_in_warm_up_but_skips():
    controller = Controller(**USUAL)
    for norm in (1.0, 1000.0):
        assert controller.observe({"u": norm}) == {}
    action = controller.observe({"u": math.nan})["u"]
    assert (action.kind, action.scale, action.level, action.until) == ("skip", 0.0, 0, 2)
    assert controller.observe({"u": 1e4}) == {}  # the third finite one


def test_clips_now_and_recovers_for_the_lock():
    controller = warmed()
    action = controller.observe({"u": 10.0})["u"]
    assert (action.kind, action.scale, action.reason, action.rho, action.delta) == (
        "clip",
        0.3,
        "rho",
        10.0,
        9.0,
    )
    assert (action.level, action.until) == (1, 5)
    for _ in range(2):
        assert controller.level("u") == 1
        assert controller.observe({"u": 10.0})["u"].kind == "recover"  # locked: not clipped again
    assert controller.level("u") == 0
    assert controller.report()["recoveries"] == 1


def test_an_abrupt_rise_below_tau_recovers_without_clipping():
    action = warmed(tau=100.0).observe({"u": 3.5})["u"]
    assert (action.kind, action.reason, action.scale) == ("recover", "delta", 1.0)


def test_risk_soon_after_a_lock_goes_one_level_further():
    controller = warmed(levels=3)
    levels = []
    for _ in range(4):
        levels.append(controller.observe({"u": 1e6})["u"].level)
        for _ in range(2):
            controller.observe({"u": 1.0})
    assert levels == [1, 2, 2, 2]
    for _ in range(9):
        controller.observe({"u": 1.0})
    assert controller.observe({"u": 1e6})["u"].level == 1


def test_the_largest_rho_win_and_the_rest_is_refused():
    controller = warmed("abcd")
    actions = controller.observe({"a": 10.0, "b": 30.0, "c": 20.0, "d": math.inf})
    assert {unit: action.kind for unit, action in actions.items()} == {"b": "clip", "d": "skip"}
    assert list(controller.refused) == ["c", "a"]
    actions = controller.observe({"a": math.nan, "b": math.nan})
    assert actions["a"].kind == actions["b"].kind == "skip"  # the budget is full: skipped all the same
    assert list(controller.refused) == ["a"]


def test_a_lasting_change_of_level_is_learned():
    controller = warmed(max_ops=1)
    kinds = [a.kind if (a := controller.observe({"u": 50.0}).get("u")) else None for _ in range(60)]
    assert kinds[0] == "clip"
    assert not any(kinds[40:])


def test_zeros_are_nothing_to_compare_with():
    controller = warmed()
    quiet = Controller(**USUAL)
    for _ in range(9):
        quiet.observe({"u": 0.0})
    assert quiet.observe({"u": 7.0}) == {}
    assert quiet.unit("u")["count"] == 1
    assert controller.observe({"u": 0.0}) == {}


def test_the_order_of_units_does_not_matter():
    first, second = warmed("abc", max_ops=1), warmed("cba", max_ops=1)
    assert first.observe(dict.fromkeys("abc", 9.0)) == second.observe(dict.fromkeys("bca", 9.0))
    assert list(first.refused) == list(second.refused) == ["b", "c"]


def test_buckets_of_one_step_share_the_budget():
    controller = warmed("ab", max_ops=1)
    assert controller.observe({"a": 9.0}, 7)["a"].kind == "clip"
    assert controller.observe({"b": 99.0}, 7)["a"].kind == "recover"
    assert list(controller.refused) == ["b"]
    assert controller.report()["recoveries"] == 1
    with pytest.raises(InvalidArgumentError, match=r"'a'.*step 7 was observed already"):
        controller.observe({"a": 1.0}, 7)


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("tau", 0.99, InvalidArgumentError),
        ("tau", math.nan, InvalidArgumentError),
        ("tau", "3", DtypeError),
        ("tau_delta", 0.5, InvalidArgumentError),
        ("tau_delta", -math.inf, InvalidArgumentError),
        ("window", 0, InvalidArgumentError),
        ("warmup", -1, InvalidArgumentError),
        ("max_ops", 0, InvalidArgumentError),
        ("lock", 0, InvalidArgumentError),
        ("levels", 0, InvalidArgumentError),
        ("lock", 2**40, InvalidArgumentError),
        ("lock", 1.5, DtypeError),
    ],
)
def test_arguments_out_of_range(name, value, error):
    with pytest.raises(error, match=name):
        Controller(**{**USUAL, name: value})


@pytest.mark.parametrize(
    ("norms", "step", "error", "text"),
    [
        ({"new": 1.0, "u": -1.0}, None, InvalidArgumentError, "'u'.*norm of 0 or more"),
        ({"u": -math.inf}, None, InvalidArgumentError, "norm of 0 or more"),
        ({"u": 1.0}, 1, InvalidArgumentError, "1 comes after 2"),
        ({"u": "1"}, None, DtypeError, "str"),
        ({"u": True}, None, DtypeError, "bool"),
        ({1: 1.0}, None, DtypeError, "named by str"),
        ([1.0], None, DtypeError, "mapping"),
        ({"u": 1j}, None, DtypeError, "complex"),
        ({"u": np.complex64(1)}, None, DtypeError, "real numbers, got a complex64"),
        ({"new": 1.0, "u": np.ones(2)}, None, DtypeError, "one number for each unit"),
        ({"u": 1.0}, -1, InvalidArgumentError, "step"),
    ],
)
def test_a_refused_observation_changes_nothing(norms, step, error, text):
    controller = warmed()
    before = controller.state_dict()
    with pytest.raises(error, match=text):
        controller.observe(norms, step)
    assert controller.state_dict() == before
    assert controller.observe({"u": 1.0}) == {}


def test_unknown_units():
    controller = warmed()
    for call in (controller.level, controller.remove, controller.unit):
        with pytest.raises(InvalidArgumentError, match="none is named 'v'"):
            call("v")
    with pytest.raises(InvalidArgumentError, match="already"):
        controller.add("u")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda s: s | {"version": 2},
        lambda s: {},
        lambda s: s | {"config": s["config"] | {"window": 9}},
        lambda s: s | {"units": {"u": {"mean": 1.0}}},
        lambda s: s | {"step": 1},
        lambda s: s | {"units": {"u": s["units"]["u"] | {"level": 9}}},
        lambda s: s | {"units": {"u": s["units"]["u"] | {"mean": -1.0}}},
        lambda s: s | {"units": {"u": s["units"]["u"] | {"rho": "nan"}}},
        lambda s: s | {"units": {"u": s["units"]["u"] | {"next": s["units"]["u"]["next"] + 1}}},
        lambda s: s | {"units": {"u": s["units"]["u"] | {"until": 2**63 - 1}}},
        lambda s: s | {"units": {"u": s["units"]["u"] | {"recent": [math.nan]}}},
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(wrong):
    controller = warmed()
    before = controller.state_dict()
    with pytest.raises(InvalidArgumentError, match="state"):
        controller.load_state_dict(wrong(before))
    assert controller.state_dict() == before


def test_replay_and_calibrate_from_the_command_line(tmp_path):
    log = tmp_path / "log.jsonl"
    controller = Controller(**USUAL, log=log)
    for step in range(200):
        norms = {f"u{i}": 1 + 0.3 * math.sin(step * (i + 1)) for i in range(10)}
        controller.observe(norms | ({"u3": 9.0} if step == 100 else {}))
    runner = CliRunner()
    plot, out = tmp_path / "plot.png", tmp_path / "out.json"
    result = runner.invoke(
        main, ["gnmr", "replay", str(log), "--tau", "1.2", "--plot", str(plot), "--json", str(out)]
    )
    assert result.exit_code == 0, result.output
    found = json.loads(out.read_text())
    assert found["same"]
    assert found["run"]["totals"]["clips"] == 1
    assert found["what_if"]["totals"]["clips"] > 10
    assert plot.read_bytes().startswith(b"\x89PNG")
    result = runner.invoke(main, ["gnmr", "calibrate", str(log), "--false-alarm-rate", "0.001", "-J", str(out)])
    assert result.exit_code == 0, result.output
    found = json.loads(out.read_text())
    assert found["alarms"] <= 2
    assert 1 <= found["config"]["tau"] < 9
    assert (
        replay(log, **found["config"]).totals()["recoveries"] == found["alarms"] == calibrate(log, 1e-3).alarms
    )
    # A decision that was changed by hand is noticed.
    log.write_text(log.read_text().replace('"clip"', '"skip"'))
    result = runner.invoke(main, ["gnmr", "replay", str(log)])
    assert result.exit_code == 1
    assert "step 100, actions: u3" in result.output
    log.write_text("{}\n")
    assert runner.invoke(main, ["gnmr", "replay", str(log)]).exit_code == 2


@pytest.mark.parametrize(
    "line",
    [
        {"gnmr": 1},
        {"gnmr": 1, "config": {**USUAL, "tau": None}},
        {"gnmr": 1, "config": {**USUAL, "depth": 3}},
        {"units": 5},
        {"step": 1, "norms": [1.0]},
        {"step": None, "norms": [1.0], "actions": {}, "refused": {}},
        {"step": 2**70, "norms": [1.0], "actions": {}, "refused": {}},
        {"step": 1, "norms": 1.0, "actions": {}, "refused": {}},
        {"step": 1, "norms": [[1.0]], "actions": {}, "refused": {}},
        {"state": {"units": []}},
        {"state": 3},
        {"remove": "b"},
        {"add": 7},
        {"add": "a", "remove": "a"},
    ],
)
def test_a_log_that_is_none_is_refused(tmp_path, line):
    log = tmp_path / "log.jsonl"
    start = Controller(**USUAL, log=log)
    start.observe({"a": 1.0})
    with log.open("a", encoding="utf-8") as file:
        # Behind it something whole: a last line alone may be cut short.
        file.write(json.dumps(line) + "\n" + json.dumps({"units": ["a"]}) + "\n")
        file.write(json.dumps({"step": 3, "norms": [1.0], "actions": {}, "refused": {}}) + "\n")
    for use in (replay, lambda path: calibrate(path, 0.1)):
        with pytest.raises(GcommError):
            use(log)


def test_replay_with_an_argument_that_is_none(tmp_path):
    log = tmp_path / "log.jsonl"
    Controller(**USUAL, log=log).observe({"a": 1.0})
    with pytest.raises(TypeError, match="no argument depth"):
        replay(log, depth=3)
