#!/bin/sh
# Installs Sampan on this machine and starts it: from a clone of the repository, or with SAMPAN_BINARY=path.
#
#   ./install.sh [server|agent] [options of that subcommand]
#
# Run again, it upgrades: options that are not given again stay as they were. `sampan uninstall` is the way back.
#
# Environment:
#   SAMPAN_BINARY       executable to install in place of building one
#   SAMPAN_BIN_DIR      where the executable goes (default /usr/local/bin)
#   SAMPAN_SKIP_START   set to 1 to install without starting
#   Every option of `sampan server` and `sampan agent` also exists as an environment variable (see README.md);
#   those set here are handed to the service.
set -eu

say() { printf '%s\n' "sampan: $*"; }
fail() {
    printf '%s\n' "sampan: $*" >&2
    exit 1
}

here=$(cd "$(dirname "$0")" && pwd)
etc=/etc/sampan
list=$etc/installed   # what was installed, for `sampan uninstall`
arguments=$etc/arguments # role and options of the service, one a line, for the next run of this script
new_list=""
root=""
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null 2>&1 || fail "run this as root, or install sudo"
    root=sudo
fi
as_root() { $root "$@"; }
# put FILE MODE: writes standard input to a file, in one step.
put() {
    # shellcheck disable=SC2016 # the inner shell expands these
    as_root sh -c 'umask 077; cat >"$1.new" && chmod "$2" "$1.new" && mv -f "$1.new" "$1"' put "$1" "$2"
}
# /usr/sbin holds Debian's runc and is not on every user's PATH.
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
export PATH

# --- role and options: as given, else as they were -------------------------------------------------------------------

for word in "$@"; do
    case $word in
    -h | --help)
        sed -n '2,/^set -eu/s/^# \{0,1\}//p' "$0" | sed '/^set -eu/d'
        exit 0
        ;;
    esac
done

role=""
case ${1:-} in
server | agent)
    role=$1
    shift
    ;;
-* | "") ;;
*) fail "unknown word $1: ./install.sh [server|agent] [options]" ;;
esac

# The table in README.md holds every option, so that a slip is told before a long build; the executable looks again.
known_options() {
    sed -n 's/^| `--\([a-z-]*\)\(=\{0,1\}\)[^`]*` | [a-z]* |.*/\1\2/p' "$here/README.md" 2>/dev/null
    echo config=
}
# nearest WORD: of the options on standard input the one that fewest changed letters lead to, if they are few.
nearest() {
    WORD=$1 awk '
        function distance(a, b, i, j, row, old, next_old, cost) {
            for (j = 0; j <= length(b); j++) row[j] = j
            for (i = 1; i <= length(a); i++) {
                old = row[0]; row[0] = i
                for (j = 1; j <= length(b); j++) {
                    next_old = row[j]
                    cost = old + (substr(a, i, 1) != substr(b, j, 1))
                    if (row[j] + 1 < cost) cost = row[j] + 1
                    if (row[j - 1] + 1 < cost) cost = row[j - 1] + 1
                    row[j] = cost; old = next_old
                }
            }
            return row[length(b)]
        }
        { sub(/=$/, ""); d = distance(ENVIRON["WORD"], $0); if (NR == 1 || d < best) { best = d; name = $0 } }
        END { if (best <= 3) print name }'
}
refuse_unknown() {
    options=$(known_options)
    [ "$options" != config= ] || return 0
    takes_value=0
    for word in "$@"; do
        name=${word#--}
        name=${name%%=*}
        if [ "$takes_value" = 1 ]; then
            takes_value=0
        elif [ "$word" = "$name" ] || ! printf '%s\n' "$options" | grep -qx -e "$name=\{0,1\}"; then
            near=$(printf '%s\n' "$options" | nearest "$name")
            fail "unknown option ${word%%=*}${near:+ (did you mean --$near?)}: README.md lists those that there are; nothing was done"
        elif [ "$word" = "--$name" ] && printf '%s\n' "$options" | grep -qx -e "$name="; then
            takes_value=1
        fi
    done
    [ "$takes_value" = 0 ] || fail "--$name needs a value; nothing was done"
}
refuse_unknown "$@"

if as_root test -f "$arguments"; then
    kept_role=$(as_root sed -n 1p "$arguments")
    [ -z "$role" ] || [ "$role" = "$kept_role" ] ||
        fail "this machine is installed as $kept_role: run \`sampan uninstall\` before you make another role of it ($role)"
    role=$kept_role
    if [ $# = 0 ]; then
        # Lines become words again, whatever is in them.
        kept=$(as_root sed '1d' "$arguments")
        if [ -n "$kept" ]; then
            old_ifs=$IFS
            IFS='
'
            set -f
            # shellcheck disable=SC2086 # split at line ends
            set -- $kept
            set +f
            IFS=$old_ifs
        fi
        say "options as before: $role${*:+ $*}"
    fi
fi
if [ -z "$role" ] && as_root test -f "$list"; then
    # A first start that failed has left no arguments, but perhaps data.
    kept_data=$(as_root sed -n 's/^data-dir //p' "$list" | head -n 1)
    if as_root test -f "$kept_data/agent/tls/server-ca.crt" && ! as_root test -d "$kept_data/server"; then
        fail "this machine is an agent, and its options are not known: ./install.sh agent --server https://FIRST-MACHINE:6443"
    fi
fi
role=${role:-server}
# Every user of a machine can read the options of a process, but not its environment: the token goes there.
left=$#
while [ "$left" -gt 0 ]; do
    word=$1
    shift
    left=$((left - 1))
    case $word in
    *'
'*) fail "an option with a line break cannot be kept: put it into $etc/config.yaml" ;;
    --token=*) export SAMPAN_TOKEN="${word#*=}" ;;
    --token)
        [ "$left" -gt 0 ] || fail "--token needs a value"
        export SAMPAN_TOKEN="$1"
        shift
        left=$((left - 1))
        ;;
    *) set -- "$@" "$word" ;;
    esac
