//! DefaultIngressClass: an Ingress without a class gets the default one; the newest if there are several.
//! <https://kubernetes.io/docs/concepts/services-networking/ingress/#default-ingress-class>

use super::{default_storage_class, operation::Operation, review::Review};
use podwright_api::{Object, Status};

const IS_DEFAULT: &str = "ingressclass.kubernetes.io/is-default-class";
/// How Ingresses named their class before there was a field.
const OLD_CLASS: &str = "kubernetes.io/ingress.class";

pub(super) fn concerns(review: &Review<'_>) -> bool {
    review.is("Ingress", Operation::Create)
}

pub(super) fn mutate(review: &Review<'_>, ingress: &mut Object) -> Result<(), Status> {
    let names_one = || ingress.at("spec.ingressClassName").is_some() || ingress.annotation(OLD_CLASS).is_some();
    if names_one() {
        return Ok(());
    }
    if let Some(class) = default_storage_class::newest(review, "ingressclasses", &[IS_DEFAULT]) {
        ingress.0["spec"]["ingressClassName"] = class.name().into();
    }
    Ok(())
}
