//! A controller built with `kube::runtime::Controller`: owned children, a finalizer, a status; and the server's death.

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    runtime::{
        Controller,
        controller::Action,
        finalizer::{self, finalizer},
        watcher,
    },
};
use serde_json::json;

use super::{
    Cluster,
    board::{self, Board},
};

const FINALIZER: &str = "boards.example.com/farewell";
/// The children's label: their board's name.
const BOARD: &str = "board";

type Failure = finalizer::Error<kube::Error>;

/// Creates exactly a board's copies, and reports so; finalizes it before it goes.
async fn reconcile(board: Arc<Board>, client: Arc<Client>) -> Result<Action, Failure> {
    let boards: Api<Board> = Api::default_namespaced(client.as_ref().clone());
    let configmaps: Api<ConfigMap> = Api::default_namespaced(client.as_ref().clone());
    finalizer(&boards, FINALIZER, board, |event| async {
        match event {
            finalizer::Event::Apply(board) => apply(&boards, &configmaps, &board).await,
            finalizer::Event::Cleanup(board) => farewell(&configmaps, &board).await,
        }
    })
    .await
}

async fn apply(boards: &Api<Board>, configmaps: &Api<ConfigMap>, board: &Board) -> kube::Result<Action> {
    let (name, by) = (board.name_any(), PatchParams::apply("boards").force());
    for number in 0..board.spec.copies {
        let copy = format!("{name}-{number}");
        let metadata = json!({
            "name": copy,
            "labels": {BOARD: name},
            "ownerReferences": [board.controller_owner_ref(&()).unwrap()],
        });
        let wish = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"text": board.spec.text},
        });
        configmaps.patch(&copy, &by, &Patch::Apply(wish)).await?;
    }
    for child in configmaps.list(&ListParams::default().labels(&format!("{BOARD}={name}"))).await? {
        let number = child.name_any().rsplit('-').next().and_then(|n| n.parse::<u32>().ok());
        if number.is_none_or(|number| number >= board.spec.copies) {
            configmaps.delete(&child.name_any(), &DeleteParams::default()).await?;
        }
    }
    let status = json!({"copies": board.spec.copies, "observedGeneration": board.metadata.generation});
    boards.patch_status(&name, &PatchParams::default(), &Patch::Merge(json!({"status": status}))).await?;
    Ok(Action::await_change())
}

async fn farewell(configmaps: &Api<ConfigMap>, board: &Board) -> kube::Result<Action> {
    let name = format!("farewell-{}", board.name_any());
    let wish = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"text": board.spec.text},
    });
    configmaps.patch(&name, &PatchParams::apply("boards").force(), &Patch::Apply(wish)).await?;
    Ok(Action::await_change())
}

/// A failed reconcile is retried soon enough for the test.
fn again(_: Arc<Board>, _: &Failure, _: Arc<Client>) -> Action {
    Action::requeue(Duration::from_millis(200))
}

fn run_controller(cluster: &Cluster) {
    let boards: Api<Board> = Api::default_namespaced(cluster.client.clone());
    let children = watcher::Config::default().labels(BOARD);
    let controller = Controller::new(boards, watcher::Config::default()).owns(cluster.configmaps(), children);
    let turns = controller.run(reconcile, again, Arc::new(cluster.client.clone()));
    cluster.spawn(turns.for_each(|_| std::future::ready(())));
}

/// Waits until a board has its copies, all with its text, and its status reports its latest generation.
#[track_caller]
fn settled(cluster: &Cluster, name: &str) {
    let boards: Api<Board> = Api::default_namespaced(cluster.client.clone());
    let configmaps = cluster.configmaps();
    cluster.until("the board has its copies", async || {
        let words = |why: kube::Error| why.to_string();
        let board = boards.get(name).await.map_err(words)?;
        let children =
            configmaps.list(&ListParams::default().labels(&format!("{BOARD}={name}"))).await.map_err(words)?;
        let texts: Vec<String> = children.items.iter().map(|c| c.data.as_ref().unwrap()["text"].clone()).collect();
        let status = board.status.as_ref();
        let told = status.is_some_and(|status| {
            (status.copies, Some(status.observed_generation)) == (board.spec.copies, board.metadata.generation)
        });
        if told && texts == vec![board.spec.text.clone(); board.spec.copies as usize] {
            Ok(())
        } else {
            Err(format!("{board:?}\n{texts:?}"))
        }
    });
}

