//! What commands ask of a server: for its kinds only where argv or a manifest names one that is not built in.

use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use podwright::cli::{self, Command, Global};
use podwright::server::audit::{Audit, LogTarget, Policy};

use super::*;

#[derive(Parser)]
struct Argv {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    global: Global,
}

struct World {
    served: Served,
    audit: tempfile::TempDir,
}

impl World {
    async fn new() -> World {
        let audit = tempfile::tempdir().unwrap();
        let policy =
            "{apiVersion: audit.k8s.io/v1, kind: Policy, omitStages: [RequestReceived], rules: [{level: Metadata}]}";
        let place = LogTarget { path: Some(audit.path().join("audit.log")), ..LogTarget::default() };
        let log = Audit::open(Policy::parse(policy).unwrap(), place, Env::system()).unwrap();
        let config = Config { audit: Some(Arc::new(log)), ..Config::default() };
        World { served: Served::with(config).await, audit }
    }

    /// Runs a command as a process would; what it has asked for, as `verb resource`.
    async fn asked(&self, line: &str) -> Vec<String> {
        let before = self.logged("before").await.len();
        let server = ["--server".to_owned(), self.served.path.display().to_string()];
        let words = ["podwright"].into_iter().chain(line.split(' ')).map(str::to_owned).chain(server);
        let argv = Argv::parse_from(words);
        let done = tokio::task::spawn_blocking(move || cli::main(argv.command, argv.global)).await.unwrap();
        assert_eq!(format!("{done:?}"), format!("{:?}", ExitCode::SUCCESS), "{line}");
        let mut all = self.logged("after").await;
        all.pop();
        all.split_off(before)
    }

    /// All that is in the audit log up to one more request.
    async fn logged(&self, mark: &str) -> Vec<String> {
        let log = self.audit.path().join("audit.log");
        let count = events(&log).iter().filter(|event| *event == mark).count();
        self.served.client.call(request(Verb::Get, "configmaps", mark, None, Options::default())).await.unwrap_err();
        for _ in 0..500 {
            let all = events(&log);
            if all.iter().filter(|event| *event == mark).count() > count {
                return all;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("nothing of {mark}: {:?}", events(&log));
    }
}

fn events(log: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let event = |line: &str| {
        let event: Value = serde_json::from_str(line).unwrap();
        let (verb, of) = (event["verb"].as_str().unwrap(), &event["objectRef"]);
        match (of["resource"].as_str(), of["name"].as_str()) {
            (Some("configmaps"), Some(mark @ ("before" | "after"))) => mark.to_owned(),
            (Some(resource), _) => format!("{verb} {resource}"),
            (None, _) => format!("{verb} {}", event["requestURI"].as_str().unwrap()),
        }
    };
    let all = text.split_inclusive('\n').filter(|line| line.ends_with('\n')).map(event);
    // The server registers the groups of definitions by itself, when it comes to it.
    all.filter(|asked| !asked.ends_with(" apiservices")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn kinds_are_asked_for_where_one_is_named_that_is_not_built_in() {
    let world = World::new().await;
    world.served.api.define(definition(spec(json!({})))).await;
    assert_eq!(world.asked("get pods").await, ["list pods"]);
    assert_eq!(world.asked("get po,deploy.apps").await, ["list pods", "list deployments"]);
    let file = world.audit.path().join("map.yaml");
    std::fs::write(&file, "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}").unwrap();
    let applied = world.asked(&format!("apply -f {}", file.display())).await;
    // The server sees by itself whether it is there.
    assert_eq!(applied, ["patch configmaps"]);
    assert_eq!(world.asked(&format!("apply -f {}", file.display())).await, ["patch configmaps"]);

    // Anybody's kinds may belong to a category.
    let all = world.asked("get all").await;
    let has = |what: &str| all.iter().any(|asked| asked == what);
    assert!(has("list customresourcedefinitions") && has("list widgets") && has("list pods"), "{all:?}");
    // A process learns once.
    assert_eq!(world.asked("get wd").await, ["list widgets"]);
}
