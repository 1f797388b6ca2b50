//! Tests of chains: their length limit, and the cost of long ones.

use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::client::WebPkiServerVerifier;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConnection, RootCertStore, ServerConfig, ServerConnection};

use super::*;

type Chain = (RootCertStore, CertificateDer<'static>, Vec<CertificateDer<'static>>);

fn params(name: &str, is_ca: bool) -> CertificateParams {
    let mut params = CertificateParams::new(vec!["a.test".to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    if is_ca {
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    }
    params
}

/// An authority, a certificate, and this many in between, each signed by the next; all with the same name, or different ones.
fn chain(length: usize, one_name: bool) -> Chain {
    let key = || KeyPair::generate().unwrap();
    let mut signer = CertifiedIssuer::self_signed(params("root", true), key()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(signer.der().clone()).unwrap();
    let mut between = Vec::new();
    for n in 0..length {
        let name = if one_name { "same".to_owned() } else { n.to_string() };
        signer = CertifiedIssuer::signed_by(params(&name, true), key(), &signer).unwrap();
        between.insert(0, signer.der().clone());
    }
    let own = key();
    let shown = params("a.test", false).signed_by(&own, &signer).unwrap();
    (roots, shown.der().clone(), between)
}

/// The results of a client and a server verifying this.
fn verified((roots, shown, between): &Chain) -> [Result<(), String>; 2] {
    let (provider, roots) = (Arc::new(rustls::crypto::ring::default_provider()), Arc::new(roots.clone()));
    let servers = WebPkiServerVerifier::builder_with_provider(roots.clone(), provider.clone()).build().unwrap();
    let clients = WebPkiClientVerifier::builder_with_provider(roots, provider).build().unwrap();
    let (now, name) = (UnixTime::now(), ServerName::try_from("a.test").unwrap());
    let server = of_servers(servers).verify_server_cert(shown, between, &name, &[], now).map(drop);
    let client = of_clients(clients).verify_client_cert(shown, between, now).map(drop);
    [server, client].map(|verified| verified.map_err(|why| why.to_string()))
}

#[test]
fn a_chain_has_four_certificates_between_at_most() {
    for length in [0, 1, INTERMEDIATES] {
        assert_eq!(verified(&chain(length, false)), [Ok(()), Ok(())], "{length}");
    }
    for refused in verified(&chain(INTERMEDIATES + 1, false)) {
        assert!(refused.unwrap_err().contains("5 intermediate certificates, more than 4"));
    }
}

#[test]
fn ten_authorities_of_one_name_are_not_put_in_order() {
    let (_, shown, between) = chain(10, true);
    // They lead to an unknown authority: every order is tried in vain.
    let stranger = (chain(0, false).0, shown, between);
    let begun = Instant::now();
    for refused in verified(&stranger) {
        assert!(refused.unwrap_err().contains("10 intermediate certificates, more than 4"));
    }
    assert!(begun.elapsed() < Duration::from_millis(500), "{:?}", begun.elapsed());
}

/// The cost of four in all their orders.
#[test]
fn four_authorities_of_one_name_cost_little() {
    let (_, shown, between) = chain(INTERMEDIATES, true);
    let stranger = (chain(0, false).0, shown, between);
    let begun = Instant::now();
    for refused in verified(&stranger) {
        assert!(refused.is_err_and(|why| !why.contains("more than 4")));
    }
    assert!(begun.elapsed() < Duration::from_millis(500), "{:?}", begun.elapsed());
}

/// A client's result of verifying a server with this chain.
fn called(config: ClientConfig, shown: Vec<CertificateDer<'static>>, key: &KeyPair) -> Result<(), Error> {
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let server = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let server = server.with_no_client_auth().with_single_cert(shown, key).unwrap();
    let mut server = ServerConnection::new(Arc::new(server)).unwrap();
    let mut client = ClientConnection::new(Arc::new(config), "a.test".try_into().unwrap()).unwrap();
    while client.is_handshaking() {
        let mut wire = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut wire).unwrap();
        }
        server.read_tls(&mut &wire[..]).unwrap();
        server.process_new_packets().unwrap();
        wire.clear();
        while server.wants_write() {
            server.write_tls(&mut wire).unwrap();
        }
        let mut wire = &wire[..];
        while !wire.is_empty() {
            client.read_tls(&mut wire).unwrap();
            client.process_new_packets()?;
        }
    }
    Ok(())
}

#[test]
fn what_this_machine_trusts_is_no_reason_to_read_a_long_chain() {
    let key = KeyPair::generate().unwrap();
    let (_, _, between) = chain(10, true);
    let shown = params("a.test", false).self_signed(&key).unwrap().der().clone();
    for (between, why) in [(&between[..2], "UnknownIssuer"), (&between[..], "10 intermediate certificates")] {
        let shown = [&[shown.clone()], between].concat();
        let refused = called(trusting_system().unwrap(), shown, &key).unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
    }
}
