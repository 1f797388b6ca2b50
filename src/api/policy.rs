//! The expressions of admission policies and of webhooks' match conditions: their variables, and their compilation.
//! <https://kubernetes.io/docs/reference/access-authn-authz/validating-admission-policy/>

use std::fmt;
use std::sync::Arc;

use serde_json::Value as Json;

mod type_check;

pub use type_check::{Custom, type_check};

use super::cel::types::Fields;
use super::cel::{CompileError, Env, Program, Type, compile};

/// An expression, compiled or not; with its text and field.
#[derive(Debug)]
pub struct Expression {
    /// `spec.validations[0].expression`
    pub field: String,
    pub text: String,
    pub program: Result<Program, CompileError>,
}

/// A compiled policy.
#[derive(Debug)]
pub struct Policy {
    pub conditions: Vec<(String, Expression)>,
    pub variables: Vec<(Arc<str>, Expression)>,
    pub validations: Vec<Validation>,
    /// With their keys.
    pub audits: Vec<(String, Expression)>,
}

#[derive(Debug)]
pub struct Validation {
    pub expression: Expression,
    pub message_expression: Option<Expression>,
    pub message: String,
    pub reason: String,
}

/// The variables that a policy's expression may use: those before it.
struct Declared(Vec<(Arc<str>, Type)>);

impl fmt::Debug for Declared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("kubernetes.variables")
    }
}

impl Fields for Declared {
    fn name(&self) -> String {
        "kubernetes.variables".to_owned()
    }
    fn field(&self, name: &str) -> Option<Type> {
        self.0.iter().find(|(known, _)| **known == *name).map(|(_, of)| of.clone())
    }
}

/// The known types of variables.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// The type of `object` and `oldObject`.
    pub object: Type,
    /// The type of `params`; `None` without parameters.
    pub params: Option<Type>,
}

impl Known {
    fn variables(&self) -> Vec<(&'static str, Type)> {
        let mut all = vec![
            ("object", self.object.clone()),
            ("oldObject", self.object.clone()),
            ("request", Type::Dyn),
            ("namespaceObject", Type::Dyn),
            ("authorizer", Type::Dyn),
        ];
        all.extend(self.params.clone().map(|params| ("params", params)));
        all
    }
}

fn expression(field: String, text: &Json, env: &Env) -> Expression {
    let text = text.as_str().unwrap_or("").to_owned();
    let program = compile(&text, env);
    Expression { field, text, program }
}

/// Like `expression`; a value of a type other than these is an error too.
fn expression_of(field: String, text: &Json, env: &Env, wanted: &[Type]) -> Expression {
    let mut made = expression(field, text, env);
    if let Ok(program) = &made.program
        && !wanted.iter().any(|wanted| wanted.fits(&program.result))
    {
        let names: Vec<String> = wanted.iter().map(Type::to_string).collect();
        let why = match names.as_slice() {
            [one] => format!("must evaluate to {one}"),
            all => format!("must evaluate to one of {}", all.join(", ")),
        };
        made.program = Err(CompileError(why));
    }
    made
}

/// The `matchConditions` of a webhook or a policy below `field`.
pub fn conditions(list: &Json, field: &str, known: &Known) -> Vec<(String, Expression)> {
    let env = Env::new(known.variables());
    let each = list.as_array().into_iter().flatten().enumerate().map(|(i, condition)| {
        let name = condition["name"].as_str().unwrap_or("").to_owned();
        let field = format!("{field}.matchConditions[{i}].expression");
        (name, expression_of(field, &condition["expression"], &env, &[Type::Bool]))
    });
    each.collect()
}

impl Policy {
    /// Compiles the `spec` of a policy, with the known types.
    pub fn compile(spec: &Json, known: &Known) -> Policy {
        let list = |field: &str| spec[field].as_array().into_iter().flatten().enumerate();
        let mut declared = Vec::new();
        let env = |declared: &[(Arc<str>, Type)]| {
            let variables = ("variables", Type::Object(Arc::new(Declared(declared.to_vec()))));
            Env::new(known.variables().into_iter().chain([variables]))
        };
        let mut variables = Vec::new();
        for (i, variable) in list("variables") {
            let name: Arc<str> = variable["name"].as_str().unwrap_or("").into();
            let made = expression(format!("spec.variables[{i}].expression"), &variable["expression"], &env(&declared));
            let of = made.program.as_ref().map_or(Type::Dyn, |program| program.result.clone());
            declared.push((name.clone(), of));
            variables.push((name, made));
        }
        let env = env(&declared);
        let validations = list("validations").map(|(i, it)| {
            let field = |name: &str| format!("spec.validations[{i}].{name}");
            let text = |name: &str| it[name].as_str().unwrap_or("").trim().to_owned();
            let message = it["messageExpression"].as_str().filter(|text| !text.is_empty());
            Validation {
                expression: expression_of(field("expression"), &it["expression"], &env, &[Type::Bool]),
                message_expression: message.map(|_| {
                    expression_of(field("messageExpression"), &it["messageExpression"], &env, &[Type::String])
                }),
                message: text("message"),
                reason: text("reason"),
            }
        });
        let audits = list("auditAnnotations").map(|(i, it)| {
            let field = format!("spec.auditAnnotations[{i}].valueExpression");
            let made = expression_of(field, &it["valueExpression"], &env, &[Type::String, Type::Null]);
            (it["key"].as_str().unwrap_or("").to_owned(), made)
        });
        let (validations, audits) = (validations.collect(), audits.collect());
        Policy { conditions: conditions(&spec["matchConditions"], "spec", known), variables, validations, audits }
    }

    /// All its expressions.
    pub fn expressions(&self) -> impl Iterator<Item = &Expression> {
        let conditions = self.conditions.iter().map(|(_, it)| it);
        let variables = self.variables.iter().map(|(_, it)| it);
        let validations = self.validations.iter().flat_map(|it| [Some(&it.expression), it.message_expression.as_ref()]);
        let audits = self.audits.iter().map(|(_, it)| it);
        conditions.chain(variables).chain(validations.flatten()).chain(audits)
    }
}
