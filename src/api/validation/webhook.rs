//! The destination of a webhook: the `clientConfig` of admission and conversion webhooks.
//!
//! Upstream: `ValidateWebhookURL` and `ValidateWebhookService` of `apiserver/pkg/util/webhook`.

use super::{At, Errors, names};

/// Exactly one of `url` and `service`, which must be valid.
pub fn client_config(config: &At<'_>, errs: &mut Errors) {
    let (url, service) = (config.get("url"), config.get("service"));
    match (url.is_set(), service.is_set()) {
        (true, true) | (false, false) => errs.required(&config.path, "exactly one of url or service is required"),
        (true, false) => errs.invalid_each(&url.path, url.str(), names::https_url(url.str())),
        (false, true) => {
            for field in ["name", "namespace"] {
                if service.get(field).is_empty() {
                    errs.required(service.path(field), &format!("service {field} is required"));
                }
            }
            service_path(&service.get("path"), errs);
            let port = service.get("port");
            if let Some(n) = port.int() {
                names::port_number(n).into_iter().for_each(|_| {
                    errs.invalid(&port.path, n, "port is not valid: must be between 1 and 65535, inclusive");
                });
            }
        }
    }
}

/// Segments must be DNS-1123 subdomains; a trailing slash is allowed.
fn service_path(path: &At<'_>, errs: &mut Errors) {
    let whole = path.str();
    if matches!(whole, "" | "/") {
        return;
    }
    let Some(rest) = whole.strip_prefix('/') else {
        errs.invalid(&path.path, whole, "must start with a '/'");
        return;
    };
    for (i, segment) in rest.strip_suffix('/').unwrap_or(rest).split('/').enumerate() {
        match segment.is_empty() {
            true => errs.invalid(&path.path, whole, format!("segment[{i}] may not be empty")),
            false => {
                for why in names::dns1123_subdomain(segment) {
                    errs.invalid(&path.path, whole, format!("segment[{i}]: {why}"));
                }
            }
        }
    }
}
