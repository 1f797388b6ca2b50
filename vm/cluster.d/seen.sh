# shellcheck shell=sh disable=SC2154 # vm/cluster sets here, up, nodes and target
# How tests look at the cluster, wait for it, and tell what they saw. Sourced by vm/cluster.

k() {
    kubectl=kubectl
    [ ! -x "$target/tools/kubectl" ] || kubectl=$target/tools/kubectl
    "$kubectl" --kubeconfig "$up/kubeconfig" --request-timeout=60s "$@"
}

now() { date +%s; }

# saw WORDS...: what a test has found out.
saw() { echo "    $*"; }

# within SECONDS WHAT COMMAND...: until it succeeds; says after how long it did, and on failure what it said last.
within() {
    patience=$1 what=$2 from=$(now)
    shift 2
    until said=$("$@" 2>&1 </dev/null); do
        if [ $(($(now) - from)) -ge "$patience" ]; then
            echo "    NOT within $patience s: $what: $said"
            return 1
        fi
        sleep 1
    done
    saw "$what: after $(($(now) - from)) s"
}

# is TEXT COMMAND...: whether it says just that.
is() {
    wanted=$1
    shift
    found=$("$@") || { echo "$found"; return 1; }
    [ "$found" = "$wanted" ] || { echo "it is $found, not $wanted"; return 1; }
}

has() {
    wanted=$1
    shift
    found=$("$@") || { echo "$found"; return 1; }
    case $found in
    *"$wanted"*) ;;
    *) echo "$wanted is not in: $found"; return 1 ;;
    esac
}

# ready NODE [STATUS]
ready() { is "${2:-True}" k get node "$1" -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}'; }

all_ready() { for node in $nodes; do ready "$node" || return 1; done; }

# pod NAME PATH: a field of a Pod.
pod() { k get pod "$1" -o "jsonpath={$2}"; }

# A Pod on each node that serves its node's name, one to call from, and a Service in front of all.
apply_web() {
    {
        for node in $nodes; do
            cat <<TEXT
---
apiVersion: v1
kind: Pod
metadata: {name: web-$node, labels: {app: web}}
spec:
  nodeName: $node
  terminationGracePeriodSeconds: 1
  tolerations: [{operator: Exists}]
  containers:
  - name: web
    image: localhost/busybox:1
    command: [sh, -c, 'echo $node >/www/index.html; exec httpd -f -p 8080 -h /www']
    readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 2, timeoutSeconds: 10}
TEXT
        done
        cat <<'TEXT'
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080, nodePort: 30080}], type: NodePort}
TEXT
    } | k apply -f - >/dev/null
    within 120 "a Pod on each node is Ready" k wait --for=condition=Ready pods -l app=web --timeout=10s
}

delete_web() { k delete pods,services -l 'app=web' --ignore-not-found --wait=true >/dev/null; k delete service web --ignore-not-found >/dev/null; }

# fetch POD URL: by a Pod. Its answer.
fetch() { k exec "$1" -- wget -qO- "http://$2"; }

# meshed: each of these Pods reaches each other one, by its address.
meshed() {
    for from in $nodes; do
        for to in $nodes; do
            is "$to" fetch "web-$from" "$(pod "web-$to" .status.podIP):8080/" || { echo "from $from to $to"; return 1; }
        done
    done
}

# served: the Service answers on each node, by its address and its port.
served() {
    address=$(k get service web -o 'jsonpath={.spec.clusterIP}')
    for from in $nodes; do
        fetch "web-$from" "$address/" >/dev/null || { echo "not from a Pod on $from"; return 1; }
        has "web" k exec "web-$from" -- nslookup web.default.svc.cluster.local || return 1
    done
    for node in $nodes; do
        fetch web-server "10.77.0.$(number "$node"):30080/" >/dev/null || { echo "not by the port of $node"; return 1; }
    done
}

# journals: what the machines have logged, when a test has failed.
journals() {
    k get nodes,pods -A -o wide 2>&1 || true
    k get events -A --sort-by=.lastTimestamp 2>&1 | tail -n 20 || true
    for node in $nodes; do
        echo "---- $node"
        if runs "$node"; then
            timeout 60 "$here/cluster" ssh "$node" "systemctl --no-pager --failed; journalctl --no-pager -o short-monotonic -n 80 -u 'podwright*'" \
                </dev/null 2>&1 || tail -n 20 "$up/$node.console"
        else
            echo "it does not run"
        fi
    done
}

# run_tests [FILTER]: those whose names have it, each as a process of its own; says what failed, and ends with a failure if one did.
run_tests() {
    failures=
    count=0
    # shellcheck disable=SC2013 # words
    for name in $(sed -n 's/^test_\([a-z_]*\)() {.*/\1/p' "$here/cluster.d/tests.sh"); do
        case $name in *"${1:-}"*) ;; *) continue ;; esac
        say "$name"
        count=$((count + 1))
        from=$(now)
        if "$here/cluster" one-test "$name"; then
            echo "    passed in $(($(now) - from)) s"
        else
            failures="$failures $name"
            echo "    FAILED after $(($(now) - from)) s"
            journals
        fi
    done
    [ $count -gt 0 ] || fail "no test has ${1:-} in its name"
    echo "$count tests, failed:${failures:- none}"
    [ -z "$failures" ]
}
