//! The CPU weight of each QoS class's cgroup: the sum of its Pods' requests, as upstream.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use k8s_openapi::api::core::v1::Pod;

use crate::{
    qos::{self, Class},
    spec::PodExt,
};

/// The CPU request of each Pod, by uid.
#[derive(Default)]
pub struct QosCgroups(Mutex<HashMap<String, (Class, i64)>>);

impl QosCgroups {
    /// Adds or removes a Pod, and calls `write` with the new weight of its class.
    ///
    /// The lock is held during `write`: with concurrent writes, the older sum might be written last.
    pub fn count<T>(&self, pod: &Pod, present: bool, write: impl FnOnce(Class, u64) -> T) -> T {
        let class = qos::class(pod);
        let mut weights = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match present {
            true => weights.insert(pod.uid().to_owned(), (class, qos::pod_request(pod, "cpu"))),
            false => weights.remove(pod.uid()),
        };
        let total = weights.values().filter(|(c, _)| *c == class).map(|(_, millis)| millis).sum();
        write(class, qos::cpu_weight(total))
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc::channel, time::Duration};

    use serde_json::json;

    use super::*;

    fn pod(uid: &str) -> Pod {
        let container = json!({"name": "c", "resources": {"requests": {"cpu": "200m"}}});
        let pod = json!({"metadata": {"uid": uid}, "spec": {"containers": [container]}});
        serde_json::from_value(pod).expect("it is a Pod")
    }

    #[test]
    fn the_last_sum_is_written_last() {
        let (weights, file) = (QosCgroups::default(), Mutex::new(Vec::new()));
        let note = |_: Class, weight: u64| file.lock().unwrap().push(weight);
        weights.count(&pod("a"), true, note);
        weights.count(&pod("b"), true, note);
        let (slow, begun) = channel();
        let (quick, done) = channel();
        std::thread::scope(|scope| {
            let (weights, note) = (&weights, &note);
            scope.spawn(move || {
                weights.count(&pod("a"), false, |class, weight| {
                    slow.send(()).unwrap();
                    // Without the lock the other one would be done by now.
                    done.recv_timeout(Duration::from_millis(200)).ok();
                    note(class, weight);
                });
            });
            begun.recv().unwrap();
            weights.count(&pod("b"), false, note);
            quick.send(()).ok();
        });
        assert_eq!(*file.lock().unwrap(), [8, 16, 8, 1]);
    }
}
