#!/usr/bin/env bash
# Sets everything up and runs the tests.
#   tools/test.sh            build, layer check, native and Python tests (what CI runs; under 15 minutes on 2 cores)
#   tools/test.sh lint       ruff, mypy --strict, clang-format
#   tools/test.sh sanitize   native tests under AddressSanitizer + UBSan, then under ThreadSanitizer
#   tools/test.sh long       soak and fuzz: a million hostile messages under AddressSanitizer, long Python tests, JAX
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
tier=${1:-default}

native() {  # configure, build and run the native tests of a CMake preset; more arguments go to ctest
  local preset=$1
  shift
  cmake --preset "$preset" -G Ninja >/dev/null
  cmake --build --preset "$preset" -j "$(nproc)"
  ctest --preset "$preset" "$@"
}

case $tier in
default)
  setup torch,mpi,test -C build-dir=build/test -C cmake.define.GCOMM_BUILD_TESTS=ON -C cmake.define.GCOMM_BUILD_SHARED=ON \
    -C cmake.define.GCOMM_WERROR=ON
  say "layers"
  "$python" tools/check_layers.py
  say "native tests"
  ctest --test-dir build/test --output-on-failure -j "$(nproc)"
  say "Python tests"
  # One more than there are cores: many tests mostly wait, for deadlines above all.
  workers=$(($(nproc) + 1))
  (cd tests && pytest -q python -m "not long" -n $((workers < 5 ? workers : 5)) --dist loadgroup)
  ;;
lint)
  setup torch,test,dev
  ruff check . && ruff format --check .
  mypy
  git ls-files '*.h' '*.hpp' '*.cpp' '*.inl' | xargs clang-format --dry-run --Werror
  ;;
sanitize)
  setup test
  native asan
  native tsan
  ;;
long)
  setup torch,mpi,jax,test -C build-dir=build/test -C cmake.define.GCOMM_BUILD_TESTS=ON -C cmake.define.GCOMM_BUILD_SHARED=ON
  GCOMM_FUZZ_CASES=1000000 native asan -R fuzz --timeout 3600
  (cd tests && pytest -q python -m long --timeout 3600)
  # The default tier has no jax: it takes half a minute to install and to load.
  (cd tests && pytest -q python/test_jax.py python/test_jax_abi.py)
  ;;
*)
  sed -n '2,6p' "$0" >&2
  exit 2
  ;;
esac
