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
