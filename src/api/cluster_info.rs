//! `kube-public/cluster-info`: what anybody may know of a cluster, so that a machine finds its way into it; and the hashes by which
//! that machine knows the cluster's authority.
//!
//! Upstream: kubeadm's `clusterinfo` and `pubkeypin`.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::digest;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::yaml;

pub const NAMESPACE: &str = "kube-public";
pub const NAME: &str = "cluster-info";
/// The key of the ConfigMap that has a kubeconfig without a user.
pub const KUBECONFIG: &str = "kubeconfig";
/// The keys of that kubeconfig's signatures: this and the id of a bootstrap token.
pub const SIGNATURE: &str = "jws-kubeconfig-";

/// What the kubeconfig says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterInfo {
    /// `https://HOST:PORT`
    pub server: String,
    /// The cluster's authorities, in PEM.
    pub authority: String,
}

/// Why a kubeconfig says nothing of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InfoError {
    #[error("the kubeconfig of {NAMESPACE}/{NAME} is no YAML: {0}")]
    Yaml(String),
    #[error("expected the kubeconfig of {NAMESPACE}/{NAME} to have exactly one cluster, found {0}")]
    Clusters(usize),
    #[error("the kubeconfig of {NAMESPACE}/{NAME} has no {0}")]
    Lacks(&'static str),
    #[error("the certificate authority of {NAMESPACE}/{NAME} is unreadable: {0}")]
    Authority(String),
}

impl FromStr for ClusterInfo {
    type Err = InfoError;

    fn from_str(kubeconfig: &str) -> Result<ClusterInfo, InfoError> {
        let documents = yaml::documents(kubeconfig).map_err(|why| InfoError::Yaml(why.to_string()))?;
        let clusters = documents.first().and_then(|config| config["clusters"].as_array()).map_or(&[][..], |all| all);
        let [cluster] = clusters else { return Err(InfoError::Clusters(clusters.len())) };
        let field = |name: &'static str| cluster["cluster"][name].as_str().ok_or(InfoError::Lacks(name));
        let unreadable = |why: &dyn fmt::Display| InfoError::Authority(why.to_string());
        let authority = STANDARD.decode(field("certificate-authority-data")?).map_err(|why| unreadable(&why))?;
        let authority = String::from_utf8(authority).map_err(|why| unreadable(&why))?;
        Ok(ClusterInfo { server: field("server")?.to_owned(), authority })
    }
}

/// The certificates of a PEM text with the hashes of their keys.
///
/// # Errors
/// There is none, or one that is unreadable.
pub fn hashes(pem: &str) -> Result<Vec<(CaHash, CertificateDer<'static>)>, InfoError> {
    let mut found = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        let certificate = certificate.map_err(|why| InfoError::Authority(why.to_string()))?;
        let hash = CaHash::of(&certificate).ok_or_else(|| InfoError::Authority("no X.509 certificate".to_owned()))?;
        found.push((hash, certificate.into_owned()));
    }
    match found.is_empty() {
        true => Err(InfoError::Authority("there is no certificate in it".to_owned())),
        false => Ok(found),
    }
}

/// A certificate in PEM.
pub fn pem(certificate: &CertificateDer<'_>) -> String {
    let encoded = STANDARD.encode(certificate);
    let mut text = "-----BEGIN CERTIFICATE-----\n".to_owned();
    // Base64 is ASCII: it can be cut anywhere.
    for at in (0..encoded.len()).step_by(64) {
        text.push_str(&encoded[at..encoded.len().min(at + 64)]);
        text.push('\n');
    }
    text + "-----END CERTIFICATE-----\n"
}

/// The SHA-256 of a certificate's SubjectPublicKeyInfo (RFC 7469), shown as `sha256:HEX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CaHash([u8; 32]);

impl CaHash {
    /// `None`: it is no X.509 certificate.
    pub fn of(certificate: &CertificateDer<'_>) -> Option<CaHash> {
        let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
        digest::digest(&digest::SHA256, parsed.public_key().raw).as_ref().try_into().ok().map(CaHash)
    }
}

/// Why a text is no hash, in kubeadm's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HashError {
    #[error("invalid public key hash, expected \"sha256:HEX\"")]
    Form,
    #[error("unknown hash format {0:?}, expected \"sha256:HEX\"")]
    Format(String),
    #[error("expected a 32 byte SHA-256 hash, found {0} bytes")]
    Length(usize),
    #[error("could not decode SHA-256 from public key hash: it is not hexadecimal")]
    Hex,
}

impl FromStr for CaHash {
    type Err = HashError;

    fn from_str(text: &str) -> Result<CaHash, HashError> {
        let (format, hex) = text.split_once(':').ok_or(HashError::Form)?;
        if !format.eq_ignore_ascii_case("sha256") {
            return Err(HashError::Format(format.chars().take(32).collect()));
        }
        let mut bytes = [0; 32];
        if hex.len() != 2 * bytes.len() {
            return Err(HashError::Length(hex.len() / 2));
        }
        if !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(HashError::Hex);
        }
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).map_err(|_| HashError::Hex)?;
        }
        Ok(CaHash(bytes))
    }
}

impl fmt::Display for CaHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sha256:")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_has_one_form() {
        let hex = "0123456789abcdef".repeat(4);
        let hash: CaHash = format!("sha256:{hex}").parse().expect("a hash");
        assert_eq!(hash.to_string(), format!("sha256:{hex}"));
        assert_eq!(format!("SHA256:{}", hex.to_uppercase()).parse(), Ok(hash));
        for (wrong, why) in [
            (hex.clone(), HashError::Form),
            (format!("md5:{hex}"), HashError::Format("md5".into())),
            (format!("sha256:{}", &hex[2..]), HashError::Length(31)),
            (format!("sha256:{hex}00"), HashError::Length(33)),
            (format!("sha256:{}zz", &hex[2..]), HashError::Hex),
            // Two bytes long, one character: it is not cut in the middle.
            (format!("sha256:é{}", &hex[2..]), HashError::Hex),
        ] {
            assert_eq!(wrong.parse::<CaHash>(), Err(why), "{wrong}");
        }
    }

    #[test]
    fn a_kubeconfig_of_one_cluster_is_read() {
        let cluster = |authority: &str| {
            format!("- cluster: {{server: 'https://a:1', certificate-authority-data: {authority}}}\n")
        };
        let config = |clusters: &str| format!("apiVersion: v1\nkind: Config\nclusters:\n{clusters}");
        let info: ClusterInfo = config(&cluster("eA==")).parse().expect("a cluster");
        assert_eq!(info, ClusterInfo { server: "https://a:1".into(), authority: "x".into() });
        let why = |text: &str| text.parse::<ClusterInfo>().expect_err("no cluster");
        assert_eq!(why(&config(&cluster("eA==").repeat(2))), InfoError::Clusters(2));
        assert_eq!(why(""), InfoError::Clusters(0));
        assert_eq!(why(&config("- cluster: {server: x}\n")), InfoError::Lacks("certificate-authority-data"));
        assert!(matches!(why(&config(&cluster("'*'"))), InfoError::Authority(_)));
        assert!(matches!(hashes("nothing"), Err(InfoError::Authority(_))));
    }
}
