//! The mutual authentication of agent and shim before any request: both know a secret that no one else can read.
//!
//! ```text
//! agent                                            shim
//!   PAIR  secret, agent's nonce        ->            the shim's first connection: it stores the secret
//!   MEET  agent's nonce                ->            all later ones
//!         <- PROOF  shim's nonce, HMAC(secret, "shim" agent's nonce, shim's nonce)
//!   PROOF HMAC(secret, "agent" agent's nonce, shim's nonce)  ->
//! ```
//!
//! After `PAIR` the agent may go on at once: it has started this shim, only the two have the socket yet, and the shim's proof is
//! checked before any of its messages are trusted. After `MEET` both wait for the other's proof. So an impostor listening in a
//! shim's place (a process that obtained its socket) learns nothing and is not trusted, and one connecting in an agent's place is
//! rejected. The secret is stored in the sandbox's folder and, in case that is damaged, among the copies (see
//! `runtime/src/records.rs`), both accessible to root only, and not beside the socket: access to that folder does not reveal it. A
//! sandbox without a secret has a shim of an earlier release, which is used without a handshake.

use std::fs;
use std::io::{self, Error, ErrorKind, Read};

use sha2::{Digest, Sha256};

/// Size of every message of the handshake.
pub const LENGTH: usize = 72;
/// No frame header begins like this: the frame would have 1.2 GB.
const MAGIC: [u8; 7] = *b"podshim";

type Block = [u8; 32];

/// The shared secret of an agent and its shim.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Block);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    pub fn make() -> io::Result<Secret> {
        random().map(Secret)
    }

    /// `None`: the bytes have the wrong form.
    pub fn of(bytes: &[u8]) -> Option<Secret> {
        bytes.try_into().ok().map(Secret)
    }

    /// To be stored where only root can read it.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn proof(&self, who: &[u8], agents: &Block, shims: &Block) -> Block {
        hmac(&self.0, &[who, agents, shims])
    }
}

fn random() -> io::Result<Block> {
    let mut bytes = [0; 32];
    fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// HMAC-SHA256 (RFC 2104) with a key of 32 bytes.
fn hmac(key: &Block, text: &[&[u8]]) -> Block {
    let pad = |with: u8| {
        let mut block = [with; 64];
        block.iter_mut().zip(key).for_each(|(b, k)| *b ^= k);
        block
    };
    let inner = text.iter().fold(Sha256::new().chain_update(pad(0x36)), |hash, part| hash.chain_update(part));
    Sha256::new().chain_update(pad(0x5c)).chain_update(inner.finalize()).finalize().into()
}

/// Compares in constant time.
fn same(a: &Block, b: &Block) -> bool {
    a.iter().zip(b).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

const PAIR: u8 = 1;
const MEET: u8 = 2;
const PROOF: u8 = 3;

fn message(kind: u8, first: &Block, second: &Block) -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    bytes[..7].copy_from_slice(&MAGIC);
    bytes[7] = kind;
    bytes[8..40].copy_from_slice(first);
    bytes[40..].copy_from_slice(second);
    bytes
}

fn parse(bytes: &[u8; LENGTH]) -> Result<(u8, Block, Block), Error> {
    let block = |at: usize| std::array::from_fn(|i| bytes[at + i]);
    if bytes[..7] != MAGIC { Err(refused("not a handshake")) } else { Ok((bytes[7], block(8), block(40))) }
}

fn refused(why: &str) -> Error {
    Error::new(ErrorKind::PermissionDenied, format!("handshake: {why}"))
}

/// The agent's side of one connection.
#[derive(Debug)]
pub struct Agent {
    secret: Secret,
    nonce: Block,
}

impl Agent {
    /// The first message. `first`: this is the first connection to a shim that we started.
    pub fn begin(secret: Secret, first: bool) -> io::Result<(Agent, [u8; LENGTH])> {
        let nonce = random()?;
        let opening = if first { message(PAIR, &secret.0, &nonce) } else { message(MEET, &[0; 32], &nonce) };
        Ok((Agent { secret, nonce }, opening))
    }

    /// Checks the shim's proof; returns ours. Fails if it is wrong.
    pub fn answer(&self, theirs: &[u8; LENGTH]) -> Result<[u8; LENGTH], Error> {
        match parse(theirs)? {
            (PROOF, nonce, proof) if same(&proof, &self.secret.proof(b"shim", &self.nonce, &nonce)) => {
                Ok(message(PROOF, &self.secret.proof(b"agent", &self.nonce, &nonce), &[0; 32]))
            }
            _ => Err(refused("who listens is not the shim that was started")),
        }
    }
}

/// The shim's side of one connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Shim {
    #[default]
    New,
    /// Both nonces; the peer's proof is expected.
    Met(Block, Block),
    Proven,
}

