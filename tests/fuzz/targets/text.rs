//! Words that stand in fields, flags and URLs.

use std::sync::LazyLock;

use hyper::HeaderMap;
use hyper::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_TYPE};
use jiff::{Timestamp, tz::TimeZone};
use podwright::api::cel::{self, Budget, Env, Type};
use podwright::api::cron::Schedule;
use podwright::api::selector::{FieldSelector, LabelSelector};
use podwright::api::structural::formats;
use podwright::api::{Quantity, duration, kinds, pattern};
use podwright::cli::jsonpath::Template;
use podwright::node::probes::http;
use podwright::node::translate::expand::{ONE, expand};
use podwright::server::rest::{negotiate, paths, query};
use podwright_runtime::image::{ImageName, resolve_user};
use serde_json::{Value, json};

use super::{Target, parts};

pub const TARGETS: &[Target] = &[
    Target::text(
        "label_selector",
        label_selector,
        &["a=b,c!=d", "a in (b, c),d notin (e),!f,g", "a==b,x/y", "n>1,n<5"],
    ),
    Target::text("field_selector", field_selector, &["metadata.name=a,spec.nodeName!=b", r"status.phase=a\,b\=c\\"]),
    Target::text("quantity", quantity, &["1Gi", "100m", "-0.5", "1e3", "12E", "0.1Ki", "1n", "9223372036854775807"]),
    Target::text("duration", times, &["1h30m", "500ms", "1.5s", "300us", "2024-02-29T12:30:00Z"]),
    Target::text("cron", cron, &["*/5 0-6,12 * * mon-fri", "@daily", "@every 90s", "0 0 29 2 ?", "0 12 1 jan *"]),
    Target::text(
        "jsonpath",
        jsonpath,
        &[
            "{.items[*].metadata.name}",
            "{range .items[*]}{.a}{\"\\n\"}{end}",
            "{..name}",
            "{.items[?(@.a==1)].b}",
            "{.items[-1:].a}",
            "{$.items[0,1]['a','b']}",
            "{.items[::2]}{'x'}",
            "{..*..*..*..*..*..*..*..*}",
            "{$[0,0][0,0][0,0][0,0]}",
            ".metadata.labels.a\\.b/c",
        ],
    ),
    Target::text(
        "image_name",
        image_name,
        &[
            "busybox",
            "localhost:5000/a/b:1.2",
            "registry.k8s.io/pause@sha256:\
        0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
            "[::1]:5000/x",
            "docker.io/library/a:b",
        ],
    ),
    Target::text(
        "image_user",
        image_user,
        &[
            "root\0root:x:0:0:root:/root:/bin/sh\0root:x:0:",
            "1000:adm\0\0adm:x:4:a,b",
            "web:tls\0web:x:7:8::/srv:\n\0web:x:8:\ntls:x:9:a,web\n",
            "+0:b\0a:x:4294967295:1::/:\n\0b:x:4294967295:a\n",
        ],
    ),
    Target::text(
        "rest_path",
        rest_path,
        &[
            "/api/v1/namespaces/default/pods/p/exec?command=sh&stdin=true&tty=1",
            "/apis/apps/v1/watch/deployments",
            "/apis?a=%20b+c",
            "/openapi/v3/apis/apps/v1?hash=0",
            "/livez/etcd?verbose&exclude=a",
            "/api/v1/pods?limit=500&continue=abc&labelSelector=a%3Db&resourceVersionMatch=Exact&timeoutSeconds=5",
            "/api/v1/namespaces/a/services/https:b:c/proxy/d/e",
        ],
    ),
    Target::text(
        "media_types",
        media_types,
        &[
            "application/json;as=Table;g=meta.k8s.io;v=v1, application/json;q=0.5\0application/merge-patch+json\0gzip;q=0, *",
            "application/vnd.kubernetes.protobuf\0application/apply-patch+yaml; charset=utf-8\0",
        ],
    ),
    Target::text(
        "cel",
        cel,
        &[
            "o.tags.all(t, t.size() == 1) && o.ports.exists(p, p.n == 443)",
            "'%s is %d, %.2f'.format(['a', 3, 1.5])",
            "o.labels.transformMap(k, v, v + k)['app'] == 'xapp' ? [1, 2].sum() : int('3')",
            "has(o.a) || o[?'b'].orValue(1u) > 2u",
            "timestamp('2024-01-01T00:00:00Z') + duration('90m')",
            "quantity('1Gi').isGreaterThan(quantity('1G'))",
            "ip('::1').family() == 6 && cidr('10.0.0.0/8').containsIP('10.1.2.3')",
            "url('https://a.b:80/c?d=e').getHostname()",
            "semver('1.2.3-a').isLessThan(semver('2.0.0'))",
            "'abc'.find('[a-z]+') + 'a-b'.split('-').join(',').replace('a', 'b')",
            "b'ab' + bytes('\\u00e9') == b'\\xff' && r'\\d' != \"\\n\" && -9223372036854775808 < 0x7f",
            "{'a': 1, 2: [3.0, null]}",
            "sets.contains([1, 2], [2]) && lists.range(3).map(i, i * 2)[0] % 2 == 0",
            "format.dns1123Label().validate('A').hasValue()",
        ],
    ),
    Target::text(
        "formats",
        text_formats,
        &["date-time\x002024-02-29T12:30:00Z", "uuid\0a", "ipv6\0::1", "cidr\x0010.0.0.0/8", "email\0a@b.c"],
    ),
    Target::text("expand", expansion, &["$(A) $$(B) $(C", "a$"]),
    Target::text("redirect", redirect, &["http://10.0.0.1:8080/a?b", "/x", "https://[::1]/", "//10.0.0.1/"]),
];

