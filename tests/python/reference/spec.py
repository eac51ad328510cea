"""Codec text, read by the reference's own parser."""

from __future__ import annotations

from dataclasses import dataclass, replace

SCALED_BF16 = ("fp8_e4m3", "fp8_e5m2", "int8", "int6", "int4", "int3", "int2")
UNSCALED = ("fp32", "bf16", "fp16")
FORMATS = (*UNSCALED, *SCALED_BF16, "mxfp8", "mxfp4", "nvfp4")
BLOCK = {
    "fp32": 1, "bf16": 1, "fp16": 1, "fp8_e4m3": 128, "fp8_e5m2": 128, "int8": 128, "int6": 64, "int4": 64,
    "int3": 32, "int2": 32, "mxfp8": 32, "mxfp4": 32, "nvfp4": 16,
}  # fmt: skip
Q_MAX = {
    "fp8_e4m3": 448, "fp8_e5m2": 57344, "int8": 127, "int6": 31, "int4": 7, "int3": 3, "int2": 3, "mxfp8": 448,
    "mxfp4": 6, "nvfp4": 6,
}  # fmt: skip


@dataclass(frozen=True)
class Spec:
    """Everything that a codec's text can say."""

    format: str
    hadamard: int = 0  # 0: no transform
    seed: int = 0
    stochastic: bool = False
    search: bool = False
    nonfinite: str = "propagate"
    error_feedback: bool = False
    min_bytes: int | None = None
    crc: bool = False

    @property
    def block(self) -> int:
        """Elements that share a scale."""
        return BLOCK[self.format]

    def filled(self, count: int) -> int:
        """Elements that the format sees."""
        return -(-count // self.hadamard) * self.hadamard if self.hadamard else count


def parse(text: str) -> Spec:
    """Read "[hadamard+]format[:option=value]..."."""
    head, *options = text.split(":")
    *transform, name = head.split("+")
    assert name in FORMATS, text
    assert transform in ([], ["hadamard"]), text
    spec = Spec(name, hadamard=64 if transform else 0)
    for option in options:
        field, value = option.split("=")
        if field == "size":
            spec = replace(spec, hadamard=int(value))
        elif field == "seed":
            spec = replace(spec, seed=int(value))
        elif field == "rounding":
            spec = replace(spec, stochastic=value == "stochastic")
        elif field == "scale":
            spec = replace(spec, search=value == "search")
        elif field == "nonfinite":
            spec = replace(spec, nonfinite=value)
        elif field == "ef":
            spec = replace(spec, error_feedback=value == "1")
        elif field == "min_bytes":
            spec = replace(spec, min_bytes=int(value))
        elif field == "crc":
            spec = replace(spec, crc=value == "1")
        else:
            raise AssertionError(f"unknown option {option!r} in {text!r}")
    return spec
