# Sourced by demo.sh and test.sh: makes sure of a C++ compiler, a virtual environment (the active one, or .venv) and
# gcomm installed in it. $1: extras, such as "torch,bench". $2...: more arguments for pip.
# Leaves $python and the working directory at the repository's root.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf '\n== %s\n' "$*"; }

need_debian_packages() {  # what only the system's package manager can bring
  local missing=()
  command -v c++ >/dev/null || missing+=(g++)
  command -v make >/dev/null || command -v ninja >/dev/null || missing+=(make)
  python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
  [ -e "$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["include"])')/Python.h" ] || missing+=(python3-dev)
  [ ${#missing[@]} -eq 0 ] && return
  local sudo=
  [ "$(id -u)" = 0 ] || sudo=sudo
  if ! command -v apt-get >/dev/null || ! { [ -z "$sudo" ] || command -v sudo >/dev/null; }; then
    echo "Please install first: ${missing[*]}" >&2
    exit 1
  fi
  say "installing ${missing[*]}"
  $sudo apt-get update -q
  $sudo apt-get install -y -q --no-install-recommends "${missing[@]}"
}

setup() {
  local extras=$1
  shift
  need_debian_packages
  if [ -n "${VIRTUAL_ENV:-}" ]; then
    python=$VIRTUAL_ENV/bin/python
  else
    [ -x .venv/bin/python ] || python3 -m venv .venv
    python=$PWD/.venv/bin/python
  fi
  export PATH="$(dirname "$python"):$PATH"
  say "installing gcomm[$extras] into $(dirname "$(dirname "$python")")"
  "$python" -m pip install -q --upgrade 'pip>=24'
  # The build's own requirements are installed beside it, so that a second run compiles only what changed.
  "$python" -m pip install -q -c tools/constraints.txt 'scikit-build-core>=0.11' 'nanobind>=2.9' 'cmake>=3.22' ninja
  "$python" -m pip install -q -c tools/constraints.txt --no-build-isolation "$@" -e ".[$extras]"
}