impl Shim {
    /// Handles the peer's next message; returns the response, if any. `secret`: the shim's, set by its first connection. Fails if
    /// the peer is not the agent.
    pub fn take(&mut self, bytes: &[u8; LENGTH], secret: &mut Option<Secret>) -> Result<Option<[u8; LENGTH]>, Error> {
        match (std::mem::take(self), parse(bytes)?, secret) {
            (Shim::New, (PAIR, theirs, agents), secret @ None) => {
                let kept = secret.insert(Secret(theirs));
                let nonce = random()?;
                *self = Shim::Proven;
                Ok(Some(message(PROOF, &nonce, &kept.proof(b"shim", &agents, &nonce))))
            }
            (Shim::New, (MEET, _, agents), Some(secret)) => {
                let nonce = random()?;
                *self = Shim::Met(agents, nonce);
                Ok(Some(message(PROOF, &nonce, &secret.proof(b"shim", &agents, &nonce))))
            }
            (Shim::Met(agents, nonce), (PROOF, proof, _), Some(secret))
                if same(&proof, &secret.proof(b"agent", &agents, &nonce)) =>
            {
                *self = Shim::Proven;
                Ok(None)
            }
            _ => Err(refused("who connects is not the agent")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(byte: u8) -> Secret {
        Secret([byte; 32])
    }

    #[test]
    fn hmac_is_rfc_4231s() {
        // Test case 2 has a short key, which is zero-padded: equivalent to a 32-byte key ending in zeros.
        let mut key = [0; 32];
        key[..4].copy_from_slice(b"Jefe");
        let hex: String =
            hmac(&key, &[b"what do ya want ", b"for nothing?"]).iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    }

    #[test]
    fn a_shim_is_paired_once_and_met_ever_after() {
        let (mut kept, mut shim) = (None, Shim::New);
        let (agent, opening) = Agent::begin(secret(7), true).unwrap();
        let proof = shim.take(&opening, &mut kept).unwrap().unwrap();
        assert_eq!((&shim, &kept), (&Shim::Proven, &Some(secret(7))));
        agent.answer(&proof).unwrap();
        // A second agent, with the secret.
        let (agent, opening) = Agent::begin(secret(7), false).unwrap();
        let mut shim = Shim::New;
        let proof = shim.take(&opening, &mut kept).unwrap().unwrap();
        assert_ne!(shim, Shim::Proven);
        let answer = agent.answer(&proof).unwrap();
        assert_eq!(shim.take(&answer, &mut kept).unwrap(), None);
        assert_eq!(shim, Shim::Proven);
        // It cannot be paired again, not even with the right secret.
        for byte in [7, 8] {
            let (_, opening) = Agent::begin(secret(byte), true).unwrap();
            assert!(Shim::New.take(&opening, &mut kept).is_err());
            assert_eq!(kept, Some(secret(7)));
        }
    }

    #[test]
    fn strangers_get_nowhere_on_either_side() {
        let mut kept = Some(secret(7));
        // An agent with another secret.
        let (agent, opening) = Agent::begin(secret(8), false).unwrap();
        let mut shim = Shim::New;
        let proof = shim.take(&opening, &mut kept).unwrap().unwrap();
        assert!(agent.answer(&proof).is_err(), "nor does it believe the shim");
        // Replaying does not work: the shim's proof is not valid for an agent, nor is that of another connection.
        assert!(shim.clone().take(&proof, &mut kept).is_err());
        let (honest, opening) = Agent::begin(secret(7), false).unwrap();
        let (mut first, mut second) = (Shim::New, Shim::New);
        let heard = honest.answer(&first.take(&opening, &mut kept).unwrap().unwrap()).unwrap();
        second.take(&opening, &mut kept).unwrap();
        assert!(second.take(&heard, &mut kept).is_err());
        // A listener without the secret, and one that echoes.
        let nothing = message(PROOF, &[0; 32], &[0; 32]);
        assert!(honest.answer(&nothing).is_err() && honest.answer(&opening).is_err());
        // Requests before any handshake, and an unpaired shim that receives MEET.
        assert!(Shim::New.take(&[0; LENGTH], &mut kept).is_err());
        assert!(Shim::New.take(&opening, &mut None).is_err());
    }

    #[test]
    fn a_secret_is_of_32_bytes_and_nobody_prints_it() {
        let made = Secret::make().unwrap();
        assert_ne!(Secret::make().unwrap(), made);
        assert_eq!(Secret::of(made.bytes()), Some(made.clone()));
        assert!([&b""[..], b"short", &[0; 33]].iter().all(|bytes| Secret::of(bytes).is_none()));
        assert_eq!(format!("{made:?}"), "Secret");
    }
}
