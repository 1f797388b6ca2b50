//! How an agent and a shim make sure of each other before either says a word: both know a secret that nobody else can read.
//!
//! ```text
//! agent                                            shim
//!   PAIR  secret, agent's nonce        ->            the first connection of a shim's life: it keeps the secret
//!   MEET  agent's nonce                ->            every other one
//!         <- PROOF  shim's nonce, HMAC(secret, "shim" agent's nonce, shim's nonce)
//!   PROOF HMAC(secret, "agent" agent's nonce, shim's nonce)  ->
//! ```
//!
//! After `PAIR` the agent may go on at once: it has started this shim, nothing but the two has the socket yet, and the shim's
//! proof is checked before anything that it says is believed. After `MEET` both wait for the other's proof. So whoever listens in
//! a shim's place (a process that got hold of its socket) learns nothing and is not believed, and whoever connects in an
//! agent's place gets nowhere. The secret lies in the sandbox's folder and, should that be damaged, among the copies (see
//! `runtime/src/records.rs`), root's alone both, and not where the socket is: who is given that folder has not the secret. A sandbox
//! without one has a shim from before there were secrets, which is spoken to as it was.

use std::fs;
use std::io::{self, Error, ErrorKind, Read};

use sha2::{Digest, Sha256};

/// Bytes of every message of the handshake.
pub const LENGTH: usize = 72;
/// No header of a frame begins so: it would be one of 1.2 GB.
const MAGIC: [u8; 7] = *b"podshim";

type Block = [u8; 32];

/// What an agent and its shim know of each other.
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

    /// `None`: these bytes are none.
    pub fn of(bytes: &[u8]) -> Option<Secret> {
        bytes.try_into().ok().map(Secret)
    }

    /// To be kept where root alone reads it.
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

/// Without telling by the time that it takes how much of it is right.
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
    /// What is sent first. `first`: this is the first connection to a shim that we started.
    pub fn begin(secret: Secret, first: bool) -> io::Result<(Agent, [u8; LENGTH])> {
        let nonce = random()?;
        let opening = if first { message(PAIR, &secret.0, &nonce) } else { message(MEET, &[0; 32], &nonce) };
        Ok((Agent { secret, nonce }, opening))
    }

    /// Checks the shim's proof; gives ours.
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
    /// Both nonces; it is a peer's turn to prove itself.
    Met(Block, Block),
    Proven,
}

impl Shim {
    /// Takes the peer's next message; gives the answer, if there is one. `secret`: the shim's, from its first connection on.
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
        // Test case 2 has a short key, which is padded with zeros: the same as one of 32 bytes that ends in zeros.
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
        // Nobody pairs it again, not even with the right secret.
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
        // One that has only heard what was said: the shim's proof is none of an agent, nor is that of another connection.
        assert!(shim.clone().take(&proof, &mut kept).is_err());
        let (honest, opening) = Agent::begin(secret(7), false).unwrap();
        let (mut first, mut second) = (Shim::New, Shim::New);
        let heard = honest.answer(&first.take(&opening, &mut kept).unwrap().unwrap()).unwrap();
        second.take(&opening, &mut kept).unwrap();
        assert!(second.take(&heard, &mut kept).is_err());
        // A listener that does not know the secret, and one that says back what it is told.
        let nothing = message(PROOF, &[0; 32], &[0; 32]);
        assert!(honest.answer(&nothing).is_err() && honest.answer(&opening).is_err());
        // Requests before any handshake, and an unpaired shim that is met.
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
