//! Whose a folder on disk is: with whom it shares its turns when it is removed, and whose ids its files may have.

use std::fmt::{self, Display};
use std::io;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use podwright_sys::ids::{self, Ids};
use podwright_sys::users::IdRange;

/// The file in which a folder says whose it is, as [`Owner`] is written: its caller's, who has others in it than sandboxes.
pub const OWNER: &str = "owner";
/// The record of a sandbox, in its folder.
pub const SANDBOX: &str = "sandbox.json";
/// Of files of which nobody can tell whose ids they have: every id but the host's own.
pub const ALL: IdRange = IdRange { host: ids::HOSTS, size: u32::MAX - ids::HOSTS };
/// The longest name of an owner.
pub(crate) const LONGEST: usize = 63;

/// Whose a folder is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// With whom he shares his turns. Empty: it is not known.
    pub(crate) name: String,
    /// Whose ids of the host the files may have, if those are his alone.
    pub(crate) users: Option<IdRange>,
}

impl Owner {
    /// One whose name is not of small letters, digits and `-` has none: it is to be part of a file's.
    pub fn new(name: &str, users: Option<IdRange>) -> Owner {
        let fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let name = if name.len() <= LONGEST && name.chars().all(fine) { name } else { "" };
        Owner { name: name.to_owned(), users }
    }

    /// Of a folder that nothing says the ids of: those that its files have, but for the host's own. Where that cannot be told,
    /// [`ALL`]. It blocks, for about as long as `within`.
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

/// The ids but for the host's own that files in a folder have. Errors: not all of them were seen.
pub(crate) fn users_in(folder: &Path, within: Duration) -> io::Result<Option<IdRange>> {
    match ids::find(folder, ids::HOSTS, within) {
        Ids::None => Ok(None),
        // One is enough: whoever has ids of his own has none but those.
        Ids::Has(id) => Ok(Some(IdRange { host: id, size: 1 })),
        Ids::Unknown(why) => Err(why),
    }
}

/// Who knows, by the id of a sandbox, whose it is, when its record is lost: whoever has asked for it. Cheap to clone.
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
