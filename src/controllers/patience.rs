//! Bounded waits for what others serve: an extension API server, an adapter of metrics or a conversion webhook that is slow to answer
//! holds no worker for long, whoever has led a controller to it. A read is given up; a write has the time that the server gives it,
//! but who has been slow to do one is left alone for as long as who was slow to be read.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use podwright_api::{Status, Verb};

/// The time limit of a read. (A write continues without the caller: it has the server's own time limit.)
const READ: Duration = Duration::from_secs(5);
/// A write that has taken longer was slow.
const WRITE: Duration = Duration::from_secs(10);
/// How long who was slow for a namespace is not asked again for it, at first and at most.
const FIRST: Duration = Duration::from_secs(10);
const MOST: Duration = Duration::from_secs(160);
/// The most that are remembered.
const REMEMBERED: usize = 4096;
/// For so many namespaces of a shared account at a time is a server slow on their account; for more it is its own fault.
const MANY: usize = 8;

/// Metrics groups, whose resource names contain what is measured.
const METRICS: [&str; 2] = ["custom.metrics.k8s.io", "external.metrics.k8s.io"];

/// The slow servers by namespace: what one tenant requests may be slow only for that tenant. In an account that namespaces share (as
/// others say what is in them, and there may be none such) each has its own patience, until there are many.
#[derive(Default)]
pub struct Patience(Mutex<HashMap<Whose, Slow>>);

/// Who is slow for whom.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Whose {
    account: String,
    /// Of a shared account; "" is all of it.
    namespace: String,
    group: String,
}

/// Whether namespaces share an account: none has such a name.
fn is_shared(account: &str) -> bool {
    account.starts_with('/')
}

#[derive(Clone, Copy)]
struct Slow {
    until: Instant,
    pause: Duration,
}

