//! Everything served at one moment, here and by others; and the documents about it, each built once.

use std::sync::Arc;

use bytes::Bytes;

use super::paths::Route;
use crate::Server;
use crate::aggregator::AllGathered;
use crate::aggregator::listing::{Group, listing};
use crate::aggregator::table::{Registration, Table};
use crate::documents::Document;
use crate::documents::Stamp;
use podwright_api::kinds::registry::Kinds;
use podwright_api::{Kind, Status, User};

pub struct Served {
    pub kinds: Arc<Kinds>,
    pub groups: Vec<Group>,
    pub gathered: Arc<AllGathered>,
    table: Arc<Table>,
    stamp: Stamp,
}

impl Served {
    pub fn now(server: &Server) -> Served {
        let (kinds, table, gathered) = (server.kinds(), server.registrations(), server.aggregator.gathered());
        let stamp = server.stamp(&table, &gathered);
        Served { groups: listing(&kinds, &table), kinds, gathered, table, stamp }
    }

    /// The kinds of versions that are served here.
    pub fn local(&self) -> Vec<&'static Kind> {
        self.kinds.all().filter(|kind| self.table.remote(kind.group, kind.version).is_none()).collect()
    }

    /// The servers of other versions.
    pub fn remote(&self) -> impl Iterator<Item = &Arc<Registration>> {
        self.groups.iter().flat_map(|group| &group.versions).filter_map(|listed| listed.remote.as_ref())
    }

    pub fn group(&self, name: &str) -> Option<&Group> {
        self.groups.iter().find(|group| group.name == name && !name.is_empty())
    }

    /// Whether discovery has content for a path.
    pub fn has(&self, place: &Route) -> bool {
        match place {
            Route::Group(name) => self.group(name).is_some(),
            Route::GroupVersion(..) => self.concerned(place).next().is_some(),
            _ => true,
        }
    }

    /// The kinds that a discovery document covers.
    pub fn concerned(&self, place: &Route) -> impl Iterator<Item = &'static Kind> {
        self.kinds.all().filter(move |kind| match place {
            Route::Group(name) => kind.group == name && !name.is_empty(),
            Route::GroupVersion(group, version) => kind.group == group && kind.version == version,
            _ => true,
        })
    }

    /// The document of this name about everything served; it depends on these kinds only, unless other servers add to them.
    pub async fn document(
        &self,
        server: &Server,
        user: &User,
        of: &str,
        kinds: &[&'static Kind],
        make: impl FnOnce() -> Bytes,
    ) -> Result<Arc<Document>, Status> {
        match self.table.is_plain() {
            true => server.document(of, kinds, user, make).await,
            false => server.document_of(of, self.stamp, user, make).await,
        }
    }

    /// The OpenAPI v3 document of a remotely served version, if it has one.
    pub async fn openapi_v3(
        &self,
        server: &Server,
        user: &User,
        registration: &Registration,
    ) -> Result<Option<Arc<Document>>, Status> {
        let Some((_, bytes)) = self.gathered.get(&registration.name).and_then(|it| it.v3.clone()) else {
            return Ok(None);
        };
        let of = format!("openapi v3 {}", registration.name);
        server.document_of(&of, self.stamp, user, || bytes).await.map(Some)
    }
}
