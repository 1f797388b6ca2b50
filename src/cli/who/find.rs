//! Which of a Pod's kernel objects is asked about, and from which field of the manifest it comes. Pure.

use serde_json::Value;

use super::question::{Question, tokens};
use crate::inspect::{list, nft};
use podwright_api::Object;

/// A kernel object of a Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hit {
    /// `process 17 (sleep 1000)`
    pub object: String,
    pub container: Option<String>,
    /// The field of the Pod, or of the Service.
    pub field: String,
    /// `namespace/name` of the Service that it belongs to.
    pub service: Option<String>,
}

impl Hit {
    fn of_pod(object: String, field: &str) -> Hit {
        Hit { object, container: None, field: field.to_owned(), service: None }
    }
}

/// Namespaces: their names, the field that sets each, and the field by which the Pod has the node's instead, with its default.
const NAMESPACES: [(&str, &str, &str, bool); 5] = [
    ("net", "spec.hostNetwork", "spec.hostNetwork", false),
    ("ipc", "spec.hostIPC", "spec.hostIPC", false),
    ("uts", "spec.hostname", "spec.hostNetwork", false),
    ("pid", "spec.shareProcessNamespace", "spec.hostPID", false),
    ("user", "spec.hostUsers", "spec.hostUsers", true),
];

/// Files that each container gets without a volume, and the field that sets their content.
const FILES: [(&str, &str); 3] =
    [("/etc/hosts", "spec.hostAliases"), ("/etc/resolv.conf", "spec.dnsPolicy"), ("/etc/hostname", "spec.hostname")];

/// The Pod's objects that are asked about; `found` is what `inspect` shows of it.
pub fn find(question: &Question, pod: &Object, found: &Value) -> Vec<Hit> {
    match question {
        Question::Process(pid) => process(*pid, pod, found).into_iter().collect(),
        Question::Namespace(name, inode) => namespace(name, *inode, pod, found).into_iter().collect(),
        Question::Cgroup(path) => cgroup(path, pod, found).into_iter().collect(),
        Question::Veth(name) => {
            let is_it = found["network"]["host"]["name"] == name.as_str();
            is_it.then(|| Hit::of_pod(question.to_string(), "spec.hostNetwork")).into_iter().collect()
        }
        Question::Mount(path) => mounts(path, pod, found),
        Question::Element(parts) => elements(parts, found),
        Question::Port(_) => Vec::new(),
    }
}

/// The containers of a Pod's spec, each with its list's name.
pub fn containers(pod: &Object) -> impl Iterator<Item = (&'static str, &Value)> {
    ["containers", "initContainers", "ephemeralContainers"]
        .into_iter()
        .flat_map(|of| list(&pod.0["spec"][of]).iter().map(move |container| (of, container)))
}

/// A container's part of the manifest, and its path there.
fn spec_of<'a>(pod: &'a Object, name: &str) -> (&'a Value, String) {
    let found = containers(pod).find(|(_, container)| container["name"] == name);
    found.map_or((&Value::Null, "spec".to_owned()), |(of, container)| (container, format!("spec.{of}{{{name}}}")))
}

fn name_of(container: &Value) -> String {
    container["name"].as_str().unwrap_or_default().to_owned()
}

fn process(pid: u32, pod: &Object, found: &Value) -> Option<Hit> {
    if found["sandbox"]["pause"]["pid"] == pid {
        return Some(Hit::of_pod(format!("process {pid} (pause, holds the namespaces)"), "spec"));
    }
    list(&found["containers"]).iter().find_map(|container| {
        let process = list(&container["processes"]).iter().find(|process| process["pid"] == pid)?;
        let (spec, path) = spec_of(pod, container["name"].as_str()?);
        // Others were started by the first one, or by exec.
        let set = ["command", "args"].into_iter().find(|field| !list(&spec[field]).is_empty()).unwrap_or("image");
        let field = if container["pid"] == pid { format!("{path}.{set}") } else { path };
        let words: Vec<&str> = list(&process["args"]).iter().filter_map(Value::as_str).collect();
        let object = format!("process {pid} ({})", words.join(" "));
        Some(Hit { object, container: Some(name_of(container)), field, service: None })
    })
}

