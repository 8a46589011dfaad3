# Sourced by the scripts in this folder and in tools/. Finds a Python, and creates the environment that they share.
#
# ROOT is the checkout. `ensure_venv` sets VENV to a virtual environment with pytriton-daemon, installed from the checkout
# (editable), and its `dev` extra; `ensure_venv demo` uses another extra. It is created once per Python version, in .venv/,
# and updated when pyproject.toml changes; otherwise `ensure_venv` returns at once. The `dev` environment contains the
# packages of all extras, so it is used instead of the others if it exists.
# Environment: PYTHON  the interpreter to use instead of the first suitable one on PATH

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
VENV=

# Many container images set this. A daemon that runs from a checkout and may not write bytecode would compile all modules
# at each start.
unset PYTHONDONTWRITEBYTECODE

say() { printf '[%s] %s\n' "$(basename "$0")" "$*"; }

die() {
  printf '[%s] error: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}

# Prints "3.11 /usr/bin/python3.11" if $1 is Python 3.9 or newer and can install packages. If $1 is the interpreter of a
# virtual environment, which may be the one that ensure_venv replaces, prints the interpreter that it was created with.
probe_python() {
  "$1" - 2>/dev/null <<'PY'
import importlib.util, os, sys
assert sys.version_info >= (3, 9)
assert importlib.util.find_spec("pip") or importlib.util.find_spec("ensurepip")
print("%d.%d" % sys.version_info[:2], os.path.realpath(sys._base_executable))
PY
}

find_python() {
  local candidate
  if [ -n "${PYTHON:-}" ]; then
    probe_python "$PYTHON" ||
      die "PYTHON=$PYTHON does not work: it must be Python 3.9 or newer, with pip. Unset it, or set another interpreter."
    return
  fi
  for candidate in python3.11 python3.12 python3.10 python3; do
    probe_python "$candidate" && return
  done
  die "no Python 3.9 or newer with pip found (tried python3.11, python3.12, python3.10, python3)." \
    "Install one, or name it: PYTHON=/path/to/python $0"
}

# make_venv PYTHON FOLDER: creates a virtual environment with venv or, if the system's Python lacks it, with virtualenv.
make_venv() {
  rm -rf "$2"
  if "$1" -m venv "$2" >/dev/null 2>&1; then return; fi
  rm -rf "$2"
  say "this Python has no venv; downloading virtualenv"
  "$1" -m pip install --quiet --disable-pip-version-check --target "$2.virtualenv" virtualenv ||
    die "could not download virtualenv (see above); install your system's python3-venv package and try again"
  PYTHONPATH="$2.virtualenv" "$1" -m virtualenv --quiet "$2" || die "virtualenv failed (see above)"
  rm -rf "$2.virtualenv"
}

# Installs uv outside of the environment: tests and demos run as for users who have none.
UV=$ROOT/.venv/uv/bin/uv
ensure_uv() {
  [ -x "$UV" ] || "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade --only-binary :all: --target "$ROOT/.venv/uv" uv
}

# install_packages REQUIREMENT...: installs packages and the newest pip in the environment, and prints a line for each large
# download. uv takes a fifth of pip's time, but ignores pip's settings, such as its index: if it fails, pip tries. Modules are
# compiled when they are imported: most never are, and compiling all of them would take longer than the rest.
install_packages() {
  local log="$VENV/install.log" pip=("$VENV/bin/python" -m pip install --disable-pip-version-check --progress-bar off --no-compile)
  if ensure_uv >"$log" 2>&1 &&
    "$UV" pip install --python "$VENV/bin/python" --upgrade-package pip pip "$@" 2>&1 | tee "$log" | sed -un 's/^Downloading/    &/p'; then
    return
  fi
  say "uv failed: $(tail -n 1 "$log"); trying pip"
  # The pip bundled with Python may be years old, and take twice as long.
  "${pip[@]}" --upgrade pip >>"$log" 2>&1 || say "could not upgrade pip: $(tail -n 1 "$log")"
  if ! "${pip[@]}" "$@" 2>&1 | tee -a "$log" | sed -un 's/^ *Downloading/    &/p'; then
    tail -n 30 "$log" >&2
    die "pip could not install the packages (its last lines are above; the full log is $log)"
  fi
}

# Replaces the hook with which setuptools makes the checkout importable. That hook imports half of the standard library in
# every interpreter, which doubles its start time, and a test run starts two thousand. This one only finds `pytriton`. It
# is a new file, because uv hard-links the old one to its cache.
find_checkout_fast() {
  local pth
  pth=$(echo "$VENV"/lib/python*/site-packages/__editable__.pytriton_daemon-*.pth)
  [ -f "$pth" ] || die "setuptools has not created $pth; a newer version may use another name. Adapt find_checkout_fast in scripts/common.sh."
  cat >"$pth.new" <<PTH
import sys, _frozen_importlib_external as e; sys.meta_path.append(type("Checkout", (), {"find_spec": staticmethod(lambda name, path=None, target=None, find=e.PathFinder.find_spec: find(name, [r"""$ROOT"""]) if name == "pytriton" else None)}))
PTH
  mv "$pth.new" "$pth"
}

ensure_venv() {
  local extra=${1:-dev} found version python stamp key folder
  found=$(find_python) || exit 1
  version=${found%% *} python=${found#* }
  key="$ROOT $python $(cksum <"$ROOT/pyproject.toml")"
  folder=py$version
  if [ "$(cat "$ROOT/.venv/$folder/stamp" 2>/dev/null)" != "$key" ] && [ "$extra" != dev ]; then
    folder=$extra-py$version
  fi
  VENV=$ROOT/.venv/$folder stamp=$ROOT/.venv/$folder/stamp
  mkdir -p "$ROOT/.venv"
  # Lock, because a demo and a test run may start together. The lock ends with the subshell's descriptor.
  exec 9>"$ROOT/.venv/lock"
  if command -v flock >/dev/null; then flock 9; fi
  if [ "$(cat "$stamp" 2>/dev/null)" != "$key" ]; then
    # Recreate the environment if its folder was moved or its Python replaced. pip handles all other changes.
    if ! grep -qsF "$ROOT $python " "$stamp"; then
      say "creating a virtual environment with Python $version in .venv/$folder"
      make_venv "$python" "$VENV"
    fi
    say "installing packages (a minute or two the first time)"
    install_packages -e "$ROOT[$extra]"
    find_checkout_fast
    printf '%s\n' "$key" >"$stamp"
    say "environment ready"
  fi
  exec 9>&-
}

# Creates the environment of the scripts that run Ray, with the extra packages in the arguments. It is separate because Ray
# is large, and nothing else needs it.
ensure_fleet_venv() {
  local found stamp key
  VENV=$ROOT/.venv/fleet stamp=$ROOT/.venv/fleet/stamp
  key="$ROOT $* $(cksum <"$ROOT/pyproject.toml")"
  if [ "$(cat "$stamp" 2>/dev/null)" = "$key" ]; then return; fi
  if [ ! -x "$VENV/bin/python" ]; then
    found=$(find_python) || exit 1
    mkdir -p "$ROOT/.venv"
    make_venv "${found#* }" "$VENV"
  fi
  say "installing Ray and HAProxy (a minute or two the first time)"
  install_packages -e "$ROOT[ray]" "$@"
  find_checkout_fast
  printf '%s\n' "$key" >"$stamp"
}

# Runs a command in its own network namespace if possible, because Ray listens on every address.
run_apart() {
  local how apart=()
  for how in "unshare --net" "unshare --net --map-root-user"; do
    if $how true 2>/dev/null; then
      read -ra apart <<<"$how"
      export RUNS_APART=1
      break
    fi
  done
  export RAY_USAGE_STATS_ENABLED=0
  exec "${apart[@]}" "$@"
}
