//! Why a text is no template, or a template has no result.

use std::fmt;

/// What is wrong with a template, or with what it selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TemplateError {
    /// There is an `{end}`, and no range that it ends.
    NotInRange,
    UnterminatedRange,
    UnterminatedString,
    /// What a filter compares with.
    NoValue(String),
    /// Here the text is not as it should be.
    At {
        problem: Misread,
        rest: String,
    },
    /// It selects more values than it may.
    TooMany(u32),
}

/// What is not there, or should not be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misread {
    Text,
    /// `....`
    Descents,
    NoField,
    NoIndex,
    NoQuote,
    Missing(char),
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("error parsing jsonpath: ")?;
        match self {
            TemplateError::NotInRange => f.write_str("not in range, nothing to end"),
            TemplateError::UnterminatedRange => f.write_str("unterminated range, {end} is missing"),
            TemplateError::UnterminatedString => f.write_str("unterminated quoted string"),
            TemplateError::NoValue(word) => write!(f, "{word:?} is no value"),
            TemplateError::At { problem, rest } => write!(f, "{problem} at {rest:?}"),
            TemplateError::TooMany(most) => write!(f, "it selects more than {most} values"),
        }
    }
}

impl fmt::Display for Misread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Misread::Text => f.write_str("unexpected text"),
            Misread::Descents => f.write_str("invalid multiple recursive descent"),
            Misread::NoField => f.write_str("a field name is missing"),
            Misread::NoIndex => f.write_str("an index is missing"),
            Misread::NoQuote => f.write_str("a quote is missing"),
            Misread::Missing(wanted) => write!(f, "{wanted:?} is missing"),
        }
    }
}

impl std::error::Error for TemplateError {}

#[cfg(test)]
mod tests {
    use super::super::Template;
    use super::*;

    #[test]
    fn what_is_wrong_with_a_template_can_be_told_apart() {
        let at = |problem, rest: &str| TemplateError::At { problem, rest: rest.to_owned() };
        for (text, wrong, said) in [
            ("{end}", TemplateError::NotInRange, "not in range, nothing to end"),
            ("{range .a}x", TemplateError::UnterminatedRange, "unterminated range, {end} is missing"),
            ("{\"x}", TemplateError::UnterminatedString, "unterminated quoted string"),
            ("{.a[?(@.b==c)]}", TemplateError::NoValue("c".into()), "\"c\" is no value"),
            ("{~}", at(Misread::Text, "~}"), "unexpected text at \"~}\""),
            ("{....a}", at(Misread::Descents, "..a}"), "invalid multiple recursive descent at \"..a}\""),
            ("{.~}", at(Misread::NoField, "~}"), "a field name is missing at \"~}\""),
            ("{.a[b]}", at(Misread::NoIndex, "b]}"), "an index is missing at \"b]}\""),
            ("{.a['b',c]}", at(Misread::NoQuote, "c]}"), "a quote is missing at \"c]}\""),
            ("{.a[0}", at(Misread::Missing(']'), "}"), "']' is missing at \"}\""),
        ] {
            let why = text.parse::<Template>().unwrap_err();
            assert_eq!((why.to_string(), why), (format!("error parsing jsonpath: {said}"), wrong), "{text}");
        }
    }
}
