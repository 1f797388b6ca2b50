//! Compiles profiles, and runs them like the kernel.

use std::collections::HashSet;

use oci_spec::runtime::Capability;

use super::*;
use crate::profile::default_capabilities;

/// Bounding sets: everything, and nothing that the floor requires.
const ALL: u64 = !0;
const DEFAULT: u64 = 0;

#[test]
fn the_default_profile_compiles_to_two_filters() {
    let programs = compile(&default_seccomp(&default_capabilities()), DEFAULT, false).unwrap();
    assert_eq!(programs.len(), 2);
    // Without merging it would be 1527.
    assert!((50..500).contains(&(programs[1].bytes.len() / 8)), "{}", programs[1].bytes.len() / 8);
}

/// The strictest result of all filters, as the kernel computes it.
fn answer(programs: &[Program], number: i64, args: [u64; 6]) -> u32 {
    let number = number as u32;
    let answers = programs.iter().map(|p| run(&instructions(&p.bytes), AUDIT_ARCH, number, args));
    // Stricter actions are smaller numbers, except that killing the process is the strictest.
    answers.min_by_key(|a| (*a & 0xffff_0000) as i32).unwrap()
}

fn instructions(bytes: &[u8]) -> BpfProgram {
    let instruction = |b: &[u8]| sock_filter {
        code: u16::from_ne_bytes([b[0], b[1]]),
        jt: b[2],
        jf: b[3],
        k: u32::from_ne_bytes([b[4], b[5], b[6], b[7]]),
    };
    bytes.chunks_exact(8).map(instruction).collect()
}

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const EPERM: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
const ENOSYS: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;

fn first(value: u64) -> [u64; 6] {
    [value, 0, 0, 0, 0, 0]
}

#[test]
fn what_the_kernel_does_not_take_fools_no_rule_of_the_default_profile() {
    let programs = compile(&default_seccomp(&default_capabilities()), DEFAULT, false).unwrap();
    for above in [0, 1 << 32, 1 << 63, 0xffff_ffff_0000_0000] {
        for (call, value, expected) in [
            (libc::SYS_socket, libc::AF_INET as u64, ALLOW),
            (libc::SYS_socket, libc::AF_ALG as u64, EPERM),
            (libc::SYS_socket, 39, ALLOW),
            (libc::SYS_socket, libc::AF_VSOCK as u64, EPERM),
            (libc::SYS_socket, 41, ALLOW),
            (libc::SYS_personality, 0, ALLOW),
            (libc::SYS_personality, 0xffff_ffff, ALLOW),
            (libc::SYS_personality, 0x0004_0000, EPERM),
            (libc::SYS_clone, libc::SIGCHLD as u64, ALLOW),
            (libc::SYS_clone, libc::CLONE_NEWUSER as u64, EPERM),
            (libc::SYS_clone, (libc::CLONE_NEWNS | libc::SIGCHLD) as u64, EPERM),
        ] {
            assert_eq!(answer(&programs, call, first(above | value)), expected, "call {call}: {value:#x} | {above:#x}");
        }
    }
}

#[test]
fn no_directory_is_delegated() {
    let programs = compile(&default_seccomp(&default_capabilities()), DEFAULT, false).unwrap();
    for above in [0, 1 << 32, 1 << 63] {
        for (command, expected) in
            [(libc::F_GETFD, ALLOW), (libc::F_SETLK, ALLOW), (1024 + 15, ALLOW), (1024 + 16, EPERM), (1024 + 17, ALLOW)]
        {
            let args = [3, above | command as u64, 0, 0, 0, 0];
            assert_eq!(answer(&programs, libc::SYS_fcntl, args), expected, "{command} | {above:#x}");
        }
    }
}

