//! The types that are known before an expression is evaluated.

use std::fmt;
use std::sync::Arc;

/// A static type.
#[derive(Clone, Debug, Default)]
pub enum Type {
    /// Known only when it is evaluated.
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
    /// Known fields alone.
    Object(Arc<dyn Fields>),
    /// A library's: `kubernetes.Quantity`.
    Named(&'static str),
}

/// The fields of an object whose schema is known.
pub trait Fields: fmt::Debug + Send + Sync {
    fn name(&self) -> String;
    /// The type of a field by the name that expressions use; `None`: there is no such field.
    fn field(&self, name: &str) -> Option<Type>;
}

impl Type {
    pub fn list(of: Type) -> Type {
        Type::List(Arc::new(of))
    }
    pub fn optional(of: Type) -> Type {
        Type::Optional(Arc::new(of))
    }
    pub fn is_number(&self) -> bool {
        matches!(self, Type::Int | Type::Uint | Type::Double)
    }

    /// Whether a value of one type may be one of the other.
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

    /// What both are.
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
