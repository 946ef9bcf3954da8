#!/usr/bin/env bash
# Make the virtual environment $1 with the first suitable interpreter, and install the project with its tools.
set -euo pipefail

venv=$1

suits() { "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
    local candidate
    for candidate in ${PYTHON:+"$PYTHON"} python3.11 python3.12 python3.13 python3.14 python3; do
        if suits "$candidate"; then
            command -v "$candidate"
            return 0
        fi
    done
    return 1
}

if ! suits "$venv/bin/python"; then
    if ! python=$(find_python); then
        cat >&2 <<'EOF'
There is no Python 3.11 or newer with its venv module here. Install one, for example
    apt-get install python3.11 python3.11-venv        (Debian, Ubuntu; as root)
or name one: make PYTHON=/path/to/python3.11 …
EOF
        exit 1
    fi
    echo "Making the virtual environment $venv with $("$python" --version) …" >&2
    rm -rf "$venv"
    "$python" -m venv "$venv"
fi

echo "Installing packages …" >&2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! PIP_DISABLE_PIP_VERSION_CHECK=1 "$venv/bin/python" -m pip install --quiet -e '.[dev]' >"$log" 2>&1 </dev/null; then
    cat "$log" >&2
    echo "The packages could not be installed: see above." >&2
    exit 1
fi
