//! Kubernetes' format library: named syntaxes, each of which says what is wrong with a text.

use base64::Engine;

use super::Param::{Named, Text};
use super::{Function, Out, Param, global, member, text, texts};
use crate::api::cel::value::Value;
use crate::api::validation::names;

const NAME: &str = "kubernetes.NamedFormat";
const F: Param = Named(NAME);

/// One syntax.
pub struct Format {
    name: &'static str,
    check: fn(&str) -> Vec<String>,
}

impl std::fmt::Debug for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// The syntax of a prefix: a suffix follows.
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
    Format { name: "uri", check: |s| unless(super::net::Url::parse(s).is_some(), "invalid URI") },
    Format { name: "uuid", check: |s| unless(uuid::Uuid::parse_str(s).is_ok(), "does not match the UUID format") },
    Format {
        name: "byte",
        check: |s| unless(base64::engine::general_purpose::STANDARD.decode(s).is_ok(), "invalid base64"),
    },
    Format { name: "date", check: |s| unless(s.parse::<jiff::civil::Date>().is_ok(), "invalid date") },
    Format { name: "datetime", check: |s| unless(super::times::parse(s).is_some(), "invalid datetime") },
];

pub fn rows() -> Vec<Function> {
    let mut rows = vec![
        global("format.named", &[Text], Out::Maybe, |v, _| {
            Ok(Value::Optional(find(text(v, 0)).map(Value::Format).map(Into::into)))
        }),
        member("validate", &[F, Text], Out::Maybe, |v, b| {
            b.charge(super::through(text(v, 1)))?;
            let Value::Format(format) = &v[0] else { return Ok(Value::Optional(None)) };
            let wrong = (format.check)(text(v, 1));
            Ok(if wrong.is_empty() { Value::Optional(None) } else { Value::some(texts(wrong)) })
        }),
    ];
    macro_rules! named {
        ($($name:literal)*) => {$(
            rows.push(global(concat!("format.", $name), &[], Out::Named(NAME), |_, _| {
                Ok(find($name).map_or(Value::Null, Value::Format))
            }));
        )*};
    }
    named!("dns1123Label" "dns1123Subdomain" "dns1035Label" "qualifiedName" "dns1123LabelPrefix" "dns1123SubdomainPrefix"
        "dns1035LabelPrefix" "labelValue" "uri" "uuid" "byte" "date" "datetime");
    rows
}

fn find(name: &str) -> Option<&'static Format> {
    FORMATS.iter().find(|format| format.name == name)
}
