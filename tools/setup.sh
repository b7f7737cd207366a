#!/usr/bin/env bash
# Set up .venv in the checkout from the lock file. A second call without changes takes a moment.
# It installs a virtual environment with the locked Python packages (about 600 MB, most of it PySpark). If Java 17 or newer is
# missing, it also installs openjdk-17-jre-headless for PySpark, as root on Debian or Ubuntu. Downloads use pip's own cache.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 2; }

suits() { # PYTHON: whether it has a supported version, and can create a virtual environment
    command -v "$1" >/dev/null 2>&1 \
        && "$1" -c 'import ensurepip, sys; sys.exit(not ((3, 11) <= sys.version_info[:2] <= (3, 13)))' 2>/dev/null
}

find_python() {
    local candidate found own
    if [ -n "${PYTHON:-}" ]; then
        found=$("$PYTHON" --version 2>&1 | tr '\n' ' ' || true)
        suits "$PYTHON" || fail "PYTHON=$PYTHON is not Python 3.11, 3.12 or 3.13 with the modules venv and ensurepip${found:+ (it printed: ${found% })}. Set it to one that is, or unset it."
        command -v "$PYTHON"
        return
    fi
    # the one that .venv was made with, or a call without PYTHON would replace what a call with it has installed; then
    # the system's: distributions optimise their build with profiles, and it needs a tenth less CPU than pyenv's
    own=$(.venv/bin/python -c 'import sys; print(sys._base_executable)' 2>/dev/null || true)
    for candidate in "$own" /usr/bin/python3 python3.11 python3.12 python3.13 python3; do
        if suits "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    fail "Python 3.11, 3.12 or 3.13 is needed and none was found that has venv. Debian 12: apt-get install python3 python3-venv. Or set PYTHON=/path/to/python."
}

digest() { # PYTHON FILE…: changes with the files, the Python version and the folder
    "$1" -c 'import sys, hashlib, pathlib; print(sys.version.split()[0], pathlib.Path.cwd(), hashlib.sha256(b"".join(pathlib.Path(f).read_bytes() for f in sys.argv[1:])).hexdigest())' "${@:2}"
}

is_current() { # STAMP WANTED: whether the stamp has the wanted content
    [ -f ".venv/$1" ] && [ "$(cat ".venv/$1")" = "$2" ]
}

ensure_venv() {
    local python locked project missing
    python=$(find_python)
    locked=$(digest "$python" requirements.lock)
    project=$(digest "$python" pyproject.toml)
    if ! is_current headgate-locked "$locked" || ! .venv/bin/python -c '' 2>/dev/null; then
        [ ! -L .venv ] || fail ".venv is a link, and a new environment would replace the content of $(readlink -f .venv). Remove the link first."
        say "creating .venv with $("$python" --version) (locked packages; the first time downloads about 600 MB, which takes a few minutes)"
        "$python" -m venv --clear .venv || fail "cannot create a virtual environment. Debian: apt-get install python3-venv"
        say "installing the locked packages …"
        # pip checks the hashes. The lock has all packages; without --no-deps, pip also tries newer releases of a dependency with an
        # extra, and fails because they have no hash. PySpark is a source archive; pip builds a wheel and caches it.
        awk '/^[a-z]/ { wanted = /^pip==/ } wanted' requirements.lock >.venv/pip.lock
        for lock in .venv/pip.lock requirements.lock; do # the newer pip first: Debian 12's needs twice its CPU time
            .venv/bin/python -m pip install --disable-pip-version-check --progress-bar off --no-deps --require-hashes --no-compile -r "$lock" 2>&1 || exit 1
        done | awk '/ERROR|error:/ { failed = 1 }
                failed { print "setup:   " $0; fflush(); next }
                /^Collecting|^Building|^Installing/ { n++; if (/Installing|pyspark/ || n % 10 == 1) { print "setup:   " substr($0, 1, 100); fflush() } }' \
            || fail "pip could not install the locked packages: see the lines above"
        # on every core, where pip would use one; a few packages have files that are not valid Python
        .venv/bin/python -m compileall -qq -j 0 .venv/lib >/dev/null || true
        missing=$(.venv/bin/python -m pip --disable-pip-version-check check) || fail "requirements.lock is not complete, run make lock: $missing"
        printf '%s\n' "$locked" >.venv/headgate-locked
    fi
    if ! is_current headgate-project "$project" || ! .venv/bin/headgate --version >/dev/null 2>&1; then
        .venv/bin/python -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation -e . \
            || fail "Headgate itself could not be installed"
        printf '%s\n' "$project" >.venv/headgate-project
        say "done: $(.venv/bin/headgate --version)"
    fi
}

java_major() {
    local java="${JAVA_HOME:+$JAVA_HOME/bin/}java"
    "$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1
}

ensure_java() {
    local major
    major=$(java_major || true)
    if [ "${major:-0}" -ge 17 ] 2>/dev/null; then
        return
    fi
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        say "Java 17 is missing (PySpark runs on it): installing openjdk-17-jre-headless with apt-get"
        apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq openjdk-17-jre-headless >/dev/null \
            || fail "apt-get could not install openjdk-17-jre-headless; install Java 17 or newer and set JAVA_HOME"
        return
    fi
    fail "Java 17 or newer is needed for the evaluation (PySpark) and was not found. Debian or Ubuntu: sudo apt-get install openjdk-17-jre-headless. Or set JAVA_HOME."
}

ensure_venv
ensure_java
