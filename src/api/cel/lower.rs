//! Lowers the parser's tree to ours: names and functions are resolved and types checked once, so that evaluation only walks the
//! tree.

use std::sync::Arc;

use cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue};
use cel::parser::PrattParser;

use super::functions::{self, Function};
use super::operators::Operator;
use super::types;
use super::value::Value;
use super::{CompileError, Env, Program, Type};

/// Far above realistic expressions; bounds the depth of recursion.
const MAX_NODES: usize = 16 * 1024;
const MAX_SOURCE: usize = 32 * 1024;
const MAX_DEPTH: usize = 160;
/// A longer source is compiled on a separate stack: the parser builds a deep tree from a long chain, and dropping it recurses.
const SHORT: usize = 256;
const STACK: usize = 64 << 20;
/// The parser's maximum depth; cel-go's is 250, with fewer levels per parenthesis.
const MAX_PARSE_DEPTH: u16 = 96;

/// A compiled expression.
#[derive(Debug)]
pub enum Node {
    Literal(Value),
    Variable(Arc<str>),
    Select(Box<Node>, Arc<str>),
    /// `has(a.b)`
    Has(Box<Node>, Arc<str>),
    /// `a.?b`
    OptSelect(Box<Node>, Arc<str>),
    Index(Box<Node>, Box<Node>),
    /// `a[?b]`
    OptIndex(Box<Node>, Box<Node>),
    And(Vec<Node>),
    Or(Vec<Node>),
    Not(Box<Node>),
    Negate(Box<Node>),
    Condition(Box<[Node; 3]>),
    Operate(Operator, Box<[Node; 2]>),
    /// Items, each with whether it is optional.
    List(Vec<(Node, bool)>),
    Map(Vec<(Node, Node, bool)>),
    /// The overloads of this function; the arguments, the receiver first.
    Call(&'static [Function], bool, Vec<Node>),
    /// A method that is resolved by the value itself.
    Method(Arc<str>, Vec<Node>),
    Fold(Box<Fold>),
    /// `optMap`, `optFlatMap`: the optional, its variable, the result for its value, whether that is optional itself.
    OptMap(Box<(Node, Arc<str>, Node)>, bool),
}

/// What a macro does with each item of a list or map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    All,
    Exists,
    ExistsOne,
    /// Builds a list of the results.
    Collect,
    /// Builds a map with the same keys.
    Values,
    /// Builds a map of the resulting entries.
    Entries,
}

/// A macro over a list or a map.
#[derive(Debug)]
pub struct Fold {
    pub step: Step,
    pub range: Node,
    /// One variable, or two: index or key, and value.
    pub variables: Vec<Arc<str>>,
    pub filter: Option<Node>,
    pub body: Node,
}

pub fn compile(source: &str, env: &Env) -> Result<Program, CompileError> {
    if source.len() > MAX_SOURCE {
        return Err(CompileError(format!("ERROR: <input>:1:1: expression is longer than {MAX_SOURCE} bytes")));
    }
    if source.len() <= SHORT {
        return compile_here(source, env);
    }
    let no_thread = |_| CompileError("ERROR: <input>:1:1: the expression cannot be compiled now".into());
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, || compile_here(source, env));
        // The invariant: the compiler does not panic; if it does, the expression counts as invalid.
        thread
            .map_err(no_thread)?
            .join()
            .unwrap_or_else(|_| Err(CompileError("ERROR: <input>:1:1: Syntax error".into())))
    })
}

fn compile_here(source: &str, env: &Env) -> Result<Program, CompileError> {
    let parser = PrattParser::new()
        .enable_optional_syntax(true)
        .max_expression_node_count(MAX_NODES)
        .max_recursion_depth(MAX_PARSE_DEPTH);
    let expr = parser.parse(source).map_err(|errors| {
        let each = errors.errors.iter().map(|e| CompileError::at(source, e.pos.0, e.pos.1, &e.msg).0);
        CompileError(each.collect::<Vec<_>>().join("\n"))
    })?;
    let mut lowering = Lowering { source, env, scope: Vec::new(), names: Vec::new(), depth: 0 };
    let (root, result) = lowering.lower(&expr)?;
    Ok(Program { root, result, names: lowering.names })
}

struct Lowering<'a> {
    source: &'a str,
    env: &'a Env,
    /// The variables of the enclosing macros.
    scope: Vec<(Arc<str>, Type)>,
    /// The used variables of the environment.
    names: Vec<Arc<str>>,
    depth: usize,
}

