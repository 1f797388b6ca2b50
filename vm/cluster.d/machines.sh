# shellcheck shell=sh disable=SC2154 # vm/cluster sets base, up and nodes
# The machines: QEMU processes, their disks, links and consoles. Sourced by vm/cluster.

# number NODE: of its addresses.
number() {
    case $1 in
    server) echo 1 ;;
    agent-1) echo 2 ;;
    agent-2) echo 3 ;;
    *) fail "there is no machine $1: $nodes" ;;
    esac
}

# free PROTOCOL: a port of this machine that nobody listens on.
free() {
    for port in $(shuf -i 20000-29999 -n 50); do
        [ -n "$(ss -Hln"$1" "sport = :$port")" ] || { echo "$port"; return; }
    done
    fail "no port is free"
}

# prepare PACKAGE: disks over the base image, one disk with what is brought along, ports, and a folder with a short name for sockets.
prepare() {
    for tool in qemu-system-x86_64 qemu-img socat ssh; do
        command -v $tool >/dev/null || fail "$tool is missing: apt install qemu-system-x86 qemu-utils socat openssh-client"
    done
    mkdir -p "$up/seed"
    run=$(mktemp -d /tmp/podwright-cluster.XXXXXX)
    echo "$run" >"$up/run"
    cp "$1" "$up/seed/podwright.deb"
    "$here/../dev" busybox-tar "$up/seed/busybox.tar"
    tar -C "$up/seed" -cf "$up/seed.img" .
    rm -r "$up/seed"
    truncate -s %1M "$up/seed.img"
    free u >"$up/port"
    free t >"$up/api"
    for node in $nodes; do
        free t >"$up/$node.port"
        qemu-img create -q -f qcow2 -F raw -b "$base/root.img" "$up/$node.qcow2"
    done
}

# start NODE: switches it on.
start() {
    n=$(number "$1")
    run=$(cat "$up/run")
    accel=tcg,thread=multi
    cpu=max,-cx16
    # A KVM that works is one on a CPU that can.
    if [ -w /dev/kvm ] && grep -qE '\b(vmx|svm)\b' /proc/cpuinfo; then
        accel=kvm
        cpu=host
    fi
    api=
    [ "$1" != server ] || api=",hostfwd=tcp:127.0.0.1:$(cat "$up/api")-:6443"
    # What a guest has not flushed is lost with its power; what it has flushed is QEMU's, which ends in order. restrict: no way out.
    setsid timeout -k 5 "${CLUSTER_LIFETIME:-43200}" qemu-system-x86_64 -name "$1" -M q35 -accel "$accel" -cpu "$cpu" -smp 1 \
        -m "${CLUSTER_MEMORY:-640}" -nodefaults -no-user-config -display none -pidfile "$up/$1.pid" \
        -kernel "$target/vm/vmlinux" -append "root=/dev/nvme0n1 rw console=ttyS0 quiet panic=5 no_timer_check \
systemd.hostname=$1 systemd.machine_id=0123456789abcdef0123456789abcde$n" \
        -drive file="$up/$1.qcow2",format=qcow2,if=none,id=root,cache=unsafe -device nvme,serial=root,drive=root \
        -drive file="$up/seed.img",format=raw,if=none,id=seed,readonly=on -device virtio-blk-pci,drive=seed \
        -netdev "user,id=own,restrict=on,net=10.78.$n.0/24,hostfwd=tcp:127.0.0.1:$(cat "$up/$1.port")-:22$api" \
        -device virtio-net-pci,netdev=own,mac="52:54:00:78:00:0$n" \
        -netdev socket,id=link,mcast=230.77.7.7:"$(cat "$up/port")",localaddr=127.0.0.1 \
        -device virtio-net-pci,netdev=link,id=nic,mac="52:54:00:77:00:0$n" -device virtio-rng-pci \
        -monitor unix:"$run/$1.monitor",server=on,wait=off -serial file:"$up/$1.console" \
        </dev/null >"$up/$1.qemu" 2>&1 &
    i=0
    until [ -s "$up/$1.pid" ]; do
        i=$((i + 1))
        [ $i -lt 50 ] || fail "QEMU does not start: $(cat "$up/$1.qemu")"
        sleep 0.1
    done
}

# monitor NODE COMMAND...: QEMU's own door.
monitor() {
    of=$1
    shift
    echo "$*" | socat -t 1 - UNIX-CONNECT:"$(cat "$up/run")/$of.monitor" >/dev/null
}

runs() { [ -s "$up/$1.pid" ] && kill -0 "$(cat "$up/$1.pid")" 2>/dev/null; }

# stop NODE: ends it as a power cut does.
stop() {
    ssh -q -o ControlPath="$(cat "$up/run")/$1.ssh" -O exit root@127.0.0.1 2>/dev/null || true
    runs "$1" || return 0
    monitor "$1" quit || true
    i=0
    while runs "$1"; do
        i=$((i + 1))
        [ $i -lt 50 ] || kill -9 "$(cat "$up/$1.pid")"
        sleep 0.1
    done
    rm -f "$up/$1.pid"
}

# link NODE on|off: the cable to the others.
link() { monitor "$1" "set_link link $2"; }

# into NODE [COMMAND...]: as root, by one connection for all commands, which is made anew where it has gone.
into() {
    number "$1" >/dev/null
    to=$1
    shift
    ssh -q -i "$base/key" -p "$(cat "$up/$to.port")" -o UserKnownHostsFile="$base/known_hosts" -o GlobalKnownHostsFile=/dev/null \
        -o StrictHostKeyChecking=yes -o IdentitiesOnly=yes -o BatchMode=yes -o LogLevel=ERROR -F /dev/null \
        -o ControlMaster=auto -o ControlPersist=300 -o ControlPath="$(cat "$up/run")/$to.ssh" \
        -o ConnectTimeout=20 -o ServerAliveInterval=10 -o ServerAliveCountMax=6 root@127.0.0.1 "$@"
}

# boot_of NODE: another one after each boot.
boot_of() { into "$1" cat /proc/sys/kernel/random/boot_id </dev/null 2>/dev/null; }

# wait_booted NODE [BOOT]: until it can be entered, and is not that boot any more.
wait_booted() {
    i=0
    while :; do
        runs "$1" || fail "$1 has ended: $(cat "$up/$1.qemu"; tail -n 20 "$up/$1.console")"
        found=$(boot_of "$1" || true)
        [ -z "$found" ] || [ "$found" = "${2:-}" ] || return 0
        i=$((i + 1))
        [ $i -lt 300 ] || fail "$1 does not boot: $(tail -n 20 "$up/$1.console")"
        sleep 1
    done
}
