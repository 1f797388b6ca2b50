//! Hollow nodes: agents without any kernel work, and what hands out volumes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use podwright::{
    api::{Env, Status, Verb},
    client::{Client, Delta, Informers, Key},
    controllers::{daemon_set::nodes, meta},
};
use serde_json::{Value, json};
use tokio::{sync::mpsc::UnboundedReceiver, time::Instant};

use super::{
    cluster::{Outcome, request, status},
    history::Recorded,
    machines::{Machines, beat},
    usage::{Meters, PERIOD},
    world::Step,
};

/// All nodes' agents.
pub struct Hollow {
    pub client: Client,
    pub env: Env,
    pub seen: Informers,
    pub store: Arc<Recorded>,
    pub machines: Arc<Mutex<Machines>>,
    /// Whether nodes take Pods by themselves: there is no scheduler.
    pub binds: bool,
    /// What runs, by uid: on which node.
    pub running: BTreeMap<String, String>,
    /// The Pods for which there may be something to do.
    pub busy: BTreeSet<Key>,
    /// Those that nobody can tend now: looked at again with every heartbeat.
    pub asleep: BTreeSet<Key>,
    pub meters: Meters,
    /// Until when Pods are not ready, by uid.
    pub sick: BTreeMap<String, Instant>,
}

/// How often a node looks at what it has to do.
const TICK: Duration = Duration::from_millis(200);
const BEAT: Duration = Duration::from_secs(10);

impl Hollow {
    pub async fn run(mut self) {
        let mut pods = self.seen.pods.subscribe();
        let mut claims = self.seen.persistent_volume_claims.subscribe();
        let mut volumes = self.seen.persistent_volumes.subscribe();
        let (mut next_beat, mut next_look) = (Instant::now(), Instant::now());
        let mut unbound = BTreeSet::new();
        loop {
            let idle = self.busy.is_empty() && unbound.is_empty();
            tokio::select! {
                biased;
                Some(delta) = pods.recv(), if idle => self.changed(delta),
                Some(delta) = claims.recv(), if idle => drop(unbound.insert(delta.key)),
                () = tokio::time::sleep_until(if idle { next_beat.min(next_look) } else { Instant::now() + TICK }) => {}
            }
            self.drain(&mut pods);
            while let Ok(delta) = claims.try_recv() {
                unbound.insert(delta.key);
            }
            while let Ok(delta) = volumes.try_recv() {
                self.reclaim(delta).await;
            }
            if Instant::now() >= next_beat {
                next_beat = Instant::now() + BEAT;
                self.busy.append(&mut self.asleep);
                self.fall_sick();
                self.beat().await;
            }
            if Instant::now() >= next_look {
                next_look = Instant::now() + PERIOD;
                self.measure().await;
            }
            self.end_ghosts();
            for key in self.busy.clone() {
                // Some things take longer than others. What fails is tried again.
                if self.env.below(3) != 0 && self.tend(&key).await.unwrap_or(false) {
                    self.busy.remove(&key);
                }
            }
            for key in unbound.clone() {
                if self.provide(&key).await.is_ok() {
                    unbound.remove(&key);
                }
            }
        }
    }

    fn drain(&mut self, pods: &mut UnboundedReceiver<Delta<Pod>>) {
        while let Ok(delta) = pods.try_recv() {
            self.changed(delta);
        }
    }

    fn changed(&mut self, delta: Delta<Pod>) {
        self.busy.insert(delta.key);
    }

    pub fn machines(&self) -> MutexGuard<'_, Machines> {
        self.machines.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    async fn beat(&self) {
        let alive: Vec<String> = {
            let machines = self.machines();
            let alive = machines.nodes.iter().filter(|(_, alive)| machines.beating && **alive);
            alive.map(|(name, _)| name.clone()).collect()
        };
        for name in alive {
            // It may have been deleted a moment ago.
            let room = self.machines().room;
            beat(&self.client, &self.env, &name, room).await.ok();
        }
    }

