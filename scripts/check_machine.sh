#!/bin/sh
# Is what the build needs there?  One line that says what to do when not.
# Usage: check_machine.sh PYTHON
set -eu
python=$1

fail() {
    echo "ponytail: $1" >&2
    exit 1
}

command -v "$python" >/dev/null || fail "$python not found; apt install python3 python3-venv"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$("$python" -V) is too old, 3.11 or newer is needed; make PYTHON=/path/to/python3.11"
"$python" -c 'import venv, ensurepip' 2>/dev/null ||
    fail "Python's venv module is missing; apt install python3-venv"
[ -n "${CXX:-}" ] || command -v g++ >/dev/null || command -v clang++ >/dev/null ||
    fail "no C++ compiler (g++ or clang++); apt install build-essential"