/// Numbers of 32-bit and 64-bit programs; the kernel only uses the lower 32 bits.
#[test]
fn no_file_is_taken_out_of_its_project() {
    let all = [Capability::SysAdmin, Capability::SysResource, Capability::SysChroot];
    for more in [&all[..0], &all] {
        let capabilities = default_capabilities().into_iter().chain(more.iter().copied()).collect();
        let programs = compile(&default_seccomp(&capabilities), DEFAULT, false).unwrap();
        for (request, expected) in [
            // FS_IOC32_SETFLAGS, FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR
            (0x4004_6602, EPERM),
            (0x4008_6602, EPERM),
            (0x401c_5820, EPERM),
            // FS_IOC32_GETFLAGS, FS_IOC_GETFLAGS, FS_IOC_FSGETXATTR, FS_IOC_FIEMAP
            (0x8004_6601, ALLOW),
            (0x8008_6601, ALLOW),
            (0x801c_581f, ALLOW),
            (0xc020_660b, ALLOW),
            // TCGETS, TIOCGWINSZ, FIONREAD, SIOCGIFCONF
            (0x5401, ALLOW),
            (0x5413, ALLOW),
            (0x541b, ALLOW),
            (0x8912, ALLOW),
        ] {
            for above in [0, 1 << 32, 1 << 63, 0xffff_ffff_0000_0000] {
                let args = [3, above | request, 0, 0, 0, 0];
                assert_eq!(answer(&programs, libc::SYS_ioctl, args), expected, "{request:#x} | {above:#x}");
            }
        }
        let of_type = |request: u64| [b'X', b'f'].contains(&((request >> 8) as u8));
        let others = (0..1 << 16).filter(|request| of_type(*request) || request % 61 == 0);
        for request in others {
            let expected = if matches!(request, 0x6602 | 0x5820) { EPERM } else { ALLOW };
            assert_eq!(answer(&programs, libc::SYS_ioctl, [3, request, 0, 0, 0, 0]), expected, "{request:#x}");
        }
        const FILE_SETATTR: i64 = 469;
        assert_ne!(answer(&programs, FILE_SETATTR, [0; 6]), ALLOW, "the same, as a system call");
    }
    let flags = default_capabilities().into_iter().chain([Capability::LinuxImmutable]).collect();
    let programs = compile(&default_seccomp(&flags), DEFAULT, false).unwrap();
    assert_eq!(answer(&programs, libc::SYS_ioctl, [3, 0x4008_6602, 0, 0, 0, 0]), ALLOW, "what is asked for is given");
}

#[test]
fn what_escapes_are_made_of_is_not_in_the_default_profile() {
    let programs = compile(&default_seccomp(&default_capabilities()), DEFAULT, false).unwrap();
    for (call, expected) in [
        (libc::SYS_clone3, ENOSYS),
        (libc::SYS_unshare, EPERM),
        (libc::SYS_setns, EPERM),
        (libc::SYS_mount, EPERM),
        (libc::SYS_move_mount, EPERM),
        (libc::SYS_open_tree, EPERM),
        (libc::SYS_fsopen, EPERM),
        (libc::SYS_mount_setattr, EPERM),
        (libc::SYS_pivot_root, EPERM),
        (libc::SYS_open_by_handle_at, EPERM),
        (libc::SYS_bpf, EPERM),
        (libc::SYS_perf_event_open, EPERM),
        (libc::SYS_userfaultfd, EPERM),
        (libc::SYS_keyctl, EPERM),
        (libc::SYS_add_key, EPERM),
        (libc::SYS_request_key, EPERM),
        (libc::SYS_io_uring_setup, EPERM),
        (libc::SYS_io_uring_enter, EPERM),
        (libc::SYS_io_uring_register, EPERM),
        (libc::SYS_init_module, EPERM),
        (libc::SYS_finit_module, EPERM),
        (libc::SYS_kexec_load, EPERM),
        (libc::SYS_kexec_file_load, EPERM),
        (libc::SYS_pidfd_getfd, EPERM),
        (libc::SYS_kcmp, EPERM),
        (libc::SYS_move_pages, EPERM),
        (libc::SYS_swapon, EPERM),
        (libc::SYS_reboot, EPERM),
        (libc::SYS_read, ALLOW),
    ] {
        assert_eq!(answer(&programs, call, [0; 6]), expected, "call {call}");
    }
}