    /// Pods that run cease to be ready for a while.
    fn fall_sick(&mut self) {
        let sick = std::mem::take(&mut self.machines().sick);
        let now = Instant::now();
        self.sick.retain(|_, until| *until > now);
        for pod in self.seen.pods.list() {
            let uid = pod.metadata.uid.clone().unwrap_or_default();
            if let Some(long) = sick.get(&uid) {
                self.sick.insert(uid, now + *long);
                self.busy.insert(Key::of(&*pod));
            }
        }
    }

    /// Ends what runs for a Pod that is no more, where the node is there to notice; with a machine all goes.
    fn end_ghosts(&mut self) {
        let nodes = self.machines().nodes.clone();
        let known: BTreeSet<Option<String>> =
            self.seen.pods.list().iter().map(|pod| pod.metadata.uid.clone()).collect();
        let ended = |(uid, node): &(&String, &String)| match nodes.get(*node) {
            None => true,
            Some(alive) => *alive && !known.contains(&Some((*uid).clone())),
        };
        let ended: Vec<String> = self.running.iter().filter(ended).map(|(uid, _)| uid.clone()).collect();
        ended.iter().for_each(|uid| self.end(uid));
    }

    fn end(&mut self, uid: &str) {
        if self.running.remove(uid).is_some() {
            self.store.step(Step::Ends { uid: uid.to_owned() });
        }
    }

    /// Does what there is to do for a Pod; whether that is all until it changes.
    async fn tend(&mut self, key: &Key) -> Outcome<bool> {
        let Some(pod) = self.seen.pods.get(key) else { return Ok(true) };
        let terminating = meta::is_terminating(&pod.metadata);
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let alive: Vec<String> = {
            let machines = self.machines();
            machines.nodes.iter().filter(|(_, alive)| **alive).map(|(name, _)| name.clone()).collect()
        };
        let Some(node) = meta::node_name(&pod) else {
            if terminating || alive.is_empty() || !self.binds {
                return Ok(true);
            }
            return self.bind(&pod, key, &alive).await.map(|()| false);
        };
        if !alive.iter().any(|name| name == node) {
            self.asleep.insert(key.clone());
            return Ok(true);
        }
        let image = pod.spec.as_ref().and_then(|s| s.containers[0].image.as_deref()).unwrap_or_default();
        let ends = matches!(image, "flaky" | "brief");
        if terminating {
            self.end(&uid);
            if !ends || meta::is_finished(&pod) {
                let mut delete = request(Verb::Delete, "pods", key, None);
                delete.options.grace_period_seconds = Some(0);
                return self.client.call(delete).await.map(|_| true);
            }
            // Who holds it wants to know how it ended, also if it never began.
            return self.finish(&pod, key, 137).await.map(|()| false);
        }
        if meta::is_finished(&pod) {
            self.end(&uid);
            return Ok(true);
        }
        if self.running.insert(uid.clone(), node.to_owned()).is_none() {
            let (pod, node) = (key.clone(), node.to_owned());
            self.store.step(Step::Runs { pod, uid: uid.clone(), node });
        }
        let is_sick = self.sick.get(&uid).is_some_and(|until| *until > Instant::now());
        let shall = image != "broken" && !is_sick;
        let well = meta::phase(&pod) == "Running" && meta::is_ready(&pod) == shall;
        if meta::is_ready(&pod) && !shall {
            self.store.step(Step::Falls(key.clone()));
        }
        match well {
            false => self.start(&pod, key, !shall).await.map(|()| false),
            true if ends && self.env.below(10) == 0 => {
                let code = u8::from(image == "flaky" && self.env.below(4) == 0);
                self.finish(&pod, key, code).await.map(|()| true)
            }
            true => Ok(!ends && !is_sick),
        }
    }

    async fn bind(&self, pod: &Pod, key: &Key, alive: &[String]) -> Outcome<()> {
        // A DaemonSet's Pod is meant for one node, which may not be there yet, or no more.
        let node = match nodes::target(pod) {
            Some(node) if alive.iter().any(|name| name == node) => node,
            Some(_) => return Ok(()),
            None => &alive[self.env.below(alive.len() as u64) as usize],
        };
        let target = json!({ "metadata": { "name": key.name }, "target": { "kind": "Node", "name": node } });
        let mut bind = request(Verb::Create, "pods", key, Some(target));
        bind.subresource = Some("binding".into());
        self.client.call(bind).await.map(drop)
    }

