//! Whether who asks for a node's certificate may have it: looked at before the request is approved, and again before it is signed.
//!
//! Upstream looks once, at the rights of a name that may be nobody's any more. Here a holder of a bootstrap token counts while the
//! token does, with the groups that it gives, a ServiceAccount while it is there, and a node that renews its certificate while its Node
//! is. What an administrator approves is his to judge, and signed all the same.

use podwright_api::{Object, Status, User, bootstrap_token, kinds};

use super::super::Server;
use super::super::authorize::attributes::{Attributes, Decision};
use super::request::Asked;

const ACCOUNT: &str = "system:serviceaccount:";
/// The reason of an automatic approval, as upstream's.
pub(super) const AUTOMATIC: &str = "AutoApproved";

/// Why a requestor may not have the certificate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Lapse {
    /// Nobody has given it the right: somebody else may approve the request.
    #[error("{0:?} may not have such certificates by itself")]
    NotAllowed(String),
    #[error("there is no Node {0:?}: its certificate is renewed while there is")]
    NodeNotFound(String),
    #[error("the bootstrap token {0:?} is withdrawn, has expired, or does not give these groups")]
    TokenNotFound(String),
    #[error("there is no ServiceAccount of {0:?}")]
    ServiceAccountNotFound(String),
}

impl Lapse {
    /// The reason in a condition.
    pub fn reason(&self) -> &'static str {
        match self {
            Lapse::NotAllowed(_) => "NotAuthorized",
            Lapse::NodeNotFound(_) => "NodeNotFound",
            Lapse::TokenNotFound(_) => "TokenNotFound",
            Lapse::ServiceAccountNotFound(_) => "ServiceAccountNotFound",
        }
    }
}

/// Whether a node asks for the next certificate of its own, rather than somebody for a node that joins.
pub(super) fn is_renewal(asked: &Asked) -> bool {
    asked.requestor.name == asked.name
}

/// Whether it was approved by the loop here, and by nobody else.
pub(super) fn is_automatic(csr: &Object) -> bool {
    let mut approvals = super::conditions(csr).filter(|condition| condition["type"] == "Approved");
    approvals.all(|approval| approval["reason"] == AUTOMATIC)
}

impl Server {
    /// What keeps a requestor from a node's client certificate at this moment.
    pub(super) async fn lapse(&self, asked: &Asked) -> Result<Option<Lapse>, Status> {
        let requestor = &asked.requestor;
        let subresource = if is_renewal(asked) { "selfnodeclient" } else { "nodeclient" };
        let may = Attributes {
            subresource,
            ..Attributes::new(requestor, "create", super::GROUP, "certificatesigningrequests")
        };
        if self.decide(&may).await? != Decision::Allow {
            return Ok(Some(Lapse::NotAllowed(requestor.name.clone())));
        }
        self.cache.fresh().await?;
        let node = asked.node().unwrap_or("");
        if is_renewal(asked) && !self.has_node(node) {
            return Ok(Some(Lapse::NodeNotFound(node.to_owned())));
        }
        if let Some(id) = requestor.name.strip_prefix(bootstrap_token::USER) {
            let holder = self.bootstrap_holder(id).await?;
            return Ok(
                (!holder.is_some_and(|holder| gives(&holder, requestor))).then(|| Lapse::TokenNotFound(id.to_owned()))
            );
        }
        if let Some(account) = requestor.name.strip_prefix(ACCOUNT) {
            let gone = !self.has_account(account, &requestor.uid);
            return Ok(gone.then(|| Lapse::ServiceAccountNotFound(requestor.name.clone())));
        }
        Ok(None)
    }

    /// Whether there is a ServiceAccount `NAMESPACE:NAME`, and it is the one with this uid, if one is said.
    fn has_account(&self, account: &str, uid: &str) -> bool {
        let Some((namespace, name)) = account.split_once(':') else { return false };
        let Some(kind) = kinds::lookup("serviceaccounts") else { return false };
        let stored = self.cache.resource(kind).get(&kind.key(Some(namespace), name));
        let stored = stored.and_then(|item| Object::from_slice(&item.bytes).ok());
        stored.is_some_and(|stored| !stored.is_terminating() && (uid.is_empty() || stored.uid() == uid))
    }
}

/// Whether a token gives its holder the groups that a request was made with.
fn gives(holder: &User, requestor: &User) -> bool {
    requestor.groups.iter().all(|group| group == "system:authenticated" || holder.groups.contains(group))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_token_gives_its_groups_and_no_others() {
        let holder = User::new("system:bootstrap:abcdef", ["system:bootstrappers", "system:bootstrappers:a"]);
        for (groups, good) in [
            (&["system:bootstrappers", "system:authenticated"][..], true),
            (&["system:bootstrappers", "system:bootstrappers:a"], true),
            (&["system:bootstrappers", "system:bootstrappers:b"], false),
            (&["system:bootstrappers", "system:masters"], false),
        ] {
            let requestor = User::new("system:bootstrap:abcdef", groups.iter().copied());
            assert_eq!(gives(&holder, &requestor), good, "{groups:?}");
        }
    }

    #[test]
    fn what_somebody_else_approves_is_not_automatic() {
        let of = |reasons: &[&str]| {
            let conditions: Vec<_> =
                reasons.iter().map(|reason| json!({"type": "Approved", "reason": reason})).collect();
            is_automatic(&Object(json!({"status": {"conditions": conditions}})))
        };
        assert!(of(&[AUTOMATIC]) && !of(&["Manual"]) && !of(&[AUTOMATIC, "KubectlApprove"]));
    }
}