/// Others' things are inaccessible without a capability, whatever profile a Pod brings.
#[test]
fn no_profile_gives_what_lies_below_the_floor() {
    use caps::Capability::{CAP_DAC_READ_SEARCH, CAP_SYS_ADMIN, CAP_SYS_PTRACE, CAP_SYSLOG};
    const STATMOUNT: i64 = 457;
    const LISTMOUNT: i64 = 458;
    const LISTNS: i64 = 470;
    const LOG: u32 = libc::SECCOMP_RET_LOG;
    const GET_NET_NAMESPACE: u64 = 0xff04;
    const GET_INFO: u64 = 0xc040_ff0b;
    let named = r#"[{"names":["open_by_handle_at","setns","statmount","listmount","listns","pidfd_getfd","process_madvise",
        "add_key","keyctl","request_key","syslog","ioctl","read","pidfd_send_signal","process_mrelease"],"action":"SCMP_ACT_ALLOW"}]"#;
    let profiles = [
        profile("SCMP_ACT_LOG", "[]"),
        profile("SCMP_ACT_ALLOW", "[]"),
        profile("SCMP_ACT_ALLOW", r#"[{"names":["mount"],"action":"SCMP_ACT_ERRNO"}]"#),
        profile("SCMP_ACT_ERRNO", named),
        profile("SCMP_ACT_KILL_PROCESS", named),
    ];
    let has = |all: &[caps::Capability]| all.iter().fold(0, |mask, one| mask | one.bitmask());
    let floor = has(&[CAP_DAC_READ_SEARCH, CAP_SYS_ADMIN, CAP_SYS_PTRACE, CAP_SYSLOG]);
    let request = |request: u64| [3, request, 0, 0, 0, 0];
    for profile in &profiles {
        for bounding in [0, ALL & !floor] {
            let programs = [false, true].map(|own_users| compile(profile, bounding, own_users).unwrap());
            for (call, arguments, expected) in [
                (libc::SYS_open_by_handle_at, [0; 6], EPERM),
                (libc::SYS_setns, [0; 6], EPERM),
                (STATMOUNT, [0; 6], ENOSYS),
                (LISTMOUNT, [0; 6], ENOSYS),
                (LISTNS, [0; 6], ENOSYS),
                (libc::SYS_pidfd_getfd, [0; 6], EPERM),
                (libc::SYS_process_madvise, [0; 6], EPERM),
                (libc::SYS_request_key, [0; 6], ENOSYS),
                (libc::SYS_syslog, [0; 6], EPERM),
                (libc::SYS_ioctl, request(GET_NET_NAMESPACE), ENOSYS),
                (libc::SYS_ioctl, request(1 << 32 | GET_NET_NAMESPACE), ENOSYS),
                (libc::SYS_ioctl, request(0x8010_b70b), ENOSYS),
            ] {
                for programs in &programs {
                    let found = answer(programs, call, arguments);
                    // Calls unknown to the profile get its default action.
                    let dies = found == libc::SECCOMP_RET_KILL_PROCESS;
                    assert!(found == expected || dies, "call {call} with {bounding:#x}: {found:#x}");
                }
            }
            // Keyrings belong to a user namespace.
            for call in [libc::SYS_add_key, libc::SYS_keyctl] {
                assert_eq!(answer(&programs[0], call, [0; 6]), ENOSYS, "call {call}");
                assert!([ALLOW, LOG].contains(&answer(&programs[1], call, [0; 6])), "call {call}");
            }
            // Affects only the caller's own PID namespace, or is refused by the kernel.
            for (call, arguments) in [
                (libc::SYS_read, [0; 6]),
                (libc::SYS_pidfd_send_signal, [0; 6]),
                (libc::SYS_process_mrelease, [0; 6]),
                (libc::SYS_ioctl, request(GET_INFO)),
                (libc::SYS_ioctl, request(0x5401)),
            ] {
                for programs in &programs {
                    let found = answer(programs, call, arguments);
                    assert!([ALLOW, LOG].contains(&found), "call {call}: {found:#x}");
                }
            }
        }
    }
    // The capability permits the call.
    let programs = compile(&profiles[1], CAP_SYS_ADMIN.bitmask(), false).unwrap();
    for call in [libc::SYS_setns, libc::SYS_keyctl, libc::SYS_request_key, libc::SYS_syslog] {
        assert_eq!(answer(&programs, call, [0; 6]), ALLOW, "call {call}");
    }
    assert_eq!(answer(&programs, libc::SYS_ioctl, request(GET_NET_NAMESPACE)), ALLOW);
    assert_eq!(answer(&programs, libc::SYS_open_by_handle_at, [0; 6]), EPERM);
    assert_eq!(answer(&programs, libc::SYS_pidfd_getfd, [0; 6]), EPERM);
    assert!(compile(&profiles[1], ALL, false).unwrap().is_empty());
    // But not over the host from a user namespace: that call makes the host run a program.
    let programs = compile(&profiles[1], ALL, true).unwrap();
    assert_eq!(answer(&programs, libc::SYS_request_key, [0; 6]), ENOSYS);
}

