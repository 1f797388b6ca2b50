//! Common queries on a Pod's manifest.

use std::{borrow::Cow, sync::Arc};

use k8s_openapi::{
    api::core::v1::{Container, EphemeralContainer, ObjectReference, Pod, PodSpec, Volume},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};

use podwright_client::reference;

/// The source of a static Pod's manifest: `file`; Pods of the API server have `api`.
pub const SOURCE: &str = "kubernetes.io/config.source";
/// The hash of a static Pod's manifest.
pub const HASH: &str = "kubernetes.io/config.hash";
pub use podwright_api::pod_references::MIRROR;

/// `off` on a Pod whose kernel operations are not to be recorded.
pub const JOURNAL: &str = "podwright/journal";

/// On a Pod of a hollow node, the pretended usage of each of its containers: `cpu=250m,memory=64Mi`.
pub const USAGE: &str = "podwright/hollow-usage";

/// The role of a container in its Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Runs to completion before the next container starts.
    Init,
    /// An init container with `restartPolicy: Always` (KEP-753).
    Sidecar,
    Main,
    Ephemeral,
}

/// One container of a Pod, from any of its lists.
#[derive(Clone, Debug)]
pub struct ContainerRef<'a> {
    pub role: Role,
    pub container: Cow<'a, Container>,
    /// The container whose processes an ephemeral one should see.
    pub target: Option<&'a str>,
}

impl ContainerRef<'_> {
    pub fn name(&self) -> &str {
        &self.container.name
    }

    /// Its field path: `spec.containers{web}`, as in events.
    pub fn path(&self) -> String {
        let list = match self.role {
            Role::Init | Role::Sidecar => "initContainers",
            Role::Main => "containers",
            Role::Ephemeral => "ephemeralContainers",
        };
        format!("spec.{list}{{{}}}", self.name())
    }

    /// The names of the Pod's volumes that it has, as folders or as devices; one of them more than once, where it has that in
    /// several places.
    pub fn volumes(&self) -> impl Iterator<Item = &str> {
        let mounts = self.container.volume_mounts.iter().flatten().map(|mount| &*mount.name);
        mounts.chain(self.container.volume_devices.iter().flatten().map(|device| &*device.name))
    }
}

fn init(c: &Container) -> ContainerRef<'_> {
    let role = if c.restart_policy.as_deref() == Some("Always") { Role::Sidecar } else { Role::Init };
    ContainerRef { role, container: Cow::Borrowed(c), target: None }
}

fn main(c: &Container) -> ContainerRef<'_> {
    ContainerRef { role: Role::Main, container: Cow::Borrowed(c), target: None }
}

fn ephemeral(c: &EphemeralContainer) -> ContainerRef<'_> {
    ContainerRef {
        role: Role::Ephemeral,
        target: c.target_container_name.as_deref().filter(|name| !name.is_empty()),
        container: Cow::Owned(Container {
            args: c.args.clone(),
            command: c.command.clone(),
            env: c.env.clone(),
            env_from: c.env_from.clone(),
            image: c.image.clone(),
            image_pull_policy: c.image_pull_policy.clone(),
            name: c.name.clone(),
            resources: c.resources.clone(),
            security_context: c.security_context.clone(),
            stdin: c.stdin,
            stdin_once: c.stdin_once,
            termination_message_path: c.termination_message_path.clone(),
            termination_message_policy: c.termination_message_policy.clone(),
            tty: c.tty,
            volume_mounts: c.volume_mounts.clone(),
            working_dir: c.working_dir.clone(),
            ..Container::default()
        }),
    }
}

pub fn is_privileged(container: &Container) -> bool {
    container.security_context.as_ref().and_then(|c| c.privileged) == Some(true)
}

fn spec(pod: &Pod) -> &PodSpec {
    static EMPTY: std::sync::LazyLock<PodSpec> = std::sync::LazyLock::new(PodSpec::default);
    pod.spec.as_ref().unwrap_or(&EMPTY)
}

/// Whether a Pod is exempt from node pressure: static Pods, which no controller would recreate, and those with system priorities in
/// the system namespace.
///
/// Upstream's `IsCriticalPod` only checks the priority. Any tenant may set that, and the exemptions (disk limits, eviction, OOM
/// score) are what protects the other Pods.
pub fn is_critical(pod: &Pod) -> bool {
    /// `SystemCriticalPriority`
    const SYSTEM: i32 = 2_000_000_000;
    let of_system =
        || pod.namespace() == "kube-system" && spec(pod).priority.is_some_and(|priority| priority >= SYSTEM);
    pod.is_static() || of_system()
}

/// The newer of two versions of an object.
pub fn newer(old: &Arc<Pod>, new: Arc<Pod>) -> Arc<Pod> {
    if revision(&new) >= revision(old) { new } else { old.clone() }
}

