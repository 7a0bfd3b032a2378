#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# Tests of ./run: what it installs and when, in a machine made of fakes. Each fake writes its command line to
# $calls; only what is in $bin can be found. Prints "FAILED case" for each that failed, then the sums.
# shellcheck disable=SC2016,SC2034  # check() expands its conditions.
set -euo pipefail
source_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
bin=$scratch/bin
calls=$scratch/calls
passed=0
failed=0

# fake NAME [SCRIPT]: a command that writes down how it was called, then does SCRIPT.
fake() {
  printf '#!/bin/bash\necho "%s $*" >>"%s"\n%s\n' "$1" "$calls" "${2:-}" >"$bin/$1"
  chmod +x "$bin/$1"
}

# A machine with root, no sudo, and nothing installed but $1 (names, with spaces between).
machine() {
  local tool
  rm -rf "$bin" "$scratch/tree"
  mkdir -p "$bin" "$scratch/tree/tests/run"
  : >"$calls"
  cp "$source_dir/run" "$source_dir/CMakePresets.json" "$scratch/tree"
  cp "$source_dir/tests/run/sum_up.py" "$scratch/tree/tests/run"
  cat >"$scratch/tree/packages.txt" <<'EOF'
# A comment: build, format

compiler   # build: compiles
ninja      # build,bench: builds
clang      # clang: compiles too
pretty     # format: formats
nodejs     # format: runs
EOF
  for tool in bash cat cut dirname env grep mkdir nproc rm sed sleep tail touch tr; do
    ln -s "$(command -v "$tool")" "$bin/$tool"
  done
  fake python3 "PATH='$PATH' exec python3 \"\$@\""
  fake id 'echo 0'
  fake dpkg-query "for name in \"\${@:3}\"; do
    if [[ ' $1 ' == *\" \$name \"* ]]; then echo \"\$name installed\"; else echo \"\$name not-installed\"; fi
  done"
  fake apt-get
  fake git 'echo a.cc'
  fake clang-format
  # Does what ./run relies on: configuring leaves build.ninja, and cmake --build the last.
  fake cmake '[[ $1 == --preset ]] && mkdir -p "build/$2" && touch "build/$2/build.ninja"; exit 0'
}

# run_in_machine ARG...: sets $output and $status.
run_in_machine() {
  status=0
  output=$(cd / && PATH=$bin CI='' "$scratch/tree/run" "$@" 2>&1 </dev/null) || status=$?
}

called() { grep -E "^$1 " "$calls" || true; }

# check CASE CONDITION...: counts a case; CONDITION is a test of [[ ]] in one string.
check() {
  if eval "[[ $2 ]]"; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    printf 'FAILED %s\n  status %s\n  output %s\n  calls:\n%s\n' "$1" "$status" "$output" "$(cat "$calls")"
  fi
}

machine 'pretty nodejs'
run_in_machine format
check NothingMissingCallsNoApt '$status == 0 && -z $(called apt-get)'

machine 'compiler'
run_in_machine build dev
check RootInstallsExactlyTheMissingOnes \
  '$status == 0 && $(called apt-get | tail -n 1) == *"install -y --no-install-recommends ninja"'
check ListsAreUpdatedOnceBefore '$(called apt-get | grep -c .) == 2 && $(called apt-get) == *update*install*'

machine ''
run_in_machine build clang
check CommandInstallsOnlyItsGroups '$(called apt-get | tail -n 1) == *" compiler ninja clang"'

machine 'pretty'
fake node
fake npm
run_in_machine format
check AnyNodeWillDo '$status == 0 && -z $(called apt-get)'

machine 'pretty'
fake node
run_in_machine format
check NodeWithoutNpmIsNotEnough '$(called apt-get | tail -n 1) == *" nodejs"'

machine 'compiler'
fake id 'echo 1000'
run_in_machine build dev
check NeitherRootNorSudoNamesThePackages '$status == 1 && $output == *"apt-get install"*" ninja" && -z $(called apt-get)'
check NeitherRootNorSudoDoesNoMore '-z $(called cmake)'

machine 'compiler'
fake id 'echo 1000'
fake sudo 'exit 1'
run_in_machine build dev
check SudoThatWantsAPasswordIsNotAsked '$status == 1 && $output == *" ninja" && -z $(called apt-get)'
check SudoNeverPrompts '$(called sudo) == "sudo -n true"'

machine 'compiler'
fake id 'echo 1000'
fake sudo 'shift; exec "$@"'
fake true
run_in_machine build dev
check SudoInstalls '$status == 0 && $(called apt-get | tail -n 1) == *" ninja"'
check SudoKeepsTheInstallQuiet '$(called sudo | tail -n 1) == *DEBIAN_FRONTEND=noninteractive*'

machine 'compiler'
rm "$bin/apt-get"
run_in_machine build dev
check NoAptNamesThePackages '$status == 1 && $output == *" ninja"'

machine 'compiler'
fake apt-get '[[ $* == *install* ]] && echo E: no such thing && exit 100; exit 0'
run_in_machine build dev
check FailedInstallShowsWhy '$status == 1 && $output == *"no such thing"* && -z $(called cmake)'

machine 'compiler ninja'
run_in_machine build dev
run_in_machine build dev
check SecondBuildDoesNotConfigure '$status == 0 && $(called cmake | grep -c -- "--preset dev -D") == 1'
check BuildIsQuietInAPipe '-z $output'

machine 'compiler'
mkdir -p "$scratch/tree/build/dev"
touch "$scratch/tree/build/dev/build.ninja"
echo 'cmake --preset dev -DSTACKPIPE_WERROR=OFF' >"$scratch/tree/build/dev/configured"
run_in_machine build dev
check NewPackagesConfigureAgain '$(called cmake | grep -c -- "--preset dev -D") == 1'

machine 'compiler ninja'
run_in_machine build release
CI=true PATH=$bin "$scratch/tree/run" build release
check OtherOptionsConfigureAgain '$(called cmake | grep -c -- "-DSTACKPIPE_WERROR=ON") == 1'

machine 'compiler ninja'
fake cmake '[[ $1 == --build ]] && echo error: no && exit 1; mkdir -p "build/$2" && touch "build/$2/build.ninja"'
run_in_machine build dev
check FailedBuildShowsTheEndOfItsLog '$status == 1 && $output == *"error: no"* && $output == *build/dev/log/build.log*'
run_in_machine test
check FailedBuildsAreFailures '$status == 1 && $output == *$'"'\n'"'"0 passed, 3 failed, 0 skipped"'

machine ''
run_in_machine
check NoCommandIsAnError '$status == 2 && $output == usage:*'
run_in_machine frobnicate
check UnknownCommandIsAnError '$status == 2 && $output == usage:* && -z $(called apt-get)'
mkdir -p "$scratch/tree/build/dev" "$scratch/tree/out"
run_in_machine clean
check CleanNeedsNothing '$status == 0 && ! -e $scratch/tree/build && ! -e $scratch/tree/out && -z $(called apt-get)'

printf '%s passed, %s failed, 0 skipped\n' "$passed" "$failed"
((failed == 0))
