//! Selectors, quantities, durations and other small values.

use podwright::api::duration;
use podwright::api::int_or_string::{Round, scaled};
use podwright::api::kinds::lookup;
use podwright::api::quantity::{Format, Quantity};
use podwright::api::selector::{FieldSelector, LabelSelector};
use proptest::prelude::*;
use serde_json::json;

#[test]
fn label_selectors_match() {
    let labels = json!({"a": "b", "n": "5", "x.io/y": "z", "empty": ""});
    for (text, matches) in [
        ("", true),
        ("a=b", true),
        ("a==b", true),
        ("a = b , n", true),
        ("a!=b", false),
        ("missing!=b", true),
        ("a in (b,c)", true),
        ("a in (c, d)", false),
        ("a notin (b)", false),
        ("missing notin (b)", true),
        ("x.io/y", true),
        ("!x.io/y", false),
        ("!missing,a=b", true),
        ("n>4,n<6", true),
        ("n>5", false),
        ("empty=", true),
        ("a=", false),
        ("empty in (,x)", true),
        ("in in (a)", false),
    ] {
        let selector = LabelSelector::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(selector.matches_labels(labels.as_object()), matches, "{text}");
        let again = LabelSelector::parse(&selector.to_string()).unwrap();
        assert_eq!(again, selector, "{text} is written as {selector}");
    }
}

#[test]
fn bad_label_selectors() {
    for (text, words) in [
        ("a b", "found 'b', expected: in, notin, =, ==, !=, gt, lt"),
        ("a in b", "found 'b' expected: '('"),
        ("a in (b", "found '', expected: ',' or ')'"),
        ("a,", "found '', expected: identifier after ','"),
        ("a=b=c", "found '=', expected: ',' or 'end of string'"),
        ("=b", "found '=', expected: !, identifier, or 'end of string'"),
        ("a>b", "for 'Gt', 'Lt' operators, the value must be an integer"),
        ("-a=b", "name part must consist of"),
        ("a=-b", "a valid label must be an empty string or consist of"),
        ("a/b/c", "a qualified name"),
    ] {
        let error = LabelSelector::parse(text).unwrap_err();
        assert_eq!(error.code, 400);
        assert!(error.message.contains(words), "{text}: {error}");
    }
}

#[test]
fn label_selectors_from_json() {
    let value = json!({"matchLabels": {"a": "b"}, "matchExpressions": [
        {"key": "c", "operator": "NotIn", "values": ["e", "d"]}, {"key": "f", "operator": "Exists"}]});
    let selector = LabelSelector::from_json(&value).unwrap();
    assert_eq!(selector.to_string(), "a=b,c notin (d,e),f");
    assert!(LabelSelector::from_json(&json!({"matchExpressions": [{"key": "a", "operator": "X"}]})).is_err());
    assert_eq!(LabelSelector::from_optional_json(None).unwrap(), None);
}

#[test]
fn field_selectors() {
    let get = |path: &str| match path {
        "a" => "1,2",
        "b" => "x=y\\",
        _ => "",
    };
    for (text, matches) in
        [("", true), ("a=1\\,2", true), ("a==1\\,2,b=x\\=y\\\\", true), ("a!=1", true), ("c=", true), ("c!=", false)]
    {
        let selector = FieldSelector::parse(text).unwrap();
        assert_eq!(selector.matches(get), matches, "{text}");
        assert_eq!(FieldSelector::parse(&selector.to_string()).unwrap(), selector);
    }
    for text in ["a", "a=b\\c", "a,b=c"] {
        let error = FieldSelector::parse(text).unwrap_err().message;
        assert!(error.starts_with(&format!("invalid selector: '{text}'; can't understand '")), "{error}");
    }
    let pods = lookup("pods").unwrap();
    assert!(FieldSelector::parse("spec.nodeName=a,metadata.namespace!=b").unwrap().check(pods).is_ok());
    let error = FieldSelector::parse("spec.x=a").unwrap().check(pods).unwrap_err();
    assert_eq!((error.code, error.message.as_str()), (400, "field label not supported: spec.x"));
    assert_eq!(FieldSelector::parse("spec.nodeName=a").unwrap().exact("spec.nodeName"), Some("a"));
}

#[test]
fn quantities_are_canonical() {
    for (text, canonical) in [
        ("0", "0"),
        ("0Mi", "0"),
        ("1", "1"),
        ("1000m", "1"),
        ("0.5", "500m"),
        ("1.5Gi", "1536Mi"),
        ("1024Ki", "1Mi"),
        ("1500Mi", "1500Mi"),
        ("1000", "1k"),
        ("12e3", "12e3"),
        ("1E6", "1e6"),
        ("1E", "1E"),
        ("100n", "100n"),
        ("0.1n", "1n"),
        ("1u", "1u"),
        ("0.0001", "100u"),
        ("-1.5", "-1500m"),
        ("+2", "2"),
        (".5", "500m"),
        ("5.", "5"),
        ("0.5Ki", "512"),
        ("0.1Ki", "102400m"),
        ("9223372036854775807", "9223372036854775807"),
        ("100E", "9223372036854775807"),
        ("1e-3", "1e-3"),
        ("123456", "123456"),
        ("1000000Ki", "1000000Ki"),
    ] {
        let quantity: Quantity = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(quantity.to_string(), canonical, "{text}");
    }
    for text in ["", "a", "1x", "1 ", "1..2", "1Kii", "e3", ".", "-", "1mi", "1e", "0x1", "1KiB", "٣"] {
        assert!(text.parse::<Quantity>().is_err(), "{text}");
    }
}

