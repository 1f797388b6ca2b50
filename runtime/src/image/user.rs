//! `USER` of an image, looked up in the image's own passwd and group files.
//!
//! All three are controlled by the image's author. So the resulting uid and gids are valid for the kernel: never -1 (4294967295),
//! which setresuid(2) treats as "unchanged", which would be root.

use super::{ImageError, Result};

/// The user of a container's process.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UserIds {
    pub uid: u32,
    pub gid: u32,
    /// Further groups of the user in `/etc/group` (without `gid`), ascending.
    pub groups: Vec<u32>,
    /// The user's name and home, if `/etc/passwd` has the uid.
    pub name: Option<String>,
    pub home: Option<String>,
}

/// The maximum uid and gid, as upstream: `int32`.
const MAX_ID: u32 = i32::MAX as u32;

/// Resolves `""`, `name`, `uid`, `name:group`, `uid:gid` and mixtures, as containerd's `WithUser` does: an unknown number is used
/// as is (group 0), an unknown name is an error, and so is any id above 2147483647. `passwd` and `group` are the files' text.
pub fn resolve_user(passwd: &str, group: &str, spec: &str) -> Result<UserIds> {
    let (user, wanted_group) = match spec.split_once(':') {
        Some((user, group)) => (user, Some(group).filter(|g| !g.is_empty())),
        None => (spec, None),
    };
    let user = if user.is_empty() { "0" } else { user };
    let mut ids = match number(user) {
        Some(uid) => {
            let uid = uid?;
            let entry = passwd.lines().filter_map(PasswdEntry::parse).find(|e| e.uid == uid);
            entry.map_or(UserIds { uid, ..UserIds::default() }, |e| e.ids())
        }
        None => {
            let entry = passwd.lines().filter_map(PasswdEntry::parse).find(|e| e.name == user);
            let unknown = || ImageError::Invalid(format!("user {user:?}: no matching entries in passwd file"));
            entry.ok_or_else(unknown)?.ids()
        }
    };
    if let Some(wanted) = wanted_group {
        ids.gid = match number(wanted) {
            Some(gid) => gid?,
            None => {
                let entry = group.lines().filter_map(GroupEntry::parse).find(|g| g.name == wanted);
                let unknown = || ImageError::Invalid(format!("group {wanted:?}: no matching entries in group file"));
                entry.ok_or_else(unknown)?.gid
            }
        };
    }
    if let Some(name) = &ids.name {
        let member = |g: &GroupEntry<'_>| g.members.split(',').any(|m| m.trim() == name);
        ids.groups = group.lines().filter_map(GroupEntry::parse).filter(member).map(|g| g.gid).collect();
        ids.groups.retain(|gid| *gid != ids.gid);
        ids.groups.sort_unstable();
        ids.groups.dedup();
    }
    [ids.uid, ids.gid].iter().chain(&ids.groups).try_for_each(|id| in_range(i64::from(*id)).map(drop))?;
    Ok(ids)
}

/// An id, if the text is a number by the rules of Go's `strconv.Atoi`, as in containerd.
fn number(text: &str) -> Option<Result<u32>> {
    text.parse::<i64>().ok().map(in_range)
}

fn in_range(id: i64) -> Result<u32> {
    let out = || ImageError::Invalid(format!("uids and gids must be in range 0-{MAX_ID}"));
    u32::try_from(id).ok().filter(|id| *id <= MAX_ID).ok_or_else(out)
}

struct PasswdEntry<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
    home: &'a str,
}

impl<'a> PasswdEntry<'a> {
    fn parse(line: &'a str) -> Option<PasswdEntry<'a>> {
        let mut fields = line.trim_end().split(':');
        let name = fields.next().filter(|n| !n.is_empty() && !n.starts_with('#'))?;
        let _password = fields.next()?;
        let uid = fields.next()?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        Some(PasswdEntry { name, uid, gid, home: fields.nth(1).unwrap_or_default() })
    }

    fn ids(&self) -> UserIds {
        UserIds {
            uid: self.uid,
            gid: self.gid,
            name: Some(self.name.to_owned()),
            home: Some(self.home.to_owned()).filter(|h| !h.is_empty()),
            groups: Vec::new(),
        }
    }
}

struct GroupEntry<'a> {
    name: &'a str,
    gid: u32,
    members: &'a str,
}

impl<'a> GroupEntry<'a> {
    fn parse(line: &'a str) -> Option<GroupEntry<'a>> {
        let mut fields = line.trim_end().split(':');
        let name = fields.next().filter(|n| !n.is_empty() && !n.starts_with('#'))?;
        let _password = fields.next()?;
        let gid = fields.next()?.parse().ok()?;
        Some(GroupEntry { name, gid, members: fields.next().unwrap_or_default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\n# note\nbroken\nweb:x:101:102:web:/srv/web:/sbin/nologin\n";
    const GROUP: &str = "root:x:0:\nweb:x:102:\ntls:x:300:other,web\naudio:x:29:web\n";

    #[test]
    fn users_resolve_as_in_containerd() {
        for (spec, uid, gid, groups) in [
            ("", 0, 0, vec![]),
            ("root", 0, 0, vec![]),
            ("web", 101, 102, vec![29, 300]),
            ("101", 101, 102, vec![29, 300]),
            ("web:tls", 101, 300, vec![29]),
            ("web:7", 101, 7, vec![29, 300]),
            ("1234", 1234, 0, vec![]),
            ("1234:tls", 1234, 300, vec![]),
            ("1234:56", 1234, 56, vec![]),
            (":56", 0, 56, vec![]),
            ("web:", 101, 102, vec![29, 300]),
        ] {
            let ids = resolve_user(PASSWD, GROUP, spec).unwrap();
            assert_eq!((ids.uid, ids.gid, ids.groups), (uid, gid, groups), "{spec:?}");
        }
        assert_eq!(resolve_user(PASSWD, GROUP, "web").unwrap().home.as_deref(), Some("/srv/web"));
        assert_eq!(resolve_user("", "", "99").unwrap().uid, 99);
    }

    #[test]
    fn unknown_names_are_errors() {
        for (spec, what) in [("nobody", "user \"nobody\""), ("web:none", "group \"none\""), (" 0", "user \" 0\"")] {
            let error = resolve_user(PASSWD, GROUP, spec).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
    }

    #[test]
    fn numbers_are_numbers_however_they_are_written() {
        for spec in ["0", "00", "+0", "-0", "000:000", "+0:+0"] {
            let ids = resolve_user(PASSWD, GROUP, spec).unwrap();
            assert_eq!((ids.uid, ids.gid), (0, 0), "{spec:?}");
        }
    }

    #[test]
    fn nobody_gets_an_id_that_the_kernel_takes_for_none() {
        const PASSWD: &str =
            "all:x:4294967295:0::/:\nsome:x:5:4294967295::/:\nmany:x:6:6::/:\nbig:x:3000000000:1::/:\n";
        const GROUP: &str = "none:x:4294967295:many\n";
        for spec in ["4294967295", "1:4294967295", "-1", "2147483648", "all", "some", "5", "many", "1:none", "big"] {
            let error = resolve_user(PASSWD, GROUP, spec).unwrap_err().to_string();
            assert_eq!(error, "uids and gids must be in range 0-2147483647", "{spec:?}");
        }
        assert!(resolve_user(PASSWD, GROUP, "99999999999999999999").is_err(), "a name that nobody has");
        assert_eq!(resolve_user(PASSWD, GROUP, "2147483647:2147483647").unwrap().uid, 2147483647);
    }
}
