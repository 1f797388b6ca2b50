# shellcheck shell=sh disable=SC2154 # vm/cluster sets up and nodes
# podwright on the machines, as README.md tells a person to install it, and the machines in one cluster. Sourced by vm/cluster.

# The package on one machine.
install_package() {
    wait_booted "$1"
    into "$1" sh -e <<'TEXT'
mkdir -p /root/seed
tar -xf /dev/vda -C /root/seed
apt-get install -y -qq /root/seed/podwright.deb >/root/install.log 2>&1 </dev/null || { cat /root/install.log; exit 1; }
TEXT
}

# The control plane and its node, in one process.
begin_server() {
    into server 'systemctl enable --now podwright 2>&1 || { journalctl --no-pager -n 40 -u podwright; exit 1; }' >&2 </dev/null
}

# join NODE: by the printed command, put into the places that README.md names.
join() {
    # shellcheck disable=SC2046 # words
    set -- "$1" $(into server podwright token create --print-join-command </dev/null)
    [ "$2 $3 $4 $6 $8" = "podwright agent --join --token --ca-hash" ] || fail "another join command: $*"
    into "$1" sh -e <<TEXT
(umask 077; echo $7 >/etc/podwright/token)
cat >/etc/podwright/agent.env <<'ENV'
PODWRIGHT_JOIN=$5
PODWRIGHT_CA_HASH=$9
PODWRIGHT_TOKEN_FILE=/etc/podwright/token
ENV
systemctl enable --now podwright-agent 2>/dev/null || { journalctl --no-pager -n 40 -u podwright-agent; exit 1; }
rm /etc/podwright/token
TEXT
}

# all_nodes COMMAND: of a machine, for all of them at once; fails if one does.
all_nodes() {
    waiting=
    for node in $nodes; do
        "$@" "$node" &
        waiting="$waiting $!"
    done
    failed=
    for one in $waiting; do wait "$one" || failed=yes; done
    [ -z "$failed" ] || fail "$* failed on a machine"
}

install_all() {
    all_nodes install_package
    begin_server
    into server podwright kubeconfig </dev/null | sed "s|server: https://.*|server: https://127.0.0.1:$(cat "$up/api")|" >"$up/kubeconfig.new"
    for node in agent-1 agent-2; do join "$node"; done
    mv "$up/kubeconfig.new" "$up/kubeconfig"
    into server podwright wait --for=condition=Ready "node/server" node/agent-1 node/agent-2 --timeout=300s </dev/null >&2
    for node in $nodes; do import "$node"; done
}

# import NODE: localhost/busybox:1, which the manifests use.
import() {
    into server "podwright image --node $1 import /root/seed/busybox.tar localhost/busybox:1" >/dev/null </dev/null
}