/// A profile that refuses everything by itself needs no further filters, such as the default profile with any capabilities. Rules
/// without effect, and those of unknown calls, are not compiled.
#[test]
fn what_a_profile_refuses_by_rules_that_do_nothing_lies_below_the_floor() {
    let rules = r#"[{"names":["setns"],"action":"SCMP_ACT_ALLOW"},{"names":["setns"],"action":"SCMP_ACT_ERRNO"}]"#;
    let programs = compile(&profile("SCMP_ACT_ERRNO", rules), 0, false).unwrap();
    assert_eq!(answer(&programs, libc::SYS_setns, [0; 6]), EPERM);
    let named = r#"[{"names":["open_by_handle_at","setns","statmount","listmount","listns","pidfd_getfd","process_madvise",
        "add_key","keyctl","request_key","syslog","ustat","ioctl"],"action":"SCMP_ACT_ERRNO"}]"#;
    let programs = compile(&profile("SCMP_ACT_ALLOW", named), 0, false).unwrap();
    for call in [457, 458, 470] {
        assert_eq!(answer(&programs, call, [0; 6]), ENOSYS, "call {call}");
    }
}

#[test]
fn the_default_profile_is_above_the_floor() {
    for more in [&[][..], &[Capability::SysAdmin], &[Capability::SysPtrace], &[Capability::LinuxImmutable]] {
        let capabilities: HashSet<Capability> =
            default_capabilities().into_iter().chain(more.iter().copied()).collect();
        let bounding = match more {
            [Capability::SysAdmin] => caps::Capability::CAP_SYS_ADMIN.bitmask(),
            [Capability::SysPtrace] => caps::Capability::CAP_SYS_PTRACE.bitmask(),
            _ => DEFAULT,
        };
        let profile = default_seccomp(&capabilities);
        for own_users in [false, true] {
            let floor = floor::floor(&profile, bounding, own_users, 0).unwrap();
            // The profile allows root of a user namespace to read the host's log.
            let gives_the_log = own_users && *more == [Capability::SysAdmin];
            assert_eq!(floor.is_empty(), !gives_the_log, "{more:?}");
            if gives_the_log {
                let programs = compile(&profile, bounding, true).unwrap();
                assert_eq!(answer(&programs, libc::SYS_syslog, [3, 0, 0, 0, 0, 0]), EPERM);
            }
        }
        let programs = compile(&profile, bounding, false).unwrap();
        let expected = if bounding == DEFAULT { ENOSYS } else { ALLOW };
        for request in 0xff01..=0xff0a {
            assert_eq!(answer(&programs, libc::SYS_ioctl, [3, request, 0, 0, 0, 0]), expected, "{more:?} {request:#x}");
        }
        assert_eq!(answer(&programs, libc::SYS_ioctl, [3, 0xff0b, 0, 0, 0, 0]), ALLOW, "{more:?}");
    }
}