done

# option NAME ENVIRONMENT DEFAULT OPTIONS...: the value that the service will see (flag, environment, file, default).
option() {
    name=$1 value=$(eval "printf '%s' \"\${$2:-}\"") default=$3
    shift 3
    [ -n "$value" ] || value=$(kept_environment "SAMPAN_$(printf '%s' "$name" | tr 'a-z-' 'A-Z_')")
    [ -n "$value" ] || value=$(as_root sed -n "s/^$name: *[\"']\{0,1\}\([^\"'#]*[^\"'# ]\).*/\1/p" "$etc/config.yaml" 2>/dev/null | head -n 1)
    take=0
    for word in "$@"; do
        case $take$word in
        1*) value=$word take=0 ;;
        0--"$name"=*) value=${word#*=} ;;
        0--"$name") take=1 ;;
        esac
    done
    printf '%s' "${value:-$default}"
}
kept_environment() { as_root sed -n "s/^$1=//p" "$etc/sampan.env" 2>/dev/null | sed 's/^"\(.*\)"$/\1/' | head -n 1; }
# switched NAME ENVIRONMENT OPTIONS...: whether a switch is on.
switched() {
    name=$1 variable=$2
    shift 2
    for word in "$@"; do
        [ "$word" != "--$name" ] || return 0
    done
    [ "$(option "$name" "$variable" false "$@")" = true ]
}

data_dir=$(option data-dir SAMPAN_DATA_DIR /var/lib/sampan "$@")
kubeconfig=$(option write-kubeconfig SAMPAN_WRITE_KUBECONFIG "$etc/sampan.yaml" "$@")
port=$(option https-listen-port SAMPAN_HTTPS_LISTEN_PORT 6443 "$@")
if [ "$role" = agent ]; then
    [ -n "$(option server SAMPAN_SERVER "" "$@")" ] || fail "an agent needs --server https://FIRST-MACHINE:6443 (and --token, from $data_dir/server/node-token there)"
fi
bin_dir=${SAMPAN_BIN_DIR:-}
[ -n "$bin_dir" ] || bin_dir=$(as_root sed -n 's|^file \(.*\)/sampan$|\1|p' "$list" 2>/dev/null | head -n 1)
bin_dir=${bin_dir:-/usr/local/bin}

# --- packages --------------------------------------------------------------------------------------------------------

