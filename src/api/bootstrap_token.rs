//! Bootstrap tokens, by which machines join a cluster: their form, the Secrets that keep them, and what they sign.
//!
//! Upstream: `cluster-bootstrap/token` (`api`, `jws`, `util`).

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use ring::hmac;

use super::Env;

/// Where the Secrets are.
pub const NAMESPACE: &str = "kube-system";
/// Their type.
pub const TYPE: &str = "bootstrap.kubernetes.io/token";
/// Their names are this and the token's id.
pub const PREFIX: &str = "bootstrap-token-";
/// The keys of their data.
pub const ID: &str = "token-id";
pub const SECRET: &str = "token-secret";
pub const DESCRIPTION: &str = "description";
pub const EXPIRATION: &str = "expiration";
pub const GROUPS: &str = "auth-extra-groups";
/// Who shows a token is the user of this and its id.
pub const USER: &str = "system:bootstrap:";
/// What a token may be used for: keys of the data are this and the usage, with the value `true`.
pub const USAGE: &str = "usage-bootstrap-";
pub const USAGES: [&str; 2] = ["signing", "authentication"];
/// The form of a token, as kubeadm shows it.
pub const PATTERN: &str = r"\A([a-z0-9]{6})\.([a-z0-9]{16})\z";
pub const ID_PATTERN: &str = r"\A([a-z0-9]{6})\z";
/// The form of the groups that a token may put its user into.
pub const GROUP_PATTERN: &str = r"\Asystem:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]\z";
const GROUP_PREFIX: &str = "system:bootstrappers:";

const ID_LENGTH: usize = 6;
const SECRET_LENGTH: usize = 16;
const LETTERS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";

/// `ID.SECRET`. It is shown whole by `Display` alone.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    id: String,
    secret: String,
}

/// A text that is no token. The text is not repeated: it may be a secret with one letter too many.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the bootstrap token is not of the form {PATTERN:?}")]
pub struct NoToken;

impl Token {
    /// A token of these parts.
    ///
    /// # Errors
    /// One of them has another length, or other letters than `a-z0-9`.
    pub fn new(id: &str, secret: &str) -> Result<Token, NoToken> {
        match is_id(id) && is_word(secret, SECRET_LENGTH) {
            true => Ok(Token { id: id.to_owned(), secret: secret.to_owned() }),
            false => Err(NoToken),
        }
    }

    /// A new one, of 82 random bits behind its id.
    pub fn generate(env: &Env) -> Token {
        Token { id: random(env, ID_LENGTH), secret: random(env, SECRET_LENGTH) }
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    pub fn secret(&self) -> &str {
        &self.secret
    }

    /// The signature of a text: a JWS (HS256) whose payload is left out, as it is the text.
    pub fn sign(&self, text: &str) -> String {
        let (header, signed) = self.input(text);
        let tag = hmac::sign(&self.key(), signed.as_bytes());
        format!("{header}..{}", URL_SAFE_NO_PAD.encode(tag))
    }

    /// Whether this token has signed the text.
    pub fn has_signed(&self, text: &str, signature: &str) -> bool {
        let (header, signed) = self.input(text);
        let tag = signature.strip_prefix(&header).and_then(|rest| rest.strip_prefix(".."));
        let Some(Ok(tag)) = tag.map(|tag| URL_SAFE_NO_PAD.decode(tag)) else { return false };
        hmac::verify(&self.key(), signed.as_bytes(), &tag).is_ok()
    }

    /// The header, and the header with the payload.
    fn input(&self, text: &str) -> (String, String) {
        let header = URL_SAFE_NO_PAD.encode(format!(r#"{{"alg":"HS256","kid":"{}"}}"#, self.id));
        let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(text));
        (header, signed)
    }

    fn key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, self.secret.as_bytes())
    }
}

impl FromStr for Token {
    type Err = NoToken;

    fn from_str(text: &str) -> Result<Token, NoToken> {
        let (id, secret) = text.split_once('.').ok_or(NoToken)?;
        Token::new(id, secret)
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.id, self.secret)
    }
}

/// Without the secret: for logs.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({}.***)", self.id)
    }
}

/// Whether a text is a token's id.
pub fn is_id(text: &str) -> bool {
    is_word(text, ID_LENGTH)
}

fn is_word(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
}