impl Patience {
    /// Waits for a response about a resource, in a namespace, on behalf of an account.
    ///
    /// # Errors
    ///
    /// Those of the response; and for resources served elsewhere: it took too long, or did so recently.
    pub async fn wait<T>(
        &self,
        account: &str,
        namespace: Option<&str>,
        (verb, resource): (Verb, &str),
        answer: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Status> {
        let Some(group) = elsewhere(resource) else { return answer.await };
        let namespace = namespace.filter(|_| is_shared(account)).unwrap_or_default();
        let [account, namespace, group_of] = [account, namespace, group].map(str::to_owned);
        let key = Whose { account, namespace, group: group_of };
        if self.is_slow(&key) {
            return Err(Status::unavailable(format!("{group} was slow to answer: it is asked again in a while")));
        }
        let (began, is_read) = (Instant::now(), matches!(verb, Verb::Get | Verb::List));
        let answer = match is_read {
            true => tokio::time::timeout(READ, answer).await,
            false => Ok(answer.await),
        };
        match answer {
            Ok(answer) => {
                match is_read || began.elapsed() <= WRITE {
                    true => self.forget(&key),
                    false => self.remember(key),
                }
                answer
            }
            Err(_) => {
                self.remember(key);
                Err(Status::timeout(format!("{group} did not answer in time")))
            }
        }
    }

    fn is_slow(&self, key: &Whose) -> bool {
        let (now, slow) = (Instant::now(), self.slow());
        [key, &key.for_all()].into_iter().filter_map(|key| slow.get(key)).any(|slow| slow.until > now)
    }

    fn forget(&self, key: &Whose) {
        let mut slow = self.slow();
        slow.remove(key);
        slow.remove(&key.for_all());
    }

    fn remember(&self, key: Whose) {
        let all = key.for_all();
        let is_alike = |other: &Whose| other.for_all() == all && *other != all;
        self.note(key);
        let now = Instant::now();
        let waiting = self.slow().iter().filter(|(other, slow)| is_alike(other) && slow.until > now).count();
        if waiting >= MANY {
            self.note(all);
        }
    }

    fn note(&self, key: Whose) {
        let (now, mut slow) = (Instant::now(), self.slow());
        // Several concurrent requests count as slow once.
        if slow.get(&key).is_some_and(|slow| slow.until > now) {
            return;
        }
        let before = slow.get(&key).map(|slow| slow.pause);
        let pause = before.map_or(FIRST, |pause| (pause * 2).min(MOST));
        if slow.len() >= REMEMBERED {
            slow.retain(|_, slow| slow.until > now);
        }
        if slow.len() < REMEMBERED {
            slow.insert(key, Slow { until: now + pause, pause });
        }
    }

    fn slow(&self) -> MutexGuard<'_, HashMap<Whose, Slow>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Whose {
    /// The server for the whole account.
    fn for_all(&self) -> Whose {
        Whose { namespace: String::new(), ..self.clone() }
    }
}

/// The group, with its version if given, of a resource that may be served or converted elsewhere: `ext.example.com/v1` for
/// `things.ext.example.com/v1`.
fn elsewhere(resource: &str) -> Option<&str> {
    // Served here or elsewhere under the same name.
    if resource.ends_with(".metrics.k8s.io") {
        return Some("metrics.k8s.io");
    }
    let (name, _) = resource.split_once('/')?;
    if let Some(metrics) = METRICS.into_iter().find(|group| name.ends_with(group)) {
        return Some(metrics);
    }
    resource.split_once('.').map(|(_, group)| group)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_serves_a_resource_stands_in_its_name() {
        assert_eq!(elsewhere("pods"), None);
        assert_eq!(elsewhere("deployments.apps"), None);
        assert_eq!(elsewhere("pods.metrics.k8s.io"), Some("metrics.k8s.io"));
        assert_eq!(elsewhere("things.ext.example.com/v1"), Some("ext.example.com/v1"));
        assert_eq!(elsewhere("ingresses.networking.k8s.io.custom.metrics.k8s.io/"), Some(METRICS[0]));
        assert_eq!(elsewhere("a.b.c.external.metrics.k8s.io/"), Some(METRICS[1]));
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_slow_is_waited_for_shortly_and_then_left_alone() {
        let patience = Patience::default();
        let ask = async |namespace: &str, resource: &str, takes: u64| {
            let began = Instant::now();
            let answer = async {
                tokio::time::sleep(Duration::from_secs(takes)).await;
                Ok(())
            };
            let answer = patience.wait(namespace, None, (Verb::Get, resource), answer).await;
            (answer.is_ok(), began.elapsed().as_secs())
        };
        let slow = "things.ext.example.com/v1";
        let both = tokio::join!(ask("a", slow, 50), ask("a", slow, 50));
        assert_eq!(both, ((false, 5), (false, 5)));
        assert_eq!(ask("a", slow, 0).await, (false, 0), "not asked at all");
        assert_eq!(ask("b", slow, 1).await, (true, 1), "another namespace's business");
        assert_eq!(ask("a", "pods", 50).await, (true, 50), "nobody else's");
        assert_eq!(ask("a", slow, 50).await, (false, 5), "asked again");
        tokio::time::sleep(Duration::from_secs(15)).await;
        assert_eq!(ask("a", slow, 0).await, (false, 0), "twice as long");
        tokio::time::sleep(Duration::from_secs(6)).await;
        assert_eq!(ask("a", slow, 2).await, (true, 2));
        assert_eq!(ask("a", slow, 50).await, (false, 5), "from the beginning");
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_goes_on_and_who_was_slow_to_do_it_is_left_alone() {
        let patience = Patience::default();
        let write = async |namespace: &str, resource: &str, takes: u64| {
            let began = Instant::now();
            let answer = async {
                tokio::time::sleep(Duration::from_secs(takes)).await;
                Ok(())
            };
            let answer = patience.wait(namespace, None, (Verb::Patch, resource), answer).await;
            (answer.is_ok(), began.elapsed().as_secs())
        };
        let slow = "things.ext.example.com/v1";
        assert_eq!(write("a", slow, 9).await, (true, 9));
        assert_eq!(write("a", slow, 50).await, (true, 50), "it would go on anyway");
        assert_eq!(write("a", slow, 0).await, (false, 0), "not asked at all");
        assert_eq!(write("b", slow, 1).await, (true, 1), "another namespace's business");
        assert_eq!(write("a", "pods", 50).await, (true, 50), "nobody else's");
        assert_eq!(write("a", slow, 50).await, (true, 50));
        tokio::time::sleep(Duration::from_secs(19)).await;
        assert_eq!(write("a", slow, 0).await, (false, 0), "twice as long");
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(write("a", slow, 1).await, (true, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn in_a_shared_account_who_is_slow_for_one_namespace_is_asked_for_others_but_not_for_endless_ones() {
        let patience = Patience::default();
        let ask = async |namespace: &str, resource: &str, takes: u64| {
            let began = Instant::now();
            let answer = async {
                tokio::time::sleep(Duration::from_secs(takes)).await;
                Ok(())
            };
            let answer = patience.wait("/others", Some(namespace), (Verb::Get, resource), answer).await;
            (answer.is_ok(), began.elapsed().as_secs())
        };
        let (slow, other) = ("things.ext.example.com/v1", "things.other.example.com/v1");
        assert_eq!(ask("a", slow, 50).await, (false, 5));
        assert_eq!(ask("a", slow, 0).await, (false, 0), "not asked at all");
        assert_eq!(ask("b", slow, 1).await, (true, 1), "another tenant's business");
        // It says that it has things everywhere, and answers for none.
        let invented: Vec<String> = (0..MANY).map(|n| format!("n{n}")).collect();
        let all = futures::future::join_all(invented.iter().map(|namespace| ask(namespace, slow, 50))).await;
        assert!(all.iter().all(|answer| *answer == (false, 5)), "{all:?}");
        assert_eq!(ask("next", slow, 50).await, (false, 0), "it is slow itself");
        assert_eq!(ask("next", other, 1).await, (true, 1), "nobody else is");
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(ask("next", slow, 1).await, (true, 1));
        assert_eq!(ask("b", slow, 1).await, (true, 1));
    }
}
