//! A control plane: its server's controllers, and its scheduler if it has one, that start, stop, crash and are cut off.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use podwright::{
    api::Env,
    client::{
        Client, Informers,
        elector::{Election, Times},
        local,
    },
    controllers, scheduler,
    server::Server,
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{
    history::Recorded,
    rough::{Elected, Rough, Wire},
    world::Step,
};

/// Which control planes there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setup {
    /// Controllers right beside the server; nodes take Pods by themselves.
    Straight,
    /// The same with a rough way to the server.
    Rough,
    /// Two servers on one store, each with controllers and a scheduler, that elect leaders.
    Elected,
}

/// See the module.
pub struct Plane {
    pub server: Arc<Server>,
    pub env: Env,
    pub store: Arc<Recorded>,
    pub setup: Setup,
    pub name: &'static str,
    /// How often it has been started: no two of its processes have the same name.
    pub starts: u32,
    pub running: Option<Running>,
}

pub struct Running {
    stop: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
    wire: Arc<Wire>,
}

pub const CONTROLLERS: &str = "kube-controller-manager";
pub const SCHEDULER: &str = "kube-scheduler";
/// What is elected of each plane.
pub const PARTS: [&str; 2] = [CONTROLLERS, SCHEDULER];

impl Plane {
    pub fn start(&mut self) {
        if self.running.is_some() {
            return;
        }
        self.starts += 1;
        let (stop, wire) = (CancellationToken::new(), Arc::<Wire>::default());
        let parts = if self.setup == Setup::Elected { &PARTS[..] } else { &PARTS[..1] };
        let tasks = parts.iter().map(|part| self.part(part, &wire, &stop)).collect();
        self.running = Some(Running { stop, tasks, wire });
    }

    fn part(&self, part: &'static str, wire: &Arc<Wire>, stop: &CancellationToken) -> JoinHandle<()> {
        let (env, stop, identity) = (self.env.clone(), stop.clone(), self.identity());
        let lead = {
            let (env, store, plane) = (env.clone(), self.store.clone(), identity.clone());
            move |client: Client, stop: CancellationToken| {
                let (env, store, plane) = (env.clone(), store.clone(), plane.clone());
                async move {
                    store.step(Step::Leads { part, plane: plane.clone() });
                    let informers = Informers::start(client.clone());
                    match part {
                        CONTROLLERS => controllers::run(client, env, informers, Default::default(), stop).await,
                        _ => scheduler::run(client, env, informers, Arc::default(), stop).await,
                    }
                    store.step(Step::Resigns { part, plane });
                }
            }
        };
        let elected = (self.setup == Setup::Elected).then(|| Elected {
            part,
            identity: identity.clone(),
            store: self.store.clone(),
        });
        let elects = elected.is_some();
        let client = match self.setup {
            Setup::Straight => local::client(self.server.clone(), "controllers"),
            _ => Rough { server: self.server.clone(), env: env.clone(), wire: wire.clone(), elected }
                .client("controllers"),
        };
        match elects {
            true => {
                let election = Election { client, env, name: part, identity, times: Times::default() };
                tokio::spawn(election.run(stop, lead))
            }
            false => tokio::spawn(lead(client, stop)),
        }
    }

    /// Ends it in order.
    pub async fn stop(&mut self) {
        let Some(Running { stop, tasks, wire }) = self.running.take() else { return };
        wire.cut.store(false, Relaxed);
        stop.cancel();
        for task in tasks {
            task.await.expect("the loops end without a panic");
        }
    }

    /// Ends it in the middle of whatever it does.
    pub fn crash(&mut self) {
        if let Some(Running { tasks, wire, .. }) = self.running.take() {
            wire.dead.store(true, Relaxed);
            tasks.iter().for_each(JoinHandle::abort);
            for part in PARTS {
                self.store.step(Step::Resigns { part, plane: self.identity() });
            }
        }
    }

    fn identity(&self) -> String {
        format!("{}-{}", self.name, self.starts)
    }

    /// Cuts it off from its server, or mends that.
    pub fn cut(&self, cut: bool) {
        if let Some(running) = &self.running {
            running.wire.cut.store(cut, Relaxed);
        }
    }
}
