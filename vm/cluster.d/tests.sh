# shellcheck shell=sh disable=SC2154,SC2016,SC2317 # vm/cluster sets up and nodes; machines expand what is theirs; `within` calls functions
# The tests: functions named test_NAME, run in this order, each in a process with `set -e`. Each leaves the cluster as it found it: three
# nodes that are Ready. Sourced by vm/cluster.

# 1. The main path.

main_path() {
    apply_web
    within 60 "each Pod reaches each other one, by its address" meshed
    within 60 "the Service answers on each node, by its address, name and port" served
    k apply -f "$here/../manifests/hello.yaml" >/dev/null
    k -n hello rollout status deployment/hello --timeout=120s >/dev/null
    k -n hello wait --for=condition=Ready pod/visitor --timeout=60s >/dev/null
    within 30 "kubectl exec: the Service hello answers" \
        has "Hello from" k -n hello exec visitor -- wget -qO- "http://$(k -n hello get service hello -o 'jsonpath={.spec.clusterIP}')/"
    k -n hello scale deployment/hello --replicas=4 >/dev/null
    within 120 "four Pods are available" is 4 k -n hello get deployment hello -o 'jsonpath={.status.availableReplicas}'
    saw "on $(k -n hello get pods -l app=hello -o 'jsonpath={.items[*].spec.nodeName}' | tr ' ' '\n' | sort | uniq -c | tr -s ' \n' ' ')"
    k -n hello set env deployment/hello A=b >/dev/null
    within 180 "an update has rolled" k -n hello rollout status deployment/hello --timeout=10s
    has "visitor" k -n hello get pods -o wide >/dev/null
    k -n hello exec visitor -- sh -c 'echo to the log >/proc/1/fd/1'
    within 30 "kubectl logs" has "to the log" k -n hello logs visitor
    k delete namespace hello --timeout=120s >/dev/null
    delete_web
    saw "all of it is deleted"
}

# how NODE: how it reaches the Pods of others.
how() { into "$1" "ip -4 route | grep -E '^10\.244\.[0-9]+\.0/24 '" </dev/null; }

test_main_path_over_routes() {
    has "via 10.77.0.1" how agent-1 >/dev/null
    saw "$(how agent-1 | head -n 1)"
    main_path
}

# over [TRANSPORT]: units' flags, as an administrator sets them; without one as they come.
over() {
    for node in $nodes; do
        unit=podwright-agent words=agent
        [ "$node" != server ] || unit=podwright words=up
        into "$node" sh -e <<TEXT
folder=/etc/systemd/system/$unit.service.d
rm -rf \$folder
if [ -n "${1:-}" ]; then
    mkdir \$folder
    printf '[Service]\nExecStart=\nExecStart=/usr/bin/podwright $words --network=${1:-}\n' >\$folder/network.conf
fi
systemctl daemon-reload
systemctl restart $unit
TEXT
    done
    within 120 "all nodes are Ready over ${1:-auto}" all_ready
}

test_main_path_over_vxlan() {
    over vxlan
    within 60 "agent-1 sends through a tunnel" has "pwvx" how agent-1
    saw "$(how agent-1 | head -n 1)"
    main_path
    over
    within 60 "agent-1 sends over the link again" has "via 10.77.0.1" how agent-1
}

# 2. Limits.

test_limits() {
    k apply -f - >/dev/null <<'TEXT'
apiVersion: v1
kind: Pod
metadata: {name: glutton}
spec:
  nodeName: agent-1
  restartPolicy: Never
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sh, -c, 'x=0123456789abcdef; while :; do x=$x$x; done']
    resources: {limits: {memory: 24Mi}}
---
apiVersion: v1
kind: Pod
metadata: {name: measured}
spec:
  nodeName: agent-1
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sleep, infinity]
    resources: {requests: {cpu: 50m, memory: 16Mi}, limits: {cpu: 200m, memory: 32Mi}}
