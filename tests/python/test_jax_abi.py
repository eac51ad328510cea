"""bindings/xla_ffi.h declares what XLA's own header does: sizes, offsets and numbers, by the compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

jax = pytest.importorskip("jax", reason="jax is not installed: pip install 'gcomm[jax]'")

BINDINGS = Path(__file__).parents[2] / "bindings"
# Ours, XLA's, and the fields of both in order.
STRUCTS = [
    ("Extension", "Extension_Base", "struct_size type next"),
    (
        "ApiVersion",
        "Api_Version",
        "struct_size extensions=extension_start major_version minor_version",
    ),
    ("ErrorCreateArgs", "Error_Create_Args", "struct_size extensions=extension_start message code=errc"),
    ("Buffer", "Buffer", "struct_size extensions=extension_start dtype data rank dims"),
    ("ByteSpan", "ByteSpan", "data=ptr size=len"),
    ("Scalar", "Scalar", "dtype value"),
    ("Values", "Args", "struct_size extensions=extension_start size types values=args"),
    ("Values", "Rets", "struct_size extensions=extension_start size types values=rets"),
    ("Attributes", "Attrs", "struct_size extensions=extension_start size types names values=attrs"),
    (
        "CallFrame",
        "CallFrame",
        "struct_size extensions=extension_start api context=ctx stage arguments=args results=rets "
        "attributes=attrs future",
    ),
    ("Metadata", "Metadata", "struct_size version=api_version traits state_type_id"),
    ("MetadataExtension", "Metadata_Extension", "base=extension_base metadata"),
]
NUMBERS = {
    "kMajorVersion": "API_MAJOR",
    "kMetadataExtension": "Extension_Metadata",
    "kBufferArgument": "ArgType_BUFFER",
    "kScalarAttribute": "AttrType_SCALAR",
    "kStringAttribute": "AttrType_STRING",
    "kExecuteStage": "ExecutionStage_EXECUTE",
    **{
        f"DataType::k{name.title() if name == 'TOKEN' else name}": f"DataType_{name}"
        for name in ("S64", "F16", "F32", "F64", "BF16", "TOKEN")
    },
    **{
        "Code::k" + "".join(word.title() for word in name.split("_")): f"Error_Code_{name}"
        for name in (
            "INVALID_ARGUMENT",
            "DEADLINE_EXCEEDED",
            "RESOURCE_EXHAUSTED",
            "FAILED_PRECONDITION",
            "ABORTED",
            "UNIMPLEMENTED",
            "INTERNAL",
            "UNAVAILABLE",
            "DATA_LOSS",
        )
    },
}


def source() -> str:
    lines = ['#include "xla/ffi/api/c_api.h"', '#include "xla_ffi.h"', "using namespace gcomm_python::xla;"]
    for ours, theirs, fields in STRUCTS:
        lines.append(f"static_assert(sizeof({ours}) == sizeof(XLA_FFI_{theirs}));")
        for field in fields.split():
            mine, _, other = field.partition("=")
            lines.append(
                f"static_assert(offsetof({ours}, {mine}) == offsetof(XLA_FFI_{theirs}, {other or mine}));"
            )
    for ours, theirs in (("version", "api_version"), ("error_create", "XLA_FFI_Error_Create")):
        lines.append(f"static_assert(offsetof(Api, {ours}) == offsetof(XLA_FFI_Api, {theirs}));")
    for ours, theirs in NUMBERS.items():
        lines.append(f"static_assert(static_cast<int>({ours}) == static_cast<int>(XLA_FFI_{theirs}));")
    return "\n".join(lines)


def test_declarations_are_xlas(tmp_path: Path) -> None:
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    file = tmp_path / "abi.cpp"
    file.write_text(source())
    command = [
        compiler,
        "-std=c++20",
        "-fsyntax-only",
        f"-I{BINDINGS}",
        f"-I{jax.ffi.include_dir()}",
        str(file),
    ]
    compiled = subprocess.run(command, capture_output=True, text=True, check=False)
    assert compiled.returncode == 0, compiled.stderr
