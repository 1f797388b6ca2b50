//! What discovery lists: the groups in upstream's order, each with its versions and their servers.

use std::cmp::Reverse;
use std::sync::Arc;

use super::OWN_GROUP;
use super::table::{Registration, Table};
use podwright_api::kinds::api_service::priorities;
use podwright_api::kinds::registry::Kinds;
use podwright_api::kinds::version_rank;

/// A version of a group.
#[derive(Clone, Debug)]
pub struct Listed {
    pub version: String,
    /// The server, if not this one.
    pub remote: Option<Arc<Registration>>,
    /// The priority of the group according to this version, and that of the version.
    priorities: (i64, i64),
}

/// A group with its versions, the preferred one first.
#[derive(Clone, Debug)]
pub struct Group {
    pub name: String,
    pub versions: Vec<Listed>,
}

/// All groups: the core group, then that of APIServices, then by priority. Upstream: `SortedByGroupAndVersion`.
pub fn listing(kinds: &Kinds, table: &Table) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let mut add = |group: &str, listed: Listed| match groups.iter_mut().find(|known| known.name == group) {
        Some(known) if known.versions.iter().any(|known| known.version == listed.version) => {}
        Some(known) => known.versions.push(listed),
        None => groups.push(Group { name: group.to_owned(), versions: vec![listed] }),
    };
    for kind in kinds.all() {
        let (group, version) = (kind.group, kind.version);
        let said = table.get(&format!("{version}.{group}"));
        let usual = priorities(group, version, kind.is_custom());
        let priorities = said.map_or(usual, |said| (said.group_priority, said.version_priority));
        let remote = table.remote(group, version).cloned();
        add(group, Listed { version: version.to_owned(), remote, priorities });
    }
    for registration in table.all() {
        if let Some(remote) = table.remote(&registration.group, &registration.version) {
            let priorities = (remote.group_priority, remote.version_priority);
            let listed = Listed { version: remote.version.clone(), remote: Some(remote.clone()), priorities };
            add(&registration.group, listed);
        }
    }
    for group in &mut groups {
        group.versions.sort_by_key(|listed| Reverse((listed.priorities.1, version_rank(&listed.version))));
    }
    groups.sort_by_cached_key(|group| {
        let first = match group.name.as_str() {
            "" => 0,
            OWN_GROUP => 1,
            _ => 2,
        };
        // Of versions with equal group priority the first by name counts.
        let best = group
            .versions
            .iter()
            .map(|listed| (Reverse(listed.priorities.0), format!("{}.{}", listed.version, group.name)));
        (first, best.min())
    });
    groups
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use podwright_api::Object;

    fn table(rows: &[(&str, &str, i64, i64, bool)]) -> Table {
        let objects = rows.iter().map(|(group, version, of_group, of_version, remote)| {
            let mut object = Object(json!({"metadata": {"name": format!("{version}.{group}"), "uid": "u"}, "spec": {
                "group": group, "version": version, "groupPriorityMinimum": of_group, "versionPriority": of_version,
            }}));
            if *remote {
                object.0["spec"]["service"] = json!({"namespace": "n", "name": "s", "port": 443});
            }
            object
        });
        Table::of(1, objects, &Table::default())
    }

    fn shown(table: &Table) -> Vec<String> {
        let of = |group: Group| {
            let versions: Vec<String> = group
                .versions
                .iter()
                .map(|it| format!("{}{}", it.version, if it.remote.is_some() { "!" } else { "" }))
                .collect();
            format!("{} {}", group.name, versions.join(","))
        };
        listing(&Kinds::default(), table).into_iter().map(of).collect()
    }

    #[test]
    fn groups_stand_in_upstreams_order_with_those_of_others_among_them() {
        let plain = shown(&Table::default());
        assert_eq!(plain[..4], [" v1", "apiregistration.k8s.io v1", "apps v1", "events.k8s.io v1"]);
        assert_eq!(plain.last().unwrap(), "metrics.k8s.io v1beta1");
        assert!(plain.contains(&"autoscaling v2,v1".to_owned()), "{plain:?}");
        let of = |name: &str| plain.iter().position(|group| group.starts_with(name)).unwrap();
        assert!(of("admissionregistration") < of("apiextensions"), "where priorities are the same, names decide");
        let mixed = shown(&table(&[
            ("b.example.com", "v1", 1000, 10, true),
            ("b.example.com", "v2alpha1", 1000, 20, true),
            ("a.example.com", "v1", 1000, 10, true),
            ("high.example.com", "v1", 19000, 10, true),
            ("metrics.k8s.io", "v1beta1", 100, 100, true),
            ("metrics.k8s.io", "v1", 100, 100, true),
            ("apiregistration.k8s.io", "v1", 100, 100, true),
        ]));
        assert_eq!(mixed[..3], [" v1", "apiregistration.k8s.io v1", "high.example.com v1!"]);
        let end = mixed.len() - 4;
        let last = [
            "a.example.com v1!",
            "b.example.com v2alpha1!,v1!",
            "network.podwright.io v1",
            "metrics.k8s.io v1!,v1beta1!",
        ];
        assert_eq!(mixed[end..], last);
    }

    #[test]
    fn a_table_is_plain_until_it_says_something() {
        assert!(table(&[("apps", "v1", 17800, 15, false), ("x.example.com", "v1", 1000, 100, false)]).is_plain());
        assert!(!table(&[("apps", "v1", 17000, 15, false)]).is_plain());
        assert!(!table(&[("apps", "v1", 17800, 15, true)]).is_plain());
    }
}