TEXT
    within 120 "who takes more memory than his limit is killed" \
        is "OOMKilled 137" pod glutton '.status.containerStatuses[0].state.terminated.reason} {.status.containerStatuses[0].state.terminated.exitCode'
    within 60 "a Pod with limits is Ready" k wait --for=condition=Ready pod/measured --timeout=10s
    is "20000 100000" k exec measured -- cat /sys/fs/cgroup/cpu.max
    is "33554432" k exec measured -- cat /sys/fs/cgroup/memory.max
    saw "cpu.max and memory.max are as asked; QoS $(pod measured .status.qosClass), in $(into agent-1 'find /sys/fs/cgroup/podwright -maxdepth 2 -name "pod*"' </dev/null | tr '\n' ' ')"
    k delete pod glutton measured >/dev/null
}

# 3. The units.

# A Pod that asks the Service all the time, and counts.
apply_load() {
    address=$(k get service web -o 'jsonpath={.spec.clusterIP}')
    k apply -f - >/dev/null <<TEXT
apiVersion: v1
kind: Pod
metadata: {name: load, labels: {app: load}}
spec:
  nodeName: $1
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sh, -c, 'while :; do if wget -qO/dev/null http://$address/; then echo served; else echo failed; fi; done >/tmp/said']
TEXT
    within 60 "a Pod on $1 asks the Service all the time" k wait --for=condition=Ready pod/load --timeout=10s
}

requests() { k exec load -- sh -c "grep -c $1 /tmp/said || true"; }

# The containers of all Pods, with how often they were started.
containers() {
    k get pods -A --sort-by=.metadata.name -o \
        'jsonpath={range .items[*]}{.metadata.name} {.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount}{"\n"}{end}'
}

# under_load NODE COMMAND: it runs while a Pod of that node asks a Service with endpoints on all nodes.
under_load() {
    apply_web
    apply_load "$1"
    sleep 5
    before=$(containers) served_before=$(requests served)
    into "$1" "$2" </dev/null >/dev/null
    within 120 "all nodes are Ready after: $2" all_ready
    sleep 5
    served=$(requests served) failed=$(requests failed)
    saw "$((served - served_before)) requests meanwhile, $failed failed"
    [ "$failed" = 0 ]
    [ "$served" -gt "$((served_before + 10))" ]
    is "$before" containers
    saw "all containers are the same, none was started again"
    k delete pod load >/dev/null
    delete_web
}

test_restart_of_the_server_under_load() { under_load server "systemctl restart podwright"; }

test_restart_of_an_agent_under_load() { under_load agent-1 "systemctl restart podwright-agent"; }

test_upgrade_of_the_package_under_load() {
    under_load server "apt-get install -y -qq --reinstall /root/seed/podwright.deb"
    under_load agent-1 "apt-get install -y -qq --reinstall /root/seed/podwright.deb"
}

test_static_pods_of_an_agent_without_a_server() {
    into agent-1 'cat >/etc/podwright/manifests/static.yaml' <<'TEXT'
apiVersion: v1
kind: Pod
metadata: {name: static}
spec:
  hostNetwork: true
  containers: [{name: c, image: 'localhost/busybox:1', command: [sh, -c, 'echo static >/www/index.html; exec httpd -f -p 8099 -h /www']}]
TEXT
    asked() { into agent-1 'exec 3<>/dev/tcp/127.0.0.1/8099 && printf "GET / HTTP/1.0\r\n\r\n" >&3 && cat <&3' </dev/null; }
    within 60 "a static Pod runs on agent-1" has static asked
    within 60 "the API shows it" has Running k get pod static-agent-1
    into server "systemctl stop podwright" </dev/null
    into agent-1 "systemctl restart podwright-agent" </dev/null &
    sleep 20
    within 5 "it runs on while its agent is restarted and there is no server" has static asked
    into server "systemctl start podwright" </dev/null
    wait
    within 120 "all nodes are Ready" all_ready
    into agent-1 "rm /etc/podwright/manifests/static.yaml" </dev/null
    within 60 "it ends with its file" is "" k get pod static-agent-1 --ignore-not-found
}

