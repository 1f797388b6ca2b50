//! The containers of a Pod or of a template.

use std::collections::HashMap;

use serde_json::Value;

use super::text::{boolean, list, or, text, time};
use crate::page::Page;

/// The position of a section: in a Pod, or in a template, which kubectl indents slightly.
#[derive(Clone, Copy, PartialEq)]
pub enum Layout {
    Pod,
    Template,
}

impl Layout {
    pub fn title(self) -> &'static str {
        if self == Layout::Template { "  " } else { "" }
    }
    pub fn name(self) -> &'static str {
        if self == Layout::Template { " " } else { "" }
    }
}

/// One section of containers, with their statuses if any.
pub fn section(page: &mut Page, title: &str, containers: &Value, statuses: &Value, place: Layout) {
    let none = if list(containers).is_empty() { " <none>" } else { "" };
    page.line(0, format!("{}{title}:{none}", place.title()));
    let statuses: HashMap<&Value, &Value> = list(statuses).iter().rev().map(|s| (&s["name"], s)).collect();
    for container in list(containers) {
        let status = statuses.get(&container["name"]).copied();
        page.line(1, format!("{}{}:", place.name(), text(&container["name"])));
        basics(page, container, status);
        for (title, field) in [("Command", "command"), ("Args", "args")] {
            words(page, title, &container[field]);
        }
        if let Some(status) = status {
            state(page, "State", &status["state"]);
            if status["lastState"]["terminated"].is_object() {
                state(page, "Last State", &status["lastState"]);
            }
            page.line(2, format!("Ready:\t{}", boolean(status["ready"] == true)));
            page.line(2, format!("Restart Count:\t{}", or(&status["restartCount"], "0")));
        }
        for (title, field) in [("Limits", "limits"), ("Requests", "requests")] {
            resources(page, title, &container["resources"][field]);
        }
        for (title, field) in
            [("Liveness", "livenessProbe"), ("Readiness", "readinessProbe"), ("Startup", "startupProbe")]
        {
            if container[field].is_object() {
                page.line(2, format!("{title}:\t{}", probe(&container[field])));
            }
        }
        environment(page, container);
        mounts(page, container);
    }
}

fn basics(page: &mut Page, container: &Value, status: Option<&Value>) {
    if let Some(status) = status {
        page.line(2, format!("Container ID:\t{}", text(&status["containerID"])));
    }
    page.line(2, format!("Image:\t{}", text(&container["image"])));
    if let Some(status) = status {
        page.line(2, format!("Image ID:\t{}", text(&status["imageID"])));
    }
    for (title, field) in [("Port", "containerPort"), ("Host Port", "hostPort")] {
        let one = |port: &Value| format!("{}/{}", or(&port[field], "0"), or(&port["protocol"], "TCP"));
        let ports: Vec<String> = list(&container["ports"]).iter().map(one).collect();
        let plural = if ports.len() > 1 { "s" } else { "" };
        let shown = if ports.is_empty() { "<none>".to_owned() } else { ports.join(", ") };
        page.line(2, format!("{title}{plural}:\t{shown}"));
    }
    let seccomp = &container["securityContext"]["seccompProfile"];
    if seccomp.is_object() {
        page.line(2, format!("SeccompProfile:\t{}", text(&seccomp["type"])));
        page.optional(2, "  LocalhostProfile", &text(&seccomp["localhostProfile"]));
    }
}

fn words(page: &mut Page, title: &str, words: &Value) {
    if list(words).is_empty() {
        return;
    }
    page.line(2, format!("{title}:"));
    list(words).iter().for_each(|word| page.line(3, text(word)));
}

fn state(page: &mut Page, title: &str, state: &Value) {
    let (running, waiting, terminated) = (&state["running"], &state["waiting"], &state["terminated"]);
    if running.is_object() {
        page.line(2, format!("{title}:\tRunning"));
        page.line(3, format!("Started:\t{}", time(&running["startedAt"])));
    } else if terminated.is_object() {
        page.line(2, format!("{title}:\tTerminated"));
        page.optional(3, "Reason", &text(&terminated["reason"]));
        page.optional(3, "Message", &text(&terminated["message"]));
        page.line(3, format!("Exit Code:\t{}", or(&terminated["exitCode"], "0")));
        if terminated["signal"].as_i64().unwrap_or(0) > 0 {
            page.line(3, format!("Signal:\t{}", terminated["signal"]));
        }
        page.line(3, format!("Started:\t{}", time(&terminated["startedAt"])));
        page.line(3, format!("Finished:\t{}", time(&terminated["finishedAt"])));
    } else {
        page.line(2, format!("{title}:\tWaiting"));
        page.optional(3, "Reason", &text(&waiting["reason"]));
    }
}