/// Waits until a board, finalized, and all its copies are gone.
#[track_caller]
fn gone(cluster: &Cluster, name: &str) {
    let boards: Api<Board> = Api::default_namespaced(cluster.client.clone());
    let configmaps = cluster.configmaps();
    cluster.until("the board and its copies are gone", async || {
        let children = configmaps.list(&ListParams::default().labels(&format!("{BOARD}={name}"))).await.unwrap();
        match boards.get_opt(name).await.unwrap() {
            None if children.items.is_empty() => Ok(()),
            board => Err(format!("{board:?} {:?}", children.items)),
        }
    });
    assert!(cluster.run(configmaps.get_opt(&format!("farewell-{name}"))).unwrap().is_some());
}

#[test]
fn a_controller_does_its_work_before_and_after_the_servers_death() {
    let mut cluster = Cluster::start();
    let client = cluster.client.clone();
    let (post, patching) = (PostParams::default(), PatchParams::default());
    let boards: Api<Board> = Api::default_namespaced(client.clone());
    let configmaps = cluster.configmaps();
    cluster.run(board::define(&client));
    run_controller(&cluster);
    let make = async |name: &str, copies: u32| {
        boards.create(&post, &Board::new(name, copies, "hello")).await.unwrap();
    };
    let change = async |name: &str, spec: serde_json::Value| {
        boards.patch(name, &patching, &Patch::Merge(json!({"spec": spec}))).await.unwrap();
    };
    cluster.run(async {
        make("a", 3).await;
        make("b", 2).await;
        make("c", 1).await;
    });
    for name in ["a", "b", "c"] {
        settled(&cluster, name);
    }
    let a = cluster.run(boards.get("a")).unwrap();
    assert_eq!(a.finalizers(), [FINALIZER]);
    let child = cluster.run(configmaps.get("a-0")).unwrap();
    assert_eq!(child.owner_references()[0].uid, a.uid().unwrap());
    cluster.run(async { change("a", json!({"copies": 5, "text": "changed"})).await });
    settled(&cluster, "a");
    cluster.run(configmaps.delete("a-4", &DeleteParams::default())).unwrap();
    settled(&cluster, "a");

    for round in 0..2 {
        // Changes just before the server dies: it is unknown whether the controller has seen them.
        cluster.run(async {
            change("a", json!({"copies": 2 + round, "text": format!("before {round}")})).await;
            make(&format!("late-{round}"), 2).await;
        });
        cluster.restart();
        let late = format!("late-{round}");
        for name in ["a", "b", "c", late.as_str()] {
            settled(&cluster, name);
        }
        // And it sees later changes of boards and copies.
        cluster.run(async {
            change("b", json!({"copies": 4 - round, "text": format!("after {round}")})).await;
            make(&format!("new-{round}"), 1).await;
            configmaps.delete("c-0", &DeleteParams::default()).await.unwrap();
            boards.delete(&late, &DeleteParams::default()).await.unwrap();
        });
        let new = format!("new-{round}");
        for name in ["a", "b", "c", new.as_str()] {
            settled(&cluster, name);
        }
        gone(&cluster, &late);
    }
    cluster.run(boards.delete("a", &DeleteParams::foreground())).unwrap();
    gone(&cluster, "a");
    cluster.run(boards.delete_collection(&DeleteParams::default(), &ListParams::default())).unwrap();
    for name in ["b", "c", "new-0", "new-1"] {
        gone(&cluster, name);
    }
}
