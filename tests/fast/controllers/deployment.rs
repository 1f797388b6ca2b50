//! Deployments: rounding, rollout steps, proportions, revisions, conditions.

use std::sync::{Arc, Mutex};

use k8s_openapi::{
    api::{
        apps::v1::{Deployment, ReplicaSet, ReplicaSetStatus},
        core::v1::Pod,
    },
    apimachinery::pkg::util::intstr::IntOrString,
};
use podwright::controllers::{
    Failure, Plan,
    conditions::find,
    deployment::{Inputs, plan, revision, rolling},
    replica_set,
    write::Write,
};
use serde_json::{Value, json};

use super::{at, begun, line, lines, merge, object};

fn value(text: &str) -> IntOrString {
    text.parse().map_or_else(|_| IntOrString::String(text.into()), IntOrString::Int)
}

#[test]
fn max_surge_is_rounded_up_and_max_unavailable_down() {
    for (surge, unavailable, replicas, expected) in [
        ("25%", "25%", 10, (3, 2)),
        ("25%", "25%", 1, (1, 0)),
        ("25%", "25%", 4, (1, 1)),
        ("0", "25%", 2, (0, 1)),
        ("0%", "10%", 3, (0, 1)),
        ("0", "0", 5, (0, 1)),
        ("100%", "0", 7, (7, 0)),
        ("1", "50%", 5, (1, 2)),
        ("34%", "34%", 3, (2, 1)),
    ] {
        let found = rolling::fenceposts(Some(&value(surge)), Some(&value(unavailable)), replicas);
        assert_eq!(found, expected, "surge {surge}, unavailable {unavailable}, {replicas} replicas");
    }
    assert_eq!(rolling::fenceposts(None, None, 10), (3, 2), "the defaults are a quarter each");
}

/// A Deployment of `image`, with strategy limits ("" for Recreate).
pub fn deployment(image: &str, replicas: i32, surge: &str, unavailable: &str) -> Deployment {
    let strategy = match surge {
        "" => json!({ "type": "Recreate" }),
        _ => json!({ "type": "RollingUpdate", "rollingUpdate": {
            "maxSurge": value(surge), "maxUnavailable": value(unavailable),
        }}),
    };
    Deployment::clone(&object(json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": { "name": "web", "namespace": "a", "uid": "d", "generation": 1, "resourceVersion": "1" },
        "spec": {
            "replicas": replicas, "strategy": strategy, "progressDeadlineSeconds": 600, "revisionHistoryLimit": 2,
            "selector": { "matchLabels": { "app": "web" } },
            "template": {
                "metadata": { "labels": { "app": "web" } },
                "spec": { "containers": [{ "name": "c", "image": image }] },
            },
        },
    })))
}

/// The ReplicaSets of a Deployment and their Pods: a world small enough to be a value.
pub struct World {
    pub deployment: Deployment,
    pub sets: Vec<ReplicaSet>,
    pods: Vec<Arc<Pod>>,
    now: i64,
    failure: Option<Failure>,
}

impl World {
    pub fn new(deployment: Deployment) -> World {
        World { deployment, sets: Vec::new(), pods: Vec::new(), now: 0, failure: None }
    }

    fn plan(&self) -> Plan {
        let sets: Vec<Arc<ReplicaSet>> = self.sets.iter().cloned().map(Arc::new).collect();
        let taken = |name: &str| self.sets.iter().any(|set| set.metadata.name.as_deref() == Some(name));
        plan(&Inputs {
            deployment: &self.deployment,
            sets: &sets,
            taken: &taken,
            pods_of: &|_| self.pods.clone(),
            now: at(self.now),
            failure: self.failure.as_ref(),
        })
    }

    /// Plans and executes; returns the ScalingReplicaSet events.
    pub fn step(&mut self) -> Vec<String> {
        self.step_refusing(&|_| false)
    }

