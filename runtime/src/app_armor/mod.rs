//! AppArmor on this machine: which profiles are loaded, and the default profile of containers.
//!
//! A process switches to its profile on exec ([`podwright_sys::app_armor`]); until then it runs as unconfined as the agent. A
//! profile belongs to the machine, not to one sandbox: it stays loaded for all processes under it, since removing it would
//! unconfine them.

use std::io::{Error as IoError, ErrorKind};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// The name of the profile in [`TEXT`].
pub const DEFAULT: &str = "podwright-default";
const TEXT: &str = include_str!("podwright-default");

/// Whether the kernel has it compiled in, and enabled at boot.
const SWITCH: &str = "/sys/module/apparmor/parameters/enabled";
/// Its path in securityfs, which must be mounted.
const FOLDER: &str = "/sys/kernel/security/apparmor";
/// One per line, as parsed by [`listed`].
const PROFILES: &str = "/sys/kernel/security/apparmor/profiles";

/// Where distributions install the profile compiler. Not searched in PATH: it runs with all privileges.
const PARSERS: [&str; 3] = ["/usr/sbin/apparmor_parser", "/sbin/apparmor_parser", "/usr/bin/apparmor_parser"];
/// The kernel features that the text was written for. Without it a parser assumes those before ABIs were introduced.
const ABI: (&str, &str) = ("/etc/apparmor.d/abi/3.0", "abi <abi/3.0>,\n");
/// Compiling takes some 20 ms.
const COMPILING: Duration = Duration::from_secs(30);
/// Upstream's maximum name length.
const LONGEST_NAME: usize = 4095;

/// Whether this machine's kernel enforces AppArmor.
pub fn is_enabled() -> bool {
    std::fs::read_to_string(SWITCH).is_ok_and(|text| text.starts_with('Y')) && Path::new(FOLDER).exists()
}

/// Whether this is a valid name of one profile. The kernel accepts more: stacked ones (`a//&b`), or one on top of the current one
/// (`&a`).
pub fn is_name(name: &str) -> bool {
    let plain = name.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    (1..=LONGEST_NAME).contains(&name.len()) && plain && name.trim() == name && !name.contains('&')
}

/// Whether a profile of this name is loaded. Fails if the list cannot be read.
pub fn is_loaded(name: &str) -> Result<bool, IoError> {
    let text = std::fs::read_to_string(PROFILES)?;
    Ok(is_name(name) && listed(&text).any(|profile| profile == name))
}

/// The names in a list of profiles: each line is a name, followed by its mode in parentheses.
fn listed(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| Some(line.rsplit_once(" (")?.0))
}

/// Loads this release's default profile; processes under an earlier version switch to it. Fails with a message.
pub async fn load() -> Result<(), String> {
    let parser = PARSERS.iter().find(|path| Path::new(path).exists());
    let parser = parser.ok_or("apparmor_parser is not installed")?;
    let failed = |e: IoError| format!("{parser}: {e}");
    let mut command = Command::new(parser);
    command.args(["--replace", "--skip-cache"]).env_clear().kill_on_drop(true);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().map_err(failed)?;
    let mut input = child.stdin.take().ok_or_else(|| failed(ErrorKind::BrokenPipe.into()))?;
    let text = text(Path::new(ABI.0).exists(), own_label().as_deref());
    let run = async {
        // If it does not read it, its exit code tells why.
        let written = input.write_all(text.as_bytes()).await;
        drop(input);
        let output = child.wait_with_output().await?;
        written.map(|()| output)
    };
    let output = tokio::time::timeout(COMPILING, run).await;
    let output = output.map_err(|_| format!("{parser} takes longer than {COMPILING:?}"))?.map_err(failed)?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(format!("{parser}: {}: {}", output.status, said.lines().last().unwrap_or_default()))
        }
    }
}

/// The profile, for a parser with or without the ABI file, and for an agent that is confined itself.
fn text(has_abi: bool, label: Option<&str>) -> String {
    let abi = if has_abi { ABI.1 } else { "" };
    let ours = label.map(|label| format!("  signal (receive) peer={label},\n}}")).unwrap_or("}".into());
    format!("{abi}{}{ours}\n", TEXT.trim_end().trim_end_matches('}'))
}

/// Our own profile, if any; a label that a rule cannot name literally counts as none.
fn own_label() -> Option<String> {
    let read = |name: &str| std::fs::read_to_string(Path::new("/proc/self/attr").join(name));
    let text = read("apparmor/current").or_else(|_| read("current")).ok()?;
    let label = text.trim_end().split(" (").next()?.to_owned();
    let plain = label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'.' | b'_' | b'-'));
    (plain && !label.is_empty() && label != "unconfined").then_some(label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_that_of_one_profile() {
        for name in ["a", "/usr/bin/man", "docker-default", "a profile", "outer//inner", ":ns://a", "unconfined"] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", " a", "a ", "a\n", "a\0b", "a\tb", "é", "&a", "a//&b", &"a".repeat(4096)] {
            assert!(!is_name(name), "{name:?}");
        }
    }

    #[test]
    fn profiles_are_listed_by_their_whole_names() {
        let text = "podwright-default (enforce)\n/usr/bin/man (enforce)\na (b) (complain)\nno mode\n";
        assert_eq!(listed(text).collect::<Vec<_>>(), ["podwright-default", "/usr/bin/man", "a (b)"]);
    }

    #[test]
    fn the_profile_is_named_as_it_is_called_and_lets_the_agent_signal() {
        assert!(TEXT.contains(&format!("profile {DEFAULT} flags=")));
        assert!(TEXT.contains(&format!("signal (send, receive) peer={DEFAULT},")));
        let plain = text(false, None);
        assert_eq!(plain.trim_end(), TEXT.trim_end());
        let confined = text(true, Some("/usr/bin/podwright"));
        assert!(confined.starts_with("abi <abi/3.0>,\n# "), "{confined}");
        assert!(confined.ends_with("peer=unconfined,\n  signal (receive) peer=/usr/bin/podwright,\n}\n"), "{confined}");
    }
}