#[test]
fn quantities_count() {
    let q = |text: &str| text.parse::<Quantity>().unwrap();
    assert_eq!((q("100m").millis(), q("1.5").millis(), q("1u").millis()), (100, 1500, 1));
    assert_eq!((q("1Gi").value(), q("1500m").value(), q("-1500m").value()), (1 << 30, 2, -2));
    assert_eq!((q("1Gi") + q("1Mi")).to_string(), "1025Mi");
    assert_eq!((q("1") - q("250m")).to_string(), "750m");
    assert!(q("1Gi") > q("1G") && q("1000m") == q("1"));
    assert_eq!(Quantity::from_units(2048, Format::BinarySi).to_string(), "2Ki");
    assert_eq!(Quantity::from_millis(1500).to_string(), "1500m");
    assert_eq!([q("1"), q("2")].into_iter().sum::<Quantity>(), q("3"));
}

proptest! {
    #[test]
    fn a_written_quantity_reads_back(mantissa in -1_000_000_000_000i64..1_000_000_000_000, suffix in "(n|u|m|k|M|Ki|Mi|Gi|e2|e-2|)") {
        let quantity: Quantity = format!("{mantissa}{suffix}").parse().unwrap();
        let text = quantity.to_string();
        prop_assert_eq!(text.parse::<Quantity>().unwrap(), quantity, "{}", text);
        prop_assert_eq!(text.parse::<Quantity>().unwrap().to_string(), text);
    }

    #[test]
    fn parsers_do_not_panic(text in "\\PC{0,40}") {
        let _ = text.parse::<Quantity>();
        let _ = LabelSelector::parse(&text);
        let _ = FieldSelector::parse(&text);
        let _ = duration::parse(&text);
        let _ = podwright::api::yaml::documents(&text);
    }
}

#[test]
fn percentages() {
    assert_eq!(scaled(&json!("25%"), 10, Round::Up), Some(3));
    assert_eq!(scaled(&json!("25%"), 10, Round::Down), Some(2));
    assert_eq!(scaled(&json!(4), 10, Round::Down), Some(4));
    assert_eq!(scaled(&json!("100%"), 7, Round::Up), Some(7));
    assert_eq!(scaled(&json!("x"), 7, Round::Up), None);
    assert_eq!(scaled(&json!("-5%"), 7, Round::Up), None);
}

/// As Go's `time.Duration.String` writes them.
#[test]
fn durations_are_written_as_go_writes_them() {
    for (nanos, text) in [
        (0, "0s"),
        (1, "1ns"),
        (1_100, "1.1µs"),
        (2_200_000, "2.2ms"),
        (999_999_999, "999.999999ms"),
        (1_000_000_000, "1s"),
        (15_020_000_000, "15.02s"),
        (60_000_000_000, "1m0s"),
        (245_300_000_000, "4m5.3s"),
        (3_600_000_000_000, "1h0m0s"),
        (90_061_000_000_001, "25h1m1.000000001s"),
    ] {
        let duration = std::time::Duration::from_nanos(nanos);
        assert_eq!(duration::go(duration), text);
        assert_eq!(duration::parse(text).map(|d| d.as_micros()), Some(duration.as_micros()), "{text}");
    }
}

#[test]
fn usage_is_written_as_metrics_server_writes_it() {
    for (nanocores, memory, cpu, bytes) in [
        (0, 0, "0", "0"),
        (1, 1000, "1n", "1k"),
        (156_340, 11_304_960, "156340n", "11040Ki"),
        (2_000_000, 1 << 20, "2m", "1Mi"),
        (3_000_000_000, u64::MAX, "3", "9223372036854775807"),
    ] {
        let list = podwright::api::metrics::Usage { nanocores, memory }.quantities();
        assert_eq!((list["cpu"].0.as_str(), list["memory"].0.as_str()), (cpu, bytes));
    }
}

#[test]
fn durations() {
    for (text, millis) in [("0", 0), ("1.5s", 1500), ("1h2m3s", 3_723_000), ("250ms", 250), ("1m30s", 90_000)] {
        assert_eq!(duration::parse(text).map(|d| d.as_millis()), Some(millis), "{text}");
    }
    for text in ["", "5", "1x", "s", "1s2", "-1s"] {
        assert_eq!(duration::parse(text), None, "{text}");
    }
    let (minute, hour, day) = (60, 3600, 86400);
    for (seconds, text) in [
        (-5, "<invalid>"),
        (-1, "0s"),
        (0, "0s"),
        (119, "119s"),
        (2 * minute, "2m"),
        (4 * minute + 12, "4m12s"),
        (10 * minute + 5, "10m"),
        (179 * minute, "179m"),
        (3 * hour, "3h"),
        (3 * hour + 5 * minute, "3h5m"),
        (8 * hour + 5 * minute, "8h"),
        (47 * hour, "47h"),
        (2 * day + 4 * hour, "2d4h"),
        (8 * day + 4 * hour, "8d"),
        (729 * day, "729d"),
        (2 * 365 * day + 3 * day, "2y3d"),
        (9 * 365 * day, "9y"),
    ] {
        assert_eq!(duration::human(seconds), text, "{seconds}");
    }
}
