//! Network configuration lists: what is read from the folder of them, and what each plugin is given. Pure but for reading files.
//! <https://www.cni.dev/docs/spec/#section-1-network-configuration-format>

use std::{fs, io, path::Path};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::CniError;

/// The versions of the specification whose results this understands, the newest last. Those before 0.3.0 have other results.
pub const VERSIONS: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];
/// The longest configuration file, bytes.
const LONGEST: u64 = 1 << 20;

/// A network configuration list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NetworkList {
    /// The version that plugins are called with: the newest one that the list and this program know.
    pub version: String,
    pub name: String,
    pub disable_check: bool,
    pub disable_gc: bool,
    pub plugins: Vec<Plugin>,
}

/// One plugin of a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plugin {
    /// The name of its program.
    pub kind: String,
    /// The capabilities that it has, and declares to be used.
    pub capabilities: Vec<String>,
    /// Its configuration as written, without capabilities.
    pub fields: Map<String, Value>,
}

/// What a runtime may ask of plugins with these capabilities. <https://www.cni.dev/docs/conventions/>
pub type CapabilityArguments = Map<String, Value>;

impl NetworkList {
    /// The first list of a folder, by the names of its files: `*.conflist`, and `*.conf` and `*.json` with a single plugin.
    ///
    /// # Errors
    ///
    /// There is none, or the first one is not valid.
    pub fn first(folder: &Path) -> Result<NetworkList, CniError> {
        let unreadable = |error: io::Error| CniError::Unreadable(folder.display().to_string(), error);
        let mut files = Vec::new();
        for entry in fs::read_dir(folder).map_err(unreadable)? {
            let path = entry.map_err(unreadable)?.path();
            let is_one = path.extension().is_some_and(|of| ["conflist", "conf", "json"].iter().any(|one| of == *one));
            files.extend(is_one.then_some(path));
        }
        files.sort();
        let path = files.first().ok_or_else(|| CniError::NoNetwork(folder.display().to_string()))?;
        let shown = path.display().to_string();
        let size = fs::metadata(path).map_err(|error| CniError::Unreadable(shown.clone(), error))?.len();
        if size > LONGEST {
            return Err(CniError::Invalid(shown, format!("longer than {LONGEST} bytes")));
        }
        let text = fs::read(path).map_err(|error| CniError::Unreadable(shown.clone(), error))?;
        let value =
            serde_json::from_slice(&text).map_err(|error| CniError::Invalid(shown.clone(), error.to_string()))?;
        NetworkList::parse(value).map_err(|why| CniError::Invalid(shown, why))
    }

    /// From a list, or from the configuration of a single plugin.
    fn parse(value: Value) -> Result<NetworkList, String> {
        let Value::Object(mut all) = value else { return Err("not a JSON object".to_owned()) };
        let name =
            text(&all, "name").filter(|name| is_name(name)).ok_or("name: must be a valid network name")?.to_owned();
        let version = version(&all)?;
        let is_set = |field: &str| match all.get(field) {
            None => Ok(false),
            Some(Value::Bool(set)) => Ok(*set),
            // Older libraries took the texts, too.
            Some(Value::String(set)) if set == "true" || set == "false" => Ok(set == "true"),
            Some(_) => Err(format!("{field}: must be a boolean")),
        };
        let (disable_check, disable_gc) = (is_set("disableCheck")?, is_set("disableGC")?);
        let plugins = match all.remove("plugins") {
            Some(Value::Array(plugins)) if !plugins.is_empty() => plugins,
            Some(_) => return Err("plugins: must be a list with at least one plugin".to_owned()),
            None => vec![Value::Object(all)],
        };
        let plugins = plugins
            .into_iter()
            .enumerate()
            .map(|(i, one)| Plugin::parse(one).map_err(|why| format!("plugins[{i}]{why}")));
        Ok(NetworkList { version, name, disable_check, disable_gc, plugins: plugins.collect::<Result<_, _>>()? })
    }

    /// Whether plugins know `CHECK`, and `prevResult` in `DEL`.
    pub fn has_check(&self) -> bool {
        !["0.3.0", "0.3.1"].contains(&self.version.as_str())
    }

    /// Whether plugins know `GC` and `STATUS`.
    pub fn has_status(&self) -> bool {
        self.version == "1.1.0"
    }

    /// Whether one of its plugins has this capability.
    pub fn is_capable(&self, of: &str) -> bool {
        self.plugins.iter().any(|plugin| plugin.capabilities.iter().any(|own| own == of))
    }

    /// What a plugin is given: its own fields, the list's name and version, what it is asked for by its capabilities, and the result
    /// so far.
    pub fn given(&self, plugin: &Plugin, asked: &CapabilityArguments, previous: Option<&Value>) -> Map<String, Value> {
        let mut given = plugin.fields.clone();
        given.insert("cniVersion".to_owned(), json!(self.version));
        given.insert("name".to_owned(), json!(self.name));
        let asked = asked.iter().filter(|(of, _)| plugin.capabilities.contains(of));
        let asked: Map<String, Value> = asked.map(|(of, value)| (of.clone(), value.clone())).collect();
        if !asked.is_empty() {
            given.insert("runtimeConfig".to_owned(), Value::Object(asked));
        }
        if let Some(previous) = previous {
            given.insert("prevResult".to_owned(), previous.clone());
        }
        given
    }
}