    async fn start(&self, pod: &Pod, key: &Key, broken: bool) -> Outcome<()> {
        let known = pod.status.as_ref().and_then(|status| status.pod_ip.clone());
        let address = known.unwrap_or_else(|| {
            let mut machines = self.machines();
            machines.addresses += 1;
            std::net::Ipv4Addr::from(0x0af4_0000 + machines.addresses).to_string()
        });
        let conditions = self.conditions(pod, !broken);
        let (now, uid) = (self.env.now().to_string(), pod.metadata.uid.as_deref().unwrap_or_default());
        let begun =
            pod.status.as_ref().and_then(|status| status.start_time.clone()).map_or(json!(now), |time| json!(time));
        let container = json!({
            "name": "c", "image": "", "imageID": "", "ready": !broken, "restartCount": 0,
            "containerID": format!("hollow://{uid}"), "state": { "running": { "startedAt": begun } },
        });
        let new = json!({
            "phase": "Running", "startTime": begun, "containerStatuses": [container],
            "podIP": address, "podIPs": [{ "ip": address }], "conditions": conditions,
        });
        status(&self.client, "pods", key, new).await
    }

    /// The Pod's conditions with one that is the node's to tell.
    fn conditions(&self, pod: &Pod, ready: bool) -> Value {
        let known = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
        let others = known.into_iter().flatten().filter(|condition| condition.type_ != "Ready");
        let mut all: Vec<Value> = others.map(|condition| json!(condition)).collect();
        let (ready, now) = (if ready { "True" } else { "False" }, self.env.now().to_string());
        all.push(json!({ "type": "Ready", "status": ready, "lastTransitionTime": now }));
        all.into()
    }

    async fn finish(&self, pod: &Pod, key: &Key, code: u8) -> Outcome<()> {
        let now = self.env.now().to_string();
        let state = json!({ "terminated": { "exitCode": code, "finishedAt": now } });
        let name = pod.spec.as_ref().map(|spec| spec.containers[0].name.clone());
        let container =
            json!({ "name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state });
        let phase = if code == 0 { "Succeeded" } else { "Failed" };
        let conditions = self.conditions(pod, false);
        let new = json!({ "phase": phase, "containerStatuses": [container], "conditions": conditions });
        status(&self.client, "pods", key, new).await
    }

    /// Makes a volume for a claim that has none.
    async fn provide(&self, key: &Key) -> Outcome<()> {
        let Some(claim) = self.seen.persistent_volume_claims.get(key) else { return Ok(()) };
        let PersistentVolumeClaim { metadata, spec, .. } = &*claim;
        let name = format!("pv-{}", metadata.uid.as_deref().unwrap_or_default());
        let is_bound = spec.as_ref().is_some_and(|spec| spec.volume_name.is_some());
        if self.binds || is_bound || meta::is_terminating(metadata) {
            return Ok(());
        }
        let reference = json!({ "kind": "PersistentVolumeClaim", "namespace": key.namespace, "name": key.name });
        let volume = json!({ "metadata": { "name": name }, "spec": {
            "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "hostPath": { "path": format!("/tmp/{name}") },
            "persistentVolumeReclaimPolicy": "Retain", "claimRef": reference,
        } });
        match self.client.call(request(Verb::Create, "persistentvolumes", &Key::default(), Some(volume))).await {
            Err(status) if !status.is_already_exists() => Err(status),
            _ => Ok(()),
        }
    }

    /// Removes a volume that nobody needs any more.
    async fn reclaim(&self, delta: Delta<PersistentVolume>) {
        let Some(volume) = delta.new.filter(|_| !self.binds) else { return };
        let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
        if phase == Some("Released") && !meta::is_terminating(&volume.metadata) {
            let gone: Result<_, Status> =
                self.client.call(request(Verb::Delete, "persistentvolumes", &delta.key, None)).await;
            gone.ok();
        }
    }
}
