#!/usr/bin/env bash
# Sets everything up and runs the demo: a small language model trained by two ranks, once with exact gradients and once
# with each codec. Arguments go to `gcomm demo` (see `gcomm demo --help`).
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
setup torch,bench
say "gcomm demo $*"
exec gcomm demo "$@"
