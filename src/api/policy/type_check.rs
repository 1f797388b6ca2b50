//! Type-checks admission policies: errors in their expressions for the kinds that they match.
//! <https://kubernetes.io/docs/reference/access-authn-authz/validating-admission-policy/#type-checking>

use std::fmt;
use std::sync::Arc;

use serde_json::Value as Json;

use super::{Known, Policy};
use crate::cel::Type;
use crate::cel::types::Fields;
use crate::schema::{self, Struct};
use crate::structural::{Schema, compile};
use crate::{Kind, kinds};

/// The most kinds that are checked; upstream's limit.
const MOST_KINDS: usize = 10;

/// A struct in a kind's schema, as a type of expressions.
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
        let known = self.0.field(name).map(|field| type_of(&field.of));
        known.or(self.0.open.then_some(Type::Dyn))
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
        // A string that many treat as a time; either type; any type.
        schema::Type::Time { .. } | schema::Type::IntOrString | schema::Type::Any | schema::Type::Unknown => Type::Dyn,
    }
}

fn object(fields: Arc<Struct>) -> Type {
    Type::Object(Arc::new(Shape(fields)))
}

/// A version of a custom resource.
pub struct Custom {
    pub group: String,
    pub version: String,
    pub plural: String,
    pub kind: String,
    /// `openAPIV3Schema`
    pub schema: Json,
}

/// A kind that a policy may match.
struct Subject {
    api_version: String,
    kind: String,
    object: Type,
}

impl Subject {
    fn of(kind: &Kind) -> Subject {
        Subject { api_version: kind.api_version(), kind: kind.kind.to_owned(), object: object(kind.schema()) }
    }
    fn of_custom(custom: &Custom) -> Subject {
        let tree = compile::object(&custom.kind, &Schema::parse(&custom.schema), schema::metadata());
        let api_version = format!("{}/{}", custom.group, custom.version);
        Subject { api_version, kind: custom.kind.clone(), object: object(tree) }
    }
}

/// The kinds that a policy's rules name without wildcards.
fn subjects(spec: &Json, custom: &[Custom]) -> Vec<Subject> {
    let mut found = Vec::new();
    for rule in spec["matchConstraints"]["resourceRules"].as_array().into_iter().flatten() {
        let has =
            |field: &str, wanted: &str| rule[field].as_array().is_some_and(|list| list.iter().any(|it| it == wanted));
        let named = |group: &str, version: &str, plural: &str| {
            has("apiGroups", group) && has("apiVersions", version) && has("resources", plural)
        };
        let rows = kinds::KINDS.iter().filter(|row| named(row.group, row.version, row.plural));
        found.extend(rows.map(Subject::of));
        let defined = custom.iter().filter(|it| named(&it.group, &it.version, &it.plural));
        found.extend(defined.map(Subject::of_custom));
        found.truncate(MOST_KINDS);
    }
    found
}

/// For each expression with a type error: its field, and the error. `custom` are the kinds in addition to the table's.
pub fn type_check(spec: &Json, custom: &[Custom]) -> Vec<(String, String)> {
    let param = &spec["paramKind"];
    let (api_version, kind) = (param["apiVersion"].as_str().unwrap_or(""), param["kind"].as_str().unwrap_or(""));
    let params = (!param.is_null()).then(|| {
        let is_it = |it: &&Custom| it.kind == kind && api_version == format!("{}/{}", it.group, it.version);
        let subject = kinds::of(api_version, kind).map(Subject::of);
        subject.or_else(|| custom.iter().find(is_it).map(Subject::of_custom)).map_or(Type::Dyn, |it| it.object)
    });
    let mut warnings: Vec<(String, String)> = Vec::new();
    for subject in subjects(spec, custom) {
        let known = Known { object: subject.object, params: params.clone() };
        for expression in Policy::compile(spec, &known).expressions() {
            let Err(why) = &expression.program else { continue };
            let told = format!("{}, Kind={}: {why}", subject.api_version, subject.kind);
            match warnings.iter_mut().find(|(field, _)| *field == expression.field) {
                Some((_, all)) => *all = format!("{all}\n{told}"),
                None => warnings.push((expression.field.clone(), told)),
            }
        }
    }
    warnings
}
