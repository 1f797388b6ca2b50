//! Which devices a container may create and open: OCI device rules, compiled to the eBPF program of a cgroup.
//!
//! Pure. The kernel runs the program at each `mknod` and `open` of a device by a process of the cgroup. `CAP_MKNOD` is a default
//! capability: without this, root in a container could create a node of the host's disk.

use oci_spec::runtime::{LinuxDeviceCgroup, LinuxDeviceType};
pub use podwright_sys::bpf::Instruction;

use crate::{Error, Result};

/// `BPF_DEVCG_ACC_*`: the kind of access.
pub const MKNOD: u32 = 1;
pub const READ: u32 = 2;
pub const WRITE: u32 = 4;
const ALL: u32 = MKNOD | READ | WRITE;

/// `BPF_DEVCG_DEV_*`
pub const BLOCK: u32 = 1;
pub const CHARACTER: u32 = 2;

/// One rule. The last one that matches a device decides, for each kind of access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rule {
    allow: bool,
    /// `None`: any.
    kind: Option<u32>,
    major: Option<u32>,
    minor: Option<u32>,
    access: u32,
}

/// Always allowed, as in runc: any node may be created (which is harmless by itself), and these may be opened: null, zero, full,
/// random, urandom, tty, ptmx, and terminals. A container's console is such a terminal; 5:1 is the machine's own.
const ALWAYS: [Rule; 10] = [
    always(BLOCK, None, None, MKNOD),
    always(CHARACTER, None, None, MKNOD),
    always(CHARACTER, Some(1), Some(3), ALL),
    always(CHARACTER, Some(1), Some(5), ALL),
    always(CHARACTER, Some(1), Some(7), ALL),
    always(CHARACTER, Some(1), Some(8), ALL),
    always(CHARACTER, Some(1), Some(9), ALL),
    always(CHARACTER, Some(5), Some(0), ALL),
    always(CHARACTER, Some(5), Some(2), ALL),
    always(CHARACTER, Some(136), None, ALL),
];

const fn always(kind: u32, major: Option<u32>, minor: Option<u32>, access: u32) -> Rule {
    Rule { allow: true, kind: Some(kind), major, minor, access }
}

/// The program for the rules of a spec's `linux.resources.devices`; what no rule allows is denied. `None`: everything is allowed,
/// and no program is needed. Fails for an invalid rule.
pub fn program(rules: &[LinuxDeviceCgroup]) -> Result<Option<Vec<Instruction>>> {
    let mut rules = rules.iter().map(rule).collect::<Result<Vec<Rule>>>()?;
    let anything = Rule { allow: true, kind: None, major: None, minor: None, access: ALL };
    if rules.iter().rev().take_while(|r| r.allow).any(|r| *r == anything) {
        return Ok(None);
    }
    rules.extend(ALWAYS);
    Ok(Some(compile(&rules)))
}

fn rule(given: &LinuxDeviceCgroup) -> Result<Rule> {
    let invalid = || Error::Invalid(format!("device rule \"{given}\""));
    let kind = match given.typ().unwrap_or_default() {
        LinuxDeviceType::A => None,
        LinuxDeviceType::B => Some(BLOCK),
        LinuxDeviceType::C | LinuxDeviceType::U => Some(CHARACTER),
        LinuxDeviceType::P => return Err(invalid()),
    };
    // -1 also means any, as upstream.
    let number = |n: Option<i64>| n.filter(|n| *n != -1).map(|n| u32::try_from(n).map_err(|_| invalid())).transpose();
    let mut access = 0;
    for letter in given.access().iter().flat_map(|a| a.chars()) {
        access |= match letter {
            'm' => MKNOD,
            'r' => READ,
            'w' => WRITE,
            _ => return Err(invalid()),
        };
    }
    if access == 0 {
        return Err(invalid());
    }
    Ok(Rule { allow: given.allow(), kind, major: number(given.major())?, minor: number(given.minor())?, access })
}

