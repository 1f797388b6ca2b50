//! Properties of the host: CPUs, memory, disk, kernel, ids; read once.

use std::{collections::BTreeMap, fs, path::Path};

use k8s_openapi::{api::core::v1::NodeSystemInfo, apimachinery::pkg::api::resource::Quantity};
use podwright_runtime::sys::own;

use super::{
    admission::{Allocatable, protections::Unavailable},
    kernel::{self, version},
    storage::Thresholds,
};

pub const VERSION: &str = concat!("v1.35.0+podwright-", env!("CARGO_PKG_VERSION"));

#[derive(Clone, Debug)]
pub struct Machine {
    pub cpus: i64,
    /// Bytes.
    pub memory: i64,
    /// Bytes of the disk that holds what Pods write.
    pub storage: i64,
    /// Bytes not available to Pods: below this much free space, Pods are evicted.
    pub storage_reserved: i64,
    pub info: NodeSystemInfo,
}

fn line(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// Checks that Pods with user namespaces can run: their Secrets need an idmapped tmpfs. `runtime`: the runtime's own check.
///
/// # Errors
///
/// The kernel is too old, or the runtime lacks something.
pub fn user_namespaces(kernel: &str, runtime: Result<(), String>) -> Result<(), Unavailable> {
    match version(kernel) >= (6, 3) {
        true => runtime.map_err(Unavailable::Runtime),
        false => Err(Unavailable::OldKernel(kernel.to_owned())),
    }
}

/// Whether containers can get SELinux labels.
///
/// # Errors
///
/// Always: the host has no SELinux, or the runtime does not set labels.
pub fn se_linux() -> Result<(), Unavailable> {
    match line("/sys/fs/selinux/enforce").is_empty() {
        true => Err(Unavailable::SeLinuxDisabled),
        false => Err(Unavailable::SeLinuxLabels),
    }
}

impl Machine {
    /// `disk`: a folder of the disk that holds what Pods write.
    pub fn read(disk: &Path, eviction_hard: &Thresholds) -> Machine {
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as i64);
        let meminfo = line("/proc/meminfo");
        let total = meminfo.lines().find_map(|l| l.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse().ok());
        let storage = rustix::fs::statvfs(disk).map_or(0, |s| (s.f_blocks * s.f_frsize) as i64);
        let release = line("/etc/os-release");
        let pretty = release.lines().find_map(|l| l.strip_prefix("PRETTY_NAME=")).unwrap_or("Linux");
        let info = NodeSystemInfo {
            architecture: architecture().to_owned(),
            boot_id: line("/proc/sys/kernel/random/boot_id"),
            container_runtime_version: format!("podwright://{}", env!("CARGO_PKG_VERSION")),
            kernel_version: kernel::release(),
            kube_proxy_version: String::new(),
            kubelet_version: VERSION.to_owned(),
            machine_id: line("/etc/machine-id"),
            operating_system: "linux".to_owned(),
            os_image: pretty.trim_matches('"').to_owned(),
            swap: None,
            system_uuid: line("/sys/class/dmi/id/product_uuid"),
        };
        let storage_reserved = eviction_hard.reserved(storage);
        Machine { cpus, memory: total.unwrap_or(0_i64) * 1024, storage, storage_reserved, info }
    }

    /// The resources that a hollow node reports.
    pub fn hollow() -> Machine {
        let real = Machine::read(Path::new("/"), &Thresholds::default());
        Machine { cpus: 32, memory: 256 << 30, storage: 1 << 40, storage_reserved: 0, info: real.info }
    }

    /// Capacity in the form of the Node object.
    pub fn capacity(&self, max_pods: u32) -> BTreeMap<String, Quantity> {
        BTreeMap::from([
            ("cpu".to_owned(), Quantity(self.cpus.to_string())),
            ("memory".to_owned(), Quantity(format!("{}Ki", self.memory / 1024))),
            ("ephemeral-storage".to_owned(), Quantity(format!("{}Ki", self.storage / 1024))),
            ("pods".to_owned(), Quantity(max_pods.to_string())),
        ])
    }

    /// Allocatable, likewise.
    pub fn allocatable_resources(&self, max_pods: u32) -> BTreeMap<String, Quantity> {
        let storage = self.storage - self.storage_reserved;
        Machine { storage, ..self.clone() }.capacity(max_pods)
    }

    pub fn allocatable(&self, max_pods: u32) -> Allocatable {
        Allocatable {
            cpu_millis: self.cpus * 1000,
            memory: self.memory,
            storage: self.storage - self.storage_reserved,
            pods: max_pods as usize,
            // Only for what is no limit of a process would the kernel not say.
            descriptors: own::descriptor_limit().map_or(usize::MAX, |most| most as usize),
        }
    }
}

/// Go's name for the architecture.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
