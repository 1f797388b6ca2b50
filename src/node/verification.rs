//! Whether a Pod may use an image that is on its node already, as data.
//!
//! What one tenant's credentials have pulled is not another's: he shows a credential that the image's registry has accepted before,
//! or the registry is asked again. Upstream: KEP-2535 (`KubeletEnsureSecretPulledImages`), kubelet's
//! `imagePullCredentialsVerificationPolicy` and `preloadedImagesVerificationAllowlist`.

use podwright_runtime::image::{ImageName, MAX_SECRETS, Provenance, PullSecret};

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

impl VerificationPolicy {
    /// A policy by its name; a list goes with NeverVerifyAllowlistedImages alone. In words, why not.
    pub fn new(name: &str, allowlist: &[String]) -> Result<VerificationPolicy, String> {
        if name != "NeverVerifyAllowlistedImages" && !allowlist.is_empty() {
            return Err(format!("an allowlist can only be set with NeverVerifyAllowlistedImages, not with {name}"));
        }
        match name {
            "NeverVerify" => Ok(VerificationPolicy::NeverVerify),
            "NeverVerifyPreloadedImages" => Ok(VerificationPolicy::NeverVerifyPreloadedImages),
            "AlwaysVerify" => Ok(VerificationPolicy::AlwaysVerify),
            "NeverVerifyAllowlistedImages" => {
                let patterns = allowlist.iter().map(|text| pattern(text)).collect::<Result<_, _>>()?;
                Ok(VerificationPolicy::NeverVerifyAllowlistedImages(patterns))
            }
            _ => Err(format!("unknown policy {name:?}: it is one of {}", POLICIES.join(", "))),
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
fn pattern(text: &str) -> Result<Pattern, String> {
    if text != text.trim() {
        return Err(format!("leading/trailing spaces are not allowed: {text:?}"));
    }
    if text.is_empty() {
        return Err("the supplied pattern is too short: \"\"".to_owned());
    }
    let (prefix, below) = text.strip_suffix('*').filter(|p| p.ends_with('/')).map_or((text, false), |p| (p, true));
    if prefix.contains('*') {
        return Err(format!("not a valid wildcard pattern, only patterns ending with '/*' are allowed: {text:?}"));
    }
    if below {
        return match prefix {
            "/" => Err("at least registry hostname is required".to_owned()),
            _ => Ok(Pattern::Below(prefix.to_owned())),
        };
    }
    let name = ImageName::parse(text).map_err(|e| format!("failed to parse as an image name: {e}"))?;
    if name.family() != text {
        let full = name.family();
        return Err(format!("{text:?}: a full name without tag and digest is expected, as in {full:?}"));
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

#[cfg(test)]
mod tests {
    use podwright_runtime::image::{Access, SecretRef};

    use super::*;

    fn secret(uid: &str, hash: &str) -> PullSecret {
        let secret = SecretRef { uid: uid.into(), namespace: "n".into(), name: "s".into() };
        PullSecret { secret, credential_hash: hash.into() }
    }

    fn pulled(anyone: bool, secrets: &[PullSecret]) -> Provenance {
        Provenance::Pulled(Access { anyone, secrets: secrets.to_vec() })
    }

    fn policy(name: &str) -> VerificationPolicy {
        let list = ["r.io/team/*".to_owned(), "docker.io/library/nginx".to_owned()];
        let list = if name == "NeverVerifyAllowlistedImages" { &list[..] } else { &[] };
        VerificationPolicy::new(name, list).unwrap()
    }

    const FAMILY: Option<&str> = Some("r.io/app");

    #[test]
    fn policies_decide_what_must_be_verified() {
        let preloaded = Provenance::Preloaded;
        let theirs = pulled(false, &[secret("1", "h")]);
        // Policy, name, preloaded usable, pulled by another usable.
        for (name, family, preloaded_usable, theirs_usable) in [
            ("NeverVerify", FAMILY, true, true),
            ("NeverVerifyPreloadedImages", FAMILY, true, false),
            ("NeverVerifyPreloadedImages", None, true, false),
            ("AlwaysVerify", FAMILY, false, false),
            ("NeverVerifyAllowlistedImages", FAMILY, false, false),
            ("NeverVerifyAllowlistedImages", Some("r.io/team/app"), true, true),
            ("NeverVerifyAllowlistedImages", Some("r.io/teams"), false, false),
            ("NeverVerifyAllowlistedImages", Some("docker.io/library/nginx"), true, true),
            ("NeverVerifyAllowlistedImages", Some("docker.io/library/nginx2"), false, false),
            ("NeverVerifyAllowlistedImages", None, false, false),
        ] {
            for (provenance, usable) in [(&preloaded, preloaded_usable), (&theirs, theirs_usable)] {
                let got = verdict(&policy(name), family, provenance, &[secret("2", "other")]);
                let wanted = if usable { Verdict::Usable } else { Verdict::Unverified };
                assert_eq!(got, wanted, "{name} {family:?} {provenance:?}");
            }
        }
    }

    #[test]
    fn who_presents_what_was_accepted_may_use_it() {
        let known = pulled(false, &[secret("1", "h1"), secret("2", "h2")]);
        let mut elsewhere = secret("1", "x");
        elsewhere.secret.namespace = "m".into();
        let noted = Verdict::UsableNoting;
        for (provenance, presented, wanted) in [
            (&known, vec![], Verdict::Unverified),
            (&known, vec![secret("1", "h1")], Verdict::Usable),
            // The same Secret with another credential; another Secret with the same credential.
            (&known, vec![secret("1", "new")], noted(secret("1", "new"))),
            (&known, vec![secret("3", "h2")], noted(secret("3", "h2"))),
            // A Secret of the same name that was made anew, and one of the same uid elsewhere, are others.
            (&known, vec![secret("3", "h3")], Verdict::Unverified),
            (&known, vec![elsewhere], Verdict::Unverified),
            (&known, vec![secret("3", "h3"), secret("2", "h2")], Verdict::Usable),
            (&pulled(true, &[]), vec![], Verdict::Usable),
            // What is damaged, lost or never finished grants nothing.
            (&pulled(false, &[]), vec![secret("1", "h1")], Verdict::Unverified),
            // A hash that could not be made, and a Secret without a uid, are like no other.
            (&pulled(false, &[secret("1", "")]), vec![secret("2", "")], Verdict::Unverified),
            (&pulled(false, &[secret("", "h1")]), vec![secret("", "h2")], Verdict::Unverified),
        ] {
            let got = verdict(&policy("NeverVerifyPreloadedImages"), FAMILY, provenance, &presented);
            assert_eq!(got, wanted, "{provenance:?} {presented:?}");
        }
        let many: Vec<PullSecret> = (0..MAX_SECRETS).map(|n| secret(&format!("u{n}"), "shared")).collect();
        let got = verdict(&VerificationPolicy::default(), FAMILY, &pulled(false, &many), &[secret("new", "shared")]);
        assert_eq!(got, Verdict::Usable, "a record that is full grows no more");
    }

    #[test]
    fn steps_follow_the_pull_policy() {
        use Step::{NotPresent, Pull, Use};
        for (policy, local, absent, usable, unverified) in [
            ("IfNotPresent", false, Pull, Use, Pull),
            ("Never", false, NotPresent, Use, NotPresent),
            ("Always", false, Pull, Pull, Pull),
            // What no registry has is never asked for, unless that says why there is nothing to use.
            ("Always", true, Pull, Use, Pull),
            ("Never", true, NotPresent, Use, NotPresent),
        ] {
            let got = [None, Some(true), Some(false)].map(|usable| step(policy, usable, local));
            assert_eq!(got, [absent, usable, unverified], "{policy} {local}");
        }
    }

    #[test]
    fn lists_are_upstreams() {
        let list = |name: &str, patterns: &[&str]| {
            VerificationPolicy::new(name, &patterns.iter().map(|p| (*p).to_owned()).collect::<Vec<_>>())
        };
        for good in ["r.io/*", "r.io/a/*", "r.io/a", "docker.io/library/nginx", "localhost/a"] {
            assert!(list("NeverVerifyAllowlistedImages", &[good]).is_ok(), "{good}");
        }
        for bad in ["", " r.io/a", "*", "/*", "r.io*", "r.*/a", "r.io/*/*", "nginx", "r.io/a:1", "r.io/A"] {
            assert!(list("NeverVerifyAllowlistedImages", &[bad]).is_err(), "{bad}");
        }
        assert!(list("AlwaysVerify", &["r.io/a"]).unwrap_err().contains("can only be set with"));
        assert!(list("Sometimes", &[]).unwrap_err().contains("unknown policy"));
        assert_eq!(list(POLICIES[0], &[]), Ok(VerificationPolicy::default()));
    }
}
