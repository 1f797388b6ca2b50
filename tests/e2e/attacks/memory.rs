//! How much memory a process takes at most, from a moment on.

use std::fs;

/// The peak of a process's memory, in MiB.
pub struct Peak {
    pid: u32,
    before: u64,
}

impl Peak {
    /// From now on (proc_pid_clear_refs(5)).
    pub fn of(pid: u32) -> Peak {
        fs::write(format!("/proc/{pid}/clear_refs"), "5").expect("the process runs");
        Peak { pid, before: field(pid, "VmRSS:") }
    }

    pub fn grown(&self) -> u64 {
        field(self.pid, "VmHWM:").saturating_sub(self.before)
    }

    /// For messages.
    pub fn seen(&self) -> String {
        format!("{} MiB before, {} MiB at most", self.before, field(self.pid, "VmHWM:"))
    }
}

/// proc_pid_status(5).
fn field(pid: u32, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("every process has memory");
    line.split_whitespace().next().expect("it is a number").parse::<u64>().expect("it is a number") / 1024
}
