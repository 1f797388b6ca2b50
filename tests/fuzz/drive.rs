//! Runs the targets, each in a process of its own, as many at once as there are CPUs, and tells what came of it.

use std::collections::VecDeque;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Mutex, OnceLock};
use std::{env, fs, process, thread};

use nix::sys::resource::{Resource, setrlimit};

use super::targets::{self, Target};

/// Names the target of a process that fuzzes one.
const TARGET: &str = "PODWRIGHT_FUZZ_TARGET";
/// What a thread of the server has; nothing may need more.
const STACK: u64 = 2 << 20;
/// Seconds that one input may take, and MiB that all may.
const TIMEOUT: u32 = 20;
const MEMORY: u32 = 1536;

/// The target of this process.
pub fn target() -> &'static Target {
    static CHOSEN: OnceLock<&Target> = OnceLock::new();
    CHOSEN.get_or_init(|| {
        let name = env::var(TARGET).unwrap_or_default();
        targets::all().find(|target| target.name == name).expect("the driver names one that there is")
    })
}

/// Called first in every process: one that has no target is the driver, and does not return.
pub fn begin() {
    if env::var_os(TARGET).is_none() {
        process::exit(drive(&env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect::<Vec<_>>()));
    }
    // As Rust's own `main` does it: who writes to a connection that is closed is told so.
    // SAFETY: no handler is installed, and nobody else has asked for this signal.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    // A stack that overflows is a finding like any other: the handler needs a place to stand on.
    let place = Box::leak(vec![0u8; 64 << 10].into_boxed_slice());
    let stack = libc::stack_t { ss_sp: place.as_mut_ptr().cast(), ss_flags: 0, ss_size: place.len() };
    // SAFETY: the memory is never freed, and of the size that is told.
    unsafe { libc::sigaltstack(&stack, std::ptr::null_mut()) };
}

fn usage(why: &str) -> i32 {
    let names: Vec<&str> = targets::all().map(|target| target.name).collect();
    eprintln!(
        "{why}\nusage: ./dev fuzz [SECONDS] [TARGET...], or ./dev fuzz TARGET FILE for one input\ntargets: {}",
        names.join(" ")
    );
    2
}

/// The driver: the exit code.
fn drive(args: &[String]) -> i32 {
    let (seconds, names) = match args.split_first() {
        Some((first, rest)) if first.parse::<u32>().is_ok() => (first.parse().unwrap_or(60), rest),
        _ => (60, args),
    };
    if let [name, file] = names
        && Path::new(file).is_file()
    {
        return match targets::all().any(|target| target.name == name) {
            true => run(name, &[file.clone()], Stdio::inherit()).code().unwrap_or(1),
            false => usage(&format!("there is no target {name:?}")),
        };
    }
    if let Some(unknown) = names.iter().find(|name| !targets::all().any(|target| target.name == **name)) {
        return usage(&format!("there is no target {unknown:?}"));
    }
    let chosen = targets::all().filter(|target| names.is_empty() || names.iter().any(|name| name == target.name));
    let queue: Mutex<VecDeque<&Target>> = Mutex::new(chosen.collect());
    let findings = Mutex::new(0);
    println!("{:<26} {:>12} {:>8}  findings", "target", "executions", "edges");
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(target) = { queue.lock().unwrap().pop_front() } {
                    let outcome = fuzz(target, seconds);
                    *findings.lock().unwrap() += outcome.findings.len();
                    outcome.tell(target.name);
                }
            });
        }
    });
    i32::from(findings.into_inner().unwrap() > 0)
}

/// This program on one target, with these arguments for libFuzzer.
fn run(name: &str, args: &[String], output: Stdio) -> ExitStatus {
    let mut command = Command::new(env::current_exe().expect("a program has a path"));
    command.env(TARGET, name).args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(output);
    // SAFETY: setrlimit(2) is async-signal-safe.
    unsafe {
        command.pre_exec(|| setrlimit(Resource::RLIMIT_STACK, STACK, STACK).map_err(std::io::Error::from));
    }
    command.status().expect("the program that runs can be run")
}

/// What came of one target.
struct Outcome {
    executions: String,
    edges: String,
    /// Files with inputs; one without a file is told by its log alone.
    findings: Vec<PathBuf>,
    log: PathBuf,
}

/// Fuzzes a target for so many seconds, beginning with its seeds and with what reached new code before.
fn fuzz(target: &Target, seconds: u32) -> Outcome {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this package lies in tests/");
    let folder = tests.with_file_name("target").join("corpus").join(target.name);
    let (corpus, found, log) = (folder.join("corpus"), folder.join("findings"), folder.join("log"));
    let _ = fs::remove_dir_all(&found);
    fs::create_dir_all(&corpus).and_then(|()| fs::create_dir_all(&found)).expect("target/corpus can be written");
    for (i, seed) in target.seeds().into_iter().enumerate() {
        fs::write(corpus.join(format!("seed-{i}")), seed).expect("target/corpus can be written");
    }
    let mut args: Vec<String> = [
        format!("-max_total_time={seconds}"),
        format!("-timeout={TIMEOUT}"),
        format!("-rss_limit_mb={MEMORY}"),
        format!("-artifact_prefix={}/", found.display()),
        "-print_final_stats=1".into(),
        "-max_len=8192".into(),
        "-len_control=20".into(),
        "-detect_leaks=0".into(),
    ]
    .into();
    args.push(corpus.display().to_string());
    let ended = run(target.name, &args, fs::File::create(&log).expect("target/corpus can be written").into());
    let text = String::from_utf8_lossy(&fs::read(&log).unwrap_or_default()).into_owned();
    let last = |before: &str| {
        let found = text.rsplit_once(before).map(|(_, rest)| rest.split_whitespace().next().unwrap_or("?").to_owned());
        found.unwrap_or_else(|| "?".to_owned())
    };
    let mut findings: Vec<PathBuf> =
        fs::read_dir(&found).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    // What is merely slow is told by libFuzzer, but within its time.
    findings.retain(|path| !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("slow-unit")));
    if !ended.success() && findings.is_empty() {
        findings.push(log.clone());
    }
    Outcome { executions: last("stat::number_of_executed_units:"), edges: last("cov: "), findings, log }
}

impl Outcome {
    fn tell(&self, name: &str) {
        // One call, as several targets tell at once.
        let mut out = format!("{name:<26} {:>12} {:>8}  {}\n", self.executions, self.edges, self.findings.len());
        for finding in &self.findings {
            let log = String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned();
            let reason =
                log.lines().skip_while(|line| !line.contains("panicked at") && !line.contains("ERROR: libFuzzer"));
            for line in reason.take(4) {
                out += &format!("    {line}\n");
            }
            let input = fs::read(finding).unwrap_or_default();
            out += &format!("    the input: \"{}\"\n", input[..input.len().min(2000)].escape_ascii());
            out += &format!("    again: ./dev fuzz {name} {}\n", finding.display());
        }
        print!("{out}");
    }
}
