//! Whether a Pod may use an image that is on its node already, as data.
//!
//! An image pulled with one tenant's credentials is not available to another, unless that Pod presents a credential that the
//! image's registry accepted before, or the registry accepts it now. Upstream: KEP-2535 (`KubeletEnsureSecretPulledImages`),
//! kubelet's `imagePullCredentialsVerificationPolicy` and `preloadedImagesVerificationAllowlist`.

use podwright_runtime::image::{ImageError, ImageName, MAX_SECRETS, Provenance, PullSecret};

/// The names of the policies, the default first.
pub const POLICIES: [&str; 4] =
    ["NeverVerifyPreloadedImages", "NeverVerify", "NeverVerifyAllowlistedImages", "AlwaysVerify"];

/// Which local images every Pod may use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum VerificationPolicy {
    /// All.
    NeverVerify,
    /// Those imported or loaded, not pulled.
    #[default]
    NeverVerifyPreloadedImages,
    /// Those with these names, however they got here.
    NeverVerifyAllowlistedImages(Vec<Pattern>),
    /// None.
    AlwaysVerify,
}

/// `registry/repository`, or everything below `registry[/path]/*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    Name(String),
    /// Ends with a slash.
    Below(String),
}

/// Why a policy is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    #[error("unknown policy {0:?}: it is one of {known}", known = POLICIES.join(", "))]
    Unknown(String),
    /// This policy takes no allowlist.
    #[error("an allowlist can only be set with NeverVerifyAllowlistedImages, not with {0}")]
    NoAllowlist(String),
    #[error("leading/trailing spaces are not allowed: {0:?}")]
    Spaces(String),
    #[error("the supplied pattern is too short: \"\"")]
    Empty,
    #[error("not a valid wildcard pattern, only patterns ending with '/*' are allowed: {0:?}")]
    Wildcard(String),
    #[error("at least registry hostname is required")]
    NoRegistry,
    #[error("failed to parse as an image name: {0}")]
    InvalidName(#[from] ImageError),
    /// It would match nothing: images are known by their full names.
    #[error("{text:?}: a full name without tag and digest is expected, as in {full:?}")]
    NotFull { text: String, full: String },
}

impl VerificationPolicy {
    /// A policy by its name; only NeverVerifyAllowlistedImages takes a list.
    ///
    /// # Errors
    ///
    /// The name is unknown, the policy takes no list, or a pattern is invalid.
    pub fn new(name: &str, allowlist: &[String]) -> Result<VerificationPolicy, PolicyError> {
        if name != "NeverVerifyAllowlistedImages" && !allowlist.is_empty() {
            return Err(PolicyError::NoAllowlist(name.to_owned()));
        }
        match name {
            "NeverVerify" => Ok(VerificationPolicy::NeverVerify),
            "NeverVerifyPreloadedImages" => Ok(VerificationPolicy::NeverVerifyPreloadedImages),
            "AlwaysVerify" => Ok(VerificationPolicy::AlwaysVerify),
            "NeverVerifyAllowlistedImages" => {
                let patterns = allowlist.iter().map(|text| pattern(text)).collect::<Result<_, _>>()?;
                Ok(VerificationPolicy::NeverVerifyAllowlistedImages(patterns))
            }
            _ => Err(PolicyError::Unknown(name.to_owned())),
        }
    }

    /// The name of the policy, and its list.
    pub fn shown(&self) -> (&'static str, Vec<String>) {
        match self {
            VerificationPolicy::NeverVerify => ("NeverVerify", Vec::new()),
            VerificationPolicy::NeverVerifyPreloadedImages => ("NeverVerifyPreloadedImages", Vec::new()),
            VerificationPolicy::AlwaysVerify => ("AlwaysVerify", Vec::new()),
            VerificationPolicy::NeverVerifyAllowlistedImages(patterns) => {
                let shown = patterns.iter().map(|pattern| match pattern {
                    Pattern::Name(name) => name.clone(),
                    Pattern::Below(path) => format!("{path}*"),
                });
                ("NeverVerifyAllowlistedImages", shown.collect())
            }
        }
    }

