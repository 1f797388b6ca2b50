//! The CA's files while the server runs: it has them in memory, and all certificates rest on them.

use std::path::PathBuf;

use anyhow::Context;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::{Pki, write_private};

impl Pki {
    /// Writes those of the CA's files again that are gone or are none: they, in words. Another certificate or key there is
    /// somebody's who means to begin with another CA at the next start.
    pub fn mend_authority(&self) -> anyhow::Result<Vec<PathBuf>> {
        use std::os::unix::fs::DirBuilderExt;
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.folder);
        made.with_context(|| format!("making {}", self.folder.display()))?;
        let files: [(&str, &str, fn(&str) -> bool); 2] =
            [("ca.key", &self.ca.key, is_key), ("ca.crt", &self.ca.certificate, is_certificate)];
        let mut mended = Vec::new();
        for (name, text, is_one) in files {
            let path = self.folder.join(name);
            if !std::fs::read_to_string(&path).is_ok_and(|found| is_one(&found)) {
                write_private(&path, text)?;
                mended.push(path);
            }
        }
        Ok(mended)
    }
}

fn is_key(text: &str) -> bool {
    PrivateKeyDer::from_pem_slice(text.as_bytes()).is_ok()
}

fn is_certificate(text: &str) -> bool {
    CertificateDer::from_pem_slice(text.as_bytes()).is_ok_and(|der| X509Certificate::from_der(&der).is_ok())
}

#[cfg(test)]
mod tests {
    use super::super::Names;
    use super::*;

    #[test]
    fn the_cas_files_come_back_and_another_ca_is_left() {
        let (folder, now) = (tempfile::tempdir().unwrap(), jiff::Timestamp::now());
        let at = folder.path().join("pki");
        let pki = Pki::open(&at, &Names::default(), now).unwrap();
        assert_eq!(pki.mend_authority().unwrap(), [PathBuf::new(); 0]);
        let read = || ["ca.key", "ca.crt"].map(|name| std::fs::read_to_string(at.join(name)).unwrap());
        let own = read();
        for name in ["ca.key", "ca.crt"] {
            for damage in [None, Some(""), Some("garbage")] {
                match damage {
                    None => std::fs::remove_file(at.join(name)).unwrap(),
                    Some(text) => std::fs::write(at.join(name), text).unwrap(),
                }
                assert_eq!(pki.mend_authority().unwrap(), [at.join(name)], "{damage:?}");
                assert_eq!(read(), own);
            }
        }
        std::fs::remove_dir_all(&at).unwrap();
        assert_eq!(pki.mend_authority().unwrap().len(), 2);
        assert_eq!(read(), own);
        let other = folder.path().join("other");
        Pki::open(&other, &Names::default(), now).unwrap();
        std::fs::copy(other.join("ca.crt"), at.join("ca.crt")).unwrap();
        assert_eq!(pki.mend_authority().unwrap(), [PathBuf::new(); 0]);
    }
}