    /// Executes a plan except the refused writes and those that depend on them.
    pub fn step_refusing(&mut self, refused: &(dyn Fn(&Write) -> bool + Sync)) -> Vec<String> {
        let plan = self.plan();
        self.failure = None;
        let told = Mutex::new(Vec::new());
        let world = Mutex::new(&mut *self);
        begun(plan, &|write| {
            let mut world = world.lock().unwrap();
            if refused(write) {
                let reason = write.failed.as_ref().map(|note| note.reason);
                world.failure = reason.map(|reason| Failure { reason, message: "exceeded quota".into() });
                return (line(write), false);
            }
            world.act(write);
            told.lock().unwrap().extend(write.done.iter().map(|note| note.message.clone()));
            (line(write), true)
        });
        self.now += 1;
        told.into_inner().unwrap()
    }

    fn act(&mut self, write: &Write) {
        let request = &write.request;
        let body = request.body.clone().unwrap_or_default();
        match (format!("{:?}", request.verb).as_str(), request.resource.as_str()) {
            ("Create", "replicasets.apps") => {
                let mut set: ReplicaSet = serde_json::from_value(body).expect("a ReplicaSet");
                set.metadata.uid = set.metadata.name.clone();
                set.metadata.creation_timestamp = Some(at(self.now).into());
                self.sets.push(set);
            }
            ("Patch", "replicasets.apps") => {
                let of = |set: &&mut ReplicaSet| set.metadata.name == request.name;
                merge(self.sets.iter_mut().find(of).expect("a set to patch"), &body);
            }
            ("Delete", "replicasets.apps") => self.sets.retain(|set| set.metadata.name != request.name),
            ("Patch", "deployments.apps") => merge(&mut self.deployment, &body),
            other => panic!("unexpected write {other:?}"),
        }
    }

    /// Brings every ReplicaSet's status to its spec; at most `ready` more of its Pods become ready.
    fn settle(&mut self, mut ready: i32) {
        for set in &mut self.sets {
            let size = replica_set::replicas(set);
            let status = set.status.get_or_insert_default();
            let was = status.available_replicas.unwrap_or(0).min(size);
            let grown = (size - was).min(ready);
            ready -= grown;
            status.replicas = size;
            status.ready_replicas = Some(was + grown);
            status.available_replicas = Some(was + grown);
        }
    }

    fn size(&self) -> i32 {
        self.sets.iter().map(replica_set::replicas).sum()
    }

    fn available(&self) -> i32 {
        let of = |set: &ReplicaSet| set.status.as_ref().and_then(|status| status.available_replicas).unwrap_or(0);
        self.sets.iter().map(|set| of(set).min(replica_set::replicas(set))).sum()
    }

    pub fn reach_rest(&mut self) {
        for _ in 0..200 {
            let before = (self.sets.clone(), self.deployment.clone());
            self.step();
            self.settle(i32::MAX);
            if before == (self.sets.clone(), self.deployment.clone()) {
                return;
            }
        }
        panic!("no rest after 200 steps: {:#?}", self.plan());
    }

    pub fn change(&mut self, change: Value) {
        merge(&mut self.deployment, &change);
        let generation = self.deployment.metadata.generation.unwrap_or(0);
        self.deployment.metadata.generation = Some(generation + 1);
    }

    pub fn set_image(&mut self, image: &str) {
        self.change(json!({ "spec": { "template": { "spec": { "containers": [{ "name": "c", "image": image }] } } } }));
    }

    pub fn condition(&self, kind: &str) -> (String, String, String) {
        let all = self.deployment.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
        let found = find(all, kind).unwrap_or_else(|| panic!("no condition {kind} in {all:?}"));
        (found.status.clone(), found.reason.clone().unwrap_or_default(), found.message.clone().unwrap_or_default())
    }
}

