//! The device filters of cgroups: one that was detached externally is attached again.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use super::super::names::PAUSE;
use super::super::{Guard, Inner, Sandbox};
use crate::records::Devices;
use crate::spec::CgroupName;
use crate::{Error, Result};
use podwright_sys::{Kernel, bpf};

/// A device filter program, kept loaded while we run.
#[derive(Clone, Debug)]
pub struct Held {
    id: u32,
    program: Arc<OwnedFd>,
}

impl Held {
    /// `None`: no program is used.
    pub fn of(guard: &Guard) -> Result<Option<Held>> {
        let Guard::Program(program) = guard else { return Ok(None) };
        let id = bpf::id_of(program.as_fd()).map_err(failed("a program's id"))?;
        Ok(Some(Held { id, program: program.clone() }))
    }

    /// The program that an earlier agent attached to a cgroup.
    pub fn found(cgroup: &Path) -> Result<Option<Held>> {
        let ids = bpf::device_programs(cgroup).map_err(failed(&cgroup.display().to_string()))?;
        let Some(id) = ids.last().copied() else { return Ok(None) };
        let program = bpf::program_of(id).map_err(failed("a program by its id"))?;
        Ok(Some(Held { id, program: Arc::new(program) }))
    }

    /// Returns whether it had to be attached again.
    fn mend(&self, kernel: &Kernel, cgroup: &Path) -> Result<bool> {
        let ids = bpf::device_programs(cgroup).map_err(failed(&cgroup.display().to_string()))?;
        if ids.contains(&self.id) {
            return Ok(false);
        }
        kernel.attach_device_program(cgroup, self.program.as_fd())?;
        Ok(true)
    }
}

fn failed(what: &str) -> impl FnOnce(std::io::Error) -> Error {
    let what = what.to_owned();
    move |e| Error::Kernel(format!("bpf: {what}: {e}"))
}

pub fn mend(inner: &Inner, kernel: &Kernel, sandbox: &Sandbox) -> Result<Vec<String>> {
    // A host that refuses such programs has none.
    if inner.tree.capabilities.devices_refused.is_some() {
        return Ok(Vec::new());
    }
    let mut mended = Vec::new();
    for (name, held) in held(inner, sandbox)? {
        if held.mend(kernel, &inner.tree.path(&name))? {
            mended.push(format!("the device program of cgroup {}", name.as_path().display()));
        }
    }
    Ok(mended)
}

/// The cgroups of everything running, with their intended programs.
fn held(inner: &Inner, sandbox: &Sandbox) -> Result<Vec<(CgroupName, Held)>> {
    let mut state = sandbox.state();
    if !state.ready() {
        return Ok(Vec::new());
    }
    let cgroup = state.record.spec.cgroup.clone();
    let mut all = Vec::new();
    let pause = cgroup.child(PAUSE);
    if state.held.is_none() {
        // A newly loaded one would differ: an earlier agent's is kept.
        state.held = match Held::found(&inner.tree.path(&pause))? {
            Some(held) => Some(held),
            None => Held::of(&inner.guard(&[])?)?,
        };
    }
    all.extend(state.held.clone().map(|held| (pause, held)));
    let decided = |devices| devices == Some(Devices::Held);
    let running = state.containers.values_mut().filter(|c| c.is_running() && decided(c.record.devices));
    for container in running {
        let name = cgroup.child(&container.record.id.key());
        if container.held.is_none() {
            container.held = Held::found(&inner.tree.path(&name))?;
        }
        all.extend(container.held.clone().map(|held| (name, held)));
    }
    Ok(all)
}
