//! YAML in and out.

use podwright::api::yaml::{self, YamlError};
use serde_json::{Value, json};

#[test]
fn several_documents() {
    let all = yaml::documents("---\na: 1\n---\n# nothing\n---\n~\n---\nb: [x, 'y']\n...\n").unwrap();
    assert_eq!(all, [json!({"a": 1}), json!({"b": ["x", "y"]})]);
}

/// As the real kubectl reads them.
#[test]
fn scalars_are_read_as_kubectl_reads_them() {
    let text = "{a: y, b: n, c: yes, d: 0644, f: '22:22', g: ~, h: 2001-01-01, i: 0o17, j: 1e3, k: .5, l: 0x1f, m: Off, \
                p: 1.0, q: '1', r: -3, s: null, t: \"no\"}";
    let expected = json!({"a": true, "b": false, "c": true, "d": 420, "f": "22:22", "g": null, "h": "2001-01-01", "i": 15,
        "j": 1000.0, "k": 0.5, "l": 31, "m": false, "p": 1.0, "q": "1", "r": -3, "s": null, "t": "no"});
    let got = yaml::documents(text).unwrap().remove(0);
    for (key, value) in expected.as_object().unwrap() {
        assert_eq!(&got[key], value, "{key}");
    }
}

#[test]
fn json_is_read_too() {
    let all = yaml::documents("{\n\t\"a\": \"\\u00e9\"\n}\n{\"b\": 1.0}\n").unwrap();
    assert_eq!(all, [json!({"a": "é"}), json!({"b": 1.0})]);
}

#[test]
fn anchors_and_merges() {
    let got = yaml::documents("base: &b {x: 1, y: 2}\nother:\n  <<: *b\n  y: 3\n").unwrap().remove(0);
    assert_eq!(got["other"], json!({"x": 1, "y": 3}));
}

/// 200 bytes of aliases would each expand to many megabytes.
#[test]
fn aliases_multiply_no_further_than_the_text_is_long() {
    let levels: String =
        (1..8).map(|n| format!("a{n}: &a{n} [{}]\n", vec![format!("*a{}", n - 1); 9].join(","))).collect();
    let long = format!("a: &a {}\nb: [{}]\n", "x".repeat(100_000), vec!["*a"; 100].join(","));
    let merges: String = (1..10).map(|n| format!("a{n}: &a{n} {{<<: [*a{0}, *a{0}], k{n}: 1}}\n", n - 1)).collect();
    for text in [format!("a0: &a0 [x, y]\n{levels}"), long, format!("a0: &a0 {{{}}}\n{merges}", "k: [1]")] {
        match yaml::documents(&text) {
            Err(why) => assert!(why.to_string().len() < 10_000, "{why}"),
            Ok(all) => {
                let made = all.iter().map(|value| value.to_string().len()).sum::<usize>();
                assert!(made < 4 * text.len() + 100_000, "{} bytes became {made}", text.len());
            }
        }
    }
    let bomb = yaml::documents(&format!("a0: &a0 [x, y]\n{levels}"));
    assert!(matches!(bomb, Err(YamlError::TooLarge(_))), "{bomb:?}");
    // One alias per container of a large manifest is no bomb.
    let plain: String = (0..500).map(|n| format!("- {{<<: *base, name: c{n}}}\n")).collect();
    let got = yaml::documents(&format!("base: &base {{image: i, resources: {{limits: {{cpu: 1}}}}}}\nall:\n{plain}"))
        .unwrap();
    assert_eq!(got[0]["all"][499]["resources"]["limits"]["cpu"], 1);
}

#[test]
fn errors_say_where() {
    for (text, place) in [("a: 1\nb: [1, 2\nc: 3\n", "line 3"), ("a: 1\na: 2\n", "line 2"), ("a:\n\t- b\n", "line 2")] {
        let error = yaml::documents(text).unwrap_err();
        assert!(matches!(error, YamlError::Syntax(_)), "{error:?}");
        assert!(error.to_string().contains(place), "{text:?}: {error}");
    }
}

#[test]
fn what_is_written_reads_back() {
    let tricky = vec![
        "yes",
        "no",
        "y",
        "true",
        "1",
        "0644",
        "1e3",
        "",
        " a",
        "a ",
        "null",
        "~",
        "a: b",
        "# c",
        "- d",
        "|",
        "*e",
        "&f",
        "!g",
        "%h",
        "@i",
        "`j",
        "{k",
        "[l",
        "a\nb\n",
        "a\nb",
        "\ttab",
        "2001-01-01",
        "'q'",
        "\"r\"",
        ".5",
        "0x1f",
        "=",
        "<<",
    ];
    let value = json!({"kind": "A", "apiVersion": "v1", "strings": tricky, "empty": {}, "none": [], "n": [1, -2, 0.5, true, null],
        "map": {"yes": 1, "1": 2, "a b": 3, "": 4}});
    let text = yaml::to_string(&value).unwrap();
    assert_eq!(yaml::documents(&text).unwrap(), [value], "{text}");
}

#[test]
fn keys_are_written_in_kubectls_order() {
    let value: Value = json!({"kind": "A", "apiVersion": "v1", "metadata": {"name": "a", "labels": {"b": "c"}}});
    let expected = "apiVersion: v1\nkind: A\nmetadata:\n  labels:\n    b: c\n  name: a\n";
    assert_eq!(yaml::to_string(&value).unwrap(), expected);
}

#[test]
fn lists_are_not_indented_and_long_texts_are_blocks() {
    let value = json!({"a": [{"b": 1, "c": [2]}], "d": "x\ny\n", "e": "1"});
    assert_eq!(yaml::to_string(&value).unwrap(), "a:\n- b: 1\n  c:\n  - 2\nd: |\n  x\n  y\ne: \"1\"\n");
}
