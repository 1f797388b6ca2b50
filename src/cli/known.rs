//! The kinds that a command knows: the table, and what the server's CustomResourceDefinitions add.

use std::sync::{Arc, LazyLock};

use super::Session;
use crate::api::kinds::registry::{Kinds, Registry};
use crate::api::{Object, Request, Verb, request::Body};

static KNOWN: LazyLock<Registry> = LazyLock::new(Registry::default);

/// Asks the server once, before a command runs. Whoever may not list definitions, or reaches no server, knows the table
/// alone; what is wrong shows when the command asks for something.
pub async fn learn(session: &Session) {
    let resource = "customresourcedefinitions.apiextensions.k8s.io".to_owned();
    let request = Request { verb: Verb::List, resource, ..Request::default() };
    let Ok(response) = session.client.call(request).await else { return };
    let Body::List(list) = response.body else { return };
    for definition in list.items.iter().filter_map(|item| Object::from_slice(item).ok()) {
        KNOWN.put(&definition);
    }
}

pub fn kinds() -> Arc<Kinds> {
    KNOWN.now()
}
