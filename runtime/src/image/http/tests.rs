//! What bounds an answer, whom a redirect takes what to, and how a proxy is gone through: against servers on loopback.

use std::sync::Mutex;
use std::time::Instant;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use super::*;

const PATIENCE: Duration = Duration::from_secs(1);

/// The head of the next request on a connection; `None` at its end.
async fn head(client: &mut BufReader<TcpStream>) -> Option<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if client.read_line(&mut head).await.ok()? == 0 {
            return None;
        }
    }
    Some(head)
}

/// A server of one connection: it writes `piece` after a request, again and again, and ends when nobody is there any more.
async fn trickle(piece: &'static [u8], pause: Duration) -> (Url, tokio::task::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v2/", listener.local_addr().unwrap()).parse().unwrap();
    let server = tokio::spawn(async move {
        let mut client = BufReader::new(listener.accept().await.unwrap().0);
        head(&mut client).await.unwrap();
        while client.write_all(piece).await.is_ok() {
            tokio::time::sleep(pause).await;
        }
    });
    (url, server)
}

/// A server that answers each request by its path, and the heads that it was asked by, with the number of their connections.
async fn serve(answer: impl Fn(&str) -> String + Send + Sync + 'static) -> (Url, Arc<Mutex<Vec<(usize, String)>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v2/", listener.local_addr().unwrap()).parse().unwrap();
    let (asked, answer) = (Arc::new(Mutex::new(Vec::new())), Arc::new(answer));
    let heard = asked.clone();
    tokio::spawn(async move {
        for connection in 0.. {
            let mut client = BufReader::new(listener.accept().await.unwrap().0);
            let (heard, answer) = (heard.clone(), answer.clone());
            tokio::spawn(async move {
                while let Some(head) = head(&mut client).await {
                    let said = answer(head.split(' ').nth(1).unwrap_or_default());
                    heard.lock().unwrap().push((connection, head));
                    client.write_all(said.as_bytes()).await.unwrap();
                    if said.contains("connection: close") {
                        break;
                    }
                }
            });
        }
    });
    (url, asked)
}

fn said(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{headers}content-length: {}\r\n\r\n{body}", body.len())
}

fn client(url: &Url) -> Client {
    let place = &url[Position::BeforeHost..Position::AfterPort];
    Client::new(&Guard::new(place, true), PATIENCE).unwrap()
}

async fn text(mut response: Response) -> String {
    let mut text = Vec::new();
    while let Some(bytes) = response.chunk().await.unwrap() {
        text.extend_from_slice(&bytes);
    }
    String::from_utf8(text).unwrap()
}

#[tokio::test]
async fn a_head_that_never_ends_is_waited_for_no_longer_than_for_none() {
    for (piece, pause, why) in [
        (&b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"[..], 0, "informational answers"),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n", 200, "no answer after 1 s"),
        (b"HTTP/1.1 100 Continue\r\n\r\n", 0, "informational answers"),
        (b"H", 100, "failed to do request"),
        (b"", 100, "no answer after 1 s"),
    ] {
        let (url, server) = trickle(piece, Duration::from_millis(pause)).await;
        let (client, began) = (client(&url), Instant::now());
        let error = client.get(&url, HeaderMap::new()).await.err().unwrap().to_string();
        assert!(error.contains(why), "{error}");
        assert!(began.elapsed() < 3 * PATIENCE, "{error}: {:?}", began.elapsed());
        // Nobody is there any more, although whoever asked is. A server that writes nothing does not see it.
        if !piece.is_empty() {
            tokio::time::timeout(Duration::from_secs(5), server).await.expect(why).unwrap();
        }
    }
}