#[test]
fn a_new_deployment_makes_a_replica_set_named_by_its_template() {
    let mut world = World::new(deployment("a", 2, "25%", "25%"));
    let hash = revision::hash(&world.deployment.spec.as_ref().unwrap().template, None);
    assert_eq!(world.step(), [format!("Scaled up replica set web-{hash} from 0 to 2")]);
    let set = &world.sets[0];
    assert_eq!(set.metadata.labels.as_ref().unwrap()["pod-template-hash"], hash);
    assert_eq!(set.spec.as_ref().unwrap().selector.match_labels.as_ref().unwrap()["pod-template-hash"], hash);
    let annotations = set.metadata.annotations.as_ref().unwrap();
    assert_eq!(annotations["deployment.kubernetes.io/revision"], "1");
    assert_eq!(annotations["deployment.kubernetes.io/desired-replicas"], "2");
    assert_eq!(annotations["deployment.kubernetes.io/max-replicas"], "3");
    assert_eq!(world.deployment.metadata.annotations.as_ref().unwrap()["deployment.kubernetes.io/revision"], "1");
    assert_eq!(world.condition("Available").1, "MinimumReplicasUnavailable");
    let created = format!("Created new replica set \"web-{hash}\"");
    assert_eq!(world.condition("Progressing"), ("True".into(), "NewReplicaSetCreated".into(), created));
    world.reach_rest();
    assert_eq!(world.condition("Available").1, "MinimumReplicasAvailable");
    let progressed = format!("ReplicaSet \"web-{hash}\" has successfully progressed.");
    assert_eq!(world.condition("Progressing"), ("True".into(), "NewReplicaSetAvailable".into(), progressed));
    assert!(world.plan().is_empty(), "nothing is written at rest: {:?}", lines(&world.plan()));
}

#[test]
fn the_hash_depends_on_the_template_and_the_collisions() {
    let template = |image: &str| deployment(image, 1, "1", "1").spec.unwrap().template;
    assert_eq!(revision::hash(&template("a"), None), revision::hash(&template("a"), None));
    assert_ne!(revision::hash(&template("a"), None), revision::hash(&template("b"), None));
    assert_ne!(revision::hash(&template("a"), None), revision::hash(&template("a"), Some(1)));
    let mut labelled = template("a");
    labelled.metadata.as_mut().unwrap().labels.as_mut().unwrap().insert("pod-template-hash".into(), "x".into());
    assert_eq!(revision::hash(&template("a"), None), revision::hash(&labelled, None), "its own label does not count");
}

#[test]
fn a_taken_name_is_a_collision() {
    let mut world = World::new(deployment("a", 1, "1", "1"));
    let hash = revision::hash(&world.deployment.spec.as_ref().unwrap().template, None);
    let stranger: Arc<ReplicaSet> = object(json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": { "name": format!("web-{hash}"), "namespace": "a" },
        "spec": { "selector": {}, "template": { "metadata": {}, "spec": { "containers": [] } } },
    }));
    let taken = |name: &str| Some(name) == stranger.metadata.name.as_deref();
    let scene = |world: &World| {
        let scene = Inputs {
            deployment: &world.deployment,
            sets: &[],
            taken: &taken,
            pods_of: &|_| Vec::new(),
            now: at(0),
            failure: None,
        };
        plan(&scene)
    };
    let first = scene(&world);
    assert_eq!(lines(&first), ["patch deployments.apps/web/status"]);
    merge(&mut world.deployment, first.writes().next().unwrap().request.body.as_ref().unwrap());
    assert_eq!(world.deployment.status.as_ref().unwrap().collision_count, Some(1));
    let other = revision::hash(&world.deployment.spec.as_ref().unwrap().template, Some(1));
    assert!(lines(&scene(&world))[0].starts_with(&format!("create replicasets.apps/web-{other}")));
}

