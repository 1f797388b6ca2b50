//! The descriptions of Jobs and CronJobs.

use jiff::Timestamp;
use serde_json::Value;

use super::{
    related::Related,
    text::{annotations, controller, head, head_with_labels, labels, list, or, text, time},
    workload::pod_template,
};
use crate::page::Page;
use podwright_api::{Object, columns};

/// How much of a list of indexes is shown, up to the end of an index.
const INDEXES: usize = 50;

pub fn job(page: &mut Page, job: &Object, _related: &Related, _now: Timestamp) {
    let (metadata, spec, status) = (&job.0["metadata"], &job.0["spec"], &job.0["status"]);
    head(page, job);
    page.line(0, format!("Selector:\t{}", columns::selector(job.at("spec.selector"))));
    labels(page, 0, "Labels", &metadata["labels"]);
    annotations(page, 0, &metadata["annotations"]);
    controller(page, job);
    page.optional(0, "Parallelism", &text(&spec["parallelism"]));
    page.line(0, format!("Completions:\t{}", or(&spec["completions"], "<unset>")));
    page.optional(0, "Completion Mode", &text(&spec["completionMode"]));
    page.optional(0, "Suspend", &text(&spec["suspend"]));
    page.optional(0, "Backoff Limit", &text(&spec["backoffLimit"]));
    page.optional(0, "TTL Seconds After Finished", &text(&spec["ttlSecondsAfterFinished"]));
    for (title, field) in [("Start Time", "startTime"), ("Completed At", "completionTime")] {
        if status[field].is_string() {
            page.line(0, format!("{title}:\t{}", time(&status[field])));
        }
    }
    if let Some(end) = status["completionTime"].as_str().and_then(|end| end.parse().ok()) {
        page.line(0, format!("Duration:\t{}", columns::age(&status["startTime"], end)));
    }
    if let Some(seconds) = spec["activeDeadlineSeconds"].as_i64() {
        page.line(0, format!("Active Deadline Seconds:\t{seconds}s"));
    }
    let [active, succeeded, failed] = ["active", "succeeded", "failed"].map(|field| or(&status[field], "0"));
    let ready = status["ready"].as_i64().map(|ready| format!(" ({ready} Ready)")).unwrap_or_default();
    page.line(0, format!("Pods Statuses:\t{active} Active{ready} / {succeeded} Succeeded / {failed} Failed"));
    if spec["completionMode"] == "Indexed" {
        page.line(0, format!("Completed Indexes:\t{}", shortened(&or(&status["completedIndexes"], "<none>"))));
    }
    pod_template(page, &spec["template"]);
}

/// A long list of indexes, truncated after one of them.
fn shortened(indexes: &str) -> String {
    let rest = indexes.get(INDEXES..).and_then(|rest| rest.find(','));
    rest.map_or_else(|| indexes.to_owned(), |comma| format!("{}...", &indexes[..=INDEXES + comma]))
}

pub fn cron_job(page: &mut Page, cron_job: &Object, _related: &Related, _now: Timestamp) {
    let (spec, status) = (&cron_job.0["spec"], &cron_job.0["status"]);
    let or_unset = |value: &Value| or(value, "<unset>");
    head_with_labels(page, cron_job);
    page.line(0, format!("Schedule:\t{}", text(&spec["schedule"])));
    page.line(0, format!("Concurrency Policy:\t{}", text(&spec["concurrencyPolicy"])));
    page.line(0, format!("Suspend:\t{}", columns::yes(cron_job.at("spec.suspend"))));
    page.line(0, format!("Successful Job History Limit:\t{}", or_unset(&spec["successfulJobsHistoryLimit"])));
    page.line(0, format!("Failed Job History Limit:\t{}", or_unset(&spec["failedJobsHistoryLimit"])));
    let deadline = spec["startingDeadlineSeconds"].as_i64().map(|seconds| format!("{seconds}s"));
    page.line(0, format!("Starting Deadline Seconds:\t{}", deadline.as_deref().unwrap_or("<unset>")));
    let job = &spec["jobTemplate"]["spec"];
    let selector = job["selector"].is_object().then(|| columns::selector(Some(&job["selector"])));
    page.line(0, format!("Selector:\t{}", selector.as_deref().unwrap_or("<unset>")));
    page.line(0, format!("Parallelism:\t{}", or_unset(&job["parallelism"])));
    page.line(0, format!("Completions:\t{}", or_unset(&job["completions"])));
    if let Some(seconds) = job["activeDeadlineSeconds"].as_i64() {
        page.line(0, format!("Active Deadline Seconds:\t{seconds}s"));
    }
    pod_template(page, &job["template"]);
    page.line(0, format!("Last Schedule Time:\t{}", time(&status["lastScheduleTime"])));
    let active: Vec<String> = list(&status["active"]).iter().map(|job| text(&job["name"])).collect();
    let active = if active.is_empty() { "<none>".to_owned() } else { active.join(", ") };
    page.line(0, format!("Active Jobs:\t{active}"));
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_long_list_of_indexes_is_cut_after_an_index() {
        let long = (0..30).map(|index| (index * 2).to_string()).collect::<Vec<_>>().join(",");
        let cut = super::shortened(&long);
        assert_eq!(cut, format!("{}...", &long[..52]));
        assert!(cut.ends_with("36,..."), "{cut}");
        assert_eq!(super::shortened("0-2,5"), "0-2,5");
    }
}
