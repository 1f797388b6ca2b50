//! The options of `/containerLogs`, rejected with upstream's messages.

use podwright::api::rpc::{LogOptions, LogStream};
use podwright::node::endpoints::logs::options;

fn parse(query: &str) -> Result<LogOptions, (u16, String)> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (key.to_owned(), value.to_owned())
    });
    options(&pairs.collect::<Vec<_>>(), "c").map_err(|(status, why)| (status.as_u16(), why))
}

#[test]
fn options_are_those_of_pod_logs() {
    let all = "follow=true&previous=1&timestamps&tailLines=5&limitBytes=9&sinceSeconds=3&other=x";
    let wanted = LogOptions {
        container: "c".to_owned(),
        follow: true,
        previous: true,
        since_seconds: Some(3),
        since_time: None,
        timestamps: true,
        tail_lines: Some(5),
        limit_bytes: Some(9),
        stream: None,
    };
    assert_eq!(parse(all), Ok(wanted));
    assert_eq!(parse(""), Ok(LogOptions { container: "c".to_owned(), ..LogOptions::default() }));
    assert_eq!(parse("tail=7&tailLines=5").unwrap().tail_lines, Some(7), "the older name goes first");
    assert_eq!(parse("tail=all&tailLines=5").unwrap().tail_lines, None);
    assert!(!parse("follow=False&timestamps=0").unwrap().follow);
}

#[test]
fn what_is_wrong_is_refused_as_upstream_does() {
    let invalid = Err((422, r#"{"message": "Invalid request."}"#.to_owned()));
    for query in [
        "tailLines=-1",
        "limitBytes=0",
        "sinceSeconds=0",
        "sinceSeconds=1&sinceTime=2026-01-01T00:00:00Z",
        "sinceSeconds=1&sinceTime=",
        "stream=stdout",
        "stream=",
        "stream=Stdout&tailLines=1",
    ] {
        assert_eq!(parse(query), invalid, "{query}");
    }
    let undecoded = Err((400, r#"{"message": "Unable to decode query."}"#.to_owned()));
    for query in [
        "tailLines=x",
        "tailLines=",
        "tail=x",
        "sinceSeconds=",
        "limitBytes=99999999999999999999",
        "sinceTime=yesterday",
    ] {
        assert_eq!(parse(query), undecoded, "{query}");
    }
    for (query, stream) in [
        ("stream=All&tailLines=1", None),
        ("stream=Stdout", Some(LogStream::Stdout)),
        ("stream=Stderr", Some(LogStream::Stderr)),
    ] {
        assert_eq!(parse(query).unwrap().stream, stream, "{query}");
    }
}
