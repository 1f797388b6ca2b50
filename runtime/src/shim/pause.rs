//! The sandbox holder: reaps what is orphaned to it (PID 1 of a shared PID namespace) and waits. No libc, no std.
#![no_std]
#![no_main]

use core::arch::asm;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

const SIGCHLD: u64 = 17;
const SIG_BLOCK: usize = 0;
const WNOHANG: usize = 1;
const EINTR: isize = -4;
const PR_SET_NAME: usize = 15;

#[cfg(target_arch = "x86_64")]
mod nr {
    pub const RT_SIGPROCMASK: usize = 14;
    pub const RT_SIGTIMEDWAIT: usize = 128;
    pub const WAIT4: usize = 61;
    pub const PRCTL: usize = 157;
    pub const EXIT: usize = 231;
}

#[cfg(target_arch = "aarch64")]
mod nr {
    pub const RT_SIGPROCMASK: usize = 135;
    pub const RT_SIGTIMEDWAIT: usize = 137;
    pub const WAIT4: usize = 260;
    pub const PRCTL: usize = 167;
    pub const EXIT: usize = 94;
}

#[cfg(target_arch = "x86_64")]
unsafe fn syscall(nr: usize, a: usize, b: usize, c: usize, d: usize) -> isize {
    let result;
    unsafe {
        asm!("syscall", inlateout("rax") nr => result, in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d,
             out("rcx") _, out("r11") _, options(nostack))
    };
    result
}

#[cfg(target_arch = "aarch64")]
unsafe fn syscall(nr: usize, a: usize, b: usize, c: usize, d: usize) -> isize {
    let result;
    unsafe {
        asm!("svc 0", in("x8") nr, inlateout("x0") a => result, in("x1") b, in("x2") c, in("x3") d, options(nostack))
    };
    result
}

#[unsafe(no_mangle)]
extern "C" fn _start() -> ! {
    // Executed from a memfd, its name would be `memfd:pause`.
    unsafe { syscall(nr::PRCTL, PR_SET_NAME, c"pause".as_ptr() as usize, 0, 0) };
    // PID 1 only gets signals that it handles, or SIGKILL from outside; other processes should end on SIGTERM as usual.
    let set: u64 = 1 << (SIGCHLD - 1);
    unsafe { syscall(nr::RT_SIGPROCMASK, SIG_BLOCK, &raw const set as usize, 0, 8) };
    loop {
        let got = unsafe { syscall(nr::RT_SIGTIMEDWAIT, &raw const set as usize, 0, 0, 8) };
        if got < 0 && got != EINTR {
            unsafe { syscall(nr::EXIT, 1, 0, 0, 0) };
        }
        while unsafe { syscall(nr::WAIT4, usize::MAX, 0, WNOHANG, 0) } > 0 {}
    }
}
