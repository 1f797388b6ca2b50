//! Limits open sessions with nodes and extension API servers: in total, per user, per namespace, per object (a Pod, a node), and
//! per user and object. So no user can keep others from a Pod. When all are taken, the user with the most loses the oldest to one
//! with fewer. A session counts from its request to its end.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio_util::sync::CancellationToken;

use podwright_api::{
    Status, User,
    shares::{Shares, Slot},
};

/// The limits, in sessions.
///
/// Upstream has none: its long-running requests are exempt from flow control. A session with a Pod takes several descriptors of its
/// shim, whose limit the agent inherited (usually 1024), of the agent and of the server.
#[derive(Clone, Copy, Debug)]
pub struct SessionLimits {
    pub all: usize,
    pub of_user: usize,
    pub in_namespace: usize,
    pub with_object: usize,
    pub of_user_with_object: usize,
}

impl Default for SessionLimits {
    fn default() -> SessionLimits {
        SessionLimits { all: 4096, of_user: 1024, in_namespace: 2048, with_object: 256, of_user_with_object: 128 }
    }
}

/// A set of sessions that is counted together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Scope {
    User(String),
    Namespace(String),
    Object(String),
    UserWithObject(String, String),
}

/// The object of a session.
#[derive(Clone, Copy, Debug)]
pub(super) struct With<'a> {
    /// "" for cluster-scoped objects.
    pub namespace: &'a str,
    /// Identifies it: a Pod's uid, `nodes/<name>`, `apiservices/<name>`.
    pub object: &'a str,
    /// Whether all tenants share the object. Then there is a limit per user but none per object: otherwise one user could lock out
    /// all others.
    pub shared: bool,
}

/// Counts the open sessions.
pub(super) struct Sessions {
    limits: SessionLimits,
    all: Arc<Shares>,
    open: Mutex<HashMap<Scope, usize>>,
}

/// The permission of one session to be open, which ends when dropped.
pub(super) struct OpenSession {
    sessions: Arc<Sessions>,
    scopes: Vec<Scope>,
    /// `None`: not counted.
    place: Option<Slot>,
}

impl OpenSession {
    /// Its user; "" if not counted.
    pub fn user(&self) -> &str {
        self.place.as_ref().map_or("", Slot::user)
    }

    /// Cancelled when the session, which may last indefinitely, must end for others.
    pub fn lasting(&self) -> CancellationToken {
        self.place.as_ref().map(Slot::lasting).unwrap_or_default()
    }
}

impl Sessions {
    pub fn new(limits: SessionLimits) -> Arc<Sessions> {
        Arc::new(Sessions { limits, all: Shares::new(limits.all), open: Mutex::default() })
    }

    /// Counts one more; 429 if it exceeds a limit. The superuser's are not counted, like requests.
    pub fn enter(self: &Arc<Sessions>, user: &User, with: With<'_>) -> Result<OpenSession, Status> {
        if user.is_in("system:masters") {
            return Ok(self.uncounted());
        }
        let (name, object) = (user.counted_as().to_owned(), with.object.to_owned());
        let SessionLimits { all, of_user, in_namespace, with_object, of_user_with_object } = self.limits;
        let mut wanted = vec![
            (Scope::UserWithObject(name.clone(), object.clone()), of_user_with_object, "of one user with one object"),
            (Scope::User(name.clone()), of_user, "of one user"),
        ];
        if !with.shared {
            wanted.push((Scope::Object(object), with_object, "with one object"));
        }
        if !with.namespace.is_empty() {
            wanted.push((Scope::Namespace(with.namespace.to_owned()), in_namespace, "in one namespace"));
        }
        let mut open = self.lock();
        let full =
            wanted.iter().find(|(scope, most, _)| open.get(scope).is_some_and(|open| open >= most) || *most == 0);
        let too_many = |most: usize, which: &str| {
            let why = format!("Too many sessions are open ({most} {which}), please try again later.");
            Status::too_many_requests(why, 1)
        };
        if let Some((_, most, which)) = full {
            return Err(too_many(*most, which));
        }
        let place = self.all.enter(&name, all).ok_or_else(|| too_many(all, "in all"))?;
        let scopes: Vec<Scope> = wanted.into_iter().map(|(scope, ..)| scope).collect();
        for scope in &scopes {
            *open.entry(scope.clone()).or_default() += 1;
        }
        drop(open);
        Ok(OpenSession { sessions: self.clone(), scopes, place: Some(place) })
    }

