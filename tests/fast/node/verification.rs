//! Who may use an image that is on the node: the decision table.

use podwright::node::verification::{POLICIES, PolicyError, Step, Verdict, VerificationPolicy, step, verdict};
use podwright_runtime::image::{Access, MAX_SECRETS, Provenance, PullSecret, SecretRef};

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
    assert_eq!(list("AlwaysVerify", &["r.io/a"]), Err(PolicyError::NoAllowlist("AlwaysVerify".to_owned())));
    assert_eq!(list("Sometimes", &[]), Err(PolicyError::Unknown("Sometimes".to_owned())));
    let said = |name: &str, patterns: &[&str]| list(name, patterns).unwrap_err().to_string();
    let with = |pattern: &str| said("NeverVerifyAllowlistedImages", &[pattern]);
    assert_eq!(
        said("AlwaysVerify", &["r.io/a"]),
        "an allowlist can only be set with NeverVerifyAllowlistedImages, not with AlwaysVerify"
    );
    assert_eq!(
        said("Sometimes", &[]),
        "unknown policy \"Sometimes\": it is one of NeverVerifyPreloadedImages, NeverVerify, \
         NeverVerifyAllowlistedImages, AlwaysVerify"
    );
    assert_eq!(with(" a"), "leading/trailing spaces are not allowed: \" a\"");
    assert_eq!(with(""), "the supplied pattern is too short: \"\"");
    assert_eq!(with("a*"), "not a valid wildcard pattern, only patterns ending with '/*' are allowed: \"a*\"");
    assert_eq!(with("/*"), "at least registry hostname is required");
    assert_eq!(
        with("nginx:1"),
        "\"nginx:1\": a full name without tag and digest is expected, as in \"docker.io/library/nginx\""
    );
    assert_eq!(list(POLICIES[0], &[]), Ok(VerificationPolicy::default()));
}
