//! What `who` is asked about: a kernel object of a node, by the name that Linux tools show.

use std::fmt;

use crate::error::Failure;

const USAGE: &str = "expected PID, netns:INODE, cgroup PATH, veth NAME, mount PATH, nft ELEMENT or port NUMBER";

/// Namespaces that a Pod can have of its own, by their names in `/proc/<pid>/ns`.
const NAMESPACES: [&str; 6] = ["net", "ipc", "uts", "pid", "mnt", "user"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    Process(u32),
    /// Its type, and its inode number.
    Namespace(&'static str, u64),
    /// As in `/proc/<pid>/cgroup`.
    Cgroup(String),
    Veth(String),
    Mount(String),
    /// An element or a part of it, in nft's notation.
    Element(Vec<String>),
    Port(u16),
}

impl Question {
    /// # Errors
    ///
    /// The words name no kernel object.
    pub fn parse(words: &[String]) -> Result<Question, Failure> {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words.as_slice() {
            [word] | ["pid" | "process", word] if word.bytes().all(|byte| byte.is_ascii_digit()) => {
                let pid = word.parse().ok().filter(|pid| *pid != 0);
                pid.map(Question::Process).ok_or_else(|| Failure::usage(format!("invalid PID {word}")))
            }
            [word] => namespace(word).ok_or_else(|| Failure::usage(format!("invalid object {word:?}: {USAGE}"))),
            ["cgroup", path] => Ok(Question::Cgroup(cgroup(path))),
            ["veth" | "link", name] => Ok(Question::Veth((*name).to_owned())),
            ["mount", path] if path.starts_with('/') => Ok(Question::Mount(trimmed(path))),
            ["mount", path] => Err(Failure::usage(format!("invalid mount {path:?}: an absolute path is needed"))),
            ["nft", parts @ ..] if !parts.is_empty() => Ok(Question::Element(tokens(&parts.join(" ")))),
            ["port", number] => {
                let port = number.parse().ok().filter(|port| *port != 0);
                let invalid =
                    || Failure::usage(format!("invalid port {number:?}: must be between 1 and 65535, inclusive"));
                port.map(Question::Port).ok_or_else(invalid)
            }
            _ => Err(Failure::usage(USAGE)),
        }
    }

    /// Whether at most one Pod has it.
    pub fn is_unique(&self) -> bool {
        !matches!(self, Question::Mount(_) | Question::Element(_) | Question::Port(_))
    }

    /// Whether it names this Pod: the Pod is asked first.
    pub fn mentions(&self, uid: &str) -> bool {
        matches!(self, Question::Cgroup(path) | Question::Mount(path) if path.contains(uid))
    }
}

impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Question::Process(pid) => write!(f, "PID {pid}"),
            Question::Namespace(name, inode) => write!(f, "namespace {name}:[{inode}]"),
            Question::Cgroup(path) => write!(f, "cgroup {path}"),
            Question::Veth(name) => write!(f, "veth {name}"),
            Question::Mount(path) => write!(f, "mount {path}"),
            Question::Element(parts) => write!(f, "nft element {}", parts.join(" ")),
            Question::Port(port) => write!(f, "port {port}"),
        }
    }
}

/// `netns:4026532` and `net:4026532`, or as `/proc/<pid>/ns` and `lsns` show it: `net:[4026532]`.
fn namespace(word: &str) -> Option<Question> {
    let (name, inode) = word.split_once(':')?;
    let name = NAMESPACES.into_iter().find(|known| name == *known || name.strip_suffix("ns") == Some(known))?;
    let inode = inode.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(inode);
    Some(Question::Namespace(name, inode.parse().ok()?))
}

/// A cgroup as in `/proc/<pid>/cgroup`, from its folder or from itself.
fn cgroup(path: &str) -> String {
    let path = path.strip_prefix("0::").unwrap_or(path);
    let below = path.strip_prefix("/sys/fs/cgroup").map(|rest| rest.strip_prefix("/unified").unwrap_or(rest));
    format!("/{}", trimmed(below.unwrap_or(path)).trim_start_matches('/'))
}

fn trimmed(path: &str) -> String {
    if path.len() > 1 { path.trim_end_matches('/').to_owned() } else { path.to_owned() }
}

/// The words of an element, whatever the spaces around its separators; braces, commas and quotes only enclose it.
pub fn tokens(text: &str) -> Vec<String> {
    let spaced = text.replace(['{', '}', ',', '"'], " ");
    spaced.split_whitespace().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(text: &str) -> Option<Question> {
        Question::parse(&text.split(' ').map(str::to_owned).collect::<Vec<_>>()).ok()
    }

    #[test]
    fn objects_are_named_as_linux_tools_show_them() {
        assert_eq!(asked("17"), Some(Question::Process(17)));
        for text in ["netns:4026", "net:4026", "net:[4026]"] {
            assert_eq!(asked(text), Some(Question::Namespace("net", 4026)), "{text}");
        }
        for text in [
            "cgroup /a/b",
            "cgroup a/b/",
            "cgroup 0::/a/b",
            "cgroup /sys/fs/cgroup/unified/a/b",
            "cgroup /sys/fs/cgroup/a/b",
        ] {
            assert_eq!(asked(text), Some(Question::Cgroup("/a/b".to_owned())), "{text}");
        }
        assert_eq!(asked("mount /data/"), Some(Question::Mount("/data".to_owned())));
        assert_eq!(asked("nft { 10.0.0.1 . 80 }"), Some(Question::Element(tokens("10.0.0.1 . 80"))));
        assert_eq!(asked("port 80"), Some(Question::Port(80)));
    }

    #[test]
    fn what_names_no_object_is_refused() {
        let bad = [
            "0",
            "99999999999",
            "x",
            "time:1",
            "net:[x",
            "net:-1",
            "mount data",
            "port 0",
            "port 65536",
            "port http",
            "nft",
            "cgroup",
            "veth a b",
            "tree 1",
            "",
        ];
        for text in bad {
            assert_eq!(asked(text), None, "{text}");
        }
    }
}
