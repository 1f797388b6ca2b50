//! The description of a Pod.

use jiff::Timestamp;
use serde_json::Value;

use super::{
    containers::{self, Layout},
    related::Related,
    text::{annotations, controller, head, labels, lines, list, or, text, time},
    volumes,
};
use crate::page::Page;
use podwright_api::{Object, columns::age};

pub fn describe(page: &mut Page, pod: &Object, _related: &Related, now: Timestamp) {
    let (spec, status) = (&pod.0["spec"], &pod.0["status"]);
    head(page, pod);
    page.line(0, format!("Priority:\t{}", or(&spec["priority"], "0")));
    page.optional(0, "Priority Class Name", &text(&spec["priorityClassName"]));
    page.optional(0, "Runtime Class Name", &text(&spec["runtimeClassName"]));
    page.optional(0, "Service Account", &text(&spec["serviceAccountName"]));
    match text(&spec["nodeName"]) {
        node if node.is_empty() => page.line(0, "Node:\t<none>"),
        node => page.line(0, format!("Node:\t{node}/{}", text(&status["hostIP"]))),
    }
    if status["startTime"].is_string() {
        page.line(0, format!("Start Time:\t{}", time(&status["startTime"])));
    }
    labels(page, 0, "Labels", &pod.0["metadata"]["labels"]);
    annotations(page, 0, &pod.0["metadata"]["annotations"]);
    phase(page, pod, now);
    page.line(0, format!("IP:\t{}", text(&status["podIP"])));
    addresses(page, status);
    controller(page, pod);
    page.optional(0, "NominatedNodeName", &text(&status["nominatedNodeName"]));
    if !list(&spec["initContainers"]).is_empty() {
        let statuses = &status["initContainerStatuses"];
        containers::section(page, "Init Containers", &spec["initContainers"], statuses, Layout::Pod);
    }
    containers::section(page, "Containers", &spec["containers"], &status["containerStatuses"], Layout::Pod);
    conditions(page, status);
    volumes::section(page, &spec["volumes"], Layout::Pod);
    page.optional(0, "QoS Class", &text(&status["qosClass"]));
    labels(page, 0, "Node-Selectors", &spec["nodeSelector"]);
    tolerations(page, 0, &spec["tolerations"]);
}

fn phase(page: &mut Page, pod: &Object, now: Timestamp) {
    let status = &pod.0["status"];
    if pod.is_terminating() && !matches!(status["phase"].as_str(), Some("Failed" | "Succeeded")) {
        let since = age(&pod.0["metadata"]["deletionTimestamp"], now);
        page.line(0, format!("Status:\tTerminating (lasts {since})"));
        let grace = or(&pod.0["metadata"]["deletionGracePeriodSeconds"], "0");
        page.line(0, format!("Termination Grace Period:\t{grace}s"));
    } else {
        page.line(0, format!("Status:\t{}", text(&status["phase"])));
    }
    page.optional(0, "Reason", &text(&status["reason"]));
    page.optional(0, "Message", &text(&status["message"]));
    let seccomp = &pod.0["spec"]["securityContext"]["seccompProfile"];
    page.optional(0, "SeccompProfile", &text(&seccomp["type"]));
}

fn addresses(page: &mut Page, status: &Value) {
    let all = list(&status["podIPs"]);
    if all.is_empty() {
        return page.line(0, "IPs:\t<none>");
    }
    page.line(0, "IPs:");
    all.iter().for_each(|ip| page.line(1, format!("IP:\t{}", text(&ip["ip"]))));
}

fn conditions(page: &mut Page, status: &Value) {
    if list(&status["conditions"]).is_empty() {
        return;
    }
    page.line(0, "Conditions:");
    page.line(1, "Type\tStatus");
    for condition in list(&status["conditions"]) {
        page.line(1, format!("{} \t{} ", text(&condition["type"]), text(&condition["status"])));
    }
}

/// `node.kubernetes.io/not-ready:NoExecute op=Exists for 300s`
pub fn tolerations(page: &mut Page, level: usize, tolerations: &Value) {
    let one = |t: &Value| {
        let mut line = text(&t["key"]);
        let (value, effect) = (text(&t["value"]), text(&t["effect"]));
        if !value.is_empty() {
            line += &format!("={value}");
        }
        if !effect.is_empty() {
            line += &format!(":{effect}");
        }
        if t["operator"] == "Exists" && value.is_empty() {
            line += if t["key"].is_string() || !effect.is_empty() { " op=Exists" } else { "op=Exists" };
        }
        if let Some(seconds) = t["tolerationSeconds"].as_i64() {
            line += &format!(" for {seconds}s");
        }
        line
    };
    lines(page, level, "Tolerations", list(tolerations).iter().map(one).collect());
}
