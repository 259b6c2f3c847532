#!/bin/sh
# Installs Sampan on this machine and starts it: from a clone of the repository, or with SAMPAN_BINARY=path.
#
#   ./install.sh [server|agent] [options of that subcommand]
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

role=server
case ${1:-} in
server | agent)
    role=$1
    shift
    ;;
esac

bin_dir=${SAMPAN_BIN_DIR:-/usr/local/bin}
here=$(cd "$(dirname "$0")" && pwd)
root=""
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null 2>&1 || fail "run this as root, or install sudo"
    root=sudo
fi

# --- the executable -------------------------------------------------------------------------------------------------

install_packages() {
    if command -v apt-get >/dev/null 2>&1; then
        $root apt-get update -qq
        # --no-remove: a machine that has Docker's containerd keeps it.
        # shellcheck disable=SC2086 # a list of package names
        $root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends --no-remove "$@" >/dev/null
    elif command -v apk >/dev/null 2>&1; then
        $root apk add --quiet "$@"
    elif command -v dnf >/dev/null 2>&1; then
        $root dnf install -y -q "$@"
    elif command -v pacman >/dev/null 2>&1; then
        $root pacman -S --noconfirm --needed "$@"
    else
        fail "cannot install $*: no known package manager; install them and run this again"
    fi
}

build() {
    [ -f "$here/Cargo.toml" ] || fail "no source beside this script: set SAMPAN_BINARY to an executable"
    if ! command -v cargo >/dev/null 2>&1; then
        [ -x "$HOME/.cargo/bin/cargo" ] || fail "building needs Rust 1.95 or newer (https://rustup.rs); or set SAMPAN_BINARY"
        PATH=$HOME/.cargo/bin:$PATH
    fi
    command -v cc >/dev/null 2>&1 || install_packages gcc libc6-dev
    say "building (some minutes on a small machine)"
    (cd "$here" && cargo build --release --quiet) || fail "the build failed"
    binary=${CARGO_TARGET_DIR:-$here/target}/release/sampan
}

binary=${SAMPAN_BINARY:-}
[ -n "$binary" ] || build
[ -x "$binary" ] || fail "$binary is not an executable"

# --- what a node needs ----------------------------------------------------------------------------------------------

needs_runtime=1
for option in "$@"; do
    case $option in
    --disable-agent | --disable-agent=true | --container-runtime-endpoint*) needs_runtime=0 ;;
    esac
done
[ "${SAMPAN_DISABLE_AGENT:-false}" != true ] || needs_runtime=0
[ -z "${SAMPAN_CONTAINER_RUNTIME_ENDPOINT:-}" ] || needs_runtime=0

if [ "$needs_runtime" = 1 ]; then
    missing=""
    # /usr/sbin holds Debian's runc and is not on every user's PATH.
    PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
    command -v containerd >/dev/null 2>&1 || missing="$missing containerd"
    command -v runc >/dev/null 2>&1 || missing="$missing runc"
    if [ -n "$missing" ]; then
        say "installing$missing"
        # shellcheck disable=SC2086 # a list of package names
        install_packages $missing || fail "cannot install$missing without removing other packages; install them by hand"
    fi
fi

say "installing $bin_dir/sampan"
$root mkdir -p "$bin_dir"
$root install -m 0755 "$binary" "$bin_dir/.sampan.new"
$root mv -f "$bin_dir/.sampan.new" "$bin_dir/sampan"

# --- the service ----------------------------------------------------------------------------------------------------

quote() { printf "'%s'" "$(printf '%s' "$1" | sed "s/'/'\\\\''/g")"; }
systemd_quote() { printf '"%s"' "$(printf '%s' "$1" | sed 's/[\\"]/\\&/g; s/%/%%/g; s/\$/$$/g')"; }

environment_file() {
    # Options given through the environment go to the service; the token is in there, hence the mode.
    $root mkdir -p /etc/sampan
    env | grep '^SAMPAN_' | grep -Ev '^SAMPAN_(BINARY|BIN_DIR|SKIP_START)=' |
        $root sh -c 'umask 077; cat >/etc/sampan/sampan.env' || true
}

