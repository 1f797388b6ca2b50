//! A Pod's own DNS configuration and hosts file.

use super::super::{At, Errors, names};

const MAX_NAMESERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_CHARS: usize = 2048;

pub fn dns_config(spec: &At<'_>, errs: &mut Errors) {
    let config = spec.get("dnsConfig");
    if spec.get("dnsPolicy").str() == "None" {
        if !config.is_set() {
            errs.required(&config.path, "must provide `dnsConfig` when `dnsPolicy` is None");
            return;
        }
        if config.get("nameservers").is_empty() {
            let why = "must provide at least one DNS nameserver when `dnsPolicy` is None";
            errs.required(config.path("nameservers"), why);
            return;
        }
    }
    let servers = config.get("nameservers");
    if servers.len() > MAX_NAMESERVERS {
        let why = format!("must not have more than {MAX_NAMESERVERS} nameservers");
        errs.invalid_value(&servers.path, servers.value, why);
    }
    for server in servers.items() {
        errs.invalid_each(&server.path, server.str(), names::ip(server.str()));
    }
    let searches = config.get("searches");
    if searches.len() > MAX_SEARCHES {
        let why = format!("must not have more than {MAX_SEARCHES} search paths");
        errs.invalid_value(&searches.path, searches.value, why);
    }
    let chars: usize = searches.items().map(|s| s.len() + 1).sum();
    if chars > MAX_SEARCH_CHARS + 1 {
        let why =
            format!("must not have more than {MAX_SEARCH_CHARS} characters (including spaces) in the search list");
        errs.invalid_value(&searches.path, searches.value, why);
    }
    for search in searches.items() {
        // A single dot is the root; a trailing one marks an absolute name. Underscores are used in SRV names.
        let bare = search.str().strip_suffix('.').unwrap_or(search.str()).replace('_', "-");
        if search.str() != "." {
            errs.invalid_each(&search.path, search.str(), names::dns1123_subdomain(bare.trim_matches('-')));
        }
    }
    for option in config.get("options").items() {
        if option.get("name").is_empty() {
            errs.required(&option.path, "must not be empty");
        }
    }
}

pub fn host_aliases(aliases: &At<'_>, errs: &mut Errors) {
    for alias in aliases.items() {
        let ip = alias.get("ip");
        errs.invalid_each(&ip.path, ip.str(), names::ip(ip.str()));
        for name in alias.get("hostnames").items() {
            errs.invalid_each(&name.path, name.str(), names::dns1123_subdomain(name.str()));
        }
    }
}
