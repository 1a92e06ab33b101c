# shellcheck shell=bash
# Functions of the scripts in this folder, which set: script (their name),
# usage (one line), dry_run (empty or 1).
# shellcheck disable=SC2154

# Exits with one line: the problem, and the usage.
misused() {
  local line="$script: $*: $usage"
  printf '%s\n' "${line//[[:cntrl:]]/?}" >&2
  exit 2
}

# Prints the comment at the top of the script.
help() {
  sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]%/*}/$script"
  exit 0
}

# Prints a command quoted for any POSIX shell: sbatch runs it by /bin/sh, which
# does not know the $'...' of bash.
quoted() {
  local LC_ALL=C word line=
  for word in "$@"; do
    [[ $word =~ ^[A-Za-z0-9_./:=,@%+-]+$ ]] ||
      word="'${word//\'/\'\\\'\'}'"
    line+="$word "
  done
  printf '%s\n' "${line% }"
}

# Runs a command, or prints it with --dry_run.
run() {
  if [ -n "$dry_run" ]; then
    quoted "$@"
  else
    "$@"
  fi
}

# As `run`, but the command takes this script's place, and so gets its signals.
run_last() {
  [ -n "$dry_run" ] || exec "$@"
  quoted "$@"
}

# Fails unless a program is installed. $1: it; $2: what to do.
need() {
  [ -n "$dry_run" ] || command -v "$1" >/dev/null ||
    misused "$1 was not found: $2, or print the commands by --dry_run"
}

# Checks a command's flags before it waits in a queue, if .venv is there.
check_flags() {
  [ -n "$dry_run" ] || [ ! -e .venv/installed ] ||
    .venv/bin/python launch/check_flags.py "$@" || exit 2
}

# ---- Values ------------------------------------------------------------------
#
# Each value of a flag or of an environment variable passes through one of these
# before it is used. Where bash expects a number, it runs the command in
# a[$(command)]; and a program takes a value that starts with - for an option.
# With LC_ALL=C, ranges such as a-z contain no other characters.

# Sets a variable to the value of an argument. $1: the variable; $2: NAME=VALUE;
# $3: a regular expression for the whole value; $4: what is allowed.
take() {
  local LC_ALL=C
  [[ ${2#*=} =~ ^($3)$ ]] || misused "$2: must be $4"
  printf -v "$1" %s "${2#*=}"
}

# The same for a path.
take_path() {
  take "$1" "$2" '[^[:cntrl:]]+' "a path without control characters"
}

# Fails unless $1 is an integer from $2 to $3. More digits could overflow; without
# 10#, 08 would be octal.
in_range() {
  local LC_ALL=C
  [[ $1 =~ ^0*[0-9]{1,9}$ ]] && ((10#$1 >= $2 && 10#$1 <= $3))
}

# Sets a variable to an integer. $1: the variable; $2: NAME=VALUE; $3, $4: the
# smallest and the largest one.
take_number() {
  in_range "${2#*=}" "$3" "$4" ||
    misused "$2: must be an integer from $3 to $4"
  printf -v "$1" %d "$((10#${2#*=}))"
}

# Whether $1 is a host's name, an IPv4 address or an IPv6 address in brackets.
is_host() {
  local LC_ALL=C
  local byte='(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])'
  if [[ $1 == \[*\] ]]; then
    [[ $1 =~ ^\[[0-9A-Fa-f:]*:[0-9A-Fa-f:]*\]$ ]]
  elif [[ $1 == *[!0-9.]* ]]; then
    [[ $1 =~ ^[A-Za-z0-9_]+((-+|\.)[A-Za-z0-9_]+)*$ ]]
  else
    [[ $1 =~ ^($byte\.){3}$byte$ ]]
  fi
}

# Sets a variable to a host.
take_host() {
  is_host "${2#*=}" ||
    misused "$2: must be a host's name, IPv4 address or [IPv6 address]"
  printf -v "$1" %s "${2#*=}"
}

# Sets a variable to HOST:PORT. $3: the port if the value has none; empty: it must
# have one.
take_address() {
  local name=${2#*=} number=$3
  if [[ $name == *:* && $name != *']' ]]; then
    number=${name##*:} name=${name%:*}
  fi
  if ! is_host "$name" || ! in_range "$number" 1 65535; then
    misused "$2: must be HOST:PORT, with a host's name, IPv4 address or [IPv6" \
      "address] and a port from 1 to 65535"
  fi
  printf -v "$1" %s "$name:$((10#$number))"
}

# Refuses values of which two are the same. $1: what they are.
need_distinct() {
  local value known=' '
  for value in "${@:2}"; do
    [[ $known != *" $value "* ]] ||
      misused "$1: $value is there twice: all must differ"
    known+="$value "
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
    if "$python" -c '
import ensurepip, sys, venv
sys.exit("%d.%d" % sys.version_info[:2] != sys.argv[1])' "$1" >/dev/null 2>&1; then
      command -v "$python"
      return
    fi
  done
  return 1
}
