//! Why a template is invalid, or has no result.

/// What is wrong with a template or its selection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// An `{end}` without a range.
    #[error("error parsing jsonpath: not in range, nothing to end")]
    NotInRange,
    #[error("error parsing jsonpath: unterminated range, {{end}} is missing")]
    UnterminatedRange,
    #[error("error parsing jsonpath: unterminated quoted string")]
    UnterminatedString,
    /// The operand of a filter's comparison is invalid.
    #[error("error parsing jsonpath: {0:?} is no value")]
    NoValue(String),
    /// A syntax error at this position.
    #[error("error parsing jsonpath: {problem} at {rest:?}")]
    At { problem: Misread, rest: String },
    /// It selects more values than it may.
    #[error("error parsing jsonpath: it selects more than {0} values")]
    TooMany(u32),
}

/// What is missing or unexpected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misread {
    #[error("unexpected text")]
    Text,
    /// `....`
    #[error("invalid multiple recursive descent")]
    Descents,
    #[error("a field name is missing")]
    NoField,
    #[error("an index is missing")]
    NoIndex,
    #[error("a quote is missing")]
    NoQuote,
    #[error("{0:?} is missing")]
    Missing(char),
}

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
