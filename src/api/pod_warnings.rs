//! Duplicates in a Pod or its template that validation accepts, but that an apply merges. Their author is warned, in upstream's
//! words (`GetWarningsForPodTemplate`).

use std::collections::{HashMap, HashSet};

use crate::Object;
use crate::validation::At;

/// The most warnings for one object, and the most pairs of ports compared for them.
const MOST: usize = 100;
const PAIRS: usize = 10_000;

/// The paths of workloads' templates.
pub const TEMPLATES: &[(&str, &str)] = &[
    ("CronJob", "spec.jobTemplate.spec.template"),
    ("DaemonSet", "spec.template"),
    ("Deployment", "spec.template"),
    ("Job", "spec.template"),
    ("PodTemplate", "template"),
    ("ReplicaSet", "spec.template"),
    ("ReplicationController", "spec.template"),
    ("StatefulSet", "spec.template"),
];

/// For a new object of a built-in kind.
pub fn of_new(kind: &str, object: &Object) -> Vec<String> {
    let path = match TEMPLATES.iter().find(|(known, _)| *known == kind) {
        Some((_, path)) => *path,
        None if kind == "Pod" => "",
        None => return Vec::new(),
    };
    let steps = path.split('.').filter(|step| !step.is_empty());
    let spec = steps.fold(At::root(&object.0), |at, step| at.get(step)).get("spec");
    let mut told = Told::default();
    twice(&spec.get("hostAliases"), "ip", &mut told);
    let secrets = spec.get("imagePullSecrets");
    twice(&secrets, "name", &mut told);
    for name in secrets.items().map(|secret| secret.get("name")).filter(At::is_empty) {
        told.add(&name, "invalid empty name \"\"");
    }
    let containers =
        || ["initContainers", "containers", "ephemeralContainers"].into_iter().flat_map(|list| spec.get(list).items());
    containers().for_each(|container| variables(&container.get("env"), &mut told));
    ports(containers(), &mut told);
    told.0
}

/// For an updated object. Controllers and nodes change Pods themselves, so these are exempt.
pub fn of_change(kind: &str, new: &Object, old: &Object) -> Vec<String> {
    match kind == "Pod" || new.generation() == old.generation() {
        true => Vec::new(),
        false => of_new(kind, new),
    }
}

#[derive(Default)]
struct Told(Vec<String>);

impl Told {
    fn add(&mut self, at: &At<'_>, what: &str) {
        if self.0.len() < MOST {
            self.0.push(format!("{}: {what}", at.path));
        }
    }
}

fn twice(list: &At<'_>, field: &str, told: &mut Told) {
    let mut seen = HashSet::new();
    for at in list.items().map(|item| item.get(field)) {
        if !seen.insert(at.str()) {
            told.add(&at, &format!("duplicate {field} {:?}", at.str()));
        }
    }
}

/// The last one with a name applies; it may be derived from an earlier one.
fn variables(env: &At<'_>, told: &mut Told) {
    let mut seen = HashSet::new();
    for variable in env.items() {
        let (name, value) = (variable.get("name").str(), variable.get("value").str());
        if seen.insert(name) {
            continue;
        }
        let former = format!("$({name})");
        if variable.get("valueFrom").is_set() || value == former || !value.contains(&former) {
            let why = format!("hides previous definition of {name:?}, which may be dropped when using apply");
            told.add(&variable, &why);
        }
    }
}

