//! When a Pod of each Job has last succeeded: failures before that do not hold up the next Pod.
//!
//! Pods that have ended stay until somebody removes them, thousands of one Job. They are looked through once, when a Job begins to have
//! failures or this process finds it so; from then on each is seen as it ends, before its result is counted and it is let go.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use jiff::Timestamp;
use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};

use super::{super::meta, backoff, pods};
use podwright_client::Key;

/// Those of Jobs that have failures and are not finished.
#[derive(Default)]
pub struct LastSuccesses(Mutex<HashMap<Key, Known>>);

struct Known {
    /// Of the Job: another one may have its name.
    uid: String,
    at: Option<Timestamp>,
}

impl LastSuccesses {
    /// That of a Job of which `seen` are the Pods that are not let go; `all` are looked through where nothing is known of it.
    pub fn of(
        &self,
        key: &Key,
        job: &Job,
        seen: &[Arc<Pod>],
        all: impl FnOnce() -> Vec<Arc<Pod>>,
    ) -> Option<Timestamp> {
        let uid = job.metadata.uid.clone().unwrap_or_default();
        let known = self.known().get(key).filter(|known| known.uid == uid).map(|known| known.at);
        let before = known.unwrap_or_else(|| newest(job, &all()));
        let at = before.max(newest(job, seen));
        self.known().insert(key.clone(), Known { uid, at });
        at
    }

    /// Of a Job without failures nothing is known: it may have Pods that succeed unseen.
    pub fn forget(&self, key: &Key) {
        self.known().remove(key);
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Key, Known>> {
        // Each entry is put in whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn newest(job: &Job, all: &[Arc<Pod>]) -> Option<Timestamp> {
    let succeeded = all.iter().filter(|pod| meta::phase(pod) == "Succeeded" && pods::takes_part(job, pod));
    succeeded.map(|pod| backoff::finished_at(pod)).max()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pods(phase: &str, ends: &[i64]) -> Vec<Arc<Pod>> {
        let pod = |second: &i64| {
            let at = Timestamp::from_second(*second).expect("a time").to_string();
            let state = json!({ "terminated": { "exitCode": 0, "finishedAt": at } });
            let status =
                json!({ "name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state });
            let pod = json!({ "status": { "phase": phase, "containerStatuses": [status] } });
            Arc::new(serde_json::from_value(pod).expect("a Pod"))
        };
        ends.iter().map(pod).collect()
    }

    #[test]
    fn all_pods_are_looked_through_once() {
        let (successes, key) = (LastSuccesses::default(), Key::new("a", "work"));
        let job = |uid: &str| serde_json::from_value::<Job>(json!({ "metadata": { "uid": uid } })).expect("a Job");
        let mut looks = 0;
        let mut of = |uid: &str, seen: &[Arc<Pod>], all: &[i64]| {
            let all = || {
                looks += 1;
                pods("Succeeded", all)
            };
            let at = successes.of(&key, &job(uid), seen, all).map(Timestamp::as_second);
            (at, looks)
        };
        assert_eq!(of("1", &[], &[20, 30, 10]), (Some(30), 1));
        assert_eq!(of("1", &pods("Failed", &[50]), &[20, 30, 10]), (Some(30), 1), "none has succeeded since");
        assert_eq!(of("1", &pods("Succeeded", &[40]), &[]), (Some(40), 1));
        assert_eq!(of("1", &[], &[]), (Some(40), 1), "it is let go by now");
        assert_eq!(of("2", &[], &[]), (None, 2), "another Job of the name");
        assert_eq!(of("2", &[], &[60]), (None, 2), "that there was none is known, too");
        successes.forget(&key);
        assert_eq!(of("2", &[], &[60]), (Some(60), 3));
    }
}