fn label_selector(text: &str) {
    let Ok(selector) = LabelSelector::parse(text) else { return };
    let labels = |name: &str| (name == "a").then_some("b");
    let again = LabelSelector::parse(&selector.to_string()).expect("what it says parses");
    assert_eq!(selector.matches(labels), again.matches(labels), "{selector}");
    assert_eq!(selector.to_string(), again.to_string());
}

fn field_selector(text: &str) {
    let Ok(selector) = FieldSelector::parse(text) else { return };
    let again = FieldSelector::parse(&selector.to_string()).expect("what it says parses");
    assert_eq!(selector.0, again.0, "{selector}");
    let pods = kinds::lookup("pods").unwrap();
    if selector.check(pods).is_ok() {
        selector.matches(|_| "a");
    }
}

fn quantity(text: &str) {
    let Ok(quantity) = text.parse::<Quantity>() else { return };
    let shown = quantity.to_string();
    let again: Quantity = shown.parse().expect("what it says parses");
    assert_eq!(again, quantity, "{shown}");
    assert_eq!(again.to_string(), shown, "the canonical form is one");
}

fn times(text: &str) {
    if let Some(duration) = duration::parse(text) {
        duration::human(duration.as_secs().min(1 << 40) as i64);
    }
    let _ = cel::times::parse(text);
}

fn cron(text: &str) {
    let Ok(schedule) = Schedule::parse(text) else { return };
    let now: Timestamp = "2026-11-21T10:00:30Z".parse().unwrap();
    if let Some(next) = schedule.next(now, &TimeZone::UTC) {
        assert!(next > now, "{text}: {next}");
    }
}

fn jsonpath(text: &str) {
    static ROOT: LazyLock<Value> = LazyLock::new(
        || json!({"metadata": {"name": "x", "labels": {"a.b/c": "d"}}, "items": [{"a": 1, "b": [1, 2, 3]}, {"a": "2"}, null, [[], {}]]}),
    );
    let Ok(template) = text.parse::<Template>() else { return };
    let _ = template.render(&ROOT);
    template.values(&ROOT);
}

fn image_name(text: &str) {
    let Ok(name) = ImageName::parse(text) else { return };
    let again = ImageName::parse(&name.to_string()).expect("what it says parses");
    assert_eq!((again.key(), again.family()), (name.key(), name.family()), "{text}");
    assert_eq!(again.to_string(), name.to_string());
    let _ = (name.registry(), name.repository(), name.tag(), name.digest(), name.is_loopback(), name.is_local_only());
}

