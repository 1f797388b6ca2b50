//! Detects nftables tables of other programs that drop Pods' traffic: at startup, whenever others write to the ruleset, and again
//! after a failed check. Reports them by an event and a condition of the Node. The tables are not changed: they belong to the
//! operator.

use std::time::{Duration, Instant};

use podwright_net::{Network, dataplane::Conflict};
use tokio::sync::watch;

use super::storage;
use podwright_client::Recorder;

/// The minimum interval between two checks; changes in between are seen by the next one.
const PAUSE: Duration = Duration::from_secs(5);
/// A check is followed by a pause of this many times its duration: others may have many rules.
const REST: u32 = 50;
/// A failed check is repeated after this long, even if nothing was written.
const AGAIN: Duration = Duration::from_secs(30);
/// How many tables an event names.
const NAMED: usize = 4;

/// What was found last, in words, or why it is unknown; `None`: not checked yet.
pub type Found = Option<Result<Vec<String>, String>>;

/// Checks for as long as the network exists and reports the result.
pub async fn watch(network: Network, recorder: Recorder, node: String, tell: watch::Sender<Found>) {
    let (mut known, mut failed) = (Vec::new(), None);
    loop {
        let begun = Instant::now();
        match network.conflicting_tables().await {
            Ok(found) => {
                failed = None;
                let mut found: Vec<String> = found.into_iter().map(|Conflict { message, .. }| message).collect();
                // A table that was recreated comes last.
                found.sort_unstable();
                let news = news(&known, &found);
                known.clone_from(&found);
                say(&tell, Ok(found));
                match news {
                    News::None => {}
                    News::Conflict(message) => {
                        tracing::warn!("{message}");
                        recorder.warning(storage::node_named(&node), "ConflictingTables", message);
                    }
                    News::Cleared => {
                        let message = "Tables of other programs do not drop traffic of Pods any more";
                        tracing::info!("{message}");
                        recorder.normal(storage::node_named(&node), "NoConflictingTables", message);
                    }
                }
            }
            Err(error) => {
                let error = error.to_string();
                if failed.as_ref() != Some(&error) {
                    tracing::warn!(error, "failed to read the tables of other programs");
                }
                say(&tell, Err(error.clone()));
                failed = Some(error);
            }
        }
        tokio::time::sleep(PAUSE.max(begun.elapsed() * REST)).await;
        reason(failed.is_some(), network.written_by_others()).await;
    }
}

/// Waits for a reason to check: others have written, or the last check failed.
async fn reason(failed: bool, written: impl Future<Output = ()>) {
    match failed {
        // Its cause may go away without a notification.
        true => drop(tokio::time::timeout(AGAIN, written).await),
        false => written.await,
    }
}

fn say(tell: &watch::Sender<Found>, found: Result<Vec<String>, String>) {
    tell.send_if_modified(|told| told.replace(found.clone()).as_ref() != Some(&found));
}

/// What to report: each state once.
#[derive(Debug, PartialEq, Eq)]
enum News {
    None,
    Conflict(String),
    Cleared,
}

fn news(before: &[String], found: &[String]) -> News {
    match found {
        _ if before == found => News::None,
        [] => News::Cleared,
        _ => News::Conflict(format!("Tables of other programs drop traffic of Pods: {}", list(found))),
    }
}

/// The first few, and how many more there are.
pub fn list(found: &[String]) -> String {
    let named = found[..found.len().min(NAMED)].join("; ");
    match found.len().saturating_sub(NAMED) {
        0 => named,
        more => format!("{named}; and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_is_not_known() {
        let (tell, mut told) = watch::channel(None);
        for found in [Ok(vec!["a".to_owned()]), Err("why".to_owned()), Ok(vec!["a".to_owned()])] {
            say(&tell, found.clone());
            assert_eq!(*told.borrow_and_update(), Some(found.clone()));
            say(&tell, found);
            assert!(!told.has_changed().unwrap());
        }
    }

    /// The cause of a failed check may go away without anyone writing.
    #[tokio::test(start_paused = true)]
    async fn a_look_that_has_failed_is_followed_by_another() {
        let begun = tokio::time::Instant::now();
        reason(true, std::future::pending()).await;
        assert_eq!(begun.elapsed(), AGAIN);
        reason(true, async {}).await;
        assert_eq!(begun.elapsed(), AGAIN, "at once where others have written");
        let nothing = tokio::time::timeout(AGAIN * 100, reason(false, std::future::pending())).await;
        assert!(nothing.is_err(), "else for them alone");
    }

    #[test]
    fn a_state_is_told_once() {
        let (none, one, two) = (vec![], vec!["a".to_owned()], vec!["a".to_owned(), "b".to_owned()]);
        let conflict = |what: &str| News::Conflict(format!("Tables of other programs drop traffic of Pods: {what}"));
        assert_eq!(news(&none, &none), News::None);
        assert_eq!(news(&none, &one), conflict("a"));
        assert_eq!(news(&one, &one), News::None);
        assert_eq!(news(&one, &two), conflict("a; b"));
        assert_eq!(news(&two, &none), News::Cleared);
        let many: Vec<String> = (0..10).map(|n| n.to_string()).collect();
        assert_eq!(news(&none, &many), conflict("0; 1; 2; 3; and 6 more"));
    }
}
