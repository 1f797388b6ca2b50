//! Which paths are valid, and what they select.

use serde_json::json;

use super::*;

/// Compared with the first output of `kubectl -o jsonpath` for the same object.
#[test]
fn selects_what_upstream_selects() {
    let pod = json!({
        "metadata": {"name": "a", "labels": {"x.y/z": "one", "q": "two"}},
        "spec": {"containers": [{"name": "c", "image": "i", "ports": [{"port": 80}]}, {"name": "d", "image": "j"}], "on": true},
    });
    for (path, wanted) in [
        (".metadata.name", Some(json!("a"))),
        ("metadata.name", None),
        (".", None),
        ("@", Some(pod.clone())),
        ("..name", Some(json!("a"))),
        (".spec..image", Some(json!("i"))),
        (".spec.containers[*].name", Some(json!("c"))),
        (".spec.containers[-1:].name", Some(json!("d"))),
        (".spec.containers[-1].name", Some(json!("d"))),
        (".spec.containers[-2:-1].name", Some(json!("c"))),
        (".spec.containers[1::2].name", Some(json!("d"))),
        (".spec.containers[:].name", Some(json!("c"))),
        (".spec.containers[2:].name", None),
        (".spec.containers[0:7].name", None),
        (".spec.containers[5].name", None),
        (".spec.containers[1,0].image", Some(json!("j"))),
        (".spec.containers.name", None),
        (".metadata['name','labels']", Some(json!("a"))),
        (r".metadata.labels['x\.y/z']", Some(json!("one"))),
        (".metadata.labels['x.y/z']", None),
        (r".metadata.labels.x\.y/z", Some(json!("one"))),
        (".metadata.labels", Some(json!({"x.y/z": "one", "q": "two"}))),
        (".spec.containers[?(@.name==\"d\")].image", Some(json!("j"))),
        (".spec.containers[?(@.name=='d' )].image", Some(json!("j"))),
        (".spec.containers[?( @.name == \"d\" )].image", Some(json!("j"))),
        (".spec.containers[?(.name!=\"c\")].image", Some(json!("j"))),
        (".spec.containers[?(@.ports)].name", Some(json!("c"))),
        (".spec.containers[?(@.ports[0].port>=80)].name", Some(json!("c"))),
        (".spec.containers[?(@.ports[0].port<80)].name", None),
        // Different types: an error, so nothing.
        (".spec.containers[?(@.ports[0].port==\"80\")].name", None),
        (".spec.containers[?(@.name==@.name)].image", Some(json!("i"))),
        (".spec[?(@.on==true)].containers", None),
        (".spec.on", Some(json!(true))),
        (".spec[0]", None),
        (".a b", None),
        (".a!", None),
        (" .metadata.name ", Some(json!("a"))),
    ] {
        let read: Path = path.parse().unwrap_or_else(|why| panic!("{path}: {why}"));
        assert_eq!(read.first(&pod).cloned(), wanted, "{path}: {read:?}");
    }
}

#[test]
fn refuses_what_upstream_cannot_read() {
    for (path, why) in [
        (".a[\"b\"]", "invalid array index \"b\""),
        (".a[b]", "invalid array index b"),
        (".a[(@.length-1)]", "invalid array index (@.length-1)"),
        (".a[1:2:3:4]", "invalid array index 1:2:3:4"),
        (".a[99999999999999999999]", "array index 99999999999999999999 is not a number"),
        (".a[0", "unterminated array"),
        (".a[?(@.b", "unterminated filter"),
        (".a[?(@.b)", "unclosed array expect ]"),
        (".a[?(@.b=~\"c\")]", "unrecognized character in action: U+007E '~'"),
        ("....a", "invalid multiple recursive descent"),
        (".a[0]\"b", "unterminated quoted string"),
    ] {
        let wrong = path.parse::<Path>().unwrap_err();
        assert_eq!(wrong.to_string(), why, "{path}: {wrong:?}");
    }
    let nested = ".a[?(".repeat(20) + "@" + &")]".repeat(20);
    assert!(nested.parse::<Path>().is_err());
}

#[test]
fn a_search_has_a_bound() {
    let mut deep = json!("x");
    for _ in 0..200 {
        deep = json!({"a": deep, "b": [1, 2, 3]});
    }
    let all: Path = "...*...*...*...*.x".parse().unwrap();
    assert_eq!(all.first(&deep), None);
    let wide = json!({"a": vec![json!({"b": 1}); 100_000]});
    assert_eq!(".a[*].c".parse::<Path>().unwrap().first(&wide), None);
}