# One row for each package manager: its command, how to install, what to call before. None of them removes anything.
install_packages() {
    if command -v apt-get >/dev/null 2>&1; then
        as_root apt-get update -qq
        # The simulation says what would happen: whoever would lose a package (Docker's containerd, say) keeps it.
        removed=$(as_root apt-get install -s --no-install-recommends "$@" | sed -n 's/^Remv \([^ ]*\).*/\1/p' | tr '\n' ' ')
        [ -z "$removed" ] || fail "installing $* would remove $removed: install them by hand, or use the runtime that is there with --container-runtime-endpoint"
        as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends --no-remove "$@" >/dev/null
    elif command -v apk >/dev/null 2>&1; then
        as_root apk add --quiet "$@"
    elif command -v dnf >/dev/null 2>&1; then
        as_root dnf install -y -q --setopt=clean_requirements_on_remove=False "$@"
    elif command -v pacman >/dev/null 2>&1; then
        as_root pacman -S --noconfirm --needed "$@"
    elif command -v zypper >/dev/null 2>&1; then
        as_root zypper --non-interactive install --no-recommends "$@"
    else
        return 1
    fi
}

add_packages() {
    say "installing $*"
    install_packages "$@" || fail "cannot install $*: install them by hand and run this again"
    for package in "$@"; do new_list="$new_list
package $package"; done
}

# --- the executable --------------------------------------------------------------------------------------------------

build() {
    [ -f "$here/Cargo.toml" ] || fail "no source beside this script: set SAMPAN_BINARY to an executable"
    if ! command -v cargo >/dev/null 2>&1; then
        [ -x "$HOME/.cargo/bin/cargo" ] || fail "building needs Rust 1.95 or newer (https://rustup.rs); or set SAMPAN_BINARY"
        PATH=$HOME/.cargo/bin:$PATH
    fi
    have=$(cargo --version | sed 's/^cargo \([0-9]*\)\.\([0-9]*\).*/\1 \2/')
    [ "${have% *}" -gt 1 ] || [ "${have#* }" -ge 95 ] ||
        fail "building needs Rust 1.95 or newer; this is $(cargo --version): \`rustup update\`, or set SAMPAN_BINARY"
    # A linker and the C library's headers; not noted for the uninstall, as building is not running.
    command -v cc >/dev/null 2>&1 || { say "installing a C compiler" && { install_packages gcc libc6-dev || install_packages gcc musl-dev || install_packages gcc; }; } ||
        fail "building needs a C compiler"
    say "building (some minutes on a small machine)"
    (cd "$here" && cargo build --release --quiet --locked) || fail "the build failed"
    binary=${CARGO_TARGET_DIR:-$here/target}/release/sampan
}

binary=${SAMPAN_BINARY:-}
[ -n "$binary" ] || build
[ -x "$binary" ] || fail "$binary is not an executable"
"$binary" version >/dev/null || fail "$binary does not run on this machine"

# Options given through the environment go to the service; the token is in there, hence the mode. Those of an earlier
# run stay until they are given anew.
environment_lines() {
    ours=$(env | grep '^SAMPAN_[A-Z_]*=' | grep -Ev '^SAMPAN_(BINARY|BIN_DIR|SKIP_START)=' || true)
    kept=$(as_root cat "$etc/sampan.env" 2>/dev/null || true)
    printf '%s\n' "$kept" | while IFS= read -r line; do
        case $line in
        SAMPAN_*=*) printf '%s\n' "$ours" | grep -q "^${line%%=*}=" || printf '%s\n' "$line" ;;
        esac
    done
    printf '%s\n' "$ours" | while IFS= read -r line; do
        [ -z "$line" ] || printf '%s="%s"\n' "${line%%=*}" "$(printf '%s' "${line#*=}" | sed 's/[\\"$`]/\\&/g')"
    done
}

# As the service will see them; what runs now goes on if they are refused.
# shellcheck disable=SC2016 # the inner shell expands these
environment_lines | as_root sh -c 'set -a; eval "$(cat)"; set +a; exec "$@"' check "$binary" "$role" "$@" --check ||
    fail "it could not start with these options; nothing was done"

# --- what a node needs -----------------------------------------------------------------------------------------------

