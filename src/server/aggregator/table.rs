//! The APIServices as routing needs them: who serves a group version.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use serde_json::Value;
use tokio::sync::Semaphore;

use podwright_api::Object;
use podwright_api::kinds::api_service::{AVAILABLE, priorities};

/// How many long responses of one extension server to the superuser, who has no memory bound, are read at once.
const TURNS: usize = 4;

/// All APIServices, at one revision.
#[derive(Default)]
pub struct Table {
    pub revision: u64,
    /// The revision at which its content last changed: status writes do not count. Tables of one generation are equal.
    pub generation: u64,
    by_name: BTreeMap<String, Arc<Registration>>,
}

/// One APIService.
#[derive(Clone, Debug)]
pub struct Registration {
    pub name: String,
    pub group: String,
    pub version: String,
    pub group_priority: i64,
    pub version_priority: i64,
    pub available: bool,
    /// Where it is served, if not here.
    pub remote: Option<Arc<Remote>>,
}

/// An extension API server: its Service, and how its certificate is checked.
#[derive(Debug)]
pub struct Remote {
    pub namespace: String,
    pub service: String,
    pub port: u16,
    /// The CA bundle, in base64 as in the object; `None`: this machine's trusted authorities.
    pub bundle: Option<String>,
    pub insecure: bool,
    /// The object's uid: a recreated object starts from scratch.
    uid: String,
    /// The TLS settings, after the first connection.
    pub tls: OnceLock<Arc<rustls::ClientConfig>>,
    /// Held while reading a long response for the superuser.
    pub turns: Semaphore,
}

impl Remote {
    fn of(object: &Object) -> Option<Remote> {
        let spec = object.at("spec")?;
        let service = spec.get("service").filter(|service| service.is_object())?;
        let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
        Some(Remote {
            namespace: text(&service["namespace"]),
            service: text(&service["name"]),
            port: service["port"].as_u64().and_then(|port| u16::try_from(port).ok()).unwrap_or(443),
            bundle: spec["caBundle"].as_str().filter(|bundle| !bundle.is_empty()).map(str::to_owned),
            insecure: spec["insecureSkipTLSVerify"] == true,
            uid: object.uid().to_owned(),
            tls: OnceLock::new(),
            turns: Semaphore::new(TURNS),
        })
    }

    fn is(&self, other: &Remote) -> bool {
        let all =
            |one: &Remote| (one.namespace.clone(), one.service.clone(), one.port, one.bundle.clone(), one.insecure);
        all(self) == all(other) && self.uid == other.uid
    }

    /// The name in its certificate.
    pub fn host(&self) -> String {
        format!("{}.{}.svc", self.service, self.namespace)
    }
    /// The same with the port.
    pub fn authority(&self) -> String {
        format!("{}:{}", self.host(), self.port)
    }
}

impl Registration {
    /// Whether both are equal. An unchanged destination is the same [`Remote`].
    fn is(&self, other: &Registration) -> bool {
        let said = |one: &Registration| (one.group_priority, one.version_priority, one.available);
        let named = |one: &Registration| (one.name.clone(), one.group.clone(), one.version.clone());
        let same_place = match (&self.remote, &other.remote) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            _ => false,
        };
        said(self) == said(other) && named(self) == named(other) && same_place
    }
}

impl Table {
    /// Builds the table from these objects. Unchanged destinations keep their connections' settings.
    pub fn of(revision: u64, objects: impl Iterator<Item = Object>, before: &Table) -> Table {
        let registration = |object: Object| {
            let name = object.name().to_owned();
            let text = |path: &str| object.at(path).and_then(Value::as_str).unwrap_or("").to_owned();
            let number = |path: &str| object.at(path).and_then(Value::as_i64).unwrap_or(0);
            let remote = Remote::of(&object).map(|new| {
                let known = before.get(&name).and_then(|known| known.remote.clone());
                known.filter(|known| known.is(&new)).unwrap_or_else(|| Arc::new(new))
            });
            let conditions = object.at("status.conditions").and_then(Value::as_array).into_iter().flatten();
            let mut of_availability = conditions.filter(|condition| condition["type"] == AVAILABLE);
            let available = of_availability.any(|condition| condition["status"] == "True");
            let registration = Registration {
                group: text("spec.group"),
                version: text("spec.version"),
                group_priority: number("spec.groupPriorityMinimum"),
                version_priority: number("spec.versionPriority"),
                available,
                remote,
                name: name.clone(),
            };
            (name, Arc::new(registration))
        };
        let by_name: BTreeMap<String, Arc<Registration>> = objects.map(registration).collect();
        let same = by_name.len() == before.by_name.len()
            && by_name.iter().all(|(name, it)| before.get(name).is_some_and(|known| known.is(it)));
        let generation = if same { before.generation } else { revision };
        Table { revision, generation, by_name }
    }

    pub fn get(&self, name: &str) -> Option<&Arc<Registration>> {
        self.by_name.get(name)
    }
    pub fn all(&self) -> impl Iterator<Item = &Arc<Registration>> {
        self.by_name.values()
    }

    /// The other server of a group version, if any. APIServices themselves and the core group are always served here.
    pub fn remote(&self, group: &str, version: &str) -> Option<&Arc<Registration>> {
        let found = self.get(&format!("{version}.{group}"))?;
        (found.remote.is_some() && !group.is_empty() && group != super::OWN_GROUP).then_some(found)
    }

    /// Whether all of it is served locally.
    pub fn is_plain(&self) -> bool {
        self.all().all(|it| {
            let own = (it.group_priority, it.version_priority);
            let usual = |of_definition| priorities(&it.group, &it.version, of_definition) == own;
            it.remote.is_none() && (usual(false) || usual(true))
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(status: &str, message: &str, priority: i64, service: &str) -> Object {
        Object(json!({"metadata": {"name": "v1.example.com", "uid": "u"}, "spec": {
            "group": "example.com", "version": "v1", "groupPriorityMinimum": priority, "versionPriority": 15,
            "service": {"namespace": "n", "name": service, "port": 443},
        }, "status": {"conditions": [{"type": AVAILABLE, "status": status, "message": message}]}}))
    }

    #[test]
    fn a_table_is_another_where_it_routes_otherwise() {
        let one = Table::of(1, [object("True", "a", 100, "s")].into_iter(), &Table::default());
        assert_eq!(one.generation, 1);
        let same = Table::of(2, [object("True", "b", 100, "s")].into_iter(), &one);
        assert_eq!((same.revision, same.generation), (2, 1), "a message routes nothing");
        for other in [object("False", "b", 100, "s"), object("True", "b", 101, "s"), object("True", "b", 100, "other")]
        {
            assert_eq!(Table::of(3, [other].into_iter(), &same).generation, 3);
        }
        assert_eq!(Table::of(3, std::iter::empty(), &same).generation, 3);
    }
}