with_systemd() {
    command_line=""
    for option in "$@"; do command_line="$command_line $(systemd_quote "$option")"; done
    sed -e "s|@BIN@|$bin_dir/sampan|; s|@ROLE@|$role|" "$here/packaging/sampan.service" |
        awk -v line="$command_line" '{ i = index($0, "@OPTIONS@"); if (i) print substr($0, 1, i - 1) line substr($0, i + 9); else print }' |
        $root sh -c 'cat >/etc/systemd/system/sampan.service'
    $root systemctl daemon-reload
    $root systemctl enable --quiet sampan
    [ "${SAMPAN_SKIP_START:-0}" = 1 ] || $root systemctl restart sampan
    log="journalctl -u sampan"
}

with_openrc() {
    command_line=""
    for option in "$@"; do command_line="$command_line $(quote "$option")"; done
    $root install -m 0755 "$here/packaging/sampan.openrc" /etc/init.d/sampan
    printf 'SAMPAN_BIN=%s\nSAMPAN_ROLE=%s\nSAMPAN_OPTIONS=%s\n' "$(quote "$bin_dir/sampan")" "$role" "$(quote "$command_line")" |
        $root sh -c 'umask 077; cat >/etc/conf.d/sampan'
    $root rc-update -q add sampan default
    [ "${SAMPAN_SKIP_START:-0}" = 1 ] || $root rc-service sampan restart
    log="/var/log/sampan.log"
}

# Neither: a background process with a pid file and a log file.
with_nothing() {
    log=/var/log/sampan.log
    say "no systemd or OpenRC here: sampan runs in the background and does not start by itself after a reboot"
    [ "${SAMPAN_SKIP_START:-0}" != 1 ] || return 0
    if [ -f /run/sampan.pid ] && $root kill -0 "$(cat /run/sampan.pid)" 2>/dev/null; then
        old=$(cat /run/sampan.pid)
        $root kill "$old"
        tries=0
        while $root kill -0 "$old" 2>/dev/null; do
            tries=$((tries + 1))
            [ "$tries" -le 150 ] || fail "the running sampan (pid $old) does not stop"
            sleep 0.2
        done
    fi
    command_line="$(quote "$bin_dir/sampan") $role"
    for option in "$@"; do command_line="$command_line $(quote "$option")"; done
    $root sh -c "set -a; . /etc/sampan/sampan.env; set +a; PATH=\$PATH:/usr/local/sbin:/usr/sbin:/sbin; export PATH
        setsid $command_line >>$log 2>&1 </dev/null & echo \$! >/run/sampan.pid"
}

environment_file
if [ -d /run/systemd/system ]; then
    with_systemd "$@"
elif command -v rc-service >/dev/null 2>&1; then
    with_openrc "$@"
else
    with_nothing "$@"
fi
[ "${SAMPAN_SKIP_START:-0}" != 1 ] || exit 0

# --- wait until it works --------------------------------------------------------------------------------------------

say "waiting until it is ready (log: $log)"
if [ "$role" = agent ]; then
    # The kubelet's health port answers once the node runs.
    probe() { $root test -S "${SAMPAN_DATA_DIR:-/var/lib/sampan}/agent/network/cni.sock"; }
else
    probe() { $root "$bin_dir/sampan" status --quiet "$@" >/dev/null 2>&1; }
fi
tries=0
until probe "$@"; do
    tries=$((tries + 1))
    if [ "$tries" -gt 240 ]; then
        [ "$role" = agent ] || $root "$bin_dir/sampan" status "$@" || true
        fail "not ready after two minutes; see $log"
    fi
    sleep 0.5
done

if [ "$role" = agent ]; then
    say "the agent runs. On the server: kubectl get nodes"
else
    say "ready. To use the cluster:"
    say "  export KUBECONFIG=/etc/sampan/sampan.yaml"
    say "  kubectl get nodes"
    say "To add a node, run there:"
    say "  ./install.sh agent --server https://THIS-MACHINE:6443 --token \"\$(cat /var/lib/sampan/server/node-token on this machine)\""
fi
