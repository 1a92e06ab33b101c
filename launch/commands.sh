# shellcheck shell=bash
# Functions of the scripts in this folder, which set: script (their name),
# usage (one line), dry_run (empty or 1).
# shellcheck disable=SC2154

# Exits with one line: the problem, and the usage.
misused() {
  echo "$script: $*: $usage" >&2
  exit 2
}

# Prints the comment at the top of the script.
help() {
  sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "launch/$script"
  exit 0
}

# Prints a command quoted for any POSIX shell: sbatch runs it by /bin/sh, which
# does not know the $'...' of bash.
quoted() {
  local word line=
  for word in "$@"; do
    [[ $word =~ ^[A-Za-z0-9_./:=,@%+-]+$ ]] ||
      word="'${word//\'/\'\\\'\'}'"
    line+="$word "
  done
  echo "${line% }"
}

# Runs a command, or prints it with --dry_run.
run() {
  if [ -n "$dry_run" ]; then
    quoted "$@"
  else
    "$@"
  fi
}

# Checks that values are positive integers; arguments: NAME VALUE ...
need_numbers() {
  while [ $# -gt 0 ]; do
    [[ $2 =~ ^[1-9][0-9]*$ ]] || misused "$1=$2 is not a positive integer"
    shift 2
  done
}

# Prints the path of an interpreter with the venv module: on the PATH, or
# installed by pyenv or uv. $1: its version, such as 3.11.
find_python() {
  local python
  local uv=${UV_PYTHON_INSTALL_DIR:-$HOME/.local/share/uv/python}
  for python in "python$1" python3 python \
    "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python \
    "$uv/cpython-$1".*/bin/python; do
    if "$python" -c "
import ensurepip, sys, venv
sys.exit('%d.%d' % sys.version_info[:2] != '$1')" >/dev/null 2>&1; then
      command -v "$python"
      return
    fi
  done
  return 1
}
