//! Looks up the names of hosts, within bounds: each lookup occupies a thread of the process until the system's resolver gives up, long
//! after whoever asked has gone.
//!
//! Users write names (of Services that extension API servers and webhooks are behind), and the servers that are asked for them may be
//! theirs, and never answer. So whoever waits waits for seconds only, a name is looked up once at a time for all who want it, and each
//! purpose has so many at once: what users name takes nothing from what the operator names.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{anyhow, ensure};
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};

/// How long anybody waits for addresses, and holds what he has been given for his request meanwhile.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How many names are looked up at once for one purpose.
const MOST: usize = 16;

type Found = Result<Arc<[IpAddr]>, Arc<io::Error>>;
type Resolve = fn(String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>>;
/// Whose the lookup is, and the name.
type Key = (&'static str, String);

/// The process's lookups: it has one resolver.
static LOOKUPS: LazyLock<Arc<Lookups>> = LazyLock::new(|| Lookups::with(resolve));

/// See the module.
struct Lookups {
    resolve: Resolve,
    under_way: Mutex<HashMap<Key, Shared<BoxFuture<'static, Found>>>>,
}

/// The addresses of a host: itself, if it is an address.
pub(super) async fn addresses(purpose: &'static str, host: &str) -> anyhow::Result<Arc<[IpAddr]>> {
    match host.parse() {
        Ok(ip) => Ok([ip].into()),
        Err(_) => LOOKUPS.ask(purpose, host).await,
    }
}

fn resolve(host: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
    let found =
        async move { tokio::net::lookup_host((host, 0)).await.map(|all| all.map(|at: SocketAddr| at.ip()).collect()) };
    found.boxed()
}

impl Lookups {
    fn with(resolve: Resolve) -> Arc<Lookups> {
        Arc::new(Lookups { resolve, under_way: Mutex::default() })
    }

    async fn ask(self: &Arc<Lookups>, purpose: &'static str, host: &str) -> anyhow::Result<Arc<[IpAddr]>> {
        let asked = self.begin((purpose, host.to_owned()))?;
        let found = tokio::time::timeout(TIMEOUT, asked).await;
        found.map_err(|_| anyhow!("lookup {host}: i/o timeout"))?.map_err(|why| anyhow!("{why}"))
    }

    /// The lookup of this name that is under way, or a new one.
    fn begin(self: &Arc<Lookups>, key: Key) -> anyhow::Result<Shared<BoxFuture<'static, Found>>> {
        let mut under_way = self.lock();
        if let Some(found) = under_way.get(&key) {
            return Ok(found.clone());
        }
        let same = under_way.keys().filter(|(purpose, _)| *purpose == key.0).count();
        ensure!(same < MOST, "lookup {}: too many other names are looked up", key.1);
        let (lookups, host, done) = (self.clone(), (self.resolve)(key.1.clone()), key.clone());
        // On a task of its own: it counts until it has ended, whoever waits for it.
        let asking = tokio::spawn(async move {
            let found = host.await;
            lookups.lock().remove(&done);
            found.map(Arc::from).map_err(Arc::new)
        });
        let ended = |why: tokio::task::JoinError| Err(Arc::new(io::Error::other(why)));
        let asked = asking.map(move |found| found.unwrap_or_else(ended)).boxed().shared();
        under_way.insert(key, asked.clone());
        Ok(asked)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Shared<BoxFuture<'static, Found>>>> {
        // Each change is a single insertion or removal.
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::future::{join_all, pending};

    use super::*;

    static ASKED: AtomicUsize = AtomicUsize::new(0);

    /// Knows `good` names; of others it never hears.
    fn slow(host: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        ASKED.fetch_add(1, Ordering::Relaxed);
        match host.as_str() {
            "good" => async { Ok(vec![IpAddr::V4(Ipv4Addr::LOCALHOST)]) }.boxed(),
            "bad" => async { Err(io::Error::other("no such host")) }.boxed(),
            _ => pending().boxed(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn names_that_nobody_answers_for_hold_up_nobody_else() {
        let lookups = Lookups::with(slow);
        let ask = async |purpose, host: String| lookups.ask(purpose, &host).await.map_err(|why| format!("{why:#}"));
        let begin = tokio::time::Instant::now();
        // A thousand who want the same wait for one lookup, and not for long.
        let waiting = join_all((0..1000).map(|_| ask("extension", "evil-0".into()))).await;
        assert!(waiting.iter().all(|why| *why == Err("lookup evil-0: i/o timeout".into())));
        assert_eq!((begin.elapsed(), ASKED.load(Ordering::Relaxed)), (TIMEOUT, 1));
        // Those that were given up are under way still.
        join_all((1..100).map(|n| ask("extension", format!("evil-{n}")))).await;
        assert_eq!(ASKED.load(Ordering::Relaxed), MOST);
        let refused = ask("extension", "good".into()).await.unwrap_err();
        assert_eq!(refused, "lookup good: too many other names are looked up");
        assert_eq!(ask("url", "good".into()).await.unwrap()[..], [IpAddr::V4(Ipv4Addr::LOCALHOST)]);
        assert_eq!(ask("url", "bad".into()).await, Err("no such host".into()));
        let left = lookups.lock().keys().filter(|(purpose, _)| *purpose == "url").count();
        assert_eq!(left, 0, "what has ended counts no more");
    }
}
