//! Probes, lifecycle hooks, and the handlers of both.

use super::super::{At, Errors, names};
use super::Scope;
use crate::signal;

/// The probes and hooks of a regular container or a sidecar.
pub fn container(scope: &Scope<'_>, container: &At<'_>, errs: &mut Errors) {
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let at = container.get(name);
        if at.is_set() {
            probe(&at, name, errs);
        }
    }
    let lifecycle = container.get("lifecycle");
    for name in ["postStart", "preStop"] {
        let at = lifecycle.get(name);
        if at.is_set() {
            let grace = scope.spec.get("terminationGracePeriodSeconds").int().unwrap_or(30);
            handler(&at, &["exec", "httpGet", "tcpSocket", "sleep"], errs);
            sleep(&at.get("sleep"), grace, errs);
        }
    }
    let signal = lifecycle.get("stopSignal");
    if signal.is_set() && signal::named(signal.str()).is_none() {
        errs.invalid(&signal.path, signal.str(), "must be the name of a signal");
    }
}

fn probe(probe: &At<'_>, name: &str, errs: &mut Errors) {
    handler(probe, &["exec", "httpGet", "tcpSocket", "grpc"], errs);
    for field in ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"] {
        errs.non_negative(&probe.get(field));
    }
    let grace = probe.get("terminationGracePeriodSeconds");
    if let Some(n) = grace.int() {
        if name == "readinessProbe" {
            errs.invalid(&grace.path, n, "must not be set for readinessProbes");
        } else if n <= 0 {
            errs.invalid(&grace.path, n, "must be greater than 0");
        }
    }
    let threshold = probe.get("successThreshold");
    if let Some(n) = threshold.int().filter(|n| *n != 1 && name != "readinessProbe") {
        errs.invalid(&threshold.path, n, "must be 1");
    }
}

/// Exactly one valid handler.
fn handler(at: &At<'_>, allowed: &[&str], errs: &mut Errors) {
    let mut given = 0;
    for name in allowed {
        let handler = at.get(name);
        if !handler.is_set() {
            continue;
        }
        given += 1;
        if given > 1 {
            errs.forbidden(&handler.path, "may not specify more than 1 handler type");
            continue;
        }
        match *name {
            "exec" if handler.get("command").is_empty() => errs.required(handler.path("command"), ""),
            "httpGet" => http_get(&handler, errs),
            "tcpSocket" => port(&handler.get("port"), errs),
            "grpc" => port(&handler.get("port"), errs),
            _ => {}
        }
    }
    if given == 0 {
        errs.required(&at.path, "must specify a handler type");
    }
}

fn http_get(at: &At<'_>, errs: &mut Errors) {
    if at.get("path").is_empty() {
        errs.required(at.path("path"), "");
    }
    port(&at.get("port"), errs);
    errs.one_of(&at.get("scheme"), &["HTTP", "HTTPS"]);
    for header in at.get("httpHeaders").items() {
        let name = header.get("name").str();
        if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
            let why = "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used \
                       for validation is '[-A-Za-z0-9]+')";
            errs.invalid(at.path("httpHeaders"), name, why);
        }
    }
}

/// A number, or the name of a container's port.
pub fn port(at: &At<'_>, errs: &mut Errors) {
    match at.value.as_str() {
        Some(name) => errs.invalid_each(&at.path, name, names::port_name(name)),
        None => {
            let number = at.int().unwrap_or(0);
            for why in names::port_number(number) {
                errs.invalid(&at.path, number, why);
            }
        }
    }
}

fn sleep(at: &At<'_>, grace: i64, errs: &mut Errors) {
    if !at.is_set() {
        return;
    }
    let seconds = at.get("seconds").int().unwrap_or(0);
    if seconds < 0 || seconds > grace {
        let why = format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
        errs.invalid(at.path("seconds"), seconds, why);
    }
}