#[test]
fn a_rolling_update_takes_these_steps() {
    for (replicas, surge, unavailable, expected) in [
        (3, "1", "0", "+1 -1 +1 -1 +1 -1"),
        (3, "0", "1", "-1 +1 -1 +1 -1 +1"),
        (4, "25%", "25%", "+1 -2 +2 -2 +1"),
        (2, "100%", "0", "+2 -2"),
        (1, "25%", "25%", "+1 -1"),
        (10, "3", "2", "+3 -5 +5 -5 +2"),
    ] {
        let mut world = World::new(deployment("a", replicas, surge, unavailable));
        world.reach_rest();
        world.set_image("b");
        let (most, fewest) =
            (replicas + rolling::max_surge(&world.deployment), replicas - rolling::max_unavailable(&world.deployment));
        let mut steps = Vec::new();
        for _ in 0..100 {
            let before = world.size();
            world.step();
            match world.size() - before {
                0 => {}
                change => steps.push(format!("{change:+}")),
            }
            assert!(world.size() <= most, "{} Pods, at most {most}", world.size());
            assert!(world.available() >= fewest, "{} available, at least {fewest}", world.available());
            world.settle(i32::MAX);
        }
        let [old, new] = &world.sets[..] else { panic!("{} sets", world.sets.len()) };
        assert_eq!((replica_set::replicas(old), replica_set::replicas(new)), (0, replicas));
        assert_eq!(steps.join(" "), expected, "{replicas} replicas, surge {surge}, unavailable {unavailable}");
    }
}

#[test]
fn a_rolling_update_keeps_its_limits_while_pods_become_ready_one_by_one() {
    for replicas in 1..12 {
        for (surge, unavailable) in [("25%", "25%"), ("1", "0"), ("0", "1"), ("100%", "100%"), ("2", "3")] {
            let mut world = World::new(deployment("a", replicas, surge, unavailable));
            world.reach_rest();
            world.set_image("b");
            let most = replicas + rolling::max_surge(&world.deployment);
            let fewest = replicas - rolling::max_unavailable(&world.deployment);
            for step in 0..200 {
                world.step();
                assert!(world.size() <= most && world.available() >= fewest, "{replicas} {surge} {unavailable}");
                // Sometimes the ReplicaSets lag behind.
                if step % 3 != 0 {
                    world.settle(1);
                }
            }
            assert_eq!(replica_set::replicas(&world.sets[1]), replicas, "{surge} {unavailable}: it ends");
            assert_eq!(world.condition("Progressing").1, "NewReplicaSetAvailable");
        }
    }
}

#[test]
fn what_a_set_told_before_it_shrank_counts_no_more_once_it_grows_again() {
    let mut world = World::new(deployment("a", 4, "2", "1"));
    world.reach_rest();
    world.set_image("b");
    world.reach_rest();
    world.set_image("a");
    // "a" has been scaled to 2, then 1, then 2 again; its status is from before the second. All 4 of "b" are there.
    for (set, size, available) in [(0, 2, 2), (1, 4, 3)] {
        let set = &mut world.sets[set];
        (set.metadata.generation, set.spec.as_mut().unwrap().replicas) = (Some(5), Some(size));
        let status = set.status.as_mut().unwrap();
        (status.replicas, status.available_replicas) = (size, Some(available));
        status.observed_generation = Some(5);
    }
    let told = |world: &World, seen: i64| {
        let mut world = World { sets: world.sets.clone(), now: 9, ..World::new(world.deployment.clone()) };
        world.sets[0].status.as_mut().unwrap().observed_generation = Some(seen);
        world.step();
        replica_set::replicas(&world.sets[1])
    };
    assert_eq!(told(&world, 5), 1, "5 are available and 3 must be: the one that is not goes, and 2 of the others");
    assert_eq!(told(&world, 3), 3, "of the 2 nothing is known: only what is of no use goes");
}