fn profile(default: &str, syscalls: &str) -> LinuxSeccomp {
    serde_json::from_str(&format!(r#"{{"defaultAction":"{default}","syscalls":{syscalls}}}"#)).unwrap()
}

#[test]
fn deny_lists_hold_for_what_the_kernel_takes_and_for_other_abis() {
    const TIOCSTI: u64 = 0x5412;
    let syscalls = format!(
        r#"[{{"names":["ioctl"],"action":"SCMP_ACT_ERRNO","args":[{{"index":1,"value":{TIOCSTI},"op":"SCMP_CMP_EQ"}}]}},
            {{"names":["fchmod"],"action":"SCMP_ACT_ERRNO","args":[{{"index":1,"value":2541,"op":"SCMP_CMP_EQ"}}]}},
            {{"names":["mkdirat"],"action":"SCMP_ACT_ERRNO"}}]"#
    );
    let programs = compile(&profile("SCMP_ACT_ALLOW", &syscalls), ALL, false).unwrap();
    let second = |value: u64| [3, value, 0, 0, 0, 0];
    for above in [0, 1 << 32, 0xffff_ffff_0000_0000] {
        assert_eq!(answer(&programs, libc::SYS_ioctl, second(above | TIOCSTI)), EPERM, "{above:#x}");
        assert_eq!(answer(&programs, libc::SYS_ioctl, second(above | 0x5413)), ALLOW);
    }
    assert_eq!(answer(&programs, libc::SYS_fchmod, second(1 << 16 | 2541)), EPERM);
    assert_eq!(answer(&programs, libc::SYS_fchmod, second(2540)), ALLOW);
    assert_eq!(answer(&programs, libc::SYS_mkdirat, [0; 6]), EPERM);
    assert_eq!(answer(&programs, libc::SYS_mkdirat | 0x4000_0000, [0; 6]), ENOSYS, "x32");
    assert_eq!(answer(&programs, 1000, [0; 6]), ALLOW);
}

#[test]
fn values_that_no_argument_can_have_are_refused() {
    let one = |call: &str, op: &str, value: u64| {
        let syscalls = format!(
            r#"[{{"names":["{call}"],"action":"SCMP_ACT_ALLOW","args":[{{"index":0,"value":{value},"op":"{op}"}}]}}]"#
        );
        compile(&profile("SCMP_ACT_ERRNO", &syscalls), ALL, false).map(|p| p.len()).map_err(|e| e.to_string())
    };
    let error = one("socket", "SCMP_CMP_EQ", 1 << 32 | 40).unwrap_err();
    assert!(error.contains("socket: argument 0: 0x100000028 never matches"), "{error}");
    assert_eq!(one("socket", "SCMP_CMP_NE", u64::MAX), Ok(1), "-1 in a register");
    assert_eq!(one("unshare", "SCMP_CMP_EQ", 1 << 32 | 40), Ok(1));
}

#[test]
fn one_argument_twice_means_either_as_in_runc() {
    let syscalls = r#"[{"names":["socket"],"action":"SCMP_ACT_ALLOW","args":[
        {"index":0,"value":1,"op":"SCMP_CMP_EQ"},{"index":0,"value":2,"op":"SCMP_CMP_EQ"}]}]"#;
    let programs = compile(&profile("SCMP_ACT_ERRNO", syscalls), ALL, false).unwrap();
    let answers = [1, 2, 3].map(|family| answer(&programs, libc::SYS_socket, first(family)));
    assert_eq!(answers, [ALLOW, ALLOW, EPERM]);
}