/// The required operations, all on 32 bits, so that no number is treated as negative.
pub mod code {
    /// destination = *(u32 *)(source + offset)
    pub const LOAD: u8 = 0x61;
    /// destination = immediate
    pub const SET: u8 = 0xb4;
    pub const AND: u8 = 0x54;
    pub const SHIFT_RIGHT: u8 = 0x74;
    pub const JUMP: u8 = 0x05;
    pub const JUMP_UNLESS_EQUAL: u8 = 0x56;
    /// Jumps if they share a bit.
    pub const JUMP_IF_ANY: u8 = 0x46;
    pub const EXIT: u8 = 0x95;
}

/// Registers: the result (0 denies), the context, and values loaded from it.
const RESULT: u8 = 0;
const CONTEXT: u8 = 1;
const KIND: u8 = 2;
const WANTED: u8 = 3;
const MAJOR: u8 = 4;
const MINOR: u8 = 5;

fn compile(rules: &[Rule]) -> Vec<Instruction> {
    // struct bpf_cgroup_dev_ctx { u32 access_type (access << 16 | kind), major, minor }
    let load =
        |register, offset| Instruction { code: code::LOAD, registers: CONTEXT << 4 | register, offset, immediate: 0 };
    let mut program = vec![
        load(KIND, 0),
        load(WANTED, 0),
        load(MAJOR, 4),
        load(MINOR, 8),
        plain(code::AND, KIND, 0xffff),
        plain(code::SHIFT_RIGHT, WANTED, 16),
        plain(code::SET, RESULT, 0),
    ];
    // Last rule first: accesses it allows are done, those it denies are denied.
    for rule in rules.iter().rev() {
        let act = if rule.allow {
            vec![
                plain(code::AND, WANTED, !rule.access),
                jump(code::JUMP_UNLESS_EQUAL, WANTED, 0, 2),
                plain(code::SET, RESULT, 1),
                plain(code::EXIT, 0, 0),
            ]
        } else {
            vec![jump(code::JUMP_IF_ANY, WANTED, rule.access, 1), jump(code::JUMP, 0, 0, 1), plain(code::EXIT, 0, 0)]
        };
        let matched = [(KIND, rule.kind), (MAJOR, rule.major), (MINOR, rule.minor)];
        let matched: Vec<(u8, u32)> = matched.iter().filter_map(|(register, n)| Some((*register, (*n)?))).collect();
        for (n, (register, number)) in matched.iter().enumerate() {
            let rest = matched.len() - n - 1 + act.len();
            program.push(jump(code::JUMP_UNLESS_EQUAL, *register, *number, rest as i16));
        }
        program.extend(act);
    }
    program.push(plain(code::EXIT, 0, 0));
    program
}

fn plain(code: u8, register: u8, immediate: u32) -> Instruction {
    jump(code, register, immediate, 0)
}