/// Ports of all containers, which share one address.
fn ports<'a>(containers: impl Iterator<Item = At<'a>>, told: &mut Told) {
    let mut all: HashMap<(i64, &str), Vec<(At<'a>, &str, i64)>> = HashMap::new();
    let mut left = PAIRS;
    for port in containers.flat_map(|container| container.get("ports").items()) {
        let protocol = Some(port.get("protocol").str()).filter(|protocol| !protocol.is_empty()).unwrap_or("TCP");
        let number = |field: &str| port.get(field).int().unwrap_or(0);
        let (ip, on_host) = (port.get("hostIP").str(), number("hostPort"));
        let others = all.entry((number("containerPort"), protocol)).or_default();
        for (other, other_ip, other_on_host) in others.iter().take(left) {
            let how = if (ip, on_host) == (*other_ip, *other_on_host) {
                "duplicate"
            } else if on_host == 0 || *other_on_host == 0 {
                "overlapping"
            } else if on_host == *other_on_host && ip.is_empty() != other_ip.is_empty() {
                "dangerously ambiguous"
            } else {
                continue;
            };
            told.add(&port, &format!("{how} port definition with {}", other.path));
        }
        left = left.saturating_sub(others.len());
        others.push((port, ip, on_host));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::yaml;

    fn told(kind: &str, text: &str) -> Vec<String> {
        of_new(kind, &Object(yaml::documents(text).expect("it is YAML").remove(0)))
    }

    #[test]
    fn what_is_said_twice_is_warned_of() {
        for (spec, warnings) in [
            ("{containers: [{env: [{name: a, value: b}, {name: b}]}]}", &[][..]),
            (
                "{containers: [{env: [{name: a, value: b}, {name: a, value: c}]}]}",
                &["containers[0].env[1]: hides previous definition of \"a\", which may be dropped when using apply"],
            ),
            ("{containers: [{env: [{name: a}, {name: a, value: 'x$(a)'}]}, {env: [{name: a}]}]}", &[]),
            (
                "{initContainers: [{env: [{name: a}, {name: a, value: $(a)}, {name: a, valueFrom: {}}]}]}",
                &[
                    "initContainers[0].env[1]: hides previous definition of \"a\", which may be dropped when using apply",
                    "initContainers[0].env[2]: hides previous definition of \"a\", which may be dropped when using apply",
                ],
            ),
            (
                "{hostAliases: [{ip: 1.1.1.1}, {ip: 1.1.1.2}, {ip: 1.1.1.1}]}",
                &["hostAliases[2].ip: duplicate ip \"1.1.1.1\""],
            ),
            (
                "{imagePullSecrets: [{name: a}, {name: a}, {name: ''}]}",
                &[
                    "imagePullSecrets[1].name: duplicate name \"a\"",
                    "imagePullSecrets[2].name: invalid empty name \"\"",
                ],
            ),
            (
                "{containers: [{ports: [{containerPort: 1}, {containerPort: 1, protocol: UDP}]}, {ports: [{containerPort: 1, protocol: TCP}]}]}",
                &["containers[1].ports[0]: duplicate port definition with spec.containers[0].ports[0]"],
            ),
            (
                "{containers: [{ports: [{containerPort: 1, hostPort: 2}, {containerPort: 1}]}]}",
                &["containers[0].ports[1]: overlapping port definition with spec.containers[0].ports[0]"],
            ),
            (
                "{containers: [{ports: [{containerPort: 1, hostPort: 2, hostIP: 1.1.1.1}, {containerPort: 1, hostPort: 2}, {containerPort: 1, hostPort: 3}]}]}",
                &["containers[0].ports[1]: dangerously ambiguous port definition with spec.containers[0].ports[0]"],
            ),
        ] {
            let expected: Vec<String> = warnings.iter().map(|warning| format!("spec.{warning}")).collect();
            assert_eq!(told("Pod", &format!("{{spec: {spec}}}")), expected, "{spec}");
        }
        let env = "{containers: [{env: [{name: a}, {name: a}]}]}";
        let told = |kind: &str, text: String| told(kind, &text).pop().unwrap_or_default();
        assert!(
            told("CronJob", format!("{{spec: {{jobTemplate: {{spec: {{template: {{spec: {env}}}}}}}}}}}"))
                .starts_with("spec.jobTemplate.spec.template.spec.containers[0].env[1]: ")
        );
        assert_eq!(told("ConfigMap", format!("{{spec: {env}}}")), "");
    }

    #[test]
    fn who_says_much_twice_makes_nobody_work_for_it() {
        let ports: Vec<_> =
            (0..20_000).map(|port| serde_json::json!({"containerPort": 1, "hostPort": port + 1})).collect();
        let env = vec![serde_json::json!({"name": "a"}); 20_000];
        let pod = Object(serde_json::json!({"spec": {"containers": [{"ports": ports, "env": env}]}}));
        let begun = std::time::Instant::now();
        assert_eq!(of_new("Pod", &pod).len(), MOST);
        assert!(begun.elapsed() < std::time::Duration::from_secs(2), "{:?}", begun.elapsed());
    }
}
