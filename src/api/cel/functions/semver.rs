//! Kubernetes' semver library: <https://semver.org>.

use std::cmp::Ordering;

use super::Param::{Bool, Named, Text};
use super::{Function, Out, Param, global, member, text};
use crate::cel::semver::{self, Semver};
use crate::cel::{Error, Value};

const NAME: &str = "kubernetes.Semver";
const S: Param = Named(NAME);

pub fn rows() -> Vec<Function> {
    vec![
        global("semver", &[Text], Out::Named(NAME), |v, _| made(v, false)),
        global("semver", &[Text, Bool], Out::Named(NAME), |v, _| made(v, v[1] == Value::Bool(true))),
        global("isSemver", &[Text], Out::Bool, |v, _| Ok(Value::Bool(semver::parse(text(v, 0), false).is_some()))),
        global("isSemver", &[Text, Bool], Out::Bool, |v, _| {
            Ok(Value::Bool(semver::parse(text(v, 0), v[1] == Value::Bool(true)).is_some()))
        }),
        member("major", &[S], Out::Int, |v, _| number(v, |version| version.major)),
        member("minor", &[S], Out::Int, |v, _| number(v, |version| version.minor)),
        member("patch", &[S], Out::Int, |v, _| number(v, |version| version.patch)),
        member("compareTo", &[S, S], Out::Int, |v, _| Ok(Value::Int(order(v) as i64))),
        member("isGreaterThan", &[S, S], Out::Bool, |v, _| Ok(Value::Bool(order(v) == Ordering::Greater))),
        member("isLessThan", &[S, S], Out::Bool, |v, _| Ok(Value::Bool(order(v) == Ordering::Less))),
    ]
}

fn made(values: &[Value], normalize: bool) -> Result<Value, Error> {
    let invalid = || Error::new(format!("invalid semantic version {:?}", text(values, 0)));
    semver::parse(text(values, 0), normalize).map(|version| Value::Semver(version.into())).ok_or_else(invalid)
}

fn number(values: &[Value], of: fn(&Semver) -> u64) -> Result<Value, Error> {
    let Value::Semver(version) = &values[0] else { return Err(Error::no_such_overload()) };
    i64::try_from(of(version)).map(Value::Int).map_err(|_| Error::new("integer overflow"))
}

fn order(values: &[Value]) -> Ordering {
    match values {
        [Value::Semver(a), Value::Semver(b)] => a.cmp(b),
        _ => Ordering::Equal,
    }
}
