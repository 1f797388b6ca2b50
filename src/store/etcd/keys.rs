//! Maps the store's keys to etcd's: a prefix replaces their root.

/// See the module.
#[derive(Clone, Debug)]
pub struct Keys {
    /// The root of every key in the store, which is omitted in etcd.
    root: String,
    /// Its replacement, without a trailing `/`.
    prefix: String,
}

/// A range of etcd's keys: `start` inclusive, `end` exclusive. It is empty if it ends before it starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    pub start: Vec<u8>,
    pub end: Vec<u8>,
}

impl Span {
    pub fn is_empty(&self) -> bool {
        self.start >= self.end
    }
}

impl Keys {
    pub fn new(root: &str, prefix: &str) -> Keys {
        Keys { root: root.to_owned(), prefix: prefix.trim_end_matches('/').to_owned() }
    }

    /// The first key of all, which is no object: written to force a change.
    pub fn marker(&self) -> String {
        format!("{}/", self.prefix)
    }

    /// The etcd key of a key in the store; `None`: it is not below the root.
    pub fn outer(&self, key: &str) -> Option<String> {
        let rest = key.strip_prefix(&self.root).filter(|rest| rest.len() > 1 && rest.starts_with('/'))?;
        Some(format!("{}{rest}", self.prefix))
    }

    /// The store's key for an etcd key; `None`: the marker, or another program's.
    pub fn inner(&self, outer: &[u8]) -> Option<String> {
        let rest = std::str::from_utf8(outer).ok()?.strip_prefix(&self.prefix)?;
        (rest.len() > 1 && rest.starts_with('/')).then(|| format!("{}{rest}", self.root))
    }

    /// All keys of the store, including the marker.
    pub fn all(&self) -> Span {
        let start = self.marker().into_bytes();
        Span { end: successor(&start), start }
    }

    /// The keys below a prefix, after `after`.
    pub fn below(&self, prefix: &str, after: Option<&str>) -> Span {
        let all = self.all();
        let mut span = match prefix.strip_prefix(&self.root) {
            Some(rest) if rest.starts_with('/') => {
                let start = format!("{}{rest}", self.prefix).into_bytes();
                Span { end: successor(&start), start }
            }
            // A prefix of the root, or the root itself.
            _ if self.root.starts_with(prefix) => all.clone(),
            _ => Span { start: Vec::new(), end: Vec::new() },
        };
        // The marker comes first.
        if span.start == all.start {
            span.start.push(0);
        }
        if let Some(behind) = after.filter(|after| *after >= prefix).and_then(|after| self.outer(after)) {
            let mut behind = behind.into_bytes();
            behind.push(0);
            span.start = span.start.max(behind);
        }
        span
    }
}

/// The smallest key after all with this prefix, which must not consist of 0xff bytes only.
fn successor(start: &[u8]) -> Vec<u8> {
    let mut end = start.to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            break;
        }
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prefix_takes_the_roots_place_and_back() {
        let keys = Keys::new("/registry", "/cluster-a/");
        assert_eq!(keys.outer("/registry/pods/a/b").as_deref(), Some("/cluster-a/pods/a/b"));
        assert_eq!(keys.inner(b"/cluster-a/pods/a/b").as_deref(), Some("/registry/pods/a/b"));
        for foreign in ["/registry", "/registry/", "/registryx/a", "/other/a", ""] {
            assert_eq!(keys.outer(foreign), None, "{foreign}");
        }
        for foreign in [&b"/cluster-a/"[..], b"/cluster-a", b"/cluster-ab/x", b"/registry/x", b"/cluster-a/\xff"] {
            assert_eq!(keys.inner(foreign), None, "{foreign:?}");
        }
        let keys = Keys::new("/registry", "/registry");
        assert_eq!(keys.outer("/registry/pods/a/b").as_deref(), Some("/registry/pods/a/b"));
    }

    #[test]
    fn a_prefix_is_a_span_without_the_marker() {
        let keys = Keys::new("/registry", "/p");
        let span = |start: &str, end: &str| Span { start: start.into(), end: end.into() };
        for whole in ["", "/", "/registry", "/registry/"] {
            assert_eq!(keys.below(whole, None), span("/p/\0", "/p0"), "{whole}");
        }
        assert_eq!(keys.below("/registry/pods/", None), span("/p/pods/", "/p/pods0"));
        assert_eq!(keys.below("/registry/pods/", Some("/registry/pods/b")), span("/p/pods/b\0", "/p/pods0"));
        assert_eq!(keys.below("/registry/pods/", Some("/registry/a")), span("/p/pods/", "/p/pods0"));
        assert!(keys.below("/registry/pods/", Some("/registry/z")).is_empty());
        assert!(keys.below("/other/", None).is_empty());
        assert!(!keys.all().is_empty() && keys.all().start == keys.marker().as_bytes());
    }
}