type Lowered = Result<(Node, Type), CompileError>;

impl Lowering<'_> {
    /// An error about a name. (The parser keeps no positions: it is reported at the name's first occurrence.)
    fn error(&self, name: &str, message: String) -> CompileError {
        let at = self.source.find(name).unwrap_or(0);
        let before = &self.source[..at];
        let line = before.matches('\n').count() as isize + 1;
        let column = before.rsplit('\n').next().unwrap_or("").chars().count() as isize + 1;
        CompileError::at(self.source, line, column, &message)
    }

    fn lower(&mut self, expr: &IdedExpr) -> Lowered {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(CompileError(format!("ERROR: <input>:1:1: expression is nested deeper than {MAX_DEPTH}")));
        }
        let lowered = self.lower_inner(expr);
        self.depth -= 1;
        lowered
    }

    fn lower_inner(&mut self, expr: &IdedExpr) -> Lowered {
        match &expr.expr {
            Expr::Literal(literal) => Ok(literal_of(literal)),
            Expr::Ident(name) => self.identifier(name),
            Expr::Select(select) => {
                let (operand, of) = self.lower(&select.operand)?;
                let field: Arc<str> = select.field.as_str().into();
                let of = self.field(&of, &field)?;
                Ok(match select.test {
                    true => (Node::Has(operand.into(), field), Type::Bool),
                    false => (Node::Select(operand.into(), field), of),
                })
            }
            Expr::List(list) => {
                let mut items = Vec::with_capacity(list.elements.len());
                let mut of: Option<Type> = None;
                for (i, item) in list.elements.iter().enumerate() {
                    let optional = list.optional_indices.contains(&i);
                    let (node, own) = self.lower(item)?;
                    let own = if optional { own.unwrapped() } else { own };
                    of = Some(of.map_or(own.clone(), |of| of.join(own)));
                    items.push((node, optional));
                }
                Ok((Node::List(items), Type::list(of.unwrap_or_default())))
            }
            Expr::Map(map) => {
                let mut entries = Vec::with_capacity(map.entries.len());
                let (mut keys, mut values): (Option<Type>, Option<Type>) = (None, None);
                for entry in &map.entries {
                    let EntryExpr::MapEntry(entry) = &entry.expr else { continue };
                    let ((key, of_key), (value, of_value)) = (self.lower(&entry.key)?, self.lower(&entry.value)?);
                    let of_value = if entry.optional { of_value.unwrapped() } else { of_value };
                    keys = Some(keys.map_or(of_key.clone(), |of| of.join(of_key)));
                    values = Some(values.map_or(of_value.clone(), |of| of.join(of_value)));
                    entries.push((key, value, entry.optional));
                }
                let of = Type::Map(keys.unwrap_or_default().into(), values.unwrap_or_default().into());
                Ok((Node::Map(entries), of))
            }
            Expr::Call(call) => self.call(call),
            Expr::Comprehension(comprehension) => self.comprehension(comprehension),
            Expr::Struct(literal) => {
                let name = &literal.type_name;
                Err(self.error(name, format!("undeclared reference to '{name}' (in container '')")))
            }
            Expr::Unspecified => Err(CompileError("ERROR: <input>:1:1: Syntax error: mismatched input".into())),
        }
    }

    fn identifier(&mut self, name: &str) -> Lowered {
        let bare = name.strip_prefix('.').unwrap_or(name);
        if let Some((name, of)) = self.scope.iter().rev().find(|(known, _)| **known == *bare) {
            return Ok((Node::Variable(name.clone()), of.clone()));
        }
        if let Some(of) = self.env.variable(bare) {
            if !self.names.iter().any(|known| **known == *bare) {
                self.names.push(bare.into());
            }
            return Ok((Node::Variable(bare.into()), of.clone()));
        }
        if TYPES.contains(&bare) {
            return Ok((Node::Literal(Value::Type(bare.into())), Type::Type));
        }
        Err(self.error(bare, format!("undeclared reference to '{bare}' (in container '')")))
    }

    /// The type of a value's field.
    fn field(&self, of: &Type, name: &str) -> Result<Type, CompileError> {
        match of {
            Type::Object(fields) => fields.field(name).ok_or_else(|| {
                let at = format!(".{name}");
                self.error(if self.source.contains(&at) { &at } else { name }, format!("undefined field '{name}'"))
            }),
            Type::Map(_, value) => Ok((**value).clone()),
            Type::Optional(inner) => self.field(inner, name).map(Type::optional),
            Type::Dyn | Type::Named(_) => Ok(Type::Dyn),
            other => {
                let at = format!(".{name}");
                Err(self.error(&at, format!("type '{other}' does not support field selection")))
            }
        }
    }

    fn call(&mut self, call: &CallExpr) -> Lowered {
        let name = call.func_name.as_str();
        if let Some((_, operator)) = Operator::ALL.iter().find(|(known, _)| *known == name) {
            return self.operator(name, *operator, &call.args);
        }
        match (name, &call.target, call.args.as_slice()) {
            ("_&&_" | "_||_", None, args) => {
                let nodes = args.iter().map(|arg| self.boolean(name, arg)).collect::<Result<Vec<_>, _>>()?;
                Ok((if name == "_&&_" { Node::And(nodes) } else { Node::Or(nodes) }, Type::Bool))
            }
            ("!_", None, [arg]) => Ok((Node::Not(self.boolean(name, arg)?.into()), Type::Bool)),
            ("-_", None, [arg]) => {
                let (node, of) = self.lower(arg)?;
                match of {
                    Type::Int | Type::Double | Type::Duration | Type::Dyn => Ok((Node::Negate(node.into()), of)),
                    of => Err(self.no_overload("-", "-_", &[of], false)),
                }
            }
            ("_?_:_", None, [test, yes, no]) => {
                let test = self.boolean(name, test)?;
                let ((yes, a), (no, b)) = (self.lower(yes)?, self.lower(no)?);
                if !a.fits(&b) {
                    return Err(self.no_overload("?", name, &[Type::Bool, a, b], false));
                }
                Ok((Node::Condition(Box::new([test, yes, no])), a.join(b)))
            }
            ("_[_]" | "_[?_]", None, [operand, index]) => {
                let ((operand, of), (index, of_index)) = (self.lower(operand)?, self.lower(index)?);
                let optional = name == "_[?_]" || matches!(of, Type::Optional(_));
                let item = self.item(name, &of.unwrapped(), &of_index)?;
                Ok(match optional {
                    true => (Node::OptIndex(operand.into(), index.into()), Type::optional(item)),
                    false => (Node::Index(operand.into(), index.into()), item),
                })
            }
            ("_?._", None, [operand, field]) => {
                let Expr::Literal(LiteralValue::String(field)) = &field.expr else {
                    return Err(CompileError("ERROR: <input>:1:1: unsupported optional field selection".into()));
                };
                let (operand, of) = self.lower(operand)?;
                let of = self.field(&of.unwrapped(), field.inner())?;
                Ok((Node::OptSelect(operand.into(), field.inner().into()), Type::optional(of)))
            }
            ("optMap" | "optFlatMap", Some(target), [variable, body]) => {
                let (target, of) = self.lower(target)?;
                let variable = self.name_of(variable)?;
                self.scope.push((variable.clone(), of.unwrapped()));
                let lowered = self.lower(body);
                self.scope.pop();
                let (body, of) = lowered?;
                let flat = name == "optFlatMap";
                let of = if flat { of } else { Type::optional(of) };
                Ok((Node::OptMap(Box::new((target, variable, body)), flat), of))
            }
            (_, Some(target), args) if two_variables(name, args.len()).is_some() => {
                let (step, filtered) = two_variables(name, args.len()).unwrap_or((Step::Collect, false));
                let variables = vec![self.name_of(&args[0])?, self.name_of(&args[1])?];
                let (filter, body) = if filtered { (Some(&args[2]), &args[3]) } else { (None, &args[2]) };
                self.fold(step, target, variables, filter, body)
            }
            _ => self.function(call),
        }
    }

    fn name_of(&self, expr: &IdedExpr) -> Result<Arc<str>, CompileError> {
        match &expr.expr {
            Expr::Ident(name) => Ok(name.as_str().into()),
            _ => Err(CompileError::at(self.source, 1, 1, "argument must be a simple name")),
        }
    }

    fn boolean(&mut self, operator: &str, expr: &IdedExpr) -> Result<Node, CompileError> {
        let (node, of) = self.lower(expr)?;
        match of {
            Type::Bool | Type::Dyn => Ok(node),
            of => Err(self.no_overload(symbol(operator), operator, &[of], false)),
        }
    }

    fn item(&self, operator: &str, of: &Type, index: &Type) -> Result<Type, CompileError> {
        match (of, index) {
            (Type::List(item), Type::Int | Type::Uint | Type::Double | Type::Dyn) => Ok((**item).clone()),
            (Type::Map(key, value), index) if key.fits(index) => Ok((**value).clone()),
            (Type::Dyn | Type::Named(_), _) => Ok(Type::Dyn),
            _ => Err(self.no_overload("[", operator, &[of.clone(), index.clone()], false)),
        }
    }

    fn operator(&mut self, name: &str, operator: Operator, args: &[IdedExpr]) -> Lowered {
        let [left, right] = args else { return Err(CompileError::at(self.source, 1, 1, "two operands expected")) };
        let ((left, a), (right, b)) = (self.lower(left)?, self.lower(right)?);
        let Some(of) = types::operated(operator, &a, &b) else {
            return Err(self.no_overload(symbol(name), name, &[a, b], false));
        };
        Ok((Node::Operate(operator, Box::new([left, right])), of))
    }

    fn comprehension(&mut self, it: &ComprehensionExpr) -> Lowered {
        let is_result = |expr: &IdedExpr| matches!(&expr.expr, Expr::Ident(name) if *name == it.accu_var);
        // The forms to which the parser expands the standard macros.
        let appended = |expr: &IdedExpr| match &expr.expr {
            Expr::Call(CallExpr { func_name, args, .. }) if func_name == "_+_" => match args.as_slice() {
                [result, IdedExpr { expr: Expr::List(list), .. }] if is_result(result) => {
                    list.elements.first().cloned()
                }
                _ => None,
            },
            _ => None,
        };
        let found = match &it.loop_step.expr {
            Expr::Call(CallExpr { func_name, args, .. }) => match (func_name.as_str(), args.as_slice()) {
                ("_&&_", [result, body]) if is_result(result) => Some((Step::All, None, body.clone())),
                ("_||_", [result, body]) if is_result(result) => Some((Step::Exists, None, body.clone())),
                ("_?_:_", [test, step, _]) => Some(match appended(step) {
                    Some(body) => (Step::Collect, Some(test), body),
                    None => (Step::ExistsOne, None, test.clone()),
                }),
                _ => appended(&it.loop_step).map(|body| (Step::Collect, None, body)),
            },
            _ => None,
        };
        let Some((step, filter, body)) = found else {
            return Err(CompileError::at(self.source, 1, 1, "unsupported macro"));
        };
        self.fold(step, &it.iter_range, vec![it.iter_var.as_str().into()], filter, &body)
    }

    fn fold(
        &mut self,
        step: Step,
        range: &IdedExpr,
        variables: Vec<Arc<str>>,
        filter: Option<&IdedExpr>,
        body: &IdedExpr,
    ) -> Lowered {
        let (range, of) = self.lower(range)?;
        let (first, second) = match &of {
            Type::List(item) if variables.len() == 1 => ((**item).clone(), Type::Dyn),
            Type::List(item) => (Type::Int, (**item).clone()),
            Type::Map(key, value) => ((**key).clone(), (**value).clone()),
            Type::Object(_) => (Type::String, Type::Dyn),
            Type::Dyn | Type::Named(_) => (Type::Dyn, Type::Dyn),
            other => {
                let why = format!(
                    "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
                );
                return Err(CompileError::at(self.source, 1, 1, &why));
            }
        };
        let before = self.scope.len();
        self.scope.extend(variables.iter().cloned().zip([first, second]));
        let lowered = self.inside(step, filter, body);
        self.scope.truncate(before);
        let (filter, body, result) = lowered?;
        Ok((Node::Fold(Box::new(Fold { step, range, variables, filter, body })), result))
    }

    fn inside(
        &mut self,
        step: Step,
        filter: Option<&IdedExpr>,
        body: &IdedExpr,
    ) -> Result<(Option<Node>, Node, Type), CompileError> {
        let filter = filter.map(|filter| self.boolean("_?_:_", filter)).transpose()?;
        match step {
            Step::All | Step::Exists | Step::ExistsOne => {
                let operator = if step == Step::All { "_&&_" } else { "_||_" };
                Ok((filter, self.boolean(operator, body)?, Type::Bool))
            }
            Step::Collect => {
                let (body, of) = self.lower(body)?;
                Ok((filter, body, Type::list(of)))
            }
            Step::Values | Step::Entries => Ok((filter, self.lower(body)?.0, Type::Dyn)),
        }
    }

    fn function(&mut self, call: &CallExpr) -> Lowered {
        let name = call.func_name.as_str();
        // `sets.contains(a, b)`: the apparent receiver is part of the name.
        if let Some(IdedExpr { expr: Expr::Ident(space), .. }) = call.target.as_deref()
            && self.env.variable(space).is_none()
            && !self.scope.iter().any(|(known, _)| **known == **space)
        {
            let whole = format!("{space}.{name}");
            let rows = functions::named(&whole);
            if !rows.is_empty() {
                return self.overload(&whole, rows, false, None, &call.args);
            }
        }
        let rows = functions::named(name);
        let receiver = call.target.as_deref();
        if !rows.iter().any(|row| row.member == receiver.is_some()) && receiver.is_none() {
            return Err(self.error(name, format!("undeclared reference to '{name}' (in container '')")));
        }
        self.overload(name, rows, receiver.is_some(), receiver, &call.args)
    }

    fn overload(
        &mut self,
        name: &str,
        rows: &'static [Function],
        member: bool,
        receiver: Option<&IdedExpr>,
        args: &[IdedExpr],
    ) -> Lowered {
        let mut nodes = Vec::with_capacity(args.len() + 1);
        let mut types = Vec::with_capacity(args.len() + 1);
        for arg in receiver.into_iter().chain(args) {
            let (node, of) = self.lower(arg)?;
            nodes.push(node);
            types.push(of);
        }
        let fitting: Vec<&Function> = rows.iter().filter(|row| row.member == member && row.takes(&types)).collect();
        let hosted = member && matches!(types.first(), Some(Type::Dyn | Type::Named(_)));
        match fitting.as_slice() {
            [] if hosted => Ok((Node::Method(name.into(), nodes), Type::Dyn)),
            [] if rows.iter().any(|row| row.member == member) => Err(self.no_overload(name, name, &types, member)),
            [] => Err(self.error(name, format!("undeclared reference to '{name}' (in container '')"))),
            [one] => Ok((Node::Call(rows, member, nodes), one.result.of(&types))),
            [first, rest @ ..] => {
                let of = rest.iter().fold(first.result.of(&types), |of, row| of.join(row.result.of(&types)));
                Ok((Node::Call(rows, member, nodes), of))
            }
        }
    }

    fn no_overload(&self, at: &str, name: &str, types: &[Type], member: bool) -> CompileError {
        let shown: Vec<String> = types.iter().map(Type::to_string).collect();
        let applied = match (member, shown.split_first()) {
            (true, Some((receiver, rest))) => format!("{receiver}.({})", rest.join(", ")),
            _ => format!("({})", shown.join(", ")),
        };
        self.error(at, format!("found no matching overload for '{name}' applied to '{applied}'"))
    }
}

