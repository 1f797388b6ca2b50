//! What the host is: CPUs, memory, disk, kernel, ids; read once.

use std::{collections::BTreeMap, fs};

use k8s_openapi::{api::core::v1::NodeSystemInfo, apimachinery::pkg::api::resource::Quantity};

use super::admission::Allocatable;

pub const VERSION: &str = concat!("v1.35.0+podwright-", env!("CARGO_PKG_VERSION"));

#[derive(Clone, Debug)]
pub struct Machine {
    pub cpus: i64,
    /// Bytes.
    pub memory: i64,
    /// Bytes of the disk that holds `/`.
    pub storage: i64,
    pub info: NodeSystemInfo,
}

fn line(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

impl Machine {
    pub fn read() -> Machine {
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as i64);
        let meminfo = line("/proc/meminfo");
        let total = meminfo.lines().find_map(|l| l.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse().ok());
        let storage = rustix::fs::statvfs("/").map_or(0, |s| (s.f_blocks * s.f_frsize) as i64);
        let release = line("/etc/os-release");
        let pretty = release.lines().find_map(|l| l.strip_prefix("PRETTY_NAME=")).unwrap_or("Linux");
        let info = NodeSystemInfo {
            architecture: architecture().to_owned(),
            boot_id: line("/proc/sys/kernel/random/boot_id"),
            container_runtime_version: format!("podwright://{}", env!("CARGO_PKG_VERSION")),
            kernel_version: line("/proc/sys/kernel/osrelease"),
            kube_proxy_version: String::new(),
            kubelet_version: VERSION.to_owned(),
            machine_id: line("/etc/machine-id"),
            operating_system: "linux".to_owned(),
            os_image: pretty.trim_matches('"').to_owned(),
            swap: None,
            system_uuid: line("/sys/class/dmi/id/product_uuid"),
        };
        Machine { cpus, memory: total.unwrap_or(0_i64) * 1024, storage, info }
    }

    /// What a hollow node claims to be.
    pub fn hollow() -> Machine {
        let real = Machine::read();
        Machine { cpus: 32, memory: 256 << 30, storage: 1 << 40, info: real.info }
    }

    /// Capacity, and allocatable alike, as a Node says it.
    pub fn resources(&self, max_pods: u32) -> BTreeMap<String, Quantity> {
        BTreeMap::from([
            ("cpu".to_owned(), Quantity(self.cpus.to_string())),
            ("memory".to_owned(), Quantity(format!("{}Ki", self.memory / 1024))),
            ("ephemeral-storage".to_owned(), Quantity(format!("{}Ki", self.storage / 1024))),
            ("pods".to_owned(), Quantity(max_pods.to_string())),
        ])
    }

    pub fn allocatable(&self, max_pods: u32) -> Allocatable {
        Allocatable {
            cpu_millis: self.cpus * 1000,
            memory: self.memory,
            storage: self.storage,
            pods: max_pods as usize,
        }
    }
}

/// Go's name of the architecture.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
