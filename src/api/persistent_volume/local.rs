//! Volumes of the built-in provisioner, each a directory on one node: their names and ownership. Shared by the controller that
//! provisions them, the server that restricts access to them, and the nodes.

use k8s_openapi::api::core::v1::{NodeSelectorTerm, PersistentVolume};

use super::{PROVISIONED_BY, annotation};

/// The provisioner's name in a StorageClass.
pub const PROVISIONER: &str = "podwright.dev/local";
/// The initial StorageClass of every cluster.
pub const CLASS_NAME: &str = "local";
/// On a volume: its node has not removed the data yet.
pub const FINALIZER: &str = "podwright.dev/local-volume";
/// The volume's label with its node.
pub const NODE: &str = "podwright.dev/node";
/// The annotation on a Node that keeps volumes, with their directory.
pub const FOLDER: &str = "podwright.dev/local-volumes";

/// The prefix of volumes' names, like upstream's provisioners'; followed by the claim's uid.
const PREFIX: &str = "pvc-";
/// The longest uid that becomes part of a name. Ours have 36 characters.
const LONGEST_UID: usize = 63;
/// The longest directory of a Node (PATH_MAX, with room for what is below it).
const LONGEST_FOLDER: usize = 3072;

/// The name of the volume for a claim. `None`: the server did not generate the uid.
pub fn name(claim: &str) -> Option<String> {
    let name = format!("{PREFIX}{claim}");
    is_name(&name).then_some(name)
}

/// Whether a name is one of ours: it becomes part of a path, so it may only have letters, digits and dashes.
pub fn is_name(name: &str) -> bool {
    let uid = name.strip_prefix(PREFIX).unwrap_or("");
    (1..=LONGEST_UID).contains(&uid.len()) && uid.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'))
}

/// Whether the provisioner has created a volume, and its node finds it. Imitations are treated like any other volume.
pub fn is_ours(volume: &PersistentVolume) -> bool {
    annotation(&volume.metadata, PROVISIONED_BY) == Some(PROVISIONER)
        && volume.metadata.name.as_deref().is_some_and(is_name)
        && volume.spec.as_ref().is_some_and(|spec| spec.local.is_some())
        && node(volume).is_some()
}

/// The node of a volume: the only one that reaches it, according to its name, and the one in its label.
pub fn node(volume: &PersistentVolume) -> Option<&str> {
    let required = volume.spec.as_ref()?.node_affinity.as_ref()?.required.as_ref()?;
    let [NodeSelectorTerm { match_fields: Some(fields), .. }] = required.node_selector_terms.as_slice() else {
        return None;
    };
    let [field] = fields.as_slice() else { return None };
    let [node] = field.values.as_deref()? else { return None };
    let label = volume.metadata.labels.as_ref()?.get(NODE)?;
    (field.key == "metadata.name" && field.operator == "In" && label == node).then_some(node)
}

/// The directory of a volume's data below its node's directory.
pub fn path(folder: &str, name: &str) -> String {
    format!("{}/{name}/data", folder.trim_end_matches('/'))
}

/// Whether a Node may report such a directory: volumes show it, and only humans read it.
pub fn is_folder(folder: &str) -> bool {
    folder.starts_with('/')
        && folder.len() <= LONGEST_FOLDER
        && !folder.chars().any(char::is_control)
        && folder.split('/').all(|part| part != "..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_component_of_a_path() {
        let long = "a".repeat(LONGEST_UID);
        for uid in ["3a6c1f0e-3b0e-4a6e-9d6e-0123456789ab", "c1", &long] {
            assert!(is_name(&name(uid).unwrap()), "{uid}");
        }
        for uid in ["", "..", "a/b", "/etc", "A", "a.b", "a b", "a\0", "é", &format!("{long}a")] {
            assert_eq!(name(uid), None, "{uid:?}");
        }
        assert!(!is_name("data") && !is_name("pvc-") && !is_name("../pvc-a"));
        assert_eq!(path("/var/lib/podwright/local-volumes/", "pvc-a"), "/var/lib/podwright/local-volumes/pvc-a/data");
    }

    #[test]
    fn a_folder_is_absolute_and_leads_nowhere_else() {
        assert!(is_folder("/var/lib/podwright/local-volumes") && is_folder("/a..b"));
        for folder in ["", "var", "/a/../b", "/a\n", "../a", &format!("/{}", "a".repeat(LONGEST_FOLDER))] {
            assert!(!is_folder(folder), "{folder:?}");
        }
    }
}
