//! Recorded wire messages of protocol version 1 between agent and shim: each request and message, with every field.

/// From agents.
pub const REQUESTS: &[&str] = &[
    r#"{"id":1,"cause":{"subject":"","revision":0,"field":""},"call":"State"}"#,
    r#"{"id":2,"cause":{"subject":"6f1c","revision":41,"field":"spec"},"call":{"Sandbox":{"id":"6f1c_0","hostname":"web","new_net":false,"join_net":true,"new_ipc":true,"new_pid":false,"users":{"host":65536,"size":65536},"sysctls":[["net/ipv4/ip_unprivileged_port_start","0"]],"cgroup":"/sys/fs/cgroup/podwright/burstable/pod6f1c/pause","shm":"/run/podwright/s/6f1c_0/shm","journal":"/run/podwright/s/6f1c_0/journal"}}}"#,
    r#"{"id":3,"cause":{"subject":"6f1c","revision":41,"field":"spec.containers[0]"},"call":{"Create":{"key":"c_0","cgroup":"/sys/fs/cgroup/podwright/burstable/pod6f1c/c_0","exit_file":"/var/lib/podwright/runtime/6f1c_0/c_0/exit.json","log":{"path":"/var/log/pods/default_web_6f1c/c/0.log","max_bytes":10485760,"max_files":5},"stdin":false,"stdin_once":false,"pid":"container","pid_of":null,"root":{"layers":["/var/lib/podwright/images/layers/a"],"upper":"/u","work":"/w","dir":"/d","readonly":false,"nodev":false},"mounts":[{"target":"/proc","what":{"Fs":{"fstype":"proc","options":[]}},"set":14,"clear":0,"recursive_attrs":false,"propagation":262144,"idmap":null},{"target":"/conf","what":{"Bind":{"source":"/var/lib/podwright/volumes/conf","recursive":true}},"set":1,"clear":0,"recursive_attrs":false,"propagation":262144,"idmap":"Single"}],"devices":[{"path":"/dev/null","kind":"c","major":1,"minor":3,"mode":438,"uid":0,"gid":0}],"standard_devices":true,"masked_paths":["/proc/kcore"],"readonly_paths":["/proc/sys"],"process":{"args":["sleep","1"],"env":["A=b"],"cwd":"/","uid":0,"gid":0,"groups":[1],"umask":null,"caps":{"bounding":1,"effective":1,"permitted":1,"inheritable":0,"ambient":0},"no_new_privs":true,"rlimits":[[7,1024,4096]],"oom_score_adj":999,"terminal":false,"size":null,"seccomp":[0],"birth_ms":120000}}}}"#,
    r#"{"id":4,"cause":{"subject":"","revision":0,"field":""},"call":{"Start":{"key":"c_0"}}}"#,
    r#"{"id":5,"cause":{"subject":"","revision":0,"field":""},"call":{"Signal":{"key":"c_0","signal":15}}}"#,
    r#"{"id":6,"cause":{"subject":"","revision":0,"field":""},"call":{"Kill":{"key":"c_0"}}}"#,
    r#"{"id":7,"cause":{"subject":"","revision":0,"field":""},"call":{"Remove":{"key":"c_0"}}}"#,
    r#"{"id":8,"cause":{"subject":"","revision":0,"field":""},"call":{"Exec":{"exec":9,"key":"c_0","process":{"args":["sh"],"env":[],"cwd":"/","uid":1,"gid":1,"groups":[],"umask":18,"caps":{"bounding":0,"effective":0,"permitted":0,"inheritable":0,"ambient":0},"no_new_privs":false,"rlimits":[],"oom_score_adj":null,"terminal":true,"size":[80,24],"seccomp":[],"birth_ms":120000},"stdin":true,"stdout":true,"stderr":false,"timeout_ms":1000}}}"#,
    r#"{"id":10,"cause":{"subject":"","revision":0,"field":""},"call":{"ExecSignal":{"exec":9,"signal":9}}}"#,
    r#"{"id":11,"cause":{"subject":"","revision":0,"field":""},"call":{"Attach":{"key":"c_0","stdin":true}}}"#,
    r#"{"id":12,"cause":{"subject":"","revision":0,"field":""},"call":{"Resize":{"key":"c_0","columns":80,"rows":24}}}"#,
    r#"{"id":13,"cause":{"subject":"","revision":0,"field":""},"call":"Shutdown"}"#,
];

/// From shims.
pub const MESSAGES: &[&str] = &[
    r#"{"Reply":{"id":1,"result":{"Ok":{"State":{"sandbox":17,"containers":[{"key":"c_0","pid":18,"started_ns":1700000000000000000,"exit":null},{"key":"c_1","pid":0,"started_ns":null,"exit":{"code":137,"signal":9,"reason":"OOMKilled","message":"","finished":"2026-01-02T03:04:05Z"}}]}}}}}"#,
    r#"{"Reply":{"id":3,"result":{"Ok":{"Pid":18}}}}"#,
    r#"{"Reply":{"id":4,"result":{"Ok":"Done"}}}"#,
    r#"{"Reply":{"id":5,"result":{"Err":{"kind":"NotFound","message":"container c_0 not found"}}}}"#,
    r#"{"Reply":{"id":4,"result":{"Err":{"kind":{"Start":"notFoundInPath"},"message":"exec: x: executable file not found in $PATH"}}}}"#,
    r#"{"Reply":{"id":4,"result":{"Err":{"kind":"Kernel","message":"mount: EPERM"}}}}"#,
    r#"{"Reply":{"id":4,"result":{"Err":{"kind":"Conflict","message":"it runs"}}}}"#,
    r#"{"Exited":{"key":"c_0","exit":{"code":0,"signal":0,"reason":"Completed","message":"","finished":"2026-01-02T03:04:05Z"}}}"#,
    r#"{"ExecExited":{"exec":9,"code":3}}"#,
    r#""SandboxGone""#,
];