#[test]
fn calls_newer_than_the_profile_do_not_exist_as_in_runc() {
    let syscalls = r#"[{"names":["read","openat2"],"action":"SCMP_ACT_ALLOW"}]"#;
    let programs = compile(&profile("SCMP_ACT_ERRNO", syscalls), ALL, false).unwrap();
    let answers = [libc::SYS_read, libc::SYS_clone3, libc::SYS_faccessat2].map(|c| answer(&programs, c, [0; 6]));
    assert_eq!(answers, [ALLOW, EPERM, ENOSYS]);
    let killing = compile(&profile("SCMP_ACT_KILL_PROCESS", syscalls), ALL, false).unwrap();
    assert_eq!(answer(&killing, libc::SYS_faccessat2, [0; 6]), libc::SECCOMP_RET_KILL_PROCESS);
}

/// A filter's result for a system call, as the kernel's interpreter computes it.
fn run(program: &[sock_filter], arch: u32, number: u32, args: [u64; 6]) -> u32 {
    let mut data: Vec<u32> = vec![number, arch, 0, 0];
    data.extend(args.iter().flat_map(|a| [*a as u32, (*a >> 32) as u32]));
    let (mut at, mut a) = (0, 0);
    loop {
        let i = &program[at];
        at += 1;
        let jump = |holds: bool| usize::from(if holds { i.jt } else { i.jf });
        match u32::from(i.code) {
            0x20 => a = data[i.k as usize / 4],
            0x05 => at += i.k as usize,
            0x15 => at += jump(a == i.k),
            0x25 => at += jump(a > i.k),
            0x35 => at += jump(a >= i.k),
            0x54 => a &= i.k,
            0x06 => return i.k,
            other => panic!("instruction {other:#x}"),
        }
    }
}

#[test]
fn ranges_of_numbers_answer_as_the_rules_do() {
    let profile = default_seccomp(&default_capabilities());
    let mut rules = Rules::new();
    for syscall in profile.syscalls().iter().flatten().filter(|s| s.action() == LinuxSeccompAction::ScmpActAllow) {
        add_rules(&mut rules, syscall).unwrap();
    }
    let (no, yes) = (SeccompAction::Errno(1), SeccompAction::Allow);
    let plain = conditional(rules.clone(), no.clone(), yes.clone()).unwrap();
    let quick = instructions(&program(rules, no, yes, 0, FIRST_FOREIGN).unwrap().bytes);
    let answers = |arch, number, args| (run(&quick, arch, number, args), run(&plain, arch, number, args));
    let mut allowed = 0;
    for number in [FIRST_FOREIGN, FIRST_FOREIGN + 1, u32::MAX] {
        assert_eq!(answers(AUDIT_ARCH, number, [0; 6]).0, ENOSYS, "number {number}");
    }
    for number in 0..600 {
        for args in [[0; 6], [0x7e02_0000; 6], [8; 6], [u64::MAX; 6]] {
            let (quick, plain) = answers(AUDIT_ARCH, number, args);
            assert_eq!(quick, plain, "number {number}, arguments {args:x?}");
            allowed += usize::from(quick == libc::SECCOMP_RET_ALLOW);
        }
        let (quick, plain) = answers(0x4000_0003, number, [0; 6]);
        assert_eq!(quick, plain, "number {number} of i386");
        assert_ne!(quick, libc::SECCOMP_RET_ALLOW);
    }
    assert!(allowed > 1000, "{allowed}");
}

#[test]
fn a_deny_list_needs_one_filter() {
    let profile: LinuxSeccomp = serde_json::from_str(
        r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["mkdir","no_such_call"],"action":"SCMP_ACT_ERRNO","errnoRet":99}]}"#,
    )
    .unwrap();
    assert_eq!(compile(&profile, ALL, false).unwrap().len(), 1);
    assert_eq!(table::number("mkdirat"), Some(libc::SYS_mkdirat));
    assert_eq!(table::number("no_such_call"), None);
}