/// Each header is a new line of a head that may have a hundred of them.
#[tokio::test]
async fn headers_that_trickle_are_waited_for_no_longer_than_for_none() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url: Url = format!("http://{}/v2/", listener.local_addr().unwrap()).parse().unwrap();
    let server = tokio::spawn(async move {
        let mut client = BufReader::new(listener.accept().await.unwrap().0);
        head(&mut client).await.unwrap();
        client.write_all(b"HTTP/1.1 200 OK\r\n").await.unwrap();
        while client.write_all(b"a: b\r\n").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    let client = client(&url);
    let error = client.get(&url, HeaderMap::new()).await.err().unwrap().to_string();
    assert!(error.contains("no answer after 1 s"), "{error}");
    tokio::time::timeout(Duration::from_secs(5), server).await.expect("it goes on").unwrap();
}

#[tokio::test]
async fn a_few_informational_answers_are_none() {
    let hints = "HTTP/1.1 103 Early Hints\r\n\r\n".repeat(3);
    let (url, _) = serve(move |_| format!("{hints}{}", said("200 OK", "", "here"))).await;
    assert_eq!(text(client(&url).get(&url, HeaderMap::new()).await.unwrap()).await, "here");
}

#[tokio::test]
async fn a_connection_serves_again_and_one_that_was_closed_does_not() {
    let (url, asked) = serve(|path| match path {
        "/v2/last" => said("200 OK", "connection: close\r\n", "last"),
        "/v2/away" => said("307 Temporary Redirect", "location: /v2/here\r\n", "it is elsewhere"),
        _ => said("200 OK", "", "more"),
    })
    .await;
    let client = client(&url);
    for path in ["a", "b", "away", "last", "c"] {
        text(client.get(&url.join(path).unwrap(), HeaderMap::new()).await.unwrap()).await;
    }
    let asked: Vec<(usize, String)> =
        asked.lock().unwrap().iter().map(|(n, head)| (*n, head.split(' ').nth(1).unwrap().to_owned())).collect();
    let expected = [(0, "/v2/a"), (0, "/v2/b"), (0, "/v2/away"), (0, "/v2/here"), (0, "/v2/last"), (1, "/v2/c")];
    assert_eq!(asked, expected.map(|(n, path)| (n, path.to_owned())));
}

#[test]
fn credentials_stay_behind_where_a_redirect_leads_elsewhere() {
    let url = |url: &str| Url::parse(url).unwrap();
    let headers = HeaderMap::from_iter([
        (AUTHORIZATION, HeaderValue::from_static("Basic c2VjcmV0")),
        (ACCEPT, HeaderValue::from_static("application/json")),
    ]);
    for (to, stays) in [
        ("https://registry.example/v2/blob", true),
        ("https://registry.example:443/v2/blob", true),
        ("https://registry.example:444/v2/blob", false),
        ("http://registry.example/v2/blob", false),
        ("https://cdn.example/v2/blob", false),
        ("https://registry.example.evil/v2/blob", false),
    ] {
        let carried = carried(headers.clone(), &url("https://registry.example/v2/"), &url(to));
        assert_eq!((carried.contains_key(AUTHORIZATION), carried.contains_key(ACCEPT)), (stays, true), "{to}");
    }
}

#[tokio::test]
async fn redirects_end() {
    let (url, asked) = serve(|path| said("301 Moved Permanently", &format!("location: {path}x\r\n"), "")).await;
    let error = client(&url).get(&url, HeaderMap::new()).await.err().unwrap().to_string();
    assert!(error.contains("too many redirects"), "{error}");
    assert_eq!(asked.lock().unwrap().len(), 1 + MAX_REDIRECTS);
}

#[tokio::test]
async fn a_body_that_stops_is_not_waited_for() {
    let (url, _) = serve(|_| "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nfive.".to_owned()).await;
    let mut response = client(&url).get(&url, HeaderMap::new()).await.unwrap();
    assert_eq!(response.chunk().await.unwrap().unwrap(), "five.");
    let error = response.chunk().await.unwrap_err().to_string();
    assert!(error.contains("no more of the answer after 1 s"), "{error}");
}

/// A proxy that does as it is told but for whom it connects to, with what it was asked.
async fn proxy(answer: &'static str) -> (String, tokio::task::JoinHandle<(String, Vec<u8>)>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let proxy = tokio::spawn(async move {
        let mut client = BufReader::new(listener.accept().await.unwrap().0);
        let asked = head(&mut client).await.unwrap();
        client.write_all(answer.as_bytes()).await.unwrap();
        let mut first = vec![0; 3];
        let read = client.read(&mut first).await.unwrap_or_default();
        first.truncate(read);
        (asked, first)
    });
    (address, proxy)
}

#[tokio::test]
async fn a_proxy_is_asked_for_the_registry_and_sees_only_tls() {
    let (address, asked) = proxy("HTTP/1.1 200 Connection established\r\n\r\n").await;
    let url = "https://registry.example/v2/".parse().unwrap();
    let error = through(&address, &url).await;
    let (asked, first) = asked.await.unwrap();
    assert!(asked.starts_with("CONNECT registry.example:443 HTTP/1.1\r\n"), "{asked}");
    assert!(asked.contains("host: registry.example:443\r\n"), "{asked}");
    assert!(asked.contains("proxy-authorization: Basic dXNlcjp3b3Jk\r\n"), "{asked}");
    // A record of TLS with a handshake in it.
    assert_eq!(first[..2], [0x16, 0x03], "{error}");
    let (address, _) = proxy("HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n").await;
    let error = through(&address, &url).await;
    assert!(error.contains("the proxy answers 403 Forbidden"), "{error}");
}

/// Why there is no connection to a URL through this proxy.
async fn through(address: &str, url: &Url) -> String {
    let guard = Guard::new("registry.example", false);
    let proxies = hyper_util::client::proxy::matcher::Matcher::builder().all(format!("http://user:word@{address}"));
    let connector = Connector::through(guard, PATIENCE, proxies.build()).unwrap();
    match connector.connect(url).await {
        Ok(_) => panic!("nobody speaks TLS there"),
        Err(why) => chain(&*why),
    }
}
