//! One value sealed and opened: `k8s:enc:PROVIDER:v2:KEY:`, a random seed, and the ciphertext with its tag.
//!
//! Each value has a key of its own, derived (HKDF-SHA256) from the named key and the seed, so that a named key may seal any
//! number of values; upstream's `v1` of aesgcm must be rotated every 200,000 writes. The value's place in the store is
//! authenticated with it: sealed bytes that were moved to another key do not open.

use bytes::Bytes;
use ring::aead::{AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Prk, Salt};

use crate::api::Env;

/// How every sealed value begins; upstream's.
pub const PREFIX: &[u8] = b"k8s:enc:";
const VERSION: &str = "v2";
const SEED: usize = 32;

/// A way to seal, as an EncryptionConfiguration names it.
#[derive(Debug)]
pub struct Cipher {
    pub name: &'static str,
    algorithm: &'static Algorithm,
    /// The lengths, in bytes, that its keys may have.
    pub lengths: &'static [usize],
}

pub static AESGCM: Cipher = Cipher { name: "aesgcm", algorithm: &AES_256_GCM, lengths: &[16, 24, 32] };
/// ChaCha20-Poly1305. (Upstream's XSalsa20-Poly1305 cannot authenticate where a value lies.)
pub static SECRETBOX: Cipher = Cipher { name: "secretbox", algorithm: &CHACHA20_POLY1305, lengths: &[32] };

/// A named key and what it seals with.
pub struct Sealer {
    pub cipher: &'static Cipher,
    pub name: String,
    key: Prk,
    /// What its values begin with.
    head: Vec<u8>,
}

impl Sealer {
    pub fn new(cipher: &'static Cipher, name: &str, secret: &[u8]) -> Sealer {
        let key = Salt::new(HKDF_SHA256, b"podwright: values at rest").extract(secret);
        let head = [PREFIX, format!("{}:{VERSION}:{name}:", cipher.name).as_bytes()].concat();
        Sealer { cipher, name: name.to_owned(), key, head }
    }

    /// Whether a value is sealed with this key.
    pub fn made(&self, value: &[u8]) -> bool {
        value.starts_with(&self.head)
    }

    /// `value` as it may lie at `place`, and nowhere else.
    pub fn seal(&self, place: &str, value: &[u8], env: &Env) -> Result<Bytes, String> {
        let mut seed = [0; SEED];
        env.fill(&mut seed);
        let key = self.derived(&seed).ok_or("a key could not be derived")?;
        let mut sealed = value.to_vec();
        // The key is used this once: the nonce may be any.
        let nonce = Nonce::assume_unique_for_key([0; 12]);
        key.seal_in_place_append_tag(nonce, Aad::from(place), &mut sealed).map_err(|_| "too long to be sealed")?;
        Ok([self.head.as_slice(), &seed, &sealed].concat().into())
    }

    /// What was sealed; none: these bytes were not sealed by this key for this place.
    pub fn open(&self, place: &str, value: &[u8]) -> Option<Bytes> {
        let (seed, sealed) = value.strip_prefix(self.head.as_slice())?.split_at_checked(SEED)?;
        let key = self.derived(seed)?;
        let mut sealed = sealed.to_vec();
        let opened = key.open_in_place(Nonce::assume_unique_for_key([0; 12]), Aad::from(place), &mut sealed).ok()?;
        let length = opened.len();
        sealed.truncate(length);
        Some(sealed.into())
    }

    fn derived(&self, seed: &[u8]) -> Option<LessSafeKey> {
        let info = [seed];
        let derived = self.key.expand(&info, self.cipher.algorithm).ok()?;
        Some(LessSafeKey::new(UnboundKey::from(derived)))
    }
}

/// The provider and the key's name that a sealed value tells.
pub fn told(value: &[u8]) -> Option<(String, String)> {
    let rest = value.strip_prefix(PREFIX)?;
    let mut words = rest.splitn(4, |byte| *byte == b':').map(|word| String::from_utf8_lossy(word).into_owned());
    let (provider, _version, name) = (words.next()?, words.next()?, words.next()?);
    Some((provider, name))
}
