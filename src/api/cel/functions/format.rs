//! Kubernetes' format library: named formats, each of which reports what is wrong with a string.

use super::Param::{Named, Text};
use super::{Function, Out, Param, global, member, text, texts};
use crate::cel::format::find;
use crate::cel::value::Value;

const NAME: &str = "kubernetes.NamedFormat";
const F: Param = Named(NAME);

pub fn rows() -> Vec<Function> {
    let mut rows = vec![
        global("format.named", &[Text], Out::Maybe, |v, _| {
            Ok(Value::Optional(find(text(v, 0)).map(Value::Format).map(Into::into)))
        }),
        member("validate", &[F, Text], Out::Maybe, |v, _| {
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
