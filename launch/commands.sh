# shellcheck shell=bash
# Read by the scripts beside it: what they run, or with --dry_run print.
# They set: script (their name), usage (one line), dry_run (empty or 1).
# shellcheck disable=SC2154

# Ends with one line: what is wrong, and how the script is called.
misused() {
  echo "$script: $*: $usage" >&2
  exit 2
}

# Prints the comment at the top of the script.
help() {
  sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "launch/$script"
  exit 0
}

# The words of a command as a shell reads them.
quoted() {
  local word line=
  for word in "$@"; do
    [[ $word =~ ^[A-Za-z0-9_./:=,@%+-]+$ ]] || word=${word@Q}
    line+="$word "
  done
  echo "${line% }"
}

# Runs a command; with --dry_run prints it.
run() {
  if [ -n "$dry_run" ]; then
    quoted "$@"
  else
    "$@"
  fi
}

# Ends unless each of the named values is a whole number above 0: name value ...
need_numbers() {
  while [ $# -gt 0 ]; do
    [[ $2 =~ ^[1-9][0-9]*$ ]] || misused "$1=$2 is no number above 0"
    shift 2
  done
}