runtime=$(option container-runtime-endpoint SAMPAN_CONTAINER_RUNTIME_ENDPOINT "" "$@")
if [ -z "$runtime" ] && ! { [ "$role" = server ] && switched disable-agent SAMPAN_DISABLE_AGENT "$@"; }; then
    missing=""
    command -v containerd >/dev/null 2>&1 || missing="$missing containerd"
    command -v runc >/dev/null 2>&1 || missing="$missing runc"
    # shellcheck disable=SC2086 # a list of package names
    [ -z "$missing" ] || add_packages $missing
fi

say "installing $bin_dir/sampan"
as_root mkdir -p "$bin_dir" "$etc"
as_root install -m 0755 "$binary" "$bin_dir/.sampan.new"
as_root mv -f "$bin_dir/.sampan.new" "$bin_dir/sampan"

# --- the service -----------------------------------------------------------------------------------------------------

if [ -d /run/systemd/system ]; then
    manager=systemd log="journalctl -u sampan"
elif command -v rc-service >/dev/null 2>&1; then
    manager=openrc log=/var/log/sampan.log
else
    manager=none log=/var/log/sampan.log
fi

quote() { printf "'%s'" "$(printf '%s' "$1" | sed "s/'/'\\\\''/g")"; }
systemd_quote() { printf '"%s"' "$(printf '%s' "$1" | sed 's/[\\"]/\\&/g; s/%/%%/g; s/\$/$$/g')"; }
# command_line QUOTE OPTIONS...
command_line() {
    how=$1
    shift
    for word in "$@"; do printf ' %s' "$($how "$word")"; done
}

# What `sampan uninstall` takes back; lines of earlier runs stay (a package installed then is there still).
note_installed() {
    case $manager in
    systemd) files="/etc/systemd/system/sampan.service" ;;
    openrc) files="/etc/init.d/sampan /etc/conf.d/sampan /var/log/sampan.log /run/sampan.pid" ;;
    none) files="/var/log/sampan.log /run/sampan.pid" ;;
    esac
    {
        as_root grep -Ev '^(service|data-dir) ' "$list" 2>/dev/null || true
        printf 'service %s\ndata-dir %s\nfile %s\n' "$manager" "$data_dir" "$bin_dir/sampan"
        for file in $files $etc/sampan.env $arguments; do printf 'file %s\n' "$file"; done
        printf 'directory %s%s\n' "$etc" "$new_list"
    } | awk '!seen[$0]++' | put "$list" 644
}

with_systemd() {
    line=$(command_line systemd_quote "$@")
    sed -e "s|@BIN@|$bin_dir/sampan|; s|@ROLE@|$role|" "$here/packaging/sampan.service" |
        LINE=$line awk '{ i = index($0, "@OPTIONS@"); if (i) print substr($0, 1, i - 1) ENVIRON["LINE"] substr($0, i + 9); else print }' |
        put /etc/systemd/system/sampan.service 600
    as_root systemctl daemon-reload
    as_root systemctl enable --quiet sampan
    # Not waiting for the start job: what goes wrong is seen below, with its reason.
    [ "${SAMPAN_SKIP_START:-0}" = 1 ] || as_root systemctl restart --no-block sampan
}

with_openrc() {
    as_root install -m 0755 "$here/packaging/sampan.openrc" /etc/init.d/sampan
    printf 'SAMPAN_BIN=%s\nSAMPAN_ROLE=%s\nSAMPAN_OPTIONS=%s\n' "$(quote "$bin_dir/sampan")" "$role" "$(quote "$(command_line quote "$@")")" |
        put /etc/conf.d/sampan 600
    as_root rc-update -q add sampan default
    [ "${SAMPAN_SKIP_START:-0}" = 1 ] || as_root rc-service sampan restart
}

# Neither: a background process with a pid file and a log file.
with_nothing() {
    say "no systemd or OpenRC here: sampan runs in the background and does not start by itself after a reboot"
    [ "${SAMPAN_SKIP_START:-0}" != 1 ] || return 0
    stop_background
    # shellcheck disable=SC2016 # the inner shell expands these
    as_root sh -c 'set -a; . "$1"; set +a; log=$2 pid=$3; shift 3
        : >>"$log"; setsid "$@" >>"$log" 2>&1 </dev/null & echo $! >"$pid"' \
        start "$etc/sampan.env" "$log" /run/sampan.pid "$bin_dir/sampan" "$role" "$@"
}