# 4. Machines that come and go.

# Pods that stay on their nodes.
keep_web() {
    apply_web
    k patch service web -p '{"metadata": {"labels": {"app": "web"}}}' >/dev/null
}

returned() {
    within 300 "all nodes are Ready" all_ready
    within 180 "all Pods are Ready" k wait --for=condition=Ready pods -l app=web --timeout=10s
    within 60 "each Pod reaches each other one" meshed
    within 60 "the Service answers on each node" served
}

reboot() {
    boot=$(boot_of "$1")
    into "$1" "systemctl reboot" </dev/null || true
    wait_booted "$1" "$boot"
    saw "$1 has booted"
    returned
    saw "$1: $(pod "web-$1" '.status.containerStatuses[0].restartCount') restarts of its Pod"
    has "running" into "$1" systemctl is-system-running </dev/null || {
        into "$1" systemctl --failed --no-pager </dev/null
        return 1
    }
}

test_reboot_of_each_node() {
    keep_web
    for node in agent-1 agent-2 server; do reboot "$node"; done
    delete_web
}

cut() {
    boot=$(boot_of "$1")
    stop "$1"
    saw "the power of $1 is cut"
    sleep 3
    start "$1"
    wait_booted "$1" "$boot"
    returned
}

test_power_cut_of_an_agent() {
    keep_web
    cut agent-1
    delete_web
}

test_power_cut_of_the_server() {
    keep_web
    n=0
    while [ $n -lt 20 ]; do
        n=$((n + 1))
        k create configmap "kept-$n" --from-literal=n=$n >/dev/null
    done
    ca=$(into server cat /var/lib/podwright/pki/ca.crt </dev/null)
    cut server
    is 20 sh -c "$(printf '%s' "kubectl --kubeconfig '$up/kubeconfig' get configmaps -o name | grep -c /kept-")"
    is "$ca" into server cat /var/lib/podwright/pki/ca.crt </dev/null
    saw "all 20 writes that were acknowledged are there, and the CA is the same"
    n=0
    while [ $n -lt 20 ]; do
        n=$((n + 1))
        k delete configmap "kept-$n" >/dev/null
    done
    delete_web
}

# Two Pods on one node, of which one asks the other.
test_partition() {
    keep_web
    k apply -f - >/dev/null <<'TEXT'
apiVersion: v1
kind: Pod
metadata: {name: neighbour}
spec:
  nodeName: agent-2
  terminationGracePeriodSeconds: 0
  tolerations: [{operator: Exists}]
  containers: [{name: c, image: 'localhost/busybox:1', command: [sleep, infinity]}]
TEXT
    within 60 "two Pods on agent-2" k wait --for=condition=Ready pod/neighbour --timeout=10s
    ip=$(pod web-agent-2 .status.podIP)
    pid=$(into agent-2 'for p in $(pgrep -x sleep); do grep -q podwright /proc/$p/cgroup && echo $p; done | head -n 1' </dev/null)
    inside() {
        into agent-2 "timeout 10 nsenter -t $pid -n bash -c 'exec 3<>/dev/tcp/$ip/8080; printf \"GET / HTTP/1.0\\r\\n\\r\\n\" >&3; cat <&3'" </dev/null
    }
    within 30 "they reach each other" has agent-2 inside
    before=$(containers)
    link agent-2 off
    since=$(now)
    within 120 "agent-2 is unknown to the server" ready agent-2 Unknown
    within 30 "its Pods reach each other still" has agent-2 inside
    link agent-2 on
    within 120 "agent-2 is Ready again, and so are all" all_ready
    returned
    is "$before" containers
    saw "no container was started again, though it was cut off for $(($(now) - since)) s"
    k delete pod neighbour >/dev/null
    delete_web
}