impl Plugin {
    fn parse(value: Value) -> Result<Plugin, String> {
        let Value::Object(mut fields) = value else { return Err(": must be a JSON object".to_owned()) };
        let kind = text(&fields, "type").ok_or(".type: must be the name of a plugin")?.to_owned();
        // It becomes a path.
        if kind.is_empty() || kind.contains('/') || kind.starts_with('.') || kind.contains('\0') {
            return Err(format!(".type: {kind:?}: must be the name of a program, without a path"));
        }
        let capabilities = match fields.remove("capabilities") {
            None => Vec::new(),
            Some(Value::Object(all)) => {
                all.into_iter().filter(|(_, has)| *has == Value::Bool(true)).map(|(of, _)| of).collect()
            }
            Some(_) => return Err(".capabilities: must be an object of booleans".to_owned()),
        };
        Ok(Plugin { kind, capabilities, fields })
    }
}

fn text<'a>(all: &'a Map<String, Value>, field: &str) -> Option<&'a str> {
    all.get(field).and_then(Value::as_str)
}

/// The newest version of `cniVersions` (or `cniVersion`) that is known.
fn version(all: &Map<String, Value>) -> Result<String, String> {
    let one = text(all, "cniVersion");
    let several = all.get("cniVersions").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    let offered: Vec<&str> = several.chain(one).collect();
    let known = VERSIONS.iter().rev().find(|version| offered.contains(version));
    known.map(|version| (*version).to_owned()).ok_or_else(|| match offered.is_empty() {
        true => "cniVersion: required value".to_owned(),
        false => format!("cniVersion: {}: this node knows {}", offered.join(", "), VERSIONS.join(", ")),
    })
}

/// Whether a text names a network, a container or an interface's owner, as the specification has it.
pub fn is_name(name: &str) -> bool {
    let rest = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Result<NetworkList, String> {
        NetworkList::parse(serde_json::from_str(text).expect("JSON"))
    }

    #[test]
    fn a_list_has_the_newest_version_that_both_know() {
        let of = |versions: &str| {
            list(&format!(r#"{{{versions}, "name": "n", "plugins": [{{"type": "ptp"}}]}}"#)).map(|l| l.version)
        };
        assert_eq!(of(r#""cniVersion": "0.4.0""#), Ok("0.4.0".to_owned()));
        assert_eq!(of(r#""cniVersion": "1.0.0", "cniVersions": ["0.4.0", "1.1.0", "2.0.0"]"#), Ok("1.1.0".to_owned()));
        assert_eq!(of(r#""x": 1"#), Err("cniVersion: required value".to_owned()));
        let unknown = "cniVersion: 0.2.0: this node knows 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0".to_owned();
        assert_eq!(of(r#""cniVersion": "0.2.0""#), Err(unknown));
    }

    #[test]
    fn a_plugin_is_given_what_it_is_capable_of_and_nothing_else() {
        let list = list(
            r#"{"cniVersion": "1.0.0", "name": "n", "disableCheck": true, "plugins": [
                {"type": "bridge", "bridge": "b0"},
                {"type": "portmap", "capabilities": {"portMappings": true, "bandwidth": false}}]}"#,
        )
        .expect("valid");
        assert!(
            list.disable_check && !list.disable_gc && list.is_capable("portMappings") && !list.is_capable("bandwidth")
        );
        let asked =
            json!({"portMappings": [{"hostPort": 80}], "bandwidth": {}}).as_object().expect("an object").clone();
        let given = |plugin: usize| Value::Object(list.given(&list.plugins[plugin], &asked, Some(&json!({"ips": []}))));
        let previous = json!({"ips": []});
        assert_eq!(
            given(0),
            json!({"type": "bridge", "bridge": "b0", "cniVersion": "1.0.0", "name": "n", "prevResult": previous})
        );
        assert_eq!(
            given(1),
            json!({"type": "portmap", "cniVersion": "1.0.0", "name": "n", "prevResult": previous,
                   "runtimeConfig": {"portMappings": [{"hostPort": 80}]}})
        );
    }

    #[test]
    fn what_becomes_a_path_is_checked() {
        let kind =
            |kind: &str| list(&json!({"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": kind}]}).to_string());
        for wrong in ["", "../sh", "/bin/sh", "a/b", "."] {
            assert!(kind(wrong).is_err(), "{wrong:?}");
        }
        assert!(kind("host-device").is_ok());
        let named = |name: &str| list(&json!({"cniVersion": "1.0.0", "name": name, "type": "ptp"}).to_string());
        for wrong in ["", "../x", "a/b", "-a", "a b"] {
            assert_eq!(named(wrong), Err("name: must be a valid network name".to_owned()), "{wrong:?}");
        }
        assert_eq!(named("cbr0").expect("a single plugin").plugins.len(), 1);
    }

    #[test]
    fn the_first_file_by_name_counts() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(matches!(NetworkList::first(folder.path()), Err(CniError::NoNetwork(_))));
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("written");
        write("20-b.conf", r#"{"cniVersion": "1.0.0", "name": "b", "type": "ptp"}"#);
        write("10-a.conflist", r#"{"cniVersion": "1.0.0", "name": "a", "plugins": [{"type": "ptp"}]}"#);
        write("05-readme.txt", "no network");
        assert_eq!(NetworkList::first(folder.path()).expect("valid").name, "a");
        write("01-broken.conf", "{");
        assert!(
            matches!(NetworkList::first(folder.path()), Err(CniError::Invalid(file, _)) if file.ends_with("01-broken.conf"))
        );
    }
}