#[test]
fn a_new_template_waits_for_room_that_old_sets_still_take() {
    let first = |old: &dyn Fn(&mut ReplicaSet)| {
        let mut world = World::new(deployment("a", 6, "1", "1"));
        world.reach_rest();
        old(&mut world.sets[0]);
        world.set_image("b");
        world.step();
        replica_set::replicas(&world.sets[1])
    };
    let told = |size: i32, has: i32, seen: i64| {
        move |set: &mut ReplicaSet| {
            (set.metadata.generation, set.spec.as_mut().unwrap().replicas) = (Some(5), Some(size));
            let status = set.status.as_mut().unwrap();
            (status.replicas, status.observed_generation) = (has, Some(seen));
        }
    };
    assert_eq!(first(&told(6, 6, 5)), 1, "one more than the replicas");
    assert_eq!(first(&told(5, 5, 5)), 2, "one is gone");
    assert_eq!(first(&told(5, 6, 5)), 1, "one shall go, and has not");
    assert_eq!(first(&told(5, 5, 4)), 0, "how many it has is not known");
}

#[test]
fn a_broken_template_stops_at_the_limits_and_misses_the_deadline() {
    let mut world = World::new(deployment("a", 4, "1", "1"));
    world.reach_rest();
    world.set_image("broken");
    for _ in 0..20 {
        world.step();
        world.settle(0);
    }
    let sizes: Vec<i32> = world.sets.iter().map(replica_set::replicas).collect();
    assert_eq!(sizes, [3, 2]);
    assert_eq!(world.condition("Available").0, "True");
    assert!(world.plan().requeue_after.is_some_and(|wait| wait.as_secs() <= 600));
    world.now += 601;
    world.step();
    assert_eq!(world.condition("Progressing").1, "ProgressDeadlineExceeded");
    assert!(world.plan().is_empty());
    world.set_image("a");
    world.reach_rest();
    assert_eq!(world.condition("Progressing").1, "NewReplicaSetAvailable");
}

#[test]
fn recreate_waits_for_the_old_pods_to_be_gone() {
    let mut world = World::new(deployment("a", 3, "", ""));
    world.reach_rest();
    world.pods = vec![object(super::pod("old", "n", Some(0)))];
    world.set_image("b");
    assert!(world.step()[0].ends_with("from 3 to 0"));
    world.settle(0);
    assert_eq!(world.step(), [""; 0], "an old Pod is still there");
    world.pods.clear();
    assert!(world.step()[0].ends_with("from 0 to 3"));
}

#[test]
fn recreate_waits_for_old_replica_sets_to_hear_that_they_shall_have_no_pods() {
    let mut world = World::new(deployment("a", 3, "", ""));
    world.step();
    // Its controller is slow: it creates three Pods, none of them visible yet.
    world.set_image("b");
    assert!(world.step()[0].ends_with("from 3 to 0"));
    assert_eq!(world.step(), [""; 0], "it has observed nothing at all");
    world.sets[0].metadata.generation = Some(2);
    world.sets[0].status = Some(ReplicaSetStatus { observed_generation: Some(1), ..ReplicaSetStatus::default() });
    assert_eq!(world.step(), [""; 0], "it has observed what it was to have before");
    world.sets[0].status.as_mut().unwrap().observed_generation = Some(2);
    assert!(world.step()[0].ends_with("from 0 to 3"));
}

#[test]
fn scaling_in_a_rollout_keeps_the_proportions() {
    for (before, after, from, expected) in [
        // From upstream's documentation: 10 replicas, surge 3, unavailable 2, scaled to 15 mid-rollout.
        (10, 15, [8, 5], [11, 7]),
        (10, 20, [8, 5], [14, 9]),
        (10, 5, [8, 5], [5, 3]),
        (10, 0, [8, 5], [0, 0]),
    ] {
        let mut world = World::new(deployment("a", before, "3", "2"));
        world.reach_rest();
        world.set_image("b");
        for _ in 0..3 {
            world.step();
            world.settle(0);
        }
        let sizes = |world: &World| -> Vec<i32> { world.sets.iter().map(replica_set::replicas).collect() };
        assert_eq!(sizes(&world), from);
        world.settle(0);
        world.change(json!({ "spec": { "replicas": after } }));
        world.step();
        assert_eq!(sizes(&world), expected, "{before} to {after}");
    }
}

