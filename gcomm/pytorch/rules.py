"""Which codec a parameter's gradient gets, by its name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from .._codec import Codec
from .._codec import codec as _make
from ..errors import DtypeError, InvalidArgumentError

__all__ = ["DIRECT", "Rule", "Rules"]

DIRECT = "direct"
"""As a rule's codec: the main one without its ``gift+`` and gift's options."""

_EXACT = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
_GIFT_OPTIONS = ("geometry", "mode", "rank", "refresh", "alpha", "side", "broadcast_basis")
# What any format can have, and what concerns the values rather than the format.
_COMMON_OPTIONS = ("nonfinite", "crc", "ef", "min_bytes", "rounding", "seed")
_POLICIES = ("nonfinite", "crc")
_TILE = 4096


@dataclass(frozen=True)
class Rule:
    """One rule: parameters whose names match get the codec.

    Attributes
    ----------
    pattern : str
        Of names, as in :mod:`fnmatch`: ``"*.bias"``, ``"layers.[0-3].*"``. Upper and lower case differ.
    codec : str, Codec or None
        As in :func:`gcomm.codec`; None: exact, in the parameter's own element type; :data:`DIRECT`.
    """

    pattern: str
    codec: str | Codec | None


# Names as they are usual in torch's own modules and in the model zoos; compared in lower case.
_SMALL_NAMES = ("bias", "*.bias", "*norm*")
_EMBEDDING_NAMES = ("*embed*", "emb.*", "*.emb.*", "wte.*", "*.wte.*", "wpe.*", "*.wpe.*")


class Rules:
    """Codecs by name. The first rule that matches decides; behind the given ones come the defaults.

    By default norms, biases and everything else of fewer than two dimensions travel in bf16 (in the main codec
    if that has 16 bits or more), with the main codec's options; embeddings in the main codec without ``gift+``
    (most of their rows have no gradient in a step, so their spectrum says little about the next one); and the
    rest in the main codec. End the rules with ``("*", codec)`` to have no defaults.

    Parameters
    ----------
    codec : str, Codec or None
        The main codec.
    rules : sequence of Rule or of (pattern, codec), or mapping of pattern to codec, optional
        Tried in their order.
    error_feedback : bool
        Adds ``ef=1`` to every codec that is given as text and can lose something.

    Raises
    ------
    gcomm.errors.CodecError
        A codec's text names something unknown.
    gcomm.errors.InvalidArgumentError, gcomm.errors.DtypeError
        The rules are of another form.

    Notes
    -----
    One :class:`gcomm.Codec` object a codec text, whose state (by key) is this object's.
    """

    def __init__(
        self,
        codec: str | Codec | None,
        rules: Sequence[Any] | Mapping[str, Any] | None = None,
        *,
        error_feedback: bool = False,
    ) -> None:
        self._error_feedback = error_feedback
        self._codecs: dict[str, Codec] = {}
        self._main = codec if codec is None else self._intern(codec, "codec")
        self._direct = self._derived(_without_gift)
        self._narrow = self._main
        if self._main is not None and self._main.wire_bytes(_TILE) < 2 * _TILE:
            self._narrow = self._derived(lambda spec: _with_options("bf16", spec, _COMMON_OPTIONS))
        self._rules = [(rule.pattern, self._meant(rule, i)) for i, rule in enumerate(_listed(rules))]

    @property
    def codecs(self) -> Mapping[str, Codec]:
        """The codecs made so far, by canonical text."""
        return self._codecs

    def codec_for(self, name: str, tensor: Any) -> Codec:
        """The codec of a parameter's gradient.

        Parameters
        ----------
        name : str
            The parameter's name in its model.
        tensor : torch.Tensor
            The parameter, or something with its whole shape and element type (``dim()`` and ``dtype``).
        """
        found = self._match(name, tensor)
        if found is not None:
            return found
        kind = str(tensor.dtype).removeprefix("torch.")
        exact = _EXACT.get(kind)
        if exact is None:
            raise DtypeError(f"parameter {name!r}: sums are of float32, bfloat16 or float16, got {kind}")
        if self._main is not None:
            exact = _with_options(exact, self._main.spec, _POLICIES)
        return self._keep(_make(exact))

    def _match(self, name: str, tensor: Any) -> Codec | None:
        for pattern, codec in self._rules:
            if fnmatchcase(name, pattern):
                return codec
        lower = name.lower()
        if tensor.dim() < 2 or any(fnmatchcase(lower, pattern) for pattern in _SMALL_NAMES):
            return self._narrow
        if any(fnmatchcase(lower, pattern) for pattern in _EMBEDDING_NAMES):
            return self._direct
        return self._main

    def _meant(self, rule: Rule, index: int) -> Codec | None:
        if rule.codec is None:
            return None
        if isinstance(rule.codec, str) and rule.codec == DIRECT:
            return self._direct
        return self._intern(rule.codec, f"rules[{index}]")

    def _intern(self, codec: str | Codec, what: str) -> Codec:
        if not isinstance(codec, (str, Codec)):
            raise DtypeError(
                f"{what}: expected a codec's text, a gcomm.Codec or None, got {type(codec).__name__}"
            )
        made = _make(codec)
        if isinstance(codec, str) and self._error_feedback and not _is_exact(made):
            made = _make(_with_feedback(made.spec))
        return self._keep(made)

    def _derived(self, change: Callable[[str], str]) -> Codec | None:
        """The main codec, or what a change of its text makes of it."""
        if self._main is None:
            return None
        spec = change(self._main.spec)
        return self._main if spec == self._main.spec else self._keep(_make(spec))

    def _keep(self, codec: Codec) -> Codec:
        """The one object for a codec's text."""
        return self._codecs.setdefault(codec.spec, codec)


def _without_gift(spec: str) -> str:
    if not spec.startswith("gift+"):
        return spec
    head, *options = spec.removeprefix("gift+").split(":")
    return ":".join([head, *(option for option in options if option.partition("=")[0] not in _GIFT_OPTIONS)])


def _with_options(head: str, spec: str, names: Sequence[str]) -> str:
    """A format with those options of another codec that are named."""
    _, *options = spec.split(":")
    return ":".join([head, *(option for option in options if option.partition("=")[0] in names)])


def _is_exact(codec: Codec) -> bool:
    return codec.spec.split(":")[0] == "fp32"


def _with_feedback(spec: str) -> str:
    head, *options = spec.split(":")
    return ":".join([head, *(option for option in options if not option.startswith("ef=")), "ef=1"])


def _listed(rules: Sequence[Any] | Mapping[str, Any] | None) -> Iterable[Rule]:
    if rules is None:
        return
    if isinstance(rules, (str, bytes)) or not isinstance(rules, (Sequence, Mapping)):
        raise DtypeError(f"rules: expected a list of (pattern, codec) or a dict, got {type(rules).__name__}")
    pairs = rules.items() if isinstance(rules, Mapping) else rules
    for i, each in enumerate(pairs):
        if isinstance(each, Rule):
            pattern, codec = each.pattern, each.codec
        elif isinstance(each, tuple) and len(each) == 2:
            pattern, codec = each
        else:
            raise InvalidArgumentError(f"rules[{i}]: expected (pattern, codec) or a Rule, got {each!r}")
        if not isinstance(pattern, str):
            raise DtypeError(f"rules[{i}]: expected a pattern of names, got {pattern!r}")
        yield Rule(pattern, codec)