fn namespace(name: &str, inode: u64, pod: &Object, found: &Value) -> Option<Hit> {
    let object = format!("namespace {name}:[{inode}]");
    let of_container = list(&found["containers"])
        .iter()
        .find(|container| list(&container["processes"]).iter().any(|process| process["namespaces"][name] == inode));
    if name == "mnt" {
        let container = name_of(of_container?);
        let field = format!("{}.volumeMounts", spec_of(pod, &container).1);
        return Some(Hit { object, container: Some(container), field, service: None });
    }
    let (_, field, host, default) = NAMESPACES.into_iter().find(|row| row.0 == name)?;
    if pod.at(host).and_then(Value::as_bool).unwrap_or(default) {
        return None;
    }
    let pause = &found["sandbox"]["pause"]["namespaces"][name];
    (of_container.is_some() || *pause == inode).then(|| Hit::of_pod(object, field))
}

/// Whether a path is another or below it.
fn is_within(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn cgroup(path: &str, pod: &Object, found: &Value) -> Option<Hit> {
    let is_of = |cgroup: &Value| cgroup["path"].as_str().is_some_and(|it| it.len() > 1 && is_within(path, it));
    let object = format!("cgroup {path}");
    if let Some(container) = list(&found["containers"]).iter().find(|container| is_of(&container["cgroup"])) {
        let container = name_of(container);
        let field = format!("{}.resources", spec_of(pod, &container).1);
        return Some(Hit { object, container: Some(container), field, service: None });
    }
    is_of(&found["sandbox"]["cgroup"]).then(|| Hit::of_pod(object, "spec.resources"))
}

fn mounts(path: &str, pod: &Object, found: &Value) -> Vec<Hit> {
    let mut hits = Vec::new();
    for container in list(&found["containers"]) {
        let lines = list(&container["processes"]).iter().flat_map(|process| list(&process["mounts"]));
        for line in lines.filter_map(Value::as_str) {
            let mut fields = line.split(' ').skip(3).map(unescaped);
            let (Some(root), Some(point)) = (fields.next(), fields.next()) else { continue };
            // The root is a path within its file system: where that is mounted on the node is not known here.
            let is_source = root.len() > 1 && (path == root || (root.contains(pod.uid()) && path.ends_with(&root)));
            if let Some(field) = source(pod, &name_of(container), &point).filter(|_| point == path || is_source) {
                let object = format!("mount {point}");
                hits.push(Hit { object, container: Some(name_of(container)), field, service: None });
            }
        }
    }
    hits.dedup();
    hits
}

/// The field that a container's mount comes from; none for those that every container has.
fn source(pod: &Object, container: &str, point: &str) -> Option<String> {
    let (spec, path) = spec_of(pod, container);
    let is_at = |mount: &&Value| mount["mountPath"].as_str().is_some_and(|it| it.trim_end_matches('/') == point);
    if let Some(mount) = list(&spec["volumeMounts"]).iter().find(is_at) {
        return Some(format!("{path}.volumeMounts{{{}}}", mount["name"].as_str().unwrap_or_default()));
    }
    if spec["terminationMessagePath"] == point {
        return Some(format!("{path}.terminationMessagePath"));
    }
    FILES.into_iter().find(|(file, _)| *file == point).map(|(_, field)| field.to_owned())
}

/// A field of mountinfo: spaces and the like are octal there.
fn unescaped(field: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .into_iter()
        .fold(field.to_owned(), |text, (octal, plain)| text.replace(octal, plain))
}

/// The elements that contain these words in this order, without others between them.
fn elements(parts: &[String], found: &Value) -> Vec<Hit> {
    let hit = |element: &Value| {
        let text = nft(&element["element"]);
        if !tokens(&text).windows(parts.len().max(1)).any(|window| window == parts) {
            return None;
        }
        let set = ["map", "set"].iter().find_map(|kind| element[kind].as_str()).unwrap_or_default();
        let object = format!("nft element {{ {text} }} of {set}");
        // `namespace/name:port`
        let service = element["service"].as_str().map(|it| it.split_once(':').unwrap_or((it, "")));
        let field = match service {
            None => "status.podIPs".to_owned(),
            Some((_, "")) => "spec.ports".to_owned(),
            Some((_, port)) => format!("spec.ports{{{port}}}"),
        };
        Some(Hit { object, container: None, field, service: service.map(|(name, _)| name.to_owned()) })
    };
    list(&found["services"]).iter().filter_map(hit).collect()
}
