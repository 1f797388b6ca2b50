//! Encrypts and decrypts one value: `k8s:enc:PROVIDER:v2:KEY:`, a random seed, and the ciphertext with its tag.
//!
//! Each value has a key of its own, derived (HKDF-SHA256) from the named key and the seed, so a named key may encrypt any number of
//! values; upstream's `v1` of aesgcm must be rotated every 200,000 writes. The value's store key is authenticated: ciphertext that
//! was moved to another key does not decrypt.

use aes::Aes256;
use bytes::Bytes;
use cbc::cipher::block_padding::Pkcs7;
use cbc::cipher::{BlockDecryptMut, BlockEncryptMut, KeyIvInit};
use ring::aead::{AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, KeyType, Prk, Salt};
use ring::hmac;

use podwright_api::Env;

/// The prefix of all encrypted values; upstream's.
pub const PREFIX: &[u8] = b"k8s:enc:";
const VERSION: &str = "v2";
const SEED: usize = 32;

/// An encryption provider, as in an EncryptionConfiguration.
#[derive(Debug)]
pub struct Cipher {
    pub name: &'static str,
    mode: Mode,
    /// The key lengths that it accepts, in bytes.
    pub lengths: &'static [usize],
}

/// The cipher for a value's own key.
#[derive(Clone, Copy, Debug)]
enum Mode {
    Aead(&'static Algorithm),
    /// AES-256-CBC; HMAC-SHA256 authenticates the ciphertext and its store key.
    CbcHmac,
}

pub static AESGCM: Cipher = Cipher { name: "aesgcm", mode: Mode::Aead(&AES_256_GCM), lengths: &[16, 24, 32] };
/// Upstream's is not authenticated, which is why upstream advises against it; this one is.
pub static AESCBC: Cipher = Cipher { name: "aescbc", mode: Mode::CbcHmac, lengths: &[16, 24, 32] };
/// ChaCha20-Poly1305. (Upstream's XSalsa20-Poly1305 cannot authenticate a value's store key.)
pub static SECRETBOX: Cipher = Cipher { name: "secretbox", mode: Mode::Aead(&CHACHA20_POLY1305), lengths: &[32] };

/// Why a value could not be encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// No key is configured for this value.
    #[error("a key could not be derived")]
    Key,
    #[error("too long to be sealed")]
    TooLong,
}

/// A named key and its cipher.
pub struct Sealer {
    pub cipher: &'static Cipher,
    pub name: String,
    key: Prk,
    /// The prefix of its values.
    head: Vec<u8>,
}

impl Sealer {
    pub fn new(cipher: &'static Cipher, name: &str, secret: &[u8]) -> Sealer {
        let key = Salt::new(HKDF_SHA256, b"podwright: values at rest").extract(secret);
        let head = [PREFIX, format!("{}:{VERSION}:{name}:", cipher.name).as_bytes()].concat();
        Sealer { cipher, name: name.to_owned(), key, head }
    }

    /// Whether a value is encrypted with this key.
    pub fn made(&self, value: &[u8]) -> bool {
        value.starts_with(&self.head)
    }

    /// Encrypts `value` for the store key `place`, and for no other. Fails if it is too long for the cipher.
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

    /// The plaintext; `None`: these bytes were not encrypted with this key for this place.
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

/// A value's own key is used once: the nonce may be constant.
const NONCE: [u8; 12] = [0; 12];

/// The parts of one value's key in CBC mode, none of which is reused.
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

    /// The authenticated data: the place, its length, and the ciphertext.
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
        // Before decryption: no padding oracle.
        hmac::verify(&self.mac, &Parts::told(place, sealed), tag).ok()?;
        let decryptor = cbc::Decryptor::<Aes256>::new(&self.cipher.into(), &self.start.into());
        decryptor.decrypt_padded_vec_mut::<Pkcs7>(sealed).ok().map(Bytes::from)
    }
}

/// The provider and key name in an encrypted value.
pub fn told(value: &[u8]) -> Option<(String, String)> {
    let rest = value.strip_prefix(PREFIX)?;
    let mut words = rest.splitn(4, |byte| *byte == b':').map(|word| String::from_utf8_lossy(word).into_owned());
    let (provider, _version, name) = (words.next()?, words.next()?, words.next()?);
    Some((provider, name))
}
