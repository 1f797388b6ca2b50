//! One value sealed and opened: `k8s:enc:PROVIDER:v2:KEY:`, a random seed, and the ciphertext with its tag.
//!
//! Each value has a key of its own, derived (HKDF-SHA256) from the named key and the seed, so that a named key may seal any
//! number of values; upstream's `v1` of aesgcm must be rotated every 200,000 writes. The value's place in the store is
//! authenticated with it: sealed bytes that were moved to another key do not open.

use aes::Aes256;
use bytes::Bytes;
use cbc::cipher::block_padding::Pkcs7;
use cbc::cipher::{BlockDecryptMut, BlockEncryptMut, KeyIvInit};
use ring::aead::{AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, KeyType, Prk, Salt};
use ring::hmac;

use podwright_api::Env;

/// How every sealed value begins; upstream's.
pub const PREFIX: &[u8] = b"k8s:enc:";
const VERSION: &str = "v2";
const SEED: usize = 32;

/// A way to seal, as an EncryptionConfiguration names it.
#[derive(Debug)]
pub struct Cipher {
    pub name: &'static str,
    mode: Mode,
    /// The lengths, in bytes, that its keys may have.
    pub lengths: &'static [usize],
}

/// What is done with a value's own key.
#[derive(Clone, Copy, Debug)]
enum Mode {
    Aead(&'static Algorithm),
    /// AES-256-CBC; the ciphertext and its place are authenticated by HMAC-SHA256.
    CbcHmac,
}

pub static AESGCM: Cipher = Cipher { name: "aesgcm", mode: Mode::Aead(&AES_256_GCM), lengths: &[16, 24, 32] };
/// Upstream's has no authentication at all, which is why it is advised against there; this one has.
pub static AESCBC: Cipher = Cipher { name: "aescbc", mode: Mode::CbcHmac, lengths: &[16, 24, 32] };
/// ChaCha20-Poly1305. (Upstream's XSalsa20-Poly1305 cannot authenticate where a value lies.)
pub static SECRETBOX: Cipher = Cipher { name: "secretbox", mode: Mode::Aead(&CHACHA20_POLY1305), lengths: &[32] };

/// Why a value could not be sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// There is no key for this value.
    #[error("a key could not be derived")]
    Key,
    #[error("too long to be sealed")]
    TooLong,
}

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

    /// `value` as it may lie at `place`, and nowhere else. Fails where it is longer than a cipher takes.
    pub fn seal(&self, place: &str, value: &[u8], env: &Env) -> Result<Bytes, SealError> {
        let mut seed = [0; SEED];
        env.fill(&mut seed);
        let sealed = match self.cipher.mode {
            Mode::Aead(algorithm) => {
                let key = self.derived(algorithm, &seed).ok_or(SealError::Key)?;
                let mut sealed = value.to_vec();
                let nonce = Nonce::assume_unique_for_key(NONCE);
                key.seal_in_place_append_tag(nonce, Aad::from(place), &mut sealed).map_err(|_| SealError::TooLong)?;
                sealed
            }
            Mode::CbcHmac => self.parts(&seed).ok_or(SealError::Key)?.seal(place, value),
        };
        Ok([self.head.as_slice(), &seed, &sealed].concat().into())
    }

    /// What was sealed; none: these bytes were not sealed by this key for this place.
    pub fn open(&self, place: &str, value: &[u8]) -> Option<Bytes> {
        let (seed, sealed) = value.strip_prefix(self.head.as_slice())?.split_at_checked(SEED)?;
        match self.cipher.mode {
            Mode::Aead(algorithm) => {
                let key = self.derived(algorithm, seed)?;
                let mut sealed = sealed.to_vec();
                let nonce = Nonce::assume_unique_for_key(NONCE);
                let length = key.open_in_place(nonce, Aad::from(place), &mut sealed).ok()?.len();
                sealed.truncate(length);
                Some(sealed.into())
            }
            Mode::CbcHmac => self.parts(seed)?.open(place, sealed),
        }
    }

    fn derived(&self, algorithm: &'static Algorithm, seed: &[u8]) -> Option<LessSafeKey> {
        let info = [seed];
        let derived = self.key.expand(&info, algorithm).ok()?;
        Some(LessSafeKey::new(UnboundKey::from(derived)))
    }

    fn parts(&self, seed: &[u8]) -> Option<Parts> {
        let info = [seed];
        let mut all = [0; Parts::LENGTH];
        self.key.expand(&info, PartsLength).ok()?.fill(&mut all).ok()?;
        let (cipher, rest) = all.split_first_chunk()?;
        let (start, mac) = rest.split_first_chunk()?;
        Some(Parts { cipher: *cipher, start: *start, mac: hmac::Key::new(hmac::HMAC_SHA256, mac) })
    }
}

/// A value's own key is used once: the nonce may be any.
const NONCE: [u8; 12] = [0; 12];

/// What one value is sealed with in CBC mode: all of it is its own.
struct Parts {
    cipher: [u8; 32],
    start: [u8; 16],
    mac: hmac::Key,
}

struct PartsLength;

impl KeyType for PartsLength {
    fn len(&self) -> usize {
        Parts::LENGTH
    }
}

impl Parts {
    const LENGTH: usize = 32 + 16 + 32;
    const TAG: usize = 32;

    /// What is authenticated: the place, its length, and the ciphertext.
    fn told(place: &str, sealed: &[u8]) -> Vec<u8> {
        [&(place.len() as u64).to_be_bytes(), place.as_bytes(), sealed].concat()
    }

    fn seal(&self, place: &str, value: &[u8]) -> Vec<u8> {
        let encryptor = cbc::Encryptor::<Aes256>::new(&self.cipher.into(), &self.start.into());
        let mut sealed = encryptor.encrypt_padded_vec_mut::<Pkcs7>(value);
        let tag = hmac::sign(&self.mac, &Parts::told(place, &sealed));
        sealed.extend_from_slice(tag.as_ref());
        sealed
    }

    fn open(&self, place: &str, sealed: &[u8]) -> Option<Bytes> {
        let (sealed, tag) = sealed.split_at_checked(sealed.len().checked_sub(Parts::TAG)?)?;
        // Before anything is decrypted: padding tells nobody anything.
        hmac::verify(&self.mac, &Parts::told(place, sealed), tag).ok()?;
        let decryptor = cbc::Decryptor::<Aes256>::new(&self.cipher.into(), &self.start.into());
        decryptor.decrypt_padded_vec_mut::<Pkcs7>(sealed).ok().map(Bytes::from)
    }
}

/// The provider and the key's name that a sealed value tells.
pub fn told(value: &[u8]) -> Option<(String, String)> {
    let rest = value.strip_prefix(PREFIX)?;
    let mut words = rest.splitn(4, |byte| *byte == b':').map(|word| String::from_utf8_lossy(word).into_owned());
    let (provider, _version, name) = (words.next()?, words.next()?, words.next()?);
    Some((provider, name))
}
