//! Static types of expressions.

use std::fmt;
use std::sync::Arc;

use super::operators::Operator;

/// A static type.
#[derive(Clone, Debug, Default)]
pub enum Type {
    /// Known only at run time.
    #[default]
    Dyn,
    Null,
    Bool,
    Int,
    Uint,
    Double,
    String,
    Bytes,
    Timestamp,
    Duration,
    List(Arc<Type>),
    Map(Arc<Type>, Arc<Type>),
    Optional(Arc<Type>),
    Type,
    /// Only known fields.
    Object(Arc<dyn Fields>),
    /// A library's type: `kubernetes.Quantity`.
    Named(&'static str),
}

/// The fields of an object with a known schema.
pub trait Fields: fmt::Debug + Send + Sync {
    fn name(&self) -> String;
    /// The type of a field by its name in expressions; `None`: there is no such field.
    fn field(&self, name: &str) -> Option<Type>;
}

impl Type {
    pub fn list(of: Type) -> Type {
        Type::List(Arc::new(of))
    }
    pub fn optional(of: Type) -> Type {
        Type::Optional(Arc::new(of))
    }
    /// The content type of an optional; other types are unchanged.
    pub fn unwrapped(self) -> Type {
        match self {
            Type::Optional(inner) => (*inner).clone(),
            other => other,
        }
    }
    pub fn is_number(&self) -> bool {
        matches!(self, Type::Int | Type::Uint | Type::Double)
    }

    /// Whether a value of one type may have the other.
    pub fn fits(&self, other: &Type) -> bool {
        match (self, other) {
            (Type::Dyn, _) | (_, Type::Dyn) => true,
            (Type::List(a), Type::List(b)) | (Type::Optional(a), Type::Optional(b)) => a.fits(b),
            (Type::Map(k, v), Type::Map(l, w)) => k.fits(l) && v.fits(w),
            (Type::Object(a), Type::Object(b)) => a.name() == b.name(),
            (Type::Object(_), Type::Map(..)) | (Type::Map(..), Type::Object(_)) => true,
            (Type::Named(a), Type::Named(b)) => a == b,
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }

    /// The common type of both.
    pub fn join(self, other: Type) -> Type {
        let alike = self.fits(&other) && !matches!(self, Type::Dyn) && !matches!(other, Type::Dyn);
        if alike { self } else { Type::Dyn }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Dyn => f.write_str("dyn"),
            Type::Null => f.write_str("null"),
            Type::Bool => f.write_str("bool"),
            Type::Int => f.write_str("int"),
            Type::Uint => f.write_str("uint"),
            Type::Double => f.write_str("double"),
            Type::String => f.write_str("string"),
            Type::Bytes => f.write_str("bytes"),
            Type::Timestamp => f.write_str("timestamp"),
            Type::Duration => f.write_str("duration"),
            Type::List(of) => write!(f, "list({of})"),
            Type::Map(key, value) => write!(f, "map({key}, {value})"),
            Type::Optional(of) => write!(f, "optional_type({of})"),
            Type::Type => f.write_str("type"),
            Type::Object(fields) => f.write_str(&fields.name()),
            Type::Named(name) => f.write_str(name),
        }
    }
}

/// The result type of an operator; `None`: it does not accept these types.
pub fn operated(operator: Operator, a: &Type, b: &Type) -> Option<Type> {
    let holds = match operator {
        // Optional fields are commonly compared to null.
        Operator::Equal | Operator::NotEqual => a.fits(b) || may_be_null(a, b) || may_be_null(b, a),
        Operator::In => match b {
            Type::List(item) => item.fits(a),
            Type::Map(key, _) => key.fits(a),
            other => matches!(other, Type::Dyn),
        },
        Operator::Less | Operator::LessEqual | Operator::Greater | Operator::GreaterEqual => match (a, b) {
            _ if a.is_number() && b.is_number() => true,
            (Type::Dyn, _) | (_, Type::Dyn) => true,
            (Type::Bool | Type::String | Type::Bytes | Type::Timestamp | Type::Duration, _) => a.fits(b),
            _ => false,
        },
        _ => return arithmetic(operator, a, b),
    };
    holds.then_some(Type::Bool)
}

fn may_be_null(null: &Type, other: &Type) -> bool {
    let nullable = matches!(other, Type::Object(_) | Type::Optional(_) | Type::Timestamp | Type::Duration);
    matches!(null, Type::Null) && nullable
}

fn arithmetic(operator: Operator, a: &Type, b: &Type) -> Option<Type> {
    Some(match (operator, a, b) {
        (_, Type::Dyn, other) | (_, other, Type::Dyn) => match other {
            Type::Int | Type::Uint | Type::Double | Type::String | Type::List(_) => other.clone(),
            _ => Type::Dyn,
        },
        (_, Type::Int, Type::Int) => Type::Int,
        (_, Type::Uint, Type::Uint) => Type::Uint,
        (Operator::Modulo, ..) => return None,
        (_, Type::Double, Type::Double) => Type::Double,
        (Operator::Add, Type::String, Type::String) => Type::String,
        (Operator::Add, Type::Bytes, Type::Bytes) => Type::Bytes,
        (Operator::Add, Type::List(x), Type::List(y)) if x.fits(y) => a.clone(),
        (Operator::Add, Type::Timestamp, Type::Duration) | (Operator::Add, Type::Duration, Type::Timestamp) => {
            Type::Timestamp
        }
        (Operator::Subtract, Type::Timestamp, Type::Timestamp) => Type::Duration,
        (Operator::Subtract, Type::Timestamp, Type::Duration) => Type::Timestamp,
        (Operator::Add | Operator::Subtract, Type::Duration, Type::Duration) => Type::Duration,
        _ => return None,
    })
}