    /// A session of the server's own.
    pub fn uncounted(self: &Arc<Sessions>) -> OpenSession {
        OpenSession { sessions: self.clone(), scopes: Vec::new(), place: None }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Scope, usize>> {
        // Counters stay consistent: nothing panics while they are changed.
        self.open.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for OpenSession {
    fn drop(&mut self) {
        let mut open = self.sessions.lock();
        for scope in &self.scopes {
            if let Some(count) = open.get_mut(scope) {
                *count -= 1;
                if *count == 0 {
                    open.remove(scope);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: With<'static> = With { namespace: "a", object: "uid-1", shared: false };

    fn sessions() -> Arc<Sessions> {
        Sessions::new(SessionLimits { all: 8, of_user: 4, in_namespace: 6, with_object: 3, of_user_with_object: 2 })
    }

    fn user(name: &str) -> User {
        User::new(name, Vec::<String>::new())
    }

    /// As many as are admitted.
    fn fill(sessions: &Arc<Sessions>, name: &str, with: With<'_>) -> Vec<OpenSession> {
        std::iter::from_fn(|| sessions.enter(&user(name), with).ok()).take(100).collect()
    }

    #[test]
    fn no_user_keeps_others_from_a_pod_and_no_namespace_from_all() {
        let sessions = sessions();
        let mut greedy = fill(&sessions, "greedy", POD);
        assert_eq!(greedy.len(), 2);
        let polite = sessions.enter(&user("polite"), POD).expect("there is room for another user in the same Pod");
        let refused = sessions.enter(&user("third"), POD).map(drop).unwrap_err();
        assert_eq!((refused.code, refused.reason.as_str()), (429, "TooManyRequests"));
        assert_eq!(refused.details.unwrap().retry_after_seconds, Some(1));
        greedy.extend(fill(&sessions, "greedy", With { object: "uid-2", ..POD }));
        greedy.extend(fill(&sessions, "greedy", With { object: "uid-3", ..POD }));
        assert_eq!(greedy.len(), 4, "of one user");
        greedy.extend(fill(&sessions, "another", With { object: "uid-3", ..POD }));
        assert!(
            sessions.enter(&user("another"), With { object: "uid-4", ..POD }).is_err(),
            "a namespace has its share"
        );
        let others: Vec<_> = ["x", "y", "z"]
            .into_iter()
            .flat_map(|name| fill(&sessions, name, With { namespace: "b", object: name, shared: false }))
            .collect();
        assert_eq!(others.len(), 8 - 6);
        let root = User::new("root", ["system:masters"]);
        assert!(sessions.enter(&root, POD).is_ok() && sessions.enter(&user("x"), POD).is_err());
        drop((greedy, polite, others));
        assert!(sessions.lock().is_empty(), "{:?}", sessions.lock());
    }

    #[test]
    fn what_all_share_is_not_one_tenants() {
        let sessions = sessions();
        let shared = With { namespace: "", object: "apiservices/v1.ext.example.com", shared: true };
        let accounts = ["system:serviceaccount:t1:a", "system:serviceaccount:t1:b"];
        let held: Vec<_> =
            ["edit", "view"].into_iter().chain(accounts).flat_map(|it| fill(&sessions, it, shared)).collect();
        assert_eq!(held.len(), 3 * 2, "the accounts of a namespace have one share");
        assert!(sessions.enter(&user("of-another-tenant"), shared).is_ok(), "though it is more than one object's");
    }

    #[test]
    fn when_all_are_taken_whoever_has_most_gives_way() {
        let sessions = sessions();
        let shared = With { namespace: "", object: "apiservices/v1.ext.example.com", shared: true };
        let mut held: Vec<_> = ["a", "b", "c", "d"].into_iter().flat_map(|it| fill(&sessions, it, shared)).collect();
        assert_eq!(held.len(), 4 * 2);
        assert!(sessions.enter(&user("e"), shared).is_err(), "all of them end by themselves");
        let lost: Vec<_> = held.iter().map(OpenSession::lasting).collect();
        let polite = sessions.enter(&user("e"), shared).expect("others have more than one");
        assert_eq!(lost.iter().filter(|lost| lost.is_cancelled()).count(), 1);
        let other = sessions.enter(&user("f"), shared).expect("others have more than one");
        assert_eq!(lost.iter().filter(|lost| lost.is_cancelled()).count(), 2);
        assert!(sessions.enter(&user("e"), shared).is_err(), "he would have as many as anybody");
        held.retain(|one| !one.lasting().is_cancelled());
        assert_eq!(held.len(), 6);
        drop((held, polite, other));
        assert!(sessions.lock().is_empty(), "{:?}", sessions.lock());
    }
}
