//! `-f URL`: reads a manifest from a web server.

use std::time::Duration;

use super::error::Failure;

/// The largest manifest.
const LARGEST: usize = 64 << 20;
/// The time limit for a manifest.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How often a server is tried that reports an internal error (upstream: `--http-attempts`, as far as it is used).
const ATTEMPTS: u32 = 3;

/// Whether an argument of `-f` is a URL.
pub fn is_url(text: &str) -> bool {
    text.starts_with("http://") || text.starts_with("https://")
}

/// The content of a URL, in UTF-8. Blocks, like reading manifests from files.
pub fn text(url: &str) -> Result<String, Failure> {
    let fetched = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(fetch(url))
    };
    let ended = std::thread::scope(|scope| scope.spawn(fetched).join());
    ended.unwrap_or_else(|_| Err(Failure::usage(format!("unable to read URL \"{url}\""))))
}

async fn fetch(url: &str) -> Result<String, Failure> {
    let unread = |why: String| Failure::usage(format!("unable to read URL \"{url}\", {why}"));
    let tls = podwright_tls::trusting_system().map_err(|e| unread(causes(&e)))?;
    let client = reqwest::Client::builder().tls_backend_preconfigured(tls);
    let client = client.timeout(TIMEOUT).user_agent(concat!("podwright/", env!("CARGO_PKG_VERSION")));
    let client = client.build().map_err(|e| unread(causes(&e)))?;
    let mut left = ATTEMPTS;
    loop {
        left -= 1;
        let answer = client.get(url).send().await.map_err(|e| unread(causes(&e)))?;
        let status = answer.status();
        if status.is_success() {
            return read(answer).await.map_err(unread);
        }
        if !status.is_server_error() || left == 0 {
            return Err(unread(format!("server reported {status}, status code={}", status.as_u16())));
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

async fn read(mut answer: reqwest::Response) -> Result<String, String> {
    let mut bytes = Vec::new();
    while let Some(part) = answer.chunk().await.map_err(|e| causes(&e))? {
        if bytes.len() + part.len() > LARGEST {
            return Err(format!("it has more than {LARGEST} bytes"));
        }
        bytes.extend_from_slice(&part);
    }
    String::from_utf8(bytes).map_err(|_| "it is not text in UTF-8".to_owned())
}

/// An error with its causes.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text += &format!(": {cause}");
        next = cause.source();
    }
    text
}