test_killed_machine() {
    k apply -f - >/dev/null <<'TEXT'
apiVersion: apps/v1
kind: Deployment
metadata: {name: movable}
spec:
  replicas: 2
  selector: {matchLabels: {app: movable}}
  template:
    metadata: {labels: {app: movable}}
    spec:
      terminationGracePeriodSeconds: 1
      nodeSelector: {movable: 'yes'}
      tolerations:
      - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 5}
      - {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 5}
      containers: [{name: c, image: 'localhost/busybox:1', command: [sleep, infinity]}]
TEXT
    k label node agent-2 movable=yes >/dev/null
    within 120 "two Pods run on agent-2" k rollout status deployment/movable --timeout=10s
    k label node agent-1 movable=yes >/dev/null
    stop agent-2
    since=$(now)
    elsewhere() { is "agent-1 agent-1" k get pods -l app=movable --field-selector=status.phase=Running,spec.nodeName=agent-1 -o 'jsonpath={.items[*].spec.nodeName}'; }
    # 50 s without a word (--node-monitor-grace-period), 5 s of the tolerations, 10 s between evictions of nodes, and the start.
    within 110 "they run on agent-1" elsewhere
    saw "$(($(now) - since)) s after the machine was killed"
    start agent-2
    wait_booted agent-2
    within 180 "all nodes are Ready" all_ready
    within 60 "the old Pods are gone" is 2 sh -c "kubectl --kubeconfig '$up/kubeconfig' get pods -l app=movable -o name | wc -l"
    k delete deployment movable >/dev/null
    k label node agent-1 agent-2 movable- >/dev/null
}

# 5. A machine that leaves, is a cluster of its own with the units apart, forgets all, and joins again.
test_leaving_units_apart_and_purge() {
    "$here/cluster" run -- sh -c 'cat "$KUBECONFIG"' | sed "s|https://127.0.0.1:[0-9]*|https://10.77.0.1:6443|" |
        into agent-2 '(umask 077; cat >/root/admin.kubeconfig)'
    into agent-2 "podwright node leave --kubeconfig /root/admin.kubeconfig" </dev/null 2>&1 | tail -n 1 || true
    into agent-2 "systemctl disable --now podwright-agent 2>/dev/null; podwright node leave --yes --kubeconfig /root/admin.kubeconfig" </dev/null | tail -n 1
    is "" k get node agent-2 --ignore-not-found
    saw "agent-2 has left"
    into agent-2 "rm /etc/podwright/agent.env; systemctl enable --now podwright-server podwright-agent 2>&1" </dev/null | grep -v symlink || true
    apart() { into agent-2 "PODWRIGHT_SERVER=unix:///var/lib/podwright-server/api.sock podwright $*" </dev/null; }
    within 60 "podwright-server and podwright-agent make a cluster of their own" has " Ready " apart get nodes
    within 30 "an image" apart image import /root/seed/busybox.tar localhost/busybox:1
    apart run alone --image=localhost/busybox:1 --command -- sleep infinity >/dev/null
    within 60 "a Pod runs there" apart wait --for=condition=Ready pod/alone --timeout=10s
    saw "podwright-server runs as $(into agent-2 'ps -o user= -p $(systemctl show -P MainPID podwright-server)' </dev/null)"
    into agent-2 "apt-get remove -y -qq podwright" </dev/null >/dev/null
    is "" into agent-2 "pgrep -l podwright; grep -o '/var/lib/podwright[^ ]*' /proc/mounts; ip -br link | grep -E '^pw'; nft list tables | grep podwright; true" </dev/null
    into agent-2 "test -e /var/lib/podwright && test -e /var/lib/podwright-server/store.db" </dev/null
    saw "removed: nothing runs, and its state is kept"
    into agent-2 "DEBIAN_FRONTEND=noninteractive apt-get purge -y -qq podwright" </dev/null >/dev/null
    is "" into agent-2 "ls -d /var/lib/podwright* /etc/podwright /run/podwright /var/log/pods /etc/systemd/system/*/podwright* 2>/dev/null || true" </dev/null
    saw "purged: nothing is left"
    install_package agent-2
    join agent-2
    within 120 "all nodes are Ready" all_ready
    import agent-2
}
