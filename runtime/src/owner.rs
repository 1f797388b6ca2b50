//! The owner of a folder on disk: who shares its removal turns, and which ids its files may have.

use std::fmt::{self, Display};
use std::io;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use podwright_sys::ids::{self, Ids};
use podwright_sys::users::IdRange;

/// The file that records a folder's owner, in the form of [`Owner`]; written by callers with folders other than sandboxes.
pub const OWNER: &str = "owner";
/// The record of a sandbox, in its folder.
pub const SANDBOX: &str = "sandbox.json";
/// For files with unknown ids: every id except the host's own.
pub const ALL: IdRange = IdRange { host: ids::HOSTS, size: u32::MAX - ids::HOSTS };
/// Maximum length of an owner's name.
pub(crate) const LONGEST: usize = 63;

/// Whose a folder is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// The name under which turns are shared. Empty: unknown.
    pub(crate) name: String,
    /// The host ids that the files may have, if they are exclusively this owner's.
    pub(crate) users: Option<IdRange>,
}

impl Owner {
    /// The name is dropped unless it consists of lower-case letters, digits and `-`: it becomes part of a file name.
    pub fn new(name: &str, users: Option<IdRange>) -> Owner {
        let fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let name = if name.len() <= LONGEST && name.chars().all(fine) { name } else { "" };
        Owner { name: name.to_owned(), users }
    }

    /// For a folder without recorded ids: those of its files, except the host's own. [`ALL`] if that cannot be determined. Blocks,
    /// for about `within`.
    pub fn found_in(name: &str, folder: &Path, within: Duration) -> Owner {
        let users = users_in(folder, within).unwrap_or_else(|why| {
            tracing::warn!("{}: {why}: no host IDs are allocated until it is removed", folder.display());
            Some(ALL)
        });
        Owner::new(name, users)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn users(&self) -> Option<IdRange> {
        self.users
    }
}

/// The ids of files in a folder, except the host's own. Fails if not all were seen.
pub(crate) fn users_in(folder: &Path, within: Duration) -> io::Result<Option<IdRange>> {
    match ids::find(folder, ids::HOSTS, within) {
        Ids::None => Ok(None),
        // One id is enough: an owner with its own ids uses only those of one range.
        Ids::Has(id) => Ok(Some(IdRange { host: id, size: 1 })),
        Ids::Unknown(why) => Err(why),
    }
}

/// Looks up the owner of a sandbox by id when its record is lost: asks the caller that requested it. Cheap to clone.
#[derive(Clone, Default)]
pub struct Owners(Option<Arc<Asked>>);

type Asked = dyn Fn(&str) -> Option<Owner> + Send + Sync;

impl Owners {
    pub fn new(of: impl Fn(&str) -> Option<Owner> + Send + Sync + 'static) -> Owners {
        Owners(Some(Arc::new(of)))
    }

    pub(crate) fn of(&self, sandbox: &str) -> Option<Owner> {
        self.0.as_ref()?(sandbox)
    }
}

impl fmt::Debug for Owners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Owners").field(&self.0.is_some()).finish()
    }
}

impl Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.users {
            Some(users) => write!(f, "{}+{}.{}", users.host, users.size, self.name),
            None => write!(f, "-.{}", self.name),
        }
    }
}

impl FromStr for Owner {
    type Err = ();

    fn from_str(text: &str) -> Result<Owner, ()> {
        let (users, name) = text.split_once('.').ok_or(())?;
        let users = match users {
            "-" => None,
            users => {
                let (host, size) = users.split_once('+').ok_or(())?;
                Some(IdRange { host: host.parse().map_err(drop)?, size: size.parse().map_err(drop)? })
            }
        };
        Ok(Owner::new(name, users))
    }
}