fn jump(code: u8, register: u8, immediate: u32, offset: i16) -> Instruction {
    Instruction { code, registers: register, offset, immediate: immediate as i32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the program as the kernel would.
    fn allowed(program: &[Instruction], kind: u32, major: u32, minor: u32, access: u32) -> bool {
        let context = [access << 16 | kind, major, minor];
        let (mut r, mut at) = ([0u32; 11], 0usize);
        loop {
            let i = program[at];
            let (to, n) = ((i.registers & 15) as usize, i.immediate as u32);
            let mut jump = false;
            match i.code {
                code::LOAD => {
                    assert_eq!(i.registers >> 4, CONTEXT);
                    r[to] = context[i.offset as usize / 4];
                }
                code::SET => r[to] = n,
                code::AND => r[to] &= n,
                code::SHIFT_RIGHT => r[to] >>= n,
                code::JUMP => jump = true,
                code::JUMP_UNLESS_EQUAL => jump = r[to] != n,
                code::JUMP_IF_ANY => jump = r[to] & n != 0,
                code::EXIT => return r[RESULT as usize] == 1,
                other => panic!("operation {other:#x}"),
            }
            at += 1 + if jump { usize::try_from(i.offset).unwrap() } else { 0 };
        }
    }

    /// The program for OCI rules.
    fn program_of(rules: serde_json::Value) -> Result<Option<Vec<Instruction>>> {
        program(&serde_json::from_value::<Vec<LinuxDeviceCgroup>>(rules).unwrap())
    }

    #[test]
    fn by_default_nodes_may_be_made_and_harmless_ones_opened() {
        let denied = program_of(serde_json::json!([{ "allow": false, "access": "rwm" }])).unwrap().unwrap();
        for program in [program(&[]).unwrap().unwrap(), denied] {
            let harmless = [(1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 2), (136, 0), (136, 77)];
            for (major, minor) in harmless {
                for access in 1..=ALL {
                    assert!(allowed(&program, CHARACTER, major, minor, access), "c {major}:{minor} {access}");
                }
                assert!(!allowed(&program, BLOCK, major, minor, READ), "b {major}:{minor}");
            }
            // mem, port, kmsg, console, tty0, kvm, tun; disks; numbers adjacent to allowed ones.
            let others =
                [(1, 1), (1, 4), (1, 11), (5, 1), (4, 0), (10, 232), (10, 200), (8, 0), (254, 0), (135, 0), (137, 0)];
            for (major, minor) in others {
                for kind in [BLOCK, CHARACTER] {
                    assert!(allowed(&program, kind, major, minor, MKNOD), "{kind} {major}:{minor}");
                    for access in 2..=ALL {
                        assert!(!allowed(&program, kind, major, minor, access), "{kind} {major}:{minor} {access}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_last_rule_that_matches_decides_for_each_kind_of_access() {
        let program = program_of(serde_json::json!([
            { "allow": true, "type": "b", "major": 8, "access": "rw" },
            { "allow": false, "type": "b", "major": 8, "minor": 1, "access": "w" },
            { "allow": true, "type": "c", "major": 10, "minor": 229, "access": "r" },
            { "allow": true, "major": 10, "minor": -1, "access": "w" },
            { "allow": true, "type": "c", "major": 4294967295u32, "minor": 1, "access": "r" },
        ]));
        let program = program.unwrap().unwrap();
        for (kind, major, minor, access, expected) in [
            (BLOCK, 8, 0, READ | WRITE, true),
            (BLOCK, 8, 1, READ, true),
            (BLOCK, 8, 1, WRITE, false),
            (BLOCK, 8, 1, READ | WRITE, false),
            (BLOCK, 9, 0, READ, false),
            (CHARACTER, 8, 0, READ, false),
            // Each rule allows a part.
            (CHARACTER, 10, 229, READ | WRITE, true),
            (CHARACTER, 10, 228, READ | WRITE, false),
            (BLOCK, 10, 7, WRITE, true),
            (CHARACTER, u32::MAX, 1, READ, true),
            (CHARACTER, u32::MAX, 2, READ, false),
        ] {
            assert_eq!(allowed(&program, kind, major, minor, access), expected, "{kind} {major}:{minor} {access}");
        }
    }

    #[test]
    fn where_all_is_allowed_there_is_no_program() {
        let all = serde_json::json!({ "allow": true, "access": "rwm" });
        let deny = serde_json::json!({ "allow": false, "type": "b", "access": "w" });
        let one = serde_json::json!({ "allow": true, "type": "c", "major": 1, "minor": 1, "access": "r" });
        assert_eq!(program_of(serde_json::json!([deny, all, one])).unwrap(), None);
        let program = program_of(serde_json::json!([all, deny])).unwrap().unwrap();
        assert!(allowed(&program, BLOCK, 8, 0, READ) && !allowed(&program, BLOCK, 8, 0, WRITE));
    }

    #[test]
    fn rules_that_say_nothing_are_refused() {
        for bad in [
            serde_json::json!({ "allow": true }),
            serde_json::json!({ "allow": true, "access": "" }),
            serde_json::json!({ "allow": true, "access": "rx" }),
            serde_json::json!({ "allow": true, "type": "p", "access": "r" }),
            serde_json::json!({ "allow": true, "major": -2, "access": "r" }),
            serde_json::json!({ "allow": true, "minor": 4294967296u64, "access": "r" }),
        ] {
            assert!(matches!(program_of(serde_json::json!([bad])), Err(Error::Invalid(_))), "{bad}");
        }
    }
}
