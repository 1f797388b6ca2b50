//! The order of changes, and the end of the stream.

use futures::FutureExt;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::*;
use podwright_client::Key;

fn source<K: Send + Sync + 'static>(wrap: fn(Delta<K>) -> News) -> (UnboundedSender<Delta<K>>, Box<dyn Heard>) {
    let (sender, deltas) = unbounded_channel();
    (sender, Box::new(Source { deltas, wrap }))
}

fn delta<K>(name: &str) -> Delta<K> {
    Delta { key: Key::new("", name), old: None, new: None, undecodable: None }
}

fn name(news: Option<News>) -> Option<String> {
    news.map(|news| match news {
        News::Node(delta) => format!("node {}", delta.key),
        News::Pod(delta) => format!("pod {}", delta.key),
        _ => "of another kind".to_owned(),
    })
}

#[test]
fn what_pods_are_judged_by_is_heard_before_them() {
    let ((nodes, first), (pods, second)) = (source(News::Node), source(News::Pod));
    let mut changes = Changes(vec![first, second]);
    assert!(pods.send(delta("a")).is_ok() && pods.send(delta("b")).is_ok() && nodes.send(delta("n")).is_ok());
    assert_eq!(name(changes.next().now_or_never().flatten()).as_deref(), Some("node n"));
    assert_eq!(name(changes.known()).as_deref(), Some("pod a"));
    assert!(nodes.send(delta("m")).is_ok());
    let rest: Vec<_> = std::iter::from_fn(|| name(changes.known())).collect();
    assert_eq!(rest, ["node m", "pod b"]);
}

#[tokio::test]
async fn they_end_when_the_last_kind_has_ended() {
    let ((nodes, first), (pods, second)) = (source(News::Node), source(News::Pod));
    let mut changes = Changes(vec![first, second]);
    drop(nodes);
    assert!(changes.next().now_or_never().is_none(), "Pods may still come");
    let sent = async { pods.send(delta("a")).is_ok() };
    let (heard, sent) = tokio::join!(changes.next(), sent);
    assert_eq!((name(heard).as_deref(), sent), (Some("pod a"), true));
    drop(pods);
    assert!(changes.next().await.is_none());
}
