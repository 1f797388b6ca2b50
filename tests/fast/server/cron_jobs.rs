//! CronJobs: what the server notes about them.

use std::sync::Arc;

use jiff::SignedDuration;
use podwright::api::{Env, Object};
use podwright::server::{Config, Server};
use podwright::store::Memory;
use serde_json::json;

use super::Api;

#[tokio::test]
async fn a_cron_job_bears_the_time_of_its_schedule() {
    let env = Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), 1);
    let api = Api(Server::open(Arc::new(Memory::new()), env.clone(), Config::default()).await.unwrap());
    let cron = json!({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "c"}, "spec": {
        "schedule": "0 3 * * *", "jobTemplate": {"spec": {"template": {"spec": {
            "restartPolicy": "Never", "containers": [{"name": "c", "image": "x:1"}]}}}}}});
    let since = |cron: &Object| cron.annotation("podwright/scheduled-since").map(str::to_owned);
    let made = api.create("cronjobs", cron).await.unwrap();
    assert_eq!(since(&made), None);
    let paused = api.patch("cronjobs", "c", json!({"spec": {"suspend": true}})).await.unwrap();
    assert_eq!(since(&paused), None, "that is no other schedule");
    for (change, moves) in [
        (json!({"spec": {"schedule": "0 4 * * *"}}), true),
        (json!({"spec": {"suspend": false}}), false),
        (json!({"spec": {"timeZone": "Europe/Berlin"}}), true),
        (json!({"metadata": {"annotations": null}}), false),
    ] {
        let before = since(&api.get("cronjobs", "c").await.unwrap());
        env.set_clock(SignedDuration::from_mins(1));
        let now = api.patch("cronjobs", "c", change.clone()).await.unwrap();
        assert_eq!(since(&now) != before, moves, "{change}");
    }
}