/// Whether a token may put its user into a group: into those of its own sort alone.
pub fn is_group(group: &str) -> bool {
    let Some(rest) = group.strip_prefix(GROUP_PREFIX) else { return false };
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b':' || b == b'-';
    let ends_well = rest.bytes().next_back().is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    rest.len() <= 256 && rest.bytes().all(plain) && ends_well
}

/// When a token ends whose Secret says this of it; `None`: never. What is no time has ended, as with upstream.
pub fn end(expiration: Option<&str>) -> Option<Timestamp> {
    let text = expiration.filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or(Timestamp::UNIX_EPOCH))
}

/// Letters that are all as likely: bytes that would favour the first ones are drawn again.
fn random(env: &Env, length: usize) -> String {
    let fair = 256 - 256 % LETTERS.len();
    let mut word = String::new();
    while word.len() < length {
        let mut byte = [0];
        env.fill(&mut byte);
        let at = usize::from(byte[0]);
        if at < fair {
            word.push(char::from(LETTERS[at % LETTERS.len()]));
        }
    }
    word
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(text: &str) -> Token {
        text.parse().expect("a token")
    }

    #[test]
    fn a_token_has_one_form_and_logs_hide_it() {
        for wrong in
            ["", "abcdef", "abcdef.", "abcdef.0123456789abcde", "ABCDEF.0123456789abcdef", "abcdef.0123456789abcdef\n"]
        {
            let why = wrong.parse::<Token>().expect_err("no token").to_string();
            assert_eq!(why, r#"the bootstrap token is not of the form "\\A([a-z0-9]{6})\\.([a-z0-9]{16})\\z""#);
        }
        let whole = token("abcdef.0123456789abcdef");
        assert_eq!(
            (whole.to_string().as_str(), format!("{whole:?}").as_str()),
            ("abcdef.0123456789abcdef", "Token(abcdef.***)")
        );
        let made = Token::generate(&Env::simulated(Timestamp::UNIX_EPOCH, 7));
        assert_eq!(token(&made.to_string()), made);
    }

    /// The vector of upstream's `jws_test.go`.
    #[test]
    fn signatures_are_upstreams() {
        // Its secret has another form: parts are not checked there.
        let theirs = Token { id: "joshua".into(), secret: "my voice is my passcode".into() };
        let expected = "eyJhbGciOiJIUzI1NiIsImtpZCI6Impvc2h1YSJ9..VShe2taLd-YTrmWuRkcL_8QTNDHYxQIEBsAYYiIj1_8";
        assert_eq!(theirs.sign("Hello from the other side. I must have called a thousand times."), expected);
    }

    #[test]
    fn only_this_token_has_signed_only_this_text() {
        let (own, text) = (token("abcdef.0123456789abcdef"), "apiVersion: v1\n");
        let signature = own.sign(text);
        assert!(own.has_signed(text, &signature));
        assert!(!own.has_signed("apiVersion: v2\n", &signature));
        assert!(!token("abcdef.0123456789abcdee").has_signed(text, &signature));
        let other_id = token("abcdeg.0123456789abcdef");
        assert!(!other_id.has_signed(text, &signature) && !own.has_signed(text, &other_id.sign(text)));
        let (header, tag) = signature.split_once("..").expect("detached");
        let none = URL_SAFE_NO_PAD.encode(r#"{"alg":"none","kid":"abcdef"}"#);
        for forged in
            ["", "..", header, &format!("{none}.."), &format!("{none}..{tag}"), &format!("{header}..{}", &tag[1..])]
        {
            assert!(!own.has_signed(text, forged), "{forged}");
        }
    }

    #[test]
    fn what_is_no_time_has_ended() {
        assert_eq!((end(None), end(Some(""))), (None, None));
        assert_eq!(end(Some("soon")), Some(Timestamp::UNIX_EPOCH));
        let zoned = end(Some("2026-01-01T02:00:00+02:00"));
        assert_eq!(zoned, end(Some("2026-01-01T00:00:00Z")));
    }

    #[test]
    fn a_token_gives_groups_of_its_sort_alone() {
        for good in ["system:bootstrappers:a", "system:bootstrappers:kubeadm:default-node-token"] {
            assert!(is_group(good), "{good}");
        }
        for bad in [
            "system:masters",
            "system:bootstrappers",
            "system:bootstrappers:",
            "system:bootstrappers:a-",
            "system:bootstrappers:A",
        ] {
            assert!(!is_group(bad), "{bad}");
        }
    }
}
