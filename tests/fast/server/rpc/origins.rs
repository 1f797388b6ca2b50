//! WebSockets of pages of other sites, at the JSON-RPC face.

use futures::{SinkExt, StreamExt};
use serde_json::json;
use tokio::net::UnixStream;
use tokio_tungstenite::tungstenite::{Error, Message, client::IntoClientRequest};

use super::Served;

/// What a WebSocket with these headers is answered: the code that refuses it, or what a method says.
async fn opened(served: &Served, headers: &[(&'static str, &str)]) -> Result<String, u16> {
    let mut request = "ws://podwright.test:6443/rpc".into_client_request().unwrap();
    for (name, value) in headers {
        request.headers_mut().append(*name, value.parse().unwrap());
    }
    let stream = UnixStream::connect(&served.path).await.unwrap();
    let (mut socket, _) = match tokio_tungstenite::client_async(request, stream).await {
        Ok(open) => open,
        Err(Error::Http(refused)) => return Err(refused.status().as_u16()),
        Err(other) => panic!("{other}"),
    };
    let ask = json!({"jsonrpc": "2.0", "id": 1, "method": "health", "params": {"of": "livez"}}).to_string();
    socket.send(Message::text(ask)).await.unwrap();
    Ok(socket.next().await.unwrap().unwrap().into_text().unwrap().to_string())
}

#[tokio::test]
async fn a_websocket_of_another_origin_is_refused_at_the_json_rpc_face() {
    let served = Served::new().await;
    for own in [&[][..], &[("origin", "https://podwright.test:6443")]] {
        let said = opened(&served, own).await.unwrap_or_else(|code| panic!("{own:?}: {code}"));
        assert!(said.contains("result"), "{said}");
    }
    for other in
        ["https://evil.test", "https://podwright.test", "https://podwright.test:6444", "null", "http://localhost"]
    {
        assert_eq!(opened(&served, &[("origin", other)]).await, Err(403), "{other}");
    }
    let two = [("origin", "https://podwright.test:6443"), ("origin", "https://evil.test")];
    assert_eq!(opened(&served, &two).await, Err(403));
    // What a proxy of the browser's own machine passes on, which no page can say of itself.
    let dashboard = [("origin", "http://localhost:8001"), ("x-forwarded-for", "127.0.0.1")];
    assert!(opened(&served, &dashboard).await.is_ok());
}
