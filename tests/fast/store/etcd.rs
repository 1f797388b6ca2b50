//! What only a store in a real etcd can get wrong: others who write to it, an etcd that goes, comes, or is another one; TLS.

use std::{
    io::Read,
    sync::Arc,
    time::{Duration, Instant},
};

use rcgen::{BasicConstraints, Certificate, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::TlsAcceptor;

use podwright::store::{Compare, Error, Etcd, EtcdConfig, EtcdTls, Outcome, Range, Revision, Store, Txn, Watch};

use super::{committed, delete, put, revisions};
use crate::etcd::{EtcdServer, Signed};

fn config(server: &EtcdServer, prefix: &str) -> EtcdConfig {
    EtcdConfig {
        servers: vec![server.url().to_owned()],
        root: "/registry".to_owned(),
        prefix: prefix.to_owned(),
        ..EtcdConfig::default()
    }
}

async fn open(server: &EtcdServer, prefix: &str) -> Etcd {
    Etcd::open(config(server, prefix)).await.unwrap()
}

/// Reads until everything up to a revision has been shown; how many changes there were.
async fn reached(watch: &mut Watch, revision: Revision) -> usize {
    let mut changes = 0;
    loop {
        let next = tokio::time::timeout(Duration::from_secs(30), watch.recv()).await.expect("the watch goes on");
        let batch = next.expect("the watch goes on").unwrap();
        changes += batch.changes.len();
        if batch.reached >= revision {
            return changes;
        }
    }
}

/// Waits until it is so.
async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !holds().await {
        assert!(Instant::now() < end, "{what}: not within 30 s");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_server_writes_another_one_sees() {
    let server = EtcdServer::start();
    let (one, two) = (open(&server, "/registry").await, open(&server, "/registry").await);
    let begun = one.revision().await.unwrap();
    let mut watch = one.watch("/registry/pods/", begun).await.unwrap();
    let first = committed(&two, put("/registry/pods/a", "1")).await;
    assert_eq!(one.revision().await.unwrap(), first);
    assert_eq!(one.get("/registry/pods/a").await.unwrap().unwrap().mod_revision, first);
    let unchanged = vec![Compare::Unchanged("/registry/pods/a".to_owned(), first)];
    let second = committed(&one, Txn { compares: unchanged.clone(), ..put("/registry/pods/a", "2") }).await;
    // Who is late is shown what there is.
    let late = two.commit(Txn { compares: unchanged, ..put("/registry/pods/a", "3") }).await.unwrap();
    let Outcome::Refused(found) = late else { panic!("{late:?}") };
    assert_eq!(found[0].as_ref().map(|e| (e.mod_revision, e.value.as_ref())), Some((second, &b"2"[..])));
    let third = committed(&two, delete("/registry/pods/a")).await;
    assert_eq!(revisions(&mut watch, third).await.unwrap(), [first, second, third]);
    // A page is of one revision, whoever writes meanwhile; what is compacted is so for all.
    let page = one.list(Range { at: Some(second), ..Range::default() }).await.unwrap();
    assert_eq!((page.entries.len(), page.entries[0].value.as_ref()), (1, &b"2"[..]));
    two.compact(third).await.unwrap();
    let error = one.list(Range { at: Some(first), ..Range::default() }).await.unwrap_err();
    assert!(matches!(error, Error::Compacted { asked, oldest } if asked == first && oldest == third), "{error}");
    let error = one.history("", first).await.unwrap_err();
    assert!(matches!(error, Error::Compacted { oldest, .. } if oldest == third), "{error}");
    assert_eq!(one.oldest().await.unwrap(), third);
}

#[tokio::test(flavor = "multi_thread")]
async fn other_prefixes_are_not_seen_and_hold_up_nobody() {
    let server = EtcdServer::start();
    let (ours, theirs) = (open(&server, "/ours").await, open(&server, "/theirs").await);
    let mut watch = ours.watch("/registry/", ours.revision().await.unwrap()).await.unwrap();
    let first = committed(&ours, put("/registry/pods/a", "ours")).await;
    for n in 0..3 {
        committed(&theirs, put("/registry/pods/a", format!("{n}"))).await;
        let now = ours.revision().await.unwrap();
        assert_eq!(reached(&mut watch, now).await, usize::from(n == 0), "one of ours, and then none");
    }
    // Who begins behind what there was of ours is told as well that there is no more.
    let now = ours.revision().await.unwrap();
    for prefix in ["/registry/", "/registry/none/"] {
        let mut late = ours.watch(prefix, first).await.unwrap();
        assert_eq!(reached(&mut late, now).await, 0, "{prefix}");
    }
    let page = ours.list(Range::default()).await.unwrap();
    let found: Vec<_> = page.entries.iter().map(|e| (e.key.to_string(), e.value.clone())).collect();
    assert_eq!(found, [("/registry/pods/a".to_owned(), "ours".into())]);
    assert_eq!(page.remaining, 0);
    // What an operator sees with etcdctl is as upstream has it.
    let listed = server.ctl(&["get", "--prefix", "--keys-only", "/ours/"]);
    assert_eq!(listed.split_whitespace().collect::<Vec<_>>(), ["/ours/", "/ours/pods/a"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_that_is_killed_loses_nothing_and_nobody_starts_over() {
    let mut server = EtcdServer::start();
    let store = std::sync::Arc::new(open(&server, "/registry").await);
    let begun = store.revision().await.unwrap();
    let mut watch = store.watch("", begun).await.unwrap();
    let mut acknowledged = Vec::new();
    for round in 0..3 {
        for n in 0..20 {
            let key = format!("/registry/configmaps/{round}/{n}");
            acknowledged.push((committed(&*store, put(&key, "1")).await, key));
        }
        server.kill();
        until("it is noticed", async || store.trouble().is_some()).await;
        // Reads wait for it; a write that was not sent waits as well.
        let (reader, writer) = (store.clone(), store.clone());
        let read = tokio::spawn(async move { reader.revision().await });
        let key = format!("/registry/configmaps/{round}/waits");
        let waits = key.clone();
        let write = tokio::spawn(async move { committed(&*writer, put(&waits, "1")).await });
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(!read.is_finished() && !write.is_finished());
        server.spawn();
        let newest = acknowledged.last().unwrap().0;
        assert!(read.await.unwrap().unwrap() >= newest, "revisions never go back");
        acknowledged.push((write.await.unwrap(), key));
        until("it is watched again", async || store.trouble().is_none()).await;
    }
    let wanted: Vec<Revision> = acknowledged.iter().map(|(revision, _)| *revision).collect();
    let last = *wanted.last().unwrap();
    assert_eq!(revisions(&mut watch, last).await.unwrap(), wanted, "each is shown once, in order");
    let there: Vec<String> =
        store.list(Range::default()).await.unwrap().entries.iter().map(|e| e.key.to_string()).collect();
    assert!(acknowledged.iter().all(|(_, key)| there.contains(key)));
    // One that stays away is an error that says so.
    server.kill();
    let error = store.commit(put("/registry/a", "1")).await.unwrap_err();
    assert!(matches!(&error, Error::Unavailable(why) if why.contains(server.url())), "{error}");
    let error = store.get("/registry/a").await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_that_has_lost_writes_ends_the_store() {
    let mut server = EtcdServer::start();
    let store = open(&server, "/registry").await;
    committed(&store, put("/registry/a", "1")).await;
    let mut snapshot = store.backup().await.unwrap();
    let saved = server.folder().join("saved");
    std::io::copy(&mut snapshot, &mut std::fs::File::create(&saved).unwrap()).unwrap();
    for n in 0..5 {
        committed(&store, put("/registry/b", format!("{n}"))).await;
    }
    server.kill();
    server.restore(&saved, "restored");
    server.spawn_on("restored");
    let why = tokio::time::timeout(Duration::from_secs(30), store.failed()).await.expect("it says so");
    assert!(matches!(why, Error::Damaged(_)), "{why}");
    assert!(store.revision().await.is_err() && store.prove().await.is_err() && store.trouble().is_some());
    // The next start goes on from what there is.
    let store = open(&server, "/registry").await;
    assert_eq!(store.get("/registry/a").await.unwrap().unwrap().value, "1");
    assert_eq!(store.get("/registry/b").await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_are_whole_however_much_there_is_and_what_is_too_large_is_refused() {
    let server = EtcdServer::start();
    let store = open(&server, "/registry").await;
    for batch in 0..12 {
        let writes =
            (0..100).flat_map(|n| put(&format!("/registry/pods/{:04}", batch * 100 + n), vec![b'x'; 9_000]).writes);
        committed(&store, Txn { writes: writes.collect(), ..Txn::default() }).await;
    }
    let now = store.revision().await.unwrap();
    let after = Some("/registry/pods/0099".to_owned());
    let whole = store.list(Range::default()).await.unwrap();
    assert_eq!((whole.entries.len(), whole.remaining, whole.revision), (1200, 0, now));
    assert!(whole.entries.is_sorted_by_key(|entry| entry.key.clone()));
    committed(&store, delete("/registry/pods/0100")).await;
    let range = Range { prefix: "/registry/pods/".to_owned(), after, limit: 700, at: Some(now) };
    let page = store.list(range).await.unwrap();
    assert_eq!((page.entries.len(), page.remaining, page.revision), (700, 400, now));
    assert_eq!(&*page.entries[0].key, "/registry/pods/0100");
    let error = store.commit(put("/registry/large", vec![b'x'; 2 << 20])).await.unwrap_err();
    assert!(matches!(error, Error::TooLarge(_)), "{error}");
    let error = store.commit(put("/elsewhere/a", "1")).await.unwrap_err();
    assert!(error.to_string().contains("\"/elsewhere/a\" is not below"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_is_away_is_made_up_for_by_another_one() {
    let server = EtcdServer::start();
    let mut config = config(&server, "/registry");
    // Nobody listens there.
    config.servers.insert(0, "http://127.0.0.1:9".to_owned());
    let store = Etcd::open(config).await.unwrap();
    let mut watch = store.watch("", store.revision().await.unwrap()).await.unwrap();
    let done = committed(&store, put("/registry/a", "1")).await;
    assert_eq!(revisions(&mut watch, done).await.unwrap(), [done]);
}

#[tokio::test(flavor = "multi_thread")]
async fn both_sides_show_their_certificates() {
    let Signed { authority, certificate, key } = &Signed::new();
    let server = EtcdServer::start_with_tls(&Signed {
        authority: authority.clone(),
        certificate: certificate.clone(),
        key: key.clone(),
    });
    let with = |authorities: &str, identity: Option<(&str, &str)>| {
        let identity = identity.map(|(certificate, key)| (certificate.into(), key.into()));
        let tls = Some(EtcdTls { authorities: authorities.into(), identity });
        Etcd::open(EtcdConfig { tls, ..config(&server, "/registry") })
    };
    // One that nothing can be checked by, as files of many authorities have some, is as if it were not there.
    let unusable = "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n";
    let none = with(unusable, None).await.err().expect("there is no other");
    assert!(none.to_string().contains("the authorities: "), "{none}");
    let store = with(&format!("{unusable}{authority}"), Some((certificate, key))).await.unwrap();
    let mut watch = store.watch("", store.revision().await.unwrap()).await.unwrap();
    let done = committed(&store, put("/registry/a", "1")).await;
    assert_eq!(revisions(&mut watch, done).await.unwrap(), [done]);
    let other = Signed::new();
    let refused = with(&other.authority, Some((certificate, key))).await.err().expect("it is not believed");
    assert!(refused.to_string().contains("invalid peer certificate"), "{refused}");
    for identity in [None, Some((&*other.certificate, &*other.key))] {
        // etcd says why, or just closes the connection.
        let refused = with(authority, identity).await.err().expect("it is refused");
        assert!(matches!(&refused, Error::Unavailable(why) if why.contains(server.url())), "{refused}");
    }
    let plain = Etcd::open(config(&server, "/registry")).await.err().expect("it is refused");
    assert!(plain.to_string().contains("an authority"), "{plain}");
}

/// Ten that have one name can follow each other in hundreds of thousands of orders.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_shows_ten_authorities_of_one_name_is_refused() {
    let authority = || certificate(IsCa::Ca(BasicConstraints::Unconstrained)).0;
    let (own, key) = certificate(IsCa::NoCa);
    let mut shown = vec![own.der().clone()];
    shown.extend((0..10).map(|_| authority().der().clone()));
    let refused = refused(shown, key, &authority().pem()).await;
    assert!(refused.contains("10 intermediate certificates, more than 4"), "{refused}");
}

/// Nothing of a server that speaks something else is taken for an answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_does_not_agree_to_http_2_is_refused() {
    let (own, key) = certificate(IsCa::Ca(BasicConstraints::Unconstrained));
    let signed = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let leaf = KeyPair::generate().unwrap();
    let signed = signed.signed_by(&leaf, &Issuer::new(params(IsCa::Ca(BasicConstraints::Unconstrained)), key)).unwrap();
    let refused = refused(vec![signed.der().clone()], leaf, &own.pem()).await;
    assert!(refused.contains("it does not speak HTTP/2"), "{refused}");
}

fn params(is_ca: IsCa) -> CertificateParams {
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, "same");
    params.is_ca = is_ca;
    params
}

fn certificate(is_ca: IsCa) -> (Certificate, KeyPair) {
    let key = KeyPair::generate().unwrap();
    (params(is_ca).self_signed(&key).unwrap(), key)
}

/// Why a member that shows these certificates, and agrees to no protocol, is none.
async fn refused(shown: Vec<CertificateDer<'static>>, key: KeyPair, authority: &str) -> String {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let acceptor = TlsAcceptor::from(Arc::new(config.with_no_client_auth().with_single_cert(shown, key).unwrap()));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let serve = async {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let _ = acceptor.accept(stream).await;
        }
    };
    let tls = Some(EtcdTls { authorities: authority.into(), identity: None });
    let root = "/registry".to_owned();
    let open = Etcd::open(EtcdConfig { servers: vec![url], prefix: root.clone(), root, tls, ..EtcdConfig::default() });
    tokio::select! {
        opened = open => opened.err().expect("it is refused").to_string(),
        () = serve => unreachable!("it serves for ever"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_is_etcds_own_snapshot() {
    let server = EtcdServer::start();
    let scratch = server.folder().to_owned();
    let store = Etcd::open(EtcdConfig { scratch, ..config(&server, "/registry") }).await.unwrap();
    committed(&store, put("/registry/configmaps/a", "kept")).await;
    let mut content = Vec::new();
    store.backup().await.unwrap().read_to_end(&mut content).unwrap();
    assert!(content.windows(4).any(|part| part == b"kept") && content.len() as u64 > 32);
    assert!(store.size().await.is_some_and(|size| size > 0));
    let left: Vec<_> = std::fs::read_dir(server.folder()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "nothing is left beside the data and the log: {left:?}");
}
