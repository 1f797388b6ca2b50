//! Connections on simulated streams.

use std::task::Waker;

use tokio::io::{AsyncWriteExt, ReadBuf};

use super::*;
use crate::Config;
use podwright_api::Env;
use podwright_store::Memory;

/// A stream whose reads take CPU time, as with TLS.
struct Dear<S>(S);

impl<S: AsyncRead + Unpin> AsyncRead for Dear<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        std::thread::sleep(Duration::from_millis(30));
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Dear<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// Open as long as the handle exists.
async fn context() -> (Arc<ConnectionContext>, jsonrpsee::server::ServerHandle) {
    let server = Server::open(Arc::new(Memory::new()), Env::system(), Config::default()).await.unwrap();
    let (stop, handle) = stop_channel();
    let context = ConnectionContext {
        face: Face::new(server.clone()),
        endpoint: Endpoint::new(server.clone()).unwrap(),
        limiter: ConnectionLimiter::new(&server.config.limits),
        server,
        stop,
    };
    (Arc::new(context), handle)
}

#[tokio::test]
async fn what_is_no_request_is_on_the_account_of_where_it_comes_from() {
    for (is_h2, beginning) in [(false, &b"GET /healthz HTTP/1.1\r\n"[..]), (true, &b"PRI * HTTP/2.0\r\n"[..])] {
        let ((context, _handle), address) = (context().await, [10, 0, 0, 1].into());
        let pass = context.limiter.admit(address).unwrap();
        let (mut client, near) = tokio::io::duplex(1 << 10);
        let serving = connection(context.clone(), Dear(near), Some(Peer::default()), Some(pass.guest()), is_h2);
        let serving = tokio::spawn(serving);
        let cpu = context.server.limiters.cpu.clone();
        let used_much = || cpu.share_at(address).turn(&mut Context::from_waker(Waker::noop())).is_pending();
        // It arrives bit by bit.
        for byte in beginning.chunks(1) {
            client.write_all(byte).await.unwrap();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(used_much(), "HTTP/2: {is_h2}");
        serving.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_a_turn_has_his_time_to_ask_afterwards() {
    let (patience, begun) = (Duration::from_secs(32), Instant::now());
    greeting(patience, Arc::default(), Waited::default()).await;
    assert_eq!(begun.elapsed(), patience);
    for (waits, most) in [(20, 52), (40, 72), (1000, 96)] {
        let (begun, waited) = (Instant::now(), Waited::default());
        let greeting = greeting(patience, Arc::default(), waited.clone());
        let waiting = async {
            waited.note(true);
            tokio::time::sleep(Duration::from_secs(waits)).await;
            waited.note(false);
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = greeting => {}
            () = waiting => {}
        }
        assert_eq!(begun.elapsed().as_secs(), most);
    }
    let asked = greeting(patience, Arc::new(AtomicBool::new(true)), Waited::default());
    assert!(tokio::time::timeout(patience * 10, asked).await.is_err());
}
