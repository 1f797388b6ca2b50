//! Named formats, each of which reports what is wrong with a string.

use base64::Engine;

use crate::validation::names;

/// One format.
pub struct Format {
    pub name: &'static str,
    pub check: fn(&str) -> Vec<String>,
}

impl std::fmt::Debug for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// The format of a prefix, which is followed by a suffix.
fn prefix(text: &str, check: fn(&str) -> Vec<String>) -> Vec<String> {
    check(&format!("{}x", text.trim_end_matches('-')))
}

fn unless(fine: bool, why: &str) -> Vec<String> {
    if fine { Vec::new() } else { vec![why.to_owned()] }
}

pub static FORMATS: &[Format] = &[
    Format { name: "dns1123Label", check: names::dns1123_label },
    Format { name: "dns1123Subdomain", check: names::dns1123_subdomain },
    Format { name: "dns1035Label", check: names::dns1035_label },
    Format { name: "qualifiedName", check: names::qualified_name },
    Format { name: "dns1123LabelPrefix", check: |s| prefix(s, names::dns1123_label) },
    Format { name: "dns1123SubdomainPrefix", check: |s| prefix(s, names::dns1123_subdomain) },
    Format { name: "dns1035LabelPrefix", check: |s| prefix(s, names::dns1035_label) },
    Format { name: "labelValue", check: names::label_value },
    Format { name: "uri", check: |s| unless(super::url::Url::parse(s).is_some(), "invalid URI") },
    Format { name: "uuid", check: |s| unless(uuid::Uuid::parse_str(s).is_ok(), "does not match the UUID format") },
    Format {
        name: "byte",
        check: |s| unless(base64::engine::general_purpose::STANDARD.decode(s).is_ok(), "invalid base64"),
    },
    Format { name: "date", check: |s| unless(s.parse::<jiff::civil::Date>().is_ok(), "invalid date") },
    Format { name: "datetime", check: |s| unless(super::times::parse(s).is_some(), "invalid datetime") },
];

/// The format of this name.
pub fn find(name: &str) -> Option<&'static Format> {
    FORMATS.iter().find(|format| format.name == name)
}
