#!/usr/bin/env bash
# Make or refresh .venv: tools/make_venv.sh EXTRAS, e.g. `engine` or `engine,operator,dev`.
# Nothing is installed again while pyproject.toml, constraints.txt and the interpreter are the same.
set -euo pipefail
cd "$(dirname "$0")/.."
extras=${1:?usage: tools/make_venv.sh EXTRAS}
venv=${PACELINE_VENV:-.venv}

fail() { printf 'make_venv: %s\n' "$1" >&2; exit 1; }
say() { printf '\n--- %s\n' "$1"; }

python=
for candidate in ${PYTHON:-} python3.13 python3.12 python3.11 python3; do
  if command -v "$candidate" >/dev/null 2>&1 \
    && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    python=$candidate
    break
  fi
done
[ -n "$python" ] || fail "Python 3.11 or newer is needed, and none was found. Debian 12: apt-get install python3 python3-venv"
"$python" -c 'import ensurepip, venv' 2>/dev/null \
  || fail "$python has no venv module. Debian: apt-get install python3-venv"
command -v g++ >/dev/null 2>&1 \
  || say "no g++ here: the engine's own CPU kernels cannot be built and torch's are used, which is slower. Debian: apt-get install g++"

key=$({ cat pyproject.toml; [ -f constraints.txt ] && cat constraints.txt; "$python" -VV; pwd; } | sha256sum | cut -c1-16)
stamps=$venv/.paceline
for stamp in "$stamps"/*; do # a stamp of more extras will do as well
  [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$key" ] || continue
  have=,$(basename "$stamp"),
  missing=
  for extra in ${extras//,/ }; do [[ $have == *",$extra,"* ]] || missing=1; done
  [ -n "$missing" ] || exit 0
done

started=$SECONDS
if [ ! -x "$venv/bin/python" ] || ! "$venv/bin/python" -c 'import pip' 2>/dev/null; then
  say "making $venv with $("$python" -V)"
  "$python" -m venv "$venv"
fi
say "installing paceline[$extras] into $venv (PyTorch is large: some minutes on a first run)"
constraint=()
[ -f constraints.txt ] && constraint=(--constraint constraints.txt)
"$venv/bin/python" -m pip install --disable-pip-version-check --no-input "${constraint[@]}" \
  --editable ".[$extras]"
mkdir -p "$stamps"
printf '%s' "$key" > "$stamps/$extras"
say "$venv is ready ($((SECONDS - started)) s)"