/// `USER`, passwd and group, all of them the image's.
fn image_user(text: &str) {
    let [spec, passwd, group] = parts::<3>(text);
    let Ok(ids) = resolve_user(passwd, group, spec) else { return };
    let all = [ids.uid, ids.gid].into_iter().chain(ids.groups.iter().copied());
    assert!(all.into_iter().all(|id| id <= i32::MAX as u32), "no id is -1 to the kernel: {ids:?}");
    assert!(ids.groups.is_sorted() && !ids.groups.contains(&ids.gid));
    let [user, wanted] = {
        let mut words = spec.splitn(2, ':');
        [words.next().unwrap_or(""), words.next().unwrap_or("")]
    };
    if let Ok(number) = user.parse::<i64>() {
        assert_eq!(i64::from(ids.uid), number, "a number is that number, whatever passwd says");
    }
    if let Ok(number) = wanted.parse::<i64>() {
        assert_eq!(i64::from(ids.gid), number);
    }
}

fn rest_path(text: &str) {
    let (path, rest) = text.split_once('?').unwrap_or((text, ""));
    let _ = paths::parse(&Default::default(), path);
    let query = query::Query::parse(rest);
    let _ = (query::options(&query), query.number::<u16>("port"), query.flag("tty"));
    let encoded: String = text.bytes().map(|byte| format!("%{byte:02x}")).collect();
    assert_eq!(paths::percent_decode(&encoded, true).as_deref(), Some(text.as_bytes()));
}

fn media_types(text: &str) {
    let mut headers = HeaderMap::new();
    for (name, value) in [ACCEPT, CONTENT_TYPE, ACCEPT_ENCODING].into_iter().zip(parts::<3>(text)) {
        let Ok(value) = value.parse() else { return };
        headers.insert(name, value);
    }
    let _ = (negotiate::wanted(&headers, None, true), negotiate::body_form(&headers), negotiate::patch_form(&headers));
}

fn cel(text: &str) {
    static OBJECT: LazyLock<cel::Value> = LazyLock::new(|| {
        cel::Value::from_json(&json!({
            "name": "web", "size": 3, "half": 0.5, "on": true, "nothing": null, "tags": ["a", "b", "c"],
            "labels": {"app": "x", "tier": "y"}, "ports": [{"n": 80, "p": "TCP"}, {"n": 443, "p": "TCP"}],
        }))
    });
    let env = Env::new([("o", Type::Dyn), ("n", Type::Int), ("s", Type::String)]);
    let Ok(program) = cel::compile(text, &env) else { return };
    let variables = [("o", OBJECT.clone()), ("n", cel::Value::Int(i64::MIN)), ("s", cel::Value::string("é"))];
    let run = || program.evaluate(&variables, &mut Budget::PER_CALL.clone());
    let (first, second) = (run(), run());
    if let (Ok(first), Ok(second)) = (first, second) {
        assert_eq!(first.text(), second.text(), "the same each time");
        first.to_json();
    }
}

fn text_formats(text: &str) {
    let [format, value] = parts(text);
    formats::is_of(format, value);
    let _ = (cel::url::Url::parse(value), cel::semver::parse(value, true), cel::semver::parse(value, false));
    // As a schema's pattern, too.
    if let Ok(pattern) = pattern::compiled(format) {
        pattern.is_match(value);
    }
}

fn expansion(text: &str) {
    let none = expand(text, |_| None);
    if let Ok(once) = &none {
        assert!(once.len() <= text.len(), "who is unknown stays as it is");
    }
    if let Ok(long) = expand(text, |_| Some(text)) {
        assert!(long.len() <= ONE, "no longer than a process may have it");
    }
}

fn redirect(text: &str) {
    let address = "10.0.0.1:80".parse().unwrap();
    let from = http::Target { address, tls: false, path: "/".into(), headers: Vec::new() };
    if let Some(to) = http::redirect(&from, text) {
        assert_eq!(to.address.ip(), from.address.ip(), "nobody is sent to another host");
    }
}
