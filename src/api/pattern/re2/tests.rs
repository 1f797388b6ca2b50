//! What expressions match, and which are refused.

use super::*;

fn found(pattern: &str, text: &str) -> Option<String> {
    let written = rewritten(pattern).unwrap_or_else(|why| panic!("{pattern}: {why:?}")).text;
    let regex = regex::Regex::new(&written).unwrap_or_else(|why| panic!("{pattern}: {written}: {why}"));
    regex.find(text).map(|found| found.as_str().to_owned())
}

#[test]
fn means_what_it_means_to_re2() {
    for (pattern, text, wanted) in [
        (r"^[^[\]]+$", "a.b-c", Some("a.b-c")),
        (r"^[^[\]]+$", "a[b", None),
        (r"\Qa.b*\E+", "a.b***", Some("a.b***")),
        (r"\Q(", "x(", Some("(")),
        ("^a{,2}$", "a{,2}", Some("a{,2}")),
        ("^a{,2}$", "aa", None),
        ("^{$", "{", Some("{")),
        ("x{02}", "x{02}", Some("x{02}")),
        (r"^\d+$", "١٢", None),
        (r"^\d+$", "12", Some("12")),
        (r"^\w+$", "é", None),
        (r"\bé", "aé", Some("é")),
        (r"^[\w.]+$", "a_1.b", Some("a_1.b")),
        (r"^[^\d]+$", "1", None),
        (r"^[^\D]+$", "12", Some("12")),
        (r"\s", "\u{b}", None),
        ("^[a&&b]+$", "a&b&", Some("a&b&")),
        ("^[a~~b]+$", "~", Some("~")),
        ("^[a-c-e]+$", "b-e", Some("b-e")),
        (r"^[\d-z]+$", "1-z", Some("1-z")),
        ("^[]a]+$", "]a", Some("]a")),
        ("^[^]a]+$", "]", None),
        ("^[a-]+$", "-a", Some("-a")),
        ("^[[:alpha:][:^alpha:]]+$", "a1", Some("a1")),
        ("^[[:word:]]+$", "é", None),
        ("[[:foo]+", "[:fo", Some("[:fo")),
        (r"^\p{Greek}+$", "αβγ", Some("αβγ")),
        (r"^\p{^Greek}$", "a", Some("a")),
        (r"^\P{^Greek}$", "α", Some("α")),
        (r"^[\pL\pN]+$", "é٣", Some("é٣")),
        (r"^\p{Letter}$", "é", Some("é")),
        ("(?i)^k$", "\u{212a}", Some("\u{212a}")),
        ("(?i)a(?-i)b", "Ab", Some("Ab")),
        ("(?i)a(?-i)b", "AB", None),
        ("(?i:a)b", "AB", None),
        ("(a(?i)b)c", "aBC", None),
        ("^a.b$", "a\nb", None),
        ("(?s)^a.b$", "a\nb", Some("a\nb")),
        ("(?m)^b$", "a\nb\nc", Some("b")),
        ("b$", "b\n", None),
        ("(?U)a+", "aaa", Some("a")),
        ("(?U)a+?", "aaa", Some("aaa")),
        ("a+?", "aaa", Some("a")),
        ("a(?i)*", "aaa", Some("aaa")),
        ("^*x", "x", Some("x")),
        ("(|a)b|", "ab", Some("ab")),
        ("(?P<n>a)(?<m>b)", "ab", Some("ab")),
        (r"\x41\x{1F600}\101\0\_", "A\u{1F600}A\0_", Some("A\u{1F600}A\0_")),
        (r"\x{D800}|a", "a", Some("a")),
        (r"[\x{D7FF}-\x{E000}]", "\u{e000}", Some("\u{e000}")),
        ("^(?:x{10}){100}$", "x", None),
        ("a{0}b", "ab", Some("b")),
        (r"[^\x00-\x{10FFFF}]|z", "z", Some("z")),
        (r"\A\z", "", Some("")),
        ("#a b", "#a b", Some("#a b")),
    ] {
        assert_eq!(found(pattern, text).as_deref(), wanted, "{pattern} {text:?}: {:?}", rewritten(pattern));
    }
}

#[test]
fn refuses_what_re2_refuses() {
    for (pattern, why) in [
        ("[a--b]", "invalid character class range: `a--`"),
        ("[b-a]", "invalid character class range: `b-a`"),
        ("x{1001}", "invalid repeat count: `{1001}`"),
        ("x{2,1}", "invalid repeat count: `{2,1}`"),
        ("x{1,99999999999}", "invalid repeat count: `{1,99999999999}`"),
        ("(?:x{40}){40}", "invalid repeat count: `{40}`"),
        (r"\u0041", r"invalid escape sequence: `\u`"),
        (r"\8", r"invalid escape sequence: `\8`"),
        (r"\1", r"invalid escape sequence: `\1`"),
        (r"\Z", r"invalid escape sequence: `\Z`"),
        (r"\C", r"invalid escape sequence: `\C`"),
        (r"\x{110000}", r"invalid escape sequence: `\x{110000`"),
        (r"[\b]", r"invalid escape sequence: `\b`"),
        (r"a\", "trailing backslash at end of expression: ``"),
        (r"[a", "missing closing ]: `[a`"),
        ("[]", "missing closing ]: `[]`"),
        ("(a", "missing closing ): `(a`"),
        ("(?i", "missing closing ): `(?i`"),
        ("a)", "unexpected ): `a)`"),
        ("*", "missing argument to repetition operator: `*`"),
        ("a|*", "missing argument to repetition operator: `*`"),
        ("({2})", "missing argument to repetition operator: `{2}`"),
        ("a**", "invalid nested repetition operator: `**`"),
        ("a++", "invalid nested repetition operator: `++`"),
        ("a*?{2}", "invalid nested repetition operator: `*?{2}`"),
        ("(?=a)", "invalid or unsupported Perl syntax: `(?=`"),
        ("(?!a)", "invalid or unsupported Perl syntax: `(?!`"),
        ("(?<=a)", "invalid named capture: `(?<=a)`"),
        ("(?P=n)", "invalid or unsupported Perl syntax: `(?P`"),
        ("(?i-)", "invalid or unsupported Perl syntax: `(?i-)`"),
        ("(?x)a", "invalid or unsupported Perl syntax: `(?x`"),
        ("(?P<>a)", "invalid named capture: `(?P<>`"),
        (r"\p{Nonsense}", r"invalid character class range: `\p{Nonsense}`"),
        (r"\p{Alphabetic}", r"invalid character class range: `\p{Alphabetic}`"),
        (r"\p{gc=L}", r"invalid character class range: `\p{gc=L}`"),
        ("[[:nonsense:]]", "invalid character class range: `[:nonsense:]`"),
    ] {
        let refused =
            rewritten(pattern).map(|written| written.text).map_err(|Wrong(why, part)| format!("{why}: `{part}`"));
        assert_eq!(refused, Err(why.to_owned()), "{pattern}");
    }
    assert_eq!(rewritten(&"(".repeat(100_000)).unwrap_err().0, "expression nests too deeply");
}
