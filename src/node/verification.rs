//! Whether a Pod may use an image that is on its node already, as data.
//!
//! What one tenant's credentials have pulled is not another's: he shows a credential that the image's registry has accepted
//! before, or the registry is asked again. Upstream: KEP-2535 (`KubeletEnsureSecretPulledImages`), kubelet's
//! `imagePullCredentialsVerificationPolicy` and `preloadedImagesVerificationAllowlist`.

use podwright_runtime::image::{ImageError, ImageName, MAX_SECRETS, Provenance, PullSecret};

/// The names of the policies, the default first.
pub const POLICIES: [&str; 4] =
    ["NeverVerifyPreloadedImages", "NeverVerify", "NeverVerifyAllowlistedImages", "AlwaysVerify"];

/// Which images that are here are for every Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum VerificationPolicy {
    /// All.
    NeverVerify,
    /// Those that were imported or loaded, and not pulled.
    #[default]
    NeverVerifyPreloadedImages,
    /// Those of these names, however they came here.
    NeverVerifyAllowlistedImages(Vec<Pattern>),
    /// None.
    AlwaysVerify,
}

/// `registry/repository`, or all that is below `registry[/path]/*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    Name(String),
    /// Ends with a slash.
    Below(String),
}

/// Why there is no such policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    #[error("unknown policy {0:?}: it is one of {known}", known = POLICIES.join(", "))]
    Unknown(String),
    /// This policy has none.
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
    /// A policy by its name; a list goes with NeverVerifyAllowlistedImages alone.
    ///
    /// # Errors
    ///
    /// No policy has the name, the list does not go with it, or a pattern of the list is none.
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

    /// The name of the policy, and the list that goes with it.
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

    /// Whether a Pod must show that it may use an image. `family` is the name without tag and digest; an image that is asked for
    /// by its id has none, and is on no list.
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

/// Whether a Pod may use an image that is here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Usable,
    /// By what the record does not say yet, and shall.
    UsableNoting(PullSecret),
    /// The registry has to be asked.
    Unverified,
}

/// Compares the record of an image with what a Pod presents: a Secret that was accepted before, by its coordinates and uid (its
/// credential may have been renewed since), or a credential that was, in whatever Secret. Upstream: `MustAttemptImagePull`.
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

/// What is to be done for a container's image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Use,
    Pull,
    /// Upstream does not tell who may not use an image whether it is here: this is the answer to both.
    NotPresent,
}

/// `usable` is whether the Pod may use the image that is here; none where none is. `local` are names that no registry has.
pub fn step(pull_policy: &str, usable: Option<bool>, local: bool) -> Step {
    match (pull_policy, usable) {
        ("IfNotPresent" | "Never", Some(true)) => Step::Use,
        ("Never", _) => Step::NotPresent,
        (_, Some(true)) if local => Step::Use,
        _ => Step::Pull,
    }
}