fn resources(page: &mut Page, title: &str, map: &Value) {
    let Some(map) = map.as_object().filter(|m| !m.is_empty()) else { return };
    let mut all: Vec<_> = map.iter().collect();
    all.sort_by_key(|(name, _)| name.as_str());
    page.line(2, format!("{title}:"));
    all.into_iter().for_each(|(name, quantity)| page.line(3, format!("{name}:\t{}", text(quantity))));
}

/// `http-get http://:80/ delay=0s timeout=1s period=10s #success=1 #failure=3`
fn probe(probe: &Value) -> String {
    let number = |field: &str, default: i64| probe[field].as_i64().unwrap_or(default);
    let (http, tcp, grpc) = (&probe["httpGet"], &probe["tcpSocket"], &probe["grpc"]);
    let action = if http.is_object() {
        let (scheme, host, path) =
            (or(&http["scheme"], "HTTP").to_lowercase(), text(&http["host"]), text(&http["path"]));
        format!("http-get {scheme}://{host}:{}{path}", text(&http["port"]))
    } else if tcp.is_object() {
        format!("tcp-socket {}:{}", text(&tcp["host"]), text(&tcp["port"]))
    } else if grpc.is_object() {
        format!("grpc <pod>:{} {}", text(&grpc["port"]), text(&grpc["service"]))
    } else if probe["exec"].is_object() {
        let words: Vec<String> = list(&probe["exec"]["command"]).iter().map(text).collect();
        format!("exec [{}]", words.join(" "))
    } else {
        "unknown".to_owned()
    };
    format!(
        "{action} delay={}s timeout={}s period={}s #success={} #failure={}",
        number("initialDelaySeconds", 0),
        number("timeoutSeconds", 1),
        number("periodSeconds", 10),
        number("successThreshold", 1),
        number("failureThreshold", 3)
    )
}

fn environment(page: &mut Page, container: &Value) {
    let sources = list(&container["envFrom"]);
    if !sources.is_empty() {
        page.line(2, "Environment Variables from:");
    }
    for source in sources {
        let (from, kind) = match source["configMapRef"].is_object() {
            true => (&source["configMapRef"], "ConfigMap"),
            false => (&source["secretRef"], "Secret"),
        };
        let prefix = match text(&source["prefix"]) {
            prefix if prefix.is_empty() => String::new(),
            prefix => format!(" with prefix '{prefix}'"),
        };
        page.line(3, format!("{}\t{kind}{prefix}\tOptional: {}", text(&from["name"]), from["optional"] == true));
    }
    let variables = list(&container["env"]);
    page.line(2, format!("Environment:{}", if variables.is_empty() { "\t<none>" } else { "" }));
    for variable in variables {
        let value = value(variable).replace('\n', &format!("\n{}\t", "  ".repeat(3)));
        page.line(3, format!("{}:\t{value}", text(&variable["name"])));
    }
}

fn value(variable: &Value) -> String {
    let from = &variable["valueFrom"];
    let optional = |source: &Value| source["optional"] == true;
    let (field, resource) = (&from["fieldRef"], &from["resourceFieldRef"]);
    let (secret, config) = (&from["secretKeyRef"], &from["configMapKeyRef"]);
    if field.is_object() {
        return format!(" ({}:{})", or(&field["apiVersion"], "v1"), text(&field["fieldPath"]));
    }
    if resource.is_object() {
        return format!(" ({})", text(&resource["resource"]));
    }
    if secret.is_object() {
        let (key, name) = (text(&secret["key"]), text(&secret["name"]));
        return format!("<set to the key '{key}' in secret '{name}'>\tOptional: {}", optional(secret));
    }
    if config.is_object() {
        let (key, name) = (text(&config["key"]), text(&config["name"]));
        return format!("<set to the key '{key}' of config map '{name}'>\tOptional: {}", optional(config));
    }
    text(&variable["value"])
}

fn mounts(page: &mut Page, container: &Value) {
    let mut mounts: Vec<&Value> = list(&container["volumeMounts"]).iter().collect();
    mounts.sort_by_key(|mount| text(&mount["mountPath"]));
    page.line(2, format!("Mounts:{}", if mounts.is_empty() { "\t<none>" } else { "" }));
    for mount in mounts {
        let mode = if mount["readOnly"] == true { "ro" } else { "rw" };
        let path = match text(&mount["subPath"]) {
            path if path.is_empty() => String::new(),
            path => format!(",path=\"{path}\""),
        };
        page.line(3, format!("{} from {} ({mode}{path})", text(&mount["mountPath"]), text(&mount["name"])));
    }
}
