//! PriorityLevelConfiguration (flowcontrol.apiserver.k8s.io/v1).

use serde_json::json;

use super::{Kind, Strategy};
use crate::columns::{AGE, NAME, column, text, text_or};
use crate::defaults::{fill, made, object};
use crate::validation::{At, Errors};
use crate::{Cause, Object};

pub const KIND: Kind = Kind {
    subresources: &["status"],
    columns: &[
        NAME,
        column("TYPE", |o, _| text(o, "spec.type")),
        column("NOMINALCONCURRENCYSHARES", |o, _| text_or(o, "spec.limited.nominalConcurrencyShares", "<none>")),
        column("QUEUES", |o, _| text_or(o, "spec.limited.limitResponse.queuing.queues", "<none>")),
        column("HANDSIZE", |o, _| text_or(o, "spec.limited.limitResponse.queuing.handSize", "<none>")),
        column("QUEUELENGTHLIMIT", |o, _| text_or(o, "spec.limited.limitResponse.queuing.queueLengthLimit", "<none>")),
        AGE,
    ],
    strategy: Strategy {
        default,
        prepare_create,
        validate,
        metadata_by_status: &[],
        has_generation: true,
        ..Strategy::PLAIN
    },
    ..Kind::of::<k8s_openapi::api::flowcontrol::v1::PriorityLevelConfiguration>("prioritylevelconfiguration")
};

fn default(level: &mut Object) {
    let Some(map) = level.0.as_object_mut() else { return };
    let spec = made(map, "spec");
    if let Some(exempt) = object(spec, "exempt") {
        fill(exempt, "nominalConcurrencyShares", 0);
        fill(exempt, "lendablePercent", 0);
    }
    let Some(limited) = object(spec, "limited") else { return };
    fill(limited, "nominalConcurrencyShares", 30);
    fill(limited, "lendablePercent", 0);
    if let Some(queuing) = object(limited, "limitResponse").and_then(|r| object(r, "queuing")) {
        fill(queuing, "queues", 64);
        fill(queuing, "handSize", 8);
        fill(queuing, "queueLengthLimit", 50);
    }
}

fn prepare_create(level: &mut Object) {
    level.0["status"] = json!({});
}

fn validate(level: &Object) -> Vec<Cause> {
    let mut errs = Errors::default();
    let spec = At::root(&level.0).get("spec");
    let (kind, limited, exempt) = (spec.get("type"), spec.get("limited"), spec.get("exempt"));
    errs.one_of(&kind, &["Exempt", "Limited"]);
    if (level.name() == "exempt") != (kind.str() == "Exempt") && matches!(kind.str(), "Exempt" | "Limited") {
        errs.invalid(&kind.path, kind.str(), "type must be 'Exempt' if and only if name is 'exempt'");
    }
    match kind.str() {
        "Exempt" if limited.is_set() => errs.forbidden(&limited.path, "must be nil if the type is not Limited"),
        "Limited" if exempt.is_set() => errs.forbidden(&exempt.path, "must be nil if the type is Limited"),
        "Limited" if !limited.is_set() => errs.required(&limited.path, "must not be empty when type is Limited"),
        "Limited" => check_limited(&limited, &mut errs),
        _ => {}
    }
    errs.0
}

fn check_limited(limited: &At<'_>, errs: &mut Errors) {
    errs.non_negative(&limited.get("nominalConcurrencyShares"));
    let lendable = limited.get("lendablePercent");
    if let Some(n) = lendable.int().filter(|n| !(0..=100).contains(n)) {
        errs.invalid(&lendable.path, n, "must be between 0 and 100, inclusive");
    }
    let response = limited.get("limitResponse");
    let (kind, queuing) = (response.get("type"), response.get("queuing"));
    errs.one_of(&kind, &["Queue", "Reject"]);
    match kind.str() {
        "Reject" if queuing.is_set() => {
            errs.forbidden(&queuing.path, "must be nil if limited.limitResponse.type is not Limited")
        }
        "Queue" if !queuing.is_set() => {
            errs.required(&queuing.path, "must not be empty if limited.limitResponse.type is Limited")
        }
        "Queue" => {
            for field in ["queueLengthLimit", "queues", "handSize"] {
                let at = queuing.get(field);
                if let Some(n) = at.int().filter(|n| *n <= 0) {
                    errs.invalid(&at.path, n, "must be positive");
                }
            }
            let (hand, queues) = (queuing.get("handSize"), queuing.get("queues").int().unwrap_or(0));
            if let Some(n) = hand.int().filter(|n| *n > queues) {
                errs.invalid(&hand.path, n, format!("should not be greater than queues ({queues})"));
            }
        }
        _ => {}
    }
}
