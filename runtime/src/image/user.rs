//! `USER` of an image, looked up in the image's own passwd and group files.

use super::{ImageError, Result};

/// Who a container's process runs as.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UserIds {
    pub uid: u32,
    pub gid: u32,
    /// Further groups that `/etc/group` lists the user in (not `gid`), ascending.
    pub groups: Vec<u32>,
    /// The user's name and home, when `/etc/passwd` knows the uid.
    pub name: Option<String>,
    pub home: Option<String>,
}

/// Resolves `""`, `name`, `uid`, `name:group`, `uid:gid` and mixtures, as containerd's `WithUser` does: an unknown
/// number is taken as it is (group 0), an unknown name is an error. `passwd` and `group` are the files' text.
pub fn resolve_user(passwd: &str, group: &str, spec: &str) -> Result<UserIds> {
    let (user, wanted_group) = match spec.split_once(':') {
        Some((user, group)) => (user, Some(group).filter(|g| !g.is_empty())),
        None => (spec, None),
    };
    let user = if user.is_empty() { "0" } else { user };
    let entry = passwd.lines().filter_map(PasswdEntry::parse).find(|e| match user.parse::<u32>() {
        Ok(uid) => e.uid == uid,
        Err(_) => e.name == user,
    });
    let mut ids = match (&entry, user.parse::<u32>()) {
        (Some(e), _) => UserIds {
            uid: e.uid,
            gid: e.gid,
            name: Some(e.name.to_owned()),
            home: Some(e.home.to_owned()).filter(|h| !h.is_empty()),
            groups: Vec::new(),
        },
        (None, Ok(uid)) => UserIds { uid, ..UserIds::default() },
        (None, Err(_)) => {
            return Err(ImageError::Invalid(format!("user {user:?}: no matching entries in passwd file")));
        }
    };
    if let Some(wanted) = wanted_group {
        ids.gid = match wanted.parse::<u32>() {
            Ok(gid) => gid,
            Err(_) => {
                group.lines().filter_map(GroupEntry::parse).find(|g| g.name == wanted).map(|g| g.gid).ok_or_else(
                    || ImageError::Invalid(format!("group {wanted:?}: no matching entries in group file")),
                )?
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
    Ok(ids)
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
        for (spec, what) in [("nobody", "user \"nobody\""), ("web:none", "group \"none\""), ("-1", "user \"-1\"")] {
            let error = resolve_user(PASSWD, GROUP, spec).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
    }
}