/// Found by the simulation: scaling stopped for ever.
#[test]
fn recreate_and_other_replicas_in_the_midst_of_a_rolling_update_come_to_an_end() {
    for (image, sizes) in [("a", [6, 0]), ("b", [0, 6])] {
        let mut world = World::new(deployment("a", 10, "3", "2"));
        world.reach_rest();
        world.set_image("b");
        for _ in 0..3 {
            world.step();
            world.settle(0);
        }
        world.set_image(image);
        world.change(json!({ "spec": { "replicas": 6, "strategy": { "type": "Recreate", "rollingUpdate": null } } }));
        world.reach_rest();
        assert_eq!(world.sets.iter().map(replica_set::replicas).collect::<Vec<_>>(), sizes, "{image}");
    }
}

#[test]
fn a_paused_deployment_scales_but_does_not_roll() {
    let mut world = World::new(deployment("a", 2, "1", "0"));
    world.reach_rest();
    world.change(json!({ "spec": { "paused": true } }));
    world.set_image("b");
    assert_eq!(world.step(), [""; 0]);
    assert_eq!(
        world.condition("Progressing"),
        ("Unknown".into(), "DeploymentPaused".into(), "Deployment is paused".into())
    );
    world.change(json!({ "spec": { "replicas": 4 } }));
    assert!(world.step()[0].ends_with("from 2 to 4"));
    world.change(json!({ "spec": { "paused": null } }));
    world.reach_rest();
    assert_eq!(world.sets.len(), 2);
    assert_eq!(replica_set::replicas(&world.sets[1]), 4);
}

#[test]
fn going_back_makes_the_old_replica_set_the_newest_revision() {
    let mut world = World::new(deployment("a", 1, "1", "0"));
    world.reach_rest();
    world.set_image("b");
    world.reach_rest();
    world.set_image("a");
    world.reach_rest();
    let annotation = |set: &ReplicaSet, key: &str| set.metadata.annotations.as_ref().unwrap().get(key).cloned();
    assert_eq!(annotation(&world.sets[0], "deployment.kubernetes.io/revision").as_deref(), Some("3"));
    assert_eq!(annotation(&world.sets[0], "deployment.kubernetes.io/revision-history").as_deref(), Some("1"));
    assert_eq!(annotation(&world.sets[1], "deployment.kubernetes.io/revision").as_deref(), Some("2"));
    assert_eq!(world.deployment.metadata.annotations.as_ref().unwrap()["deployment.kubernetes.io/revision"], "3");
}

#[test]
fn a_history_of_revisions_forgets_the_oldest() {
    let deployment = deployment("a", 1, "1", "0");
    let mut set = ReplicaSet::default();
    let history = |set: &ReplicaSet| set.metadata.annotations.as_ref().unwrap().get(HISTORY).cloned().unwrap();
    const HISTORY: &str = "deployment.kubernetes.io/revision-history";
    (1..=3).for_each(|next| revision::annotate(&deployment, &mut set, next));
    assert_eq!(history(&set), "1,2");
    (4..5000).for_each(|next| revision::annotate(&deployment, &mut set, next));
    let all = history(&set);
    assert!((1990..=2000).contains(&all.len()), "{}", all.len());
    let numbers: Vec<i64> = all.split(',').map(|number| number.parse().expect("a number")).collect();
    assert_eq!((numbers.len(), numbers[0], numbers[399]), (400, 4599, 4998));
}

#[test]
fn the_oldest_revisions_beyond_the_limit_are_forgotten() {
    let mut world = World::new(deployment("0", 1, "1", "0"));
    for image in ["0", "1", "2", "3", "4"] {
        world.set_image(image);
        world.reach_rest();
    }
    let revisions: Vec<i64> = world.sets.iter().map(revision::number).collect();
    assert_eq!(revisions, [3, 4, 5], "the limit is two old ones");
}