/// `metadata.resourceVersion` as a number; 0 for an object not stored on a server.
pub fn revision(pod: &Pod) -> u64 {
    pod.metadata.resource_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or(0)
}

/// What the agent needs from a Pod's manifest.
pub trait PodExt {
    fn spec(&self) -> &PodSpec;
    fn uid(&self) -> &str;
    fn name(&self) -> &str;
    fn namespace(&self) -> &str;
    /// All containers: init containers first, in order, then regular and ephemeral ones.
    fn parts(&self) -> Vec<ContainerRef<'_>>;
    /// `name_namespace(uid)`, as upstream's messages name a Pod.
    fn full_name(&self) -> String {
        format!("{}_{}({})", self.name(), self.namespace(), self.uid())
    }
    /// The container of this name; to look up many, call `parts` once.
    fn part(&self, name: &str) -> Option<ContainerRef<'_>>;
    fn volume(&self, name: &str) -> Option<&Volume> {
        self.spec().volumes.iter().flatten().find(|volume| volume.name == name)
    }
    fn restart_policy(&self) -> &str {
        self.spec().restart_policy.as_deref().unwrap_or("Always")
    }
    /// Seconds between SIGTERM and SIGKILL: from the deletion, or else the spec.
    fn grace(&self) -> i64;
    fn host_network(&self) -> bool {
        self.spec().host_network == Some(true)
    }
    /// Whether it has its own user namespace.
    fn has_own_users(&self) -> bool {
        self.spec().host_users == Some(false)
    }
    fn annotation(&self, key: &str) -> Option<&str>;
    /// Whether it comes from the manifest folder. An object of the server never does, whatever its annotations: users write those,
    /// but everything stored on the server has a version.
    fn is_static(&self) -> bool;
    /// Whether the object only mirrors a static Pod of its node. The annotation alone is not enough.
    fn is_mirror(&self) -> bool;
    /// Whether the object has a mirror's annotation without being one: it mirrors nothing, and must not run.
    fn is_false_mirror(&self) -> bool {
        self.annotation(MIRROR).is_some() && !self.is_mirror()
    }
    fn is_terminal(&self) -> bool;
    /// The subject of events: the Pod, or one container of it.
    fn about(&self, container: Option<&str>) -> ObjectReference;
}

impl PodExt for Pod {
    fn spec(&self) -> &PodSpec {
        spec(self)
    }
    fn uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }
    fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }
    fn namespace(&self) -> &str {
        self.metadata.namespace.as_deref().unwrap_or("default")
    }

    fn parts(&self) -> Vec<ContainerRef<'_>> {
        let spec = spec(self);
        let init = spec.init_containers.iter().flatten().map(init);
        let ephemeral = spec.ephemeral_containers.iter().flatten().map(ephemeral);
        init.chain(spec.containers.iter().map(main)).chain(ephemeral).collect()
    }

    fn part(&self, name: &str) -> Option<ContainerRef<'_>> {
        let spec = spec(self);
        let init = || spec.init_containers.iter().flatten().find(|c| c.name == name).map(init);
        let main = || spec.containers.iter().find(|c| c.name == name).map(main);
        let ephemeral = || spec.ephemeral_containers.iter().flatten().find(|c| c.name == name).map(ephemeral);
        init().or_else(main).or_else(ephemeral)
    }

    fn grace(&self) -> i64 {
        let asked = self.metadata.deletion_grace_period_seconds.filter(|_| self.metadata.deletion_timestamp.is_some());
        asked.or(spec(self).termination_grace_period_seconds).unwrap_or(30).max(0)
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata.annotations.as_ref()?.get(key).map(String::as_str)
    }

    fn is_static(&self) -> bool {
        let from = self.annotation(SOURCE).is_some_and(|source| source != "api");
        from && self.metadata.resource_version.is_none()
    }

    fn is_mirror(&self) -> bool {
        let owners = self.metadata.owner_references.as_deref().unwrap_or_default();
        let node = spec(self).node_name.as_deref();
        let is_node = |owner: &OwnerReference| {
            owner.api_version == "v1"
                && owner.kind == "Node"
                && Some(owner.name.as_str()) == node
                && owner.controller == Some(true)
        };
        self.annotation(MIRROR).is_some() && matches!(owners, [owner] if is_node(owner))
    }

    fn is_terminal(&self) -> bool {
        let phase = self.status.as_ref().and_then(|s| s.phase.as_deref());
        matches!(phase, Some("Succeeded" | "Failed"))
    }

    fn about(&self, container: Option<&str>) -> ObjectReference {
        let field_path = container.and_then(|name| self.part(name)).map(|part| part.path());
        ObjectReference { field_path, ..reference(self) }
    }
}