/// Types for comparison with `type(x)`.
const TYPES: &[&str] =
    &["bool", "int", "uint", "double", "string", "bytes", "list", "map", "null_type", "type", "optional_type", "dyn"];

/// The two-variable macros: what they do, and whether there is a filter with this many arguments.
fn two_variables(name: &str, arguments: usize) -> Option<(Step, bool)> {
    match (name, arguments) {
        ("all", 3) => Some((Step::All, false)),
        ("exists", 3) => Some((Step::Exists, false)),
        ("existsOne" | "exists_one", 3) => Some((Step::ExistsOne, false)),
        ("transformList", 3 | 4) => Some((Step::Collect, arguments == 4)),
        ("transformMap", 3 | 4) => Some((Step::Values, arguments == 4)),
        ("transformMapEntry", 3 | 4) => Some((Step::Entries, arguments == 4)),
        _ => None,
    }
}

/// The source form of an operator.
fn symbol(operator: &str) -> &str {
    operator.trim_matches(['_', '@'])
}

fn literal_of(literal: &LiteralValue) -> (Node, Type) {
    let (value, of) = match literal {
        LiteralValue::Boolean(b) => (Value::Bool(*b.inner()), Type::Bool),
        LiteralValue::Bytes(bytes) => (Value::Bytes(bytes.inner().into()), Type::Bytes),
        LiteralValue::Double(d) => (Value::Double(*d.inner()), Type::Double),
        LiteralValue::Int(i) => (Value::Int(*i.inner()), Type::Int),
        LiteralValue::Null => (Value::Null, Type::Null),
        LiteralValue::String(s) => (Value::string(s.inner()), Type::String),
        LiteralValue::UInt(u) => (Value::Uint(*u.inner()), Type::Uint),
    };
    (Node::Literal(value), of)
}