    /// Whether a Pod must prove its permission for an image. `family` is the name without tag and digest; an image requested by id
    /// has none, and is on no list.
    fn must_verify(&self, family: Option<&str>, provenance: &Provenance) -> bool {
        match self {
            VerificationPolicy::NeverVerify => false,
            VerificationPolicy::NeverVerifyPreloadedImages => *provenance != Provenance::Preloaded,
            VerificationPolicy::NeverVerifyAllowlistedImages(patterns) => {
                !family.is_some_and(|family| patterns.iter().any(|pattern| pattern.matches(family)))
            }
            VerificationPolicy::AlwaysVerify => true,
        }
    }
}

impl Pattern {
    fn matches(&self, family: &str) -> bool {
        match self {
            Pattern::Name(name) => name == family,
            Pattern::Below(prefix) => family.starts_with(prefix.as_str()),
        }
    }
}

/// Upstream: `getAllowlistImagePattern`.
fn pattern(text: &str) -> Result<Pattern, PolicyError> {
    if text != text.trim() {
        return Err(PolicyError::Spaces(text.to_owned()));
    }
    if text.is_empty() {
        return Err(PolicyError::Empty);
    }
    let (prefix, below) = text.strip_suffix('*').filter(|p| p.ends_with('/')).map_or((text, false), |p| (p, true));
    if prefix.contains('*') {
        return Err(PolicyError::Wildcard(text.to_owned()));
    }
    if below {
        return match prefix {
            "/" => Err(PolicyError::NoRegistry),
            _ => Ok(Pattern::Below(prefix.to_owned())),
        };
    }
    let name = ImageName::parse(text)?;
    let full = name.family();
    if full != text {
        return Err(PolicyError::NotFull { text: text.to_owned(), full });
    }
    Ok(Pattern::Name(text.to_owned()))
}

/// Whether a Pod may use a local image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Usable,
    /// Usable through this Secret, which must be added to the record.
    UsableNoting(PullSecret),
    /// The registry must be asked.
    Unverified,
}

/// Compares the record of an image with what a Pod presents: a Secret accepted before, by its coordinates and uid (its credential
/// may have been renewed since), or an accepted credential, in any Secret. Upstream: `MustAttemptImagePull`.
pub fn verdict(
    policy: &VerificationPolicy,
    family: Option<&str>,
    provenance: &Provenance,
    presented: &[PullSecret],
) -> Verdict {
    if !policy.must_verify(family, provenance) {
        return Verdict::Usable;
    }
    let Provenance::Pulled(access) = provenance else { return Verdict::Unverified };
    if access.anyone || presented.iter().any(|secret| access.secrets.contains(secret)) {
        return Verdict::Usable;
    }
    for secret in presented {
        let same_secret = !secret.secret.uid.is_empty() && access.secrets.iter().any(|k| k.secret == secret.secret);
        let same_credential = !secret.credential_hash.is_empty()
            && access.secrets.iter().any(|k| k.credential_hash == secret.credential_hash);
        if same_secret || (same_credential && access.secrets.len() < MAX_SECRETS) {
            return Verdict::UsableNoting(secret.clone());
        }
        if same_credential {
            return Verdict::Usable;
        }
    }
    Verdict::Unverified
}

/// The next step for a container's image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Use,
    Pull,
    /// As upstream, does not reveal whether an image is present to a Pod that may not use it: both cases get this result.
    NotPresent,
}

/// `usable`: whether the Pod may use the local image; none if there is none. `local`: a name that no registry has.
pub fn step(pull_policy: &str, usable: Option<bool>, local: bool) -> Step {
    match (pull_policy, usable) {
        ("IfNotPresent" | "Never", Some(true)) => Step::Use,
        ("Never", _) => Step::NotPresent,
        (_, Some(true)) if local => Step::Use,
        _ => Step::Pull,
    }
}
