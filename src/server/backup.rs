//! A copy of the whole store, as a stream.

use podwright_api::{Status, User};

use super::{
    Server,
    authorize::Attributes,
    sessions::With,
    store_error,
    streams::{self, Come},
};

impl Server {
    /// A consistent online backup of the store, as a stream to dial, which starts the copy. The caller stores it: the server writes
    /// to no path from a request.
    pub async fn backup(&self, user: &User) -> Result<String, Status> {
        let asked = Attributes::of_path(user, "post", "/backup");
        self.authorizer.authorize(&asked)?;
        let withdrawn = self.withdrawn(vec![asked.keep()]);
        let counted = self.sessions.enter(user, With { namespace: "", object: "backup", shared: false })?;
        let (id, caller) = self.streams.offer(&self.env, &user.name);
        let store = self.store.clone();
        let lost = counted.lasting();
        tokio::spawn(async move {
            let _counted = counted;
            let whole = async {
                let Some(Come { half, ended }) = caller.await else { return };
                let told = async {
                    match store.backup().await {
                        Ok(copy) => streams::send_file(half, copy).await,
                        Err(why) => streams::refuse(half, &store_error(why)).await,
                    }
                };
                tokio::select! {
                    () = told => {}
                    () = ended => {}
                }
            };
            tokio::select! {
                () = whole => {}
                () = withdrawn => {}
                () = lost.cancelled() => {}
            }
        });
        Ok(id)
    }
}
