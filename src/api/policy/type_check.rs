//! Type checking of admission policies: what their expressions get wrong about the kinds that they are for.
//! <https://kubernetes.io/docs/reference/access-authn-authz/validating-admission-policy/#type-checking>

use std::fmt;
use std::sync::Arc;

use serde_json::Value as Json;

use super::{Known, Policy};
use crate::api::cel::Type;
use crate::api::cel::types::Fields;
use crate::api::schema::{self, Struct};
use crate::api::{Kind, kinds};

/// No more kinds are checked than this; upstream's limit.
const MOST_KINDS: usize = 10;

/// A struct of a kind's schema, as expressions see it.
struct Shape(Arc<Struct>);

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.go_type)
    }
}

impl Fields for Shape {
    fn name(&self) -> String {
        self.0.go_type.clone()
    }
    fn field(&self, name: &str) -> Option<Type> {
        self.0.field(name).map(|field| type_of(&field.of))
    }
}

fn type_of(of: &schema::Type) -> Type {
    match of {
        schema::Type::String | schema::Type::Quantity | schema::Type::Bytes => Type::String,
        schema::Type::Integer { .. } => Type::Int,
        schema::Type::Number => Type::Double,
        schema::Type::Boolean => Type::Bool,
        schema::Type::Map(of) => Type::Map(Arc::new(Type::String), Arc::new(type_of(of))),
        schema::Type::List(list) => Type::list(type_of(&list.item)),
        schema::Type::Struct(fields) => object(fields.clone()),
        // A text that many read as a time; one or the other; anything.
        schema::Type::Time { .. } | schema::Type::IntOrString | schema::Type::Any | schema::Type::Unknown => Type::Dyn,
    }
}

fn object(fields: Arc<Struct>) -> Type {
    Type::Object(Arc::new(Shape(fields)))
}

/// The kinds that a policy's rules name without wildcards.
fn kinds_of(spec: &Json) -> Vec<&'static Kind> {
    let mut found: Vec<&'static Kind> = Vec::new();
    for rule in spec["matchConstraints"]["resourceRules"].as_array().into_iter().flatten() {
        let has =
            |field: &str, wanted: &str| rule[field].as_array().is_some_and(|list| list.iter().any(|it| it == wanted));
        let named = |row: &&Kind| {
            has("apiGroups", row.group) && has("apiVersions", row.version) && has("resources", row.plural)
        };
        found.extend(kinds::KINDS.iter().filter(named));
    }
    found.truncate(MOST_KINDS);
    found
}

/// For each expression that is wrong about a kind: its field, and what is wrong.
pub fn type_check(spec: &Json) -> Vec<(String, String)> {
    let param = &spec["paramKind"];
    let text = |field: &str| param[field].as_str().unwrap_or("");
    let params = (!param.is_null()).then(|| match kinds::of(text("apiVersion"), text("kind")) {
        Some(kind) => object(kind.schema()),
        None => Type::Dyn,
    });
    let mut warnings: Vec<(String, String)> = Vec::new();
    for kind in kinds_of(spec) {
        let known = Known { object: object(kind.schema()), params: params.clone() };
        for expression in Policy::compile(spec, &known).expressions() {
            let Err(why) = &expression.program else { continue };
            let told = format!("{}, Kind={}: {why}", kind.api_version(), kind.kind);
            match warnings.iter_mut().find(|(field, _)| *field == expression.field) {
                Some((_, all)) => *all = format!("{all}\n{told}"),
                None => warnings.push((expression.field.clone(), told)),
            }
        }
    }
    warnings
}