stop_background() {
    old=$(as_root cat /run/sampan.pid 2>/dev/null || true)
    # A number that means another process by now is none of ours.
    [ -n "$old" ] && as_root grep -qa sampan "/proc/$old/cmdline" 2>/dev/null || return 0
    as_root kill "$old"
    tries=0
    while as_root kill -0 "$old" 2>/dev/null; do
        tries=$((tries + 1))
        [ "$tries" -le 600 ] || fail "the running sampan (pid $old) does not stop"
        sleep 0.2
    done
}

# Which process works on the data: its number and when it began, so that one of an earlier run is told from a new one.
holder() {
    pid=$(as_root cat "$data_dir/lock" 2>/dev/null || true)
    [ -n "$pid" ] || return 0
    began=$(as_root sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null | cut -d' ' -f20)
    [ -z "$began" ] || printf '%s:%s' "$pid" "$began"
}

# How far the log went before this start: what comes after is about it.
before=$(as_root wc -c 2>/dev/null <"$log" || echo 0)
started_at=$(date '+%Y-%m-%d %H:%M:%S')
new_log() {
    if [ "$manager" = systemd ]; then
        as_root journalctl -u sampan --since "$started_at" --no-pager -o cat 2>/dev/null
    else
        as_root tail -c "+$((before + 1))" "$log" 2>/dev/null
    fi
}
# A service manager starts it again and again: an end that repeats itself is one.
alive() {
    if [ "$manager" = none ]; then
        as_root kill -0 "$(as_root cat /run/sampan.pid)" 2>/dev/null
    else
        [ "$(new_log | grep -c '^sampan: ')" -lt 2 ]
    fi
}

# Only what has worked is what the next run goes on with.
keep_options() {
    {
        printf '%s\n' "$role"
        for option in "$@"; do printf '%s\n' "$option"; done
    } | put "$arguments" 600
}
environment_lines | put "$etc/sampan.env" 600
note_installed
earlier=$(holder)
# What a first start that fails leaves must not become something else with the next run.
as_root test -f "$arguments" || keep_options "$@"
case $manager in
systemd) with_systemd "$@" ;;
openrc) with_openrc "$@" ;;
none) with_nothing "$@" ;;
esac
if [ "${SAMPAN_SKIP_START:-0}" = 1 ]; then
    keep_options "$@"
    exit 0
fi

# --- wait until it works ---------------------------------------------------------------------------------------------

say "waiting until it is ready (log: $log)"
probe() {
    now=$(holder)
    # What answers may be an earlier run, and what lies on the disk may be left of one.
    [ -n "$now" ] && [ "$now" != "$earlier" ] && answers "$@" && [ "$(holder)" = "$now" ]
}
answers() {
    if [ "$role" = agent ]; then
        # The Node may still be called ready from before: this start must have come so far.
        [ -n "$(kept_environment SAMPAN_LOG)" ] || new_log | grep -q ' joined ' || return 1
        as_root "$bin_dir/sampan" status --quiet --data-dir "$data_dir" 2>/dev/null
    else
        # shellcheck disable=SC2016 # the inner shell expands these
        as_root sh -c 'set -a; . "$1"; set +a; shift; exec "$@"' probe "$etc/sampan.env" "$bin_dir/sampan" status --quiet "$@" 2>/dev/null
    fi
}
gave_up() {
    say "the last lines of its log:" >&2
    new_log | tail -n 15 | sed 's/^/  /' >&2
    reason=$(new_log | sed -n 's/^sampan: //p' | tail -n 1)
    fail "$1${reason:+: $reason}"
}
tries=0
until probe "$@"; do
    tries=$((tries + 1))
    alive || gave_up "it has ended"
    [ "$tries" -le 240 ] || gave_up "not ready after two minutes"
    sleep 0.5
done

keep_options "$@"
if [ "$role" = agent ]; then
    say "the agent runs. On the server: kubectl get nodes"
    exit 0
fi
say "ready. To use the cluster:"
say "  export KUBECONFIG=$kubeconfig    # root's; for another user: sudo cat $kubeconfig >~/.kube/config"
say "  kubectl get nodes"
say "To add a node, run there (the token is in $data_dir/server/node-token):"
say "  ./install.sh agent --server https://THIS-MACHINE:$port --token TOKEN"
say "To take sampan off this machine: sampan uninstall"
